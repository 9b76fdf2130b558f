"""`kinora convert` with the real diffusers: its DiTPipeline opens what we write, and we what it saves.

usage: python3 diffusers_test.py KINORA

Needs torch, diffusers, transformers and safetensors, and peft for adapters. Where this Python lacks them, another one can be named
by KINORA_DIFFUSERS_PYTHON; without either the test is skipped (exit code 77).
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

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


def kinora(*arguments):
    run = subprocess.run([KINORA, *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


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
        for changes in ({"attention_head_dim": 2},
                        {"attention_head_dim": [2, 4], "use_linear_projection": True, "norm_eps": 1e-3}):
            model = UNet2DConditionModel(
                sample_size=8, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1,
                cross_attention_dim=12, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), **changes)
            name = str(len(changes))
            model.save_pretrained(self.folder / name / "unet")
            ours = self.folder / f"{name}.safetensors"
            self.assertIn("0 missing, 0 unexpected", kinora("convert", self.folder / name, "--to", ours))
            kinora("convert", ours, "--to", self.folder / f"{name}-back")
            back = UNet2DConditionModel.from_pretrained(self.folder / f"{name}-back" / "unet")
            self.assert_same_weights(back, model)
            for key in ("down_block_types", "up_block_types", "norm_eps", "use_linear_projection",
                        "cross_attention_dim", "sample_size"):
                self.assertEqual(list_of(back.config[key]), list_of(model.config[key]), key)

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
