#!/usr/bin/env python3
"""Writes tests/optim/data/muon.json: what torch.optim.Muon and torch.optim.AdamW do with given gradients.

Matrices go by Muon with adjust_lr_fn="match_rms_adamw" (a convolution as [out, in * height * width]), vectors and
an embedder by AdamW; weight decay 0.05, gradients clipped together to norm 1, one EMA. One matrix has a quarter of
the learning rate. Muon's products are in fp32 here, as ours on a CPU: `bfloat16` of the published program is replaced
by a copy in fp32. "in_bf16" has the weights after the last step with the program as it is.
"""

import argparse
import json
import pathlib

import torch
from torch.optim import AdamW, Muon

PARAMETERS = {
    "block.wide.weight": [12, 20],
    "block.wide.bias": [12],
    "block.tall.weight": [30, 8],
    "block.conv.weight": [6, 4, 3, 3],
    "block.norm.weight": [8],
    "embedder.weight": [5, 7],
}
MATRICES = ["block.wide.weight", "block.tall.weight", "block.conv.weight"]
LR_FACTORS = {"block.tall.weight": 0.25}
LR = 0.01
WEIGHT_DECAY = 0.05
MAX_NORM = 1.0
EMA = 0.9
STEPS = 6


def to_list(tensor):
    return [float(f"{value:.9g}") for value in tensor.detach().flatten().tolist()]


def run():
    generator = torch.Generator().manual_seed(11)
    weights = {}
    for name, shape in PARAMETERS.items():
        flat = [shape[0], -1] if name in MATRICES else shape
        weights[name] = torch.nn.Parameter(torch.randn(shape, generator=generator).view(flat))
    initial = {name: to_list(weight) for name, weight in weights.items()}
    averages = {name: weight.detach().clone() for name, weight in weights.items()}

    def groups(names):
        return [{"params": [weights[name]], "lr": LR * LR_FACTORS.get(name, 1.0)} for name in names]

    others = [name for name in PARAMETERS if name not in MATRICES]
    muon = Muon(groups(MATRICES), lr=LR, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw")
    adamw = AdamW(groups(others), lr=LR, weight_decay=WEIGHT_DECAY, foreach=False, fused=False)
    steps = []
    for step in range(STEPS):
        for weight in weights.values():
            weight.grad = torch.randn(weight.shape, generator=generator) * (3.0 if step % 2 else 0.01)
        record = {"grads": {name: to_list(weight.grad) for name, weight in weights.items()}}
        torch.nn.utils.clip_grad_norm_(weights.values(), MAX_NORM)
        muon.step()
        adamw.step()
        for name, average in averages.items():
            average.mul_(EMA).add_(weights[name].detach(), alpha=1 - EMA)
        if step in (0, STEPS - 1):
            record["weights"] = {name: to_list(weight) for name, weight in weights.items()}
        steps.append(record)
    return {
        "torch": torch.__version__,
        "shapes": PARAMETERS,
        "matrices": MATRICES,
        "lr_factors": LR_FACTORS,
        "lr": LR,
        "weight_decay": WEIGHT_DECAY,
        "max_grad_norm": MAX_NORM,
        "ema": EMA,
        "initial": initial,
        "steps": steps,
        "exp_avg": {name: to_list(muon.state[weights[name]]["momentum_buffer"]) for name in MATRICES}
        | {name: to_list(adamw.state[weights[name]]["exp_avg"]) for name in others},
        "exp_avg_sq": {name: to_list(adamw.state[weights[name]]["exp_avg_sq"]) for name in others},
        "averages": {name: to_list(average) for name, average in averages.items()},
    }


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=root / "tests/optim/data/muon.json", type=pathlib.Path)
    arguments = parser.parse_args()
    published = run()["steps"][-1]["weights"]
    bfloat16 = torch.Tensor.bfloat16
    torch.Tensor.bfloat16 = lambda self: self.float().clone()
    fixture = run()
    torch.Tensor.bfloat16 = bfloat16
    fixture["in_bf16"] = published
    text = json.dumps(fixture, separators=(",", ":"))
    arguments.out.write_text(text.replace('{"grads"', '\n{"grads"') + "\n")


if __name__ == "__main__":
    main()
