#!/usr/bin/env python3
"""Writes tests/models/data/{hunyuan_vae,opensora_vae,opensora_causal_vae,dc_ae_video,wan_vae,wan_vae_residual,cogvideox_vae,ltx_vae,ltx_vae_told,latent_upsampler_*}.safetensors, and wan_vae_names.json:
what autoencoders of clips make of formula.py's weights and inputs, in float64. Wants torch and diffusers 0.42
(AutoencoderKLHunyuanVideo, AutoencoderKLWan, AutoencoderKLCogVideoX, AutoencoderKLLTXVideo, LTXLatentUpsamplerModel and AutoencoderKL; the rest is in reference/).

  CASE.output        [B, C, T, H, W], where CASE is encode, decode, encode_image, decode_image
  grad.CASE.KEY      [2]: norm, and product with values(KEY), of the gradient of
                     sum(CASE.output * values("CASE.cotangent")), for encode and decode
  grad.CASE.input    [2]: the same of the input, values("CASE.input")

With names as arguments it writes only those.
"""

import json
import pathlib
import sys
from unittest import mock

import torch

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "reference"))

import formula  # noqa: E402
import tensor_file  # noqa: E402


def run(model, function, case, shape, tensors, gradients):
    given = formula.values(case + ".input", shape).requires_grad_(gradients)
    with torch.set_grad_enabled(gradients):
        output = function(given)
    tensors[case + ".output"] = output.detach().float()
    if not gradients:
        return
    model.zero_grad()
    (output * formula.values(case + ".cotangent", output.shape)).sum().backward()
    kinds = {"input": given.grad, **{n: p.grad for n, p in model.named_parameters()}}
    for name, grad in kinds.items():
        if grad is not None:
            probe = formula.values(case + ".input" if name == "input" else name, grad.shape)
            pair = torch.stack([grad.norm(), (grad * probe).sum()])
            tensors[f"grad.{case}.{name}"] = pair.detach().float()


def write(name, config, model, cases):
    """cases: name -> (function, input shape, with gradients)."""
    formula.fill(model)
    tensors = {}
    for case, (function, shape, gradients) in cases.items():
        run(model, function, case, shape, tensors, gradients)
    path = ROOT.parent / "tests/models/data" / (name + ".safetensors")
    metadata = {"kinora_fixture": "clip_autoencoder", "version": "1", "config": json.dumps(config)}
    tensor_file.save(path, tensors, metadata)
    print(path.name, path.stat().st_size, "bytes,", len(tensors), "tensors")


def hunyuan():
    from diffusers import AutoencoderKLHunyuanVideo

    config = {"block_out_channels": [8, 8, 16, 16], "layers_per_block": 1, "latent_channels": 2,
              "norm_num_groups": 4, "scaling_factor": 0.5}
    types = {"down_block_types": ["HunyuanVideoDownBlock3D"] * 4,
             "up_block_types": ["HunyuanVideoUpBlock3D"] * 4}
    model = AutoencoderKLHunyuanVideo(**config, **types)

    def encode(x):
        return model.quant_conv(model.encoder(x))

    def decode(z):
        return model.decode(z).sample

    write("hunyuan_vae", config, model, {
        "encode": (encode, [2, 3, 9, 16, 24], True), "decode": (decode, [1, 2, 3, 2, 3], True),
        "encode_image": (encode, [1, 3, 1, 16, 24], False),
        "decode_image": (decode, [1, 2, 1, 2, 3], False)})


