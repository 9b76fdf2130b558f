#!/usr/bin/env python3
"""Planned against measured peaks of memory, recipe by recipe.

    python3 bench/plan_against_peaks.py --binary build/kinora [--device cpu] [RECIPE ...] [--set key=value ...]
    python3 bench/plan_against_peaks.py --binary build/kinora --offload [--disk FOLDER]

A recipe is a name in configs/ or a path; default: all on a GPU, those with generated data on a CPU.
Runs `kinora plan --json`, and for the measured side a few steps: on a GPU `kinora bench train`, which
needs no data; where data are generated, and on a CPU, `kinora train` in a temporary folder. --offload
takes OFFLOADED below in place of recipes: state, weights and activations off the GPU. Python's standard
library is enough. Exits with 1 if a plan is more than 5 % off.
"""

import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = "more for a checkpoint's copy"
MIB = 2.0**20

DIT = "imagenet-256-dit-xl2 train.global_batch=32 train.micro_batch=32"
BEFORE_UPDATES = "optim.in_backward=true optim.max_grad_norm=0"
CACHED = """data.source=latents data.text=file 'autoencoder.path=""' 'text.encoder=""'"""
DREAMBOOTH = (f"""sd15-dreambooth {CACHED} 'data.caption=""' prior_data.source=latents """
              """prior_data.text=file 'prior_data.caption=""' train.micro_batch=1""")
OFFLOADED = [  # a recipe and its overrides
    f"{DIT} ema.decays=[] optim.offload=0.5",
    f"{DIT} ema.decays=[] optim.offload=1",
    f"{DIT} optim.offload=0.6",
    f"{DIT} ema.decays=[] optim.offload=1 {BEFORE_UPDATES}",
    f"{DIT} ema.decays=[] train.recompute=block optim.offload=0.56 {BEFORE_UPDATES}",
    f"{DIT} ema.decays=[] optim.offload=1 optim.offload_weights=1",
    f"{DIT} ema.decays=[] train.recompute=mlp optim.offload=1 optim.offload_weights=0.5 {BEFORE_UPDATES}",
    f"{DIT} optim.moments=8bit optim.master=bf16 optim.offload=0.65 {BEFORE_UPDATES}",
    f"{DIT} ema.decays=[] optim.rule=lion optim.offload=1",
    f"{DIT} ema.decays=[] train.recompute=offload",
    f"{DIT} ema.decays=[] train.recompute=offload,block",
    f"{DIT} ema.decays=[] train.recompute=offload:7,block:14,mlp",
    f"{DIT} ema.decays=[] train.recompute=offload,mlp train.fp8_activations=true",
    f"{DIT} ema.decays=[] train.recompute=offload:14,mlp optim.offload=1 {BEFORE_UPDATES}",
    "imagenet-256-dit-b2 train.global_batch=64 train.micro_batch=64 optim.offload=1 optim.disk=DISK",
    f"sd15-pretrain {CACHED} train.global_batch=8 train.micro_batch=8 train.recompute=block "
    f"optim.offload=0.68 {BEFORE_UPDATES}",
    f"{DREAMBOOTH} optim.offload=1 optim.offload_weights=1",
    f"{DREAMBOOTH} optim.max_grad_norm=0 train.recompute=block:5,mlp optim.offload=1 "
    "optim.offload_weights=0.75",
    f"sdxl-lora-24gb {CACHED} finetune.offload=0.5",
    "opensora-stdit3-xl2 train.recompute=offload,block optim.offload=1",
    f"flux-lora {CACHED} train.recompute=block:2,mlp finetune.offload=0.5",
    f"flux-lora {CACHED} train.recompute=offload:20,mlp finetune.frozen_weights=nf4 finetune.offload=0.8",
]


def offloaded(text: str, disk: str) -> tuple[pathlib.Path, list[str], str]:
    """A recipe, its overrides and a title of an entry of OFFLOADED."""
    recipe, *overrides = shlex.split(text.replace("=DISK", f"={disk}"))
    return ROOT / "configs" / f"{recipe}.yaml", overrides, text.replace(f" {CACHED}", "")


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
    parser.add_argument("--offload", action="store_true", help="the settings of OFFLOADED")
    parser.add_argument("--first", type=int, default=1, help="of them, to begin with")
    parser.add_argument("--disk", default="/tmp", help="a folder for optim.disk; default: /tmp")
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
    works = [(recipe, [], recipe.stem) for recipe in recipes]
    if arguments.offload:
        works = [offloaded(text, arguments.disk) for text in OFFLOADED[arguments.first - 1:]]

    worst = 0.0
    print("| recipe | planned, MiB | measured, MiB | ratio |\n|---|---|---|---|")
    for recipe, overrides, title in works:
        name = " ".join([title, *arguments.settings])
        settings = [*overrides, *arguments.settings, f"train.device={arguments.device}"]
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
