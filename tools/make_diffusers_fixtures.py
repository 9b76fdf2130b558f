#!/usr/bin/env python3
"""Writes tests/train/data/diffusers_{dit,pixart}/: tiny models as diffusers saves them, and what they make
of some inputs. Wants torch and diffusers 0.42.

    python3 tools/make_diffusers_fixtures.py [FOLDER]

transformer/ is what save_pretrained writes (weights bf16, so that the files are small; the model computed
with these values in float64). expected.safetensors has x, t and the conditions, `output`, and for DiT
`output_as_trained`: diffusers spaces the frequencies of its timestep embedding by 1/127 of the range
where the original DiT and Kinora have 1/128 (CombinedTimestepLabelEmbeddings has downscale_freq_shift=1),
so that its outputs differ from the original's for t > 0; this one is computed with the original's.
All of a DiT's blocks have the same embedders, as those have that come from the original's files.
"""

import pathlib
import sys

import torch
from diffusers import DiTTransformer2DModel, PixArtTransformer2DModel
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[1] / "tests" / "train" / "data"


def randomise(model):
    """Nothing is zero; values that bf16 holds."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.copy_(values.to(torch.bfloat16))


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def double(values):
    return {name: value.double() if value.is_floating_point() else value
            for name, value in values.items()}


def write(folder, model, tensors):
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder / "transformer")
    save_file({name: value.float().contiguous() if value.is_floating_point() else value
               for name, value in tensors.items()}, folder / "expected.safetensors")
    print(folder, sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()), "bytes")


def dit(folder):
    model = DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=8, in_channels=4,
                                  out_channels=8, num_layers=2, sample_size=8, num_embeds_ada_norm=5,
                                  norm_eps=1e-6)
    randomise(model)
    for block in model.transformer_blocks[1:]:
        block.norm1.emb.load_state_dict(model.transformer_blocks[0].norm1.emb.state_dict())
    model = model.eval().double()
    given = {"x": randn(3, 4, 8, 8), "t": torch.tensor([0.0, 17.0, 999.0]),
             "labels": torch.tensor([0, 4, 5])}

    def output():
        values = double(given)
        with torch.no_grad():
            return model(values["x"], timestep=values["t"], class_labels=values["labels"]).sample

    tensors = dict(given, output=output())
    for block in model.transformer_blocks:
        block.norm1.emb.time_proj.downscale_freq_shift = 0
    write(folder, model, dict(tensors, output_as_trained=output()))


def pixart(folder):
    model = PixArtTransformer2DModel(num_attention_heads=2, attention_head_dim=12, in_channels=4,
                                     out_channels=8, num_layers=2, sample_size=8, cross_attention_dim=24,
                                     caption_channels=10, interpolation_scale=2,
                                     use_additional_conditions=True)
    randomise(model)
    model = model.eval().double()
    given = {"x": randn(2, 4, 8, 8), "t": torch.tensor([3.0, 640.0]), "text": randn(2, 6, 10),
             "text_lengths": torch.tensor([6, 4]), "height": torch.tensor([64.0, 32.0]),
             "width": torch.tensor([64.0, 96.0])}
    values = double(given)
    mask = torch.arange(6)[None] < given["text_lengths"][:, None]
    sizes = {"resolution": torch.stack([values["height"], values["width"]], 1),
             "aspect_ratio": (values["height"] / values["width"])[:, None]}
    with torch.no_grad():
        output = model(values["x"], values["text"], timestep=values["t"], added_cond_kwargs=sizes,
                       encoder_attention_mask=mask).sample
    write(folder, model, dict(given, output=output))


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    dit(root / "diffusers_dit")
    pixart(root / "diffusers_pixart")


if __name__ == "__main__":
    main()
