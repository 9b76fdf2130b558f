"""STDiT of Open-Sora 1.0: a PixArt block with attention over time behind that within frames. One size.

The temporal attention reads the tokens as they are, without norm and modulation, and takes the gate of
the spatial one: so it was published and trained.
"""

import torch
from torch import nn

import video_layers as layers


class Block(layers.PixArtBlock):
    def __init__(self, config):
        super().__init__(config)
        self.attn_temp = layers.SelfAttention(config)

    def forward(self, x, vectors, text, lengths, time_positions=None):
        """time_positions [1, T, C]: only given to the first block."""
        six = layers.modulation(self.scale_shift_table, vectors)
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = six
        inner = layers.modulate(self.norm1(x), shift_msa, scale_msa)
        x = x + gate_msa * layers.attend_frames(self.attn, inner)
        inner = x if time_positions is None else x + time_positions[:, :, None]
        x = x + gate_msa * layers.attend_time(self.attn_temp, inner)
        x = x + self.cross_attn(x, text, lengths)
        return x + gate_mlp * self.mlp(layers.modulate(self.norm2(x), shift_mlp, scale_mlp))


class STDiT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        c = config.hidden
        frames, h, w = config.grid
        positions = layers.spatial_positions(c, h, w, config.position_scale).float()
        self.register_buffer("pos_embed", positions)
        times = layers.temporal_positions(c, frames, config.time_position_scale).float()
        self.register_buffer("pos_embed_temporal", times)
        self.x_embedder = layers.PatchEmbed(config)
        self.t_embedder = layers.TimestepEmbedder(c)
        self.t_block = layers.TimeBlock(c, 6)
        self.y_embedder = layers.CaptionEmbedder(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.final_layer = layers.FinalLayer(config)

    def forward(self, x, t, conditions):
        """x [B, in_channels, frames, height, width], t [B]; conditions: text, text_lengths, null_text."""
        condition = self.t_embedder(t * self.config.time_scale)  # [B, C]
        vectors = self.t_block(condition)[:, None]  # [B, 1, 6 C]
        text = self.y_embedder(conditions["text"], conditions["null_text"])
        tokens = self.x_embedder(x) + self.pos_embed  # [B, T, S, C]
        for i, block in enumerate(self.blocks):
            positions = self.pos_embed_temporal if i == 0 else None
            tokens = block(tokens, vectors, text, conditions["text_lengths"], positions)
        tokens = self.final_layer(tokens, condition[:, None])
        return layers.unpatchify(tokens, self.config, *self.config.grid[1:])


def macs_per_clip(config):
    """Multiply-accumulates of one forward with captions of full length: matrix products."""
    frames, h, w = config.grid
    places, c, text = h * w, config.hidden, config.text_tokens
    n = frames * places
    attention = n * (8 * c * c + 2 * (places + frames) * c)
    cross = n * (2 * c * c + 2 * text * c) + 2 * text * c * c
    block = attention + cross + 2 * config.mlp_ratio * n * c * c
    ends = n * c * config.patch_frames * config.patch**2 * (config.in_channels + config.out_channels)
    once = 6 * c * c + text * (config.text_channels * c + c * c) + 256 * c + c * c
    return config.depth * block + ends + once
