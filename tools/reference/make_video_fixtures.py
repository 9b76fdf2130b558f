"""Makes the fixtures of the video families: outputs and gradients at tiny sizes.

    python tools/reference/make_video_fixtures.py           writes them
    python tools/reference/make_video_fixtures.py --check   makes them again and compares

Numbers as in make_dit_fixtures.py. README.md beside this file has the format.
"""

import argparse
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path

import torch

import rf
import tensor_file
from make_dit_fixtures import TESTS, VERSION, check, floating, integers, normal
from latte import Latte
from pixart import PixArt
from stdit import STDiT
from stdit2 import STDiT2
from stdit3 import STDiT3
from vdit import VDiT
from video_layers import VideoConfig

BOOLS = ("null_text", "frame_mask")


def tiny(**changes):
    sizes = {"frames": 4, "height": 6, "width": 8, "in_channels": 2, "hidden": 16, "depth": 2, "heads": 2,
             "mlp_ratio": 2, "text_channels": 10, "text_tokens": 6, "base_pixels": 32}
    return VideoConfig(**sizes | changes)


CLIP = ("text", "fps", "height", "width", "frame_mask")

# name: class, what it is conditioned on, configuration
MODELS = {
    "stdit3": (STDiT3, CLIP, tiny(qk_norm=True, time_scale=1000.0)),
    # Windows that do not divide the clip; a third of a head's dims for each axis.
    "stdit3_windows": (STDiT3, CLIP, tiny(frames=3, hidden=24, depth=1, mlp_ratio=1, qk_norm=True,
                                          time_scale=1000.0, window=(3, 2, 3), rotary_3d=True)),
    "stdit": (STDiT, ("text",), tiny(position_scale=0.5, time_position_scale=2 / 3)),
    "stdit2": (STDiT2, (*CLIP, "num_frames"), tiny(hidden=12, qk_norm=True)),
    "pixart": (PixArt, ("text",), tiny(frames=1)),
    "pixart_sizes": (PixArt, ("text", "height", "width"),
                     tiny(frames=1, height=8, hidden=12, size_conditions=True, position_scale=2.0)),
    "pixart_sigma": (PixArt, ("text",), tiny(frames=1, qk_norm=True)),
    "vdit": (VDiT, ("pooled",), tiny(patch_frames=2)),
    "latte": (Latte, ("pooled",), tiny(frames=3, depth=4)),
    # The height is no multiple of a cell's.
    "pixart_kv_conv": (PixArt, ("text",), tiny(frames=1, height=10, qk_norm=True, kv_compress="conv")),
    "pixart_kv_ave": (PixArt, ("text",), tiny(frames=1, depth=3, kv_compress="ave", kv_compress_layers=(0, 2))),
    "pixart_kv_uniform": (PixArt, ("text",), tiny(frames=1, height=8, kv_compress="uniform")),
    "pixart_kv_every": (PixArt, ("text",), tiny(frames=1, kv_compress="uniform_every", kv_compress_factor=5)),
    "stdit3_given": (STDiT3, (*CLIP, "given"), tiny(depth=1, qk_norm=True, time_scale=1000.0,
                                                    given_embedders=True)),
}


def random_weights(rng, model):
    """Nothing stays at zero or one, so that every gradient is worth comparing; tables of positions and
    frequencies stay what they are."""
    fixed = {name for name, _ in model.named_buffers()} - {"y_embedder.y_embedding"}
    fixed |= {name for name, p in model.named_parameters() if not p.requires_grad}
    weights = {}
    for name, value in model.state_dict().items():
        if name in fixed:
            weights[name] = value.clone()
        elif name.endswith("norm.weight"):
            weights[name] = 1 + normal(rng, *value.shape, scale=0.3)
        elif value.dim() == 1:
            weights[name] = normal(rng, *value.shape, scale=0.1)
        else:
            fan_in = 4 if "table" in name or "y_embedding" in name else value[0].numel()
            weights[name] = normal(rng, *value.shape, scale=0.9 * fan_in**-0.5)
    return weights


def conditions(rng, config, kinds, batch, frames, height, width):
    """Captions of several lengths (padding is noise that nothing may read), the last one null."""
    values = {}
    if "text" in kinds:
        values["text"] = normal(rng, batch, config.text_tokens, config.text_channels)
        values["text_lengths"] = torch.tensor([config.text_tokens, 1, 3][:batch])
    if "pooled" in kinds:
        values["pooled"] = normal(rng, batch, config.text_channels)
    values["null_text"] = torch.tensor([0] * (batch - 1) + [1])
    sizes = {"fps": torch.tensor([24.0, 8.0, 120.0][:batch]), "height": torch.full((batch,), 8.0 * height),
             "width": torch.full((batch,), 8.0 * width),
             "num_frames": torch.tensor([51.0, 17.0, 1.0][:batch])}
    values |= {kind: value for kind, value in sizes.items() if kind in kinds}
    if "frame_mask" in kinds:
        values["frame_mask"] = torch.cat([integers(rng, 2, batch - 1, frames), torch.ones(1, frames)]).long()
        values["frame_mask"][0, 0], values["frame_mask"][0, -1] = 0, 1
    if "given" in kinds:
        values["given"] = normal(rng, batch, config.in_channels, frames, height, width)
    return values


