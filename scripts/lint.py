#!/usr/bin/env python3
"""Runs clang-tidy (.clang-tidy) on our sources; what was clean before is not looked at again.

usage: scripts/lint.py [--build BUILD] [--all | --base COMMIT]

Looks at the torch-free floors (core, io, kernels) and at the files that changed since COMMIT; where
a header changed, at the sources beside it of the same name. A file with torch's headers takes
10 s. BUILD must be configured, for its compile_commands.json.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "clang-tidy"
TIDY = "clang-tidy-14"
TORCH_FREE = ("kinora/core/", "kinora/io/", "kinora/kernels/")
# Names a compiler's include line may have for a file of ours.
OWN = re.compile(r"^(kinora|apps|tests|bench)/.*\.(h|cuh|cc)$")


def git(*arguments):
    result = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return result.stdout.split("\n")[:-1] if result.returncode == 0 else []


def changed_files(base):
    """Names of the files that differ from commit `base`, uncommitted and new ones too."""
    if base is None:
        fork = git("merge-base", "HEAD", "origin/main")
        head = git("rev-parse", "HEAD")
        base = fork[0] if fork and fork != head else "HEAD~1"
    return set(git("diff", "--name-only", base)) | set(
        git("ls-files", "--others", "--exclude-standard"))


def own_text(source, seen):
    """The contents of `source` and of every file of ours that it includes, by name."""
    if source in seen or not (ROOT / source).is_file():
        return
    text = (ROOT / source).read_bytes()
    seen[source] = text
    for name in re.findall(rb'^\s*#\s*include\s*"([^"]+)"', text, re.M):
        own_text(name.decode(), seen)


def tidy(source, command, common):
    """clang-tidy's findings in `source`, "" if there are none."""
    files = {}
    own_text(source, files)
    key = hashlib.sha256(common + command.replace(str(ROOT), "").encode())
    for name in sorted(files):
        key.update(name.encode() + b"\0" + hashlib.sha256(files[name]).digest())
    clean = CACHE / key.hexdigest()
    if clean.exists():
        return ""
    # g++'s flags, of which clang knows most; the precompiled output name is of no use here.
    arguments = [a for a in shlex.split(command)[1:] if a not in ("-c", "-Werror")]
    if "-o" in arguments:
        at = arguments.index("-o")
        del arguments[at:at + 2]
    result = subprocess.run(
        [TIDY, "--quiet", str(ROOT / source), "--", *arguments, "-Wno-unknown-warning-option"],
        capture_output=True, text=True, cwd=ROOT)
    if result.returncode == 0:
        CACHE.mkdir(parents=True, exist_ok=True)
        clean.touch()
        return ""
    return result.stdout or result.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--all", action="store_true", help="all sources")
    parser.add_argument("--base", help="the commit to compare with")
    options = parser.parse_args()

    database = ROOT / options.build / "compile_commands.json"
    if not database.exists():
        sys.exit(f"lint: {database} is lacking: run `make build` first")
    commands = {}
    for entry in json.loads(database.read_text()):
        name = os.path.relpath(entry["file"], ROOT)
        if OWN.match(name):
            commands[name] = entry["command"]

    if options.all:
        chosen = set(commands)
    else:
        changed = changed_files(options.base)
        stems = {os.path.splitext(name)[0] for name in changed}
        chosen = {name for name in commands
                  if name.startswith(TORCH_FREE) or os.path.splitext(name)[0] in stems}

    version = subprocess.run([TIDY, "--version"], capture_output=True, check=True).stdout
    common = version + (ROOT / ".clang-tidy").read_bytes() + pathlib.Path(__file__).read_bytes()
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {pool.submit(tidy, name, commands[name], common): name for name in sorted(chosen)}
        for job in concurrent.futures.as_completed(jobs):
            if job.result():
                failed += 1
                print(job.result(), flush=True)
    print(f"lint: {len(chosen)} files looked at, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
