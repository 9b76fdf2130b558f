"""Makes what tests of LoRA, DoRA, LoHa and LoKr compare with: what PEFT (https://github.com/huggingface/peft) computes.

usage: python3 tools/make_low_rank_fixtures.py

Needs torch, peft, diffusers and safetensors; made with peft 0.21.2, diffusers 0.42.1, torch 2.11.0.
"""
import pathlib
import shutil

import torch
from peft import LoHaConfig, LoKrConfig, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINEAR = ROOT / "tests/nn/data/low_rank.safetensors"
TRAIN = ROOT / "tests/train/data"
# Of a linear and, as conv_..., of a 3 x 3 convolution.
CASES = {"lora": (LoraConfig, {}), "rslora": (LoraConfig, {"use_rslora": True}),
         "dora": (LoraConfig, {"use_dora": True}), "loha": (LoHaConfig, {}), "lokr": (LoKrConfig, {}),
         "conv_lora": (LoraConfig, {}), "conv_dora": (LoraConfig, {"use_dora": True}), "conv_loha": (LoHaConfig, {}),
         "conv_lokr": (LoKrConfig, {}), "conv_lokr_1": (LoKrConfig, {"r": 1})}
RANK, ALPHA = 3, 5.0


def randomise(module, generator, std):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * std)


def settings(kind, options, targets):
    """Of PEFT, with the names that this kind gives to rank and alpha."""
    alpha = {"lora_alpha" if kind is LoraConfig else "alpha": ALPHA}
    return kind(**({"r": RANK, "target_modules": targets} | alpha | options))


def is_factor(name):
    return any(key in name for key in ("lora_A", "lora_B", "hada_", "lokr_"))


def layer_case(name, kind, options, tensors):
    """One layer: its output and all gradients, in double so that they are exact to fp32."""
    generator = torch.Generator().manual_seed(11)
    conv = name.startswith("conv_")
    layer = torch.nn.Conv2d(8, 6, 3, stride=2, padding=1) if conv else torch.nn.Linear(7, 5)
    base = torch.nn.Sequential(layer).double()
    randomise(base, generator, 0.5)
    prefix = "conv_" if conv else ""
    tensors[prefix + "weight"] = base[0].weight.detach().clone()
    tensors[prefix + "bias"] = base[0].bias.detach().clone()
    model = get_peft_model(base, settings(kind, options, ["0"]), autocast_adapter_dtype=False).double()
    trained = {}
    for path, parameter in model.named_parameters():
        if is_factor(path):
            part = path.removeprefix("base_model.model.0.").replace(".default", "")
            trained[part] = parameter
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.6)
        elif "magnitude" in path:
            tensors[name + ".start"] = parameter.detach().flatten().clone()  # the norms of the base
            with torch.no_grad():
                noise = torch.randn(parameter.numel(), generator=generator, dtype=torch.float64)
                parameter.copy_(parameter * (1 + 0.3 * noise.view(parameter.shape)))
            trained["lora_magnitude_vector"] = parameter
    x = torch.randn(*((2, 8, 5, 4) if conv else (2, 4, 7)), generator=generator, dtype=torch.float64,
                    requires_grad=True)
    y = model(x)
    dy = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    y.backward(dy)
    tensors |= {f"{name}.x": x, f"{name}.dy": dy, f"{name}.y": y, f"{name}.dx": x.grad}
    for key, parameter in trained.items():
        flat = "magnitude" in key
        tensors[f"{name}.{key}"] = parameter.flatten() if flat else parameter
        tensors[f"{name}.d.{key}"] = parameter.grad.flatten() if flat else parameter.grad
    return tensors


def model_case(name, kind, options, targets):
    """An adapter of a diffusers model as PEFT saves it, and the weights that merging it gives."""
    import diffusers
    generator = torch.Generator().manual_seed(12)
    folder = TRAIN / "diffusers_dit/transformer"
    base = diffusers.DiTTransformer2DModel.from_pretrained(folder).double()
    model = get_peft_model(base, settings(kind, options, targets), autocast_adapter_dtype=False)
    for path, parameter in model.named_parameters():
        if is_factor(path) or "magnitude" in path:
            with torch.no_grad():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(parameter * (1 + 0.2 * noise) if "magnitude" in path else 0.3 * noise)
    out = TRAIN / f"adapter_{name}"
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
    for name, (kind, options) in CASES.items():
        tensors = layer_case(name, kind, options, tensors)
    LINEAR.parent.mkdir(exist_ok=True)
    save_file({name: value.detach().float().contiguous() for name, value in tensors.items()}, LINEAR)
    model_case("lora", LoraConfig, {}, ["to_q", "to_v", "ff.net.0.proj", "proj_out_2"])
    model_case("dora", LoraConfig, {"use_dora": True}, ["to_k", "to_out.0"])
    own = {"rank_pattern": {"pos_embed.proj": 2}, "alpha_pattern": {"attn1.to_.": 7.0}}
    model_case("patterns", LoraConfig, own, ["to_q", "pos_embed.proj"])
    model_case("loha", LoHaConfig, own, ["to_q", "to_out.0", "pos_embed.proj"])
    model_case("lokr", LoKrConfig, {"decompose_both": True, "r": 1}, ["to_v", "ff.net.2", "pos_embed.proj"])


if __name__ == "__main__":
    main()