def opensora():
    from diffusers import AutoencoderKL

    from opensora_vae import OpenSoraVae

    spatial = {"block_out_channels": [4, 8], "layers_per_block": 1, "latent_channels": 2,
               "norm_num_groups": 2}
    temporal = {"channels": 2, "filters": 4, "num_res_blocks": 1, "channel_multipliers": [1, 2, 2],
                "temporal_downsample": [False, True], "num_groups": 2}
    types = {"down_block_types": ["DownEncoderBlock2D"] * 2,
             "up_block_types": ["UpDecoderBlock2D"] * 2}
    model = OpenSoraVae(AutoencoderKL(**spatial, **types), temporal, micro_frames=5)

    # Clips of 8 frames: a chunk of 5, and one of 3, which begins with a frame of zeros.
    write("opensora_vae", {"spatial": spatial, "temporal": temporal, "micro_frame_size": 5}, model, {
        "encode": (model.encode, [1, 3, 8, 4, 6], True),
        "decode": (lambda z: model.decode(z, 8), [1, 2, 5, 2, 3], True),
        "encode_image": (model.encode, [1, 3, 1, 4, 6], False),
        "decode_image": (lambda z: model.decode(z, 1), [1, 2, 1, 2, 3], False)})


def opensora_causal():
    from opensora_causal_vae import OpenSoraCausalVae

    config = {"latent_channels": 2, "channels": 4, "channel_multipliers": [1, 2, 2],
              "num_res_blocks": 1, "temporal_downsample": [False, True], "num_groups": 2,
              "micro_frame_size": 5}
    model = OpenSoraCausalVae(config)
    # Clips of 7 frames: a chunk of 5, and one of 3, of which the first is the other's last.
    write("opensora_causal_vae", config, model, {
        "encode": (model.encode, [2, 3, 7, 8, 12], True),
        "decode": (model.decode, [1, 2, 5, 2, 3], True),
        "encode_image": (model.encode, [1, 3, 1, 8, 12], False),
        "decode_image": (model.decode, [1, 2, 1, 2, 3], False)})


def dc_ae():
    from video_dc_ae import VideoDcAe

    config = {"latent_channels": 4, "widths": [4, 8, 8], "encoder_depths": [1, 1, 1],
              "decoder_depths": [1, 1, 1], "first_attention_stage": 1, "attention_dim": 4,
              "temporal": [False, True, False]}
    model = VideoDcAe(config)
    write("dc_ae_video", config, model, {
        "encode": (model.encoder, [2, 3, 4, 8, 12], True),
        "decode": (model.decoder, [1, 4, 2, 3, 2], True),
        "encode_image": (model.encoder, [1, 3, 1, 8, 12], False),
        "decode_image": (model.decoder, [1, 4, 1, 2, 3], False)})


def wan():
    from diffusers import AutoencoderKLWan
    from diffusers.models.autoencoders import autoencoder_kl_wan

    autoencoder_kl_wan.WanUpsample.forward = torch.nn.Upsample.forward  # theirs rounds to float32
    config = {"base_dim": 4, "z_dim": 2, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 1,
              "temperal_downsample": [False, True, True], "latents_mean": [0.5, -0.25],
              "latents_std": [2.0, 0.5]}
    write_wan("wan_vae", config, [2, 3, 9, 16, 24])
    write_wan("wan_vae_residual", config | {
        "decoder_base_dim": 6, "is_residual": True, "in_channels": 12, "out_channels": 12, "patch_size": 2,
        "scale_factor_spatial": 16}, [1, 3, 9, 32, 48])


def write_wan(name, config, clip):
    from diffusers import AutoencoderKLWan
    from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

    model = AutoencoderKLWan(**config)

    def encode(x):
        return model._encode(x)

    def decode(z):  # without the clamp at its end
        model.clear_cache()
        z = model.post_quant_conv(z)
        frames = []
        for i in range(z.shape[2]):
            model._conv_idx = [0]
            frames.append(model.decoder(z[:, :, i:i + 1], feat_cache=model._feat_map,
                                        feat_idx=model._conv_idx, first_chunk=i == 0))
        return unpatchify(torch.cat(frames, 2), config.get("patch_size", 1))

    write(name, config, model, {
        "encode": (encode, clip, True), "decode": (decode, [1, 2, 4, 2, 3], True),
        "encode_image": (encode, [1, 3, 1, *clip[3:]], False),
        "decode_image": (decode, [1, 2, 1, 2, 3], False)})


