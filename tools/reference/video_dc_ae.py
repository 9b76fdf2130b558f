"""The video autoencoder of Open-Sora 2 (DC-AE f32t4c128), written from its published key names and
sizes; DC-AE is Chen et al. 2024 (2410.10733)."""

import torch
import torch.nn.functional as F
from torch import nn


class PlaceNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        x = x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt()
        shape = (1, -1, 1, 1, 1)
        return x * self.weight.view(shape) + self.bias.view(shape)


class Conv(nn.Module):
    def __init__(self, before, after, kernel=3, stride=(1, 1, 1), groups=1, bias=True, norm=False):
        super().__init__()
        self.conv = nn.Conv3d(before, after, kernel, stride, kernel // 2, groups=groups, bias=bias)
        if norm:
            self.norm = PlaceNorm(after)

    def forward(self, x):
        x = self.conv(x)
        return self.norm(x) if hasattr(self, "norm") else x


class Shortcut(nn.Module):
    """main(x) + shortcut(x); below "main"."""

    def __init__(self, main, shortcut=lambda x: x):
        super().__init__()
        self.main = main
        self.shortcut = shortcut

    def forward(self, x):
        return self.main(x) + self.shortcut(x)


class Plain(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = Conv(channels, channels)
        self.conv2 = Conv(channels, channels, bias=False, norm=True)

    def forward(self, x):
        return self.conv2(F.silu(self.conv1(x)))


class Attention(nn.Module):
    def __init__(self, channels, dim):
        super().__init__()
        self.dim = dim
        wide = 3 * channels
        self.qkv = Conv(channels, wide, 1, bias=False)
        self.aggreg = nn.ModuleList([nn.Sequential(
            nn.Conv3d(wide, wide, 5, padding=2, groups=wide, bias=False),
            nn.Conv3d(wide, wide, 1, groups=wide // dim, bias=False))])
        self.proj = Conv(2 * channels, channels, 1, bias=False, norm=True)

    def forward(self, x):
        qkv = self.qkv(x)
        heads = torch.cat([qkv, self.aggreg[0](qkv)], 1).flatten(2).unflatten(1, (-1, 3, self.dim))
        q, k, v = heads.unbind(2)  # [B, heads, dim, places]
        weights = torch.einsum("bhcn,bhcm->bhnm", F.relu(q), F.relu(k))
        seen = torch.einsum("bhnm,bhcm->bhcn", weights, v)
        seen = seen / (weights.sum(-1).unsqueeze(2) + 1e-15)
        return self.proj(seen.flatten(1, 2).unflatten(2, x.shape[2:]))


class Gated(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.inverted_conv = Conv(channels, 8 * channels, 1)
        self.depth_conv = Conv(8 * channels, 8 * channels, groups=8 * channels)
        self.point_conv = Conv(4 * channels, channels, 1, bias=False, norm=True)

    def forward(self, x):
        x, gate = self.depth_conv(F.silu(self.inverted_conv(x))).chunk(2, 1)
        return self.point_conv(x * F.silu(gate))


class Efficient(nn.Module):
    def __init__(self, channels, dim):
        super().__init__()
        self.context_module = Shortcut(Attention(channels, dim))
        self.local_module = Shortcut(Gated(channels))

    def forward(self, x):
        return self.local_module(self.context_module(x))


def blocks(config, stage, depth):
    width = config["widths"][stage]
    if stage < config["first_attention_stage"]:
        return [Shortcut(Plain(width)) for _ in range(depth)]
    return [Efficient(width, config["attention_dim"]) for _ in range(depth)]


def averaged(x, channels, frames, sides):
    """Places beside each other become channels, neighbouring ones of which are averaged."""
    b, _, t, h, w = x.shape
    x = x.unflatten(4, (w // sides, sides)).unflatten(3, (h // sides, sides))
    x = x.unflatten(2, (t // frames, frames))  # [B, C, t, ft, h, fs, w, fs]
    x = x.permute(0, 1, 3, 5, 7, 2, 4, 6).reshape(b, channels, -1, t // frames, h // sides, w // sides)
    return x.mean(2)


def duplicated(x, channels, frames, sides):
    """The reverse shape, of repeated channels."""
    x = x.repeat_interleave(channels * frames * sides**2 // x.shape[1], 1)
    x = x.unflatten(1, (channels, frames, sides, sides))
    b, _, _, _, _, t, h, w = x.shape
    return x.permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(b, channels, t * frames, h * sides, w * sides)


def frame_factor(x, temporal):
    return 2 if temporal and x.shape[2] > 1 else 1


class Up(nn.Module):
    def __init__(self, before, after, temporal):
        super().__init__()
        self.temporal = temporal
        self.conv = Conv(before, after)

    def forward(self, x):
        scale = (frame_factor(x, self.temporal), 2, 2)
        return self.conv(F.interpolate(x, scale_factor=scale, mode="nearest"))


class Stage(nn.Module):
    def __init__(self, ops):
        super().__init__()
        self.op_list = nn.ModuleList(ops)

    def forward(self, x):
        for op in self.op_list:
            x = op(x)
        return x


class Encoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        widths = c["widths"]
        self.project_in = Conv(3, widths[0])
        stages = []
        for i, depth in enumerate(c["encoder_depths"]):
            ops = blocks(c, i, depth)
            if i + 1 < len(widths):
                temporal, after = c["temporal"][i], widths[i + 1]
                conv = Conv(widths[i], after, stride=(2 if temporal else 1, 2, 2))
                ops.append(Shortcut(conv, lambda x, temporal=temporal, after=after: averaged(
                    x, after, frame_factor(x, temporal), 2)))
            stages.append(Stage(ops))
        self.stages = nn.ModuleList(stages)
        self.project_out = Shortcut(Stage([Conv(widths[-1], c["latent_channels"])]),
                                    lambda x: averaged(x, c["latent_channels"], 1, 1))

    def forward(self, x):
        x = self.project_in(x)
        for stage in self.stages:
            x = stage(x)
        return self.project_out(x)


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        widths = c["widths"]
        self.project_in = Shortcut(Conv(c["latent_channels"], widths[-1]),
                                   lambda x: duplicated(x, widths[-1], 1, 1))
        stages = []
        for i, depth in enumerate(c["decoder_depths"]):
            ops = []
            if i + 1 < len(widths):
                temporal, after = c["temporal"][i], widths[i]
                up = Up(widths[i + 1], after, temporal)
                ops.append(Shortcut(up, lambda x, temporal=temporal, after=after: duplicated(
                    x, after, frame_factor(x, temporal), 2)))
            stages.append(Stage(ops + blocks(c, i, depth)))
        self.stages = nn.ModuleList(stages)
        self.project_out = Stage([PlaceNorm(widths[0]), nn.ReLU(), Conv(widths[0], 3)])

    def forward(self, x):
        x = self.project_in(x)
        for stage in reversed(self.stages):
            x = stage(x)
        return self.project_out(x)


class VideoDcAe(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
