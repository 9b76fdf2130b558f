#!/usr/bin/env python3
"""Writes tests/optim/data/muon.json, adafactor.json and came.json: what the published programs do with given gradients.

  muon       torch.optim.Muon with adjust_lr_fn="match_rms_adamw" of matrices (a convolution as [out, in * height *
             width]), torch.optim.AdamW of vectors and an embedder. Muon's products are in fp32 here, as ours on a CPU:
             `bfloat16` of the published program is replaced by a copy in fp32. "in_bf16" has the weights after the
             last step with the program as it is.
  adafactor  transformers.Adafactor with a given learning rate, all of two dims as matrices
  came       the authors' came_pytorch.CAME as it is, likewise; 50 steps. "without_decay" has the weights after the last
             step without weight decay

pip install came-pytorch==0.1.3

Weight decay 0.05, gradients clipped together to norm 1, one EMA. One matrix has a quarter of the learning rate.
"""

import argparse
import json
import pathlib

import torch
from came_pytorch import CAME
from torch.optim import AdamW, Muon
from transformers.optimization import Adafactor

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
STEPS = {"muon": 6, "adafactor": 6, "came": 50}


def to_list(tensor, digits=9):
    return [float(f"{value:.{digits}g}") for value in tensor.detach().flatten().tolist()]


def optimizers_of(rule, weights, weight_decay=WEIGHT_DECAY):
    def groups(names):
        return [{"params": [weights[name]], "lr": LR * LR_FACTORS.get(name, 1.0)} for name in names]

    if rule == "adafactor":
        return [Adafactor(groups(PARAMETERS), lr=LR, weight_decay=WEIGHT_DECAY, scale_parameter=False, relative_step=False)]
    if rule == "came":
        return [CAME(groups(PARAMETERS), lr=LR, weight_decay=weight_decay)]
    others = [name for name in PARAMETERS if name not in MATRICES]
    return [
        Muon(groups(MATRICES), lr=LR, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"),
        AdamW(groups(others), lr=LR, weight_decay=WEIGHT_DECAY, foreach=False, fused=False),
    ]


def state_of(optimizers, weights):
    """By role and parameter, in our names."""
    state = {"exp_avg": {}, "exp_avg_sq": {}, "factors": {}, "instability": {}}
    for name, weight in weights.items():
        (its,) = [optimizer.state[weight] for optimizer in optimizers if weight in optimizer.state]
        if isinstance(optimizers[0], (Adafactor, CAME)):
            parts = [its[key] for key in ("exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq") if key in its]
            state["factors"][name] = to_list(torch.cat(parts))
            if "exp_avg" in its:
                state["exp_avg"][name] = to_list(its["exp_avg"])
            if "exp_avg_res_row" in its:
                state["instability"][name] = to_list(torch.cat([its["exp_avg_res_row"], its["exp_avg_res_col"]]))
            continue
        state["exp_avg"][name] = to_list(its["momentum_buffer" if name in MATRICES else "exp_avg"])
        if name not in MATRICES:
            state["exp_avg_sq"][name] = to_list(its["exp_avg_sq"])
    return {role: values for role, values in state.items() if values}


def run(rule, weight_decay=WEIGHT_DECAY):
    generator = torch.Generator().manual_seed(11)
    weights = {}
    for name, shape in PARAMETERS.items():
        flat = [shape[0], -1] if name in MATRICES else shape
        weights[name] = torch.nn.Parameter(torch.randn(shape, generator=generator).view(flat))
    initial = {name: to_list(weight) for name, weight in weights.items()}
    averages = {name: weight.detach().clone() for name, weight in weights.items()}
    optimizers = optimizers_of(rule, weights, weight_decay)
    steps = []
    for step in range(STEPS[rule]):
        for weight in weights.values():
            weight.grad = torch.randn(weight.shape, generator=generator) * (3.0 if step % 2 else 0.01)
            if rule == "came":  # few digits, for 50 steps
                weight.grad = weight.grad.mul(1000).round().div(1000)
        digits = 5 if rule == "came" else 9
        record = {"grads": {name: to_list(weight.grad, digits) for name, weight in weights.items()}}
        torch.nn.utils.clip_grad_norm_(weights.values(), MAX_NORM)
        for optimizer in optimizers:
            optimizer.step()
        for name, average in averages.items():
            average.mul_(EMA).add_(weights[name].detach(), alpha=1 - EMA)
        if step in (0, STEPS[rule] - 1):
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
        "state": state_of(optimizers, weights),
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
    published = run("muon")["steps"][-1]["weights"]
    bfloat16 = torch.Tensor.bfloat16
    torch.Tensor.bfloat16 = lambda self: self.float().clone()
    muon = run("muon")
    torch.Tensor.bfloat16 = bfloat16
    write(arguments.out / "muon.json", muon | {"in_bf16": published})
    write(arguments.out / "adafactor.json", run("adafactor"))
    without_decay = run("came", weight_decay=0.0)["steps"][-1]["weights"]
    write(arguments.out / "came.json", run("came") | {"without_decay": without_decay})


if __name__ == "__main__":
    main()
