"""The temporal autoencoder of Open-Sora 1.2, written from its published key names and sizes."""

import torch
import torch.nn.functional as F
from torch import nn


class Causal(nn.Module):
    """Zeros around in space and before the first frame."""

    def __init__(self, before, after, kernel=3, stride=1, bias=True):
        super().__init__()
        self.front = kernel - stride
        self.around = kernel // 2
        self.conv = nn.Conv3d(before, after, kernel, (stride, 1, 1), bias=bias)

    def forward(self, x):
        pad = (self.around,) * 4 + (self.front, 0)
        return self.conv(F.pad(x, pad))


class Residual(nn.Module):
    def __init__(self, before, after, groups):
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, before)
        self.conv1 = Causal(before, after, bias=False)
        self.norm2 = nn.GroupNorm(groups, after)
        self.conv2 = Causal(after, after, bias=False)
        if before != after:
            self.conv3 = Causal(before, after, kernel=1, bias=False)

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.conv2(F.silu(self.norm2(y)))
        return y + (self.conv3(x) if hasattr(self, "conv3") else x)


def residuals(count, before, after, groups):
    return nn.ModuleList(Residual(before if j == 0 else after, after, groups) for j in range(count))


class Encoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        widths = [c["filters"] * m for m in c["channel_multipliers"]]
        groups, count = c["num_groups"], c["num_res_blocks"]
        self.conv_in = Causal(c["channels"], c["filters"], bias=False)
        self.block_res_blocks = nn.ModuleList(
            residuals(count, before, after, groups)
            for before, after in zip([c["filters"]] + widths, widths))
        self.conv_blocks = nn.ModuleList(
            Causal(width, width, stride=2) if halves else nn.Identity()
            for width, halves in zip(widths, c["temporal_downsample"]))
        self.res_blocks = residuals(count, widths[-1], widths[-1], groups)
        self.norm1 = nn.GroupNorm(groups, widths[-1])
        self.conv2 = Causal(widths[-1], 2 * c["channels"], kernel=1)

    def forward(self, x):
        x = self.conv_in(x)
        for i, blocks in enumerate(self.block_res_blocks):
            for block in blocks:
                x = block(x)
            if i < len(self.conv_blocks):
                x = self.conv_blocks[i](x)
        for block in self.res_blocks:
            x = block(x)
        return self.conv2(F.silu(self.norm1(x)))


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        widths = [c["filters"] * m for m in c["channel_multipliers"]]
        groups, count = c["num_groups"], c["num_res_blocks"]
        self.conv1 = Causal(c["channels"], widths[-1])
        self.res_blocks = residuals(count, widths[-1], widths[-1], groups)
        self.block_res_blocks = nn.ModuleList(
            residuals(count, before, after, groups)
            for before, after in zip(widths[1:] + widths[-1:], widths))
        self.conv_blocks = nn.ModuleList(
            Causal(width, 2 * width) if doubles else nn.Identity()
            for width, doubles in zip(widths[1:], c["temporal_downsample"]))
        self.norm1 = nn.GroupNorm(groups, widths[0])
        self.conv_out = Causal(widths[0], c["channels"])

    def forward(self, x):
        x = self.conv1(x)
        for block in self.res_blocks:
            x = block(x)
        for i in reversed(range(len(self.block_res_blocks))):
            for block in self.block_res_blocks[i]:
                x = block(x)
            if i > 0 and isinstance(self.conv_blocks[i - 1], Causal):
                x = self.conv_blocks[i - 1](x)
                # Two neighbouring channels are two neighbouring frames.
                x = torch.stack([x[:, 0::2], x[:, 1::2]], dim=3).flatten(2, 3)
        return self.conv_out(F.silu(self.norm1(x)))


class TemporalVae(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.compression = 2 ** sum(c["temporal_downsample"])
        self.encoder = Encoder(c)
        self.quant_conv = Causal(2 * c["channels"], 2 * c["channels"], kernel=1)
        self.post_quant_conv = Causal(c["channels"], c["channels"], kernel=1)
        self.decoder = Decoder(c)

    def encode(self, x):
        """Means and log variances, of x with zero frames before it."""
        front = -x.shape[2] % self.compression
        return self.quant_conv(self.encoder(F.pad(x, (0, 0, 0, 0, front, 0))))

    def decode(self, z, frames):
        x = self.decoder(self.post_quant_conv(z))
        return x[:, :, x.shape[2] - frames:]


class OpenSoraVae(nn.Module):
    """spatial: of images, diffusers' AutoencoderKL. Frames pass through it one by one and then, in
    chunks, through the temporal one. The means are passed on."""

    SPATIAL_SCALE = 0.18215

    def __init__(self, spatial, config, micro_frames):
        super().__init__()
        self.spatial_vae = nn.Module()
        self.spatial_vae.module = spatial
        self.temporal_vae = TemporalVae(config)
        self.micro_frames = micro_frames

    def encode(self, x):
        frames = [self.spatial_vae.module.encode(x[:, :, t]).latent_dist.mean * self.SPATIAL_SCALE
                  for t in range(x.shape[2])]
        chunks = torch.stack(frames, 2).split(self.micro_frames, 2)
        return torch.cat([self.temporal_vae.encode(chunk) for chunk in chunks], 2)

    def decode(self, z, frames):
        latents = -(-self.micro_frames // self.temporal_vae.compression)
        parts = []
        for chunk in z.split(latents, 2):
            parts.append(self.temporal_vae.decode(chunk, min(frames, self.micro_frames)))
            frames -= self.micro_frames
        spatial = torch.cat(parts, 2) / self.SPATIAL_SCALE
        images = [self.spatial_vae.module.decode(spatial[:, :, t]).sample
                  for t in range(spatial.shape[2])]
        return torch.stack(images, 2)
