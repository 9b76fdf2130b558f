"""VDiT of OpenDiT 1.0: DiT over clips, with attention among all tokens and one vector for the caption."""

import torch
from torch import nn

import video_layers as layers
from dit import Block, modulate


class TextEmbedder(nn.Module):
    """Projects the vector of a caption. The null caption's vector is a buffer: the text encoder's vector
    of the empty text, which was computed on the fly where this was published."""

    def __init__(self, config):
        super().__init__()
        self.output_projection = nn.Linear(config.text_channels, config.hidden)
        self.register_buffer("y_embedding", torch.zeros(1, config.text_channels))

    def forward(self, pooled, null_text):
        return self.output_projection(torch.where(null_text[:, None], self.y_embedding, pooled))


class FinalLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        c = config.hidden
        self.norm_final = layers.layer_norm(c)
        elements = config.patch_frames * config.patch * config.patch
        self.linear = nn.Linear(c, elements * config.out_channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(c, 2 * c))

    def forward(self, x, condition):
        shift, scale = self.adaLN_modulation(condition).chunk(2, dim=1)
        return self.linear(modulate(self.norm_final(x), shift, scale))


class VDiT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        c = config.hidden
        frames, h, w = config.grid
        self.register_buffer("pos_embed_spatial", layers.spatial_positions(c, h, w).float())
        self.register_buffer("pos_embed_temporal", layers.temporal_positions(c, frames).float())
        self.x_embedder = layers.PatchEmbed(config)
        self.t_embedder = layers.TimestepEmbedder(c)
        self.y_embedder = TextEmbedder(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.final_layer = FinalLayer(config)

    def condition(self, t, conditions):
        text = self.y_embedder(conditions["pooled"], conditions["null_text"])
        return self.t_embedder(t * self.config.time_scale) + text  # [B, C]

    def run_blocks(self, tokens, condition):
        """tokens [B, T, S, C]"""
        tokens = (tokens + self.pos_embed_temporal[:, :, None]).flatten(1, 2)
        for block in self.blocks:
            tokens = block(tokens, condition)
        return tokens

    def forward(self, x, t, conditions):
        """x [B, in_channels, frames, height, width], t [B]. conditions: pooled [B, D], null_text [B]."""
        frames, h, w = self.config.grid
        condition = self.condition(t, conditions)
        tokens = self.run_blocks(self.x_embedder(x) + self.pos_embed_spatial, condition)
        tokens = self.final_layer(tokens.flatten(1, -2), condition).unflatten(1, (frames, h * w))
        return layers.unpatchify(tokens, self.config, h, w)
