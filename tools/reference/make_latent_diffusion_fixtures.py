#!/usr/bin/env python3
"""Writes what latent diffusion's vector-quantised autoencoders are called and make in CompVis' code and in diffusers.

usage: make_latent_diffusion_fixtures.py FOLDER

FOLDER is CompVis/latent-diffusion, whose Encoder and Decoder name the tensors of single files. Its quantiser lies in
another repository; diffusers' VectorQuantizer is a copy of it. Wants torch and diffusers 0.42.

  tests/pipelines/data/vq_names.json        {NAME: {"config": config.json of diffusers, "diffusers": {key: shape},
                                            "compvis": {key: shape}}} of models/first_stage_models/NAME
  tests/pipelines/data/compvis_vq.safetensors
        "encode" [1, 4, 4, 6] and "decode" [1, 3, 8, 12], float64 rounded to fp32: what CompVis' code makes of
        values("x", [1, 3, 8, 12]) and values("z", [1, 4, 4, 6]) with weight(key) for each of its keys; the metadata
        "ddconfig" is its own
  tests/inference/data/latent_diffusion/drawn.safetensors
        "latents" [2, 3, 8, 8] and "pictures" F16 [2, 3, 32, 32] in [0, 1]: what diffusers' UNet2DConditionModel,
        VQModel and DDIMScheduler draw of the metadata's "labels" in 4 steps with guidance 3, as cin256-v2's notebook,
        from Kinora's noise of sample b, philox(SEED, b). Weights are weight(key of diffusers); class_token.weight
        is that of the classes, the last of which stands for none
"""

import json
import math
import pathlib
import sys
import types

import diffusers
import torch
from diffusers.models.autoencoders.vae import VectorQuantizer

import formula
import tensor_file
from philox import philox

TESTS = pathlib.Path(__file__).resolve().parents[2] / "tests"
SEED = 5
# models/first_stage_models/*/config.yaml: ddconfig, n_embed. All are of 256 pixels.
PUBLISHED = {
    "vq-f4": ({"z_channels": 3, "ch_mult": [1, 2, 4], "attn_resolutions": []}, 8192),
    "vq-f4-noattn": ({"z_channels": 3, "ch_mult": [1, 2, 4], "attn_resolutions": [], "attn_type": "none"}, 8192),
    "vq-f8": ({"z_channels": 4, "ch_mult": [1, 2, 2, 4], "attn_resolutions": [32]}, 16384),
    "vq-f8-n256": ({"z_channels": 4, "ch_mult": [1, 2, 2, 4], "attn_resolutions": [32]}, 256),
    "vq-f16": ({"z_channels": 8, "ch_mult": [1, 1, 2, 2, 4], "attn_resolutions": [16]}, 16384),
}


