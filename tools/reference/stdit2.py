"""STDiT2 of Open-Sora 1.1: STDiT whose temporal attention has a norm, modulation and rotary embedding of
its own, for any size and number of frames, which it is told.

As the released weights were trained, queries and keys of the temporal attention are normed behind the
rotation, and the final layer reads the bare time embedding.
"""

import torch
from torch import nn

import video_layers as layers
from stdit3 import Rope


class Block(layers.PixArtBlock):
    def __init__(self, config):
        super().__init__(config)
        self.norm_temp = layers.layer_norm(config.hidden)
        self.attn_temp = layers.SelfAttention(config, norm_after_rotary=True)
        self.scale_shift_table_temporal = layers.random_table(3, config.hidden)

    def forward(self, x, vectors, time_vectors, text, lengths, angles):
        """vectors [B, T or 1, 6 C], time_vectors [B, T or 1, 3 C]: of the temporal attention."""
        six = layers.modulation(self.scale_shift_table, vectors)
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = six
        inner = layers.modulate(self.norm1(x), shift_msa, scale_msa)
        x = x + gate_msa * layers.attend_frames(self.attn, inner)
        shift, scale, gate = layers.modulation(self.scale_shift_table_temporal, time_vectors)
        inner = layers.modulate(self.norm_temp(x), shift, scale)
        x = x + gate * layers.attend_time(self.attn_temp, inner, angles)
        x = x + self.cross_attn(x, text, lengths)
        return x + gate_mlp * self.mlp(layers.modulate(self.norm2(x), shift_mlp, scale_mlp))


class STDiT2(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        c = config.hidden
        self.x_embedder = layers.PatchEmbed(config)
        self.t_embedder = layers.TimestepEmbedder(c)
        self.t_block = layers.TimeBlock(c, 6)
        self.t_block_temp = layers.TimeBlock(c, 3)
        self.y_embedder = layers.CaptionEmbedder(config)
        self.rope = Rope(c // config.heads)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.final_layer = layers.FinalLayer(config)
        self.csize_embedder = layers.SizeEmbedder(c // 3)
        self.ar_embedder = layers.SizeEmbedder(c // 3)
        self.fl_embedder = layers.SizeEmbedder(c)
        self.fps_embedder = layers.SizeEmbedder(c)

    def forward(self, x, t, conditions):
        """x [B, in_channels, frames, height, width], t [B]. conditions: text [B, L, D], text_lengths,
        null_text [B], num_frames, fps, height, width [B] and maybe frame_mask [B, T]."""
        config = self.config
        h, w = x.shape[3] // config.patch, x.shape[4] // config.patch
        noised = self.t_embedder(t * config.time_scale)  # [B, C]
        given = self.t_embedder(torch.zeros_like(t))
        sizes = layers.size_vector(self.csize_embedder, self.ar_embedder, conditions)
        times = self.fl_embedder(conditions["num_frames"]) + self.fps_embedder(conditions["fps"])
        mask = conditions.get("frame_mask")

        def vectors(block, added):
            return layers.of_frames(block(noised + added), block(given + added), mask)

        spatial, temporal = vectors(self.t_block, sizes), vectors(self.t_block_temp, times)
        text = self.y_embedder(conditions["text"], conditions["null_text"])
        tokens = self.x_embedder(x)  # [B, T, S, C]
        positions = layers.clip_positions(config, h, w, conditions["height"][0], conditions["width"][0])
        tokens = tokens + positions.to(x.dtype)
        angles = layers.rotary_angles(self.rope.freqs, torch.arange(tokens.shape[1]))
        for block in self.blocks:
            tokens = block(tokens, spatial, temporal, text, conditions["text_lengths"], angles)
        tokens = self.final_layer(tokens, layers.of_frames(noised, given, mask))
        return layers.unpatchify(tokens, config, h, w)
