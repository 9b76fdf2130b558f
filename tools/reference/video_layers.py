"""Layers that the video transformers share, in plain PyTorch, with the published parameter names.

The PixArt line of Chen et al., "PixArt-alpha" (2023), sections 2.3 and 2.4 (adaLN-single, cross attention
to the caption), as Open-Sora extended it to clips. Position tables and angles are computed in float64.

Shapes: B batch, T frames of patches, S patches of a frame (h rows, w columns), C hidden, H heads,
D = C / H, L text tokens. Tokens are [B, T, S, C]. A frame mask [B, T] is true where a frame is noised;
the others are given, and are treated as at time 0.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from dit import TimestepEmbedder, sincos_1d


@dataclass(frozen=True)
class VideoConfig:
    frames: int = 16  # of the input; models of any size take it as what they are made for
    height: int = 32
    width: int = 32
    in_channels: int = 4
    patch_frames: int = 1
    patch: int = 2
    hidden: int = 1152
    depth: int = 28
    heads: int = 16
    mlp_ratio: int = 4
    learn_sigma: bool = True
    time_scale: float = 1.0  # multiplies t before the sinusoid; 1000 suits flow time in [0, 1]
    text_channels: int = 4096
    text_tokens: int = 120
    qk_norm: bool = False
    position_scale: float = 1.0  # spatial positions are divided by it
    time_position_scale: float = 1.0  # temporal positions likewise
    base_pixels: int = 512  # side of a square at which positions have scale 1
    size_conditions: bool = False
    window: tuple = ()  # frames, rows and columns of the windows of temporal blocks
    rotary_3d: bool = False
    kv_compress: str = "none"  # PixArt-Sigma: how some blocks make fewer keys and values
    kv_compress_factor: int = 2
    kv_compress_layers: tuple = ()
    given_embedders: bool = False  # STDiT3: those of Open-Sora 1.3's image to video

    @property
    def out_channels(self):
        return 2 * self.in_channels if self.learn_sigma else self.in_channels

    @property
    def grid(self):
        return self.frames // self.patch_frames, self.height // self.patch, self.width // self.patch

    @property
    def patch_sizes(self):
        return self.patch_frames, self.patch, self.patch


# ---- positions ----


def spatial_positions(hidden, h, w, scale=1.0, base=None):
    """Row-major, the column in the first half of the dims. A grid of any size is stretched to `base`
    patches a side, then divided by `scale`. -> float64 [1, h * w, hidden]"""
    rows = torch.arange(h, dtype=torch.float64) / scale * ((base or h) / h)
    columns = torch.arange(w, dtype=torch.float64) / scale * ((base or w) / w)
    rows, columns = torch.meshgrid(rows, columns, indexing="ij")
    halves = [sincos_1d(hidden // 2, columns.reshape(-1)), sincos_1d(hidden // 2, rows.reshape(-1))]
    return torch.cat(halves, dim=1)[None]


def clip_positions(config, h, w, height, width):
    """Where a model takes any size: a clip of [h, w] patches and (height, width) pixels is stretched to
    a square of as many patches; larger pictures have finer positions."""
    scale = (float(height) * float(width)) ** 0.5 / config.base_pixels
    return spatial_positions(config.hidden, h, w, scale, base=round((h * w) ** 0.5))


def temporal_positions(hidden, frames, scale=1.0):
    """-> float64 [1, frames, hidden]"""
    return sincos_1d(hidden, torch.arange(frames, dtype=torch.float64) / scale)[None]


def rotary_frequencies(dim):
    """One a pair of dims (Su et al. 2021). -> float32 [dim / 2]"""
    return (10000.0 ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)).float()


def rotary_angles(frequencies, positions):
    """Each angle twice: the dims of a pair lie side by side. -> [len(positions), 2 * len(frequencies)]"""
    return (positions[:, None] * frequencies[None, :]).repeat_interleave(2, dim=1)


def rotate(x, angles):
    """x [..., N, D], angles [N, D]: turns every pair of dims by its angle."""
    pairs = x.unflatten(-1, (-1, 2))
    turned = torch.stack([-pairs[..., 1], pairs[..., 0]], dim=-1).flatten(-2)
    return x * angles.cos() + turned * angles.sin()


# ---- patches ----


class PatchEmbed(nn.Module):
    def __init__(self, config):
        super().__init__()
        patch = config.patch_sizes
        self.proj = nn.Conv3d(config.in_channels, config.hidden, patch, stride=patch)

    def forward(self, x):
        return self.proj(x).flatten(3).permute(0, 2, 3, 1)  # [B, T, S, C]


def unpatchify(tokens, config, h, w):
    """[B, T, h * w, patch elements * channels], channel fastest -> [B, channels, frames, height, width]"""
    pt, p, _ = config.patch_sizes
    b, t = tokens.shape[:2]
    x = tokens.reshape(b, t, h, w, pt, p, p, -1)
    return torch.einsum("bthwrpqc->bctrhpwq", x).reshape(b, -1, t * pt, h * p, w * p)


class Mlp(nn.Module):
    def __init__(self, width, inner, out):
        super().__init__()
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, out)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


# ---- conditions ----


class CaptionEmbedder(nn.Module):
    """Projects the caption's tokens; a fixed caption of its own stands for those that are null."""

    def __init__(self, config):
        super().__init__()
        self.y_proj = Mlp(config.text_channels, config.hidden, config.hidden)
        null = torch.randn(config.text_tokens, config.text_channels) / config.text_channels**0.5
        self.register_buffer("y_embedding", null)

    def forward(self, text, null_text):
        """text [B, L, D], null_text bool [B] -> [B, L, C]"""
        null = self.y_embedding[: text.shape[1]]
        return self.y_proj(torch.where(null_text[:, None, None], null, text))


