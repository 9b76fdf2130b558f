"""scripts/bare.sh must leave neither processes nor folders behind when it is told to stop. What it
runs is replaced by stand-ins that never end."""
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "bare.sh"

# Nothing else on this machine sleeps so long.
SECONDS = f"{os.getpid()}.{time.time_ns()}"
HANGS = f"""#!/bin/bash
trap '' TERM INT HUP
setsid sleep {SECONDS} &
sleep {SECONDS}
"""
MAKES_FOLDERS = """#!/bin/bash
mkdir -p "${@: -1}"/{proc,sys,dev,etc}
"""


def sleepers():
    """The processes of HANGS."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if SECONDS in (process / "cmdline").read_text():
                found.append(int(process.name))
        except OSError:
            pass  # it has just ended
    return found


def end(script):
    """Where it did not end by itself, as it must."""
    script.kill()
    script.communicate()
    for process in sleepers():
        os.kill(process, signal.SIGKILL)


def can_run():
    return os.geteuid() == 0 and subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"],
        stderr=subprocess.DEVNULL).returncode == 0


@unittest.skipUnless(can_run(), "wants root, and may it make namespaces")
class BareTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "bin").mkdir()
        (self.folder / "made").mkdir()

    def stand_in(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def stopped_by(self, signal_number):
        """Runs the script until it hangs, and sends it the signal."""
        script = subprocess.Popen(
            [SCRIPT], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                 "TMPDIR": str(self.folder / "made")})
        self.addCleanup(end, script)
        deadline = time.monotonic() + 30
        while len(sleepers()) < 2 and time.monotonic() < deadline:
            self.assertIsNone(script.poll(), "it ended by itself")
            time.sleep(0.02)
        script.send_signal(signal_number)
        said = script.communicate(timeout=30)[0].decode()
        self.assertEqual(script.returncode, 128 + signal_number, said)
        self.assertEqual(sleepers(), [], "processes are left behind")
        self.assertEqual(list((self.folder / "made").iterdir()), [], "files are left behind")

    def test_stopped_while_the_machine_is_made(self):
        for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(signal_number):
                self.stand_in("debootstrap", HANGS)
                self.stopped_by(signal_number)

    def test_stopped_while_a_step_runs(self):
        self.stand_in("debootstrap", MAKES_FOLDERS)
        self.stand_in("git", "#!/bin/bash\n")
        self.stand_in("chroot", HANGS)
        self.stopped_by(signal.SIGTERM)
        mounts = pathlib.Path("/proc/self/mounts").read_text()
        self.assertNotIn(str(self.folder), mounts, "mounts are left behind")


if __name__ == "__main__":
    unittest.main()
