"""Checks the reference itself against published facts. Run: python tools/reference/test_reference.py"""

import torch

import dit
import iddpm

# Millions of parameters (DiT paper, table 4, with more digits from the released configurations) at
# 256 px (32 x 32 latents), 1000 classes; GMAC of a forward.
PUBLISHED = {
    "DiT-S/2": (32.96, 6.06), "DiT-S/4": (None, 1.41), "DiT-S/8": (None, 0.36),
    "DiT-B/2": (130.51, 23.00), "DiT-B/4": (None, 5.56), "DiT-B/8": (None, 1.42),
    "DiT-L/2": (458.10, 80.69), "DiT-L/4": (None, 19.69), "DiT-L/8": (None, 5.01),
    "DiT-XL/2": (675.13, 118.62), "DiT-XL/4": (None, 29.04), "DiT-XL/8": (None, 7.39),
}


def test_parameter_counts_and_macs_match_the_paper():
    for name, (millions, gmac) in PUBLISHED.items():
        config = dit.named_config(name)
        with torch.device("meta"):
            count = dit.parameter_count(dit.DiT(config))
        if millions is not None:
            assert round(count / 1e6, 2) == millions, (name, count)
        assert abs(dit.macs_per_image(config) / 1e9 - gmac) < 0.01, (name, dit.macs_per_image(config))
    assert count == 675_683_072  # the loop ends with DiT-XL/8


def test_position_table_tells_the_column_first():
    table = dit.sincos_2d(16, 2, 3)
    assert torch.equal(table[0, :8], table[3, :8])  # tokens 0 and 3: same column, other row
    assert torch.equal(table[0, 8:], table[1, 8:])  # tokens 0 and 1: same row
    assert not torch.equal(table[0, :8], table[1, :8])


def test_forward_matches_diffusers():
    try:
        from diffusers import DiTTransformer2DModel
    except ImportError:
        print("skipped: diffusers is not installed")
        return
    config = dit.ModelConfig(height=8, width=8, hidden=32, depth=2, heads=4, num_classes=10)
    torch.manual_seed(0)
    ours = dit.DiT(config)
    theirs = DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2,
        sample_size=8, patch_size=2, num_embeds_ada_norm=10)
    state = {name: torch.randn_like(p) * 0.2 for name, p in ours.state_dict().items()}
    state["pos_embed"] = ours.pos_embed.data
    ours.load_state_dict(state)
    renamed = {"pos_embed.pos_embed": theirs.state_dict().get("pos_embed.pos_embed")}
    pairs = {"pos_embed.proj": "x_embedder.proj", "proj_out_1": "final_layer.adaLN_modulation.1",
             "proj_out_2": "final_layer.linear"}
    for i in range(2):
        block = f"transformer_blocks.{i}"
        embedder = f"{block}.norm1.emb"
        pairs[f"{embedder}.timestep_embedder.linear_1"] = "t_embedder.mlp.0"
        pairs[f"{embedder}.timestep_embedder.linear_2"] = "t_embedder.mlp.2"
        pairs[f"{block}.norm1.linear"] = f"blocks.{i}.adaLN_modulation.1"
        pairs[f"{block}.attn1.to_out.0"] = f"blocks.{i}.attn.proj"
        pairs[f"{block}.ff.net.0.proj"] = f"blocks.{i}.mlp.fc1"
        pairs[f"{block}.ff.net.2"] = f"blocks.{i}.mlp.fc2"
        table = "embedding_table.weight"
        renamed[f"{embedder}.class_embedder.{table}"] = state[f"y_embedder.{table}"]
        for kind in ("weight", "bias"):
            parts = state[f"blocks.{i}.attn.qkv.{kind}"].chunk(3)
            for letter, part in zip("qkv", parts):
                renamed[f"{block}.attn1.to_{letter}.{kind}"] = part
    for theirs_name, ours_name in pairs.items():
        for kind in ("weight", "bias"):
            renamed[f"{theirs_name}.{kind}"] = state[f"{ours_name}.{kind}"]
    renamed = {name: tensor for name, tensor in renamed.items() if tensor is not None}
    theirs.load_state_dict(renamed)
    for block in theirs.transformer_blocks:  # diffusers spaces the sinusoid unlike the paper's code
        block.norm1.emb.time_proj.downscale_freq_shift = 0
    x, t, labels = torch.randn(3, 4, 8, 8), torch.tensor([0, 417, 999]), torch.tensor([0, 9, 10])
    with torch.no_grad():
        expected = theirs.eval()(x, timestep=t, class_labels=labels).sample
        gap = (ours(x, t.float(), labels) - expected).norm() / expected.norm()
    assert gap < 1e-5, gap


def test_new_model_predicts_zero():
    config = dit.ModelConfig(height=8, width=12, hidden=32, depth=2, heads=2, num_classes=10)
    out = dit.DiT(config)(torch.randn(2, 4, 8, 12), torch.tensor([3.0, 999.0]), torch.tensor([0, 10]))
    assert out.shape == (2, 8, 8, 12) and not out.any()


def test_variance_bound_is_zero_when_the_model_is_right():
    schedule = iddpm.Schedule()
    generator = torch.Generator().manual_seed(1)
    x0 = torch.randn(2, 4, 8, 8, generator=generator, dtype=torch.float64)
    noise = torch.randn(2, 4, 8, 8, generator=generator, dtype=torch.float64)
    t = torch.tensor([1, 700])
    # v = -1 is the lower end of the range: the posterior's own variance.
    output = torch.cat([noise, -torch.ones_like(noise)], dim=1)
    terms = iddpm.hybrid_terms(schedule, output, x0, t, noise)
    assert terms["mse"].abs().max() == 0 and terms["vb"].abs().max() < 1e-9


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name)
