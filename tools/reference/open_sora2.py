"""Open-Sora 2's transformer in the form of its published weights: queries, keys and values apart
(fused_qkv off), and rotary positions that turn dims d and d + D / 2 of a head together
(use_liger_rope), with the published names of parameters. Written from the paper (Peng et al. 2025) and
the shapes of the published file; diffusers has no such class."""

import math

import torch
from torch import nn
from torch.nn import functional as F


def embedded(x, dim=256, period=10000):
    """[B] -> [B, dim]: cosines, then sines."""
    half = dim // 2
    angles = x[:, None] * torch.exp(-math.log(period) * torch.arange(half, dtype=x.dtype, device=x.device) / half)
    return torch.cat([angles.cos(), angles.sin()], -1)


def rotary(places, axes, theta=10000):
    """places [N, axes], dims of each axis -> cos and sin, [N, D]: those of all axes, and once more."""
    angles = torch.cat([places[:, i, None] * theta ** (-torch.arange(0, dims, 2, dtype=places.dtype, device=places.device) / dims)
                        for i, dims in enumerate(axes)], -1)
    return angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)


def turned(x, cos, sin):
    """x [B, H, N, D]."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def attend(q, k, v, turn):
    out = F.scaled_dot_product_attention(turned(q, *turn), turned(k, *turn), v)
    return out.transpose(1, 2).flatten(2)


def normed(x):
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


class HeadNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale


class QKNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query_norm = HeadNorm(dim)
        self.key_norm = HeadNorm(dim)


class Embedder(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.in_layer = nn.Linear(width, hidden)
        self.out_layer = nn.Linear(hidden, hidden)

    def forward(self, x):
        return self.out_layer(F.silu(self.in_layer(x)))


class Modulation(nn.Module):
    def __init__(self, hidden, vectors):
        super().__init__()
        self.vectors = vectors
        self.lin = nn.Linear(hidden, vectors * hidden)

    def forward(self, vec):
        return self.lin(F.silu(vec))[:, None].chunk(self.vectors, -1)


class Attention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.norm = QKNorm(hidden // heads)
        self.proj = nn.Linear(hidden, hidden)

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for part in (self.q_proj, self.k_proj, self.v_proj))
        return self.norm.query_norm(q), self.norm.key_norm(k), v


def mlp_of(hidden, wide):
    return nn.Sequential(nn.Linear(hidden, wide), nn.GELU(approximate="tanh"), nn.Linear(wide, hidden))


class DoubleBlock(nn.Module):
    def __init__(self, hidden, heads, wide):
        super().__init__()
        for stream in ("img", "txt"):
            setattr(self, stream + "_mod", Modulation(hidden, 6))
            setattr(self, stream + "_attn", Attention(hidden, heads))
            setattr(self, stream + "_mlp", mlp_of(hidden, wide))

    def forward(self, img, txt, vec, turn):
        mods = {"txt": self.txt_mod(vec), "img": self.img_mod(vec)}
        streams = {"txt": txt, "img": img}
        parts = []
        for name, x in streams.items():
            shift, scale = mods[name][:2]
            parts.append(getattr(self, name + "_attn")(normed(x) * (1 + scale) + shift))
        both = attend(*(torch.cat(part, 2) for part in zip(*parts)), turn)
        out = dict(zip(streams, (both[:, :txt.shape[1]], both[:, txt.shape[1]:])))
        for name in streams:
            _, _, gate, shift, scale, last = mods[name]
            x = streams[name] + gate * getattr(self, name + "_attn").proj(out[name])
            streams[name] = x + last * getattr(self, name + "_mlp")(normed(x) * (1 + scale) + shift)
        return streams["img"], streams["txt"]


class SingleBlock(nn.Module):
    def __init__(self, hidden, heads, wide):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_mlp = nn.Linear(hidden, hidden + wide)
        self.linear2 = nn.Linear(hidden + wide, hidden)
        self.norm = QKNorm(hidden // heads)
        self.modulation = Modulation(hidden, 3)

    def forward(self, x, vec, turn):
        shift, scale, gate = self.modulation(vec)
        inner = normed(x) * (1 + scale) + shift
        v, wide = self.v_mlp(inner).tensor_split([x.shape[-1]], -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for part in (self.q_proj(inner), self.k_proj(inner), v))
        attended = attend(self.norm.query_norm(q), self.norm.key_norm(k), v, turn)
        return x + gate * self.linear2(torch.cat([attended, F.gelu(wide, approximate="tanh")], -1))


class FinalLayer(nn.Module):
    def __init__(self, hidden, out):
        super().__init__()
        self.linear = nn.Linear(hidden, out)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 2 * hidden))

    def forward(self, x, vec):
        shift, scale = self.adaLN_modulation(vec)[:, None].chunk(2, -1)
        return self.linear(normed(x) * (1 + scale) + shift)


class OpenSora2(nn.Module):
    def __init__(self, channels, patch, hidden, heads, depth, parallel_depth, axes, text, pooled, mlp_ratio=4):
        super().__init__()
        self.patch = patch
        self.axes = axes
        wide = int(hidden * mlp_ratio)
        self.img_in = nn.Linear(channels * patch ** 2, hidden)
        self.cond_in = nn.Linear((channels + 1) * patch ** 2, hidden)
        self.txt_in = nn.Linear(text, hidden)
        self.time_in = Embedder(256, hidden)
        self.vector_in = Embedder(pooled, hidden)
        self.double_blocks = nn.ModuleList(DoubleBlock(hidden, heads, wide) for _ in range(depth))
        self.single_blocks = nn.ModuleList(SingleBlock(hidden, heads, wide) for _ in range(parallel_depth))
        self.final_layer = FinalLayer(hidden, channels * patch ** 2)

    def packed(self, clip):
        """[B, C, T, H, W] -> [B, T H W / P^2, C P^2], channels outermost."""
        b, c, t, h, w = clip.shape
        p = self.patch
        return clip.reshape(b, c, t, h // p, p, w // p, p).permute(0, 2, 3, 5, 1, 4, 6).reshape(b, -1, c * p * p)

    def unpacked(self, tokens, shape):
        b, c, t, h, w = shape
        p = self.patch
        return tokens.reshape(b, t, h // p, w // p, c, p, p).permute(0, 4, 1, 2, 5, 3, 6).reshape(shape)

    def forward(self, x_t, t, text, pooled, given, is_given):
        """is_given [B, T]; given [B, C, T, H, W], read in those frames alone. t of [0, 1]."""
        mask = is_given.to(x_t.dtype)[:, None, :, None, None].expand_as(x_t[:, :1])
        img = self.img_in(self.packed(x_t)) + self.cond_in(self.packed(torch.cat([mask, given * mask], 1)))
        txt = self.txt_in(text)
        vec = self.time_in(embedded(t * 1000)) + self.vector_in(pooled)
        sides = [x_t.shape[2], x_t.shape[3] // self.patch, x_t.shape[4] // self.patch]
        places = torch.cartesian_prod(*(torch.arange(side, dtype=x_t.dtype, device=x_t.device) for side in sides))
        turn = rotary(torch.cat([places.new_zeros(txt.shape[1], 3), places]), self.axes)
        for block in self.double_blocks:
            img, txt = block(img, txt, vec, turn)
        both = torch.cat([txt, img], 1)
        for block in self.single_blocks:
            both = block(both, vec, turn)
        return self.unpacked(self.final_layer(both[:, txt.shape[1]:], vec), x_t.shape)
