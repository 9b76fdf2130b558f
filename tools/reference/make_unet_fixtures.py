#!/usr/bin/env python3
"""Writes tests/models/data/unet_*.safetensors: what diffusers' UNet2DConditionModel and UNet2DModel make of
formula.py's weights, in float64. Wants torch and diffusers. With names as arguments it writes only those.

  forward.x_t, forward.t, forward.text      [B, C, H, W], [B], [B, L, D]
  forward.text_lengths                      I64 [B], where padding is masked
  forward.output                            [B, out, H, W]
  grad.KEY                                  [2]: norm, and product with values(KEY), of the gradient of
                                            sum(output * values("output"))
  grad.x_t, grad.text                       gradients of the inputs
Of a model of classes, whose text is their token or zeros
  forward.labels                            I64 [B]
A UNet2DModel has no text, and labels where it is told classes. Kinora has its to_q, to_k and to_v in one,
qkv, one behind the other, and so has the file.
Of a model that reads sizes also
  forward.pooled, forward.time_ids          [B, P], [B, 6] or with a score [B, 5]
  grad.pooled                               its gradient

Of the metadata, `config` is config.json's text.
"""

import json
import pathlib
import sys

import diffusers
import torch

import formula
import tensor_file

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests/models/data"
ATTENDS = ("CrossAttnDownBlock2D", "CrossAttnUpBlock2D")
PLAIN = ("DownBlock2D", "UpBlock2D")
ATTENDS_TO_PLACES = ("AttnDownBlock2D", "AttnUpBlock2D")


def tiny(depths, **changes):
    """A U-Net whose levels have so many transformer blocks."""
    kinds = [ATTENDS if depth else PLAIN for depth in depths]
    sizes = {"sample_size": 8, "block_out_channels": [16, 32, 48][: len(depths)], "layers_per_block": 2,
             "norm_num_groups": 8, "cross_attention_dim": 10,
             "transformer_layers_per_block": [max(depth, 1) for depth in depths],
             "down_block_types": [down for down, _ in kinds],
             "up_block_types": [up for _, up in reversed(kinds)]}
    return sizes | changes


def places(attends, **changes):
    """A UNet2DModel whose levels attend so."""
    kinds = [ATTENDS_TO_PLACES if level else PLAIN for level in attends]
    sizes = {"sample_size": 8, "block_out_channels": [16, 32, 48][: len(attends)], "layers_per_block": 2,
             "norm_num_groups": 8, "down_block_types": [down for down, _ in kinds],
             "up_block_types": [up for _, up in reversed(kinds)]}
    return sizes | changes


MODELS = {
    # Stable Diffusion 1's form, at a size that does not halve evenly.
    "unet_sd1": (tiny([1, 1, 0], attention_head_dim=4), (9, 14), False),
    # Stable Diffusion 2's form, with padding that is not read; no residual block but one a level.
    "unet_sd2": (tiny([1, 0], attention_head_dim=[2, 4], use_linear_projection=True, layers_per_block=1,
                      in_channels=3, out_channels=6, norm_eps=1e-3), (4, 6), True),
    # The depths of SDXL's levels, without what else it reads.
    "unet_deep": (tiny([0, 1, 2], attention_head_dim=[2, 4, 8], use_linear_projection=True,
                       layers_per_block=1), (8, 8), False),
    # SDXL's base and refiner.
    "unet_sdxl": (tiny([0, 1, 2], attention_head_dim=[2, 4, 8], use_linear_projection=True, layers_per_block=1,
                       addition_embed_type="text_time", addition_time_embed_dim=6,
                       projection_class_embeddings_input_dim=7 + 6 * 6), (8, 8), False),
    "unet_refiner": (tiny([0, 2, 0], attention_head_dim=[2, 4, 8], use_linear_projection=True, layers_per_block=1,
                          transformer_layers_per_block=2, addition_embed_type="text_time", addition_time_embed_dim=6,
                          projection_class_embeddings_input_dim=7 + 5 * 6), (7, 8), False),
    # Classes that are a token, as latent diffusion's cin256, and that are added to the time.
    "unet_class_token": (tiny([0, 1], attention_head_dim=1), (6, 8), False),
    "unet_class_time": (tiny([1, 0], attention_head_dim=4, num_class_embeds=6), (6, 8), False),
    # Latent diffusion's of faces and rooms; DDPM's of pixels; one that is told classes.
    "unet_places": (places([False, True, True], attention_head_dim=8), (12, 20), False),
    "unet_pixels": (places([True, False], attention_head_dim=None, downsample_padding=0, flip_sin_to_cos=False,
                           freq_shift=1, norm_eps=1e-6, layers_per_block=1), (6, 10), False),
    "unet_places_class": (places([True, True], attention_head_dim=4, num_class_embeds=6, add_attention=False,
                                 out_channels=6, layers_per_block=1), (14, 6), False),
}
# lsun_churches256's residual blocks, which change sizes and are scaled by the time.
MODELS["unet_places_scaled"] = (places([True, True, False], attention_head_dim=8, layers_per_block=1,
                                       resnet_time_scale_shift="scale_shift", downsample_type="resnet",
                                       upsample_type="resnet", attn_norm_num_groups=8) | {
    "down_block_types": ["AttnDownBlock2D", "AttnDownBlock2D", "ResnetDownsampleBlock2D"],
    "up_block_types": ["ResnetUpsampleBlock2D", "AttnUpBlock2D", "AttnUpBlock2D"]}, (8, 12), False)
