#!/usr/bin/env python3
"""Writes tests/inference/data/{pixart_alpha,pixart_sigma,latte,dit,sd1,sd2,sdxl,refiner,flux,sd3,wan,wan_*,hunyuan_video,hunyuan_video_*,cogvideox,cogvideox_*,ltx}/: tiny pipelines of random weights as
diffusers saves them, and what diffusers draws with them. Wants torch, diffusers 0.42, transformers 5,
beautifulsoup4, ftfy, scipy. With names as arguments it writes only those.

The folder is a pipeline's: model_index.json, transformer/, scheduler/, text_encoder/, vae/ (weights bf16, so
that they are small) and tokenizer/ with a file of tests/tokenizers/data. drawn.safetensors beside them, fp32:

  noise           [B, 4, 8, 8]: philox(SEED, b), Kinora's noise of sample b
  states          [rows, 16]: the text encoder's of the prompts and the negative prompt, padding left out
  lengths         I64 [B + 1]: rows of each
  latents         [B, 4, 8, 8]: what 4 steps with guidance give
  pictures        F16 [B, 3, 64, 64] in [0, 1]: these decoded

Its metadata has the prompts. The third is longer than the pipeline reads.

Of latte/ each prompt is drawn by itself: LattePipeline cuts the negative caption's padded states to as many as
the prompt has, which in a batch are all. "states" ends with all of the negative's, noise and latents are
[B, 4, T, 8, 8] and pictures F16 [B, 3, T, 16, 16].

Of sd1/ and sd2/ (Stable Diffusion) the parts are unet/ and a CLIP, states have all 77 tokens, and
latents.NAME are those with another scheduler.

Of sdxl/ and refiner/ there are two CLIPs or one, "pooled" [B + 1, P] beside the states, and "unguided" [B, 4, 8, 8]:
the latents without a negative prompt.

Of flux/ and sd3/ there are a T5 and one or two CLIPs, "pooled" [B + 1, P] beside the states, which are as many
for each text, and two prompts.

Of wan/ there are a UMT5 and two prompts, noise and latents are [B, 4, 3, 4, 6] and pictures F16
[B, 3, 9, 32, 48]; latents.euler are those with FlowMatchEulerDiscreteScheduler, and latents.strength the last of six
steps that WanVideoToVideoPipeline takes from "data".

wan_i2v/, wan_flf/ (2.1), wan_t2v_experts/, wan_i2v_experts/ and wan_ti2v/ (2.2) hold what is different of wan/, whose other
parts are theirs; first.png and last.png are the pictures that are shown, "image_states" what the image encoder says
of them, and the metadata "guidance_2" the scale of the second expert. Of wan_ti2v/, whose autoencoder is its own,
pictures are [B, 3, 9, 64, 96], and "latents.text" is what it draws without a picture.

Of hunyuan_video/ there are a Llama and a CLIP, "pooled" [B + 1, P] beside the states, two prompts, noise and latents
[B, 4, 3, 4, 6] and pictures F16 [B, 3, 9, 32, 48]; "latents.guided" are those with true_cfg_scale 3. Its
tokenizer, whose words are those of the prompt template and of the prompts, is made here. hunyuan_video_i2v/ holds what
is different of it for HunyuanVideoImageToVideoPipeline with image_condition_type token_replace, three prompts and the
first picture of these, and hunyuan_video_i2v_33ch/ what is different of that with latent_concat, and pictures
[1, 3, 5, 32, 48].

Of cogvideox/ there are a T5, whose states are 226 of each text, two prompts, noise and latents [B, 4, 3, 4, 6] and
pictures F16 [B, 3, 9, 32, 48]; "latents.dpm" are those with CogVideoXDPMScheduler and dynamic guidance, whose
configuration is that metadata, and "latents.strength" the last of eight steps that CogVideoXVideoToVideoPipeline takes
from "data". cogvideox_i2v/ and cogvideox_15_i2v/ hold what is different of it, as Wan's do; of the
latter, whose noise has a frame more, "latents" leave out the first.

Of ltx/ there are a T5 and two prompts, noise and latents [B, 4, 3, 2, 4] and pictures F16 [B, 3, 9, 32, 64];
"pictures.told" is the first, decoded at a level of noise, and "latents.given" and "pictures.given" are those of
LTXImageToVideoPipeline with first.png at 30 frames a second; "latents.condition" and "latents.condition_given" are
LTXConditionPipeline's of five steps with a scheduler without dynamic shift, from words and from first.png without
noise on it, and "latents.condition_noised" with it. "latents.placed", "latents.placed_noised" and "pictures.placed" (of the
first, each fourth frame) are clips of 17 frames with pictures and a clip at other frames (draw_ltx_placed), and "latents.placed_strength"
[1, 4, 5, 2, 4] what the last steps make of "clip" and a picture in its middle. The autoencoder's noise is philox.py's.

Of dit/ "labels" (metadata) are drawn, with the timestep's frequencies of the original DiT; latents.NAME are those with another scheduler, whose configuration is the
metadata of that name. What a scheduler adds as noise is philox(SEED, b, step) here too.
"""

import json
import math
import pathlib
import shutil
import sys
import tempfile
from unittest import mock

import diffusers
import diffusers.pipelines.cogvideo.pipeline_cogvideox_video2video as cogvideox_clips
import diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video as hunyuan_pipeline
import diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video_image2video as hunyuan_images
import diffusers.pipelines.ltx.pipeline_ltx_condition
import diffusers.pipelines.wan.pipeline_wan_video2video as wan_clips
import diffusers.schedulers.scheduling_dpm_cogvideox as cogvideox_dpm
import numpy
import PIL.Image
import tokenizers
import torch
import transformers

import tensor_file
from philox import SAMPLER_NOISE, DecoderNoise, philox

TESTS = pathlib.Path(__file__).resolve().parents[2] / "tests"
SEED = 5
STRENGTH = 0.6
PROMPTS = ["a red circle", "A <b>Blue</b> cross &amp; a square, see www.example.com/x.png", "two green stars " * 110]


