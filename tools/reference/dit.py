"""A plain PyTorch DiT: the published architecture, written for reading and for comparing with.

Peebles and Xie, "Scalable Diffusion Models with Transformers" (2023), section 3 and table 1. Parameter
names are those of the published checkpoints, so a state dict goes from one implementation to another.

Shapes: B batch, C hidden, H heads, D head dim, N tokens, p patch size, (h, w) token grid.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

FREQUENCY_DIM = 256  # width of the sinusoid that the timestep MLP reads


@dataclass(frozen=True)
class ModelConfig:
    height: int = 32
    width: int = 32
    in_channels: int = 4
    patch: int = 2
    hidden: int = 1152
    depth: int = 28
    heads: int = 16
    mlp_ratio: int = 4
    num_classes: int = 1000
    label_dropout: float = 0.1  # > 0: the label table has one more row, the null class
    learn_sigma: bool = True
    time_scale: float = 1.0  # multiplies t before the sinusoid; 1000 suits flow time in [0, 1]

    @property
    def out_channels(self):
        return 2 * self.in_channels if self.learn_sigma else self.in_channels

    @property
    def grid(self):
        return self.height // self.patch, self.width // self.patch

    @property
    def label_rows(self):
        return self.num_classes + (1 if self.label_dropout > 0 else 0)


SIZES = {  # depth, hidden, heads
    "S": (12, 384, 6),
    "B": (12, 768, 12),
    "L": (24, 1024, 16),
    "XL": (28, 1152, 16),
}


def named_config(name, **changes):
    """`name` is such as "DiT-XL/2"; `changes` replace any other field."""
    size, patch = name.removeprefix("DiT-").split("/")
    depth, hidden, heads = SIZES[size]
    return ModelConfig(depth=depth, hidden=hidden, heads=heads, patch=int(patch), **changes)


def sincos_1d(dim, positions):
    """[sin | cos] of positions * 10000^(-i / (dim / 2)), in float64. -> [len(positions), dim]"""
    omega = 10000.0 ** -(torch.arange(dim // 2, dtype=torch.float64) / (dim / 2))
    angles = positions.double()[:, None] * omega[None, :]
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def sincos_2d(dim, h, w):
    """Tokens in row-major order; the first half of the dims tells the column. -> [h * w, dim]"""
    rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    halves = [sincos_1d(dim // 2, columns.reshape(-1)), sincos_1d(dim // 2, rows.reshape(-1))]
    return torch.cat(halves, dim=1)


def timestep_sinusoid(t, dim=FREQUENCY_DIM, max_period=10000.0):
    """[cos | sin] of t * max_period^(-i / (dim / 2)), at least in float32. -> [B, dim]"""
    dtype = torch.float64 if t.dtype == torch.float64 else torch.float32
    steps = torch.arange(dim // 2, dtype=dtype, device=t.device)
    angles = t.to(dtype)[:, None] * torch.exp(-math.log(max_period) * steps / (dim // 2))[None, :]
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def modulate(x, shift, scale):
    return x * (1 + scale[:, None, :]) + shift[:, None, :]


class PatchEmbed(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.proj = nn.Conv2d(config.in_channels, config.hidden, config.patch, stride=config.patch)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)  # [B, N, C]


class TimestepEmbedder(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(FREQUENCY_DIM, hidden), nn.SiLU(), nn.Linear(hidden, hidden))

    def forward(self, t):
        return self.mlp(timestep_sinusoid(t))


class LabelEmbedder(nn.Module):
    def __init__(self, rows, hidden):
        super().__init__()
        self.embedding_table = nn.Embedding(rows, hidden)

    def forward(self, labels):
        return self.embedding_table(labels)


class Attention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # [B, H, N, D] each
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


class Mlp(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.fc1 = nn.Linear(hidden, inner)
        self.fc2 = nn.Linear(inner, hidden)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class Block(nn.Module):
    """adaLN-Zero: the condition shifts, scales and gates both halves of the block."""

    def __init__(self, config):
        super().__init__()
        c = config.hidden
        self.norm1 = nn.LayerNorm(c, elementwise_affine=False, eps=1e-6)
        self.attn = Attention(c, config.heads)
        self.norm2 = nn.LayerNorm(c, elementwise_affine=False, eps=1e-6)
        self.mlp = Mlp(c, c * config.mlp_ratio)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(c, 6 * c))

    def forward(self, x, condition):
        six = self.adaLN_modulation(condition).chunk(6, dim=1)
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = six
        attended = self.attn(modulate(self.norm1(x), shift_msa, scale_msa))
        x = x + gate_msa[:, None, :] * attended
        return x + gate_mlp[:, None, :] * self.mlp(modulate(self.norm2(x), shift_mlp, scale_mlp))


class FinalLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        c = config.hidden
        self.norm_final = nn.LayerNorm(c, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(c, config.patch * config.patch * config.out_channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(c, 2 * c))

    def forward(self, x, condition):
        shift, scale = self.adaLN_modulation(condition).chunk(2, dim=1)
        return self.linear(modulate(self.norm_final(x), shift, scale))


class DiT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        h, w = config.grid
        self.x_embedder = PatchEmbed(config)
        self.t_embedder = TimestepEmbedder(config.hidden)
        self.y_embedder = LabelEmbedder(config.label_rows, config.hidden)
        embedding = sincos_2d(config.hidden, h, w).float()[None]
        self.pos_embed = nn.Parameter(embedding, requires_grad=False)  # frozen, yet in the state dict
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.final_layer = FinalLayer(config)
        self.initialize()

    def initialize(self):
        """As in the paper: every block starts as the identity and the output at zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        patches = self.x_embedder.proj
        nn.init.xavier_uniform_(patches.weight.view(patches.weight.shape[0], -1))
        nn.init.zeros_(patches.bias)
        nn.init.normal_(self.y_embedder.embedding_table.weight, std=0.02)
        nn.init.normal_(self.t_embedder.mlp[0].weight, std=0.02)
        nn.init.normal_(self.t_embedder.mlp[2].weight, std=0.02)
        for layer in self.zero_initialized():
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def zero_initialized(self):
        """The linear layers that start at zero."""
        yield from (block.adaLN_modulation[1] for block in self.blocks)
        yield self.final_layer.adaLN_modulation[1]
        yield self.final_layer.linear

    def unpatchify(self, tokens):
        """[B, h * w, p * p * channels], channel fastest -> [B, channels, h * p, w * p]"""
        h, w = self.config.grid
        p, channels = self.config.patch, self.config.out_channels
        x = tokens.reshape(-1, h, w, p, p, channels)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(-1, channels, h * p, w * p)

    def forward(self, x, t, labels):
        """x [B, in_channels, height, width], t [B] (may be fractional), labels int64 [B]."""
        tokens = self.x_embedder(x) + self.pos_embed  # [B, N, C]
        condition = self.t_embedder(t * self.config.time_scale) + self.y_embedder(labels)  # [B, C]
        for block in self.blocks:
            tokens = block(tokens, condition)
        return self.unpatchify(self.final_layer(tokens, condition))


def macs_per_image(config):
    """Multiply-accumulates of one forward: matrix products of patches, blocks, attention, output.

    The per-image condition path (timestep MLP, modulation) is in: it is what the model computes.
    """
    h, w = config.grid
    n, c, p = h * w, config.hidden, config.patch
    block = n * c * c * (4 + 2 * config.mlp_ratio) + 2 * n * n * c + 6 * c * c
    ends = n * c * p * p * (config.in_channels + config.out_channels) + 2 * c * c
    return config.depth * block + ends + FREQUENCY_DIM * c + c * c


def parameter_count(model):
    """With the frozen position table, as in the paper's table."""
    return sum(p.numel() for p in model.parameters())
