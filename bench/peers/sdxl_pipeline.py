"""The PyTorch peer of `kinora sample --model FOLDER` for Stable Diffusion XL: diffusers' own pipeline with random weights in
bf16, from a prompt to a PNG file, one picture at a time. Wants torch, diffusers and transformers.

    python bench/make_pipeline_folder.py FOLDER --kind sdxl
    python bench/peers/sdxl_pipeline.py FOLDER --mode compile-default,compile-max-autotune-no-cudagraphs

The U-Net and the autoencoder are channels_last and compiled, the U-Net's projections of q, k and v are fused. Prints one
line of JSON a measurement: the median ms of a picture when all is loaded and compiled, and of that the PNG.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import torch
from diffusers import (AutoencoderKL, DDIMScheduler, EulerDiscreteScheduler, StableDiffusionPipeline,
                       StableDiffusionXLPipeline, UNet2DConditionModel)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

import measure
import unet

TOKENIZERS = Path(__file__).resolve().parents[2] / "tests/inference/data/sdxl"
PROMPT = "a small red circle to the left of a large blue square, number {}"


def text_encoder(kind, width, heads, layers, activation, **more):
    return kind(CLIPTextConfig(vocab_size=49408, hidden_size=width, intermediate_size=4 * width,
                               num_attention_heads=heads, num_hidden_layers=layers, hidden_act=activation,
                               eos_token_id=2, **more))


def frozen(parts):
    return {name: part.requires_grad_(False).eval().to(torch.bfloat16) for name, part in parts.items()}


def autoencoder_of(channels, factor):
    return AutoencoderKL(
        block_out_channels=channels, layers_per_block=2, down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4, scaling_factor=factor, force_upcast=False)


def random_sd15(arguments):
    """Of Stable Diffusion 1.5's sizes, or small ones."""
    torch.manual_seed(0)
    small = arguments.small
    config = dict(unet.VERSIONS["1"], sample_size=64)
    if small:
        config |= {"block_out_channels": [32, 32, 32, 32], "attention_head_dim": 2, "cross_attention_dim": 64}
    with torch.device(arguments.device):
        parts = {"unet": UNet2DConditionModel(**config),
                 "vae": autoencoder_of([32] * 4 if small else [128, 256, 512, 512], 0.18215),
                 "text_encoder": text_encoder(CLIPTextModel, *((64, 1, 2) if small else (768, 12, 12)), "quick_gelu")}
    return StableDiffusionPipeline(
        **frozen(parts), tokenizer=CLIPTokenizer.from_pretrained(TOKENIZERS / "tokenizer"),
        scheduler=DDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False,
                                set_alpha_to_one=False, steps_offset=1),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False)


def random_pipeline(arguments):
    """Of SDXL's sizes; on the CPU its parts are small."""
    torch.manual_seed(0)
    small = arguments.small
    config = dict(unet.VERSIONS["xl"], sample_size=arguments.size // 8)
    channels = [128, 256, 512, 512]
    if small:
        config |= {"block_out_channels": [32, 64, 64], "transformer_layers_per_block": 1, "attention_head_dim": [1, 2, 2],
                   "cross_attention_dim": 128}
        channels = [32] * 4
    with torch.device(arguments.device):
        network = UNet2DConditionModel(**config)
        autoencoder = autoencoder_of(channels, 0.13025)
        first = text_encoder(CLIPTextModel, *((64, 1, 2) if small else (768, 12, 12)), "quick_gelu")
        second = text_encoder(CLIPTextModelWithProjection, *((64, 1, 2) if small else (1280, 20, 32)), "gelu",
                              projection_dim=1280)
    parts = {"unet": network, "vae": autoencoder, "text_encoder": first, "text_encoder_2": second}
    return StableDiffusionXLPipeline(
        **frozen(parts), tokenizer=CLIPTokenizer.from_pretrained(TOKENIZERS / "tokenizer"),
        tokenizer_2=CLIPTokenizer.from_pretrained(TOKENIZERS / "tokenizer_2"),
        scheduler=EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
                                         timestep_spacing="leading", steps_offset=1), add_watermarker=False)


def measured(arguments, mode):
    pipeline = StableDiffusionXLPipeline.from_pretrained(
        arguments.folder, torch_dtype=torch.bfloat16, add_watermarker=False).to(arguments.device)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.unet.fuse_qkv_projections()
    for part in (pipeline.unet, pipeline.vae):
        part.to(memory_format=torch.channels_last)
    options = measure.MODES[mode]
    if options is not None:
        pipeline.unet = torch.compile(pipeline.unet, dynamic=False, fullgraph=True, **options)
        pipeline.vae.decode = torch.compile(pipeline.vae.decode, dynamic=False, **options)
    picture = None
    count = 0

    def draw():
        nonlocal picture, count
        count += 1
        picture = pipeline(PROMPT.format(count), num_inference_steps=arguments.steps, guidance_scale=5.0).images[0]

    with tempfile.TemporaryDirectory() as folder:

        def write():
            picture.save(Path(folder) / f"{count}.png")

        for _ in range(2):
            draw()
            write()
        drawn = []
        written = []
        for _ in range(arguments.repeats):
            drawn.append(1000 * measure.seconds(draw, arguments.device))
            written.append(1000 * measure.seconds(write, arguments.device))
    both = [one + other for one, other in zip(drawn, written)]
    return {"ms": round(statistics.median(both), 2), "ms_min": round(min(both), 2), "ms_max": round(max(both), 2),
            "png_ms": round(statistics.median(written), 2), "peak_memory_gib": measure.peak_memory_gib(arguments.device)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="of make_pipeline_folder.py --kind sdxl")
    parser.add_argument("--mode", type=measure.names_of(measure.MODES), default=["compile-default"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    measure.prepare_device(arguments)

    def measurement(mode):
        description = {"peer": f"diffusers, torch {mode}", "work": "prompt to PNG", "model": "SDXL",
                       "steps": arguments.steps, "device": measure.device_name(arguments.device)}
        return description, lambda: measured(arguments, mode)

    measure.run_all(measurement(mode) for mode in arguments.mode)


if __name__ == "__main__":
    main()
