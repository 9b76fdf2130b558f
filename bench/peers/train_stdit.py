"""The PyTorch peer of `kinora bench train` for STDiT (Open-Sora 1.0): one training step, timed.

    python bench/peers/train_stdit.py --batch 8 --precision bf16 --recompute 28 \
        --mode compile-default,compile-max-autotune-no-cudagraphs
    python bench/peers/train_stdit.py --hidden 64 --depth 2 --heads 2 --frames 4 --height 8 --width 8 \
        --text-channels 32 --text-tokens 12 --batch 2 --device cpu --threads 2

The default is 16 x 512 x 512 pixels: latents of 4 x 16 x 64 x 64, captions of 120 tokens of T5. Latents
and embedded captions are precomputed and stay in the device's memory; captions have several lengths,
and their padding is masked. Otherwise the step, its modes and options are those of train_dit.py.
--recompute: so many blocks keep only their input for the backward pass. Prints one line of JSON a
measurement.
"""

import argparse
import statistics
import sys
from dataclasses import replace

import torch
from torch.utils.checkpoint import checkpoint

import measure  # also makes tools/reference importable
import stdit
import train_dit
from video_layers import VideoConfig

TEXT_DROPOUT = 0.1
SIZES = ("frames", "height", "width", "in_channels", "hidden", "depth", "heads", "text_channels",
         "text_tokens")


class Recomputed(torch.nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, *inputs):
        return checkpoint(self.block, *inputs, use_reentrant=False)


def add_model_arguments(parser):
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=0,
                            help="instead of that of STDiT-XL/2 (input in latents)")


def config_of(arguments, **defaults):
    config = VideoConfig(**defaults)
    return replace(config, **{name: getattr(arguments, name) for name in SIZES if getattr(arguments, name)})


def model_name(config):
    published = (config.hidden, config.depth, config.heads) == (1152, 28, 16)
    return "STDiT-XL/2" if published else f"stdit-h{config.hidden}-d{config.depth}"


def build(config, device):
    """With random weights, also where training starts at zero."""
    torch.manual_seed(0)
    with torch.device(device):
        return stdit.STDiT(config)


def captions(config, batch, device):
    """Embedded captions of a quarter to all of the tokens."""
    tokens = config.text_tokens
    text = torch.randn(batch, tokens, config.text_channels, device=device)
    return text, torch.randint(max(1, tokens // 4), tokens + 1, (batch,), device=device)


def as_image(clip):
    """The objective looks at elements only: frames below each other."""
    return clip.flatten(2, 3)


def time_training(arguments, config, mode):
    device, batch = arguments.device, arguments.batch
    whole_step = mode == "compile-graph"
    if whole_step and not device.startswith("cuda"):
        raise RuntimeError("compile-graph needs a GPU")
    model = build(config, device)
    parameters = [p for p in model.parameters() if p.requires_grad]
    for i in range(arguments.recompute):
        model.blocks[i] = Recomputed(model.blocks[i])
    clip = (config.in_channels, config.frames, config.height, config.width)
    x0 = as_image(torch.randn(batch, *clip, device=device))
    text, lengths = captions(config, batch, device)
    objective = train_dit.Iddpm(device)

    def model_of_images(x, t, null_text):
        given = {"text": text[: len(x)], "text_lengths": lengths[: len(x)], "null_text": null_text}
        return as_image(model(x.unflatten(2, clip[1:3]), t, given))

    def predict(x, t, null_text):
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=arguments.precision == "bf16"):
            return model_of_images(x, t, null_text)

    def objective_loss(x, t, noise, null_text):
        return objective.loss(predict, x, t, noise, null_text)

    few = min(batch, 2)
    train_dit.check_iddpm(model_of_images, objective, x0[:few], torch.zeros(few, device=device).bool())
    loss_function = measure.compiled(objective_loss, mode)
    update = train_dit.Update(parameters, arguments.optimizer, arguments.clip, whole_step)
    last_loss = torch.zeros((), device=device)

    def step():
        # What the last step left in the memory of compile's CUDA graphs is dead from here on.
        torch.compiler.cudagraph_mark_step_begin()
        t, noise = objective.draw_t(batch, device), torch.randn_like(x0)
        loss = loss_function(x0, t, noise, torch.rand(batch, device=device) < TEXT_DROPOUT)
        loss.backward()
        update.step()
        last_loss.copy_(loss.detach())
        for p in parameters:
            p.grad = None

    if whole_step:
        graph = measure.captured(step, arguments.warmup)
        step = graph.replay

    def block():
        for _ in range(arguments.steps):
            step()

    for _ in range(arguments.warmup):
        step()
    measure.synchronize(device)
    if not whole_step:  # the captured step's memory is all allocated by now
        measure.reset_peak_memory(device)
    times = [measure.seconds(block, device) / arguments.steps * 1000 for _ in range(arguments.blocks)]
    milliseconds = statistics.median(times)
    macs = stdit.macs_per_clip(config)
    return {
        "parameters": sum(p.numel() for p in parameters),
        "ms_per_step": round(milliseconds, 3),
        "ms_min": round(min(times), 3), "ms_max": round(max(times), 3),
        "clips_per_s": round(batch / milliseconds * 1000, 3),
        "tflops": round(6 * macs * batch / milliseconds / 1e9, 4),
        "macs_per_clip": macs, "peak_memory_gib": measure.peak_memory_gib(device),
        "loss": round(last_loss.item(), 4),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_arguments(parser)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--recompute", type=int, default=0, help="blocks that are computed again")
    parser.add_argument("--mode", type=measure.names_of(measure.MODES), default=["eager"])
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="fp32")
    parser.add_argument("--attention", type=measure.names_of(measure.ATTENTION), default=["auto"])
    parser.add_argument("--optimizer", choices=["fused", "compiled"], default="fused")
    parser.add_argument("--clip", type=float, default=1.0, help="largest global norm; 0: no clipping")
    parser.add_argument("--warmup", type=int, default=5, help="steps before timing")
    parser.add_argument("--steps", type=int, default=5, help="steps of a timed block")
    parser.add_argument("--blocks", type=int, default=5, help="the median block is reported")
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    measure.prepare_device(arguments, tf32=arguments.precision == "tf32")
    config = config_of(arguments, frames=16, height=64, width=64)
    if not 0 <= arguments.recompute <= config.depth:
        parser.error(f"--recompute must be 0 to {config.depth}, got {arguments.recompute}")

    def measurement(mode, attention):
        def run():
            with measure.attention(attention):
                return time_training(arguments, config, mode)

        description = {
            "peer": f"torch {mode}", "model": model_name(config),
            "input": [config.in_channels, config.frames, config.height, config.width],
            "text_tokens": config.text_tokens, "recompute": arguments.recompute,
            "precision": arguments.precision, "attention": attention,
            "optimizer": arguments.optimizer, "clip": arguments.clip, "batch": arguments.batch,
            "device": measure.device_name(arguments.device),
        }
        return description, run

    measure.run_all(measurement(mode, attention)
                    for mode in arguments.mode for attention in arguments.attention)


if __name__ == "__main__":
    sys.exit(main())
