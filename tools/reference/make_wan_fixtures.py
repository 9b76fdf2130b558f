#!/usr/bin/env python3
"""Writes tests/models/data/wan*.safetensors: what diffusers' WanTransformer3DModel makes of
formula.py's weights, in float64. Wants torch and diffusers. With names as arguments it writes only
those.

  forward.x_t, forward.t      [B, C, T, H, W], [B] of [0, 1]
  forward.text                [B, L, D], of which text_lengths[b] rows are read, as many more as the model
                              has tokens being zeros
  forward.text_lengths        I64 [B]
  forward.frame_mask          of wan_given: I64 [B, T], 1 where noised; the others have the time 0
  forward.beside              of wan_image and wan_flf: [B, 4 + C, T, H, W], what is shown beside x_t
  forward.image               likewise: [B, M, image_dim], states of the given frames
  forward.output              as x_t
  grad.KEY                    [2]: norm, and product with values(KEY), of the gradient of
                              sum(output * values("output")), KEY as diffusers has it
  grad.x_t, grad.text, grad.image   gradients of the inputs

Of the metadata, `config` is config.json's text, `shapes` has the shape of each KEY and `text_tokens` is
the number of states that are attended to.
"""

import json
import pathlib
import sys

import diffusers
import torch

import formula
import tensor_file

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests/models/data"
TEXT_TOKENS = 7
PUBLISHED_TOKENS = 512


def config(**changes):
    return {"patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 14, "in_channels": 3,
            "out_channels": 3, "text_dim": 10, "freq_dim": 256, "ffn_dim": 40, "num_layers": 3,
            "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads", "eps": 1e-6,
            "rope_max_seq_len": 16} | changes


MODELS = {
    "wan": (config(), (3, 6, 10), None),
    "wan_given": (config(num_layers=2, attention_head_dim=12), (3, 4, 6),
                  [[False, True, True], [True, True, True]]),
    "wan_image": (config(num_layers=2, attention_head_dim=12, in_channels=10, image_dim=18, added_kv_proj_dim=24),
                  (3, 4, 6), None),
    "wan_flf": (config(num_layers=2, attention_head_dim=12, in_channels=10, image_dim=18, added_kv_proj_dim=24,
                       pos_embed_seq_len=10), (3, 4, 6), None),
}


def run(name, config, size, noised):
    model = formula.fill(diffusers.WanTransformer3DModel(**config))
    batch, length = 2, 5
    shape = [batch, config["out_channels"], *size]
    lengths = [5, 2]
    x_t = (formula.values("x_t", shape) * 2).requires_grad_(True)
    text = (formula.values("text", [batch, length, config["text_dim"]]) * 2).requires_grad_(True)
    t = torch.tensor([0.25, 0.875], dtype=torch.float64)
    tensors = {}
    times = t * 1000
    if noised is not None:
        mask = torch.tensor(noised)
        tensors["forward.frame_mask"] = mask.long()
        places = size[1] // 2 * (size[2] // 2)
        times = (times[:, None] * mask).repeat_interleave(places, 1)
    filled = torch.stack([torch.cat([row[:n], row.new_zeros(TEXT_TOKENS - n, row.shape[1])])
                          for row, n in zip(text, lengths)])
    beside = image = None
    if "image_dim" in config:
        beside = formula.values("beside", [batch, config["in_channels"] - config["out_channels"], *size])
        image = (formula.values("image", [batch, 10 if "pos_embed_seq_len" in config else 5,
                                          config["image_dim"]]) * 2).requires_grad_(True)
        tensors |= {"forward.beside": beside, "forward.image": image}
    # The class takes all but the last 512 states as those of images, whatever the text's length.
    filled = torch.cat([filled, filled.new_zeros(batch, PUBLISHED_TOKENS - TEXT_TOKENS, filled.shape[2])], 1) \
        if image is not None else filled
    # Of first and last frames it takes the states of each as a row.
    rows = image if "pos_embed_seq_len" not in config else image.view(2 * batch, -1, config["image_dim"])
    output = model(x_t if beside is None else torch.cat([x_t, beside], 1), times, filled, rows).sample
    (output * formula.values("output", output.shape)).sum().backward()
    tensors |= {"forward.x_t": x_t, "forward.t": t, "forward.text": text,
                "forward.text_lengths": torch.tensor(lengths), "forward.output": output,
                "grad.x_t": x_t.grad, "grad.text": text.grad}
    if image is not None:
        tensors["grad.image"] = image.grad
    tensors |= {"grad." + key: value for key, value in formula.probes(model).items()}
    path = DATA / (name + ".safetensors")
    metadata = {"kinora_fixture": "wan", "version": "1",
                "text_tokens": str(TEXT_TOKENS if image is None else PUBLISHED_TOKENS),
                "config": json.dumps({"_class_name": type(model).__name__, **config}, separators=(",", ":")),
                "shapes": json.dumps({key: list(value.shape) for key, value in model.named_parameters()},
                                     separators=(",", ":"))}
    tensor_file.save(path, {key: value if value.dtype == torch.int64 else value.detach().float()
                            for key, value in tensors.items()}, metadata)
    print(path.name, path.stat().st_size, "bytes,", len(tensors), "tensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or MODELS:
        run(name, *MODELS[name])
