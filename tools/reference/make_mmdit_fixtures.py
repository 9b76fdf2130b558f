#!/usr/bin/env python3
"""Writes tests/models/data/mmdit_*.safetensors: what diffusers' SD3Transformer2DModel,
FluxTransformer2DModel and HunyuanVideoTransformer3DModel make of formula.py's weights, in float64, and
cogvideox*.safetensors of CogVideoXTransformer3DModel. Wants torch and diffusers. With names as arguments it
writes only those.

  forward.x_t, forward.t              [B, C, H, W] (of clips [B, C, T, H, W]), [B] of [0, 1]
  forward.text, forward.pooled        [B, L, D], [B, P]
  forward.text_lengths                of mmdit_hunyuan*: I64 [B], how many of a caption's tokens are read
  forward.beside                      of cogvideox_*i2v: latents beside x_t; of mmdit_flux_fill and
                                      mmdit_hunyuan_shown channels behind its own, of mmdit_flux_kontext latents of another size as further tokens, and of
                                      mmdit_*_references two such, [B, C, 2, H, W]
  forward.given, forward.frame_mask   of mmdit_given: [B, C, T, H, W], I64 [B, T], 1 where noised; of
                                      mmdit_hunyuan_clean the mask alone
  forward.output                      as x_t
  grad.KEY                            [2]: norm, and product with values(KEY), of the gradient of
                                      sum(output * values("output")), KEY as diffusers has it
  grad.x_t, grad.text, grad.pooled    gradients of the inputs

Of the metadata, `config` is config.json's text and `shapes` has the shape of each KEY. mmdit_given is
Open-Sora 2's form: Flux' blocks over a clip, and `cond_in`, a linear of the given frames' mask and values,
added to the embedded patches.
"""

import json
import pathlib
import sys

import diffusers
import torch

import formula
import tensor_file

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests/models/data"


def sd3(**changes):
    return {"sample_size": 8, "patch_size": 2, "in_channels": 3, "out_channels": 3, "num_layers": 3,
            "attention_head_dim": 8, "num_attention_heads": 2, "joint_attention_dim": 10,
            "caption_projection_dim": 16, "pooled_projection_dim": 6, "pos_embed_max_size": 9} | changes


def flux(**changes):
    return {"patch_size": 1, "in_channels": 12, "num_layers": 2, "num_single_layers": 2,
            "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 10,
            "pooled_projection_dim": 6, "guidance_embeds": False, "axes_dims_rope": (4, 6, 6)} | changes


def hunyuan(**changes):
    return {"in_channels": 3, "out_channels": 3, "num_layers": 2, "num_single_layers": 2, "num_refiner_layers": 2,
            "attention_head_dim": 16, "num_attention_heads": 3, "text_embed_dim": 10,
            "pooled_projection_dim": 6, "rope_axes_dim": (4, 6, 6)} | changes


MODELS = {
    "mmdit_sd3": (sd3(), (10, 6)),
    "mmdit_sd35": (sd3(qk_norm="rms_norm", dual_attention_layers=(0, 1)), (8, 12)),
    "mmdit_flux": (flux(), (6, 10)),
    "mmdit_flux_dev": (flux(guidance_embeds=True), (8, 4)),
    "mmdit_given": (flux(), (6, 4)),
    # A mask of 2 x 2 pixels a latent.
    "mmdit_flux_fill": (flux(in_channels=12 + 12 + 16, out_channels=12, num_single_layers=1), (6, 8)),
    "mmdit_flux_kontext": (flux(guidance_embeds=True, num_single_layers=1), (6, 8)),
    "mmdit_flux_references": (flux(num_single_layers=1), (6, 8)),
    "mmdit_clip_references": (flux(num_single_layers=1), (6, 4)),
    "mmdit_hunyuan": (hunyuan(), (6, 10)),
    "mmdit_hunyuan_undistilled": (hunyuan(num_layers=1, num_refiner_layers=1, guidance_embeds=False,
                                          mlp_ratio=2.0, rope_theta=1000.0), (10, 6)),
    # Heads, positions and widths of a head as published.
    "mmdit_hunyuan_heads": (hunyuan(num_layers=1, num_single_layers=1, num_refiner_layers=1,
                                    attention_head_dim=128, num_attention_heads=1,
                                    rope_axes_dim=(16, 56, 56)), (6, 6)),
    # Shown a first frame in the clip, or beside it.
    "mmdit_hunyuan_clean": (hunyuan(num_layers=1, image_condition_type="token_replace"), (6, 8)),
    "mmdit_hunyuan_shown": (hunyuan(num_layers=1, num_single_layers=1, in_channels=7, guidance_embeds=False,
                                    image_condition_type="latent_concat"), (6, 4)),
}


BESIDE = {"mmdit_flux_fill": [7, 6, 8], "mmdit_flux_kontext": [3, 4, 10], "mmdit_flux_references": [3, 2, 4, 10],
          "mmdit_clip_references": [3, 2, 4, 6], "mmdit_hunyuan_shown": [4, 3, 6, 4]}


