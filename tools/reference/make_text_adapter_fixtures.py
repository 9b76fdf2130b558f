#!/usr/bin/env python3
"""Writes tests/pipelines/data/text_adapters/: low-rank updates of the CLIPs of the tiny pipelines tests/inference/data/sd1 and
sdxl (make_pipeline_fixtures.py), in all forms that people share, and what transformers' models compute with them by PEFT.
Wants torch, transformers 5, diffusers 0.42, peft, safetensors.

  peft/                    as PeftModel.save_pretrained() writes it, of sd1's
  diffusers/, diffusers_sdxl/   as save_lora_weights() of the pipelines does, with PEFT's settings in the header
  kohya.safetensors, kohya_sdxl.safetensors
  expected.safetensors
    ids                    int64 [tokens]
    states                 fp32 [tokens, C]: the normed last ones of sd1's CLIP
    sdxl_states, sdxl_pooled   of both of SDXL's, behind the block before the last, and the second's vector
"""

import json
import pathlib
import shutil

import diffusers
import peft
import safetensors.torch
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/pipelines/data/text_adapters"
BASES = ROOT / "tests/inference/data"
SETTINGS = {"r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj", "out_proj", "fc1"],
            "rank_pattern": {"fc1": 3}, "alpha_pattern": {"fc1": 5}, "init_lora_weights": False}


def adapted(model, seed):
    """The model with updates of random numbers."""
    model = model.float().eval()
    model.add_adapter(peft.LoraConfig(**SETTINGS))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def save_as_peft(model, folder):
    """As a PeftModel of the same weights."""
    state = peft.get_peft_model_state_dict(model)
    base = type(model).from_pretrained(model.name_or_path).float()
    wrapped = peft.get_peft_model(base, peft.LoraConfig(**SETTINGS))
    peft.set_peft_model_state_dict(wrapped, {"base_model.model." + name: value for name, value in state.items()})
    wrapped.save_pretrained(folder)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = None  # a path
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    kept = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    assert kept and all(value.equal(state[name.removeprefix("base_model.model.")]) for name, value in kept.items())


def kohya(model, prefix):
    """As kohya's scripts name them: with text_model, whatever transformers calls it."""
    tensors = {}
    for name, value in peft.get_peft_model_state_dict(model).items():
        layer, factor = name.removesuffix(".weight").rsplit(".", 1)
        layer = "text_model." + layer.removeprefix("text_model.")
        key = prefix + layer.replace(".", "_")
        tensors[f"{key}.{'lora_down' if factor == 'lora_A' else 'lora_up'}.weight"] = value.contiguous()
        tensors[key + ".alpha"] = torch.tensor(5.0 if layer.endswith("fc1") else 3.0)
    return tensors


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    tokenizer = transformers.CLIPTokenizer.from_pretrained(BASES / "sd1/tokenizer")
    ids = tokenizer("a red circle above two squares", return_tensors="pt").input_ids
    load = transformers.CLIPTextModel.from_pretrained
    one = adapted(load(BASES / "sd1/text_encoder"), 1)
    first = adapted(load(BASES / "sdxl/text_encoder"), 2)
    second = adapted(transformers.CLIPTextModelWithProjection.from_pretrained(BASES / "sdxl/text_encoder_2"), 3)
    with torch.no_grad():
        of_first = first(ids, output_hidden_states=True)
        of_second = second(ids, output_hidden_states=True)
        expected = {"ids": ids[0], "states": one(ids).last_hidden_state[0],
                    "sdxl_states": torch.cat([of_first.hidden_states[-2], of_second.hidden_states[-2]], -1)[0],
                    "sdxl_pooled": of_second.text_embeds[0]}
    safetensors.torch.save_file({name: value.contiguous() for name, value in expected.items()},
                                OUT / "expected.safetensors")
    save_as_peft(one, OUT / "peft")
    state = peft.get_peft_model_state_dict
    diffusers.StableDiffusionPipeline.save_lora_weights(
        OUT / "diffusers", text_encoder_lora_layers=state(one), text_encoder_lora_adapter_metadata=SETTINGS)
    diffusers.StableDiffusionXLPipeline.save_lora_weights(
        OUT / "diffusers_sdxl", text_encoder_lora_layers=state(first), text_encoder_2_lora_layers=state(second),
        text_encoder_lora_adapter_metadata=SETTINGS, text_encoder_2_lora_adapter_metadata=SETTINGS)
    safetensors.torch.save_file(kohya(one, "lora_te_"), OUT / "kohya.safetensors")
    safetensors.torch.save_file(kohya(first, "lora_te1_") | kohya(second, "lora_te2_"), OUT / "kohya_sdxl.safetensors")


if __name__ == "__main__":
    main()
