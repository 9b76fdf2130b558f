#!/usr/bin/env python3
"""Writes tests/models/data/{kl_vae,tiny_vae,vq_vae,dc_ae,dc_ae_shuffled}.safetensors: what diffusers'
autoencoders of images make of formula.py's weights and inputs, in float64. Wants torch and
diffusers 0.42. With names as arguments it writes only those. Tensors as make_clip_autoencoder_fixtures.py has them; `encode` of AutoencoderKL is
mean and log variance. Linear attention of AutoencoderDC rounds to float32 within, as diffusers
does; batch norms have weight(name) as mean and 1 + values(name) / 4 as variance. decode_plain of
VQModel is with force_not_quantize. vq_codes.safetensors has "numbers" [2, 16, 16], in float32: which of
3 values("codes", [8192, 3]) is nearest to each vector of 3 values("z", [2, 3, 16, 16])."""

import sys

import torch

from make_clip_autoencoder_fixtures import ROOT, formula, tensor_file, write


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


def vq():
    """As the published ones with 8 and 16 pixels a latent: the last level attends."""
    from diffusers import VQModel

    config = {"block_out_channels": [8, 16, 24], "layers_per_block": 1, "latent_channels": 4,
              "vq_embed_dim": 3, "num_vq_embeddings": 40, "norm_num_groups": 4, "scaling_factor": 0.5,
              "down_block_types": ["DownEncoderBlock2D"] * 2 + ["AttnDownEncoderBlock2D"],
              "up_block_types": ["AttnUpDecoderBlock2D"] + ["UpDecoderBlock2D"] * 2}
    model = VQModel(**config)
    write("vq_vae", config, model, {
        "encode": (lambda x: model.encode(x).latents, [2, 3, 16, 12], True),
        "decode": (lambda z: model.decode(z).sample, [2, 3, 4, 3], True),
        "decode_plain": (lambda z: model.decode(z, force_not_quantize=True).sample, [2, 3, 4, 3], True)})


def vq_codes():
    """Of as many codes as the published one of 4 pixels a latent."""
    from diffusers.models.autoencoders.vae import VectorQuantizer

    codes = 3 * formula.values("codes", [8192, 3])
    z = 3 * formula.values("z", [2, 3, 16, 16])
    quantizer = VectorQuantizer(8192, 3, beta=0.25)
    with torch.no_grad():
        quantizer.embedding.weight.copy_(codes)
        numbers = quantizer.float()(z.float())[2][2].view(2, 16, 16)
        exact = torch.cdist(z.permute(0, 2, 3, 1).reshape(-1, 3).double(), codes.double(),
                            compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
    assert torch.equal(numbers.flatten(), exact)  # no near ties
    tensor_file.save(ROOT.parent / "tests/models/data/vq_codes.safetensors", {"numbers": numbers},
                     {"kinora_fixture": "clip_autoencoder", "version": "1"})


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
    CASES = {"kl_vae": kl, "tiny_vae": tiny, "vq_vae": vq, "vq_codes": vq_codes, "dc_ae": dc_ae,
             "dc_ae_shuffled": dc_ae_shuffled}
    for case in sys.argv[1:] or CASES:
        CASES[case]()