class SizeEmbedder(TimestepEmbedder):
    """A number, or several side by side: [B] or [B, n] -> [B, C or n * C]"""

    def forward(self, values):
        return super().forward(values.reshape(-1)).reshape(len(values), -1)


class TimeBlock(nn.Sequential):
    """adaLN-single: modulation of all blocks from the time embedding. Key of the linear layer: 1."""

    def __init__(self, hidden, count):
        super().__init__(nn.SiLU(), nn.Linear(hidden, count * hidden))


def size_vector(csize_embedder, ar_embedder, conditions):
    """PixArt's size conditions: height, width and their ratio, a third of the dims each. -> [B, C]"""
    height, width = conditions["height"], conditions["width"]
    sizes = csize_embedder(torch.stack([height, width], dim=1))
    return torch.cat([sizes, ar_embedder(height / width)], dim=1)


def of_frames(noised, given, frame_mask):
    """One vector a sample -> one a frame: [B, X] -> [B, T or 1, X]. Given frames take `given`."""
    if frame_mask is None:
        return noised[:, None]
    return torch.where(frame_mask[:, :, None], noised[:, None], given[:, None])


def modulation(table, vectors):
    """table [n, C] + vectors [B, T or 1, n * C] -> n tensors [B, T or 1, 1, C]"""
    return (table + vectors.unflatten(-1, table.shape)).unsqueeze(3).unbind(2)


def modulate(x, shift, scale):
    return x * (1 + scale) + shift


# ---- attention ----


class RmsNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class SelfAttention(nn.Module):
    def __init__(self, config, norm_after_rotary=False):
        super().__init__()
        c = config.hidden
        self.heads = config.heads
        self.norm_after_rotary = norm_after_rotary
        self.qkv = nn.Linear(c, 3 * c)
        self.proj = nn.Linear(c, c)
        if config.qk_norm:
            self.q_norm = RmsNorm(c // config.heads)
            self.k_norm = RmsNorm(c // config.heads)
        else:
            self.q_norm = self.k_norm = nn.Identity()

    def forward(self, x, angles=None, valid=None):
        """x [B, N, C], angles [N, D], valid bool [B, N]: which tokens may be attended to."""
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if not self.norm_after_rotary:
            q, k = self.q_norm(q), self.k_norm(k)
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        if self.norm_after_rotary:
            q, k = self.q_norm(q), self.k_norm(k)
        mask = None if valid is None else valid[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


class KvCompressedAttention(SelfAttention):
    """PixArt-Sigma's AttentionKVCompress: keys and values of an image [rows, columns] are sampled down.
    conv and ave are what PyTorch's Conv2d and nearest interpolation make of it, as published. Norms of
    heads come behind, as in Open-Sora's copy of it."""

    def __init__(self, config):
        super().__init__(config)
        self.sampling, self.factor = config.kv_compress, config.kv_compress_factor
        if self.sampling == "conv":
            c = config.hidden
            self.sr = nn.Conv2d(c, c, self.factor, stride=self.factor, groups=c)
            self.norm = nn.LayerNorm(c)

    def fewer(self, x, rows, columns):
        if self.sampling == "uniform_every":
            return x[:, :: self.factor][:, : x.shape[1] // self.factor]
        image = x.unflatten(1, (rows, columns)).permute(0, 3, 1, 2)
        if self.sampling == "conv":
            return self.norm(self.sr(image).flatten(2).transpose(1, 2))
        if self.sampling == "ave":
            image = F.interpolate(image, scale_factor=1 / self.factor, mode="nearest")
        else:
            image = image[:, :, :: self.factor, :: self.factor]
        return image.flatten(2).transpose(1, 2)

    def forward(self, x, rows, columns):
        """x [B, N, C]"""
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, c).unbind(2)
        heads = lambda y: y.reshape(b, -1, self.heads, c // self.heads).transpose(1, 2)
        k, v = heads(self.fewer(k, rows, columns)), heads(self.fewer(v, rows, columns))
        q, k = self.q_norm(heads(q)), self.k_norm(k)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


def attend_frames(attention, x, angles=None):
    """Each frame for itself. x [B, T, S, C], angles [S, D]"""
    return attention(x.flatten(0, 1), angles).view_as(x)


def attend_time(attention, x, angles=None):
    """Each place for itself, over all frames. angles [T, D]"""
    y = attention(x.transpose(1, 2).flatten(0, 1), angles)
    return y.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)


class CrossAttention(nn.Module):
    """To the first `lengths[b]` tokens of the caption."""

    def __init__(self, config):
        super().__init__()
        c = config.hidden
        self.heads = config.heads
        self.q_linear = nn.Linear(c, c)
        self.kv_linear = nn.Linear(c, 2 * c)
        self.proj = nn.Linear(c, c)

    def forward(self, x, text, lengths):
        """x [B, T, S, C], text [B, L, C], lengths int64 [B]"""
        b, l, c = text.shape
        q = self.q_linear(x).reshape(b, -1, self.heads, c // self.heads).transpose(1, 2)
        k, v = self.kv_linear(text).reshape(b, l, 2, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        valid = torch.arange(l, device=x.device)[None, :] < lengths[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None, None, :])
        return self.proj(y.transpose(1, 2).reshape(x.shape))


# ---- blocks ----


def layer_norm(hidden):
    return nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6)


def random_table(rows, hidden):
    return nn.Parameter(torch.randn(rows, hidden) / hidden**0.5)


class PixArtBlock(nn.Module):
    """Self-attention, cross attention to the caption (no norm, no gate), MLP."""

    def __init__(self, config):
        super().__init__()
        c = config.hidden
        self.norm1 = layer_norm(c)
        self.attn = SelfAttention(config)
        self.cross_attn = CrossAttention(config)
        self.norm2 = layer_norm(c)
        self.mlp = Mlp(c, c * config.mlp_ratio, c)
        self.scale_shift_table = random_table(6, c)

    def forward(self, x, vectors, text, lengths, attend, null_text=None, frame_mask=None):
        """vectors [B, T or 1, 6 C]; attend(attention, x): among which tokens self-attention goes. With
        null_text [B, L, C] frames that are not noised, frame_mask [B, T], read that."""
        six = modulation(self.scale_shift_table, vectors)
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = six
        x = x + gate_msa * attend(self.attn, modulate(self.norm1(x), shift_msa, scale_msa))
        read = self.cross_attn(x, text, lengths)
        if null_text is not None:
            given = self.cross_attn(x, null_text, lengths)
            read = torch.where(frame_mask[:, :, None, None], read, given)
        x = x + read
        return x + gate_mlp * self.mlp(modulate(self.norm2(x), shift_mlp, scale_mlp))


class FinalLayer(nn.Module):
    """Modulated by the time embedding itself, not by the time block."""

    def __init__(self, config):
        super().__init__()
        self.norm_final = layer_norm(config.hidden)
        elements = config.patch_frames * config.patch * config.patch
        self.linear = nn.Linear(config.hidden, elements * config.out_channels)
        self.scale_shift_table = random_table(2, config.hidden)

    def forward(self, x, vectors):
        """vectors [B, T or 1, C]"""
        shift, scale = modulation(self.scale_shift_table, torch.cat([vectors, vectors], dim=-1))
        return self.linear(modulate(self.norm_final(x), shift, scale))
