#!/usr/bin/env python3
"""Writes what latent diffusion's and DDPM's U-Nets that are told nothing are called and draw in CompVis' code and in
diffusers.

usage: make_unconditional_fixtures.py FOLDER

FOLDER is CompVis/latent-diffusion. Wants torch and diffusers 0.42. Weights are weight(key), so that no file holds
them; all files lie in tests/inference/data/unconditional.

  compvis.safetensors   "x_t" [2, 3, 8, 16], "t" [2] and "output": what CompVis' UNetModel makes of weight(key) for each
                        of its keys, which begin with model.diffusion_model.; metadata "shapes" {key: shape}, "params"
  churches.safetensors  the same in lsun_churches256's form, [2, 4, 8, 16]
  latents.safetensors   "pictures" F16 [2, 3, 32, 32] in [0, 1]: what diffusers' LDMPipeline draws in 4 steps, and
                        "latents" [2, 3, 8, 8] before they are decoded
  pixels.safetensors    "pictures" [2, 3, 16, 16] of DDPMPipeline, "ddim" those of DDIMPipeline, in 4 steps

Kinora's noise of sample b is philox(SEED, b), what the scheduler adds philox(SEED, b, step). Metadata: "seed", the texts
of config.json as diffusers writes them ("unet", "vqvae", "scheduler", "ddim"), and "shapes" of the U-Net's tensors.
"""

import json
import math
import pathlib
import sys
import types
from unittest import mock

import diffusers
import torch
from diffusers.pipelines.deprecated.latent_diffusion_uncond import pipeline_latent_diffusion_uncond as of_latents

import formula
import tensor_file
from philox import SAMPLER_NOISE, philox

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests/inference/data/unconditional"
SEED, BATCH, STEPS = 5, 2, 4
PREFIX = "model.diffusion_model."