def cogvideox(**changes):
    return {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 3, "out_channels": 3,
            "time_embed_dim": 12, "text_embed_dim": 10, "num_layers": 2, "sample_width": 12, "sample_height": 8,
            "sample_frames": 9, "max_text_seq_length": 5} | changes


ROTARY = {"use_rotary_positional_embeddings": True}
SHOWN = ROTARY | {"in_channels": 6}
# With latent frames, rows and columns of x_t.
COGVIDEOX = {
    "cogvideox_2b": (cogvideox(spatial_interpolation_scale=1.5, temporal_interpolation_scale=2.0), (3, 10, 6)),
    "cogvideox_5b": (cogvideox(**ROTARY), (2, 6, 14)),
    "cogvideox_5b_i2v": (cogvideox(use_learned_positional_embeddings=True, **SHOWN), (3, 8, 12)),
    "cogvideox_15": (cogvideox(patch_size_t=2, patch_bias=False, **ROTARY), (4, 6, 10)),
    "cogvideox_15_i2v": (cogvideox(patch_size_t=2, patch_bias=False, ofs_embed_dim=12, **SHOWN), (2, 8, 12)),
    # A block as wide as published.
    "cogvideox_wide": (cogvideox(num_attention_heads=30, attention_head_dim=64, num_layers=1, time_embed_dim=512),
                       (1, 2, 4)),
}
OFS = 2.0
GUIDANCE = 3.5
FRAMES = 3


