#!/usr/bin/env python3
"""Writes tests/pipelines/data/img2img.safetensors: where and how diffusers' img2img pipelines begin, and where
the rest of the steps leads. Wants torch, diffusers 0.42.

As StableDiffusionImg2ImgPipeline does it: t_start = steps - int(steps * strength), x = add_noise(data, noise,
timesteps[t_start]), then the steps from there. Data, noise and the denoiser are those of recorded_loops.h.

  METHOD.begin, METHOD.end   fp32 [2, 3, 2, 2] of 10 steps at strength 0.64
"""

import pathlib

import diffusers
import torch

import tensor_file

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/pipelines/data/img2img.safetensors"
STEPS, STRENGTH = 10, 0.64
I = torch.arange(24, dtype=torch.float64)
DATA = (1.4 * torch.sin(1.7 * I + 0.3)).view(2, 3, 2, 2).float()
NOISE = (1.4 * torch.cos(2.3 * I)).view(2, 3, 2, 2).float()
CHAIN = dict(num_train_timesteps=1000, beta_schedule="linear", beta_start=1e-4, beta_end=0.02)
SCHEDULERS = {
    "ddim": diffusers.DDIMScheduler(**CHAIN, timestep_spacing="leading", clip_sample=False, set_alpha_to_one=True),
    "dpm++": diffusers.DPMSolverMultistepScheduler(**CHAIN, timestep_spacing="linspace"),
    "unipc": diffusers.UniPCMultistepScheduler(**CHAIN, timestep_spacing="linspace"),
    "euler": diffusers.EulerDiscreteScheduler(**CHAIN, timestep_spacing="linspace"),
    "heun": diffusers.HeunDiscreteScheduler(**CHAIN, timestep_spacing="linspace"),
    "flow": diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
}


def denoised(x, t):
    return 0.4 * (1.5 * x + t / 300.0).cos() + 0.25 * x


def main():
    tensors = {}
    for name, scheduler in SCHEDULERS.items():
        if name == "flow":  # Kinora's times: even from 1 to 0, then shifted
            scheduler.set_timesteps(sigmas=[1 - i / STEPS for i in range(STEPS)])
        else:
            scheduler.set_timesteps(STEPS)
        first = (STEPS - min(int(STEPS * STRENGTH), STEPS)) * scheduler.order
        timesteps = scheduler.timesteps[first:]
        if hasattr(scheduler, "set_begin_index"):
            scheduler.set_begin_index(first)
        add_noise = scheduler.scale_noise if name == "flow" else scheduler.add_noise
        at = timesteps[:1].repeat(2)
        x = add_noise(DATA, at, NOISE) if name == "flow" else add_noise(DATA, NOISE, at)
        tensors[f"{name}.begin"] = x
        for t in timesteps:
            shown = scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else x
            x = scheduler.step(denoised(shown, t.double() / 1000 if name == "flow" else t), t, x).prev_sample.float()
        tensors[f"{name}.end"] = x
        print(f"{name}: {len(timesteps)} evaluations, |begin| {tensors[name + '.begin'].norm():.4f}, |end| {x.norm():.4f}")
    tensor_file.save(OUT, {k: v.contiguous().float() for k, v in tensors.items()}, {"diffusers": diffusers.__version__})


if __name__ == "__main__":
    main()