def randomised(model, seed):
    """Nothing is zero; values that bf16 holds."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            draw = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                draw = draw / math.sqrt(math.prod(parameter.shape[1:]))
            elif name.endswith("weight"):
                draw = 1 + draw / 4
            else:
                draw = draw / 8
            parameter.copy_(draw.to(torch.bfloat16))
    return model.to(torch.bfloat16)


def text_encoder(width=16):
    config = transformers.T5Config(vocab_size=800, d_model=width, d_kv=4, d_ff=24, num_layers=2, num_heads=4,
                                   feed_forward_proj="gated-gelu")
    return randomised(transformers.T5EncoderModel(config), 1)


def autoencoder(*channels, scaling_factor, **more):
    levels = len(channels)
    return randomised(diffusers.AutoencoderKL(
        block_out_channels=channels, down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels, latent_channels=4, norm_num_groups=2, layers_per_block=1,
        scaling_factor=scaling_factor, sample_size=8 << (levels - 1), **more), 3)


def components():
    transformer = diffusers.PixArtTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2,
        cross_attention_dim=16, sample_size=8, caption_channels=16, norm_eps=1e-6)
    return {"text_encoder": text_encoder(), "transformer": randomised(transformer, 2),
            "vae": autoencoder(4, 4, 8, 8, scaling_factor=0.13025)}


def initial_noise(count, *shape, seed=SEED):
    return torch.stack([philox(seed, b, math.prod(shape)).reshape(shape) for b in range(count)])


def drawn_from_clip(pipeline_class, module, pipeline, encoded, noise, steps, negative, prompts):
    """Latents that a pipeline from clips makes of what its autoencoder says, `encoded`, by the last of its
    steps."""
    whole = pipeline_class(**{name: part for name, part in pipeline.components.items()
                              if not name.startswith("transformer_")})
    whole.set_progress_bar_config(disable=True)
    clips = iter(encoded)
    frames = [[PIL.Image.new("RGB", (48, 32))] * 9 for _ in prompts]
    with mock.patch.object(module, "retrieve_latents", lambda *_, **__: next(clips)[None]), \
            mock.patch.object(module, "randn_tensor", lambda shape, **_: noise):
        return whole(video=frames, prompt=prompts, negative_prompt=[negative] * len(prompts), height=32, width=48,
                     num_inference_steps=steps, strength=STRENGTH, output_type="latent").frames


def report(name, folder, tensors):
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    pictures = tensors["pictures"].float()
    print(name, size, "bytes, latents' deviation", float(tensors["latents"].std()), "pictures'",
          float(pictures.std()), "clamped", float(((pictures == 0) | (pictures == 1)).float().mean()))


def save_parts(name, parts):
    folder = TESTS / "inference/data" / name
    shutil.rmtree(folder, ignore_errors=True)
    for part, model in parts.items():
        model.save_pretrained(folder / part)
    return folder


def open_pipeline(pipeline_class, folder):
    pipeline = pipeline_class.from_pretrained(folder, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def write(name, pipeline_class, tokenizer, scheduler, negative, longest):
    parts = {**components(), "scheduler": scheduler}
    folder = save_parts(name, parts)
    shutil.copytree(TESTS / "tokenizers/data" / tokenizer, folder / "tokenizer")
    pipeline_class(tokenizer=transformers.T5Tokenizer.from_pretrained(folder / "tokenizer"),
                   **parts).save_config(folder)

    pipeline = open_pipeline(pipeline_class, folder)
    noise = initial_noise(len(PROMPTS), 4, 8, 8)

    def draw(output_type):
        return pipeline(PROMPTS, negative, num_inference_steps=4, latents=noise.clone(), output_type=output_type,
                        use_resolution_binning=False).images

    states, mask, null, null_mask = pipeline.encode_prompt(
        PROMPTS, negative_prompt=negative, clean_caption=True, max_sequence_length=longest)
    states, mask = torch.cat([states, null[:1]]), torch.cat([mask, null_mask[:1]]).bool()
    with torch.no_grad():
        tensors = {"noise": noise, "states": states[mask].detach(), "lengths": mask.sum(1),
                   "latents": draw("latent"), "pictures": draw("pt").half()}
    tensor_file.save(folder / "drawn.safetensors", tensors, {
        "kinora_fixture": "pipeline", "version": "1", "seed": str(SEED), "negative": negative,
        "prompts": json.dumps(PROMPTS)})
    report(name, folder, tensors)


def write_latte(name, scheduler, negative):
    transformer = diffusers.LatteTransformer3DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2,
        cross_attention_dim=16, attention_bias=True, sample_size=8, patch_size=2,
        activation_fn="gelu-approximate", num_embeds_ada_norm=1000, norm_type="ada_norm_single",
        norm_elementwise_affine=False, norm_eps=1e-6, caption_channels=16, video_length=4)
    parts = {"text_encoder": text_encoder(), "transformer": randomised(transformer, 2),
             "vae": autoencoder(4, 8, scaling_factor=0.18215), "scheduler": scheduler}
    folder = save_parts(name, parts)
    shutil.copytree(TESTS / "tokenizers/data/t5_json", folder / "tokenizer")
    diffusers.LattePipeline(tokenizer=transformers.T5Tokenizer.from_pretrained(folder / "tokenizer"),
                            **parts).save_config(folder)

    pipeline = open_pipeline(diffusers.LattePipeline, folder)
    prompts = PROMPTS[:2]
    noise = initial_noise(len(prompts), 4, 4, 8, 8)

    def draw(output_type):
        return torch.cat([pipeline(prompt, negative, num_inference_steps=4, latents=noise[b:b + 1].clone(),
                                   video_length=4, height=16, width=16, output_type=output_type).frames
                          for b, prompt in enumerate(prompts)])

    states = []
    with torch.no_grad():
        for prompt in prompts:
            states.append(pipeline.encode_prompt(prompt, clean_caption=True)[0][0])
        states.append(pipeline.encode_prompt(negative, clean_caption=True, mask_feature=False)[0][0])
        tensors = {"noise": noise, "states": torch.cat(states),
                   "lengths": torch.tensor([len(each) for each in states]), "latents": draw("latent"),
                   "pictures": draw("pt").transpose(1, 2).half().contiguous()}
    tensor_file.save(folder / "drawn.safetensors", tensors, {
        "kinora_fixture": "pipeline", "version": "1", "seed": str(SEED), "negative": negative,
        "prompts": json.dumps(prompts)})
    report(name, folder, tensors)


# The other schedulers that a folder of Stable Diffusion is tried with.
SD_SCHEDULERS = {
    "ddim": (diffusers.DDIMScheduler, {"clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1}),
    "dpm": (diffusers.DPMSolverMultistepScheduler, {"use_karras_sigmas": True}),
    "euler": (diffusers.EulerDiscreteScheduler, {"timestep_spacing": "leading", "steps_offset": 1}),
}
CHAIN = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
SD_PROMPTS = ["a Red circle, by someone", "A <b>Blue</b> cross & a square", "two green stars " * 40]


def write_sd(name, scheduler, negative, clip, unet):
    config = transformers.CLIPTextConfig(
        vocab_size=1064, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=77, bos_token_id=1062, eos_token_id=1063, **clip)
    denoiser = diffusers.UNet2DConditionModel(
        sample_size=8, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, cross_attention_dim=16,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        **unet)
    parts = {"text_encoder": randomised(transformers.CLIPTextModel(config), 1), "unet": randomised(denoiser, 2),
             "vae": autoencoder(4, 4, 8, 8, scaling_factor=0.18215), "scheduler": scheduler}
    folder = save_parts(name, parts)
    shutil.copytree(TESTS / "tokenizers/data/clip", folder / "tokenizer")
    diffusers.StableDiffusionPipeline(
        tokenizer=transformers.CLIPTokenizer.from_pretrained(folder / "tokenizer"), safety_checker=None,
        feature_extractor=None, requires_safety_checker=False, **parts).save_config(folder)

    pipeline = open_pipeline(diffusers.StableDiffusionPipeline, folder)
    noise = initial_noise(len(SD_PROMPTS), 4, 8, 8)

    def draw(output_type, scheduler=scheduler):
        pipeline.scheduler = scheduler
        return pipeline(SD_PROMPTS, negative_prompt=[negative] * len(SD_PROMPTS), num_inference_steps=4,
                        latents=noise.clone(), height=64, width=64, output_type=output_type).images

    with torch.no_grad():
        states, null = pipeline.encode_prompt(SD_PROMPTS, "cpu", 1, True, negative_prompt=[negative] * len(SD_PROMPTS))
        states = torch.cat([states, null[:1]])
        tensors = {"noise": noise, "states": states.flatten(0, 1), "lengths": torch.full([len(states)], 77),
                   "latents": draw("latent"), "pictures": draw("pt").half()}
        metadata = {"kinora_fixture": "pipeline", "version": "1", "seed": str(SEED), "negative": negative,
                    "prompts": json.dumps(SD_PROMPTS)}
        for kind, (scheduler_class, options) in SD_SCHEDULERS.items():
            other = scheduler_class(**CHAIN, prediction_type=scheduler.config.prediction_type, **options)
            tensors["latents." + kind] = draw("latent", other)
            metadata["latents." + kind] = other.to_json_string()
    tensor_file.save(folder / "drawn.safetensors", tensors, metadata)
    report(name, folder, tensors)


def write_sdxl(name, pipeline_class, scheduler, negative, unet, **options):
    def clip(kind, **changes):
        return kind(transformers.CLIPTextConfig(**(dict(
            vocab_size=1064, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24,
            max_position_embeddings=77, bos_token_id=1062) | changes)))

    second = clip(transformers.CLIPTextModelWithProjection, hidden_size=12, projection_dim=10, hidden_act="gelu",
                  eos_token_id=2)
    first = clip(transformers.CLIPTextModel, hidden_size=16, hidden_act="quick_gelu", eos_token_id=1063)
    encoders = ({} if name == "refiner" else {"text_encoder": randomised(first, 1)}) | {
        "text_encoder_2": randomised(second, 4)}
    width = sum(encoder.config.hidden_size for encoder in encoders.values())
    denoiser = diffusers.UNet2DConditionModel(
        sample_size=8, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, cross_attention_dim=width,
        attention_head_dim=[2, 4], use_linear_projection=True, addition_embed_type="text_time",
        addition_time_embed_dim=4, **unet)
    parts = encoders | {"unet": randomised(denoiser, 2), "vae": autoencoder(4, 4, 8, 8, scaling_factor=0.13025),
                        "scheduler": scheduler}
    folder = save_parts(name, parts)
    tokenizers = {}
    for number in (["", "_2"] if "text_encoder" in encoders else ["_2"]):
        shutil.copytree(TESTS / "tokenizers/data/clip", folder / ("tokenizer" + number))
        tokenizers["tokenizer" + number] = transformers.CLIPTokenizer.from_pretrained(folder / ("tokenizer" + number))
    for file in ("tokenizer_config.json", "special_tokens_map.json"):  # the second is padded as OpenCLIP does it
        values = json.loads((folder / "tokenizer_2" / file).read_text())
        values["pad_token"] = "!"
        (folder / "tokenizer_2" / file).write_text(json.dumps(values))
    nothing = {key: None for key in ("text_encoder", "tokenizer") if key not in encoders and name == "refiner"}
    pipeline_class(**parts, **tokenizers, **nothing, **options).save_config(folder)

    pipeline = open_pipeline(pipeline_class, folder)
    noise = initial_noise(len(SD_PROMPTS), 4, 8, 8)
    negatives = [negative] * len(SD_PROMPTS)

    def draw(output_type, **more):
        if name == "refiner":  # all of its steps, from noise; it takes no start of 0, before which it adds none
            pipeline.scheduler.set_timesteps(4)
            more |= {"image": noise * pipeline.scheduler.init_noise_sigma, "denoising_start": 1e-6}
        else:
            more |= {"latents": noise.clone(), "height": 64, "width": 64}
        return pipeline(SD_PROMPTS, num_inference_steps=4, guidance_scale=5.0, output_type=output_type, **more).images

    with torch.no_grad():
        states, null, pooled, null_pooled = pipeline.encode_prompt(
            SD_PROMPTS, device="cpu", num_images_per_prompt=1, do_classifier_free_guidance=True,
            negative_prompt=negatives)
        states = torch.cat([states, null[:1]])
        tensors = {"noise": noise, "states": states.flatten(0, 1), "lengths": torch.full([len(states)], 77),
                   "pooled": torch.cat([pooled, null_pooled[:1]]), "latents": draw("latent", negative_prompt=negatives),
                   "pictures": draw("pt", negative_prompt=negatives).half(), "unguided": draw("latent")}
    tensor_file.save(folder / "drawn.safetensors", tensors,
                     {"kinora_fixture": "pipeline", "version": "1", "seed": str(SEED), "negative": negative,
                      "prompts": json.dumps(SD_PROMPTS)})
    report(name, folder, tensors)


def write_multimodal(name, pipeline_class, scheduler, negative, clips):
    """Flux and Stable Diffusion 3: `clips` CLIPs, then a T5."""
    def part(kind, number):
        return kind + (f"_{number + 1}" if number else "")

    is_flux = clips == 1
    encoders, tokenizers = {}, {}
    for i in range(clips):
        config = transformers.CLIPTextConfig(
            vocab_size=1064, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24, bos_token_id=1062,
            max_position_embeddings=77, hidden_size=16 - 4 * i, projection_dim=16 - 6 * i,
            hidden_act="gelu" if i else "quick_gelu", eos_token_id=2 if i else 1063)
        kind = transformers.CLIPTextModel if is_flux else transformers.CLIPTextModelWithProjection
        encoders[part("text_encoder", i)] = randomised(kind(config), 1 + 3 * i)
        tokenizers[part("tokenizer", i)] = ("clip", transformers.CLIPTokenizer)
    encoders[part("text_encoder", clips)] = text_encoder(16 if is_flux else 32)
    tokenizers[part("tokenizer", clips)] = ("t5_json", transformers.T5TokenizerFast)
    if is_flux:
        transformer = diffusers.FluxTransformer2DModel(
            in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
            joint_attention_dim=16, pooled_projection_dim=16, guidance_embeds=True, axes_dims_rope=(4, 6, 6))
    else:
        transformer = diffusers.SD3Transformer2DModel(
            sample_size=8, patch_size=2, in_channels=4, out_channels=4, num_layers=3, attention_head_dim=8,
            num_attention_heads=2, joint_attention_dim=32, caption_projection_dim=16, pooled_projection_dim=26,
            pos_embed_max_size=6, qk_norm="rms_norm", dual_attention_layers=(0,))
    parts = encoders | {"transformer": randomised(transformer, 2), "scheduler": scheduler,
                        "vae": autoencoder(4, 4, 8, 8, scaling_factor=0.3611, shift_factor=0.1159,
                                           use_quant_conv=False, use_post_quant_conv=False)}
    folder = save_parts(name, parts)
    made = {}
    for key, (files, kind) in tokenizers.items():
        shutil.copytree(TESTS / "tokenizers/data" / files, folder / key)
        if key == "tokenizer_2" and not is_flux:  # padded as OpenCLIP does it
            for file in ("tokenizer_config.json", "special_tokens_map.json"):
                values = json.loads((folder / key / file).read_text())
                values["pad_token"] = "!"
                (folder / key / file).write_text(json.dumps(values))
        made[key] = kind.from_pretrained(folder / key)
    nothing = {"image_encoder": None, "feature_extractor": None}
    pipeline_class(**parts, **made, **nothing).save_config(folder)

    pipeline = open_pipeline(pipeline_class, folder)
    prompts = ["a red circle", "two green stars " * 110]
    noise = initial_noise(len(prompts), 4, 8, 8)

    def draw(output_type):
        options = {"num_inference_steps": 4, "height": 64, "width": 64, "output_type": output_type}
        if is_flux:
            packed = pipeline._pack_latents(noise, len(prompts), 4, 8, 8)
            drawn = pipeline(prompts, latents=packed, guidance_scale=3.5, **options).images
            return pipeline._unpack_latents(drawn, 64, 64, 8) if output_type == "latent" else drawn
        return pipeline(prompts, negative_prompt=[negative] * len(prompts), latents=noise.clone(),
                        guidance_scale=7.0, **options).images

    with torch.no_grad():
        if is_flux:
            states, pooled, _ = pipeline.encode_prompt(prompts + [negative], None)
        else:
            states, _, pooled, _ = pipeline.encode_prompt(prompts + [negative], None, None,
                                                          do_classifier_free_guidance=False)
        tensors = {"noise": noise, "states": states.flatten(0, 1),
                   "lengths": torch.full([len(states)], states.shape[1]), "pooled": pooled,
                   "latents": draw("latent"), "pictures": draw("pt").half()}
    tensor_file.save(folder / "drawn.safetensors", tensors,
                     {"kinora_fixture": "pipeline", "version": "1", "seed": str(SEED), "negative": negative,
                      "prompts": json.dumps(prompts)})
    report(name, folder, tensors)


def write_wan(name, scheduler, negative):
    config = transformers.UMT5Config(vocab_size=800, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4,
                                     feed_forward_proj="gated-gelu")
    transformer = diffusers.WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16, ffn_dim=40,
        num_layers=2, rope_max_seq_len=64)
    vae = diffusers.AutoencoderKLWan(base_dim=4, z_dim=4, num_res_blocks=1, latents_mean=[0.5, -0.25, 0.0, 0.125],
                                     latents_std=[2.0, 0.5, 1.0, 1.5])
    parts = {"text_encoder": randomised(transformers.UMT5EncoderModel(config), 1),
             "transformer": randomised(transformer, 2), "vae": randomised(vae, 3), "scheduler": scheduler}
    folder = save_parts(name, parts)
    shutil.copytree(TESTS / "tokenizers/data/t5_json", folder / "tokenizer")
    diffusers.WanPipeline(tokenizer=transformers.T5TokenizerFast.from_pretrained(folder / "tokenizer"),
                          **parts).save_config(folder)

    pipeline = open_pipeline(diffusers.WanPipeline, folder)
    prompts = [PROMPTS[1], "two green stars " * 110]
    noise = initial_noise(len(prompts), 4, 3, 4, 6)

    def draw(output_type):
        return pipeline(prompts, [negative] * len(prompts), num_inference_steps=4, latents=noise.clone(),
                        num_frames=9, height=32, width=48, output_type=output_type).frames

    with torch.no_grad():
        states, null = pipeline.encode_prompt(prompts, [negative] * len(prompts), max_sequence_length=512)
        states = torch.cat([states, null[:1]])
        mask = states.abs().sum(2) > 0
        tensors = {"noise": noise, "states": states[mask], "lengths": mask.sum(1), "latents": draw("latent"),
                   "pictures": draw("pt").transpose(1, 2).half()}
        data = initial_noise(len(prompts), 4, 3, 4, 6, seed=SEED + 1)
        deviation, mean = (torch.tensor(part).view(1, 4, 1, 1, 1) for part in (vae.config.latents_std, vae.config.latents_mean))
        tensors["data"] = data
        tensors["latents.strength"] = drawn_from_clip(
            diffusers.WanVideoToVideoPipeline, wan_clips, pipeline, data * deviation + mean, noise, 6, negative,
            prompts)
        pipeline.scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
        tensors["latents.euler"] = draw("latent")
    tensor_file.save(folder / "drawn.safetensors", tensors,
                     {"kinora_fixture": "pipeline", "version": "1", "seed": str(SEED), "negative": negative,
                      "prompts": json.dumps(prompts), "latents.euler": pipeline.scheduler.to_json_string()})
    report(name, folder, tensors)


# The folders beside wan/: whether they are shown pictures, whether also a last one, and whether an image encoder
# reads them; experts: 2 of Wan 2.2.
WANS = {"wan_ti2v": (True, False, False, 1), "wan_i2v": (True, False, True, 1), "wan_flf": (True, True, True, 1),
        "wan_t2v_experts": (False, False, False, 2), "wan_i2v_experts": (True, True, False, 2)}
BOUNDARY = 0.8


def smooth_picture(seed, height, width):
    coarse = torch.rand(1, 3, 4, 6, generator=torch.Generator().manual_seed(seed))
    pixels = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")[0]
    return PIL.Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).numpy())


def write_wan_beside(name, negative):
    shown, has_last, reads, experts = WANS[name]
    base = TESTS / "inference/data/wan"
    expands = name == "wan_ti2v"
    size = {"in_channels": 12 if shown and not expands else 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 12,
            "text_dim": 16, "ffn_dim": 40, "num_layers": 2, "rope_max_seq_len": 64}
    if reads:
        size |= {"image_dim": 8, "added_kv_proj_dim": 24, "pos_embed_seq_len": 10 if has_last else None}
    parts = {"transformer": randomised(diffusers.WanTransformer3DModel(**size), 4)}
    if experts == 2:
        parts["transformer_2"] = randomised(diffusers.WanTransformer3DModel(**size), 5)
    if reads:
        config = transformers.CLIPVisionConfig(hidden_size=8, intermediate_size=16, num_hidden_layers=2,
                                               num_attention_heads=2, image_size=8, patch_size=4, hidden_act="gelu")
        parts["image_encoder"] = randomised(transformers.CLIPVisionModel(config), 6)
        parts["image_processor"] = transformers.CLIPImageProcessorPil(
            size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
    if expands:
        parts["vae"] = randomised(diffusers.AutoencoderKLWan(
            base_dim=2, decoder_base_dim=4, z_dim=4, num_res_blocks=1, is_residual=True, in_channels=12,
            out_channels=12, patch_size=2, scale_factor_spatial=16, latents_mean=[0.5, -0.25, 0.0, 0.125],
            latents_std=[2.0, 0.5, 1.0, 1.5]), 3)
    folder = save_parts(name, parts)
    height, width = (64, 96) if expands else (32, 48)
    pictures = [smooth_picture(seed, height, width) for seed in ([1, 2] if has_last else [1])] if shown else []
    for picture, file in zip(pictures, ["first.png", "last.png"]):
        picture.save(folder / file)
    pipeline_class = diffusers.WanImageToVideoPipeline if shown else diffusers.WanPipeline
    more = {"boundary_ratio": BOUNDARY} if experts == 2 else {"expand_timesteps": True} if expands else {}
    opened = open_pipeline(diffusers.WanPipeline, base)
    whole = {"tokenizer": opened.tokenizer, "text_encoder": opened.text_encoder, "vae": opened.vae,
             "scheduler": opened.scheduler} | parts | more
    # As the published folder has it.
    (diffusers.WanPipeline if expands else pipeline_class)(**whole).save_config(folder)
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(base, scratch, dirs_exist_ok=True)
        for part in parts:
            shutil.rmtree(pathlib.Path(scratch) / part, ignore_errors=True)
        shutil.copytree(folder, scratch, dirs_exist_ok=True)
        pipeline = open_pipeline(pipeline_class, scratch)

    prompts = [PROMPTS[1], PROMPTS[0]]
    noise = initial_noise(len(prompts), 4, 3, 4, 6)
    given = {"image": pictures[0]} if shown else {}
    if has_last:
        given["last_image"] = pictures[1]
    scales = {"guidance_scale": 4.0, "guidance_scale_2": 2.5} if experts == 2 else {}

    def draw(output_type):
        return pipeline(prompt=prompts, negative_prompt=[negative] * len(prompts), num_inference_steps=4,
                        latents=noise.clone(), num_frames=9, height=height, width=width, output_type=output_type,
                        **given, **scales).frames

    with torch.no_grad():
        tensors = {"noise": noise, "latents": draw("latent"), "pictures": draw("pt").transpose(1, 2).half()}
        if reads:
            tensors["image_states"] = pipeline.encode_image(pictures, "cpu").flatten(0, 1)[None]
        if expands:
            components = {name: part for name, part in pipeline.components.items() if not name.startswith("image_")}
            given, pipeline = {}, diffusers.WanPipeline(**components, expand_timesteps=True)
            pipeline.set_progress_bar_config(disable=True)
            tensors["latents.text"] = draw("latent")
    tensor_file.save(folder / "drawn.safetensors", tensors,
                     {"kinora_fixture": "pipeline", "version": "1", "seed": str(SEED), "negative": negative,
                      "prompts": json.dumps(prompts), "guidance_2": str(scales.get("guidance_scale_2", 0))})
    report(name, folder, tensors)


def llama_tokenizer(folder, texts, more=()):
    """As LLaMA 3's, with a token for every word of `texts` and for the special ones `more`."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=True))
    published = tokenizers.Tokenizer.from_file(str(TESTS / "tokenizers/data/llama3/tokenizer.json"))
    tokenizer.pre_tokenizer, tokenizer.decoder = published.pre_tokenizer, published.decoder
    tokenizer.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
        vocab_size=4096, initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    begin = "<|begin_of_text|>"
    tokenizer.add_special_tokens([begin, "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<pad>", *more])
    tokenizer.post_processor = tokenizers.processors.Sequence([
        tokenizers.processors.ByteLevel(trim_offsets=False),
        tokenizers.processors.TemplateProcessing(single=begin + " $A", pair=begin + " $A $B",
                                                 special_tokens=[(begin, tokenizer.token_to_id(begin))])])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": begin, "eos_token": "<|eot_id|>", "pad_token": "<pad>",
         "padding_side": "right", "model_max_length": 256}) + "\n")
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def write_hunyuan_video(name, negative):
    template = hunyuan_pipeline.DEFAULT_PROMPT_TEMPLATE["template"]
    prompts = ["a red circle (moving), in 3 steps", "two green stars " * 110]
    clip = transformers.CLIPTextConfig(
        vocab_size=1064, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, bos_token_id=1062,
        max_position_embeddings=77, hidden_size=16, hidden_act="quick_gelu", eos_token_id=1063)
    transformer = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_layers=2, num_single_layers=2, num_refiner_layers=2, attention_head_dim=16,
        num_attention_heads=2, text_embed_dim=16, pooled_projection_dim=16, rope_axes_dim=(4, 6, 6))
    levels = 4
    vae = diffusers.AutoencoderKLHunyuanVideo(
        latent_channels=4, block_out_channels=(4,) * levels, layers_per_block=1, norm_num_groups=2,
        down_block_types=("HunyuanVideoDownBlock3D",) * levels, up_block_types=("HunyuanVideoUpBlock3D",) * levels)
    parts = {"text_encoder_2": randomised(transformers.CLIPTextModel(clip), 1),
             "transformer": randomised(transformer, 2), "vae": randomised(vae, 3),
             "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0)}
    folder = save_parts(name, parts)
    tokenizer = llama_tokenizer(folder / "tokenizer", [template, *prompts, negative])
    before = tokenizer(template.split("{}")[0])["input_ids"]
    assert len(before) == hunyuan_pipeline.DEFAULT_PROMPT_TEMPLATE["crop_start"], len(before)
    llama = transformers.LlamaModel(transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 5e5}))
    parts["text_encoder"] = randomised(llama, 4)
    parts["text_encoder"].save_pretrained(folder / "text_encoder")
    shutil.copytree(TESTS / "tokenizers/data/clip", folder / "tokenizer_2")
    diffusers.HunyuanVideoPipeline(
        tokenizer=tokenizer, tokenizer_2=transformers.CLIPTokenizer.from_pretrained(folder / "tokenizer_2"),
        **parts).save_config(folder)

    pipeline = open_pipeline(diffusers.HunyuanVideoPipeline, folder)
    noise = initial_noise(len(prompts), 4, 3, 4, 6)

    def draw(output_type, **more):
        return pipeline(prompts, num_inference_steps=4, latents=noise.clone(), num_frames=9, height=32, width=48,
                        output_type=output_type, **more).frames

    with torch.no_grad():
        states, pooled, mask = pipeline.encode_prompt(prompts + [negative])
        tensors = {"noise": noise, "states": states[mask.bool()], "lengths": mask.sum(1), "pooled": pooled,
                   "latents": draw("latent"), "pictures": draw("pt").transpose(1, 2).half(),
                   "latents.guided": draw("latent", negative_prompt=[negative] * len(prompts), true_cfg_scale=3.0)}
    tensor_file.save(folder / "drawn.safetensors", tensors,
                     {"kinora_fixture": "pipeline", "version": "1", "seed": str(SEED), "negative": negative,
                      "prompts": json.dumps(prompts)})
    print(tensors["lengths"])
    report(name, folder, tensors)