def wan_names():
    """tests/models/data/wan_vae_names.json: each key of Wan 2.1's own file, and diffusers' key of it."""
    from diffusers import AutoencoderKLWan
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers

    def layers(*paths):
        return [f"{path}.{kind}" for path in paths for kind in ("weight", "bias")]

    def block(path, widens=False):
        norms = [path + ".residual.0.gamma", path + ".residual.3.gamma"]
        more = layers(path + ".shortcut") if widens else []
        return norms + layers(path + ".residual.2", path + ".residual.6") + more

    keys = layers("conv1", "conv2")
    for half in "encoder", "decoder":
        keys += layers(half + ".conv1", half + ".head.2", half + ".middle.1.to_qkv", half + ".middle.1.proj")
        keys += [half + ".head.0.gamma", half + ".middle.1.norm.gamma"]
        keys += block(half + ".middle.0") + block(half + ".middle.2")
    resamplers = {"encoder.downsamples": (11, (2, 5, 8), 2, (3, 6)), "decoder.upsamples": (15, (3, 7, 11), 11, (4,))}
    for path, (count, resampling, in_space, widening) in resamplers.items():
        for number in range(count):
            own = f"{path}.{number}"
            if number not in resampling:
                keys += block(own, number in widening)
            else:
                keys += layers(own + ".resample.1") + ([] if number == in_space else layers(own + ".time_conv"))
    names = {key: next(iter(convert_wan_vae_to_diffusers({key: None}))) for key in keys}
    with torch.device("meta"):
        assert sorted(names.values()) == sorted(AutoencoderKLWan().state_dict())
    path = ROOT.parent / "tests/models/data/wan_vae_names.json"
    path.write_text(json.dumps(names, indent=0) + "\n")
    print(path.name, path.stat().st_size, "bytes,", len(names), "names")


def cogvideox():
    from diffusers import AutoencoderKLCogVideoX

    config = {"block_out_channels": [8, 8, 16, 16], "layers_per_block": 1, "latent_channels": 2,
              "norm_num_groups": 4, "scaling_factor": 0.5}
    types = {"down_block_types": ["CogVideoXDownBlock3D"] * 4, "up_block_types": ["CogVideoXUpBlock3D"] * 4}
    model = AutoencoderKLCogVideoX(**config, **types)

    def decode(z):
        return model._decode(z).sample

    # Pieces of 9 and 8 frames, of 3 and 2 latent frames, of 2 and 2.
    write("cogvideox_vae", config, model, {
        "encode": (model._encode, [2, 3, 17, 16, 24], True), "decode": (decode, [1, 2, 5, 2, 3], True),
        "encode_image": (model._encode, [1, 3, 1, 16, 24], False),
        "decode_image": (decode, [1, 2, 1, 2, 3], False), "decode_even": (decode, [1, 2, 4, 2, 3], False)})


