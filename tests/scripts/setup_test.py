"""scripts/setup.sh must install what lacks, repair what is broken, and say what to do where it
cannot; apt-get, sudo, pip and the rest are stand-ins here."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"

# Knows every package except those named in $MISSING.
DPKG_QUERY = """#!/bin/bash
status=0
for name in "${@:4}"; do
  if [[ " ${MISSING:-} " == *" $name "* ]]; then status=1; else echo "installed:$name"; fi
done
exit $status
"""

# Stands for the interpreter, and, copied, for that of the environment.
PYTHON = """#!/bin/bash
here="$(dirname "$0")"
case "$*" in
  *'import sys, venv'*) exit "${UNFIT:-0}" ;;
  *'import ctypes'*) [[ -f "$here/torch-works" ]] ;;
  -V) echo 'Python 3.12.0' ;;
  '-m venv '*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  '-m pip install '*)
    echo "$*" >>"$CALLS"
    if [[ -n "${PIP_SAYS:-}" ]]; then echo "$PIP_SAYS" >&2; exit 1; fi
    site="$here/../lib/python3.12/site-packages"
    mkdir -p "$site/torch/lib" "$site/nvidia/cu13/include/"{crt,nv} "$site/nvidia/cu13/bin"
    if [[ "$*" == *torch==* ]]; then
      touch "$site/torch/lib/libtorch_cpu.so" "$here/torch-works"
    fi
    if [[ "$*" == *cuda-crt==* ]]; then
      touch "$site/nvidia/cu13/include/crt/host_defines.h"
    fi
    if [[ "$*" == *cuda-cccl==* ]]; then touch "$site/nvidia/cu13/include/nv/target"; fi
    if [[ "$*" == *cuda-nvcc==* ]]; then
      printf '#!/bin/bash\necho release 13.0\n' >"$site/nvidia/cu13/bin/nvcc"
      chmod +x "$site/nvidia/cu13/bin/nvcc"
    fi
    if [[ "$*" == *cudnn-frontend==* ]]; then
      version="${!#}"
      mkdir -p "$site/nvidia_cudnn_frontend-${version##*==}.dist-info"
    fi ;;