def packed(clip):
    """[B, C, T, H, W] in patches of 2 x 2: [B, T H W / 4, 4 C], channels outermost."""
    b, c, t, h, w = clip.shape
    return clip.view(b, c, t, h // 2, 2, w // 2, 2).permute(0, 2, 3, 5, 1, 4, 6).reshape(b, t * h * w // 4, 4 * c)


def unpacked(tokens, shape):
    b, c, t, h, w = shape
    return tokens.view(b, t, h // 2, w // 2, c, 2, 2).permute(0, 4, 1, 2, 5, 3, 6).reshape(shape)


def position_ids(clip, first=0):
    return torch.cartesian_prod(torch.arange(first, first + clip.shape[2]), torch.arange(clip.shape[3] // 2),
                                torch.arange(clip.shape[4] // 2)).double()


def run_flux(model, x_t, t, text, pooled, given, beside):
    clip = x_t if x_t.dim() == 5 else x_t.unsqueeze(2)
    ids = position_ids(clip)
    tokens = packed(clip)
    if beside is not None:
        beside = beside if beside.dim() == 5 else beside.unsqueeze(2)
        shown = packed(beside)
        if model.config.out_channels:  # FluxFillPipeline's
            tokens = torch.cat([tokens, shown], 2)
        else:  # FluxKontextPipeline's, of several pictures those behind the first in frames 2, 3, ...
            tokens = torch.cat([tokens, shown], 1)
            places = position_ids(beside, 1)
            if x_t.dim() == 5:  # of clips -1, -2, ...
                places[:, 0] *= -1
            ids = torch.cat([ids, places])
    hook = None
    if given is not None:
        frames, mask = given
        is_given = (~mask).double()[:, None, :, None, None].expand_as(frames[:, :1])
        beside = model.cond_in(packed(torch.cat([is_given, frames * is_given], 1)))
        hook = model.x_embedder.register_forward_hook(lambda module, inputs, output: output + beside)
    guidance = torch.full_like(t, GUIDANCE) if model.config.guidance_embeds else None
    output = model(tokens, text, pooled, t, ids, torch.zeros(text.shape[1], 3), guidance).sample
    output = output[:, :packed(clip).shape[1]]
    if hook is not None:
        hook.remove()
    return unpacked(output, clip.shape).view_as(x_t)


def run(name, config, size):
    is_flux = "axes_dims_rope" in config
    is_hunyuan = "rope_axes_dim" in config
    model = (diffusers.HunyuanVideoTransformer3DModel if is_hunyuan else
             diffusers.FluxTransformer2DModel if is_flux else diffusers.SD3Transformer2DModel)(**config)
    batch, length = 2, 5
    width = config["text_embed_dim" if is_hunyuan else "joint_attention_dim"]
    shape = [batch, 3, *size]
    given = beside = None
    tensors = {}
    if name == "mmdit_given":
        model.cond_in = torch.nn.Linear(16, config["num_attention_heads"] * config["attention_head_dim"])
        shape.insert(2, FRAMES)
        mask = torch.tensor([[False, True, True], [True, True, False]])
        given = (formula.values("given", shape) * 2, mask)
        tensors |= {"forward.given": given[0], "forward.frame_mask": mask.long()}
    if name in BESIDE:
        beside = formula.values("beside", [batch, *BESIDE[name]])
        tensors["forward.beside"] = beside
    if name == "mmdit_clip_references":
        shape.insert(2, FRAMES)
    if is_hunyuan:
        shape.insert(2, FRAMES)
        lengths = torch.tensor([3, 5])
        tensors["forward.text_lengths"] = lengths
    if name == "mmdit_hunyuan_clean":
        tensors["forward.frame_mask"] = torch.tensor([[0, 1, 1], [0, 1, 1]])
    formula.fill(model)
    x_t = (formula.values("x_t", shape) * 2).requires_grad_(True)
    text = (formula.values("text", [batch, length, width]) * 2).requires_grad_(True)
    pooled = (formula.values("pooled", [batch, config["pooled_projection_dim"]]) * 2).requires_grad_(True)
    t = torch.tensor([0.25, 0.875], dtype=torch.float64)
    if is_hunyuan:
        guidance = torch.full_like(t, 1000 * GUIDANCE) if config.get("guidance_embeds", True) else None
        mask = (torch.arange(length) < lengths[:, None]).long()
        clip = x_t if beside is None else torch.cat([x_t, beside], 1)
        output = model(clip, t * 1000, text, mask, pooled, guidance).sample  # its positions are fp32
    elif is_flux:
        output = run_flux(model, x_t, t, text, pooled, given, beside)
    else:
        output = model(x_t, text, pooled, t * 1000).sample
    (output * formula.values("output", output.shape)).sum().backward()
    tensors |= {"forward.x_t": x_t, "forward.t": t, "forward.text": text, "forward.pooled": pooled,
                "forward.output": output, "grad.x_t": x_t.grad, "grad.text": text.grad,
                "grad.pooled": pooled.grad}
    tensors |= {"grad." + key: value for key, value in formula.probes(model).items()}
    path = DATA / (name + ".safetensors")
    metadata = {"kinora_fixture": "mmdit", "version": "1",
                "config": json.dumps({"_class_name": type(model).__name__, **config}, separators=(",", ":")),
                "shapes": json.dumps({key: list(value.shape) for key, value in model.named_parameters()},
                                     separators=(",", ":"))}
    tensor_file.save(path, {key: value if value.dtype == torch.int64 else value.detach().float()
                            for key, value in tensors.items()}, metadata)
    print(path.name, path.stat().st_size, "bytes,", len(tensors), "tensors")


def rotary_of(config, size):
    """As CogVideoXPipeline makes them."""
    class Part:
        vae_scale_factor_spatial = 1
        transformer = type("", (), {"config": type("", (), config | {
            "patch_size": 2, "patch_size_t": config.get("patch_size_t")})})

    return diffusers.CogVideoXPipeline._prepare_rotary_positional_embeddings(Part, size[1], size[2], size[0], "cpu")


def run_cogvideox(name, config, size):
    model = diffusers.CogVideoXTransformer3DModel(**config)
    batch, channels = 2, config["out_channels"]
    is_shown = config["in_channels"] > channels
    is_wide = name == "cogvideox_wide"
    if is_wide:
        model = model.requires_grad_(False)
    tensors = {}
    formula.fill(model)
    if config.get("use_learned_positional_embeddings"):
        model.patch_embed.pos_embedding = formula.values("pos_embedding", model.patch_embed.pos_embedding.shape)
    x_t = (formula.values("x_t", [batch, channels, *size]) * 2).requires_grad_(True)
    text = (formula.values("text", [batch, 5, config["text_embed_dim"]]) * 2).requires_grad_(True)
    t = torch.tensor([250.0, 999.0], dtype=torch.float64)
    clip = x_t
    if is_shown:
        tensors["forward.beside"] = formula.values("beside", x_t.shape)
        clip = torch.cat([x_t, tensors["forward.beside"]], 1)
    ofs = torch.full([1], OFS) if config.get("ofs_embed_dim") else None
    rotary = rotary_of(config, size) if config.get("use_rotary_positional_embeddings") else None
    output = model(clip.transpose(1, 2), text, t, ofs=ofs, image_rotary_emb=rotary).sample.transpose(1, 2)
    (output * formula.values("output", output.shape)).sum().backward()
    tensors |= {"forward.x_t": x_t, "forward.t": t, "forward.text": text, "forward.output": output,
                "grad.x_t": x_t.grad, "grad.text": text.grad}
    if not is_wide:
        tensors |= {"grad." + key: value for key, value in formula.probes(model).items()}
    path = DATA / (name + ".safetensors")
    tensor_file.save(path, {key: value.detach().float().contiguous() for key, value in tensors.items()}, {
        "kinora_fixture": "cogvideox", "version": "1", "config": json.dumps(config, separators=(",", ":")),
        "shapes": json.dumps({key: list(value.shape) for key, value in model.named_parameters()},
                             separators=(",", ":"))})
    print(path.name, path.stat().st_size, "bytes,", len(tensors), "tensors")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or [*MODELS, *COGVIDEOX]:
        if name in COGVIDEOX:
            run_cogvideox(name, *COGVIDEOX[name])
        else:
            run(name, *MODELS[name])
