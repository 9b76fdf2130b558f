"""`kinora convert` with the real diffusers: its DiTPipeline opens what we write, and we what it saves.

usage: python3 diffusers_test.py KINORA

Needs torch, diffusers, transformers and safetensors, and peft for adapters. Where this Python lacks them, another one can be named
by KINORA_DIFFUSERS_PYTHON; without either the test is skipped (exit code 77).
"""
import fnmatch
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

SKIPPED = 77
NEEDED = ("torch", "diffusers", "transformers", "safetensors")
ROOT = pathlib.Path(__file__).resolve().parents[2]
KINORA = None

RECIPE = """
model: {depth: 2, hidden: 32, heads: 2, patch: 2, in_channels: 4, height: 8, width: 8, num_classes: 3}
data: {source: latents, path: ["%s"], threads: 1}
train: {steps: 4, global_batch: 4, threads: 1, device: cpu, precision: fp32}
lr: {value: 1.0e-2}
ema: {decays: [0.5]}
checkpoint: {every: 4}
"""

SHOWN_RECIPE = """
model:
  architecture: unet
  in_channels: 4
  learn_sigma: false
  text_tokens: 77
%s
data: {source: captions, height: 64, width: 64, text: tokens, threads: 1}
autoencoder: {precision: fp32}
text: {precision: fp32}
objective: {betas: scaled_linear, beta_start: 0.00085, beta_end: 0.012}
train: {steps: 2, global_batch: 4, threads: 1, device: cpu}
lr: {value: 1.0e-4}
ema: {decays: []}
checkpoint: {every: 2}
"""
SHOWN_MODELS = {
    "sd1": """  text_channels: 16
  unet: {channels: [8, 16], resnets: 1, depths: [1, 0], middle_depth: 1, heads: [2, 2], norm_groups: 4}""",
    "sdxl": """  text_channels: 28
  pooled_channels: 10
  unet: {channels: [8, 16], resnets: 1, depths: [0, 2], middle_depth: 2, heads: [2, 4], norm_groups: 4,
         linear_projection: true, size_channels: 4}"""}


CLASS_RECIPE = """
model:
  architecture: class_unet
  in_channels: 4
  learn_sigma: false
  compression: 8
  text_channels: 8
  unet: {channels: [32, 32], resnets: 1, depths: [0, 1], middle_depth: 1, heads: [1, 1], classes: %s}
data: {source: latents, path: ["%s"], threads: 1}
objective: {betas: scaled_linear, beta_start: 0.0015, beta_end: 0.0195}
train: {steps: 4, global_batch: 4, threads: 1, device: cpu, precision: fp32, label_dropout: 0.3}
lr: {value: 1.0e-2}
ema: {decays: []}
checkpoint: {every: 4}
"""


SD = ROOT / "tests/inference/data/sd1"
UNET_RECIPE = """
model:
  architecture: unet
  in_channels: 4
  learn_sigma: false
  text_channels: 16
  text_tokens: 77
  unet: {channels: [8, 16], resnets: 1, depths: [1, 0], middle_depth: 1, heads: [2, 2], norm_groups: 4}
data: {source: captions, path: ["%s"], height: 64, width: 64, text: tokens, caption: a picture, threads: 1}
autoencoder: {path: "%s/vae", precision: fp32}
text: {encoder: "%s", precision: fp32}
train: {steps: 3, global_batch: 4, threads: 1, device: cpu}
lr: {value: 1.0e-2}
ema: {decays: []}
finetune: {lora: {rank: 3, alpha: 5}}
checkpoint: {init_from: "%s/unet"}
"""


