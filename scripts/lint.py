#!/usr/bin/env python3
"""Runs clang-tidy (.clang-tidy) on our sources, and compiles our headers alone.

usage: scripts/lint.py [--build BUILD] [--all | --base COMMIT]

Looks at the files of kinora/ and apps/ that changed since COMMIT, where a header changed also at the
sources beside it of the same name; --all: at all of them, and at tests and benchmarks. COMMIT is by
default where the branch left origin/main, or on main itself the last commit that is three hours
older. What was clean before, in any clone of this user, is not looked at again. Sources of a folder
are read together, since most of the time goes into libtorch's headers. BUILD must be configured, for
its compile_commands.json.
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
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kinora" / "lint"
TIDY = "clang-tidy-14"
CHOSEN = ("kinora/", "apps/")
HOURS = 3
TOGETHER = 8
# Names a compiler's include line may have for a file of ours.
OWN = re.compile(r"^(kinora|apps|tests|bench)/.*\.(h|cuh|cc)$")


def git(*arguments):
    result = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return result.stdout.split("\n")[:-1] if result.returncode == 0 else []


def changed_files(base):
    """Names of the files that differ from commit `base`, uncommitted and new ones too."""
    if base is None:
        fork = git("merge-base", "HEAD", "origin/main")
        head, seconds = git("log", "-1", "--format=%H%n%ct")
        before = git("rev-list", "-1", f"--before={int(seconds) - HOURS * 3600}", "HEAD")
        base = fork[0] if fork and fork[0] != head else (before or git(
            "rev-list", "--max-parents=0", "HEAD"))[0]
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


def stamp(source, command, common):
    """The file that is there once this source, with all that it includes, was found clean."""
    files = {}
    own_text(source, files)
    key = hashlib.sha256(common + command.replace(str(ROOT), "").encode())
    for name in sorted(files):
        key.update(name.encode() + b"\0" + hashlib.sha256(files[name]).digest())
    return CACHE / key.hexdigest()


def findings(names, command, stamps):
    """What is wrong with a header compiled alone, or with sources; "" if nothing is."""
    compiler, *arguments = shlex.split(command)
    with tempfile.NamedTemporaryFile("w", suffix=".cc") as together:
        if names[0].endswith(".h"):
            line = [compiler, *arguments, "-fsyntax-only", "-include", names[0], "-x", "c++",
                    os.devnull]
        else:  # with g++'s flags, of which clang knows most
            together.writelines(f'#include "{name}"\n' for name in names)
            together.flush()
            line = [TIDY, "--quiet", "--checks=-bugprone-suspicious-include", together.name, "--",
                    *(a for a in arguments if a != "-Werror"), "-Wno-unknown-warning-option"]
        result = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    if result.returncode == 0:
        CACHE.mkdir(parents=True, exist_ok=True)
        for name in names:
            stamps[name].touch()
        return ""
    if len(names) > 1:  # two may have a name in their unnamed namespaces, which is no finding
        return "".join(findings([name], command, stamps) for name in names)
    return result.stdout or result.stderr


def groups(names, commands):
    """Headers one by one; sources of a folder that are compiled alike, up to TOGETHER at a time."""
    alike = {}
    for name in names:
        of = name if name.endswith(".h") else (os.path.dirname(name), commands[name])
        alike.setdefault(of, []).append(name)
    return [all_[i:i + TOGETHER] for all_ in alike.values() for i in range(0, len(all_), TOGETHER)]


def own_commands(database):
    """The command that compiles each source of ours, without source and output, by its name."""
    commands = {}
    for entry in json.loads(database.read_text()):
        words = [w for w in shlex.split(entry["command"]) if os.path.basename(w) != "ccache"]
        for option in ("-o", "-c"):
            at = words.index(option)
            del words[at:at + 2]
        names = [os.path.relpath(entry["file"], ROOT)]
        if "_batch_" in names[0]:  # cmake/KinoraRules.cmake
            names = re.findall(r'#include "([^"]+)"', pathlib.Path(entry["file"]).read_text())
        commands.update((name, shlex.join(words)) for name in names if OWN.match(name))
    return commands


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--all", action="store_true", help="all sources")
    parser.add_argument("--base", help="the commit to compare with")
    options = parser.parse_args()

    database = ROOT / options.build / "compile_commands.json"
    if not database.exists():
        sys.exit(f"lint: {database} is lacking: run `make build` first")
    commands = own_commands(database)
    for name in git("ls-files", "--cached", "--others", "--exclude-standard", "*.h"):
        folder = os.path.dirname(name)
        if folder == "kinora":  # the facade's headers
            folder = "kinora/api"
        beside = [c for c in commands if os.path.dirname(c) == folder and not c.endswith(".cu")]
        if beside and (ROOT / name).exists():
            commands[name] = commands[beside[0]]
    # g++ alone knows what nvcc gets; and device headers are nvcc's.
    commands = {name: c for name, c in commands.items() if name.endswith((".cc", ".h"))}

    chosen = set(commands)
    if not options.all:
        changed = changed_files(options.base)
        stems = {os.path.splitext(name)[0] for name in changed}
        chosen = {name for name in commands if name.startswith(CHOSEN) and (
            name in changed or (name.endswith(".cc") and os.path.splitext(name)[0] in stems))}

    version = subprocess.run([TIDY, "--version"], capture_output=True, check=True).stdout
    common = version + (ROOT / ".clang-tidy").read_bytes() + pathlib.Path(__file__).read_bytes()
    stamps = {name: stamp(name, commands[name], common) for name in chosen}
    unknown = sorted(name for name in chosen if not stamps[name].exists())
    failed = False
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(findings, names, commands[names[0]], stamps)
                for names in groups(unknown, commands)]
        for job in concurrent.futures.as_completed(jobs):
            if job.result():
                failed = True
                print(job.result(), flush=True)
    print(f"lint: {len(chosen)} files, {len(unknown)} looked at anew,",
          "findings above" if failed else "no findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
