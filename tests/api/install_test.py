"""What `make install` installs must serve an application outside of the repository, which is
examples/use_kinora: README's lines of the C++ API and ten lines of CMake.

usage: python3 install_test.py BUILD CMAKE GENERATOR COMPILER
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "use_kinora"
BUILD, CMAKE, GENERATOR, COMPILER = sys.argv[1:]


def run(*command, folder, **environment):
    """What the command prints; fails with it, too, if the command fails."""
    result = subprocess.run([str(word) for word in command], cwd=folder, text=True,
                            env={**os.environ, **environment}, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)
    if result.returncode != 0:
        raise AssertionError(f"{command} returned {result.returncode}:\n{result.stdout}")
    return result.stdout


class InstallTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="kinora install ")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.prefix = cls.folder / "a prefix"
        run(CMAKE, "--install", BUILD, "--prefix", cls.prefix, folder=cls.folder)

    def test_an_application_trains_and_draws(self):
        application = self.folder / "an application"
        shutil.copytree(EXAMPLE, application)
        run(CMAKE, "-B", "build", "-G", GENERATOR, f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DCMAKE_CXX_COMPILER={COMPILER}", folder=application)
        run(CMAKE, "--build", "build", "--verbose", folder=application)

        # README's recipe made small, where the program looks for it.
        recipe = (self.prefix / "share/kinora/configs/demo.yaml").read_text()
        for key, value in {"steps: 5000": "steps: 3", "global_batch: 16": "global_batch: 2",
                           "depth: 4": "depth: 1", "steps: 25": "steps: 2"}.items():
            self.assertEqual(recipe.count(key), 1, key)
            recipe = recipe.replace(key, value)
        (application / "configs").mkdir()
        (application / "configs/demo.yaml").write_text(recipe)
        run("build/use_kinora", folder=application, CUDA_VISIBLE_DEVICES="",
            OMP_WAIT_POLICY="passive")
        picture = (application / "grid.png").read_bytes()
        self.assertEqual(picture[:8], b"\x89PNG\r\n\x1a\n")
        width, height = (int.from_bytes(picture[at:at + 4], "big") for at in (16, 20))
        self.assertEqual((width, height), (4 * 34 + 2, 4 * 34 + 2))  # 16 pictures of 32 x 32

    def test_the_program_runs(self):
        said = run(self.prefix / "bin/kinora", "--version", folder=self.folder)
        self.assertRegex(said, r"^kinora \d+\.\d+\.\d+\n")

    def test_headers_are_complete(self):
        headers = sorted((self.prefix / "include/kinora").rglob("*.h"))
        self.assertIn(self.prefix / "include/kinora/kinora.h", headers)
        for header in headers:
            for name in re.findall(r'^#include "(.*)"', header.read_text(), re.MULTILINE):
                self.assertTrue((self.prefix / "include" / name).exists(), f"{header}: {name}")

    def test_the_package_imposes_nothing_of_this_build(self):
        for file in (self.prefix / "lib/cmake/Kinora").glob("KinoraTargets*.cmake"):
            text = file.read_text()
            self.assertNotRegex(text, r"-W(all|extra|error)")
            self.assertNotIn("kinora_flags", text)
            for path in (str(ROOT), str(BUILD)):
                self.assertNotIn(path, text)


class ExampleTest(unittest.TestCase):

    def test_readme_shows_the_program(self):
        program = (EXAMPLE / "main.cc").read_text()
        lines = program[program.index("#include"):]
        self.assertLessEqual(len(lines.splitlines()), 10)
        self.assertIn(f"```cpp\n{lines}```\n", (ROOT / "README.md").read_text())

    def test_building_shows_the_cmake_file(self):
        text = (EXAMPLE / "CMakeLists.txt").read_text()
        lines = text[text.index("cmake_minimum_required"):]
        self.assertLessEqual(len(lines.splitlines()), 10)
        self.assertIn(f"```cmake\n{lines}```\n", (ROOT / "docs/building.md").read_text())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
