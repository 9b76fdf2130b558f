#!/usr/bin/env python3
"""Writes tests/inference/data/sd_pictures/: what the pipelines of diffusers draw that are given pictures, with the
parts of ../sd1 (make_pipeline_fixtures.py) and these of random weights. Wants torch, diffusers 0.42, transformers 5.

  inpaint/, edit/             U-Nets of 9 and 8 channels
  controlnet/, controlnet_1/  ControlNetModels for the U-Net of sd1
  picture.png, mask.png       64 x 64; the mask is grey along its edges, which lie across latents
  control.png, control_1.png  for the ControlNets
  drawn.safetensors           fp32 latents.NAME [2, 4, 8, 8] of the first two prompts, 4 steps, guidance 7.5, and of
                              the first F16 pictures.NAME [1, 3, 64, 64] in [0, 1], but not of other schedulers

NAME is inpaint (StableDiffusionInpaintPipeline with the U-Net of 9 channels), inpaint_part (strength 0.6),
repaint (with that of 4), repaint_part (strength 0.6), edit (StableDiffusionInstructPix2PixPipeline, image guidance
1.5), control, controls (StableDiffusionControlNetPipeline with one ControlNet of scale 0.75, and with two of 1 and
0.5), by DDIM; with .dpm, .euler, .heun and .plms behind it by such a scheduler. Configurations of schedulers are the
metadata of their names. diffusers begins PNDM one evaluation off where strength is below 1, so it is left out there. Pictures are encoded to the mean of their latents, and noise is Kinora's of seed 5.
"""

import shutil
from unittest import mock

import diffusers
import numpy as np
import torch
from PIL import Image

import tensor_file
from make_pipeline_fixtures import CHAIN, SD_PROMPTS, SD_SCHEDULERS, TESTS, initial_noise, open_pipeline, randomised

SD1 = TESTS / "inference/data/sd1"
OUT = TESTS / "inference/data/sd_pictures"
PROMPTS = SD_PROMPTS[:2]
SCHEDULERS = {**SD_SCHEDULERS, "heun": (diffusers.HeunDiscreteScheduler, {}),
              "plms": (diffusers.PNDMScheduler, {"skip_prk_steps": True, "set_alpha_to_one": False, "steps_offset": 1})}
SHAPE = dict(block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, cross_attention_dim=16,
             down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), attention_head_dim=2)


def unet(channels, seed):
    return randomised(diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=channels, out_channels=4, up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        **SHAPE), seed)


def wave(seed):
    y, x = np.mgrid[0:64, 0:64] / 64.0
    planes = [np.sin(2 * np.pi * ((seed + c) * x + (c + 1) * y) + c) for c in range(3)]
    return Image.fromarray((127.5 * (np.stack(planes, 2) + 1)).round().astype(np.uint8))


def mask():
    y, x = np.mgrid[0:64, 0:64]
    near = np.clip(20 - np.abs(x - 29.5), 0, 4) * np.clip(17 - np.abs(y - 36.5), 0, 4) / 16
    return Image.fromarray((255 * near).round().astype(np.uint8))


def main():
    torch.set_num_threads(1)
    diffusers.logging.set_verbosity_error()
    shutil.rmtree(OUT, ignore_errors=True)
    unet(9, 11).save_pretrained(OUT / "inpaint")
    unet(8, 12).save_pretrained(OUT / "edit")
    for i in range(2):
        net = diffusers.ControlNetModel(conditioning_embedding_out_channels=(4, 4, 8, 8), **SHAPE)
        randomised(net, 13 + i).save_pretrained(OUT / ("controlnet" if i == 0 else f"controlnet_{i}"))
    images = {"picture": wave(1), "mask": mask(), "control": wave(2), "control_1": wave(3)}
    for name, image in images.items():
        image.save(OUT / f"{name}.png")

    base = open_pipeline(diffusers.StableDiffusionPipeline, SD1)
    parts = {name: part for name, part in base.components.items()}
    noise = initial_noise(len(PROMPTS), 4, 8, 8)
    tensors, metadata = {}, {"diffusers": diffusers.__version__}

    def means(output, generator=None, sample_mode="sample"):
        return output.latent_dist.mode()

    def draw(name, pipeline, **options):
        pipeline.set_progress_bar_config(disable=True)
        module = type(pipeline).__module__
        with mock.patch(module + ".randn_tensor", lambda *_, **__: noise.clone()), \
                mock.patch(module + ".retrieve_latents", means, create=True), torch.no_grad():
            def images(output_type):
                return pipeline(PROMPTS, num_inference_steps=4, guidance_scale=7.5, output_type=output_type,
                                **options).images
            tensors["latents." + name] = images("latent")
            if "." not in name:
                tensors["pictures." + name] = images("pt")[:1].half()
        print(name, float(tensors["latents." + name].std()))

    def load(kind):
        return diffusers.UNet2DConditionModel.from_pretrained(OUT / kind, dtype=torch.float32)

    def of(pipeline_class, **others):
        return pipeline_class(**{**parts, **others}, requires_safety_checker=False)

    def with_schedulers(name, pipeline, wanted=tuple(SCHEDULERS), **options):
        for kind in wanted:
            scheduler_class, more = SCHEDULERS[kind]
            pipeline.scheduler = scheduler_class(**CHAIN, prediction_type="epsilon", **more)
            metadata[kind] = pipeline.scheduler.to_json_string()
            draw(name if kind == "ddim" else f"{name}.{kind}", pipeline, **options)

    given = dict(image=images["picture"], mask_image=images["mask"], height=64, width=64)
    inpaint = of(diffusers.StableDiffusionInpaintPipeline, unet=load("inpaint"))
    with_schedulers("inpaint", inpaint, ("ddim",), **given)
    with_schedulers("inpaint_part", inpaint, ("ddim",), strength=0.6, **given)
    repaint = of(diffusers.StableDiffusionInpaintPipeline)
    with_schedulers("repaint", repaint, **given)
    with_schedulers("repaint_part", repaint, ("ddim", "dpm", "euler", "heun"), strength=0.6, **given)
    edit = of(diffusers.StableDiffusionInstructPix2PixPipeline, unet=load("edit"))
    with_schedulers("edit", edit, image=[images["picture"]] * len(PROMPTS), image_guidance_scale=1.5)
    nets = [diffusers.ControlNetModel.from_pretrained(OUT / name, dtype=torch.float32)
            for name in ("controlnet", "controlnet_1")]
    with_schedulers("control", of(diffusers.StableDiffusionControlNetPipeline, controlnet=nets[0]), ("ddim",),
                    image=images["control"], controlnet_conditioning_scale=0.75, height=64, width=64)
    with_schedulers("controls", of(diffusers.StableDiffusionControlNetPipeline,
                                   controlnet=diffusers.MultiControlNetModel(nets)),
                    image=[images["control"], images["control_1"]], controlnet_conditioning_scale=[1.0, 0.5],
                    height=64, width=64)
    tensor_file.save(OUT / "drawn.safetensors", {k: v.contiguous() for k, v in tensors.items()}, metadata)


if __name__ == "__main__":
    main()
