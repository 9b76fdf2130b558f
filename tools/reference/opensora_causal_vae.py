"""The causal autoencoder of Open-Sora 1.3, written from its published key names and sizes."""

import torch
import torch.nn.functional as F
from torch import nn

EPSILON = 1e-6


class Causal(nn.Module):
    """Zeros around in space and before the first frame; "conv" is its key."""

    def __init__(self, before, after, kernel=3, stride=1):
        super().__init__()
        self.padding = (kernel // 2,) * 4 + (kernel - 1, 0)
        self.conv = nn.Conv3d(before, after, kernel, stride)

    def forward(self, x):
        return self.conv(F.pad(x, self.padding))


def by_frame(function, x):
    return torch.stack([function(frame) for frame in x.unbind(2)], 2)


class Residual(nn.Module):
    def __init__(self, before, after, groups):
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, before, EPSILON)
        self.conv1 = Causal(before, after)
        self.norm2 = nn.GroupNorm(groups, after, EPSILON)
        self.conv2 = Causal(after, after)
        if before != after:
            self.nin_shortcut = Causal(before, after, kernel=1)

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.conv2(F.silu(self.norm2(y)))
        return y + (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x)


class Attention(nn.Module):
    """A place sees those before it, in the order of frames, rows and columns, and itself."""

    def __init__(self, width, groups):
        super().__init__()
        self.norm = nn.GroupNorm(groups, width, EPSILON)
        for name in ("q", "k", "v", "proj_out"):
            setattr(self, name, Causal(width, width, kernel=1))

    def forward(self, x):
        normed = self.norm(x)
        q, k, v = (layer(normed).flatten(2) for layer in (self.q, self.k, self.v))  # [B, C, N]
        scores = torch.einsum("bcn,bcm->bnm", q, k) / q.shape[1]**0.5
        later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return x + self.proj_out(torch.einsum("bnm,bcm->bcn", weights, v).view_as(x))


class HalveSides(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, 2)

    def forward(self, x):
        return by_frame(self.conv, F.pad(x, (0, 1, 0, 1)))


class Halve(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = Causal(width, width, stride=2)

    def forward(self, x):
        return self.conv(x)


class DoubleSides(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return by_frame(self.conv, x.repeat_interleave(2, 3).repeat_interleave(2, 4))


class Double(nn.Module):
    def __init__(self, width, groups):
        super().__init__()
        self.conv3d = nn.Module()
        self.conv3d.conv1 = Causal(width, width)
        self.conv3d.norm1 = nn.GroupNorm(groups, width)
        self.conv3d.conv2 = Causal(width, width)
        self.conv3d.norm2 = nn.GroupNorm(groups, width)

    def forward(self, x):
        c = self.conv3d
        for dim in (2, 3, 4):
            x = x.repeat_interleave(2, dim)
        y = c.norm2(c.conv2(F.silu(c.norm1(c.conv1(x)))))
        return x + F.silu(x + y)


class Half(nn.Module):
    """What encoder and decoder share."""

    def add_middle(self, width, groups):
        self.mid = nn.Module()
        self.mid.block_1 = Residual(width, width, groups)
        self.mid.attn_1 = Attention(width, groups)
        self.mid.block_2 = Residual(width, width, groups)

    def middle(self, x):
        return self.mid.block_2(self.mid.attn_1(self.mid.block_1(x)))


class Encoder(Half):
    def __init__(self, c):
        super().__init__()
        widths, groups = [c["channels"] * m for m in c["channel_multipliers"]], c["num_groups"]
        self.conv_in = Causal(3, c["channels"])
        self.down = nn.ModuleList()
        before = c["channels"]
        for i, width in enumerate(widths):
            level = nn.Module()
            level.block = nn.ModuleList(Residual(before if j == 0 else width, width, groups)
                                        for j in range(c["num_res_blocks"]))
            if i + 1 < len(widths):
                level.downsample = (Halve if c["temporal_downsample"][i] else HalveSides)(width)
            self.down.append(level)
            before = width
        self.add_middle(before, groups)
        self.norm_out = nn.GroupNorm(groups, before, EPSILON)
        self.conv_out = Causal(before, 2 * c["latent_channels"])

    def forward(self, x):
        x = self.conv_in(x)
        for level in self.down:
            for block in level.block:
                x = block(x)
            if hasattr(level, "downsample"):
                x = level.downsample(x)
        return self.conv_out(F.silu(self.norm_out(self.middle(x))))


class Decoder(Half):
    def __init__(self, c):
        super().__init__()
        widths, groups = [c["channels"] * m for m in c["channel_multipliers"]], c["num_groups"]
        self.surplus = 2**sum(c["temporal_downsample"]) - 1
        self.conv_in = Causal(c["latent_channels"], widths[-1])
        self.add_middle(widths[-1], groups)
        self.up = nn.ModuleList()
        for i, width in enumerate(widths):
            before = widths[min(i + 1, len(widths) - 1)]
            level = nn.Module()
            level.block = nn.ModuleList(Residual(before if j == 0 else width, width, groups)
                                        for j in range(c["num_res_blocks"] + 1))
            if i > 0:
                doubles = c["temporal_downsample"][i - 1]
                level.upsample = Double(width, groups) if doubles else DoubleSides(width)
            self.up.append(level)
        self.norm_out = nn.GroupNorm(groups, widths[0], EPSILON)
        self.conv_out = nn.Conv3d(widths[0], 3, 3)

    def forward(self, z):
        x = self.middle(self.conv_in(z))
        for level in reversed(self.up):
            for block in level.block:
                x = block(x)
            if hasattr(level, "upsample"):
                x = level.upsample(x)
        x = F.pad(F.silu(self.norm_out(x)), (1, 1, 1, 1, 2, 0))
        return self.conv_out(x)[:, :, self.surplus:]


class OpenSoraCausalVae(nn.Module):
    """Chunks of clips share a frame, which is decoded to the mean of both."""

    def __init__(self, c):
        super().__init__()
        self.encoder = Encoder(c)
        self.decoder = Decoder(c)
        self.frames = c["micro_frame_size"]

    def encode(self, x):
        begins = range(0, max(x.shape[2] - 1, 1), self.frames - 1)
        return torch.cat([self.encoder(x[:, :, i:i + self.frames]) for i in begins], 2)

    def decode(self, z):
        first, *rest = z.split((self.frames - 1) // (self.decoder.surplus + 1) + 1, 2)
        x = self.decoder(first)
        for chunk in rest:
            y = self.decoder(chunk)
            x = torch.cat([x[:, :, :-1], (x[:, :, -1:] + y[:, :, :1]) / 2, y[:, :, 1:]], 2)
        return x
