"""Kinora's random numbers (kinora/core/philox.h): Philox4x32-10 (Salmon et al. 2011), and normals by Box and Muller
(1958), to fp32's rounding."""

import math

import numpy as np
import torch

INITIAL_VALUE = 1  # RandomPurpose::kInit
INITIAL_NOISE = 7  # RandomPurpose::kInitialNoise
SAMPLER_NOISE = 8  # RandomPurpose::kSamplerNoise


def philox(seed, sample, count, purpose=INITIAL_NOISE, step=0):
    """Normals of one stream."""
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    c = [blocks, np.full_like(blocks, sample & 0xFFFFFFFF), np.full_like(blocks, step),
         np.full_like(blocks, purpose << 24 | sample >> 32 & 0xFFFFFF)]
    k0, k1 = seed, 0
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), p1 & mask,
             (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), p0 & mask]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    words = np.stack(c, 1).astype(np.float64)  # [blocks, 4]
    radius = np.sqrt(-2 * np.log((np.floor(words[:, ::2] / 2**9) + 0.5) / 2**23))
    angle = 2 * math.pi * np.floor(words[:, 1::2] / 2**8) / 2**24
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 2)  # [blocks, 2, 2]
    return torch.from_numpy(pairs.reshape(-1)[:count]).float()


def named_noise(name, shape):
    """models::constant_noise(): the normals that a name stands for."""
    number = 0xCBF29CE484222325  # FNV-1a
    for byte in name.encode():
        number = (number ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    number = (number ^ number >> 56) & 0xFFFFFFFFFFFFFF
    return philox(0, number, math.prod(shape), INITIAL_VALUE).reshape(shape)


class DecoderNoise:
    """Stands for torch.randn and randn_tensor while an AutoencoderKLLTXVideo decodes: maps are those of its layers
    that add noise, in their order, and latents are mixed with that of "decoder.noise", the same for each."""

    def __init__(self, autoencoder):
        self.names = [f"{name}.noise{number}" for name, layer in autoencoder.named_modules()
                      if getattr(layer, "per_channel_scale1", None) is not None for number in (1, 2)]
        self.calls = 0

    def __call__(self, shape, dtype=None, **_):
        if len(shape) == 2:
            noise = named_noise(self.names[self.calls % len(self.names)], tuple(shape))
            self.calls += 1
        else:
            noise = named_noise("decoder.noise", (1, *shape[1:])).expand(shape)
        return noise.to(dtype)