def original(folder):
    """UNetModel. What it imports beside torch is not called."""
    for name in ("einops", "ldm.util"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["einops"].rearrange = sys.modules["einops"].repeat = None
    sys.modules["ldm.util"].instantiate_from_config = None
    sys.path.insert(0, folder)
    from ldm.modules.diffusionmodules.openaimodel import UNetModel
    return UNetModel


def write_churches(unet_class):
    params = {"image_size": 16, "in_channels": 4, "out_channels": 4, "model_channels": 32,
              "attention_resolutions": [1, 2], "num_res_blocks": 2, "channel_mult": [1, 1, 2], "num_heads": 8,
              "use_scale_shift_norm": True, "resblock_updown": True}
    write_unet("churches", unet_class, params)


def write_compvis(unet_class):
    # celeba256's form, smaller.
    params = {"image_size": 16, "in_channels": 3, "out_channels": 3, "model_channels": 32,
              "attention_resolutions": [4, 2], "num_res_blocks": 1, "channel_mult": [1, 2, 3],
              "num_head_channels": 32}
    write_unet("compvis", unet_class, params)


def write_unet(name, unet_class, params):
    model = unet_class(**params).eval()
    shapes = {PREFIX + key: list(value.shape) for key, value in model.state_dict().items()}
    model.load_state_dict({key[len(PREFIX):]: formula.weight(key, shape).float() for key, shape in shapes.items()})
    x_t = (formula.values("x_t", [2, params["in_channels"], 8, 16]) * 2).float()
    t = torch.tensor([3.0, 807.0])
    with torch.no_grad():
        output = model(x_t, t)
    save(name, {"x_t": x_t, "t": t, "output": output},
         {"shapes": json.dumps(shapes, separators=(",", ":")), "params": json.dumps(params)})


def save(name, tensors, metadata):
    path = DATA / (name + ".safetensors")
    tensor_file.save(path, tensors, {"kinora_fixture": "unconditional", "version": "1", "seed": str(SEED)} | metadata)
    print(path.name, path.stat().st_size, "bytes,",
          {key: round(float(value.float().std()), 4) for key, value in tensors.items()})


def first_noise(shape, **_):
    assert shape[0] == BATCH
    return torch.stack([philox(SEED, b, math.prod(shape[1:])).reshape(shape[1:]) for b in range(BATCH)])


class AddedNoise:
    """Stands for randn_tensor of a scheduler's module: its noise is that of evaluation `step`."""

    step = 0

    def __call__(self, shape, **_):
        rows = [philox(SEED, b, math.prod(shape[1:]), SAMPLER_NOISE, self.step).reshape(shape[1:])
                for b in range(BATCH)]
        return torch.stack(rows)


def config_text(part):
    """As save_pretrained() writes it."""
    return part.to_json_string()


def shapes_of(model):
    return json.dumps({key: list(value.shape) for key, value in model.state_dict().items()}, separators=(",", ":"))


def write_latents():
    unet = formula.fill(diffusers.UNet2DModel(
        sample_size=8, block_out_channels=(32, 64), layers_per_block=1, attention_head_dim=32, norm_num_groups=32,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"))).float()
    vqvae = formula.fill(diffusers.VQModel(
        block_out_channels=(32, 32, 64), down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3, layers_per_block=1, num_vq_embeddings=64, scaling_factor=0.5)).float()
    scheduler = diffusers.DDIMScheduler(beta_start=0.0015, beta_end=0.0195, beta_schedule="scaled_linear",
                                        clip_sample=False)
    pipeline = diffusers.LDMPipeline(vqvae=vqvae, unet=unet, scheduler=scheduler)
    pipeline.set_progress_bar_config(disable=True)
    kept = {}
    decode = vqvae.decode

    def keep(latents):
        kept["latents"] = latents * vqvae.config.scaling_factor
        return decode(latents)

    vqvae.decode = keep
    with mock.patch.object(of_latents, "randn_tensor", first_noise):
        pictures = pipeline(batch_size=BATCH, num_inference_steps=STEPS, output_type="np").images
    save("latents", {"latents": kept["latents"], "pictures": torch.from_numpy(pictures).permute(0, 3, 1, 2).half()},
         {"unet": config_text(unet), "vqvae": config_text(vqvae), "scheduler": config_text(scheduler),
          "shapes": shapes_of(unet)})


def write_pixels():
    # google/ddpm-cifar10-32's form, smaller.
    unet = formula.fill(diffusers.UNet2DModel(
        sample_size=16, block_out_channels=(16, 32), layers_per_block=1, attention_head_dim=None, norm_num_groups=8,
        norm_eps=1e-6, flip_sin_to_cos=False, freq_shift=1, downsample_padding=0,
        down_block_types=("AttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "AttnUpBlock2D"))).float()
    drawn = {}
    configs = {}
    # With clipping Kinora makes the noise of a DDIM step from the clipped estimate (docs/sampling.md).
    for name, scheduler, pipeline_class, options in (
            ("pictures", diffusers.DDPMScheduler(variance_type="fixed_large"), diffusers.DDPMPipeline, {}),
            ("ddim", diffusers.DDIMScheduler(), diffusers.DDIMPipeline, {"use_clipped_model_output": True})):
        configs["scheduler" if name == "pictures" else name] = config_text(scheduler)
        pipeline = pipeline_class(unet=unet, scheduler=scheduler)
        pipeline.set_progress_bar_config(disable=True)
        added = AddedNoise()
        step = pipeline.scheduler.step

        def counted(output, t, *rest, step=step, added=added, scheduler=pipeline.scheduler, **more):
            added.step = scheduler.timesteps.tolist().index(int(t))
            return step(output, t, *rest, **more)

        pipeline.scheduler.step = counted
        with mock.patch(pipeline_class.__module__ + ".randn_tensor", first_noise), \
                mock.patch(type(scheduler).__module__ + ".randn_tensor", added):
            images = pipeline(batch_size=BATCH, num_inference_steps=STEPS, output_type="np", **options).images
        drawn[name] = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    save("pixels", drawn, {"unet": config_text(unet), "shapes": shapes_of(unet)} | configs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    DATA.mkdir(exist_ok=True)
    unet = original(sys.argv[1])
    write_compvis(unet)
    write_churches(unet)
    write_latents()
    write_pixels()
