#!/usr/bin/env python3
"""Writes tests/diffusion/data/chain_parts.json: what diffusers' schedulers of chains do with a part of
their timesteps, as where a picture is noised and drawn on, and in the two places where Kinora's
sample.method differs from them.

The denoiser, the start and the noise are those of make_sampler_fixtures.py. Needs what that needs
(diffusers 0.42 was used). Always writes the same bytes with the same versions.
"""

import argparse
import json
import pathlib
from unittest import mock

from diffusers import DDIMScheduler, DDPMScheduler, PNDMScheduler

from make_sampler_fixtures import denoiser, noise, start

NUM_TIMESTEPS = 1000
NUM_STEPS = 10
PARTS = [(0, 10), (6, 4), (0, 4), (3, 1)]  # first, count


def scheduler_of(kind, spacing, offset):
    options = {"timestep_spacing": spacing, "steps_offset": offset}
    if kind == "ddim":
        return DDIMScheduler(clip_sample=False, **options)
    if kind == "plms":
        return PNDMScheduler(skip_prk_steps=True, set_alpha_to_one=True, **options)
    return DDPMScheduler(clip_sample=False, variance_type=kind.removeprefix("ddpm_"), **options)


def drawn(kind, spacing, offset, first, count, eta):
    scheduler = scheduler_of(kind, spacing, offset)
    scheduler.set_timesteps(NUM_STEPS)
    visited = list(dict.fromkeys(int(t) for t in scheduler.timesteps))
    timesteps = visited[first:first + count]
    if kind == "plms" and first + 1 < NUM_STEPS:
        # The timestep behind the first is evaluated twice.
        timesteps = timesteps[:1] + [visited[first + 1]] + timesteps[1:]
    x = start()
    for evaluation, t in enumerate(timesteps):
        output = denoiser(x, t, False)
        if kind == "ddim":
            x = scheduler.step(output, t, x, eta=eta, variance_noise=noise(evaluation)).prev_sample
        elif kind == "plms":
            x = scheduler.step(output, t, x).prev_sample
        else:
            with mock.patch("diffusers.schedulers.scheduling_ddpm.randn_tensor",
                            lambda *_, **__: noise(evaluation)):
                x = scheduler.step(output, t, x).prev_sample
    return visited, x


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).parents[1] / "tests/diffusion/data/chain_parts.json")
    arguments = parser.parse_args()
    records = []
    for kind in ("ddim", "plms", "ddpm_fixed_small", "ddpm_fixed_large"):
        for spacing, offset in (("leading", 0), ("leading", 1), ("trailing", 0), ("linspace", 0)):
            for first, count in PARTS:
                for eta in (0.0, 0.6) if kind == "ddim" else (0.0,):
                    visited, x = drawn(kind, spacing, offset, first, count, eta)
                    records.append({"kind": kind, "spacing": spacing, "offset": offset, "first": first,
                                    "count": count, "eta": eta, "timesteps": visited,
                                    "x": [float(f"{value:.7g}") for value in x.flatten().tolist()]})
    lines = ",\n".join(json.dumps(record) for record in records)
    arguments.out.write_text(f"[\n{lines}\n]\n")
    print(f"{len(records)} records in {arguments.out}")


if __name__ == "__main__":
    main()
