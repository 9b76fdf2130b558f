#!/usr/bin/env python3
"""Writes tests/optim/data/lamb.json, prodigy.json and schedule_free.json: what the authors' or published programs do with given gradients.

  lamb     timm.optim.Lamb with bias correction, decay within the update and a trust ratio of every parameter
           (always_adapt), as NVIDIA's apex.optimizers.FusedLAMB with use_nvlamb=True
  prodigy  prodigyopt.Prodigy with use_bias_correction and safeguard_warmup; the learning rate warms up
  schedule_free
           schedulefree.AdamWScheduleFree with its own warm-up; "evaluated" has the weights after eval()

pip install timm==1.0.19 prodigyopt==1.1.2 schedulefree==1.4.1

Gradients lead to a target, with noise, and are clipped together to norm 1; weight decay 0.05, one EMA. One matrix has
a quarter of the learning rate, where the program has such factors.
"""

import argparse
import importlib
import importlib.machinery
import importlib.util
import json
import pathlib
import sys

import torch
from prodigyopt import Prodigy
from schedulefree import AdamWScheduleFree

PARAMETERS = {
    "block.wide.weight": [4, 9],
    "block.wide.bias": [4],
    "block.tall.weight": [7, 3],
    "block.conv.weight": [3, 2, 2, 2],
    "block.zero.weight": [2, 4],
    "embedder.weight": [3, 5],
}
MATRICES = ["block.wide.weight", "block.tall.weight", "block.conv.weight", "block.zero.weight", "embedder.weight"]
LR = {"lamb": 0.01, "prodigy": 1.0, "schedule_free": 0.01}
WARMUP = {"prodigy": 5, "schedule_free": 5}
D0 = 0.01
D_COEF = 1.5
WEIGHT_DECAY = 0.05
MAX_NORM = 1.0
EMA = 0.9
STEPS = 30


def to_list(tensor):
    return [float(f"{value:.9g}") for value in tensor.detach().flatten().tolist()]


def without_package(name):
    """A module of timm without timm's own __init__, which wants torchvision."""
    (path,) = importlib.util.find_spec(name.split(".")[0]).submodule_search_locations
    for package, folder in (("timm", path), ("timm.optim", f"{path}/optim")):
        spec = importlib.machinery.ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [folder]
        sys.modules[package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(name)


def optimizer_of(rule, groups):
    if rule == "lamb":
        lamb = without_package("timm.optim.lamb").Lamb
        return lamb(groups, lr=LR[rule], eps=1e-8, weight_decay=WEIGHT_DECAY, max_grad_norm=None, always_adapt=True)
    if rule == "prodigy":
        options = {"use_bias_correction": True, "safeguard_warmup": True, "weight_decay": WEIGHT_DECAY}
        return Prodigy(groups, lr=LR[rule], d0=D0, d_coef=D_COEF, **options)
    if rule == "schedule_free":
        return AdamWScheduleFree(groups, weight_decay=WEIGHT_DECAY, warmup_steps=WARMUP[rule], foreach=False)
    raise ValueError(rule)


def state_of(rule, optimizer, weights):
    """By role and parameter, in our names."""
    state = {}
    for name, weight in weights.items():
        its = optimizer.state[weight]
        names = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
        if rule == "prodigy":
            names["s"] = "grad_sum"
        elif rule == "schedule_free":
            names = {"exp_avg_sq": "exp_avg_sq", "z": "base"}
        for theirs, role in names.items():
            state.setdefault(role, {})[name] = to_list(its[theirs])
    return state


def run(rule):
    generator = torch.Generator().manual_seed(17)
    weights, targets = {}, {}
    for name, shape in PARAMETERS.items():
        initial = torch.randn(shape, generator=generator)
        weights[name] = torch.nn.Parameter(torch.zeros_like(initial) if "zero" in name else initial)
        targets[name] = torch.randn(shape, generator=generator)
    initial = {name: to_list(weight) for name, weight in weights.items()}
    averages = {name: weight.detach().clone() for name, weight in weights.items()}
    lr_factors = {} if rule == "prodigy" else {"block.tall.weight": 0.25}
    groups = [{"params": [weight], "lr": LR[rule] * lr_factors.get(name, 1.0)} for name, weight in weights.items()]
    optimizer = optimizer_of(rule, groups)
    steps = []
    if rule == "schedule_free":
        optimizer.train()
    for step in range(STEPS):
        for name, weight in weights.items():
            noise = 0.3 * torch.randn(weight.shape, generator=generator)
            weight.grad = (weight.detach() - targets[name] + noise) * (3.0 if step % 2 else 0.02)
        record = {"grads": {name: to_list(weight.grad) for name, weight in weights.items()}}
        torch.nn.utils.clip_grad_norm_(weights.values(), MAX_NORM)
        if step < WARMUP.get(rule, 0):
            record["lr"] = LR[rule] * (step + 1) / WARMUP[rule]
        for group, name in zip(optimizer.param_groups, weights) if rule == "prodigy" else ():
            group["lr"] = record.get("lr", LR[rule]) * lr_factors.get(name, 1.0)
        optimizer.step()
        if rule == "prodigy":
            record["distance"] = optimizer.param_groups[0]["d"]
        for name, average in averages.items():
            average.mul_(EMA).add_(weights[name].detach(), alpha=1 - EMA)
        if step in (0, 1, 9, STEPS - 1):
            record["weights"] = {name: to_list(weight) for name, weight in weights.items()}
        steps.append(record)
    evaluated = {}
    if rule == "schedule_free":
        optimizer.eval()
        evaluated = {"evaluated": {name: to_list(weight) for name, weight in weights.items()}}
    return evaluated | {
        "torch": torch.__version__,
        "shapes": PARAMETERS,
        "matrices": MATRICES,
        "lr_factors": lr_factors,
        "lr": LR[rule],
        "weight_decay": WEIGHT_DECAY,
        "max_grad_norm": MAX_NORM,
        "ema": EMA,
        "d0": D0,
        "d_coef": D_COEF,
        "initial": initial,
        "steps": steps,
        "state": state_of(rule, optimizer, weights),
        "averages": {name: to_list(average) for name, average in averages.items()},
    }


def write(path, fixture):
    text = json.dumps(fixture, separators=(",", ":"))
    path.write_text(text.replace('{"grads"', '\n{"grads"') + "\n")


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=root / "tests/optim/data", type=pathlib.Path)
    arguments = parser.parse_args()
    for rule in LR:
        write(arguments.out / f"{rule}.json", run(rule))


if __name__ == "__main__":
    main()
