#!/usr/bin/env python3
"""Tries to break Kinora, and prints what happened: see scripts/trial.sh."""
import argparse
import collections
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time

HANG_SECONDS = 120  # without an end: no command here takes more than a few seconds
MEMORY_LIMIT = 4 << 30  # bytes that a refused command may take
# Of what ends by itself, and says why (docs/configuration.md): an error of its own kind.
CLEAR_CODES = {0, 2, 3, 4, 5, 6, 8, 9, 10}  # and 1 of compare: there is a difference
RECIPE = """
model: {depth: 2, hidden: 32, heads: 2, patch: 4, mlp_ratio: 2}
data: {source: shapes, height: 16, width: 16, count: 256, threads: 1}
train: {steps: 20, global_batch: 8, threads: 1, device: cpu}
checkpoint: {every: 10}
sample: {steps: 3}
"""
ABSURD = ["-1", "0", "1.5", "-3", "nan", "inf", "-inf", "1e308", "1e100", "99999999999999999999",
          "2147483648", "4294967296", "9223372036854775807", "-9223372036854775808", "", "''",
          "true", "null", "[]", "[[[[[[]]]]]]", "{a: b}", "x" * 5000, "../outside", "pipe",
          "device", "\x1b[31mred", "a\nb", "\xff\xfe", "%s%n", "'unclosed", "block:9"]


class Tally:
    """What one kind of trial led to."""

    def __init__(self):
        self.inputs = 0
        self.crashes = []
        self.hangs = []
        self.unclear = []  # ended with an internal error, or one without a kind
        self.lost = 0  # bytes
        self.memory = 0  # bytes of the largest process


