"""Makes what tests of LoRA and DoRA compare with: what PEFT (https://github.com/huggingface/peft) computes.

usage: python3 tools/make_low_rank_fixtures.py

Needs torch, peft, diffusers and safetensors; made with peft 0.21.2, diffusers 0.42.1, torch 2.11.0.
"""
import pathlib
import shutil

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINEAR = ROOT / "tests/nn/data/low_rank.safetensors"
TRAIN = ROOT / "tests/train/data"
CASES = {"lora": {}, "rslora": {"use_rslora": True}, "dora": {"use_dora": True}}
RANK, ALPHA = 3, 5.0


def randomise(module, generator, std):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * std)


def linear_case(name, options, tensors):
    """One linear: its output and all gradients, in double so that they are exact to fp32."""
    generator = torch.Generator().manual_seed(11)
    base = torch.nn.Sequential(torch.nn.Linear(7, 5)).double()
    randomise(base, generator, 0.5)
    tensors["weight"] = base[0].weight.detach().clone()
    tensors["bias"] = base[0].bias.detach().clone()
    model = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["0"], **options),
                           autocast_adapter_dtype=False)
    layer = model.base_model.model[0].double()
    randomise(layer.lora_A, generator, 0.6)
    randomise(layer.lora_B, generator, 0.6)
    trained = {"a": layer.lora_A["default"].weight, "b": layer.lora_B["default"].weight}
    if "use_dora" in options:
        magnitude = layer.lora_magnitude_vector["default"].weight
        tensors[name + ".start"] = magnitude.detach().clone()  # the norms of the base
        with torch.no_grad():
            magnitude.copy_(magnitude * (1 + 0.3 * torch.randn(5, generator=generator, dtype=torch.float64)))
        trained["magnitude"] = magnitude
    x = torch.randn(2, 4, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64)
    y = model(x)
    y.backward(dy)
    tensors |= {f"{name}.x": x, f"{name}.dy": dy, f"{name}.y": y, f"{name}.dx": x.grad}
    for key, parameter in trained.items():
        tensors[f"{name}.{key}"] = parameter
        tensors[f"{name}.d{key}"] = parameter.grad
    return tensors


def model_case(kind, options, targets):
    """An adapter of a diffusers model as PEFT saves it, and the weights that merging it gives."""
    import diffusers
    generator = torch.Generator().manual_seed(12)
    folder = TRAIN / "diffusers_dit/transformer"
    base = diffusers.DiTTransformer2DModel.from_pretrained(folder).double()
    model = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, **options),
                           autocast_adapter_dtype=False)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            with torch.no_grad():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(parameter * (1 + 0.2 * noise) if "magnitude" in name else 0.3 * noise)
    out = TRAIN / f"adapter_{kind}"
    shutil.rmtree(out, ignore_errors=True)
    model.float().save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    # From what was saved, so that the rounding to fp32 is the same.
    base = diffusers.DiTTransformer2DModel.from_pretrained(folder).double()
    loaded = PeftModel.from_pretrained(base, out, autocast_adapter_dtype=False).double()
    merged = loaded.merge_and_unload().state_dict()
    before = load_file(folder / "diffusion_pytorch_model.safetensors")
    changed = {name: value.float() for name, value in merged.items()
               if name in before and not torch.equal(value, before[name].double())}
    save_file(changed, out / "merged.safetensors")


def main():
    tensors = {}
    for name, options in CASES.items():
        tensors = linear_case(name, options, tensors)
    LINEAR.parent.mkdir(exist_ok=True)
    save_file({name: value.detach().float().contiguous() for name, value in tensors.items()}, LINEAR)
    model_case("lora", {}, ["to_q", "to_v", "ff.net.0.proj", "proj_out_2"])
    model_case("dora", {"use_dora": True}, ["to_k", "to_out.0"])


if __name__ == "__main__":
    main()
