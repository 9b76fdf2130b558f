#!/usr/bin/env python3
"""Writes tests/inference/data/sdxl_controls/: what SDXL computes and draws with ControlNets, with the parts of ../sdxl
(make_pipeline_fixtures.py), the pictures of ../sd_pictures (make_picture_fixtures.py) and ControlNetModels of random
weights. Wants torch, diffusers 0.42, transformers 5.

  controlnet/, controlnet_1/  ControlNetModels for the U-Net of sdxl
  expected.safetensors        fp32, one pass of two samples with both nets, of scales 1 and 0.5:
                              x, t, text, pooled, sizes [2, 6] (time_ids), out;
                              latents.NAME [2, 4, 8, 8] of the first two prompts, 4 steps, guidance 5 from zeros,
                              and of the first F16 pictures.NAME [1, 3, 64, 64] in [0, 1]

NAME is control (StableDiffusionXLControlNetPipeline with one ControlNet of scale 0.75) and controls (two of 1 and 0.5).
Noise is Kinora's of seed 5.
"""

import shutil

import diffusers
import torch
from PIL import Image

import tensor_file
from make_pipeline_fixtures import SD_PROMPTS, TESTS, initial_noise, open_pipeline, randomised

DATA = TESTS / "inference/data"
OUT = DATA / "sdxl_controls"
PROMPTS = SD_PROMPTS[:2]
SHAPE = dict(block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, cross_attention_dim=28,
             down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), transformer_layers_per_block=[1, 2],
             attention_head_dim=[2, 4], use_linear_projection=True, addition_embed_type="text_time",
             addition_time_embed_dim=4, projection_class_embeddings_input_dim=10 + 6 * 4)


def main():
    torch.set_num_threads(1)
    diffusers.logging.set_verbosity_error()
    shutil.rmtree(OUT, ignore_errors=True)
    for i in range(2):
        net = diffusers.ControlNetModel(conditioning_embedding_out_channels=(4, 4, 8, 8), **SHAPE)
        randomised(net, 21 + i).save_pretrained(OUT / ("controlnet" if i == 0 else f"controlnet_{i}"))
    nets = [diffusers.ControlNetModel.from_pretrained(OUT / name, dtype=torch.float32)
            for name in ("controlnet", "controlnet_1")]
    images = [Image.open(DATA / "sd_pictures" / f"{name}.png") for name in ("control", "control_1")]
    base = open_pipeline(diffusers.StableDiffusionXLPipeline, DATA / "sdxl")
    both = diffusers.MultiControlNetModel(nets)
    tensors = {}

    generator = torch.Generator().manual_seed(7)
    x, text, pooled = (torch.randn(shape, generator=generator) for shape in ((2, 4, 8, 8), (2, 77, 28), (2, 10)))
    t = torch.tensor([17.0, 803.0])
    sizes = torch.tensor([[64.0, 80.0, 0.0, 8.0, 64.0, 64.0], [90.0, 70.0, 10.0, 3.0, 64.0, 64.0]])
    added = {"text_embeds": pooled, "time_ids": sizes}
    shown = [base.image_processor.preprocess(image).add(1).div(2).expand(2, -1, -1, -1) for image in images]
    with torch.no_grad():
        down, mid = both(x, t, text, shown, [1.0, 0.5], added_cond_kwargs=added, return_dict=False)
        out = base.unet(x, t, text, added_cond_kwargs=added, down_block_additional_residuals=down,
                        mid_block_additional_residual=mid).sample
        plain = base.unet(x, t, text, added_cond_kwargs=added).sample
    print("what they change", float((out - plain).norm() / plain.norm()))
    tensors |= {"x": x, "t": t, "text": text, "pooled": pooled, "sizes": sizes, "out": out}

    noise = initial_noise(len(PROMPTS), 4, 8, 8)
    for name, net, image, scale in (("control", nets[0], images[0], 0.75), ("controls", both, images, [1.0, 0.5])):
        pipeline = diffusers.StableDiffusionXLControlNetPipeline(**base.components, controlnet=net,
                                                                 add_watermarker=False)
        pipeline.set_progress_bar_config(disable=True)

        def draw(output_type):
            return pipeline(PROMPTS, image=image, controlnet_conditioning_scale=scale, num_inference_steps=4,
                            guidance_scale=5.0, latents=noise.clone(), height=64, width=64,
                            output_type=output_type).images
        with torch.no_grad():
            tensors["latents." + name] = draw("latent")
            tensors["pictures." + name] = draw("pt")[:1].half()
        print(name, float(tensors["latents." + name].std()))
    tensor_file.save(OUT / "expected.safetensors", {key: value.contiguous() for key, value in tensors.items()},
                     {"diffusers": diffusers.__version__})


if __name__ == "__main__":
    main()
