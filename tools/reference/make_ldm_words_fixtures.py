#!/usr/bin/env python3
"""Writes what latent diffusion's models of captions and of layouts draw, tiny ones, whose weights are weight(key), so that
no file holds them.

usage: make_ldm_words_fixtures.py TAMING

TAMING is CompVis/taming-transformers, whose builder makes tokens of layouts. Wants torch, diffusers 0.42, transformers 5,
more-itertools, Pillow. Files lie in tests/inference/data/latent_diffusion.

words.safetensors, of diffusers' LDMTextToImagePipeline:

  states    [3 * 77, 24]: the text encoder's of the metadata's "prompts" and of the empty one
  latents   [2, 4, 4, 4]: what 4 steps with guidance 5 make of Kinora's noise of sample b, philox(SEED, b)
  pictures  F16 [2, 3, 32, 32] in [0, 1]: these decoded

Metadata: "seed", "prompts", for each of "unet", "bert" and "vqvae" its config.json and, as "NAME.shapes", {key: shape};
"scheduler". The tokenizer is tests/tokenizers/data/bert.

layouts.safetensors, of the same classes of diffusers with a VQModel, as latent diffusion's scripts call them:

  tokens    I64 [2, 11]: ObjectsBoundingBoxConditionalBuilder's of the metadata's "layouts", with "classes"
  latents   [2, 3, 4, 4]: what 4 steps without guidance make of Kinora's noise
  pictures  F16 [2, 3, 16, 16] in [0, 1]: these decoded

Metadata: "seed", and shapes as above.
"""

import json
import math
import pathlib
import random
import sys
import types
from unittest import mock

import diffusers
import torch
from diffusers.pipelines.latent_diffusion.pipeline_latent_diffusion import LDMBertConfig, LDMBertModel
from transformers import BertTokenizer

import formula
import tensor_file
from philox import philox

TESTS = pathlib.Path(__file__).resolve().parents[2] / "tests"
SEED, STEPS, GUIDANCE = 5, 4, 5.0
PROMPTS = ["a Red circle, by someone", "two green stars " * 40]  # the second is cut off


def parts():
    # text2img-large's forms, smaller: 8 heads in the U-Net, heads of 64 channels in the encoder.
    unet = diffusers.UNet2DConditionModel(
        sample_size=4, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=24, attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))
    bert = LDMBertModel(LDMBertConfig(
        vocab_size=900, d_model=24, encoder_ffn_dim=40, encoder_layers=2, encoder_attention_heads=2, head_dim=64))
    vqvae = diffusers.AutoencoderKL(
        block_out_channels=(32, 32, 32, 64), down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, latent_channels=4, layers_per_block=1, sample_size=32)
    return {"unet": unet, "bert": bert, "vqvae": vqvae}


CLASSES = ["Tree", "Person", "Dog"]
LAYOUTS = [[{"phrase": "Dog", "box": [0.1, 0.25, 0.5, 0.9]}, {"phrase": "Tree", "box": [0.5, 0.0, 1.0, 0.5]}],
           [{"phrase": "Person", "box": [0.3, 0.3, 0.7, 0.95]}]]
VOCABULARY, PLACES = 200, 11  # 14 x 14 places; three objects


