#!/usr/bin/env python3
"""Planned against measured peaks of memory, recipe by recipe.

    python3 bench/plan_against_peaks.py --binary build/kinora [--device cpu] [RECIPE ...] [--set key=value ...]

A recipe is a name in configs/ or a path; default: all on a GPU, those with generated data on a CPU.
Runs `kinora plan --json`, and for the measured side a few steps: on a GPU `kinora bench train`, which
needs no data; where data are generated, and on a CPU, `kinora train` in a temporary folder. Python's
standard library is enough. Exits with 1 if a plan is more than 5 % off.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = "more for a checkpoint's copy"
MIB = 2.0**20


def output(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr else "failed")
    return done.stdout


def is_generated(recipe: pathlib.Path) -> bool:
    text = recipe.read_text()
    return "source: shapes" in text or "source: moving_shapes" in text


def trained_peak(binary: str, recipe: pathlib.Path, settings: list[str], steps: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        output([binary, "train", str(recipe), *settings, f"run.dir={run}", f"train.steps={steps}",
                "train.self_test=false", "sample.every=0", "validation.every=0"])
        return json.loads((run / "log.jsonl").read_text().splitlines()[-1])["peak_memory"]


def benched_peak(binary: str, recipe: pathlib.Path, settings: list[str], steps: int) -> int:
    text = output([binary, "bench", "train", str(recipe), *settings, "--warmup", "4", "--steps",
                   str(steps), "--json"])
    return json.loads(text)["peak_memory"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--binary", default=str(ROOT / "build" / "kinora"))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value", dest="settings")
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()

    named = [pathlib.Path(name) if name.endswith(".yaml") else ROOT / "configs" / f"{name}.yaml"
             for name in arguments.recipes]
    recipes = named or sorted((ROOT / "configs").glob("*.yaml"))
    on_cpu = arguments.device == "cpu"
    if on_cpu and not named:
        recipes = [recipe for recipe in recipes if recipe.stem.startswith("demo")]
    settings = [*arguments.settings, f"train.device={arguments.device}"]

    worst = 0.0
    print("| recipe | planned, MiB | measured, MiB | ratio |\n|---|---|---|---|")
    for recipe in recipes:
        name = " ".join([recipe.stem, *arguments.settings])
        try:
            plan = json.loads(output([arguments.binary, "plan", str(recipe), *settings, "--json"]))
            measure = trained_peak if on_cpu or is_generated(recipe) else benched_peak
            measured = measure(arguments.binary, recipe, settings, arguments.steps)
        except RuntimeError as error:
            print(f"| {name} | {error} | | |")
            worst = 1.0
            continue
        planned = plan["peak"]
        if not on_cpu:  # the log's last line is from before the checkpoint at the end
            planned -= plan["parts"].get(COPY, 0)
        worst = max(worst, abs(planned / measured - 1.0))
        print(f"| {name} | {planned / MIB:,.0f} | {measured / MIB:,.0f} | {planned / measured:.3f} |",
              flush=True)
    return 0 if worst <= 0.05 else 1


if __name__ == "__main__":
    sys.exit(main())
