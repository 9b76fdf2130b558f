#!/usr/bin/env python3
"""Writes tests/models/data/ltx_video*.safetensors: what diffusers' LTXVideoTransformer3DModel makes of formula.py's
weights, in float64 (its rotary positions in float32). Wants torch and diffusers. With names as arguments it writes
only those.

  forward.x_t, forward.t      [B, C, T, H, W], [B] of [0, 1]
  forward.fps                 [B]
  forward.text                [B, L, D], of which text_lengths[b] rows are read
  forward.text_lengths        I64 [B]
  forward.frame_mask          of ltx_video_given: I64 [B, T], 1 where noised; the others have the time 0
  forward.output              as x_t
  grad.KEY                    [2]: norm, and product with values(KEY), of the gradient of
                              sum(output * values("output")), KEY as diffusers has it
  grad.x_t, grad.text         gradients of the inputs

Of the metadata, `config` is config.json's text and `shapes` has the shape of each KEY. ltx_video_wide is one block as
wide as published, and ltx_video_names has the shapes of the published model alone.
"""

import json
import pathlib
import sys

import diffusers
import torch

import formula
import tensor_file

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests/models/data"
FRAME_COMPRESSION, COMPRESSION = 8, 32


def config(**changes):
    return {"in_channels": 5, "out_channels": 5, "num_attention_heads": 2, "attention_head_dim": 14,
            "cross_attention_dim": 28, "num_layers": 3, "caption_channels": 10} | changes


MODELS = {
    "ltx_video": (config(), (3, 3, 5), None),
    "ltx_video_given": (config(num_layers=2, attention_head_dim=12, cross_attention_dim=24), (3, 2, 3),
                        [[False, True, True], [True, True, True]]),
    "ltx_video_wide": (config(num_layers=1, num_attention_heads=32, attention_head_dim=64, cross_attention_dim=2048),
                       (2, 2, 3), None),
}


def run(name, config, size, noised):
    model = formula.fill(diffusers.LTXVideoTransformer3DModel(**config))
    batch, length = 2, 5
    shape = [batch, config["in_channels"], *size]
    lengths = torch.tensor([5, 2])
    x_t = (formula.values("x_t", shape) * 2).requires_grad_(True)
    text = (formula.values("text", [batch, length, config["caption_channels"]]) * 2).requires_grad_(True)
    t = torch.tensor([0.25, 0.875], dtype=torch.float64)
    fps = torch.tensor([25.0, 30.0])
    tensors, times = {}, t * 1000
    if noised is not None:
        mask = torch.tensor(noised)
        tensors["forward.frame_mask"] = mask.long()
        times = (times[:, None] * mask).repeat_interleave(size[1] * size[2], 1)
    output = model(
        x_t.flatten(2).transpose(1, 2), text, times, (torch.arange(length) < lengths[:, None]).long(), *size,
        rope_interpolation_scale=((FRAME_COMPRESSION / fps).view(-1, 1, 1, 1, 1), COMPRESSION, COMPRESSION)).sample
    output = output.transpose(1, 2).reshape(shape)
    (output * formula.values("output", output.shape)).sum().backward()
    tensors |= {"forward.x_t": x_t, "forward.t": t, "forward.fps": fps, "forward.text": text,
                "forward.text_lengths": lengths, "forward.output": output, "grad.x_t": x_t.grad,
                "grad.text": text.grad}
    tensors |= {"grad." + key: value for key, value in formula.probes(model).items()}
    path = DATA / (name + ".safetensors")
    metadata = {"kinora_fixture": "ltx_video", "version": "1",
                "config": json.dumps({"_class_name": type(model).__name__, **config}, separators=(",", ":")),
                "shapes": json.dumps({key: list(value.shape) for key, value in model.named_parameters()},
                                     separators=(",", ":"))}
    tensor_file.save(path, {key: value if value.dtype == torch.int64 else value.detach().float()
                            for key, value in tensors.items()}, metadata)
    print(path.name, path.stat().st_size, "bytes,", len(tensors), "tensors")


def write_names():
    """The shapes of the published transformer, that of 2 B parameters, by name."""
    with torch.device("meta"):
        model = diffusers.LTXVideoTransformer3DModel()
    path = DATA / "ltx_video_names.safetensors"
    tensor_file.save(path, {}, {
        "kinora_fixture": "ltx_video", "version": "1",
        "shapes": json.dumps({key: list(value.shape) for key, value in model.named_parameters()},
                             separators=(",", ":"))})
    print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or [*MODELS, "ltx_video_names"]:
        if name == "ltx_video_names":
            write_names()
        else:
            run(name, *MODELS[name])