# From a first picture: the transformer's configuration, and the guidance scale that it is told.
HUNYUANS = {
    "hunyuan_video_i2v": ({"image_condition_type": "token_replace"}, 6.0),
    "hunyuan_video_i2v_33ch": ({"image_condition_type": "latent_concat", "in_channels": 9, "guidance_embeds": False},
                               1.0),
}


def llava(tokenizer):
    vision = transformers.CLIPVisionConfig(hidden_size=8, intermediate_size=16, num_hidden_layers=2,
                                           num_attention_heads=2, image_size=336, patch_size=14, projection_dim=8)
    text = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, pad_token_id=tokenizer.pad_token_id,
                                      image_token_index=tokenizer.convert_tokens_to_ids("<image>"))
    return randomised(transformers.LlavaForConditionalGeneration(config), 4)


def write_hunyuan_video_beside(name, negative):
    changes, scale = HUNYUANS[name]
    is_clean = changes["image_condition_type"] == "token_replace"
    base = TESTS / "inference/data/hunyuan_video"
    template = hunyuan_images.DEFAULT_PROMPT_TEMPLATE
    # The second is cut off; of the third all is there but the template's last "\n\n".
    prompts = ["a red circle (moving), in 3 steps", "two green stars " * 110, ("two green stars " * 84).strip()]
    transformer = diffusers.HunyuanVideoTransformer3DModel(**({
        "in_channels": 4, "out_channels": 4, "num_layers": 2, "num_single_layers": 2, "num_refiner_layers": 2,
        "attention_head_dim": 16, "num_attention_heads": 2, "text_embed_dim": 16, "pooled_projection_dim": 16,
        "rope_axes_dim": (4, 6, 6)} | changes))
    parts = {"transformer": randomised(transformer, 5)}
    folder = save_parts(name, parts)
    if is_clean:
        tokenizer = llama_tokenizer(folder / "tokenizer", [template["template"], *prompts, negative], ["<image>"])
        before = tokenizer(template["template"].split("{}")[0])["input_ids"]
        assert len(before) == template["crop_start"], len(before)
        assert tokenizer.decode(before[template["image_emb_start"]]) == "<image>"
        parts["text_encoder"] = llava(tokenizer)
        parts["text_encoder"].save_pretrained(folder / "text_encoder")
        parts["image_processor"] = transformers.CLIPImageProcessorPil(
            size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336})
        parts["image_processor"].save_pretrained(folder / "image_processor")
        smooth_picture(1, 32, 48).save(folder / "first.png")
    first = TESTS / "inference/data/hunyuan_video_i2v"
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(base, scratch, dirs_exist_ok=True)
        for part in ["transformer", "text_encoder"]:
            shutil.rmtree(pathlib.Path(scratch) / part)
        for beside in [first, folder]:
            shutil.copytree(beside, scratch, dirs_exist_ok=True)
        index = json.loads((pathlib.Path(scratch) / "model_index.json").read_text())
        index |= {"_class_name": "HunyuanVideoImageToVideoPipeline",
                  "image_processor": ["transformers", "CLIPImageProcessorPil"],
                  "text_encoder": ["transformers", "LlavaForConditionalGeneration"]}
        (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
        shutil.copy(folder / "model_index.json", scratch)
        pipeline = open_pipeline(diffusers.HunyuanVideoImageToVideoPipeline, scratch)
    picture = PIL.Image.open(first / "first.png")
    noise = initial_noise(len(prompts), 4, 3, 4, 6)
    stride = 4 if is_clean else 2
    whole = []

    def keep(pipeline, step, time, values):
        whole.append(values["latents"])
        return values

    def draw(output_type, **more):
        """Prompt by prompt: the pipeline has one picture."""
        drawn = []
        for i, prompt in enumerate(prompts[:1] if output_type == "pt" else prompts):
            frames = pipeline(picture, prompt, num_inference_steps=4, latents=noise[i:i + 1].clone(), num_frames=9,
                              height=32, width=48, output_type=output_type, guidance_scale=scale,
                              callback_on_step_end=keep, callback_on_step_end_tensor_inputs=["latents"], **more).frames
            drawn.append(whole[-1] if output_type == "latent" else frames)
        return torch.cat(drawn)

    with torch.no_grad():
        texts = [pipeline.encode_prompt(picture, prompt, image_embed_interleave=stride) for prompt in prompts]
        # The pipeline itself takes every second state of the black picture, the authors as many as of the other.
        black = PIL.Image.new("RGB", (48, 32), 0)
        none = pipeline.encode_prompt(black, negative, image_embed_interleave=stride)
        texts.append(none)
        against = {"negative_prompt_embeds": none[0], "negative_pooled_prompt_embeds": none[1],
                   "negative_prompt_attention_mask": none[2]} if is_clean else {"negative_prompt": negative}
        tensors = {"noise": noise, "states": torch.cat([states[mask.bool()] for states, _, mask in texts]),
                   "lengths": torch.stack([mask.sum().long() for _, _, mask in texts]),
                   "pooled": torch.cat([pooled for _, pooled, _ in texts]),
                   "latents": draw("latent"), "pictures": draw("pt").transpose(1, 2).half(),
                   "latents.guided": draw("latent", true_cfg_scale=3.0, **against)}
    tensor_file.save(folder / "drawn.safetensors", tensors,
                     {"kinora_fixture": "pipeline", "version": "1", "seed": str(SEED), "negative": negative,
                      "prompts": json.dumps(prompts)})
    print(tensors["lengths"])
    report(name, folder, tensors)


# As published: of 2B, and of all others.
COG_CHAIN = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012, "clip_sample": False,
             "prediction_type": "v_prediction", "rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
COG_2B = diffusers.CogVideoXDDIMScheduler(**COG_CHAIN, snr_shift_scale=3.0)
COG_5B = diffusers.CogVideoXDPMScheduler(**COG_CHAIN, snr_shift_scale=1.0)
COG_STEPS = 4


class CogNoise:
    """Stands for randn_tensor of the scheduler's module, which draws twice in a step."""

    def __init__(self):
        self.step = -1

    def __call__(self, shape, **_):
        batch, frames, channels, height, width = shape
        return torch.stack([philox(SEED, b, math.prod(shape[1:]), SAMPLER_NOISE, self.step)
                            .reshape(channels, frames, height, width) for b in range(batch)]).transpose(1, 2)


def draw_cogvideox(pipeline, output_type, noise, negative, prompts, **more):
    """Latents [B, C, T, h, w], or pictures [B, 3, T, H, W]."""
    added = CogNoise()
    pipeline.scheduler = type(pipeline.scheduler).from_config(pipeline.scheduler.config)
    step = pipeline.scheduler.step

    def next_step(*arguments, **options):
        added.step += 1
        return step(*arguments, **options)

    pipeline.scheduler.step = next_step
    with mock.patch.object(cogvideox_dpm, "randn_tensor", added):
        frames = pipeline(prompt=prompts, negative_prompt=[negative] * len(prompts), num_inference_steps=COG_STEPS,
                          latents=noise.transpose(1, 2).clone(), num_frames=9, height=32, width=48,
                          output_type=output_type, **more).frames
    return frames.transpose(1, 2).contiguous()


def cogvideox_transformer(**changes):
    transformer = randomised(diffusers.CogVideoXTransformer3DModel(**(dict(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, time_embed_dim=12,
        text_embed_dim=16, num_layers=2, sample_width=6, sample_height=4, sample_frames=9) | changes)), 2)
    if changes.get("use_learned_positional_embeddings"):
        table = transformer.patch_embed.pos_embedding
        generator = torch.Generator().manual_seed(4)
        table.copy_(torch.randn(table.shape, generator=generator).to(torch.bfloat16))
    return transformer


def write_cogvideox(name, negative):
    levels = 4
    vae = diffusers.AutoencoderKLCogVideoX(
        latent_channels=4, block_out_channels=(4,) * levels, layers_per_block=1, norm_num_groups=2,
        down_block_types=("CogVideoXDownBlock3D",) * levels, up_block_types=("CogVideoXUpBlock3D",) * levels)
    parts = {"text_encoder": text_encoder(), "transformer": cogvideox_transformer(), "vae": randomised(vae, 3),
             "scheduler": COG_2B}
    folder = save_parts(name, parts)
    shutil.copytree(TESTS / "tokenizers/data/t5_json", folder / "tokenizer")
    diffusers.CogVideoXPipeline(tokenizer=transformers.T5Tokenizer.from_pretrained(folder / "tokenizer"),
                                **parts).save_config(folder)
    pipeline = open_pipeline(diffusers.CogVideoXPipeline, folder)
    prompts = [PROMPTS[1], "two green stars " * 110]
    noise = initial_noise(len(prompts), 4, 3, 4, 6)
    with torch.no_grad():
        states, null = pipeline.encode_prompt(prompts, [negative] * len(prompts))
        states = torch.cat([states, null[:1]])
        tensors = {"noise": noise, "states": states.flatten(0, 1), "lengths": torch.full([len(states)], 226),
                   "latents": draw_cogvideox(pipeline, "latent", noise, negative, prompts),
                   "pictures": draw_cogvideox(pipeline, "pt", noise, negative, prompts).half()}
        data = initial_noise(len(prompts), 4, 3, 4, 6, seed=SEED + 1)
        tensors["data"] = data
        tensors["latents.strength"] = drawn_from_clip(
            diffusers.CogVideoXVideoToVideoPipeline, cogvideox_clips, pipeline, data / vae.config.scaling_factor,
            noise.transpose(1, 2), 8, negative, prompts).transpose(1, 2).contiguous()
        pipeline.scheduler = COG_5B
        tensors["latents.dpm"] = draw_cogvideox(pipeline, "latent", noise, negative, prompts, use_dynamic_cfg=True)
    tensor_file.save(folder / "drawn.safetensors", tensors,
                     {"kinora_fixture": "pipeline", "version": "1", "seed": str(SEED), "negative": negative,
                      "prompts": json.dumps(prompts), "latents.dpm": COG_5B.to_json_string()})
    report(name, folder, tensors)


# Image to video: the transformer's configuration, and the autoencoder's.
COGS = {
    "cogvideox_i2v": ({"use_rotary_positional_embeddings": True, "use_learned_positional_embeddings": True},
                      {"invert_scale_latents": True}),
    "cogvideox_15_i2v": ({"use_rotary_positional_embeddings": True, "patch_size_t": 2, "patch_bias": False,
                          "ofs_embed_dim": 12, "sample_width": 8, "sample_height": 8}, {}),
}


def write_cogvideox_beside(name, negative):
    changes, of_vae = COGS[name]
    base = TESTS / "inference/data/cogvideox"
    folder = save_parts(name, {"transformer": cogvideox_transformer(in_channels=8, **changes), "scheduler": COG_5B})
    picture = smooth_picture(1, 32, 48)
    picture.save(folder / "first.png")
    opened = open_pipeline(diffusers.CogVideoXPipeline, base)
    opened.vae.register_to_config(**of_vae)
    (folder / "vae").mkdir()
    opened.vae.save_config(folder / "vae")
    config = folder / "vae/config.json"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if "_name_or_path" not in line))  # of this machine
    pipeline = diffusers.CogVideoXImageToVideoPipeline(
        tokenizer=opened.tokenizer, text_encoder=opened.text_encoder, vae=opened.vae, scheduler=COG_5B,
        transformer=diffusers.CogVideoXTransformer3DModel.from_pretrained(folder / "transformer", dtype=torch.float32))
    pipeline.save_config(folder)
    pipeline.set_progress_bar_config(disable=True)
    prompts = [PROMPTS[1], PROMPTS[0]]
    before = 1 if "patch_size_t" in changes else 0
    noise = initial_noise(len(prompts), 4, 3 + before, 4, 6)

    def mode(encoded, generator=None, sample_mode="sample"):
        return encoded.latent_dist.mode()

    def draw(output_type):
        with mock.patch("diffusers.pipelines.cogvideo.pipeline_cogvideox_image2video.retrieve_latents", mode):
            return draw_cogvideox(pipeline, output_type, noise, negative, prompts, image=[picture] * len(prompts))

    with torch.no_grad():
        tensors = {"noise": noise, "latents": draw("latent")[:, :, before:].contiguous(), "pictures": draw("pt").half()}
    tensor_file.save(folder / "drawn.safetensors", tensors,
                     {"kinora_fixture": "pipeline", "version": "1", "seed": str(SEED), "negative": negative,
                      "prompts": json.dumps(prompts)})
    report(name, folder, tensors)