class Trial:
    def __init__(self, program, folder, seed):
        self.program = str(program)
        self.folder = folder
        self.random = random.Random(seed)
        self.tallies = collections.OrderedDict()
        self.recipe = folder / "tiny.yaml"
        self.recipe.write_text(RECIPE)
        # Of our own: one who is root could put a file in place of the machine's.
        os.mkfifo(folder / "pipe")
        try:
            os.mknod(folder / "device", stat.S_IFCHR | 0o666, os.makedev(1, 7))  # /dev/full
        except PermissionError:
            pass
        self.special = {name: os.stat(folder / name).st_mode for name in ("pipe", "device")
                        if (folder / name).exists()}
        self.environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}

    # ---- one command ----

    def start(self, arguments, **options):
        return subprocess.Popen([self.program, *map(str, arguments)], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.folder,
                                start_new_session=True,
                                env={**self.environment, **options.pop("environment", {})}, **options)

    def finish(self, kind, process, arguments, limit=HANG_SECONDS, killed=False):
        """Waits, and counts how it ended. Returns (exit code, what it said)."""
        tally = self.tallies.setdefault(kind, Tally())
        tally.inputs += 1
        text = " ".join(str(a)[:80] for a in arguments)
        peak = [0]

        def watch():
            status = pathlib.Path(f"/proc/{process.pid}/status")
            while process.poll() is None:
                try:
                    found = re.search(r"VmHWM:\s+(\d+)", status.read_text())
                    peak[0] = max(peak[0], int(found.group(1)) * 1024 if found else 0)
                except OSError:
                    return
                if peak[0] > MEMORY_LIMIT:
                    os.killpg(process.pid, signal.SIGKILL)
                    tally.crashes.append(f"took more than {MEMORY_LIMIT >> 30} GiB: {text}")
                    return
                time.sleep(0.05)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            tally.hangs.append(text)
            killed = True
        watcher.join()
        tally.memory = max(tally.memory, peak[0])
        code = process.returncode
        said = (out + err).decode(errors="replace")
        if not killed and code < 0:
            tally.crashes.append(f"signal {-code}: {text}")
        elif not killed and code not in CLEAR_CODES and not (code == 1 and arguments[0] == "compare"):
            tally.unclear.append(f"exit code {code}: {text}: {said.strip()[-200:]}")
        for name, mode in self.special.items():
            if not (self.folder / name).exists() or os.stat(self.folder / name).st_mode != mode:
                tally.crashes.append(f"replaced the {name}: {text}")
                del self.special[name]
                break
        if "\x1b[31m" in said or "AddressSanitizer" in said:
            tally.crashes.append(f"raw bytes or a sanitizer's report in what was said: {text}")
        return code, said

    def run(self, kind, arguments, **options):
        limit = options.pop("limit", HANG_SECONDS)
        try:
            process = self.start(arguments, **options)
        except (ValueError, OSError):  # an argument that no program can be given
            return None, ""
        return self.finish(kind, process, arguments, limit)

    def train(self, run, *more):
        return ["train", self.recipe, f"run.dir={run}", *more]

    # ---- what is compared ----

    def arrays(self, checkpoint):
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                for path in sorted(checkpoint.glob("*.safetensors"))}

    def lost_bytes(self, run, whole, step):
        """Of the run's last checkpoint, against that of a run that nothing happened to."""
        mine, other = (folder / "checkpoints" / f"step-{step}" for folder in (run, whole))
        theirs = self.arrays(other)
        own = self.arrays(mine) if mine.is_dir() else {}
        return sum((other / name).stat().st_size for name, value in theirs.items()
                   if own.get(name) != value)

    def goes_on(self, kind, run, steps, *more):
        """The run comes to its end and is what it would have been undisturbed."""
        whole = self.folder / f"whole-{steps}"
        if not whole.exists():
            self.run("undisturbed runs", self.train(whole, f"train.steps={steps}", *more))
        code, said = self.run(kind, self.train(run, f"train.steps={steps}", "--resume", "auto", *more))
        tally = self.tallies[kind]
        lost = self.lost_bytes(run, whole, steps)
        tally.lost += lost
        if code != 0 or lost:
            tally.unclear.append(f"{run.name} did not go on: {said.strip()[-300:]}")
        shutil.rmtree(run, ignore_errors=True)

    # ---- the trials: each runs until `until` ----

    def options(self, until):
        """Every option of every subcommand, and every key of a recipe, with absurd values."""
        commands = [["train"], ["plan"], ["sample"], ["eval"], ["compare"], ["convert"], ["demo"],
                    ["doctor"], ["data", "check"], ["data", "encode"],
                    ["data", "encode-texts"], ["data", "search-batch"],
                    ["runs", "list"], ["runs", "report"], ["bench", "train"], ["bench", "sample"],
                    ["bench", "decode"]]
        words = {}
        for command in commands:
            _, said = self.run("help", [*command, "--help"])
            words[tuple(command)] = sorted(set(re.findall(r"(--[a-z][a-z-]+)", said)) -
                                           {"--help", "--oversubscribe"})
        _, said = self.run("help", ["train", "--help-config"])
        keys = re.findall(r"^  ([a-z0-9_.]+): ", said, re.MULTILINE)
        run = self.folder / "option-run"
        self.run("undisturbed runs", self.train(run))
        places = {"train": [self.recipe], "plan": [self.recipe], "sample": ["--run", run],
                  "convert": [run / "checkpoints/step-20", self.folder / "out.safetensors"],
                  "encode": [self.recipe], "encode-texts": [self.recipe],
                  "check": [self.recipe], "search-batch": [self.recipe],
                  "report": [run], "list": [self.folder]}
        while time.time() < until:
            value = self.random.choice(ABSURD)
            if self.random.random() < 0.5:
                key = self.random.choice(keys)
                target = self.folder / "absurd-run"
                command = self.random.choice([["plan", self.recipe],
                                              ["train", self.recipe, f"run.dir={target}",
                                               "train.steps=1"]])
                self.run("keys of a recipe", [*command, f"{key}={value}"])
                shutil.rmtree(target, ignore_errors=True)
            else:
                command = self.random.choice(commands)
                if not words[tuple(command)]:
                    continue
                option = self.random.choice(words[tuple(command)])
                target = self.folder / "absurd-out"
                more = ["--out", target] if command == ["sample"] and option != "--out" else []
                # Slow commands are not what is tried here.
                if command[0] in ("bench", "demo") and value not in ABSURD[:14]:
                    continue
                self.run("options", [*command, *places.get(command[-1], []), option, value, *more],
                         limit=HANG_SECONDS)
                shutil.rmtree(target, ignore_errors=True)

    def mutated(self, path, content):
        """The content with a few bytes changed, cut, doubled or filled."""
        data = bytearray(content)
        for _ in range(self.random.choice([1, 1, 2, 8])):
            if not data:
                break
            # Headers lie in front.
            at = self.random.randrange(len(data) if self.random.random() < 0.5
                                       else min(len(data), 512))
            how = self.random.randrange(5)
            if how == 0:
                data[at] ^= 1 << self.random.randrange(8)
            elif how == 1:
                data[at] = self.random.choice([0, 255, 127, 128])
            elif how == 2:
                del data[at:]
            elif how == 3:
                data[at:at] = data[at:at + self.random.randrange(1, 64)]
            else:
                number = str(self.random.choice([2000000000, -1, 2**63, 2**64, 10**30])).encode()
                data[at:at] = number
        path.write_bytes(bytes(data))

    def files(self, until):
        """Files of a run, of data and of weights, mutated, through every command that reads them."""
        run = self.folder / "file-run"
        self.run("undisturbed runs", self.train(run, "checkpoint.export=true", "sample.every=10"))
        self.run("undisturbed runs", ["sample", "--run", run, "--out", self.folder / "pictures"])
        pictures = self.folder / "pictures"
        source = self.folder / "classes"
        for i, picture in enumerate(sorted(pictures.rglob("*.png"))[:6]):
            (source / f"class{i % 2}").mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, source / f"class{i % 2}" / f"{i}.png")
        data = ["data.source=images", f"data.path=[{source}]", "data.count=2"]
        targets = [path for path in run.rglob("*") if path.is_file() and path.stat().st_size > 0
                   and path.name != ".lock"]
        targets += list(source.rglob("*.png"))
        targets += [self.recipe]
        readers = {
            "run": [["runs", "report", run], ["runs", "list", run], ["sample", "--run", run, "--count", "1"],
                    ["compare", run / "checkpoints/step-20", run / "checkpoints/step-10"],
                    self.train(run, "train.steps=21", "--resume", "auto")],
            "classes": [["data", "check", self.recipe, *data],
                        self.train(self.folder / "data-run", "train.steps=1", *data)],
            "recipe": [["plan", self.recipe]],
            "weights": [["sample", "--checkpoint", run / "model.safetensors", "--count", "1"],
                        ["compare", run / "model.safetensors", run / "model.safetensors"],
                        ["convert", run / "model.safetensors", self.folder / "converted.safetensors"],
                        self.train(self.folder / "data-run", "train.steps=1",
                                   f"checkpoint.init_from={run / 'model.safetensors'}")],
        }
        saved = self.folder / "file-run-saved"
        shutil.copytree(run, saved)
        while time.time() < until:
            target = self.random.choice(targets)
            if not target.exists():
                continue
            content = target.read_bytes()
            self.mutated(target, content)
            kind = ("weights" if target.name == "model.safetensors" else
                    "recipe" if target == self.recipe else
                    "classes" if source in target.parents else "run")
            command = list(self.random.choice(readers[kind]))
            out = self.folder / "mutated-out"
            if command[0] == "sample":
                command += ["--out", out]
            self.run("mutated files", command)
            for folder in (out, self.folder / "data-run"):
                shutil.rmtree(folder, ignore_errors=True)
            (self.folder / "converted.safetensors").unlink(missing_ok=True)
            if run in target.parents:
                shutil.rmtree(run)
                shutil.copytree(saved, run)
            else:
                target.write_bytes(content)

    def kills(self, until):
        """kill -9 at random moments; then the run goes on as if nothing had been."""
        number = 0
        while time.time() < until:
            run = self.folder / f"killed-{number}"
            number += 1
            for _ in range(self.random.randrange(1, 5)):
                arguments = self.train(run, "train.steps=400", "checkpoint.every=3", "--resume", "auto")
                process = self.start(arguments)
                time.sleep(self.random.uniform(0.05, 2.5))
                os.killpg(process.pid, signal.SIGKILL)
                self.finish("kill -9 of training", process, arguments, killed=True)
            self.goes_on("kill -9 of training", run, 400, "checkpoint.every=3")

    def sample_kills(self, until):
        """The same of drawing: what is there is whole, and the same command goes on."""
        run = self.folder / "sampled-run"
        self.run("undisturbed runs", self.train(run))
        whole = self.folder / "whole-samples"
        command = ["sample", "--run", run, "--count", "64", "--steps", "20"]
        self.run("undisturbed runs", [*command, "--out", whole])
        number = 0
        while time.time() < until:
            out = self.folder / f"killed-samples-{number}"
            number += 1
            arguments = [*command, "--out", out]
            for _ in range(self.random.randrange(1, 4)):
                process = self.start(arguments)
                time.sleep(self.random.uniform(0.3, 3.0))
                os.killpg(process.pid, self.random.choice([signal.SIGKILL, signal.SIGTERM]))
                self.finish("kill of sampling", process, arguments, killed=True)
            self.run("kill of sampling", arguments)
            for path in whole.rglob("*.png"):
                other = out / path.relative_to(whole)
                if not other.exists() or other.read_bytes() != path.read_bytes():
                    self.tallies["kill of sampling"].lost += path.stat().st_size
            shutil.rmtree(out, ignore_errors=True)

    def full_disks(self, until):
        """A small file system that fills up, and is given room again."""
        disk = self.folder / "disk"
        disk.mkdir(exist_ok=True)
        while time.time() < until:
            kib = self.random.randrange(50, 3000)
            if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", disk],
                              capture_output=True).returncode:
                return "needs the right to mount"
            try:
                run = disk / "run"
                code, said = self.run("full disk", self.train(run, "train.steps=100", "--resume", "auto"))
                if code not in (0, 4):
                    self.tallies["full disk"].unclear.append(f"{kib} KiB: code {code}: {said[-200:]}")
                subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
                self.goes_on("full disk", run, 100)
            finally:
                subprocess.run(["umount", "-l", disk], check=False)

    def read_only(self, until):
        """A file system that may only be read, from the start on or in the middle."""
        disk = self.folder / "readonly"
        disk.mkdir(exist_ok=True)
        while time.time() < until:
            if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk],
                              capture_output=True).returncode:
                return "needs the right to mount"
            try:
                run = disk / "run"
                self.run("read-only folder", self.train(run, "train.steps=20"))
                subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
                for arguments in (self.train(run, "train.steps=40", "--resume", "auto"),
                                  self.train(disk / "new"),
                                  ["sample", "--run", run, "--out", disk / "out"],
                                  ["runs", "report", run], ["runs", "list", disk],
                                  ["compare", run / "checkpoints/step-20", run / "checkpoints/step-10"],
                                  ["convert", run / "checkpoints/step-20", disk / "x.safetensors"]):
                    self.run("read-only folder", arguments)
                subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
                self.goes_on("read-only folder", run, 40)
            finally:
                subprocess.run(["umount", "-l", disk], check=False)

    def two_runs(self, until):
        """A second run in the directory of one that trains: it is refused, the first not disturbed."""
        number = 0
        while time.time() < until:
            run = self.folder / f"twice-{number}"
            number += 1
            arguments = self.train(run, "train.steps=400", "--resume", "auto")
            first = self.start(arguments)
            time.sleep(self.random.uniform(1.0, 2.0))
            second = self.start(arguments)
            codes = sorted(self.finish("two runs in one directory", process, arguments)[0]
                           for process in (second, first))
            if codes not in ([0, 4], [0, 0]):  # the second may come when the first is done
                self.tallies["two runs in one directory"].unclear.append(f"exit codes {codes}")
            self.goes_on("two runs in one directory", run, 400)

    def stopped_rank(self, until):
        """A rank that no longer moves: the others say so and end."""
        number = 0
        while time.time() < until:
            run = self.folder / f"stalled-{number}"
            number += 1
            arguments = self.train(run, "train.steps=100000", "--ranks", "2", "train.stall_timeout=4")
            process = self.start(arguments)
            time.sleep(self.random.uniform(4.0, 6.0))
            ranks = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True,
                                   text=True).stdout.split()
            if ranks:
                os.kill(int(self.random.choice(ranks)), signal.SIGSTOP)
            self.finish("SIGSTOP of a rank", process, arguments)
            for rank in ranks:  # where it hung
                subprocess.run(["kill", "-KILL", rank], capture_output=True)
            shutil.rmtree(run, ignore_errors=True)

    def clock_jumps(self, until):
        """A wall clock that jumps by up to ten days at every look."""
        source = self.folder / "clock.c"
        source.write_text("""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long jump(void) { static unsigned seed = 1; return rand_r(&seed) % 1728000 - 864000; }
int clock_gettime(clockid_t clock, struct timespec* out) {
  int result = syscall(SYS_clock_gettime, clock, out);
  if (clock == CLOCK_REALTIME) out->tv_sec += jump();
  return result;
}
time_t time(time_t* out) {
  struct timespec now; clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
int gettimeofday(struct timeval* out, void* zone) {
  struct timespec now; clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec; out->tv_usec = now.tv_nsec / 1000; (void)zone;
  return 0;
}
""")
        library = self.folder / "clock.so"
        if subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source]).returncode:
            return "needs a C compiler"
        number = 0
        jumping = {"environment": {"LD_PRELOAD": str(library)}}
        while time.time() < until:
            run = self.folder / f"clock-{number}"
            number += 1
            ranks = self.random.choice([[], ["--ranks", "2"]])
            self.run("clock jumps", self.train(run, "train.steps=60", *ranks), **jumping)
            self.run("clock jumps", ["runs", "list", run], **jumping)
            self.run("clock jumps", ["runs", "report", run], **jumping)
            if ranks:
                shutil.rmtree(run, ignore_errors=True)  # two ranks sum in another order
            else:
                self.goes_on("clock jumps", run, 60)

    # ---- all of them ----

    def table(self):
        rows = ["| trial | inputs | crashes | hangs | unclear errors | bytes lost | largest process |",
                "|---|---|---|---|---|---|---|"]
        for kind, tally in self.tallies.items():
            rows.append(f"| {kind} | {tally.inputs} | {len(tally.crashes)} | {len(tally.hangs)} | "
                        f"{len(tally.unclear)} | {tally.lost} | {tally.memory / 2**20:.0f} MiB |")
        return "\n".join(rows)

    def findings(self):
        return [f"{kind}: {text}" for kind, tally in self.tallies.items()
                for text in tally.crashes + tally.hangs + tally.unclear]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="names of trials, with commas")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # How the time is shared out.
    shares = {"options": 0.3, "files": 0.25, "kills": 0.12, "sample_kills": 0.08, "full_disks": 0.07,
              "read_only": 0.03, "two_runs": 0.04, "stopped_rank": 0.06, "clock_jumps": 0.05}
    chosen = [name for name in shares if not arguments.only or name in arguments.only.split(",")]
    seconds = arguments.minutes * 60 / sum(shares[name] for name in chosen)
    with tempfile.TemporaryDirectory(prefix="kinora-trial-") as name:
        # One folder deeper: what leads out of it does not lead out of ours.
        work = pathlib.Path(name) / "work"
        work.mkdir()
        trial = Trial(arguments.program.resolve(), work, arguments.seed)
        for name in chosen:
            skipped = getattr(trial, name)(time.time() + seconds * shares[name])
            print(f"{name}: {'skipped, it ' + skipped if skipped else 'done'}", file=sys.stderr,
                  flush=True)
    print(trial.table())
    findings = trial.findings()
    for finding in findings:
        print(json.dumps(finding))
    sys.exit(1 if findings or any(tally.lost for tally in trial.tallies.values()) else 0)


if __name__ == "__main__":
    main()
