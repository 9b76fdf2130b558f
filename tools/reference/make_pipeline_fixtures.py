#!/usr/bin/env python3
"""Writes tests/inference/data/pixart_{alpha,sigma}/: tiny pipelines of random weights as diffusers saves
them, and what diffusers draws with them. Wants torch, diffusers 0.42, transformers 5, beautifulsoup4, ftfy.

The folder is a pipeline's: model_index.json, transformer/, scheduler/, text_encoder/, vae/ (weights bf16, so
that they are small) and tokenizer/ with a file of tests/tokenizers/data. drawn.safetensors beside them, fp32:

  noise           [B, 4, 8, 8]: philox(SEED, b), Kinora's noise of sample b
  states          [rows, 16]: the text encoder's of the prompts and the negative prompt, padding left out
  lengths         I64 [B + 1]: rows of each
  latents         [B, 4, 8, 8]: what 4 steps with guidance give
  pictures        F16 [B, 3, 64, 64] in [0, 1]: these decoded

Its metadata has the prompts. The third is longer than the pipeline reads.
"""

import json
import math
import pathlib
import shutil

import diffusers
import numpy as np
import torch
import transformers

import tensor_file

TESTS = pathlib.Path(__file__).resolve().parents[2] / "tests"
SEED = 5
PROMPTS = ["a red circle", "A <b>Blue</b> cross &amp; a square, see www.example.com/x.png", "two green stars " * 110]
INITIAL_NOISE = 7  # RandomPurpose::kInitialNoise


def philox(seed, sample, count):
    """Normals of kinora/core/philox.h (Salmon et al. 2011; Box and Muller 1958), to fp32's rounding."""
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    c = [blocks, np.full_like(blocks, sample), np.zeros_like(blocks),
         np.full_like(blocks, INITIAL_NOISE << 24)]
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


def randomised(model, seed):
    """Nothing is zero; values that bf16 holds."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            draw = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                draw = draw / math.sqrt(math.prod(parameter.shape[1:]))
            elif name.endswith("weight"):
                draw = 1 + draw / 4
            else:
                draw = draw / 8
            parameter.copy_(draw.to(torch.bfloat16))
    return model.to(torch.bfloat16)


def components():
    text = transformers.T5Config(vocab_size=800, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4,
                                 feed_forward_proj="gated-gelu")
    transformer = diffusers.PixArtTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2,
        cross_attention_dim=16, sample_size=8, caption_channels=16, norm_eps=1e-6)
    vae = diffusers.AutoencoderKL(
        block_out_channels=(4, 4, 8, 8), down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, latent_channels=4, norm_num_groups=2, layers_per_block=1,
        scaling_factor=0.13025, sample_size=64)
    encoder = transformers.T5EncoderModel(text)
    return {"text_encoder": randomised(encoder, 1), "transformer": randomised(transformer, 2),
            "vae": randomised(vae, 3)}


def write(name, pipeline_class, tokenizer, scheduler, negative, longest):
    folder = TESTS / "inference/data" / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(TESTS / "tokenizers/data" / tokenizer, folder / "tokenizer")
    parts = components()
    for part, model in {**parts, "scheduler": scheduler}.items():
        model.save_pretrained(folder / part)
    pipeline_class(tokenizer=transformers.T5Tokenizer.from_pretrained(folder / "tokenizer"),
                   scheduler=scheduler, **parts).save_config(folder)

    pipeline = pipeline_class.from_pretrained(folder, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    noise = torch.stack([philox(SEED, b, 4 * 8 * 8).reshape(4, 8, 8) for b in range(len(PROMPTS))])

    def draw(output_type):
        return pipeline(PROMPTS, negative, num_inference_steps=4, latents=noise.clone(), output_type=output_type,
                        use_resolution_binning=False).images

    states, mask, null, null_mask = pipeline.encode_prompt(
        PROMPTS, negative_prompt=negative, clean_caption=True, max_sequence_length=longest)
    states, mask = torch.cat([states, null[:1]]), torch.cat([mask, null_mask[:1]]).bool()
    with torch.no_grad():
        tensors = {"noise": noise, "states": states[mask].detach(), "lengths": mask.sum(1),
                   "latents": draw("latent"), "pictures": draw("pt").half()}
    tensor_file.save(folder / "drawn.safetensors", tensors, {
        "kinora_fixture": "pipeline", "version": "1", "seed": str(SEED), "negative": negative,
        "prompts": json.dumps(PROMPTS)})
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    pictures = tensors["pictures"].float()
    print(name, size, "bytes, tokens", tensors["lengths"].tolist(), "latents' deviation",
          float(tensors["latents"].std()), "pictures'", float(pictures.std()), "clamped",
          float(((pictures == 0) | (pictures == 1)).float().mean()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    diffusers.logging.set_verbosity_error()
    # As the published PixArt-XL-2 have it.
    write("pixart_alpha", diffusers.PixArtAlphaPipeline, "t5_json",
          diffusers.DPMSolverMultistepScheduler(beta_start=0.0001, beta_end=0.02), "", 120)
    # Another kind, chain, spacing and prediction.
    write("pixart_sigma", diffusers.PixArtSigmaPipeline, "t5_spiece",
          diffusers.DDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
                                  prediction_type="v_prediction", clip_sample=False, steps_offset=1),
          "blurry, of low quality", 300)
