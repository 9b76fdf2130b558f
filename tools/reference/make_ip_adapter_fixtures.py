#!/usr/bin/env python3
"""Writes tests/inference/data/ip_adapter/: what diffusers makes of IP-Adapters of random weights beside the U-Nets of
../sd1 and ../sdxl (make_pipeline_fixtures.py). Wants torch, diffusers 0.42, transformers 5.

  image_encoder/               a CLIPVisionModelWithProjection without preprocessor_config.json, as it is published
  sd1.safetensors, sd1.bin     an adapter with the published names, the second as torch.save writes dictionaries of them
  plus.safetensors             a "plus" adapter of the same U-Net
  sdxl.safetensors             an adapter of the other U-Net
  expected.safetensors         of each adapter NAME in fp32 what the image encoder says: NAME.given [2, ...] of PICTURES,
                               NAME.none [1, ...] for guidance;
                               NAME.x, NAME.t, NAME.text, NAME.out (and SDXL's NAME.pooled, NAME.sizes), one pass at
                               scale 0.6 of which the second row is shown NAME.none;
                               NAME.latents [2, 4, 8, 8] of two prompts, of which each is shown one of PICTURES, 4 steps,
                               guidance 7.5, scale 0.6, noise of Kinora's seed 5, and F16 NAME.pictures [1, 3, 64, 64] of
                               the second

PICTURES are control.png and control_1.png of ../sd_pictures.
"""

import shutil

import diffusers
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file

import tensor_file
from make_pipeline_fixtures import SD_PROMPTS, TESTS, initial_noise, open_pipeline, randomised

DATA = TESTS / "inference/data"
OUT = DATA / "ip_adapter"
PROMPTS = SD_PROMPTS[:2]
PICTURES = [Image.open(DATA / "sd_pictures" / name) for name in ("control.png", "control_1.png")]
SCALE = 0.6
TOKENS = 4
P = 12
STATES = 16  # of the image encoder
PIPELINES = {"sd1": ("sd1", diffusers.StableDiffusionPipeline), "plus": ("sd1", diffusers.StableDiffusionPipeline),
             "sdxl": ("sdxl", diffusers.StableDiffusionXLPipeline)}


class Resampler(torch.nn.Module):
    """Nothing but the published names and shapes; diffusers takes four layers and heads of 64 channels."""

    def __init__(self, width, own=8, inner=128, tokens=6, mlp=32):
        super().__init__()
        nn = torch.nn
        self.latents = nn.Parameter(torch.empty(1, tokens, own))
        self.proj_in, self.proj_out = nn.Linear(STATES, own), nn.Linear(own, width)
        self.norm_out = nn.LayerNorm(width)
        self.layers = nn.ModuleList(nn.ModuleList([
            nn.ModuleDict({"norm1": nn.LayerNorm(own), "norm2": nn.LayerNorm(own),
                           "to_q": nn.Linear(own, inner, bias=False), "to_kv": nn.Linear(own, 2 * inner, bias=False),
                           "to_out": nn.Linear(inner, own, bias=False)}),
            nn.Sequential(nn.LayerNorm(own), nn.Linear(own, mlp, bias=False), nn.GELU(),
                          nn.Linear(mlp, own, bias=False))]) for _ in range(4))


def adapter_of(unet, seed, is_plus):
    """The two parts of a file. Keys count all attentions as attn_processors lists them."""
    width = unet.config.cross_attention_dim
    parts = Resampler(width) if is_plus else torch.nn.ModuleDict(
        {"proj": torch.nn.Linear(P, TOKENS * width), "norm": torch.nn.LayerNorm(width)})
    projection = randomised(parts, seed).state_dict()
    pairs = {}
    for number, name in enumerate(unet.attn_processors):
        if name.endswith("attn2.processor"):
            channels = unet.get_submodule(name.removesuffix(".processor")).to_q.out_features
            for key in ("to_k_ip", "to_v_ip"):
                linear = torch.nn.Linear(width, channels, bias=False)
                pairs[f"{number}.{key}.weight"] = randomised(linear, seed + len(pairs)).weight.detach()
    return {"image_proj": projection, "ip_adapter": pairs}


def one_pass(name, unet, tensors):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 4, 8, 8, generator=generator)
    t = torch.tensor([981.0, 37.0])
    text = torch.randn(2, 77, unet.config.cross_attention_dim, generator=generator)
    image = torch.cat([tensors[f"{name}.given"][:1], tensors[f"{name}.none"]])
    more = {"image_embeds": [image.unsqueeze(1)]}
    if name == "sdxl":
        pooled = unet.config.projection_class_embeddings_input_dim - 6 * unet.config.addition_time_embed_dim
        more["text_embeds"] = torch.randn(2, pooled, generator=generator)
        more["time_ids"] = torch.tensor([[64.0, 48.0, 4.0, 0.0, 64.0, 64.0], [64.0, 64.0, 0.0, 8.0, 64.0, 64.0]])
        tensors.update({"sdxl.pooled": more["text_embeds"], "sdxl.sizes": more["time_ids"]})
    out = unet(x, t, encoder_hidden_states=text, added_cond_kwargs=more).sample
    tensors.update({f"{name}.x": x, f"{name}.t": t, f"{name}.text": text, f"{name}.out": out})


def draw(pipeline, output_type):
    """Each prompt shown its own picture."""
    rows = []
    for i, picture in enumerate(PICTURES):
        noise = initial_noise(len(PROMPTS), 4, 8, 8)
        images = pipeline(PROMPTS, ip_adapter_image=picture, num_inference_steps=4, guidance_scale=7.5, latents=noise,
                          height=64, width=64, output_type=output_type).images
        rows.append(images[i:i + 1])
    return torch.cat(rows)


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    diffusers.logging.set_verbosity_error()
    shutil.rmtree(OUT, ignore_errors=True)
    config = transformers.CLIPVisionConfig(
        hidden_size=STATES, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2, image_size=24, patch_size=8,
        projection_dim=P, hidden_act="gelu")
    encoder = randomised(transformers.CLIPVisionModelWithProjection(config), 21)
    encoder.save_pretrained(OUT / "image_encoder")
    tensors = {}
    for seed, (name, (folder, kind)) in enumerate(PIPELINES.items()):
        pipeline = open_pipeline(kind, DATA / folder)
        adapter = adapter_of(pipeline.unet, 30 + 100 * seed, name == "plus")
        save_file({f"{part}.{key}": value.contiguous() for part, values in adapter.items()
                   for key, value in values.items()}, OUT / f"{name}.safetensors")
        if name == "sd1":
            torch.save(adapter, OUT / "sd1.bin")
        pipeline.load_ip_adapter(OUT, subfolder="", weight_name=f"{name}.safetensors")
        pipeline.set_ip_adapter_scale(SCALE)
        says = [pipeline.encode_image(picture, "cpu", 1, name == "plus") for picture in PICTURES]
        tensors[f"{name}.given"] = torch.cat([given for given, _ in says])
        tensors[f"{name}.none"] = says[0][1]
        one_pass(name, pipeline.unet, tensors)
        tensors[f"{name}.latents"] = draw(pipeline, "latent")
        tensors[f"{name}.pictures"] = draw(pipeline, "pt")[1:].half()
        pipeline.set_ip_adapter_scale(0.0)
        without = draw(pipeline, "latent")
        print(name, "the picture moves latents by", float((without - tensors[f"{name}.latents"]).norm() / without.norm()))
    tensor_file.save(OUT / "expected.safetensors", {k: v.contiguous() for k, v in tensors.items()},
                     {"diffusers": diffusers.__version__})


if __name__ == "__main__":
    main()