def draw_ltx_conditions(folder, prompts, negative, noise, picture):
    opened = open_pipeline(diffusers.LTXPipeline, folder)
    pipeline = diffusers.LTXConditionPipeline(
        tokenizer=opened.tokenizer, text_encoder=opened.text_encoder, vae=opened.vae, transformer=opened.transformer,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler())
    pipeline.set_progress_bar_config(disable=True)

    def mode(encoded, generator=None, sample_mode="sample"):
        return encoded.latent_dist.mode()

    def draw(scale=0.0, **more):
        module = "diffusers.pipelines.ltx.pipeline_ltx_condition"
        steps = iter(range(-1, 5))

        def drawn(shape, **_):
            """The initial noise, then that of each step, of tokens [B, N, C]."""
            step = next(steps)
            if step < 0:
                return noise.clone()
            return torch.stack([philox(SEED, b, math.prod(shape[1:]), SAMPLER_NOISE, step).reshape(shape[2], shape[1]).T
                                for b in range(shape[0])])

        with mock.patch(module + ".retrieve_latents", mode), mock.patch(module + ".randn_tensor", drawn):
            return pipeline(prompt=prompts, negative_prompt=[negative] * len(prompts), num_inference_steps=5,
                            num_frames=9, height=32, width=64, image_cond_noise_scale=scale, output_type="latent",
                            **more).frames

    return {"latents.condition": draw(), "latents.condition_given": draw(image=picture, frame_rate=30),
            "latents.condition_noised": draw(0.15, image=picture, frame_rate=30)} \
        | draw_ltx_placed(pipeline, prompts, negative, picture, mode)


