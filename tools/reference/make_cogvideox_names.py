#!/usr/bin/env python3
"""Writes tests/models/data/cogvideox_names.json: of each published transformer of CogVideoX its config.json, how many
numbers it has, and the keys and shapes of its tensors: "tensors" outside of the blocks, "block" of each of these.
They are those of diffusers' class. Wants torch and diffusers; no weights are made.
"""

import json
import math
import pathlib

import torch
from diffusers import CogVideoXTransformer3DModel

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests/models/data"
ROTARY = {"num_attention_heads": 48, "num_layers": 42, "use_rotary_positional_embeddings": True}
SHOWN = {"in_channels": 32}
LATER = ROTARY | {"patch_size_t": 2, "patch_bias": False, "sample_frames": 81, "sample_height": 300, "sample_width": 300}
PUBLISHED = {"2B": {}, "5B": ROTARY, "5B-I2V": ROTARY | SHOWN | {"use_learned_positional_embeddings": True},
             "1.5-5B": LATER, "1.5-5B-I2V": LATER | SHOWN | {"ofs_embed_dim": 512}}


def described(config):
    with torch.device("meta"):
        model = CogVideoXTransformer3DModel(**config)
    outside, blocks = {}, {}
    for key, value in model.state_dict().items():
        if key.startswith("transformer_blocks."):
            _, number, rest = key.split(".", 2)
            blocks.setdefault(number, {})[rest] = list(value.shape)
        else:
            outside[key] = list(value.shape)
    assert len(blocks) == model.config.num_layers and all(block == blocks["0"] for block in blocks.values())
    return {"config": config, "numbers": sum(math.prod(p.shape) for p in model.parameters()), "tensors": outside,
            "block": blocks["0"]}


if __name__ == "__main__":
    table = {name: described(config) for name, config in PUBLISHED.items()}
    path = DATA / "cogvideox_names.json"
    path.write_text(json.dumps(table, separators=(",", ":")) + "\n")
    print(path.name, path.stat().st_size, "bytes", {name: its["numbers"] for name, its in table.items()})
