#!/usr/bin/env python3
"""Writes tests/optim/data/optimizers.json: what optimizers of PyTorch do with given gradients. Wants lion-pytorch and bitsandbytes.

Cases (fp32, CPU):
  plain    torch.optim.AdamW, no weight decay, no clipping
  clipped  weight decay 0.05, torch.nn.utils.clip_grad_norm_ to 1.0, two EMAs
  scaled   as clipped, through torch.amp.GradScaler with a short growth interval; some gradients are
           infinite or NaN
  factors  weight decay 0.05, each parameter in a group of its own whose lr is multiplied by a factor
  lion     as clipped, by lion_pytorch.Lion
  sgd      as clipped, by torch.optim.SGD with momentum 0.9
  adamw8, lion8, sgd8
           as clipped, by bitsandbytes' AdamW8bit, Lion8bit and SGD8bit; also the maps of codes

Each case lists the gradients of every step as backward leaves them (scaled, in the last case) and,
after each step, the norm and the loss scale, after some the weights, and after the last one the
moments and averages.
"""

import argparse
import json
import math
import pathlib

import bitsandbytes
import bitsandbytes.backends.cpu.ops
import torch
from lion_pytorch import Lion

SHAPES = [[7], [3, 5], [1], [2, 3, 2]]
STEPS = 20
SHAPES_8 = [[7], [2, 130]]  # a block, and two of which one is not full
STEPS_8 = 6


def quantise(values, code, scales, codes, block):
    """As bitsandbytes' GPU kernels and its default backend. What its library has for CPUs looks codes up in a
    table, and misses the nearest one for 3 of 100 second moments."""
    blocks = torch.nn.functional.pad(values.flatten(), (0, -values.numel() % block)).view(-1, block)
    scales.copy_(blocks.abs().amax(1))
    multiplied = blocks * (1.0 / scales.clamp(min=1e-38)).unsqueeze(1)
    nearest = torch.bucketize(multiplied, (code[:-1] + code[1:]) / 2, out_int32=True)
    codes.copy_(nearest.flatten()[: values.numel()].view(values.shape))


bitsandbytes.backends.cpu.ops._quant_blockwise_fp32_direct = quantise


def to_list(tensor):
    return [float(f"{value:.9g}") for value in tensor.detach().flatten().tolist()]


def make_optimizer(rule, groups, lr, weight_decay, bits):
    if bits == 8:
        chosen = {"lion": bitsandbytes.optim.Lion8bit, "sgd": bitsandbytes.optim.SGD8bit, "adamw": bitsandbytes.optim.AdamW8bit}
        momentum = {"momentum": 0.9} if rule == "sgd" else {}
        return chosen[rule](groups, lr=lr, weight_decay=weight_decay, min_8bit_size=0, **momentum)
    if rule == "lion":
        return Lion(groups, lr=lr, weight_decay=weight_decay)
    if rule == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=0.9, weight_decay=weight_decay, foreach=False)
    return torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay, foreach=False, fused=False)