def draw_ltx_placed(pipeline, prompts, negative, picture, mode):
    """Pictures and a clip at three places of clips of 17 frames, two of them given in part."""
    count, shape = len(prompts), (4, 5, 2, 4)
    pixels = torch.from_numpy(numpy.array(picture))
    moving = [PIL.Image.fromarray(pixels.roll(3 * k, 1).numpy()) for k in range(10)]
    place = diffusers.pipelines.ltx.pipeline_ltx_condition.LTXVideoCondition
    # Lists, since the pipeline wants one of each prompt for tokens of their own.
    conditions = [place(image=[picture] * count, frame_index=0, strength=0.3),
                  place(video=[moving] * count, frame_index=5, strength=1.0),
                  place(image=[picture] * count, frame_index=16, strength=0.1)]
    clip = initial_noise(1, *shape, seed=SEED + 1)

    def draw(conditions, output_type="latent", scale=0.0, rows=count, **more):
        before = 3 if len(conditions) > 1 else 1
        initial = initial_noise(rows, shape[0], before + shape[1], *shape[2:]).split([before, shape[1]], 2)
        noises = iter([initial[1], *initial[0].split([2, 1] if before == 3 else [1], 2)])
        steps = iter(range(5))
        decoder_noise = DecoderNoise(pipeline.vae)

        def drawn(size, dtype=torch.float32, **_):
            """Initial noise of the clip and of what lies before it, that of each step, of tokens [B, N, C], and the
            decoder's."""
            if (own := next(noises, None)) is not None:
                return own.clone()
            if len(size) == 5:
                return decoder_noise(size, dtype=dtype)
            step = next(steps)
            return torch.stack([philox(SEED, b, math.prod(size[1:]), SAMPLER_NOISE, step).reshape(size[2], size[1]).T
                                for b in range(size[0])])

        module = "diffusers.pipelines.ltx.pipeline_ltx_condition"
        with mock.patch(module + ".retrieve_latents", mode), mock.patch(module + ".randn_tensor", drawn), \
                mock.patch("torch.randn", decoder_noise):
            return pipeline(conditions=conditions, prompt=prompts[:rows], negative_prompt=[negative] * rows,
                            num_inference_steps=5, num_frames=17, height=32, width=64, image_cond_noise_scale=scale,
                            output_type=output_type, **more).frames

    pictures = draw(conditions, "pt").transpose(1, 2)[:1, :, ::4]
    return {"latents.placed": draw(conditions), "pictures.placed": pictures.half(),
            "latents.placed_noised": draw(conditions, scale=0.15), "clip": clip,
            "latents.placed_strength": draw([place(image=picture, frame_index=8)], rows=1, latents=clip,
                                            denoise_strength=STRENGTH)}


