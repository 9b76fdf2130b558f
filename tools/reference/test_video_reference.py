"""Checks the video references against published facts and, where it is installed, diffusers.
Run: python tools/reference/test_video_reference.py"""

import torch

import dit
import rf
import stdit3
import video_layers as layers
from pixart import PixArt
from stdit import STDiT
from stdit3 import STDiT3
from vdit import VDiT

SMALL = {"frames": 1, "height": 8, "width": 8, "hidden": 24, "depth": 2, "heads": 2, "text_channels": 10,
         "text_tokens": 6}


def count(model_class, **changes):
    with torch.device("meta"):
        model = model_class(layers.VideoConfig(**changes))
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_parameter_counts_match_what_was_published():
    # Open-Sora 1.0's report: 724M, counted in 1024^2; 1.2's: 1.1B, counted in 1024^3; PixArt's paper: 0.6B.
    assert round(count(STDiT) / 2**20) == 724
    assert round(count(STDiT3, qk_norm=True) / 2**30, 1) == 1.1
    assert round(count(PixArt) / 1e9, 1) == 0.6


def fill(model):
    """Random weights, tables apart."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


def take_attention(renamed, state, theirs, ours):
    for kind in ("weight", "bias"):
        renamed[f"{theirs}.attn1.to_out.0.{kind}"] = state[f"{ours}.attn.proj.{kind}"]
        renamed[f"{theirs}.attn2.to_out.0.{kind}"] = state[f"{ours}.cross_attn.proj.{kind}"]
        renamed[f"{theirs}.attn2.to_q.{kind}"] = state[f"{ours}.cross_attn.q_linear.{kind}"]
        for letter, part in zip("qkv", state[f"{ours}.attn.qkv.{kind}"].chunk(3)):
            renamed[f"{theirs}.attn1.to_{letter}.{kind}"] = part
        for letter, part in zip("kv", state[f"{ours}.cross_attn.kv_linear.{kind}"].chunk(2)):
            renamed[f"{theirs}.attn2.to_{letter}.{kind}"] = part
        renamed[f"{theirs}.ff.net.0.proj.{kind}"] = state[f"{ours}.mlp.fc1.{kind}"]
        renamed[f"{theirs}.ff.net.2.{kind}"] = state[f"{ours}.mlp.fc2.{kind}"]
    renamed[f"{theirs}.scale_shift_table"] = state[f"{ours}.scale_shift_table"]


def pixart_against_diffusers(size_conditions):
    from diffusers import PixArtTransformer2DModel

    ours = fill(PixArt(layers.VideoConfig(**SMALL, size_conditions=size_conditions)))
    theirs = PixArtTransformer2DModel(
        num_attention_heads=2, attention_head_dim=12, num_layers=2, sample_size=8, cross_attention_dim=24,
        caption_channels=10, use_additional_conditions=size_conditions)
    state = ours.state_dict()
    pairs = {"adaln_single.emb.timestep_embedder.linear_1": "t_embedder.mlp.0",
             "adaln_single.emb.timestep_embedder.linear_2": "t_embedder.mlp.2",
             "adaln_single.linear": "t_block.1", "caption_projection.linear_1": "y_embedder.y_proj.fc1",
             "caption_projection.linear_2": "y_embedder.y_proj.fc2", "proj_out": "final_layer.linear"}
    if size_conditions:
        for name, own in (("resolution", "csize"), ("aspect_ratio", "ar")):
            for i in (1, 2):
                pairs[f"adaln_single.emb.{name}_embedder.linear_{i}"] = f"{own}_embedder.mlp.{2 * i - 2}"
    renamed = {f"{name}.{kind}": state[f"{own}.{kind}"]
               for name, own in pairs.items() for kind in ("weight", "bias")}
    renamed["pos_embed.proj.weight"] = state["x_embedder.proj.weight"].squeeze(2)
    renamed["pos_embed.proj.bias"] = state["x_embedder.proj.bias"]
    renamed["scale_shift_table"] = state["final_layer.scale_shift_table"]
    for i in range(2):
        take_attention(renamed, state, f"transformer_blocks.{i}", f"blocks.{i}")
    missing, unexpected = theirs.load_state_dict(renamed, strict=False)
    assert set(missing) <= {"pos_embed.pos_embed"} and not unexpected, (missing, unexpected)

    generator = torch.Generator().manual_seed(2)
    x, text = torch.randn(2, 4, 8, 8, generator=generator), torch.randn(2, 6, 10, generator=generator)
    t, lengths = torch.tensor([3, 907]), torch.tensor([6, 2])
    height, width = torch.tensor([512.0, 256.0]), torch.tensor([384.0, 1024.0])
    sizes = {"resolution": torch.stack([height, width], dim=1), "aspect_ratio": (height / width)[:, None]}
    with torch.no_grad():
        expected = theirs.eval()(
            x, encoder_hidden_states=text, timestep=t, added_cond_kwargs=sizes if size_conditions else {},
            encoder_attention_mask=(torch.arange(6)[None] < lengths[:, None]).long()).sample
        got = ours(x[:, :, None], t.float(), {"text": text, "text_lengths": lengths, "height": height,
                                              "width": width, "null_text": torch.zeros(2).bool()})
    gap = (got[:, :, 0] - expected).norm() / expected.norm()
    assert gap < 1e-5, gap


def test_pixart_matches_diffusers():
    try:
        import diffusers  # noqa: F401
    except ImportError:
        print("skipped: diffusers is not installed")
        return
    pixart_against_diffusers(size_conditions=False)
    pixart_against_diffusers(size_conditions=True)


def test_vdit_of_an_image_is_dit():
    """One frame: DiT, which is checked against diffusers, with the position of frame 0 (0, 1 in sine and
    cosine) and the caption's vector in place of the label's."""
    vdit = fill(VDiT(layers.VideoConfig(**SMALL)))
    image = dit.DiT(dit.ModelConfig(height=8, width=8, hidden=24, depth=2, heads=2, num_classes=2,
                                    label_dropout=0))
    state = vdit.state_dict()
    generator = torch.Generator().manual_seed(2)
    pooled = torch.randn(2, 10, generator=generator)
    state["y_embedder.embedding_table.weight"] = vdit.y_embedder(pooled, torch.zeros(2).bool()).detach()
    state["x_embedder.proj.weight"] = state["x_embedder.proj.weight"].squeeze(2)
    state["pos_embed"] = state["pos_embed_spatial"] + state["pos_embed_temporal"]
    image.load_state_dict({name: state[name] for name in image.state_dict()})
    x, t = torch.randn(2, 4, 8, 8, generator=generator), torch.tensor([3.0, 907.5])
    with torch.no_grad():
        expected = image(x, t, torch.arange(2))
        got = vdit(x[:, :, None], t, {"pooled": pooled, "null_text": torch.zeros(2).bool()})
    assert torch.allclose(got[:, :, 0], expected, rtol=1e-4, atol=1e-5)


def stdit3_case(**changes):
    """A model of 3 frames of 3 x 5 patches with random weights and its inputs."""
    config = layers.VideoConfig(**SMALL, qk_norm=True, time_scale=1000.0, **changes)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 4, 3, 6, 10, generator=generator)
    conditions = {"text": torch.randn(2, 6, 10, generator=generator), "text_lengths": torch.tensor([6, 2]),
                  "null_text": torch.tensor([True, False]), "fps": torch.tensor([24.0, 8.0]),
                  "height": torch.full((2,), 48.0), "width": torch.full((2,), 80.0)}
    return fill(STDiT3(config)), x, torch.tensor([0.25, 0.75]), conditions


def test_window_over_the_whole_grid_is_attention_over_the_clip():
    model, x, t, conditions = stdit3_case(window=(3, 3, 5), rotary_3d=True)
    scale = (48 * 80) ** 0.5 / 512
    attend = model.attend_time(3, 3, 5, scale)
    tokens = torch.randn(2, 3, 15, 24)
    attention = model.temporal_blocks[0].attn
    # The same angles in the order of the clip (frame, row, column).
    angles = model.angles_3d(3, 3, 5, scale).unflatten(0, (15, 3)).transpose(0, 1).flatten(0, 1)
    expected = attention(tokens.flatten(1, 2), angles).view_as(tokens)
    assert torch.allclose(attend(attention, tokens), expected, rtol=1e-4, atol=1e-5)


def test_windows_are_cut_and_joined():
    grid = torch.randn(2, 3, 5, 4, 6)
    parts, valid = stdit3.cut_into_windows(grid, (2, 2, 3))
    assert parts.shape == (2 * 2 * 3 * 2, 2 * 2 * 3, 6) and valid.sum() == 2 * 3 * 5 * 4
    assert not parts[~valid].any()
    assert torch.equal(stdit3.join_windows(parts, grid.shape, (2, 2, 3)), grid)


def test_given_frames_see_time_zero_and_padding_is_not_read():
    model, x, t, conditions = stdit3_case()
    with torch.no_grad():
        expected = model(x, torch.zeros(2), conditions)
        conditions["frame_mask"] = torch.zeros(2, 3).bool()
        assert torch.allclose(model(x, t, conditions), expected, rtol=1e-4, atol=1e-5)
        conditions["frame_mask"][:, 1:] = True
        some = model(x, t, conditions)
        assert not torch.allclose(some, expected, rtol=1e-2)
        conditions["text"][0] += 9.0  # null
        conditions["text"][1, 2:] += 9.0  # padding
        assert torch.equal(model(x, t, conditions), some)
        conditions["text"][1, :2] += 9.0
        assert not torch.equal(model(x, t, conditions), some)


def test_flow_leads_to_the_data():
    """With the true velocity, one step from any time to 0 is the data, and the loss is zero."""
    generator = torch.Generator().manual_seed(4)
    x0, noise = (torch.randn(2, 3, 4, 2, 2, generator=generator) for _ in range(2))
    t = rf.transform(torch.tensor([0.3, 0.9]), torch.tensor([720.0, 512.0]), torch.tensor([1280.0, 512.0]),
                     torch.tensor([51.0, 51.0]))
    velocity = x0 - noise
    x_t = rf.noised(x0, noise, t)
    assert torch.allclose(rf.step(x_t, velocity, t, torch.zeros(2)), x0, atol=1e-5)
    assert not rf.loss(torch.cat([velocity, noise], dim=1), x0, noise).any()


def test_times_of_larger_clips_are_noisier():
    t = torch.tensor([0.5])
    size = torch.tensor([512.0])
    assert rf.transform(t, size, size, torch.tensor([1.0])) == 0.5
    # 51 frames are 15 latent ones: the odds of noise grow by sqrt(15).
    odds = rf.transform(t, size, size, torch.tensor([51.0]))
    assert torch.allclose(odds / (1 - odds), torch.tensor([15.0]).sqrt())


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name)