def run_case(seed, weight_decay, max_norm, emas, scaler, bad_steps, lr_factors=None, rule="adamw", bits=32):
    shapes, steps = (SHAPES_8, STEPS_8) if bits == 8 else (SHAPES, STEPS)
    lr_factors = lr_factors or (1.0,) * len(shapes)
    generator = torch.Generator().manual_seed(seed)
    weights = [
        torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes
    ]
    averages = [[weight.detach().clone() for weight in weights] for _ in emas]
    lr = 0.01
    groups = [{"params": [weight], "lr": lr * factor} for weight, factor in zip(weights, lr_factors)]
    optimizer = make_optimizer(rule, groups, lr, weight_decay, bits)
    case = {
        "shapes": shapes,
        "lr": lr,
        "weight_decay": weight_decay,
        "max_grad_norm": max_norm,
        "ema_decays": emas,
        "lr_factors": list(lr_factors),
        "initial": [to_list(weight) for weight in weights],
        "steps": [],
    }
    if scaler is not None:
        case["initial_scale"] = scaler.get_scale()
        case["growth_interval"] = scaler.get_growth_interval()
    for step in range(steps):
        scale = scaler.get_scale() if scaler is not None else 1.0
        for weight in weights:
            grad = torch.randn(weight.shape, generator=generator) * (3.0 if step % 2 else 0.1)
            weight.grad = grad * scale
        if step in bad_steps:
            weights[1].grad.view(-1)[4] = bad_steps[step]
        record = {"grads": [to_list(weight.grad) for weight in weights]}
        if scaler is not None:
            scaler.scale(torch.zeros(()))  # sets the scaler up; the gradients are scaled above
            scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(weights, max_norm if max_norm > 0 else math.inf)
        before = [weight.detach().clone() for weight in weights]
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        skipped = step in bad_steps
        if skipped:
            assert all(torch.equal(a, b) for a, b in zip(before, weights)), "must have been skipped"
        else:
            for decay, average in zip(emas, averages):
                for mean, weight in zip(average, weights):
                    mean.mul_(decay).add_(weight.detach(), alpha=1 - decay)
        record["skipped"] = skipped
        record["grad_norm"] = None if skipped else float(f"{norm.item():.9g}")
        record["loss_scale"] = scaler.get_scale() if scaler is not None else 1.0
        if step in (0, 1, 9, steps - 1):
            record["weights"] = [to_list(weight) for weight in weights]
        case["steps"].append(record)
    if bits == 8:
        states = [optimizer.state[weight] for weight in weights]
        case["exp_avg"] = [state["state1"].flatten().tolist() for state in states]
        case["exp_avg_scales"] = [to_list(state["absmax1"]) for state in states]
        if rule == "adamw":
            case["exp_avg_sq"] = [state["state2"].flatten().tolist() for state in states]
            case["exp_avg_sq_scales"] = [to_list(state["absmax2"]) for state in states]
        case["averages"] = [[to_list(mean) for mean in average] for average in averages]
        return case
    first = "momentum_buffer" if rule == "sgd" else "exp_avg"
    case["exp_avg"] = [to_list(optimizer.state[weight][first]) for weight in weights]
    if rule == "adamw":
        case["exp_avg_sq"] = [to_list(optimizer.state[weight]["exp_avg_sq"]) for weight in weights]
    case["averages"] = [[to_list(mean) for mean in average] for average in averages]
    return case


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=root / "tests/optim/data/optimizers.json", type=pathlib.Path)
    arguments = parser.parse_args()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    fixture = {
        "torch": torch.__version__,
        "bitsandbytes": bitsandbytes.__version__,
        "code_maps": [to_list(bitsandbytes.functional.create_dynamic_map(signed)) for signed in (True, False)],
        "cases": {
            "plain": run_case(1, 0.0, 0.0, [], None, {}),
            "clipped": run_case(2, 0.05, 1.0, [0.9, 0.999], None, {}),
            "scaled": run_case(
                3, 0.05, 1.0, [0.9], scaler,
                {0: math.inf, 5: -math.inf, 6: math.nan, 13: math.inf},
            ),
            "factors": run_case(4, 0.05, 1.0, [0.9], None, {}, (0.25, 10.0, 0.0, 1.0)),
            "lion": run_case(5, 0.05, 1.0, [0.9], None, {}, rule="lion"),
            "sgd": run_case(6, 0.05, 1.0, [0.9], None, {}, rule="sgd"),
            "adamw8": run_case(7, 0.05, 1.0, [0.9], None, {}, bits=8),
            "lion8": run_case(8, 0.05, 1.0, [0.9], None, {}, rule="lion", bits=8),
            "sgd8": run_case(9, 0.05, 1.0, [0.9], None, {}, rule="sgd", bits=8),
        },
    }
    # JSON has no infinities: strings, which the test turns back.
    def encode(value):
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if isinstance(value, dict):
            return {key: encode(item) for key, item in value.items()}
        if isinstance(value, list):
            return [encode(item) for item in value]
        return value

    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(encode(fixture), separators=(",", ":"))
    arguments.out.write_text(text.replace('{"grads"', '\n{"grads"') + "\n")


if __name__ == "__main__":
    main()