def write_ltx(name, negative):
    transformer = diffusers.LTXVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=14, cross_attention_dim=28,
        num_layers=2, caption_channels=16)
    vae = diffusers.AutoencoderKLLTXVideo(
        latent_channels=4, block_out_channels=(4, 8, 8), down_block_types=("LTXVideoDownBlock3D",) * 3,
        decoder_block_out_channels=(8, 16), layers_per_block=(1, 1, 1, 1), decoder_layers_per_block=(1, 1, 1),
        spatio_temporal_scaling=(True, True, False), decoder_spatio_temporal_scaling=(True, True),
        decoder_inject_noise=(True, True, False), upsample_residual=(True, True), upsample_factor=(2, 2),
        timestep_conditioning=True)
    # As the published folder has it.
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, base_shift=0.95, max_shift=2.05, base_image_seq_len=1024, max_image_seq_len=4096,
        shift_terminal=0.1)
    parts = {"text_encoder": text_encoder(), "transformer": randomised(transformer, 2), "vae": randomised(vae, 3),
             "scheduler": scheduler}
    with torch.no_grad():
        vae.decoder.timestep_scale_multiplier.fill_(1000.0)
        vae.latents_mean.copy_(torch.tensor([0.5, -0.25, 0.0, 0.125]))
        vae.latents_std.copy_(torch.tensor([2.0, 0.5, 1.0, 1.5]))
    folder = save_parts(name, parts)
    shutil.copytree(TESTS / "tokenizers/data/t5_json", folder / "tokenizer")
    picture = smooth_picture(1, 32, 64)
    picture.save(folder / "first.png")
    diffusers.LTXPipeline(tokenizer=transformers.T5TokenizerFast.from_pretrained(folder / "tokenizer"),
                          **parts).save_config(folder)

    prompts = [PROMPTS[1], "two green stars " * 60]
    noise = initial_noise(len(prompts), 4, 3, 2, 4)
    tensors = {"noise": noise}

    def draw(pipeline, latents, output_type, **more):
        def noise_of(shape, **options):
            return decoder_noise(shape, **{"dtype": torch.float32} | options)

        decoder_noise = DecoderNoise(pipeline.vae)
        with mock.patch("torch.randn", noise_of), \
                mock.patch("diffusers.pipelines.ltx.pipeline_ltx.randn_tensor", noise_of):
            drawn = pipeline(prompt=prompts, negative_prompt=[negative] * len(prompts), num_inference_steps=4,
                             latents=pipeline._pack_latents(latents), num_frames=9, height=32, width=64,
                             output_type=output_type, **more).frames
        return pipeline._unpack_latents(drawn, 3, 2, 4) if output_type == "latent" else drawn.transpose(1, 2).half()

    with torch.no_grad():
        pipeline = open_pipeline(diffusers.LTXPipeline, folder)
        states, mask, null, null_mask = pipeline.encode_prompt(prompts, [negative] * len(prompts))
        states, mask = torch.cat([states, null[:1]]), torch.cat([mask, null_mask[:1]])
        tensors |= {"states": states[mask], "lengths": mask.sum(1), "latents": draw(pipeline, noise, "latent"),
                    "pictures": draw(pipeline, noise, "pt"),
                    "pictures.told": draw(pipeline, noise, "pt", decode_timestep=0.05, decode_noise_scale=0.025)[:1]}
        # From a picture: it is encoded as its mean, where the pipeline would draw.
        pipeline = open_pipeline(diffusers.LTXImageToVideoPipeline, folder)
        pixels = pipeline.video_processor.preprocess(picture, height=32, width=64)
        first = pipeline._normalize_latents(pipeline.vae.encode(pixels.unsqueeze(2)).latent_dist.mode(),
                                            pipeline.vae.latents_mean, pipeline.vae.latents_std)
        given = torch.cat([first.expand(len(prompts), -1, -1, -1, -1), noise[:, :, 1:]], 2)
        tensors |= {"latents.given": draw(pipeline, given, "latent", image=picture, frame_rate=30),
                    "pictures.given": draw(pipeline, given, "pt", image=picture, frame_rate=30)}
        tensors |= draw_ltx_conditions(folder, prompts, negative, noise, picture)
    tensor_file.save(folder / "drawn.safetensors", tensors,
                     {"kinora_fixture": "pipeline", "version": "1", "seed": str(SEED), "negative": negative,
                      "prompts": json.dumps(prompts)})
    report(name, folder, tensors)