POOLED = 7
CLASSES = 5  # and the null class


def fill_places(model):
    """formula.fill(), of what Kinora has in one as it has it. Returns the parts of each of those."""
    formula.fill(model)
    joined = {}
    parameters = dict(model.named_parameters())
    for name in parameters:
        if ".to_q." in name:
            joined[name.replace("to_q", "qkv")] = [parameters[name.replace("to_q", f"to_{x}")] for x in "qkv"]
    with torch.no_grad():
        for name, parts in joined.items():
            shape = [3 * parts[0].shape[0], *parts[0].shape[1:]]
            for part, value in zip(parts, formula.weight(name, shape).chunk(3)):
                part.copy_(value)
    return joined


def run_places(name, config, size):
    """The same of a UNet2DModel."""
    model = diffusers.UNet2DModel(**config)
    joined = fill_places(model)
    x_t = (formula.values("x_t", [2, model.config.in_channels, *size]) * 2).requires_grad_(True)
    t = torch.tensor([3.0, 807.0], dtype=torch.float64)
    labels = torch.tensor([3, CLASSES]) if model.config.num_class_embeds else None
    output = model(x_t, t, labels).sample
    (output * formula.values("output", output.shape)).sum().backward()
    tensors = {"forward.x_t": x_t.detach(), "forward.t": t, "forward.output": output, "grad.x_t": x_t.grad}
    if labels is not None:
        tensors["forward.labels"] = labels
    of_parts = {id(part) for parts in joined.values() for part in parts}
    grads = {key: value.grad for key, value in model.named_parameters() if id(value) not in of_parts}
    grads |= {key: torch.cat([part.grad for part in parts]) for key, parts in joined.items()}
    for key, grad in grads.items():
        tensors["grad." + key] = torch.stack([grad.norm(), (grad * formula.values(key, grad.shape)).sum()])
    save(name, "UNet2DModel", model, tensors)


def save(name, class_name, model, tensors):
    path = DATA / (name + ".safetensors")
    metadata = {"kinora_fixture": "unet", "version": "1", "config": json.dumps(
        {"_class_name": class_name, **dict(model.config)}, separators=(",", ":"))}
    tensor_file.save(path, {key: value if value.dtype == torch.int64 else value.float()
                            for key, value in tensors.items()}, metadata)
    print(path.name, path.stat().st_size, "bytes,", len(tensors), "tensors")


def run(name, config, size, masked):
    if "AttnDownBlock2D" in config["down_block_types"]:
        run_places(name, config, size)
        return
    model = formula.fill(diffusers.UNet2DConditionModel(**config))
    batch, length = 2, 5
    x_t = formula.values("x_t", [batch, model.config.in_channels, *size]) * 2
    text = formula.values("text", [batch, length, model.config.cross_attention_dim]) * 2
    t = torch.tensor([3.0, 807.0], dtype=torch.float64)
    tensors = {"forward.x_t": x_t, "forward.t": t, "forward.text": text}
    mask = None
    if masked:
        lengths = torch.tensor([2, 5])
        tensors["forward.text_lengths"] = lengths
        mask = (torch.arange(length) < lengths.unsqueeze(1)).double()
    of_classes = {}
    token = None
    if name.startswith("unet_class_"):
        del tensors["forward.text"]
        labels = tensors["forward.labels"] = torch.tensor([3, CLASSES])
        text = torch.zeros([batch, 1, text.shape[2]], dtype=text.dtype)
        if model.config.num_class_embeds:
            of_classes = {"class_labels": labels}
        else:
            token = torch.nn.Embedding(CLASSES + 1, text.shape[2], dtype=text.dtype)
            holder = torch.nn.Module()
            holder.class_token = token
            formula.fill(holder)
            text = token(labels)[:, None]
    x_t.requires_grad_(True)
    if not name.startswith("unet_class_"):
        text.requires_grad_(True)
    added = {}
    if model.config.addition_embed_type:
        numbers = (model.config.projection_class_embeddings_input_dim - POOLED) // 6
        sizes = [[9.0, 31.0, 0.0, 3.0, 8.0, 8.0], [64.0, 48.0, 5.0, 0.0, 6.0, 7.0]]
        added = {"text_embeds": (formula.values("pooled", [batch, POOLED]) * 2).requires_grad_(True),
                 "time_ids": torch.tensor(sizes, dtype=torch.float64)[:, :numbers]}
        tensors |= {"forward.pooled": added["text_embeds"].detach(), "forward.time_ids": added["time_ids"]}
    output = model(x_t, t, text, encoder_attention_mask=mask, added_cond_kwargs=added or None, **of_classes).sample
    (output * formula.values("output", output.shape)).sum().backward()
    tensors["forward.output"] = output
    tensors |= {"grad." + key: value for key, value in formula.probes(model).items()}
    tensors["grad.x_t"] = x_t.grad
    if token is not None:
        tensors |= {"grad." + key: value for key, value in formula.probes(holder).items()}
    if not name.startswith("unet_class_"):
        tensors["grad.text"] = text.grad
    if added:
        tensors["grad.pooled"] = added["text_embeds"].grad
    save(name, "UNet2DConditionModel", model, tensors)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or MODELS:
        run(name, *MODELS[name])
