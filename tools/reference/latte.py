"""Latte of OpenDiT 1.0 (after Ma et al. 2024, variant 1): VDiT whose blocks attend within frames and over
time by turns. Positions in time are added once, before the first block over time."""

from vdit import VDiT


class Latte(VDiT):
    def run_blocks(self, tokens, condition):
        """tokens [B, T, S, C]"""
        b, frames, places, _ = tokens.shape
        for i, block in enumerate(self.blocks):
            if i % 2 == 0:
                inner = block(tokens.flatten(0, 1), condition.repeat_interleave(frames, dim=0))
                tokens = inner.unflatten(0, (b, frames))
            else:
                if i == 1:
                    tokens = tokens + self.pos_embed_temporal[:, :, None]
                inner = tokens.transpose(1, 2).flatten(0, 1)  # [B S, T, C]
                inner = block(inner, condition.repeat_interleave(places, dim=0))
                tokens = inner.unflatten(0, (b, places)).transpose(1, 2)
        return tokens