# The configurations of a folder of DiT, by the name of what is drawn.
SCHEDULERS = {
    "ddpm": (diffusers.DDPMScheduler, {"clip_sample": False}),
    "ddpm_large": (diffusers.DDPMScheduler, {"clip_sample": False, "variance_type": "fixed_large"}),
    "ddim": (diffusers.DDIMScheduler, {"clip_sample": False, "steps_offset": 1}),
    "ddim_trailing": (diffusers.DDIMScheduler, {"clip_sample": False, "timestep_spacing": "trailing"}),
    "pndm": (diffusers.PNDMScheduler, {"skip_prk_steps": True, "set_alpha_to_one": True}),
    "dpm": (diffusers.DPMSolverMultistepScheduler, {}),
    "dpm_3_karras": (diffusers.DPMSolverMultistepScheduler, {"solver_order": 3, "use_karras_sigmas": True}),
    "dpm_heun": (diffusers.DPMSolverMultistepScheduler, {"solver_type": "heun", "timestep_spacing": "trailing"}),
    "dpm_sde": (diffusers.DPMSolverMultistepScheduler, {"algorithm_type": "sde-dpmsolver++"}),
    "dpm_single": (diffusers.DPMSolverSinglestepScheduler, {}),
    "unipc": (diffusers.UniPCMultistepScheduler, {}),
    "euler": (diffusers.EulerDiscreteScheduler, {}),
    "euler_leading": (diffusers.EulerDiscreteScheduler, {"timestep_spacing": "leading", "steps_offset": 1}),
    "euler_ancestral": (diffusers.EulerAncestralDiscreteScheduler, {}),
    "heun": (diffusers.HeunDiscreteScheduler, {}),
    "lms": (diffusers.LMSDiscreteScheduler, {}),
    "lcm": (diffusers.LCMScheduler, {}),
    "deis": (diffusers.DEISMultistepScheduler, {}),
    "deis_3_karras": (diffusers.DEISMultistepScheduler, {"solver_order": 3, "use_karras_sigmas": True}),
    "sa_solver": (diffusers.SASolverScheduler, {"predictor_order": 3, "corrector_order": 3}),
    "dpm2": (diffusers.KDPM2DiscreteScheduler, {}),
    "dpm2_ancestral": (diffusers.KDPM2AncestralDiscreteScheduler, {"use_karras_sigmas": True}),
    "tcd": (diffusers.TCDScheduler, {}),
}
DIT_STEPS = 5