def ltx():
    """ltx_vae is as 0.9's; ltx_vae_told has the encoder of 0.9.5's and the decoder of 0.9.1's, told LEVEL."""
    from diffusers import AutoencoderKLLTXVideo
    from diffusers.models.normalization import RMSNorm

    RMSNorm.forward = lambda self, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)  # theirs is float32
    first = {"latent_channels": 4, "block_out_channels": [4, 6, 8], "decoder_block_out_channels": [4, 6, 8],
             "layers_per_block": [1, 1, 1, 1], "decoder_layers_per_block": [1, 1, 2, 1],
             "spatio_temporal_scaling": [True, True, False], "decoder_spatio_temporal_scaling": [True, True, False],
             "decoder_inject_noise": [False] * 4, "upsample_residual": [False] * 3, "upsample_factor": [1] * 3,
             "down_block_types": ["LTXVideoDownBlock3D"] * 3, "patch_size": 2}
    told = {"latent_channels": 4, "block_out_channels": [4, 8, 8, 16], "decoder_block_out_channels": [8, 16],
            "layers_per_block": [1, 1, 1, 2], "decoder_layers_per_block": [1, 2, 1],
            "spatio_temporal_scaling": [True, True, True], "decoder_spatio_temporal_scaling": [True, True],
            "decoder_inject_noise": [False, True, True], "upsample_residual": [True, True], "upsample_factor": [2, 2],
            "down_block_types": ["LTXVideo095DownBlock3D"] * 3, "patch_size": 2, "timestep_conditioning": True,
            "downsample_type": ["spatial", "temporal", "spatiotemporal"], "encoder_causal": False,
            "decoder_causal": True, "spatial_compression_ratio": 8, "temporal_compression_ratio": 4}
    write_ltx("ltx_vae", first, AutoencoderKLLTXVideo(**first))
    write_ltx("ltx_vae_told", told, AutoencoderKLLTXVideo(**told))


LEVEL = 0.05


def write_ltx(name, config, model):
    from philox import DecoderNoise

    def decode(z):
        level = torch.full([len(z)], LEVEL, dtype=z.dtype) if config.get("timestep_conditioning") else None
        with mock.patch("torch.randn", DecoderNoise(model)):
            return model.decoder(z, level)

    write(name, config, model, {
        "encode": (model.encoder, [2, 3, 5, 16, 24], True), "decode": (decode, [1, 4, 3, 2, 3], True),
        "encode_image": (model.encoder, [1, 3, 1, 16, 24], False),
        "decode_image": (decode, [1, 4, 1, 2, 3], False)})


def latent_upsampler():
    """LTXLatentUpsamplerModel, whose cases are forward, and LTXLatentUpsamplePipeline with an autoencoder's statistics:
    plain, with adain_factor and tone_map_compression_ratio (tuned), of clips (3) and of frames (2)."""
    from diffusers import AutoencoderKLLTXVideo, LTXLatentUpsamplePipeline
    from diffusers.pipelines.ltx.modeling_latent_upsampler import LTXLatentUpsamplerModel

    vae = AutoencoderKLLTXVideo(latent_channels=4, block_out_channels=(4,), decoder_block_out_channels=(4,),
                                down_block_types=("LTXVideoDownBlock3D",), layers_per_block=(1, 1),
                                decoder_layers_per_block=(1, 1), spatio_temporal_scaling=(True,),
                                decoder_spatio_temporal_scaling=(True,), decoder_inject_noise=(False, False),
                                upsample_residual=(False,), upsample_factor=(1,))
    vae.latents_mean.copy_(torch.tensor([0.5, -0.25, 0.0, 0.125]))
    vae.latents_std.copy_(torch.tensor([2.0, 0.5, 1.0, 1.5]))
    for dims in 2, 3:
        config = {"in_channels": 4, "mid_channels": 32, "num_blocks_per_stage": 2, "dims": dims}
        model = LTXLatentUpsamplerModel(**config).double()
        pipeline = LTXLatentUpsamplePipeline(vae, model)

        def run(z, **tuning):
            return pipeline(latents=z, output_type="latent", return_dict=False, **tuning)[0]

        def tuned(z):
            return run(z, adain_factor=0.6, tone_map_compression_ratio=0.7)

        shape = [2, 4, 3, 2, 5]
        write(f"latent_upsampler_{dims}d", config, model, {
            "forward": (model, shape, False), "plain": (run, shape, False), "tuned": (tuned, shape, False)})


MAKERS = {"latent_upsampler": latent_upsampler, "cogvideox_vae": cogvideox, "hunyuan_vae": hunyuan, "opensora_vae": opensora, "opensora_causal_vae": opensora_causal,
          "dc_ae_video": dc_ae, "wan_vae": wan, "wan_vae_names": wan_names, "ltx_vae": ltx}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or MAKERS:
        MAKERS[name]()
