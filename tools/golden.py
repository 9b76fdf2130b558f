#!/usr/bin/env python3
"""Shows whether two programs compute the same bits.

usage: tools/golden.py record PROGRAM FILE [--only WORD]
       tools/golden.py compare OLD NEW

`record` lets PROGRAM (build/kinora) train every architecture for 20 steps, in fp32 and bf16, on the
plain path and on the fast one, as one rank, as two, and as two that divide the weights (zero3), all
on the CPU; and draw samples. Into FILE go each run's losses, and hashes of its checkpoint's tensors
and of its samples. It takes a few minutes. `compare` names the runs that differ, and where.
"""
import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NO_MASKS = ["frame_masks.quarter_head=0", "frame_masks.image_head=0", "frame_masks.quarter_tail=0"]
WORDS = ["data.text=tokens", f"text.tokenizer={ROOT / 'configs/captions/spiece.model'}",
         "model.text_tokens=16", "model.text_encoder.layers=1", "model.text_encoder.width=64"]
ARCHITECTURES = {
    "dit": ("demo", []),
    "dit-iddpm": ("demo", ["objective.kind=iddpm", "model.learn_sigma=true"]),
    "pixart": ("demo", ["model.architecture=pixart", *WORDS]),
    "vdit": ("demo-video", ["model.architecture=vdit", "model.patch_frames=2", *NO_MASKS]),
    "latte": ("demo-video", ["model.architecture=latte", *NO_MASKS]),
    "stdit": ("demo-video", []),
    "stdit2": ("demo-video", ["model.architecture=stdit2"]),
    "stdit3": ("demo-video", ["model.architecture=stdit3"]),
}
RANKS = {
    "1": ([], []),
    "2": (["--ranks", "2"], ["parallel.plugin=ddp"]),
    "zero3": (["--ranks", "2"], ["parallel.plugin=zero3"]),
}
SMALL = ["train.steps=20", "train.global_batch=8", "model.depth=2", "model.hidden=48", "lr.warmup=2",
         "lr.horizon=20", "checkpoint.every=20", "sample.every=20", "sample.count=2",
         "sample.steps=4", "train.device=cpu", "train.threads=1", "train.self_test=false"]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def tensors_of(path):
    """The hash of what lies behind the header, which has times and names of folders."""
    data = path.read_bytes()
    return hashlib.sha256(data[8 + int.from_bytes(data[:8], "little"):]).hexdigest()[:16]


def record(program, recipe, launch, overrides):
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        command = [program, "train", str(ROOT / "configs" / f"{recipe}.yaml"), *launch,
                   *SMALL, *overrides, f"run.dir={run}"]
        result = subprocess.run(command, capture_output=True, text=True,
                                env={**os.environ, "OMP_NUM_THREADS": "1"})
        if result.returncode != 0:
            return {"refused": result.stderr.strip().splitlines()[-1:] or [str(result.returncode)]}
        steps = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        files = sorted(p for p in run.rglob("*") if p.is_file())
        return {
            "losses": [(step["loss"], step.get("grad_norm")) for step in steps if "loss" in step],
            "tensors": {str(p.relative_to(run)): tensors_of(p)
                        for p in files if p.suffix == ".safetensors"},
            "samples": {str(p.relative_to(run)): digest(p)
                        for p in files if p.suffix in (".png", ".webp")},
        }


def record_all(program, only):
    results = {}
    for name, (recipe, overrides) in ARCHITECTURES.items():
        for precision in ("fp32", "bf16"):
            for path in ("plain", "fast"):
                for ranks, (launch, plugin) in RANKS.items():
                    case = f"{name} {precision} {path} {ranks}"
                    if only in case:
                        results[case] = record(
                            program, recipe, launch,
                            [*overrides, *plugin, f"train.precision={precision}",
                             f"model.path={path}"])
                        print(case, "refused" if "refused" in results[case] else
                              results[case]["losses"][-1][0], flush=True)
    return results


def compare(old, new):
    different = 0
    for case in sorted(old.keys() | new.keys()):
        left, right = old.get(case), new.get(case)
        if left == right:
            continue
        different += 1
        if left is None or right is None or ("refused" in left) != ("refused" in right):
            print(f"{case}: {left and left.get('refused', 'runs')} -> "
                  f"{right and right.get('refused', 'runs')}")
            continue
        parts = [part for part in left if left[part] != right.get(part)]
        first = next((i for i, (a, b) in enumerate(zip(left.get("losses", []),
                                                       right.get("losses", []))) if a != b), None)
        print(f"{case}: {', '.join(parts)} differ"
              + (f"; the first loss at step {first}" if first is not None else ""))
    print(f"golden: {len(old)} runs, {different} differ")
    return 1 if different else 0


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record")
    recorder.add_argument("program")
    recorder.add_argument("file", type=pathlib.Path)
    recorder.add_argument("--only", default="")
    comparer = commands.add_parser("compare")
    comparer.add_argument("old", type=pathlib.Path)
    comparer.add_argument("new", type=pathlib.Path)
    options = parser.parse_args()
    if options.command == "record":
        options.file.write_text(json.dumps(record_all(options.program, options.only), indent=1))
        return 0
    return compare(json.loads(options.old.read_text()), json.loads(options.new.read_text()))


if __name__ == "__main__":
    sys.exit(main())
