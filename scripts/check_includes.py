#!/usr/bin/env python3
"""Checks the includes of the house: no arrow up or sideways, no banned header.

usage: scripts/check_includes.py [ROOT]

The floors are those of docs/architecture.md. Prints one line a fault, file:line first, and fails if
there is one.
"""
import pathlib
import re
import sys

FLOORS = {
    "core": 1,
    "kernels": 2, "io": 2,
    "prompts": 3, "tokenizers": 3,
    "device": 4,
    "ops": 5, "comm": 5,
    "nn": 6, "diffusion": 6, "optim": 6, "data": 6,
    "models": 7, "parallel": 7, "checkpoint": 7,
    "pipelines": 8,
    "inference": 9,
    "train": 10, "eval": 10,
    "api": 11,
}
# The one way across a floor: the arena is laid out from a Module's parameters and plan.
SIDEWAYS = {("optim", "nn")}
# Folders of a room, and the other ones in it that they see. What lies in the room itself sees all,
# and all see it.
FOLDERS = {
    "models/autoencoders": {"models/layers"},
    "models/transformers": {"models/layers", "models/text_encoders"},
    "models/layers": set(),
    "models/text_encoders": set(),
}
TORCH_FREE = {"core", "kernels", "io", "prompts", "tokenizers"}
TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
THIRD_PARTY = re.compile(r"(yaml-cpp|nlohmann|spdlog|fmt|CLI|webp|google|stb|libpng\w*)/"
                         r"|(png|jpeglib|gif_lib|tiffio|xxhash|zlib|pcre2|utf8proc|liburing)\.h$")
TEST_ONLY = re.compile(r"(gtest|gmock|benchmark)/")

# Headers that cost 12 s and more in every file that includes them (docs/architecture.md).
BANNED = {"torch/torch.h", "torch/all.h", "torch/nn.h", "torch/extension.h", "ATen/ATen.h"}
# Costly ones, and the rooms whose .cc files may include them.
CONFINED = {
    "custom_function.h": {"ops", "comm"},
    "ProcessGroup.hpp": {"comm"},
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".h", ".cuh", ".cc", ".cu"}
HEADERS = {".h", ".cuh"}


def room_of(path):
    """The room of a file of ours, `apps`, `tests` or `bench` for those, None for others.

    The headers right in kinora/ are the room api's.
    """
    parts = path.split("/")
    if parts[0] == "kinora":
        return parts[1] if len(parts) > 2 else "api"
    return parts[0] if parts[0] in ("apps", "tests", "bench") else None


def folder_of(path):
    """The folder of FOLDERS that a file lies in, None for others."""
    parts = path.split("/")
    folder = "/".join(parts[1:3])
    return folder if parts[0] == "kinora" and folder in FOLDERS else None


def folder_fault(name, target):
    """What is wrong with an include of `target` within a room; None if nothing is."""
    own, to = folder_of(name), folder_of(target)
    if own in (None, to) or to is None or to.split("/")[0] != own.split("/")[0]:
        return None
    return None if to in FOLDERS[own] else f"{own} must not include {to}"


def arrow_fault(room, quoted, target):
    """What is wrong with an include of `target`, a file of ours, in `room`; None if nothing is."""
    to = room_of(target)
    if quoted and to is None:
        return f'write "{target}" from the root of the repository, as "kinora/ROOM/..."'
    if to is None:
        return None
    if target.startswith("kinora/") and to not in FLOORS:
        return f"no room kinora/{to} is known; the floors are listed in scripts/check_includes.py"
    if room in ("tests", "bench"):
        return None
    if room == "apps":
        return None if to not in ("tests", "bench") else f"apps must not include {to}"
    if to not in FLOORS:
        return f"kinora/{room} must not include {to}"
    if to == room or (room, to) in SIDEWAYS or FLOORS[to] < FLOORS[room]:
        return None
    direction = "up" if FLOORS[to] > FLOORS[room] else "sideways"
    return f"{room} (floor {FLOORS[room]}) points {direction} to {to} (floor {FLOORS[to]})"


def header_fault(path, room, target):
    """What is wrong with an include of `target`, whoever wrote it; None if nothing is."""
    if target in BANNED:
        return f"{target} is banned: include <ATen/core/Tensor.h> and <ATen/ops/NAME.h>"
    for name, rooms in CONFINED.items():
        if target.endswith("/" + name) and not (room in rooms and path.suffix in (".cc", ".cu")):
            return f"{name} is allowed in the .cc files of {' and '.join(sorted(rooms))} only"
    if room in TORCH_FREE and TORCH.match(target):
        return f"{room} knows nothing of torch, got {target}"
    if room in FLOORS and path.suffix in HEADERS and THIRD_PARTY.match(target):
        return f"{target} is another project's: keep it out of our headers, in a .cc file"
    if room not in ("tests", "bench") and TEST_ONLY.match(target):
        return f"{target} is for tests and benchmarks"
    return None


def check(root):
    faults = []
    for top in ("kinora", "apps", "tests", "bench"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            name = path.relative_to(root).as_posix()
            room = room_of(name)
            if room not in FLOORS and room not in ("apps", "tests", "bench"):
                faults.append(f"{name}:1: this folder has no floor in scripts/check_includes.py")
                continue
            text = path.read_text(encoding="utf-8")
            if path.suffix in HEADERS and "#pragma once" not in text:
                faults.append(f"{name}:1: a header starts with #pragma once")
            for number, line in enumerate(text.splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                target = match.group(2)
                fault = (header_fault(path, room, target)
                         or arrow_fault(room, match.group(1) == '"', target)
                         or folder_fault(name, target))
                if fault:
                    faults.append(f"{name}:{number}: {fault}")
    return faults


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    faults = check(root)
    for fault in faults:
        print(fault)
    if faults:
        print(f"check_includes: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
