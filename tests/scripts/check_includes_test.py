"""scripts/check_includes.py must find each kind of fault, and only faults."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_includes.py"


def faults_of(files):
    """The script's output lines and exit status for a tree of {name: text}."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        run = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True)
        if run.stderr:
            raise AssertionError(run.stderr)
        return run.stdout.splitlines(), run.returncode


class CheckIncludesTest(unittest.TestCase):

    def expect_fault(self, name, include, part):
        guard = "#pragma once\n" if name.endswith(".h") else "\n"
        lines, status = faults_of({name: f"{guard}#include {include}\n"})
        self.assertEqual(status, 1, f"{name} with {include} passed")
        self.assertTrue(lines[0].startswith(f"{name}:2: "), lines[0])
        self.assertIn(part, lines[0])

    def expect_none(self, name, include):
        guard = "#pragma once\n" if name.endswith(".h") else "\n"
        lines, status = faults_of({name: f"{guard}#include {include}\n"})
        self.assertEqual((lines, status), ([], 0))

    def test_an_arrow_up_fails(self):
        self.expect_fault("kinora/core/a.cc", '"kinora/io/b.h"',
                          "core (floor 1) points up to io (floor 2)")
        self.expect_fault("kinora/models/a.h", '"kinora/train/b.h"', "points up")
        self.expect_fault("kinora/io/a.cc", "<kinora/data/b.h>", "points up")

    def test_an_arrow_sideways_fails(self):
        self.expect_fault("kinora/models/a.cc", '"kinora/checkpoint/b.h"', "points sideways")
        self.expect_fault("kinora/io/deep/a.cc", '"kinora/kernels/b.h"', "points sideways")

    def test_only_the_arena_looks_across(self):
        self.expect_none("kinora/optim/a.h", '"kinora/nn/b.h"')
        self.expect_fault("kinora/nn/a.h", '"kinora/optim/b.h"', "points sideways")
        self.expect_fault("kinora/data/a.h", '"kinora/nn/b.h"', "points sideways")

    def test_folders_of_a_room_have_an_order(self):
        self.expect_none("kinora/models/transformers/a.h", '"kinora/models/layers/b.h"')
        self.expect_none("kinora/models/transformers/a.h", '"kinora/models/transformers/b.h"')
        self.expect_none("kinora/models/layers/a.h", '"kinora/models/b.h"')
        self.expect_none("kinora/models/a.cc", '"kinora/models/transformers/b.h"')
        self.expect_fault("kinora/models/layers/a.h", '"kinora/models/transformers/b.h"',
                          "models/layers must not include models/transformers")
        self.expect_fault("kinora/models/transformers/a.cc", '"kinora/models/autoencoders/b.h"',
                          "models/transformers must not include models/autoencoders")

    def test_the_facade_lies_above_the_rooms(self):
        self.expect_none("kinora/kinora.h", '"kinora/train/b.h"')
        self.expect_none("kinora/api/a.cc", '"kinora/kinora.h"')
        self.expect_none("examples/a/main.cc", '"kinora/kinora.h"')
        self.expect_fault("kinora/train/a.cc", '"kinora/kinora.h"',
                          "train (floor 10) points up to api (floor 11)")

    def test_apps_and_tests_stay_outside(self):
        self.expect_fault("kinora/train/a.cc", '"apps/kinora/b.h"', "must not include apps")
        self.expect_fault("kinora/train/a.cc", '"tests/train/b.h"', "must not include tests")
        self.expect_fault("apps/kinora/a.cc", '"tests/apps/b.h"', "must not include tests")
        self.expect_none("apps/kinora/a.cc", '"apps/kinora/b.h"')
        self.expect_none("tests/io/a.cc", '"tests/io/b.h"')

    def test_the_arrow_down_passes(self):
        self.expect_none("kinora/train/a.cc", '"kinora/core/b.h"')
        self.expect_none("kinora/ops/a.h", '"kinora/kernels/b.h"')
        self.expect_none("kinora/ops/a.cc", '"kinora/ops/a.h"')

    def test_an_include_is_written_from_the_root(self):
        self.expect_fault("kinora/io/a.cc", '"b.h"', "from the root")
        self.expect_fault("kinora/io/a.cc", '"../core/b.h"', "from the root")

    def test_an_unknown_room_fails(self):
        self.expect_fault("kinora/train/a.cc", '"kinora/attic/b.h"', "no room kinora/attic")
        lines, status = faults_of({"kinora/attic/a.cc": "int a;\n"})
        self.assertEqual(status, 1)
        self.assertIn("has no floor", lines[0])

    def test_costly_torch_headers_are_banned_everywhere(self):
        for header in ("torch/torch.h", "torch/all.h", "torch/nn.h", "torch/extension.h",
                       "ATen/ATen.h"):
            for name in ("kinora/ops/a.cc", "apps/kinora/a.cc", "tests/ops/a.cc"):
                with self.subTest(header=header, name=name):
                    self.expect_fault(name, f"<{header}>", "is banned")
        self.expect_none("kinora/ops/a.cc", "<ATen/core/Tensor.h>")

    def test_confined_headers(self):
        function = "<torch/csrc/autograd/custom_function.h>"
        self.expect_none("kinora/ops/a.cc", function)
        self.expect_none("kinora/comm/a.cc", function)
        self.expect_fault("kinora/ops/a.h", function, "comm and ops only")
        self.expect_fault("kinora/nn/a.cc", function, "comm and ops only")
        group = "<torch/csrc/distributed/c10d/ProcessGroup.hpp>"
        self.expect_none("kinora/comm/a.cc", group)
        self.expect_fault("kinora/ops/a.cc", group, "comm only")

    def test_low_floors_know_no_torch(self):
        for room in ("core", "io", "kernels"):
            for header in ("ATen/core/Tensor.h", "c10/util/Half.h", "torch/library.h"):
                with self.subTest(room=room, header=header):
                    self.expect_fault(f"kinora/{room}/a.cc", f"<{header}>", "nothing of torch")

    def test_third_party_headers_stay_out_of_our_headers(self):
        for header in ("yaml-cpp/yaml.h", "nlohmann/json.hpp", "spdlog/spdlog.h", "CLI/CLI.hpp",
                       "png.h", "jpeglib.h", "webp/decode.h", "xxhash.h"):
            with self.subTest(header=header):
                self.expect_fault("kinora/core/a.h", f"<{header}>", "keep it out")
                self.expect_none("kinora/core/a.cc", f"<{header}>")

    def test_gtest_is_for_tests(self):
        self.expect_fault("kinora/io/a.cc", "<gtest/gtest.h>", "tests and benchmarks")
        self.expect_none("tests/io/a.cc", "<gtest/gtest.h>")

    def test_spaces_do_not_hide_an_include(self):
        lines, status = faults_of({"kinora/ops/a.cc": "\n  #  include   <torch/torch.h>\n"})
        self.assertEqual(status, 1)

    def test_a_header_has_a_guard(self):
        lines, status = faults_of({"kinora/io/a.h": "int f();\n"})
        self.assertEqual(status, 1)
        self.assertIn("#pragma once", lines[0])


if __name__ == "__main__":
    unittest.main()