def originals(folder):
    """Encoder and Decoder. What they import beside torch is not called."""
    for name in ("einops", "ldm.util"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["einops"].rearrange = sys.modules["einops"].repeat = None
    sys.modules["ldm.util"].instantiate_from_config = None
    sys.path.insert(0, folder)
    from ldm.modules.diffusionmodules.model import Decoder, Encoder
    return Encoder, Decoder


class Interface(torch.nn.Module):
    """VQModelInterface of ldm/models/autoencoder.py, whose module trains it, too."""

    def __init__(self, parts, ddconfig, n_embed):
        super().__init__()
        encoder, decoder = parts
        width = ddconfig["z_channels"]  # embed_dim is as much in all of them
        self.encoder, self.decoder = encoder(**ddconfig), decoder(**ddconfig)
        self.quantize = VectorQuantizer(n_embed, width, beta=0.25)
        self.quant_conv = torch.nn.Conv2d(width, width, 1)
        self.post_quant_conv = torch.nn.Conv2d(width, width, 1)

    def encode(self, x):
        return self.quant_conv(self.encoder(x))

    def decode(self, h):
        return self.decoder(self.post_quant_conv(self.quantize(h)[0]))


def diffusers_config(ddconfig, n_embed):
    mult = ddconfig["ch_mult"]
    attends = [ddconfig["resolution"] >> level in ddconfig["attn_resolutions"] for level in range(len(mult))]
    return {"block_out_channels": [ddconfig["ch"] * factor for factor in mult],
            "down_block_types": ["AttnDownEncoderBlock2D" if a else "DownEncoderBlock2D" for a in attends],
            "up_block_types": ["AttnUpDecoderBlock2D" if a else "UpDecoderBlock2D" for a in reversed(attends)],
            "latent_channels": ddconfig["z_channels"], "layers_per_block": ddconfig["num_res_blocks"],
            "mid_block_add_attention": ddconfig.get("attn_type") != "none", "num_vq_embeddings": n_embed,
            "scaling_factor": 1.0}


def shapes(model):
    return {key: list(value.shape) for key, value in model.state_dict().items()}


def write_names(parts):
    tables = {}
    for name, (own, n_embed) in PUBLISHED.items():
        ddconfig = {"ch": 128, "num_res_blocks": 2, "in_channels": 3, "out_ch": 3, "resolution": 256,
                    "double_z": False} | own
        config = diffusers_config(ddconfig, n_embed)
        with torch.device("meta"):
            theirs, model = Interface(parts, ddconfig, n_embed), diffusers.VQModel(**config)
        assert len(shapes(theirs)) == len(shapes(model))
        tables[name] = {"config": {"_class_name": "VQModel", **config}, "diffusers": shapes(model),
                        "compvis": shapes(theirs)}
    path = TESTS / "pipelines/data/vq_names.json"
    rows = [f"{json.dumps(name)}: {{" + ",\n".join(
        f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in table.items()) + "}"
        for name, table in tables.items()]
    path.write_text("{" + ",\n".join(rows) + "}\n")
    print(path.name, path.stat().st_size, "bytes,", {name: len(table["compvis"]) for name, table in tables.items()})


def write_compvis(parts):
    ddconfig = {"ch": 32, "ch_mult": [1, 2], "num_res_blocks": 1, "attn_resolutions": [4], "in_channels": 3,
                "out_ch": 3, "resolution": 8, "z_channels": 4, "double_z": False}
    model = formula.fill(Interface(parts, ddconfig, 40))
    with torch.no_grad():
        tensors = {"encode": model.encode(formula.values("x", [1, 3, 8, 12])).float(),
                   "decode": model.decode(formula.values("z", [1, 4, 4, 6])).float()}
    path = TESTS / "pipelines/data/compvis_vq.safetensors"
    tensor_file.save(path, tensors, {"kinora_fixture": "compvis_vq", "version": "1", "ddconfig": json.dumps(ddconfig)})
    print(path.name, path.stat().st_size, "bytes")


def write_drawn():
    unet = formula.fill(diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=3, out_channels=3, block_out_channels=(32, 64), layers_per_block=1,
        cross_attention_dim=8, attention_head_dim=1, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"))).float()
    vae = formula.fill(diffusers.VQModel(
        block_out_channels=(32, 32, 64), down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3, layers_per_block=1, num_vq_embeddings=64, scaling_factor=1.0)).float()
    scheduler = diffusers.DDIMScheduler(beta_start=0.0015, beta_end=0.0195, beta_schedule="scaled_linear",
                                        clip_sample=False, set_alpha_to_one=False, steps_offset=1)
    labels, null, guidance = [7, 0], 10, 3.0
    token = formula.weight("class_token.weight", [null + 1, 8]).float()
    states = token[torch.tensor(labels + [null] * len(labels))].unsqueeze(1)
    latents = torch.stack([philox(SEED, b, math.prod((3, 8, 8))).reshape(3, 8, 8) for b in range(len(labels))])
    scheduler.set_timesteps(4)
    with torch.no_grad():
        for t in scheduler.timesteps:
            given, without = unet(torch.cat([latents] * 2), t, states).sample.chunk(2)
            latents = scheduler.step(without + guidance * (given - without), t, latents).prev_sample
        pictures = (vae.decode(latents / vae.config.scaling_factor).sample / 2 + 0.5).clamp(0, 1)
    folder = TESTS / "inference/data/latent_diffusion"
    folder.mkdir(exist_ok=True)
    tensor_file.save(folder / "drawn.safetensors", {"latents": latents, "pictures": pictures.half()},
                     {"kinora_fixture": "pipeline", "version": "1", "seed": str(SEED), "labels": json.dumps(labels)})
    codes = vae.quantize(latents)[2][2]
    print("latents' deviation", float(latents.std()), "pictures'", float(pictures.std()), "clamped",
          float(((pictures == 0) | (pictures == 1)).float().mean()), "codes", len(codes.unique()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    made = originals(sys.argv[1])
    write_names(made)
    write_compvis(made)
    write_drawn()
