#!/usr/bin/env python3
"""Writes tests/models/data/compvis_unets.json: what the tensors of U-Nets are called in files of CompVis and of
diffusers, and their shapes there.

usage: make_compvis_fixtures.py FOLDER

FOLDER is Stability-AI/stablediffusion, whose UNetModel names and shapes those of CompVis. Which is which
diffusers' own conversion says (single_file_utils.convert_ldm_unet_checkpoint), and its UNet2DConditionModel
has the shapes of diffusers. No model gets values. Wants torch and diffusers.

  {NAME: {"config": config.json's text of diffusers, "tensors": [[key of CompVis, its shape, key of diffusers, its shape], ...]}}
"""

import json
import pathlib
import sys
import types

import torch

PREFIX = "model.diffusion_model."
# configs/stable-diffusion/*.yaml, and a small one that has all that those lack.
SD = {"in_channels": 4, "out_channels": 4, "model_channels": 320, "attention_resolutions": [4, 2, 1],
      "num_res_blocks": 2, "channel_mult": [1, 2, 4, 4], "transformer_depth": 1}
MODELS = {
    "sd1": SD | {"num_heads": 8, "context_dim": 768},
    "sd2": SD | {"num_head_channels": 64, "context_dim": 1024, "use_linear_in_transformer": True},
    "deep": {"in_channels": 3, "out_channels": 6, "model_channels": 64, "attention_resolutions": [2, 4],
             "num_res_blocks": 1, "channel_mult": [1, 2, 3], "transformer_depth": 2, "num_head_channels": 64,
             "context_dim": 24, "use_linear_in_transformer": True},
}


def original(folder):
    """The class of the original. What it imports beside torch is not called while it is made."""
    for name in ("einops", "omegaconf"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["einops"].rearrange = sys.modules["einops"].repeat = None
    sys.modules["omegaconf"].ListConfig = list
    sys.modules["omegaconf.listconfig"] = sys.modules["omegaconf"]
    sys.path.insert(0, folder)
    from ldm.modules.diffusionmodules.openaimodel import UNetModel
    return UNetModel


def diffusers_config(params):
    mult = params["channel_mult"]
    attends = [2**level in params["attention_resolutions"] for level in range(len(mult))]
    channels = [params["model_channels"] * factor for factor in mult]
    heads = [c // params["num_head_channels"] for c in channels] if "num_head_channels" in params else params["num_heads"]
    return {"in_channels": params["in_channels"], "out_channels": params["out_channels"],
            "block_out_channels": channels, "layers_per_block": params["num_res_blocks"],
            "cross_attention_dim": params["context_dim"], "attention_head_dim": heads,
            "transformer_layers_per_block": params["transformer_depth"],
            "use_linear_projection": params.get("use_linear_in_transformer", False),
            "down_block_types": ["CrossAttnDownBlock2D" if a else "DownBlock2D" for a in attends],
            "up_block_types": ["CrossAttnUpBlock2D" if a else "UpBlock2D" for a in reversed(attends)]}


def table(unet_class, params):
    from diffusers import UNet2DConditionModel
    from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint
    config = diffusers_config(params)
    contexts = {"context_dim": [params["context_dim"]] * params["transformer_depth"]}  # of each block
    with torch.device("meta"):
        theirs = unet_class(image_size=32, use_spatial_transformer=True, use_checkpoint=False, legacy=False,
                            **params | contexts).state_dict()
        model = UNet2DConditionModel(**config)
    theirs = {PREFIX + key: value for key, value in theirs.items()}
    keys = {id(value): key for key, value in theirs.items()}
    converted = convert_ldm_unet_checkpoint(theirs, model.config)
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    assert {key: value.shape for key, value in converted.items()} == shapes
    assert len(theirs) == len(shapes)
    rows = [[keys[id(value)], list(value.shape), key, list(shapes[key])] for key, value in converted.items()]
    return {"config": json.dumps({"_class_name": "UNet2DConditionModel", **config}, separators=(",", ":")),
            "tensors": sorted(rows)}


if __name__ == "__main__":
    unet = original(sys.argv[1])
    tables = {name: table(unet, params) for name, params in MODELS.items()}
    path = pathlib.Path(__file__).resolve().parents[2] / "tests/models/data/compvis_unets.json"
    lines = []
    for name, one in tables.items():
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in one["tensors"])
        lines.append(f'{json.dumps(name)}: {{"config": {json.dumps(one["config"])}, "tensors": [\n{rows}]}}')
    path.write_text("{" + ",\n".join(lines) + "}\n")
    print(path.name, path.stat().st_size, "bytes,", {name: len(one["tensors"]) for name, one in tables.items()})