def kinora(*arguments):
    run = subprocess.run([KINORA, *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def refusal(*arguments):
    run = subprocess.run([KINORA, *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode != 0, run.stdout
    return run.stderr


class Extra:
    """What training leaves in a .ckpt; a file is written if it is ever unpickled by running it."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return pathlib.Path.touch, (self.marker,)


def tiny_vae():
    from diffusers import AutoencoderKL
    return AutoencoderKL(block_out_channels=[8, 8, 8, 8], latent_channels=4, norm_num_groups=4,
                         down_block_types=["DownEncoderBlock2D"] * 4,
                         up_block_types=["UpDecoderBlock2D"] * 4)


def tiny_dit(**changes):
    import torch
    from diffusers import DiTTransformer2DModel
    model = DiTTransformer2DModel(**(dict(num_attention_heads=2, attention_head_dim=16, in_channels=4,
                                          out_channels=8, num_layers=2, sample_size=8,
                                          num_embeds_ada_norm=3, norm_eps=1e-6) | changes))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    for block in model.transformer_blocks[1:]:
        block.norm1.emb.load_state_dict(model.transformer_blocks[0].norm1.emb.state_dict())
    return model.eval()


def list_of(value):
    return list(value) if isinstance(value, (list, tuple)) else value


def tiny_sd(version):
    """A pipeline of the widths that files of CompVis are told by: heads of 64 channels, norms of 32 groups."""
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer
    torch.manual_seed(version)
    second = {"attention_head_dim": [1, 2], "use_linear_projection": True}
    unet = UNet2DConditionModel(
        sample_size=8, block_out_channels=(64, 128), layers_per_block=1, cross_attention_dim=64,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), **(second if version == 2 else {}))
    vae = AutoencoderKL(block_out_channels=[32] * 4, latent_channels=4, down_block_types=["DownEncoderBlock2D"] * 4,
                        up_block_types=["UpDecoderBlock2D"] * 4, layers_per_block=1)
    tokenizer = CLIPTokenizer.from_pretrained(ROOT / f"tests/inference/data/sd{version}/tokenizer")
    # Those of 768 channels and less take quick_gelu where only shapes are there, whichever version it is.
    text_encoder = CLIPTextModel(CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=1,
        hidden_act="quick_gelu"))
    chain = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "set_alpha_to_one": False,
             "steps_offset": 1}
    scheduler = (PNDMScheduler(**chain, skip_prk_steps=True) if version == 1 else
                 DDIMScheduler(**chain, clip_sample=False, prediction_type="v_prediction"))
    pipeline = StableDiffusionPipeline(
        unet=unet.eval(), vae=vae.eval(), text_encoder=text_encoder.eval(), tokenizer=tokenizer, scheduler=scheduler,
        safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def tiny_sdxl():
    """A pipeline whose sizes are published where nothing in a single file tells them: vectors of 1280 numbers, 256
    sinusoids, heads of 64 channels."""
    import torch
    from diffusers import AutoencoderKL, EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer
    torch.manual_seed(3)
    tokenizers = {name: CLIPTokenizer.from_pretrained(ROOT / "tests/inference/data/sdxl" / name)
                  for name in ("tokenizer", "tokenizer_2")}
    sizes = dict(vocab_size=len(tokenizers["tokenizer"]), hidden_size=64, intermediate_size=128, num_attention_heads=1,
                 num_hidden_layers=3, eos_token_id=2, hidden_act="quick_gelu")
    unet = UNet2DConditionModel(
        sample_size=8, block_out_channels=(64, 128), layers_per_block=1, cross_attention_dim=128,
        attention_head_dim=[1, 2], use_linear_projection=True, transformer_layers_per_block=[1, 2],
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        addition_embed_type="text_time", addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=1280 + 6 * 256)
    vae = AutoencoderKL(block_out_channels=[32] * 4, latent_channels=4, down_block_types=["DownEncoderBlock2D"] * 4,
                        up_block_types=["UpDecoderBlock2D"] * 4, layers_per_block=1, scaling_factor=0.13025)
    pipeline = StableDiffusionXLPipeline(
        unet=unet.eval(), vae=vae.eval(), **tokenizers, text_encoder=CLIPTextModel(CLIPTextConfig(**sizes)).eval(),
        text_encoder_2=CLIPTextModelWithProjection(CLIPTextConfig(**sizes, projection_dim=1280)).eval(),
        scheduler=EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
                                         timestep_spacing="leading", steps_offset=1), add_watermarker=False)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def open_clip(state, whole=False):
    """CLIPTextModel's tensors as OpenCLIP names and packs them; unless whole with what Stable Diffusion 2 does not read."""
    import torch
    result = {"logit_scale": torch.ones([])}
    for name, value in state.items():
        name = name.removeprefix("text_model.")
        for ours, theirs in (("embeddings.token_embedding", "token_embedding"), ("final_layer_norm", "ln_final"),
                             ("embeddings.position_embedding.weight", "positional_embedding"),
                             ("encoder.layers", "transformer.resblocks"), ("layer_norm", "ln_"),
                             ("self_attn.out_proj", "attn.out_proj"), ("mlp.fc1", "mlp.c_fc"),
                             ("mlp.fc2", "mlp.c_proj")):
            name = name.replace(ours, theirs)
        if "self_attn.q_proj." in name:
            parts = [value] + [state[key] for kind in "kv" for key in state
                               if key.removeprefix("text_model.").replace("encoder.layers", "transformer.resblocks") ==
                               name.replace("q_proj", kind + "_proj")]
            result[name.replace("self_attn.q_proj.", "attn.in_proj_")] = torch.cat(parts)
        elif "self_attn" not in name and not name.endswith("position_ids"):
            result[name] = value
    if whole:
        result["text_projection"] = result.pop("text_projection.weight").T.contiguous()
        return result
    blocks = 1 + max(int(name.split(".")[2]) for name in result if name.startswith("transformer."))
    last = {name.replace(f"resblocks.{blocks - 1}.", f"resblocks.{blocks}."): torch.rand_like(value)
            for name, value in result.items() if f"resblocks.{blocks - 1}." in name}
    return result | last | {"text_projection": torch.ones(64, 32)}


def single_file(pipeline, unet, version):
    """All of a pipeline in one dictionary, with the keys of CompVis. unet: the U-Net's."""
    import re
    vae = {}
    for name, value in pipeline.vae.state_dict().items():
        levels = len(pipeline.vae.config.block_out_channels)
        name = re.sub(r"up_blocks\.(\d)", lambda found: f"up.{levels - 1 - int(found[1])}", name)
        for ours, theirs in (("down_blocks", "down"), ("mid_block.resnets.0", "mid.block_1"),
                             ("mid_block.resnets.1", "mid.block_2"), ("mid_block.attentions.0", "mid.attn_1"),
                             ("resnets", "block"), ("conv_shortcut", "nin_shortcut"), ("downsamplers.0", "downsample"),
                             ("upsamplers.0", "upsample"), ("conv_norm_out", "norm_out"), ("group_norm", "norm"),
                             ("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "proj_out")):
            name = name.replace(ours, theirs)
        if "attn_1" in name and value.dim() == 2:
            value = value[:, :, None, None]
        vae["first_stage_model." + name] = value
    text = pipeline.text_encoder.state_dict()
    if version == "xl":
        text = {"conditioner.embedders.0.transformer.text_model." + name.removeprefix("text_model."): value
                for name, value in text.items()}
        text |= {"conditioner.embedders.1.model." + name: value
                 for name, value in open_clip(pipeline.text_encoder_2.state_dict(), whole=True).items()}
    elif version == 2:
        text = {"cond_stage_model.model." + name: value for name, value in open_clip(text).items()}
    else:
        text = {"cond_stage_model.transformer.text_model." + name.removeprefix("text_model."): value
                for name, value in text.items()}
    return {name: value.contiguous() for name, value in (unet | vae | text).items()}


def images_of(pipeline, guidance=4.0):
    import torch
    pipeline.set_progress_bar_config(disable=True)
    return pipeline([0, 2], guidance_scale=guidance, num_inference_steps=3, output_type="np",
                    generator=torch.Generator().manual_seed(1)).images


class DiffusersTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def assert_same_weights(self, model, other):
        state, expected = model.state_dict(), other.state_dict()
        self.assertEqual(state.keys(), expected.keys())
        for name, values in state.items():
            self.assertTrue(values.equal(expected[name]), name)

    def test_a_pipeline_there_and_back(self):
        from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline
        source = DiTPipeline(transformer=tiny_dit(num_embeds_ada_norm=1000), vae=tiny_vae().eval(),
                             scheduler=DDIMScheduler(beta_end=0.02, clip_sample=False))
        theirs = self.folder / "theirs"
        source.save_pretrained(theirs)
        report = kinora("convert", theirs, "--to", self.folder / "ours.safetensors")
        self.assertIn("0 missing, 0 unexpected", report)
        kinora("convert", self.folder / "ours.safetensors", "--to", self.folder / "back", "--autoencoder",
               theirs)
        back = DiTPipeline.from_pretrained(self.folder / "back")
        self.assert_same_weights(back.transformer, source.transformer)
        self.assert_same_weights(back.vae, source.vae)
        self.assertTrue((images_of(back) == images_of(source)).all())
        # An autoencoder alone, and without vae/.
        kinora("convert", theirs / "vae", "--to", self.folder / "vae")
        self.assert_same_weights(AutoencoderKL.from_pretrained(self.folder / "vae"), source.vae)
        report = kinora("convert", theirs, "--to", self.folder / "bare")
        self.assertIn("needs vae=", report)
        bare = DiTPipeline.from_pretrained(self.folder / "bare", vae=source.vae)
        self.assertTrue((images_of(bare) == images_of(source)).all())

    def test_unets_there_and_back(self):
        from diffusers import UNet2DConditionModel
        sizes = {"addition_embed_type": "text_time", "addition_time_embed_dim": 4}
        variants = {
            "heads": {"attention_head_dim": 2},
            "linear": {"attention_head_dim": [2, 4], "use_linear_projection": True, "norm_eps": 1e-3},
            "sdxl": {"attention_head_dim": [2, 4], "transformer_layers_per_block": [1, 2],
                     "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
                     "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
                     "projection_class_embeddings_input_dim": 10 + 6 * 4, **sizes},
            "refiner": {"projection_class_embeddings_input_dim": 12 + 5 * 4, **sizes}}
        for name, changes in variants.items():
            model = UNet2DConditionModel(**dict(
                sample_size=8, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1,
                cross_attention_dim=12, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")) | changes)
            model.save_pretrained(self.folder / name / "unet")
            ours = self.folder / f"{name}.safetensors"
            self.assertIn("0 missing, 0 unexpected", kinora("convert", self.folder / name, "--to", ours))
            kinora("convert", ours, "--to", self.folder / f"{name}-back")
            back = UNet2DConditionModel.from_pretrained(self.folder / f"{name}-back" / "unet")
            self.assert_same_weights(back, model)
            for key in ("down_block_types", "up_block_types", "norm_eps", "use_linear_projection",
                        "cross_attention_dim", "sample_size", "addition_embed_type",
                        "addition_time_embed_dim", "projection_class_embeddings_input_dim"):
                self.assertEqual(list_of(back.config[key]), list_of(model.config[key]), key)

    def test_single_files_of_stable_diffusion(self):
        import torch
        from diffusers import StableDiffusionPipeline, UNet2DConditionModel
        from safetensors.torch import load_file, save_file
        for version in (1, 2):
            pipeline = tiny_sd(version)
            folder = self.folder / f"sd{version}"
            pipeline.save_pretrained(folder)
            # The U-Net alone, by Kinora; diffusers opens it.
            bare = self.folder / f"unet{version}.safetensors"
            kinora("convert", folder, "--to", bare, "--layout", "compvis")
            self.assert_same_weights(
                UNet2DConditionModel.from_single_file(str(bare), config=str(folder), subfolder="unet"), pipeline.unet)
            # The whole of it, and back.
            place = self.folder / f"file{version}"
            place.mkdir()
            whole = single_file(pipeline, load_file(bare), version)
            whole["null_text"] = torch.rand(77, 64)  # the empty caption of a run, for which nobody else has a name
            save_file(whole, place / "model.safetensors")
            report = kinora("convert", place / "model.safetensors", "--to", self.folder / f"back{version}")
            self.assertIn("0 missing, 0 unexpected", report)
            self.assertEqual("768 x 768" in report, version == 2)
            back = UNet2DConditionModel.from_pretrained(self.folder / f"back{version}" / "unet")
            self.assert_same_weights(back, pipeline.unet)
            again = self.folder / f"again{version}.safetensors"
            kinora("convert", self.folder / f"back{version}", "--to", again, "--layout", "compvis")
            self.assertEqual(load_file(again).keys(), load_file(bare).keys())
            for name, values in load_file(again).items():
                self.assertTrue(values.equal(whole[name]), name)
            # A picture from it is the pipeline's, also from a .ckpt with averages and what nobody knows.
            noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(4))
            save_file({"noise": noise}, self.folder / "noise.safetensors")
            with torch.no_grad():
                expected = pipeline("a red circle", num_inference_steps=4, guidance_scale=5.0, latents=noise.clone(),
                                    height=64, width=64, output_type="latent").images
            marker = self.folder / "ran"
            averages = {"model_ema." + "".join(name.split(".")[1:]): value for name, value in whole.items()
                        if name.startswith("model.diffusion_model.")}
            raw = {name: value + 1 if name.startswith("model.diffusion_model.") else value
                   for name, value in whole.items()}
            torch.save({"state_dict": raw | averages | {"model_ema.decay": torch.tensor(0.5)}, "global_step": 7,
                        "callbacks": {Extra: {"best_model_score": torch.tensor(0.5)}}}, place / "model.ckpt")
            torch.save({"state_dict": raw, "callbacks": {"last": Extra(marker)}}, place / "hostile.ckpt")
            self.assertIn("None of its code was run", refusal("sample", "--model", place / "hostile.ckpt",
                                                              "--prompt", "a red circle"))
            for name in ("model.safetensors", "model.ckpt"):
                command = ("sample", "--model", place / name, "--prompt", "a red circle", "--steps", 4, "--guidance", 5,
                           "--noise", self.folder / "noise.safetensors", "--save-latents", "--device", "cpu",
                           "--threads", 1, "--set", "model.height=8", "--set", "model.width=8", "--out",
                           self.folder / f"{version}{name}")
                if name == "model.safetensors":
                    self.assertIn("--tokenizer", refusal(*command))
                    pipeline.tokenizer.save_pretrained(self.folder / "tokens")
                    kinora(*command, "--tokenizer", self.folder / "tokens")
                    pipeline.tokenizer.save_pretrained(place / "tokenizer")
                else:
                    kinora(*command)
                latents = load_file(self.folder / f"{version}{name}" / "latents.safetensors")
                got = next(iter(latents.values()))
                self.assertLess((got - expected).norm() / expected.norm(), 1e-4, name)
                self.assertEqual(len(list((self.folder / f"{version}{name}").glob("*.png"))), 2)
            self.assertFalse(marker.exists())
            theirs = StableDiffusionPipeline.from_single_file(str(place / "model.safetensors"), config=str(folder),
                                                              local_files_only=True)
            self.assert_same_weights(theirs.unet, pipeline.unet)
            self.assert_same_weights(theirs.vae, pipeline.vae)

    def trained_on_shown(self, name, ends, *overrides):
        """A run's result as diffusers has it, from the U-Net of a tiny pipeline and pictures with others beside them."""
        from PIL import Image
        place = self.folder / f"{name}-{len(list(self.folder.iterdir()))}"
        pictures = place / "pictures"
        pictures.mkdir(parents=True)
        for i in range(4):
            for end in ["png", *ends]:
                Image.effect_noise((64, 64), 20 + i).convert("RGB").save(pictures / f"{i}.{end}")
            (pictures / f"{i}.txt").write_text(f"picture {i}")
        base = ROOT / "tests/inference/data" / name
        (place / "recipe.yaml").write_text(SHOWN_RECIPE % SHOWN_MODELS[name])
        kinora("train", place / "recipe.yaml", f"run.dir={place / 'run'}", f"data.path=[{pictures}]",
               f"autoencoder.path={base / 'vae'}", f"text.encoder={base}", f"checkpoint.init_from={base / 'unet'}",
               *overrides)
        kinora("convert", place / "run", "--to", place / "tuned")
        return place / "tuned"

    def test_control_nets_trained_here(self):
        import torch
        from diffusers import ControlNetModel, UNet2DConditionModel
        for name in SHOWN_MODELS:
            tuned = self.trained_on_shown(
                name, ["control.png"], "data.control=true", "model.unet.controls=1",
                "model.unet.control_channels=[4,4,8,8]", 'finetune.train=["controlnets.*"]',
                'finetune.fresh=["controlnets.*.controlnet_*"]')
            unet = UNet2DConditionModel.from_pretrained(ROOT / "tests/inference/data" / name / "unet",
                                                        torch_dtype=torch.float32)
            self.assert_same_weights(UNet2DConditionModel.from_pretrained(tuned / "unet"), unet)
            net, info = ControlNetModel.from_pretrained(tuned / "controlnet", output_loading_info=True)
            self.assertFalse(any(info.values()), info)
            start = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(4, 4, 8, 8))
            self.assertEqual(net.state_dict().keys(), start.state_dict().keys())
            for key in ("block_out_channels", "down_block_types", "conditioning_embedding_out_channels",
                        "cross_attention_dim", "norm_num_groups",
                        "addition_embed_type", "addition_time_embed_dim", "projection_class_embeddings_input_dim"):
                self.assertEqual(list_of(net.config[key]), list_of(start.config[key]), key)
            # Two steps at 1e-4 away from the copy of the U-Net that it began as.
            for key, values in start.state_dict().items():
                if not key.startswith("controlnet"):
                    self.assertLess((net.state_dict()[key] - values).abs().max(), 1e-3, key)
            self.assertGreater(net.controlnet_mid_block.weight.abs().max(), 0)

    def test_unets_that_fill_in_and_edit_trained_here(self):
        import torch
        from diffusers import (DDIMScheduler, StableDiffusionInpaintPipeline, StableDiffusionInstructPix2PixPipeline,
                               UNet2DConditionModel)
        from PIL import Image, ImageDraw
        from safetensors.torch import load_file, save_file
        picture = Image.effect_noise((64, 64), 60).convert("RGB")
        picture.save(self.folder / "picture.png")
        hole = Image.new("L", (64, 64))
        ImageDraw.Draw(hole).rectangle((11, 20, 40, 63), fill=255)
        hole.save(self.folder / "hole.png")
        plain = UNet2DConditionModel.from_pretrained(SD / "unet", torch_dtype=torch.float32)
        cases = [(StableDiffusionInpaintPipeline, 9, ["data.mask=drawn", "model.unet.input=inpaint"],
                  {"mask_image": hole, "height": 64, "width": 64}, ["--mask", self.folder / "hole.png"]),
                 (StableDiffusionInstructPix2PixPipeline, 8, ["data.before=true", "model.unet.input=edit"],
                  {"image_guidance_scale": 1.5}, ["--image-guidance", "1.5"])]
        for pipeline_class, channels, overrides, options, given in cases:
            tuned = self.trained_on_shown("sd1", ["before.png"], "lr.value=1e-3", *overrides)
            unet, info = UNet2DConditionModel.from_pretrained(tuned / "unet", output_loading_info=True)
            self.assertFalse(any(info.values()), info)
            self.assertEqual((unet.config.in_channels, unet.config.out_channels), (channels, 4))
            self.assertLess((unet.conv_in.weight[:, :4] - plain.conv_in.weight).abs().max(), 1e-2)
            self.assertGreater(unet.conv_in.weight[:, 4:].abs().amax((0, 2, 3)).min(), 1e-5)
            pipeline = pipeline_class.from_pretrained(SD, unet=unet, torch_dtype=torch.float32, safety_checker=None,
                                                      requires_safety_checker=False)
            pipeline.set_progress_bar_config(disable=True)
            pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config, clip_sample=False)
            whole = self.folder / pipeline_class.__name__
            pipeline.save_pretrained(whole)
            noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(6))
            save_file({"noise": noise}, self.folder / "noise.safetensors")
            means = lambda output, generator=None, sample_mode="sample": output.latent_dist.mode()
            with torch.no_grad(), mock.patch(pipeline_class.__module__ + ".retrieve_latents", means):
                want = pipeline("a red circle", image=picture, num_inference_steps=3, guidance_scale=7.5,
                                latents=noise.clone(), output_type="latent", **options).images
            out = self.folder / (pipeline_class.__name__ + "-drawn")
            kinora("sample", "--model", whole, "--prompt", "a red circle", "--image", self.folder / "picture.png", *given,
                   "--steps", 3, "--guidance", 7.5, "--noise", self.folder / "noise.safetensors", "--save-latents",
                   "--set", "autoencoder.precision=fp32", "--device", "cpu", "--threads", 1, "--out", out)
            got = load_file(out / "latents.safetensors")["latents"]
            self.assertLess((got - want).norm() / want.norm(), 1e-4)

    def test_unets_of_classes_trained_here(self):
        import torch
        from diffusers import DDIMScheduler, UNet2DConditionModel
        from safetensors.torch import load_file, save_file
        save_file({"latents": torch.randn(8, 4, 8, 8), "labels": torch.arange(8) % 3}, self.folder / "data.safetensors")
        noise = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(6))
        save_file({"noise": noise}, self.folder / "noise.safetensors")
        for classes in ("token", "time"):
            run = self.folder / classes
            (self.folder / "recipe.yaml").write_text(CLASS_RECIPE % (classes, self.folder / "data.safetensors"))
            kinora("train", self.folder / "recipe.yaml", f"run.dir={run}")
            tuned = self.folder / f"{classes}-tuned"
            kinora("convert", run, "--to", tuned)
            unet, info = UNet2DConditionModel.from_pretrained(tuned / "unet", output_loading_info=True)
            self.assertFalse(any(info.values()), info)
            self.assertEqual(unet.config.num_class_embeds, 4 if classes == "time" else None)
            unet.eval()
            token = load_file(tuned / "unet/kinora.safetensors")["class_token.weight"] if classes == "token" else None

            def predict(x, t, labels):
                states = token[labels][:, None] if classes == "token" else torch.zeros(len(x), 1, 8)
                return unet(x, t, states, class_labels=labels if classes == "time" else None).sample

            scheduler = DDIMScheduler(beta_start=0.0015, beta_end=0.0195, beta_schedule="scaled_linear",
                                      clip_sample=False, set_alpha_to_one=False, steps_offset=1)
            scheduler.set_timesteps(4)
            labels, null = torch.tensor([2, 0]), torch.tensor([3, 3])
            want = noise.clone()
            with torch.no_grad():
                for t in scheduler.timesteps:
                    with_class, without = predict(want, t, labels), predict(want, t, null)
                    want = scheduler.step(without + 3 * (with_class - without), t, want).prev_sample
            for name, model in (("run", ["--run", run]), ("folder", ["--model", tuned])):
                out = self.folder / f"{classes}-{name}"
                kinora("sample", *model, "--classes", 2, 0, "--noise", self.folder / "noise.safetensors", "--steps", 4,
                       "--guidance", 3, "--device", "cpu", "--threads", 1, "--out", out,
                       *[word for key in ("sample.method=ddim", "sample.spacing=leading", "sample.steps_offset=1",
                                          "sample.end_clean=false", "objective.betas=scaled_linear",
                                          "objective.beta_start=0.0015", "objective.beta_end=0.0195")
                         for word in ("--set", key)])
                got = load_file(out / "latents.safetensors")["latents"]
                self.assertLess((got - want).norm() / want.norm(), 1e-4, (classes, name))

    def test_sharded_and_half_models(self):
        import torch
        from diffusers import DiTTransformer2DModel
        model = tiny_dit()
        model.save_pretrained(self.folder / "theirs", max_shard_size="100KB")
        self.assertGreater(len(list((self.folder / "theirs").glob("*.safetensors"))), 1)
        kinora("convert", self.folder / "theirs", "--to", self.folder / "ours", "--max-shard-size", "80KB")
        shards = list((self.folder / "ours" / "transformer").glob("diffusion*.safetensors"))
        self.assertGreater(len(shards), 1)
        self.assert_same_weights(
            DiTTransformer2DModel.from_pretrained(self.folder / "ours" / "transformer"), model)
        kinora("convert", self.folder / "theirs", "--to", self.folder / "half", "--dtype", "bf16")
        self.assert_same_weights(
            DiTTransformer2DModel.from_pretrained(self.folder / "half" / "transformer",
                                                  torch_dtype=torch.bfloat16), model.bfloat16())

    def test_a_model_trained_here(self):
        import torch
        from diffusers import DiTPipeline
        from safetensors.torch import load_file, save_file
        sys.path.insert(0, str(ROOT / "tools" / "reference"))
        import dit
        self.train()
        run = self.folder / "run"
        tiny_vae().save_pretrained(self.folder / "vae")
        kinora("convert", run, "--to", self.folder / "theirs", "--autoencoder", self.folder / "vae")
        pipeline = DiTPipeline.from_pretrained(self.folder / "theirs")
        # Its guidance wants 1000 classes: 1000 is its null class, whatever the model's is.
        self.assertEqual(images_of(pipeline, guidance=1.0).shape, (2, 64, 64, 3))

        # What it computes is what the reference of Kinora's tests does with the run's own weights, once it
        # spaces the timestep's frequencies as the original (tools/make_diffusers_fixtures.py).
        kinora("convert", run, "--to", self.folder / "ours.safetensors")
        reference = dit.DiT(dit.ModelConfig(height=8, width=8, in_channels=4, patch=2, hidden=32, depth=2,
                                            heads=2, num_classes=3))
        reference.load_state_dict(load_file(self.folder / "ours.safetensors"))
        x = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(2))
        t, labels = torch.tensor([0.0, 100.0, 999.0]), torch.tensor([0, 2, 3])
        for block in pipeline.transformer.transformer_blocks:
            block.norm1.emb.time_proj.downscale_freq_shift = 0
        with torch.no_grad():
            got = pipeline.transformer(x, timestep=t, class_labels=labels).sample
            self.assertLess((got - reference(x, t, labels)).norm() / got.norm(), 1e-5)

        # And again from there, bit for bit, also by way of a file of torch.save.
        kinora("convert", self.folder / "theirs", "--to", self.folder / "again.safetensors")
        self.assertEqual((self.folder / "again.safetensors").read_bytes(),
                         (self.folder / "ours.safetensors").read_bytes())
        torch.save(load_file(self.folder / "ours.safetensors"), self.folder / "w.pt")
        kinora("convert", self.folder / "w.pt", "--to", self.folder / "w.safetensors")
        save_file(torch.load(self.folder / "w.pt"), self.folder / "expected.safetensors")
        for name, values in load_file(self.folder / "expected.safetensors").items():
            self.assertTrue(values.equal(load_file(self.folder / "w.safetensors")[name]), name)

    @unittest.skipUnless(importlib.util.find_spec("peft"), "this Python has no peft")
    def test_adapters_of_a_run_in_peft(self):
        import diffusers
        import peft
        from safetensors.torch import load_file
        self.train("train.steps=2", "checkpoint.export=true")
        base = self.folder / "run" / "model.safetensors"
        kinora("convert", base, "--to", self.folder / "theirs")
        for kind in ("lora", "dora"):
            run = self.folder / kind
            self.train(f"run.dir={run}", f"checkpoint.init_from={base}", "finetune.lora.rank=3",
                       "finetune.lora.alpha=5", f"finetune.lora.dora={str(kind == 'dora').lower()}",
                       'finetune.lora.targets=["blocks.*.attn.*", "blocks.1.mlp.fc1"]')
            kinora("convert", run, "--adapter", "diffusers", "--to", self.folder / (kind + "-adapter"))
            model = diffusers.DiTTransformer2DModel.from_pretrained(self.folder / "theirs" / "transformer")
            tuned = peft.PeftModel.from_pretrained(model, self.folder / (kind + "-adapter"))
            merged = tuned.merge_and_unload().state_dict()
            kinora("convert", run, "--to", self.folder / (kind + "-merged"))
            ours = load_file(self.folder / (kind + "-merged/transformer/diffusion_pytorch_model.safetensors"))
            before = load_file(self.folder / "theirs/transformer/diffusion_pytorch_model.safetensors")
            changed = 0
            for name, values in ours.items():
                self.assertLess((merged[name] - values).abs().max(), 1e-6, name)
                changed += not values.equal(before[name])
            self.assertEqual(changed, 2 * 4 + 1)  # q, k, v and out of two blocks, fc1 of one

    @unittest.skipUnless(importlib.util.find_spec("peft"), "this Python has no peft")
    def test_adapters_of_a_unet_in_all_forms(self):
        import copy
        import peft
        import torch
        from safetensors.torch import load_file, save_file
        pipeline = tiny_sd(1)
        base = self.folder / "sd1"
        pipeline.save_pretrained(base)
        generator = torch.Generator().manual_seed(5)

        def factors(shape, rank, *, kernel=()):
            draws = [torch.randn(rank, shape[1], *kernel, generator=generator) * 0.1,
                     torch.randn(shape[0], rank, *[1] * len(kernel), generator=generator) * 0.1]
            return [draw.half() for draw in draws]

        # Of every kind of linear, of projections that are convolutions of one place, and of a real one.
        modules = {name: module for name, module in pipeline.unet.named_modules()
                   if name.startswith("down_blocks.0.attentions.0.") and hasattr(module, "weight")
                   and module.weight.dim() > 1 or name.endswith("proj_out") or name == "down_blocks.0.resnets.0.conv1"}
        kohya = {}
        for number, (name, module) in enumerate(modules.items()):
            rank = 2 + number % 2
            down, up = factors(module.weight.shape, rank, kernel=tuple(module.weight.shape[2:]))
            key = "lora_unet_" + name.replace(".", "_")
            kohya |= {key + ".lora_down.weight": down, key + ".lora_up.weight": up,
                      key + ".alpha": torch.tensor(1.0 + number % 3, dtype=torch.float16)}
        self.assertGreater(len(modules), 14)
        save_file(kohya, self.folder / "kohya.safetensors")
        text = "lora_te_text_model_encoder_layers_0_self_attn_q_proj"
        save_file(kohya | {text + ".lora_down.weight": torch.ones(2, 64), text + ".lora_up.weight": torch.ones(64, 2),
                           text + ".alpha": torch.tensor(2.0)}, self.folder / "with-text.safetensors")

        def merged(adapter, name):
            run = subprocess.run([KINORA, "convert", base, "--lora", adapter, "--to", self.folder / name],
                                 capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stderr)
            return load_file(self.folder / name / "unet/diffusion_pytorch_model.safetensors"), run.stderr

        ours, said = merged(self.folder / "with-text.safetensors", "merged")
        self.assertIn("3 keys of", said)
        self.assertIn(text + ".alpha", said)
        # diffusers forgets the alphas of attention where they differ (its alpha_pattern has other names).
        save_file({name: torch.full_like(value, 2.0) if name.endswith(".alpha") else value
                   for name, value in kohya.items()}, self.folder / "even.safetensors")
        even, _ = merged(self.folder / "even.safetensors", "even")
        theirs = copy.deepcopy(pipeline)
        theirs.load_lora_weights(str(self.folder / "even.safetensors"))
        theirs.fuse_lora()
        theirs.unload_lora_weights()
        changed = 0
        for name, values in theirs.unet.state_dict().items():
            self.assertLess((even[name] - values).abs().max(), 1e-5, name)
            changed += not even[name].equal(pipeline.unet.state_dict()[name])
        self.assertEqual(changed, len(modules))

        # kohya -> PEFT -> kohya, which PEFT itself reads on its way.
        kinora("convert", base, "--lora", self.folder / "kohya.safetensors", "--adapter", "diffusers", "--to",
               self.folder / "peft")
        tuned = peft.PeftModel.from_pretrained(copy.deepcopy(pipeline.unet), self.folder / "peft")
        for name, values in tuned.merge_and_unload().state_dict().items():
            self.assertLess((ours[name] - values).abs().max(), 1e-5, name)
        kinora("convert", base, "--lora", self.folder / "peft", "--adapter", "kohya", "--to",
               self.folder / "again.safetensors")
        again = load_file(self.folder / "again.safetensors")
        self.assertEqual(again.keys(), kohya.keys())
        for name, values in again.items():
            self.assertEqual((values.dtype, values.shape), (kohya[name].dtype, kohya[name].shape), name)
            self.assertTrue(values.equal(kohya[name]), name)

        # As diffusers saves it: its own names, and until 2023 those of attention's processors.
        pipeline.unet.add_adapter(peft.LoraConfig(r=3, lora_alpha=6, target_modules=["to_q", "to_out.0", "proj_in"],
                                                  init_lora_weights=False))
        type(pipeline).save_lora_weights(
            self.folder / "saved", unet_lora_layers=peft.get_peft_model_state_dict(pipeline.unet),
            unet_lora_adapter_metadata={"r": 3, "lora_alpha": 6})
        saved, _ = merged(self.folder / "saved", "saved-merged")
        pipeline.fuse_lora()
        for name, values in pipeline.unet.state_dict().items():
            name = name.replace(".base_layer", "")
            if "lora_" not in name:
                self.assertLess((saved[name] - values).abs().max(), 1e-5, name)

        # Of another model.
        other = self.folder / "sd2"
        tiny_sd(2).save_pretrained(other)
        wide = dict(kohya)
        wide["lora_unet_mid_block_attentions_7_proj_in.lora_down.weight"] = torch.ones(2, 128)
        wide["lora_unet_mid_block_attentions_7_proj_in.lora_up.weight"] = torch.ones(128, 2)
        save_file(wide, self.folder / "wide.safetensors")
        message = refusal("sample", "--model", base, "--prompt", "a red circle", "--lora",
                          self.folder / "wide.safetensors", "--out", self.folder / "none")
        self.assertIn("keys that the model lacks: lora_unet_mid_block_attentions_7_proj_in", message)
        self.assertNotIn("text encoder", message)

    @unittest.skipUnless(importlib.util.find_spec("peft"), "this Python has no peft")
    def test_sdxl_in_folders_files_and_adapters(self):
        import copy
        import re
        import torch
        from diffusers import StableDiffusionXLPipeline, UNet2DConditionModel
        from safetensors.torch import load_file, save_file
        pipeline = tiny_sdxl()
        folder = self.folder / "sdxl"
        pipeline.save_pretrained(folder)
        noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(4))
        save_file({"noise": noise}, self.folder / "noise.safetensors")

        def drawn(model, *more):
            out = self.folder / f"drawn{len(list(self.folder.glob('drawn*')))}"
            kinora("sample", "--model", model, "--prompt", "a red circle", "--steps", 3, "--noise",
                   self.folder / "noise.safetensors", "--save-latents", "--device", "cpu", "--threads", 1, "--set",
                   "model.height=8", "--set", "model.width=8", "--out", out, *more)
            return load_file(out / "latents.safetensors")["latents"]

        def expected(theirs):
            with torch.no_grad():
                return theirs("a red circle", num_inference_steps=3, latents=noise.clone(), height=64, width=64,
                              output_type="latent").images

        def assert_near(got, want):
            self.assertLess((got - want).norm() / want.norm(), 1e-4)

        assert_near(drawn(folder), expected(pipeline))
        # The U-Net with the keys of single files, which diffusers opens, and back.
        bare = self.folder / "unet.safetensors"
        kinora("convert", folder, "--to", bare, "--layout", "compvis")
        self.assert_same_weights(
            UNet2DConditionModel.from_single_file(str(bare), config=str(folder), subfolder="unet"), pipeline.unet)
        # The whole in one file.
        place = self.folder / "file"
        place.mkdir()
        whole = single_file(pipeline, load_file(bare), "xl")
        save_file(whole, place / "model.safetensors")
        pipeline.tokenizer.save_pretrained(place / "tokenizer")
        assert_near(drawn(place / "model.safetensors"), expected(pipeline))
        kinora("convert", place / "model.safetensors", "--to", self.folder / "back")
        back = StableDiffusionXLPipeline.from_pretrained(
            folder, unet=UNet2DConditionModel.from_pretrained(self.folder / "back" / "unet"))
        self.assert_same_weights(back.unet, pipeline.unet)
        # kohya's names of an adapter, made of those of single files.
        generator = torch.Generator().manual_seed(5)
        kohya = {}
        for name, value in load_file(bare).items():
            if re.search(r"to_(q|k|v|out\.0)\.weight$", name):
                key = "lora_unet_" + name.removeprefix("model.diffusion_model.").removesuffix(".weight").replace(".", "_")
                kohya |= {key + ".lora_down.weight": torch.randn(2, value.shape[1], generator=generator) * 0.2,
                          key + ".lora_up.weight": torch.randn(value.shape[0], 2, generator=generator) * 0.2,
                          key + ".alpha": torch.tensor(2.0)}
        save_file(kohya, self.folder / "kohya.safetensors")
        kinora("convert", folder, "--lora", self.folder / "kohya.safetensors", "--adapter", "kohya", "--to",
               self.folder / "ours.safetensors")
        tuned = None
        for adapter in ("kohya.safetensors", "ours.safetensors"):
            theirs = copy.deepcopy(pipeline)
            theirs.load_lora_weights(str(self.folder / adapter))
            tuned = expected(theirs)
            assert_near(drawn(folder, "--lora", self.folder / adapter), tuned)
        self.assertGreater((tuned - expected(pipeline)).norm() / tuned.norm(), 1e-2)

    @unittest.skipUnless(importlib.util.find_spec("peft"), "this Python has no peft")
    def test_adapters_of_a_unet_in_peft(self):
        import diffusers
        import peft
        from safetensors.torch import load_file
        before = load_file(SD / "unet/diffusion_pytorch_model.safetensors")
        targets = ["*.to_q", "*.to_out.0", "*.proj_in", "*.conv1", "*.conv_shortcut", "conv_out"]
        for kind, own in (("lora", ["conv_rank=2", "conv_alpha=1"]), ("lora", ["dora=true", "conv_rank=2"]),
                          ("loha", ["conv_rank=2"]), ("lokr", ["rank=1", "factor=2", "conv_alpha=3"])):
            run = self.folder / "-".join([kind, *own])
            self.tune(run, f"finetune.lora.kind={kind}", "finetune.lora.targets=" + json.dumps(targets),
                      *("finetune.lora." + text for text in own))
            kinora("convert", run, "--adapter", "diffusers", "--to", run / "to-peft")
            model = diffusers.UNet2DConditionModel.from_pretrained(SD / "unet")
            tuned = peft.PeftModel.from_pretrained(model, run / "to-peft")
            merged = tuned.merge_and_unload().state_dict()
            kinora("convert", run, "--to", run / "merged")
            ours = load_file(run / "merged/unet/diffusion_pytorch_model.safetensors")
            changed = {name for name, values in ours.items() if not values.equal(before[name].float())}
            for name, values in ours.items():
                self.assertLess((merged[name].float() - values).abs().max(), 1e-6, (run, name))
            for target in targets:
                self.assertTrue(any(fnmatch.fnmatch(name, target + ".weight") for name in changed), (run, target))
            if "dora=true" in own:
                continue
            # Kohya's, which are LyCORIS' names of LoHa and LoKr, and back: bit for bit.
            kinora("convert", SD / "unet", "--lora", run / "to-peft", "--adapter", "kohya", "--to", run / "k.safetensors")
            kinora("convert", SD / "unet", "--lora", run / "k.safetensors", "--adapter", "diffusers", "--to", run / "peft")
            kinora("convert", SD / "unet", "--lora", run / "peft", "--adapter", "kohya", "--to", run / "again.safetensors")
            self.assertEqual((run / "again.safetensors").read_bytes(), (run / "k.safetensors").read_bytes())
            first, second = (load_file(run / name / "adapter_model.safetensors") for name in ("to-peft", "peft"))
            self.assertEqual(first.keys(), second.keys())
            self.assertTrue(all(first[name].equal(second[name]) for name in first))

    @unittest.skipUnless(importlib.util.find_spec("peft"), "this Python has no peft")
    def test_adapters_of_a_clip_in_diffusers(self):
        import diffusers
        import torch
        from safetensors.torch import load_file
        run = self.folder / "updates"
        self.tune(run, "text.train=true", 'finetune.lora.targets=["*.to_q", "*.to_v", "text_encoder.*_proj", "text_encoder.*.fc1"]')
        kinora("convert", run, "--to", run / "merged")
        ours = {part: load_file(run / "merged" / part / f"{name}.safetensors")
                for part, name in (("unet", "diffusion_pytorch_model"), ("text_encoder", "model"))}
        kinora("convert", run, "--adapter", "diffusers", "--to", run / "theirs")
        kinora("convert", run, "--adapter", "kohya", "--to", run / "kohya.safetensors")
        kinora("convert", SD, "--lora", run / "theirs", "--adapter", "kohya", "--to", run / "again.safetensors")
        first, second = (load_file(run / name) for name in ("kohya.safetensors", "again.safetensors"))
        self.assertEqual(first.keys(), second.keys())
        self.assertTrue(all(first[name].equal(second[name]) for name in first))
        for adapter in ("theirs", "kohya.safetensors"):
            theirs = diffusers.StableDiffusionPipeline.from_pretrained(SD).to(dtype=torch.float32)
            before = {name: value.clone() for name, value in theirs.text_encoder.state_dict().items()}
            theirs.load_lora_weights(str(run / adapter))
            theirs.fuse_lora()
            theirs.unload_lora_weights()
            for name, values in theirs.unet.state_dict().items():
                self.assertLess((ours["unet"][name].float() - values).abs().max(), 1e-5, (adapter, name))
            changed = 0
            for name, values in theirs.text_encoder.state_dict().items():
                own = ours["text_encoder"].get(name, ours["text_encoder"].get("text_model." + name))
                self.assertLess((own.float() - values).abs().max(), 1e-5, (adapter, name))
                changed += not values.equal(before[name])
            self.assertEqual(changed, 2 * 5, adapter)  # q, k, v, out and fc1 of two blocks

    def test_a_clip_that_learned_along_opens(self):
        import torch
        import transformers
        run = self.folder / "along"
        self.tune(run, "text.train=true")
        kinora("convert", run, "--to", run / "out")
        start = transformers.CLIPTextModel.from_pretrained(SD / "text_encoder").float()
        tuned, report = transformers.CLIPTextModel.from_pretrained(run / "out/text_encoder", output_loading_info=True)
        self.assertFalse(report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"], report)
        ids = torch.arange(77).unsqueeze(0)
        self.assertGreater((tuned(ids)[0] - start(ids)[0]).abs().max(), 1e-3)

    def test_diffusers_reads_a_learned_word(self):
        import diffusers
        from safetensors.torch import load_file
        run = self.folder / "word"
        self.tune(run, "text.train=true", 'text.new_tokens=["<thing>=red"]', "data.caption=a <thing>",
                  'finetune.train=["text_encoder.new_tokens"]', "checkpoint.export=true")
        theirs = diffusers.StableDiffusionPipeline.from_pretrained(SD)
        theirs.load_textual_inversion(run / "learned_embeds.safetensors")
        row = theirs.text_encoder.get_input_embeddings().weight[theirs.tokenizer.convert_tokens_to_ids("<thing>")]
        learned = load_file(run / "learned_embeds.safetensors")["<thing>"]
        self.assertTrue(row.float().equal(learned.to(row.dtype).float()))

    def tune(self, run, *overrides):
        """Three steps of the tiny pipeline's U-Net on pictures of noise."""
        import numpy
        from PIL import Image
        pictures = self.folder / "pictures"
        pictures.mkdir(exist_ok=True)
        for i in range(4):
            pixels = numpy.random.default_rng(i).integers(0, 255, (64, 64, 3), dtype=numpy.uint8)
            Image.fromarray(pixels).save(pictures / f"{i}.png")
        recipe = self.folder / "unet.yaml"
        recipe.write_text(UNET_RECIPE % (pictures, SD, SD, SD))
        kinora("train", recipe, f"run.dir={run}", *overrides)

    def train(self, *overrides):
        import torch
        from safetensors.torch import save_file
        latents = self.folder / "latents"
        latents.mkdir(exist_ok=True)
        save_file({"latents": torch.randn(12, 4, 8, 8), "labels": torch.arange(12) % 3},
                  latents / "part.safetensors")
        recipe = self.folder / "recipe.yaml"
        recipe.write_text(RECIPE % (latents / "part.safetensors"))
        kinora("train", recipe, f"run.dir={self.folder / 'run'}", *overrides)


def main():
    global KINORA
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    other = os.environ.get("KINORA_DIFFUSERS_PYTHON")
    if missing and other and "KINORA_DIFFUSERS_TRIED" not in os.environ:
        os.environ["KINORA_DIFFUSERS_TRIED"] = "1"
        os.execv(other, [other, *sys.argv])
    if missing:
        print(f"skipped: this Python lacks {', '.join(missing)}. Hint: KINORA_DIFFUSERS_PYTHON names another")
        return SKIPPED
    os.environ["HF_HUB_OFFLINE"] = "1"
    KINORA = sys.argv.pop(1)
    return 0 if unittest.main(exit=False).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