def boxes(folder):
    """Tokens of LAYOUTS, whose objects stay in their order. What the builder draws with is not called."""
    transforms = sys.modules["taming.data.image_transforms"] = types.ModuleType("image_transforms")
    transforms.convert_pil_to_tensor = None
    sys.path.insert(0, folder)
    from taming.data.conditional_builder.objects_bbox import ObjectsBoundingBoxConditionalBuilder
    from taming.data.helper_types import Annotation
    builder = ObjectsBoundingBoxConditionalBuilder(len(CLASSES), (PLACES - 2) // 3, VOCABULARY, True, False, False)
    rows = []
    for layout in LAYOUTS:
        annotations = []
        for each in layout:
            left, top, right, bottom = each["box"]
            annotations.append(Annotation(
                id=0, image_id="", source="", category_id="", category_no=CLASSES.index(each["phrase"]), confidence=1.0,
                bbox=(left, top, right - left, bottom - top), area=1.0))
        with mock.patch.object(random, "shuffle", lambda order: None):
            rows.append(builder.build(annotations))
    return torch.stack(rows)


def write_layouts(folder):
    # layout2img-openimages256's forms, smaller: heads of 32 channels, three blocks.
    made = {"unet": diffusers.UNet2DConditionModel(
        sample_size=4, in_channels=3, out_channels=3, block_out_channels=(32, 64), layers_per_block=1,
        cross_attention_dim=24, attention_head_dim=(1, 2), transformer_layers_per_block=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D")),
        "bert": LDMBertModel(LDMBertConfig(
            vocab_size=VOCABULARY, d_model=24, encoder_ffn_dim=40, encoder_layers=2, encoder_attention_heads=2,
            head_dim=64, max_position_embeddings=PLACES)),
        "vqvae": diffusers.VQModel(
            block_out_channels=(32, 32, 64), down_block_types=("DownEncoderBlock2D",) * 3,
            up_block_types=("UpDecoderBlock2D",) * 3, layers_per_block=1, num_vq_embeddings=64, scaling_factor=1.0)}
    made = {name: formula.fill(part).float().eval() for name, part in made.items()}
    scheduler = diffusers.DDIMScheduler(beta_start=0.0015, beta_end=0.0205, beta_schedule="scaled_linear",
                                        clip_sample=False, set_alpha_to_one=False, steps_offset=1)
    tokens = boxes(folder)
    latents = torch.stack([philox(SEED, b, math.prod((3, 4, 4))).reshape(3, 4, 4) for b in range(len(LAYOUTS))])
    scheduler.set_timesteps(STEPS)
    with torch.no_grad():
        states = made["bert"](tokens)[0]
        for t in scheduler.timesteps:
            latents = scheduler.step(made["unet"](latents, t, states).sample, t, latents).prev_sample
        pictures = (made["vqvae"].decode(latents).sample / 2 + 0.5).clamp(0, 1)
    save("layouts", {"tokens": tokens, "latents": latents, "pictures": pictures.half()},
         {"layouts": json.dumps(LAYOUTS), "classes": json.dumps(CLASSES)} | shapes_of(made))


def shapes_of(made):
    return {name + ".shapes": json.dumps({key: list(value.shape) for key, value in part.state_dict().items()},
                                         separators=(",", ":")) for name, part in made.items()}


def save(name, tensors, metadata):
    path = TESTS / "inference/data/latent_diffusion" / (name + ".safetensors")
    tensor_file.save(path, tensors, {"kinora_fixture": "pipeline", "version": "1", "seed": str(SEED)} | metadata)
    print(path.name, path.stat().st_size, "bytes,",
          {key: round(float(value.float().std()), 4) for key, value in tensors.items()})


def write_words():
    made = {name: formula.fill(part).float().eval() for name, part in parts().items()}
    scheduler = diffusers.DDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
                                        clip_sample=False)
    tokenizer = BertTokenizer.from_pretrained(TESTS / "tokenizers/data/bert")
    pipeline = diffusers.LDMTextToImagePipeline(tokenizer=tokenizer, scheduler=scheduler, **made)
    pipeline.set_progress_bar_config(disable=True)
    noise = torch.stack([philox(SEED, b, math.prod((4, 4, 4))).reshape(4, 4, 4) for b in range(len(PROMPTS))])
    kept = {}
    decode = made["vqvae"].decode

    def keep(latents):
        kept["latents"] = latents * made["vqvae"].config.scaling_factor
        return decode(latents)

    made["vqvae"].decode = keep
    pictures = pipeline(PROMPTS, height=32, width=32, num_inference_steps=STEPS, guidance_scale=GUIDANCE, latents=noise,
                        output_type="pt").images
    with torch.no_grad():
        ids = tokenizer([*PROMPTS, ""], padding="max_length", max_length=77, truncation=True, return_tensors="pt")
        states = made["bert"](ids.input_ids)[0]
    configs = {name: (part.config if name == "bert" else part).to_json_string() for name, part in made.items()}
    save("words", {"states": states.flatten(0, 1), "latents": kept["latents"], "pictures": pictures.half()},
         {"prompts": json.dumps(PROMPTS), "scheduler": scheduler.to_json_string()} | configs | shapes_of(made))


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_words()
    write_layouts(sys.argv[1])
