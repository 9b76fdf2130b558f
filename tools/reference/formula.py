"""Values that a name stands for, the same here and in tests/models/formula_values.h: so fixtures need
not hold weights."""

import math

import torch


def values(name, shape):
    """float64 numbers in [-1, 1), all of them exact in float32: Murmur3's finaliser (Appleby 2011)
    of FNV-1a(name) + i * 0x9E3779B9, its upper 24 bits."""
    seed = 2166136261
    for byte in name.encode():
        seed = (seed ^ byte) * 16777619 & 0xFFFFFFFF
    x = (seed + torch.arange(math.prod(shape), dtype=torch.int64) * 0x9E3779B9) & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        # Products of 32-bit numbers wrap around in int64; the lower 32 bits stay right.
        x = ((x ^ (x >> shift)) * factor) & 0xFFFFFFFF
    x = x ^ (x >> 16)
    return ((x >> 8).double() / 2**23 - 1).reshape(shape)


def weight(name, shape):
    """A parameter's value: U(-1, 1) of variance 1 / fan-in; of norms near 1, biases near 0. Rounded
    to float32."""
    draw = values(name, shape)
    if len(shape) > 1:
        draw = draw * math.sqrt(3 / math.prod(shape[1:]))
    elif name.endswith("weight"):
        draw = 1 + draw / 4
    else:
        draw = draw / 8
    return draw.float().double()


def fill(module):
    """Gives every parameter of a torch module its formula's value, in float64."""
    module.double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(weight(name, parameter.shape))
    return module


def probes(module):
    """Of each parameter's gradient: its norm and its product with the formula's values."""
    return {name: torch.stack([p.grad.norm(), (p.grad * values(name, p.shape)).sum()])
            for name, p in module.named_parameters()}
