#!/usr/bin/env python3
"""Writes tests/models/data/hunyuan_video_names.json: {"diffusers": {KEY: shape}, "authors": {KEY: shape}},
the tensors of HunyuanVideo's published transformer, 13 B parameters. Those of diffusers are its class';
those of the authors' file are what diffusers' converter of such files makes of them, which is checked here.
Wants torch and diffusers; no weights are made.
"""

import json
import pathlib

import torch
from diffusers import HunyuanVideoTransformer3DModel
from diffusers.loaders.single_file_utils import convert_hunyuan_video_transformer_to_diffusers

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests/models/data"
WIDTH, MLP, TEXT, POOLED, TIME, CHANNELS = 3072, 12288, 4096, 768, 256, 16


def authors():
    """Keys and shapes of mp_rank_00_model_states.pt, below "module"."""
    tensors = {}

    def linear(key, outputs, inputs):
        tensors[key + ".weight"] = [outputs, inputs]
        tensors[key + ".bias"] = [outputs]

    def mlp(key, inputs, names=("mlp.0", "mlp.2")):
        linear(f"{key}.{names[0]}", WIDTH, inputs)
        linear(f"{key}.{names[1]}", WIDTH, WIDTH)

    tensors["img_in.proj.weight"] = [WIDTH, CHANNELS, 1, 2, 2]
    tensors["img_in.proj.bias"] = [WIDTH]
    linear("txt_in.input_embedder", WIDTH, TEXT)
    mlp("txt_in.t_embedder", TIME)
    mlp("txt_in.c_embedder", TEXT, ("linear_1", "linear_2"))
    for i in range(2):
        block = f"txt_in.individual_token_refiner.blocks.{i}."
        for norm in ("norm1", "norm2"):
            tensors[block + norm + ".weight"] = [WIDTH]
            tensors[block + norm + ".bias"] = [WIDTH]
        linear(block + "self_attn_qkv", 3 * WIDTH, WIDTH)
        linear(block + "self_attn_proj", WIDTH, WIDTH)
        linear(block + "mlp.fc1", MLP, WIDTH)
        linear(block + "mlp.fc2", WIDTH, MLP)
        linear(block + "adaLN_modulation.1", 2 * WIDTH, WIDTH)
    mlp("time_in", TIME)
    mlp("vector_in", POOLED, ("in_layer", "out_layer"))
    mlp("guidance_in", TIME)
    for i in range(20):
        for stream in ("img", "txt"):
            block = f"double_blocks.{i}.{stream}_"
            linear(block + "mod.linear", 6 * WIDTH, WIDTH)
            linear(block + "attn_qkv", 3 * WIDTH, WIDTH)
            tensors[block + "attn_q_norm.weight"] = [128]
            tensors[block + "attn_k_norm.weight"] = [128]
            linear(block + "attn_proj", WIDTH, WIDTH)
            linear(block + "mlp.fc1", MLP, WIDTH)
            linear(block + "mlp.fc2", WIDTH, MLP)
    for i in range(40):
        block = f"single_blocks.{i}."
        linear(block + "linear1", 3 * WIDTH + MLP, WIDTH)
        linear(block + "linear2", WIDTH, WIDTH + MLP)
        tensors[block + "q_norm.weight"] = [128]
        tensors[block + "k_norm.weight"] = [128]
        linear(block + "modulation.linear", 3 * WIDTH, WIDTH)
    linear("final_layer.linear", 4 * CHANNELS, WIDTH)
    linear("final_layer.adaLN_modulation.1", 2 * WIDTH, WIDTH)
    return tensors


if __name__ == "__main__":
    with torch.device("meta"):
        model = HunyuanVideoTransformer3DModel()
        theirs = {key: list(value.shape) for key, value in model.state_dict().items()}
        own = {key: torch.empty(shape) for key, shape in authors().items()}
        made = convert_hunyuan_video_transformer_to_diffusers(dict(own))
    assert {key: list(value.shape) for key, value in made.items()} == theirs
    path = DATA / "hunyuan_video_names.json"
    path.write_text(json.dumps({"diffusers": theirs, "authors": authors()}, separators=(",", ":")) + "\n")
    print(path.name, path.stat().st_size, "bytes,", len(theirs), "and", len(authors()), "tensors")
