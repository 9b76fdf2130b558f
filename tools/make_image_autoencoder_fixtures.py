#!/usr/bin/env python3
"""Writes tests/models/data/{kl_vae,tiny_vae,dc_ae,dc_ae_shuffled}.safetensors: what diffusers'
autoencoders of images make of formula.py's weights and inputs, in float64. Wants torch and
diffusers 0.42. Tensors as make_clip_autoencoder_fixtures.py has them; `encode` of AutoencoderKL is
mean and log variance. Linear attention of AutoencoderDC rounds to float32 within, as diffusers
does; batch norms have weight(name) as mean and 1 + values(name) / 4 as variance."""

import torch

from make_clip_autoencoder_fixtures import formula, write


def kl():
    from diffusers import AutoencoderKL

    config = {"block_out_channels": [8, 16, 24], "layers_per_block": 1, "latent_channels": 3,
              "norm_num_groups": 4, "scaling_factor": 0.5, "shift_factor": 0.25}
    model = AutoencoderKL(**config, down_block_types=["DownEncoderBlock2D"] * 3,
                          up_block_types=["UpDecoderBlock2D"] * 3)
    write("kl_vae", config, model, {
        "encode": (lambda x: model.encode(x).latent_dist.parameters, [2, 3, 16, 12], True),
        "decode": (lambda z: model.decode(z).sample, [2, 3, 4, 3], True)})


def tiny():
    from diffusers import AutoencoderTiny

    config = {"encoder_block_out_channels": [12, 12, 12], "decoder_block_out_channels": [12, 12, 12],
              "num_encoder_blocks": [1, 2, 1], "num_decoder_blocks": [2, 1, 1], "latent_channels": 3}
    model = AutoencoderTiny(**config)
    write("tiny_vae", config, model, {
        "encode": (lambda x: model.encode(x).latents, [2, 3, 16, 12], True),
        "decode": (lambda z: model.decode(z).sample, [2, 3, 4, 3], True)})


def dc(name, config, sizes):
    from diffusers import AutoencoderDC

    model = AutoencoderDC(**config).eval()
    for key, buffer in model.named_buffers():
        if key.endswith("running_mean"):
            buffer.copy_(formula.weight(key, buffer.shape))
        elif key.endswith("running_var"):
            buffer.copy_(1 + formula.values(key, buffer.shape) / 4)
    write(name, config, model, {
        "encode": (lambda x: model.encode(x).latent, [2, 3, *sizes[0]], True),
        "decode": (lambda z: model.decode(z).sample, [2, config["latent_channels"], *sizes[1]], True)})


def dc_ae():
    """As the published one of Sana. Where the places are no more than a head's channels, as they are
    next to these latents, diffusers computes attention by scores of all pairs."""
    dc("dc_ae", {
        "latent_channels": 4, "attention_head_dim": 8, "scaling_factor": 0.5,
        "encoder_block_types": ["ResBlock", "EfficientViTBlock", "EfficientViTBlock"],
        "decoder_block_types": ["ResBlock", "EfficientViTBlock", "EfficientViTBlock"],
        "encoder_block_out_channels": [4, 8, 16], "decoder_block_out_channels": [8, 8, 16],
        "encoder_layers_per_block": [1, 1, 1], "decoder_layers_per_block": [2, 1, 1],
        "encoder_qkv_multiscales": [[], [5], [3, 5]], "decoder_qkv_multiscales": [[], [5, 3], [5]],
        "downsample_block_type": "conv", "upsample_block_type": "interpolate",
    }, ([8, 12], [2, 3]))


def dc_ae_shuffled():
    """As the published ones of ImageNet: no blocks next to the pixels, batch norms, pixel shuffle."""
    dc("dc_ae_shuffled", {
        "latent_channels": 3, "attention_head_dim": 4,
        "encoder_block_types": ["ResBlock", "ResBlock", "EfficientViTBlock", "EfficientViTBlock"],
        "decoder_block_types": ["ResBlock", "ResBlock", "EfficientViTBlock", "EfficientViTBlock"],
        "encoder_block_out_channels": [4, 8, 8, 16], "decoder_block_out_channels": [4, 8, 8, 16],
        "encoder_layers_per_block": [0, 1, 1, 1], "decoder_layers_per_block": [0, 2, 1, 1],
        "encoder_qkv_multiscales": [[]] * 4, "decoder_qkv_multiscales": [[]] * 4,
        "decoder_norm_types": ["batch_norm", "batch_norm", "batch_norm", "rms_norm"],
        "decoder_act_fns": ["relu", "relu", "silu", "silu"],
        "encoder_out_shortcut": False, "decoder_in_shortcut": False,
    }, ([16, 24], [2, 3]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    kl()
    tiny()
    dc_ae()
    dc_ae_shuffled()
