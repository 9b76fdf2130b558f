#!/usr/bin/env python3
"""Writes tests/inference/data/flux_pictures/: what the pipelines of Flux draw that are shown pictures, with the parts of
../flux (make_pipeline_fixtures.py) and a transformer of random weights. Wants torch, diffusers 0.42, transformers 5.

  fill/               the transformer of FluxFillPipeline, of 4 + 4 + 64 channels; FluxKontextPipeline has flux'
  picture.png         64 x 64, and mask.png, which is grey along its edges: these lie across latents
  reference.png       90 rows and 53 columns
  drawn.safetensors   fp32 latents.NAME [2, 4, 8, 8] of the prompts of ../flux, 4 steps, guidance 30 of Fill and 3.5 of
                      Kontext, and F16 pictures.NAME [2, 3, 64, 64] in [0, 1]; the metadata "reference_sizes" has the
                      rows and columns that Kontext takes for pictures of others

NAME is fill, fill_part (strength 0.5) and kontext (the reference in its own size). Pictures are encoded to the mean of
their latents, and noise is Kinora's of seed 5.
"""

import json
import shutil
from unittest import mock

import diffusers
import numpy as np
import torch
from PIL import Image

import tensor_file
from make_picture_fixtures import mask, wave
from make_pipeline_fixtures import TESTS, initial_noise, open_pipeline, randomised

FLUX = TESTS / "inference/data/flux"
OUT = TESTS / "inference/data/flux_pictures"
SIZES = [(64, 64), (90, 53), (480, 640), (700, 300), (16, 900), (1000, 999), (31, 33), (1072, 1006)]


def reference():
    y, x = np.mgrid[0:90, 0:53]
    planes = [(x * 5 + y * 2), (y * 3 + 40), ((x + y) * 2 + 90 * (x > 20))]
    return Image.fromarray((np.stack(planes, 2) % 256).astype(np.uint8))


def means(output, generator=None, sample_mode="sample"):
    return output.latent_dist.mode()


def main():
    torch.set_num_threads(1)
    diffusers.logging.set_verbosity_error()
    shutil.rmtree(OUT, ignore_errors=True)
    transformer = diffusers.FluxTransformer2DModel(
        in_channels=16 + 16 + 256, out_channels=16, num_layers=2, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=16, pooled_projection_dim=16, guidance_embeds=True,
        axes_dims_rope=(4, 6, 6))
    randomised(transformer, 7).save_pretrained(OUT / "fill")
    images = {"picture": wave(1), "mask": mask(), "reference": reference()}
    for name, image in images.items():
        image.save(OUT / f"{name}.png")

    base = open_pipeline(diffusers.FluxPipeline, FLUX)
    parts = {name: part for name, part in base.components.items()
             if name not in ("image_encoder", "feature_extractor")}
    prompts = ["a red circle", "two green stars " * 110]
    noise = initial_noise(len(prompts), 4, 8, 8)
    tensors = {}

    def draw(name, pipeline, **options):
        pipeline.set_progress_bar_config(disable=True)
        module = type(pipeline).__module__
        with mock.patch(module + ".randn_tensor", lambda *_, **__: noise.clone()), \
                mock.patch(module + ".retrieve_latents", means), torch.no_grad():
            def images_of(output_type):
                return pipeline(prompt=prompts, num_inference_steps=4, height=64, width=64, output_type=output_type,
                                **options).images
            tensors["latents." + name] = pipeline._unpack_latents(images_of("latent"), 64, 64, 8)
            tensors["pictures." + name] = images_of("pt").half()
        print(name, float(tensors["latents." + name].std()), float(tensors["pictures." + name].std()))

    fill = diffusers.FluxFillPipeline(**{
        **parts, "transformer": diffusers.FluxTransformer2DModel.from_pretrained(OUT / "fill", dtype=torch.float32)})
    given = dict(image=images["picture"], mask_image=images["mask"], guidance_scale=30.0)
    draw("fill", fill, **given)
    draw("fill_part", fill, strength=0.5, **given)
    kontext = diffusers.FluxKontextPipeline(**parts)
    draw("kontext", kontext, image=images["reference"], guidance_scale=3.5, max_area=64 * 64, _auto_resize=False)

    chosen = []
    for height, width in SIZES:
        class Stop(Exception):
            pass

        def stop(image, height, width):
            chosen.append((height, width))
            raise Stop
        with mock.patch.object(kontext.image_processor, "resize", stop):
            try:
                kontext(image=Image.new("RGB", (width, height)), prompt="a", height=64, width=64)
            except Stop:
                pass
    tensor_file.save(OUT / "drawn.safetensors", {k: v.contiguous() for k, v in tensors.items()}, {
        "diffusers": diffusers.__version__, "prompts": json.dumps(prompts),
        "reference_sizes": json.dumps([[*own, *size] for own, size in zip(SIZES, chosen)])})
    print(chosen)


if __name__ == "__main__":
    main()
