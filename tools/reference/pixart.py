"""PixArt-alpha and -Sigma (Chen et al. 2023 and 2024) for images, which are clips of one frame here.

`size_conditions`: the multi-scale models, which are told height and width. Sigma: maybe `qk_norm`, `kv_compress`. A
configuration's size is what positions are made for; other sizes are stretched to it.
"""

from torch import nn

import video_layers as layers


class PixArt(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        c = config.hidden
        _, h, w = config.grid
        self.x_embedder = layers.PatchEmbed(config)
        self.t_embedder = layers.TimestepEmbedder(c)
        self.t_block = layers.TimeBlock(c, 6)
        self.y_embedder = layers.CaptionEmbedder(config)
        self.register_buffer("pos_embed", self.positions(h, w).float())
        self.blocks = nn.ModuleList(layers.PixArtBlock(config) for _ in range(config.depth))
        if config.kv_compress != "none":
            for number in config.kv_compress_layers or range(config.depth // 2, config.depth):
                self.blocks[number].attn = layers.KvCompressedAttention(config)
        self.final_layer = layers.FinalLayer(config)
        if config.size_conditions:
            self.csize_embedder = layers.SizeEmbedder(c // 3)
            self.ar_embedder = layers.SizeEmbedder(c // 3)

    def positions(self, h, w):
        _, rows, columns = self.config.grid
        return layers.spatial_positions(self.config.hidden, h, w, self.config.position_scale,
                                        base=int((rows * columns) ** 0.5))

    @staticmethod
    def attend(rows, columns):
        def attend(attention, x):
            if isinstance(attention, layers.KvCompressedAttention):
                return attention(x.flatten(0, 1), rows, columns).view_as(x)
            return layers.attend_frames(attention, x)

        return attend

    def forward(self, x, t, conditions):
        """x [B, in_channels, 1, height, width], t [B]. conditions: text [B, L, D], text_lengths,
        null_text [B] and, with size_conditions, height, width [B]."""
        config = self.config
        h, w = x.shape[3] // config.patch, x.shape[4] // config.patch
        condition = self.t_embedder(t * config.time_scale)  # [B, C]
        if config.size_conditions:
            condition = condition + layers.size_vector(self.csize_embedder, self.ar_embedder, conditions)
        vectors = self.t_block(condition)[:, None]  # [B, 1, 6 C]
        text = self.y_embedder(conditions["text"], conditions["null_text"])
        own_size = (h, w) == config.grid[1:]
        tokens = self.x_embedder(x)  # [B, T, S, C]
        tokens = tokens + (self.pos_embed if own_size else self.positions(h, w).to(x.dtype))
        for block in self.blocks:
            tokens = block(tokens, vectors, text, conditions["text_lengths"], self.attend(h, w))
        tokens = self.final_layer(tokens, condition[:, None])
        return layers.unpatchify(tokens, config, h, w)