class SamplerNoise:
    """Stands for randn_tensor of a scheduler's module: its noise is that of evaluation `step`."""

    def __init__(self):
        self.step = -1

    def __call__(self, shape, **_):
        # Rows are [samples; samples] under guidance: both halves get the same.
        count = shape[0] // 2
        rows = [philox(SEED, b, math.prod(shape[1:]), SAMPLER_NOISE, self.step).reshape(shape[1:])
                for b in range(count)]
        return torch.stack(rows * 2)


def write_dit(name):
    transformer = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2, sample_size=8,
        num_embeds_ada_norm=1000)
    randomised(transformer, 2)
    first, *others = transformer.transformer_blocks
    for block in others:  # as every converted model has it
        block.norm1.emb.load_state_dict(first.norm1.emb.state_dict())
    scheduler = diffusers.DDIMScheduler(clip_sample=False)
    parts = {"transformer": transformer, "vae": autoencoder(4, 8, scaling_factor=0.18215),
             "scheduler": scheduler}
    folder = save_parts(name, parts)
    diffusers.DiTPipeline(**parts).save_config(folder)
    index = json.loads((folder / "model_index.json").read_text())
    # As facebook's folders have it; "crane" is a bird, and a machine.
    index["id2label"] = {"0": "tench, Tinca tinca", "134": "crane", "207": "golden retriever", "517": "crane"}
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")

    pipeline = open_pipeline(diffusers.DiTPipeline, folder)
    for block in pipeline.transformer.transformer_blocks:
        # The original's frequencies, for which the published weights were trained (docs/checkpoints.md).
        block.norm1.emb.time_proj.downscale_freq_shift = 0
    words = ["Tinca tinca", "crane"]
    labels = pipeline.get_label_ids(words)
    noise = initial_noise(len(labels), 4, 8, 8)

    def draw(scheduler):
        latents = []
        pipeline.scheduler = scheduler

        def decode(latent):
            latents.append(latent * pipeline.vae.config.scaling_factor)
            return diffusers.AutoencoderKL.decode(pipeline.vae, latent)

        # DiTPipeline is not right for schedulers of k-diffusion's kind: it neither scales the first noise
        # nor keeps what scale_model_input() is given, as diffusers' other pipelines do.
        scheduler.set_timesteps(DIT_STEPS)
        first = noise * scheduler.init_noise_sigma
        scale, step, unscaled = scheduler.scale_model_input, scheduler.step, []

        def keep(sample, t):
            unscaled[:] = [sample]
            return scale(sample, t)

        scheduler.scale_model_input = keep
        added = SamplerNoise()
        # As StableDiffusionPipeline has it, and not this scheduler's own 0.3.
        options = {"eta": 0.0} if isinstance(scheduler, diffusers.TCDScheduler) else {}

        def next_step(output, t, _):
            added.step += 1
            return step(output, t, unscaled[0], **options)

        scheduler.step = next_step
        with mock.patch("diffusers.pipelines.dit.pipeline_dit.randn_tensor", lambda **_: first.clone()), \
                mock.patch(type(scheduler).__module__ + ".randn_tensor", added, create=True), \
                mock.patch.object(pipeline.vae, "decode", decode):
            pictures = pipeline(labels, num_inference_steps=DIT_STEPS, output_type="pt").images
        return latents[0], pictures

    tensors = {"noise": noise}
    tensors["latents"], pictures = draw(scheduler)
    tensors["pictures"] = pictures.half()
    metadata = {"kinora_fixture": "pipeline", "version": "1", "seed": str(SEED), "labels": json.dumps(labels),
                "words": json.dumps(words), "steps": str(DIT_STEPS)}
    for kind, (scheduler_class, options) in SCHEDULERS.items():
        other = scheduler_class(beta_start=0.0001, beta_end=0.02, beta_schedule="linear", **options)
        tensors["latents." + kind] = draw(other)[0]
        metadata["latents." + kind] = other.to_json_string()
    tensor_file.save(folder / "drawn.safetensors", tensors, metadata)
    report(name, folder, tensors)


if __name__ == "__main__":
    torch.set_num_threads(1)
    diffusers.logging.set_verbosity_error()
    wanted = sys.argv[1:] or ["pixart_alpha", "pixart_sigma", "latte", "dit", "sd1", "sd2", "sdxl", "refiner", "flux",
                              "sd3", "wan", *WANS, "hunyuan_video", "cogvideox", *COGS, "ltx"]
    # As the published PixArt-XL-2 have it.
    if "pixart_alpha" in wanted:
        write("pixart_alpha", diffusers.PixArtAlphaPipeline, "t5_json",
              diffusers.DPMSolverMultistepScheduler(beta_start=0.0001, beta_end=0.02), "", 120)
    # Another kind, chain, spacing and prediction.
    if "pixart_sigma" in wanted:
        write("pixart_sigma", diffusers.PixArtSigmaPipeline, "t5_spiece",
              diffusers.DDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
                                      prediction_type="v_prediction", clip_sample=False, steps_offset=1),
              "blurry, of low quality", 300)
    if "latte" in wanted:
        write_latte("latte", diffusers.DDIMScheduler(beta_start=0.0001, beta_end=0.02, clip_sample=False), "blurry")
    if "dit" in wanted:
        write_dit("dit")
    # As the published Stable Diffusion 1 and 2 have it.
    if "sd1" in wanted:
        write_sd("sd1", diffusers.PNDMScheduler(**CHAIN, skip_prk_steps=True, set_alpha_to_one=False, steps_offset=1),
                 "", {"hidden_act": "quick_gelu"}, {"attention_head_dim": 2})
    if "sd2" in wanted:
        write_sd("sd2", diffusers.DDIMScheduler(**CHAIN, clip_sample=False, set_alpha_to_one=False, steps_offset=1,
                                                prediction_type="v_prediction"),
                 "blurry, of low quality", {"hidden_act": "gelu"},
                 {"attention_head_dim": [2, 4], "use_linear_projection": True, "upcast_attention": True})
    euler = diffusers.EulerDiscreteScheduler(**CHAIN, timestep_spacing="leading", steps_offset=1)
    if "sdxl" in wanted:
        write_sdxl("sdxl", diffusers.StableDiffusionXLPipeline, euler, "blurry, of low quality",
                   {"down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
                    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"), "transformer_layers_per_block": [1, 2],
                    "projection_class_embeddings_input_dim": 10 + 6 * 4}, add_watermarker=False)
    if "refiner" in wanted:
        write_sdxl("refiner", diffusers.StableDiffusionXLImg2ImgPipeline, euler, "blurry, of low quality",
                   {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
                    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"), "transformer_layers_per_block": 2,
                    "projection_class_embeddings_input_dim": 10 + 5 * 4}, requires_aesthetics_score=True,
                   force_zeros_for_empty_prompt=False, add_watermarker=False)
    # As the published dev and 3.5 medium.
    if "flux" in wanted:
        write_multimodal("flux", diffusers.FluxPipeline,
                         diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True), "", 1)
    if "sd3" in wanted:
        write_multimodal("sd3", diffusers.StableDiffusion3Pipeline,
                         diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0), "blurry, of low quality", 2)
    # As the published Wan 2.1 have it.
    if "wan" in wanted:
        write_wan("wan", diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0), "blurry, of low quality")
    for name in WANS:
        if name in wanted:
            write_wan_beside(name, "blurry, of low quality")
    # As the published HunyuanVideo has it.
    if "hunyuan_video" in wanted:
        write_hunyuan_video("hunyuan_video", "blurry, of low quality")
    for name in HUNYUANS:
        if name in wanted:
            write_hunyuan_video_beside(name, "blurry, of low quality")
    if "cogvideox" in wanted:
        write_cogvideox("cogvideox", "blurry, of low quality")
    for name in COGS:
        if name in wanted:
            write_cogvideox_beside(name, "blurry, of low quality")
    # As the published LTX-Video have it.
    if "ltx" in wanted:
        write_ltx("ltx", "blurry, of low quality")