esac
"""


class SetupTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.base = pathlib.Path(self.folder.name)
        self.root = self.base / "kinora with space"
        shutil.copytree(SCRIPTS, self.root / "scripts")
        self.stubs = self.base / "stubs"
        self.stubs.mkdir()
        self.calls = self.base / "calls"
        self.stub("dpkg-query", DPKG_QUERY)
        self.stub("python", PYTHON)
        self.stub("id", "#!/bin/bash\necho ${USER_ID:-1000}\n")
        self.stub("sudo", "#!/bin/bash\nexit 1\n")
        self.stub("apt-get", '#!/bin/bash\necho "apt-get $*" >>"$CALLS"\nexit ${APT_STATUS:-0}\n')
        self.stub("df", '#!/bin/bash\necho Filesystem\necho "d 9 9 ${FREE_MB:-90000} 1% /"\n')

    def stub(self, name, text):
        path = self.stubs / name
        path.write_text(text)
        path.chmod(0o755)

    def run_setup(self, *arguments, **variables):
        environment = {
            "PATH": f"{self.stubs}:/usr/bin:/bin",
            "CALLS": str(self.calls),
            "KINORA_PYTHON": str(self.stubs / "python"),
            **variables,
        }
        run = subprocess.run(["bash", str(self.root / "scripts" / "setup.sh"), *arguments],
                             stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             env=environment, cwd="/", timeout=60)
        return run.returncode, run.stdout, run.stderr

    def calls_made(self):
        return self.calls.read_text() if self.calls.exists() else ""

    def test_installs_torch_once(self):
        status, out, err = self.run_setup("--no-cuda")
        self.assertEqual((status, err), (0, ""))
        self.assertIn("installing torch 2.11.0", out)
        self.assertIn("torch==2.11.0", self.calls_made())
        before = self.calls_made()
        self.assertEqual(self.run_setup("--no-cuda"), (0, "", ""))
        self.assertEqual(self.calls_made(), before)

    def test_without_a_gpu_installs_nothing_for_gpus(self):
        self.assertEqual(self.run_setup("--no-cuda")[0], 0)
        self.assertIn("--no-deps torch==2.11.0 nvidia-cuda-runtime", self.calls_made())
        for package in ("crt", "cccl", "nvcc", "cudnn"):
            self.assertNotIn(package, self.calls_made())

    def test_for_gpus_adds_the_rest_to_the_same_environment(self):
        self.run_setup("--no-cuda")
        before = self.calls_made()
        status, out, err = self.run_setup("--cuda")
        self.assertEqual((status, err), (0, ""))
        self.assertNotIn("making", out)
        added = self.calls_made()[len(before):]
        self.assertNotIn("--no-deps torch", added)
        self.assertIn("torch==2.11.0", added)
        # What CUDA's own headers include, also where a toolkit has an nvcc.
        self.assertIn("nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85", added)
        self.assertIn("--no-deps nvidia-cudnn-frontend==1.18.0", added)
        before = self.calls_made()
        for arguments in (["--cuda"], ["--no-cuda"]):
            self.assertEqual(self.run_setup(*arguments), (0, "", ""))
        self.assertEqual(self.calls_made(), before)

    def test_repairs_a_half_made_environment(self):
        half = self.root / ".venv" / "bin"
        half.mkdir(parents=True)
        (half / "left-over").touch()
        status, out, err = self.run_setup("--no-cuda")
        self.assertEqual(status, 0, err)
        self.assertIn("making it anew", out)
        self.assertFalse((half / "left-over").exists())
        self.assertTrue((half / "torch-works").exists())

    def test_repairs_an_environment_whose_libtorch_went_away(self):
        self.run_setup("--no-cuda")
        shutil.rmtree(self.root / ".venv" / "lib")
        (self.root / ".venv" / "bin" / "torch-works").unlink()
        status, out, _ = self.run_setup("--no-cuda")
        self.assertEqual(status, 0)
        self.assertIn("making it anew", out)

    def test_takes_a_whole_environment_that_it_did_not_make(self):
        self.run_setup("--no-cuda")
        (self.root / ".venv" / "kinora-setup").unlink()
        before = self.calls_made()
        status, out, _ = self.run_setup("--no-cuda")
        self.assertEqual(status, 0)
        self.assertNotIn("making", out)
        self.assertEqual(self.calls_made(), before)

    def test_takes_an_existing_libtorch_and_makes_no_environment(self):
        torch = self.base / "libtorch"
        (torch / "include/torch/headeronly").mkdir(parents=True)
        (torch / "include/torch/headeronly/version.h").touch()
        (torch / "lib").mkdir()
        (torch / "lib/libtorch_cpu.so").touch()
        self.assertEqual(self.run_setup("--no-cuda", KINORA_TORCH_DIR=str(torch)), (0, "", ""))
        self.assertFalse((self.root / ".venv").exists())

    def test_refuses_a_folder_that_is_no_libtorch(self):
        status, _, err = self.run_setup("--no-cuda", KINORA_TORCH_DIR="/nowhere")
        self.assertEqual(status, 1)
        self.assertIn("KINORA_TORCH_DIR must be", err)
        self.assertIn("got /nowhere", err)

    def test_without_root_says_which_command_to_run(self):
        status, _, err = self.run_setup("--no-cuda", MISSING="libpng-dev ninja-build")
        self.assertEqual(status, 1)
        self.assertIn("apt-get update && apt-get install -y --no-install-recommends "
                      "ninja-build libpng-dev", err)
        self.assertNotIn("libwebp-dev", err)
        self.assertEqual(self.calls_made(), "")

    def test_without_root_asks_once_for_everything(self):
        status, _, err = self.run_setup("--no-cuda", "--dev", "--video",
                                        MISSING="libpng-dev clang-tidy-14 libavcodec-dev")
        self.assertEqual(status, 1)
        for package in ("libpng-dev", "clang-tidy-14", "libavcodec-dev"):
            self.assertIn(package, err)

    def test_as_root_installs_what_is_missing_and_no_more(self):
        status, _, err = self.run_setup("--no-cuda", MISSING="libpng-dev", USER_ID="0")
        self.assertEqual(status, 0, err)
        self.assertRegex(self.calls_made(), "apt-get .*update")
        self.assertIn("--no-install-recommends libpng-dev\n", self.calls_made())

    def test_builds_hear_of_what_was_installed(self):
        changes = self.root / ".cache/setup-changes"
        self.run_setup()
        os.utime(changes, (1, 1))
        self.run_setup()
        self.assertEqual(changes.stat().st_mtime, 1)
        self.run_setup("--video", MISSING="libavcodec-dev", USER_ID="0")
        self.assertGreater(changes.stat().st_mtime, 1)
        os.utime(changes, (1, 1))
        self.run_setup("--parquet")
        self.assertGreater(changes.stat().st_mtime, 1)

    def test_says_when_apt_cannot(self):
        status, _, err = self.run_setup("--no-cuda", MISSING="git", USER_ID="0", APT_STATUS="100")
        self.assertEqual(status, 1)
        self.assertIn("Is there a network", err)

    def test_the_developers_tools_only_when_asked_for(self):
        missing = "clang-format-14 clang-tidy-14"
        self.assertEqual(self.run_setup("--no-cuda", MISSING=missing)[0], 0)
        status, _, err = self.run_setup("--no-cuda", "--dev", MISSING=missing)
        self.assertEqual(status, 1)
        self.assertIn("clang-tidy-14", err)

    def test_says_when_pip_has_no_network(self):
        status, _, err = self.run_setup(
            "--no-cuda", PIP_SAYS="WARNING: Retrying ... Temporary failure in name resolution")
        self.assertEqual(status, 1)
        self.assertIn("Is there a network?", err)
        self.assertIn("KINORA_TORCH_DIR", err)

    def test_says_when_the_disk_is_full(self):
        for kind, needed in (("--cuda", 7000), ("--no-cuda", 2000)):
            status, _, err = self.run_setup(kind, FREE_MB="1900")
            self.assertEqual(status, 1)
            self.assertIn(f"needs about {needed} MB", err)
            self.assertIn("got 1900 MB free", err)
        status, _, err = self.run_setup("--no-cuda", PIP_SAYS="OSError: No space left on device")
        self.assertEqual(status, 1)
        self.assertIn("the disk is full", err)

    def test_refuses_a_python_without_wheels(self):
        status, _, err = self.run_setup("--no-cuda", UNFIT="1")
        self.assertEqual(status, 1)
        self.assertIn("KINORA_PYTHON must be a Python 3.10 to 3.14", err)

    def test_refuses_an_unknown_option(self):
        status, _, err = self.run_setup("--cude")
        self.assertEqual(status, 1)
        self.assertIn("unknown option: --cude", err)


if __name__ == "__main__":
    unittest.main()