def case(rng, config, kinds, times, frames, height, width):
    shape = (len(times), config.in_channels, frames, height, width)
    scaled = torch.tensor(times) * (1.0 if config.time_scale == 1000 else 1000.0)
    return {"x_t": normal(rng, *shape), "t": scaled,
            **conditions(rng, config, kinds, len(times), frames // config.patch_frames, height, width)}


def run(model, inputs, dtype):
    x = floating(inputs, dtype)
    given = {name: value.bool() if name in BOOLS else value for name, value in x.items()}
    return model(x["x_t"], x["t"], given)


def compute(name, weights, cases, cotangent, dtype):
    model_class, _, config = MODELS[name]
    model = model_class(config).to(dtype)
    model.load_state_dict(weights)
    output = run(model, cases["forward"], dtype)
    (output * cotangent.to(dtype)).sum().backward()
    results = {"forward.output": output.detach()}
    results |= {f"grad.{key}": p.grad for key, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        if "image" in cases:
            results["image.output"] = run(model, cases["image"], dtype)
    return results


def distance(got, expected):
    return ((got.double() - expected).norm() / expected.norm()).item()


def make(name, seed):
    model_class, kinds, config = MODELS[name]
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model = model_class(config)
    weights = random_weights(rng, model)
    sizes = (config.frames, config.height, config.width)
    cases = {"forward": case(rng, config, kinds, [0.25, 0.999, 0.4375], *sizes)}
    if "height" in kinds:  # any size: an image, wider than high, nothing masked
        image_kinds = [kind for kind in kinds if kind not in ("frame_mask", "given")]
        cases["image"] = case(rng, config, image_kinds, [0.75, 0.125], config.patch_frames, 4, 10)
    cotangent = normal(rng, len(cases["forward"]["t"]), config.out_channels, *sizes)
    exact = compute(name, weights, cases, cotangent, torch.float64)
    single = compute(name, weights, cases, cotangent, torch.float32)
    worst = max(exact, key=lambda key: distance(single[key], exact[key]))
    print(f"{name}: float32 is within {distance(single[worst], exact[worst]):.1e} of the norm of every "
          f"result, worst {worst}")
    tensors = {f"weights.{key}": value for key, value in weights.items()}
    for prefix, inputs in cases.items():
        tensors |= {f"{prefix}.{key}": value for key, value in inputs.items()}
    tensors["forward.cotangent"] = cotangent
    tensors |= {key: value.float() for key, value in exact.items()}
    metadata = {"kinora_fixture": "video", "version": VERSION, "config": json.dumps(asdict(config))}
    return tensors, metadata


def rf_results(x, frame_mask):
    sizes = (x["height"], x["width"], x["num_frames"])
    t_drawn = rf.logit_normal(x["draws"])
    t = rf.transform(t_drawn, *sizes)
    image_t = rf.transform(t_drawn, *sizes[:2], torch.ones_like(x["num_frames"]))
    output = x["output"].clone().requires_grad_()
    loss = rf.loss(output, x["x0"], x["noise"], frame_mask)
    (grad,) = torch.autograd.grad(loss.sum(), output)
    times = rf.sampling_times(4, *sizes)
    conditional = x["output"].chunk(2, dim=1)[0]
    velocity = rf.guided(conditional, x["unconditional"], 7.0)
    return {"t_drawn": t_drawn, "t": t, "image.t": image_t,
            "x_t": rf.noised(x["x0"], x["noise"], t, frame_mask), "target": x["x0"] - x["noise"],
            "loss": loss.detach(), "loss_unmasked": rf.loss(x["output"], x["x0"], x["noise"]),
            "grad_output": grad, "times": times,
            "stepped": rf.step(x["z"], velocity, times[1], times[2])}


def make_rf(seed):
    rng = random.Random(seed)
    shape = (3, 2, 5, 2, 3)
    inputs = {"draws": normal(rng, 3), "height": torch.tensor([144.0, 720.0, 512.0]),
              "width": torch.tensor([256.0, 1280.0, 512.0]), "num_frames": torch.tensor([17.0, 51.0, 113.0]),
              "x0": normal(rng, *shape), "noise": normal(rng, *shape),
              "frame_mask": torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]]),
              "output": normal(rng, 3, 4, 5, 2, 3), "z": normal(rng, *shape),
              "unconditional": normal(rng, *shape)}
    mask = inputs["frame_mask"].bool()
    exact, single = (rf_results(floating(inputs, dtype), mask) for dtype in (torch.float64, torch.float32))
    worst = max(exact, key=lambda key: distance(single[key], exact[key]))
    print(f"rf_flow: float32 is within {distance(single[worst], exact[worst]):.1e} of the norm of every "
          f"result, worst {worst}")
    metadata = {"kinora_fixture": "rf_flow", "version": VERSION}
    return inputs | {key: value.float() for key, value in exact.items()}, metadata


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    good = True
    files = {TESTS / "models" / "data" / f"{name}.safetensors": make(name, seed)
             for seed, name in enumerate(MODELS, start=101)}
    files[TESTS / "diffusion" / "data" / "rf_flow.safetensors"] = make_rf(seed=100)
    for path, (tensors, metadata) in files.items():
        if arguments.check:
            good &= check(path, tensors, metadata)
        else:
            tensor_file.save(path, tensors, metadata)
            print(f"wrote {path.name}, {path.stat().st_size} bytes")
    if not good:
        sys.exit("the committed fixtures are not what this script makes")


if __name__ == "__main__":
    main()
