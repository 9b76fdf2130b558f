"""STDiT3 of Open-Sora 1.2, with the windows and 3D rotary embedding of 1.3: pairs of a spatial and a
temporal block, each a whole PixArt block. Any size and number of frames."""

import torch
from torch import nn

import video_layers as layers


class Rope(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.freqs = nn.Parameter(layers.rotary_frequencies(dim), requires_grad=False)


def cut_into_windows(x, window):
    """[B, T, h, w, C] -> ([B * windows, tokens of a window, C], which tokens are no padding), the tokens
    in the order (row, column, frame). The clip is filled up with zeros at its ends."""
    frames, rows, columns = window
    b, t, h, w, c = x.shape
    fill = (0, -w % columns, 0, -h % rows, 0, -t % frames)
    valid = nn.functional.pad(torch.ones(b, t, h, w, dtype=torch.bool), fill)
    x = nn.functional.pad(x, (0, 0, *fill))
    _, t, h, w, _ = x.shape
    shape = (b, t // frames, frames, h // rows, rows, w // columns, columns)
    tokens = rows * columns * frames
    return (x.reshape(*shape, c).permute(0, 1, 3, 5, 4, 6, 2, 7).reshape(-1, tokens, c),
            valid.reshape(shape).permute(0, 1, 3, 5, 4, 6, 2).reshape(-1, tokens))


def join_windows(x, shape, window):
    """The reverse of cut_into_windows."""
    frames, rows, columns = window
    b, t, h, w, c = shape
    x = x.reshape(b, -(-t // frames), -(-h // rows), -(-w // columns), rows, columns, frames, c)
    x = x.permute(0, 1, 6, 2, 4, 3, 5, 7)
    return x.reshape(b, x.shape[1] * frames, x.shape[3] * rows, -1, c)[:, :t, :h, :w]


class STDiT3(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert bool(config.window) == config.rotary_3d  # published together or not at all
        self.config = config
        c = config.hidden
        head_dim = c // config.heads
        self.x_embedder = layers.PatchEmbed(config)
        self.t_embedder = layers.TimestepEmbedder(c)
        self.fps_embedder = layers.SizeEmbedder(c)
        self.t_block = layers.TimeBlock(c, 6)
        self.y_embedder = layers.CaptionEmbedder(config)
        self.rope = Rope(head_dim // 3 if config.rotary_3d else head_dim)
        if config.given_embedders:
            self.x_embedder_cond = layers.PatchEmbed(config)
            self.x_embedder_cond_mask = layers.PatchEmbed(config)
        self.spatial_blocks = nn.ModuleList(layers.PixArtBlock(config) for _ in range(config.depth))
        self.temporal_blocks = nn.ModuleList(layers.PixArtBlock(config) for _ in range(config.depth))
        self.final_layer = layers.FinalLayer(config)

    def angles_3d(self, frames, rows, columns, scale):
        """A third of a head's dims for each axis; a finer picture has closer rows and columns.
        Tokens in the order (row, column, frame). -> [rows * columns * frames, D]"""
        def axis(count, divisor):
            return layers.rotary_angles(self.rope.freqs, torch.arange(count) / divisor)

        shape = (rows, columns, frames, -1)
        parts = [axis(frames, 1)[None, None], axis(rows, scale)[:, None, None],
                 axis(columns, scale)[None, :, None]]
        return torch.cat([part.expand(shape) for part in parts], dim=-1).flatten(0, 2)

    def attend_space(self, h, w, scale):
        if not self.config.rotary_3d:
            return layers.attend_frames
        angles = self.angles_3d(1, h, w, scale)
        return lambda attention, x: layers.attend_frames(attention, x, angles)

    def attend_time(self, frames, h, w, scale):
        if not self.config.window:
            angles = layers.rotary_angles(self.rope.freqs, torch.arange(frames))
            return lambda attention, x: layers.attend_time(attention, x, angles)
        window = self.config.window
        angles = self.angles_3d(*window, scale)

        def attend(attention, x):
            grid = x.unflatten(2, (h, w))
            parts, valid = cut_into_windows(grid, window)
            return join_windows(attention(parts, angles, valid), grid.shape, window).flatten(2, 3)

        return attend

    def forward(self, x, t, conditions):
        """x [B, in_channels, frames, height, width], t [B]. conditions: text [B, L, D], text_lengths,
        null_text [B], fps, height, width [B] (the same size for all) and maybe frame_mask [B, T]."""
        config = self.config
        h, w = x.shape[3] // config.patch, x.shape[4] // config.patch
        height, width = conditions["height"][0].item(), conditions["width"][0].item()
        scale = (height * width) ** 0.5 / config.base_pixels

        fps = self.fps_embedder(conditions["fps"])
        noised = self.t_embedder(t * config.time_scale) + fps  # [B, C]
        given = self.t_embedder(torch.zeros_like(t)) + fps
        mask = conditions.get("frame_mask")
        embeds_given = config.given_embedders and mask is not None
        frame_mask, null = mask, None
        if embeds_given:
            mask = None  # given frames have the time of the others
        vectors = layers.of_frames(self.t_block(noised), self.t_block(given), mask)  # [B, T, 6 C]
        text = self.y_embedder(conditions["text"], conditions["null_text"])
        lengths = conditions["text_lengths"]

        tokens = self.x_embedder(x)  # [B, T, S, C]
        if embeds_given:
            is_given = (~frame_mask)[:, None, :, None, None].to(x.dtype).expand_as(x)
            tokens = tokens + self.x_embedder_cond(conditions["given"] * is_given)
            tokens = tokens + self.x_embedder_cond_mask(is_given)
            null = self.y_embedder(conditions["text"], torch.ones_like(conditions["null_text"]))
        tokens = tokens + layers.clip_positions(config, h, w, height, width).to(x.dtype)
        attend_space = self.attend_space(h, w, scale)
        attend_time = self.attend_time(tokens.shape[1], h, w, scale)
        for spatial, temporal in zip(self.spatial_blocks, self.temporal_blocks):
            tokens = spatial(tokens, vectors, text, lengths, attend_space, null, frame_mask)
            tokens = temporal(tokens, vectors, text, lengths, attend_time, null, frame_mask)
        tokens = self.final_layer(tokens, layers.of_frames(noised, given, mask))
        return layers.unpatchify(tokens, config, h, w)
