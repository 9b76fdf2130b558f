#!/usr/bin/env python3
"""Writes tests/inference/data/open_sora2/: Open_Sora_v2.safetensors, a tiny model of Open-Sora 2 with the
names and the order of dims of the published file (open_sora2.py), and expected.safetensors, what it
computes in float64. Checks before that diffusers' FluxTransformer2DModel, whose rotary positions turn dims
2 d and 2 d + 1, says the same of the weights in its order. Wants torch and diffusers.

  forward.x_t, forward.t              [B, C, T, H, W], [B] of [0, 1]
  forward.text, forward.pooled        [B, L, D], [B, P]
  forward.given, forward.frame_mask   [B, C, T, H, W], I64 [B, T], 1 where noised
  forward.output                      as x_t
"""

import pathlib

import diffusers
import torch

import formula
import tensor_file
from open_sora2 import OpenSora2

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests/inference/data/open_sora2"
HEADS, HEAD, DEPTH, PARALLEL = 2, 12, 2, 2
HIDDEN, CHANNELS, PATCH, TEXT, POOLED = HEADS * HEAD, 3, 2, 10, 6
AXES = (4, 4, 4)


def in_pairs(value):
    """Rows of heads of which d and d + HEAD / 2 are a pair, as 2 d and 2 d + 1."""
    heads = value.unflatten(0, (-1, HEAD))
    return torch.stack(heads.chunk(2, 1), 2).flatten(0, 2)


def flux_of(model):
    """diffusers' class with the same weights, and cond_in beside."""
    flux = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=CHANNELS * PATCH ** 2, num_layers=DEPTH, num_single_layers=PARALLEL,
        attention_head_dim=HEAD, num_attention_heads=HEADS, joint_attention_dim=TEXT,
        pooled_projection_dim=POOLED, guidance_embeds=False, axes_dims_rope=AXES).double()
    flux.cond_in = model.cond_in
    pairs = {"img_in": "x_embedder", "txt_in": "context_embedder",
             "time_in.in_layer": "time_text_embed.timestep_embedder.linear_1",
             "time_in.out_layer": "time_text_embed.timestep_embedder.linear_2",
             "vector_in.in_layer": "time_text_embed.text_embedder.linear_1",
             "vector_in.out_layer": "time_text_embed.text_embedder.linear_2",
             "final_layer.linear": "proj_out"}
    turned = {}
    for i in range(DEPTH):
        ours, theirs = f"double_blocks.{i}.", f"transformer_blocks.{i}."
        for stream, norm, attention, out, feed in (
                ("img_", "norm1", ("to_q", "to_k", "to_v"), "to_out.0", "ff"),
                ("txt_", "norm1_context", ("add_q_proj", "add_k_proj", "add_v_proj"), "to_add_out", "ff_context")):
            pairs |= {ours + stream + "mod.lin": theirs + norm + ".linear",
                      ours + stream + "attn.v_proj": theirs + "attn." + attention[2],
                      ours + stream + "attn.proj": theirs + "attn." + out,
                      ours + stream + "mlp.0": theirs + feed + ".net.0.proj",
                      ours + stream + "mlp.2": theirs + feed + ".net.2"}
            turned |= {ours + stream + "attn.q_proj": theirs + "attn." + attention[0],
                       ours + stream + "attn.k_proj": theirs + "attn." + attention[1],
                       ours + stream + "attn.norm.query_norm":
                           theirs + ("attn.norm_q" if stream == "img_" else "attn.norm_added_q"),
                       ours + stream + "attn.norm.key_norm":
                           theirs + ("attn.norm_k" if stream == "img_" else "attn.norm_added_k")}
    state = {}
    own = model.state_dict()
    for i in range(PARALLEL):
        ours, theirs = f"single_blocks.{i}.", f"single_transformer_blocks.{i}."
        pairs |= {ours + "modulation.lin": theirs + "norm.linear", ours + "linear2": theirs + "proj_out"}
        turned |= {ours + "q_proj": theirs + "attn.to_q", ours + "k_proj": theirs + "attn.to_k",
                   ours + "norm.query_norm": theirs + "attn.norm_q", ours + "norm.key_norm": theirs + "attn.norm_k"}
        for end in (".weight", ".bias"):
            v_mlp = own[ours + "v_mlp" + end]
            state[theirs + "attn.to_v" + end], state[theirs + "proj_mlp" + end] = v_mlp.tensor_split([HIDDEN])
    for ours, theirs in pairs.items():
        state |= {theirs + end: own[ours + end] for end in (".weight", ".bias")}
    for ours, theirs in turned.items():
        for end in (".weight", ".bias", ".scale"):
            if ours + end in own:
                state[theirs + end.replace("scale", "weight")] = in_pairs(own[ours + end])
    for end in (".weight", ".bias"):  # there the scale comes first
        shift, scale = own["final_layer.adaLN_modulation.1" + end].chunk(2)
        state["norm_out.linear" + end] = torch.cat([scale, shift])
        state["cond_in" + end] = own["cond_in" + end]
    flux.load_state_dict(state)
    return flux


def run_flux(model, flux, x_t, t, text, pooled, given, is_given):
    mask = is_given.double()[:, None, :, None, None].expand_as(x_t[:, :1])
    beside = flux.cond_in(model.packed(torch.cat([mask, given * mask], 1)))
    hook = flux.x_embedder.register_forward_hook(lambda module, inputs, output: output + beside)
    ids = torch.cartesian_prod(*(torch.arange(side) for side in (x_t.shape[2], x_t.shape[3] // PATCH,
                                                                x_t.shape[4] // PATCH))).double()
    output = flux(model.packed(x_t), text, pooled, t, ids, torch.zeros(text.shape[1], 3)).sample
    hook.remove()
    return model.unpacked(output, x_t.shape)


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = formula.fill(OpenSora2(CHANNELS, PATCH, HIDDEN, HEADS, DEPTH, PARALLEL, AXES, TEXT, POOLED))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("scale"):
                parameter.copy_((1 + formula.values(name, parameter.shape) / 4).float())
        shape = [2, CHANNELS, 3, 6, 4]
        x_t, given = (formula.values(name, shape) * 2 for name in ("x_t", "given"))
        mask = torch.tensor([[False, True, True], [True, True, False]])
        t = torch.tensor([0.25, 0.875], dtype=torch.float64)
        text = formula.values("text", [2, 5, TEXT]) * 2
        pooled = formula.values("pooled", [2, POOLED])
        output = model(x_t, t, text, pooled, given, ~mask)
        other = run_flux(model, flux_of(model), x_t, t, text, pooled, given, ~mask)
        distance = ((output - other).norm() / output.norm()).item()
        assert distance < 1e-5, distance  # it computes times in float32
    weights = {name: value.detach().float() for name, value in model.state_dict().items()}
    tensors = {"forward." + name: value.float() for name, value in
                {"x_t": x_t, "t": t, "text": text, "pooled": pooled, "given": given, "output": output}.items()}
    tensors["forward.frame_mask"] = mask.long()
    FOLDER.mkdir(exist_ok=True)
    tensor_file.save(FOLDER / "Open_Sora_v2.safetensors", weights, {"format": "pt"})
    tensor_file.save(FOLDER / "expected.safetensors", tensors, {"kinora_fixture": "open_sora2", "version": "1"})
    print(len(weights), "weights; from diffusers' Flux", distance)
