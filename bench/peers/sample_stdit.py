"""The PyTorch peer of sampling with STDiT (Open-Sora 1.0): DDIM with guidance, random weights.

    python bench/peers/sample_stdit.py --mode eager,compile-default
    python bench/peers/sample_stdit.py --hidden 64 --depth 2 --heads 2 --frames 4 --height 8 --width 8 \
        --text-channels 32 --text-tokens 12 --steps 4 --device cpu --threads 2
    python bench/peers/sample_stdit.py --ranks 4

The default is one clip of 80 x 512 x 512 pixels (latents of 4 x 80 x 64 x 64) in 100 steps. The batch is
doubled, captions and null captions, and guidance goes on the first three channels, as in sample_dit.py,
whose options these are. --ranks: so many GPUs (or processes) share the clip by Ulysses with four
all-to-alls around both attentions, eager, as Open-Sora 1.0 was compared with it; what they predict is
checked against one first. Prints one line of JSON a measurement: seconds for a run, the median.
"""

import argparse
import statistics
import sys

import torch

import measure  # also makes tools/reference importable
import sample_dit
import stdit
import train_stdit
import ulysses


def divide(model, x, t, conditions, device):
    """Divides the tokens among the ranks."""
    precision = torch.autocast(device.split(":")[0], torch.bfloat16, enabled=device.startswith("cuda"))
    with torch.no_grad(), precision:
        one = model(x, t, conditions)
        train_stdit.divide_tokens(model)
        error = ulysses.largest(ulysses.relative_error(model(x, t, conditions), one))
    if not error < (5e-2 if device.startswith("cuda") else 1e-5):
        raise RuntimeError(f"the ranks predict otherwise than one: by {error:.2g}")


def time_sampling(arguments, config, mode):
    device, batch = arguments.device, arguments.batch
    model = train_stdit.build(config, device).requires_grad_(False).eval()
    if arguments.weights == "bf16":
        model = model.to(torch.bfloat16)
    text, lengths = train_stdit.captions(config, batch, device)
    given = {"text": torch.cat([text, text]), "text_lengths": torch.cat([lengths, lengths]),
             "null_text": torch.arange(2 * batch, device=device) >= batch}
    noise = torch.randn(batch, config.in_channels, config.frames, config.height, config.width,
                        device=device)
    per_step = [
        (torch.full((2 * batch,), float(t), device=device), a.float().to(device), b.float().to(device))
        for t, a, b in zip(*sample_dit.ddim_constants(arguments.steps))
    ]

    def one_step(x, t, a, b):
        half = x[:batch]
        output = model(torch.cat([half, half]), t, given).float()
        predicted = sample_dit.guide(output, arguments.guidance)[:, : config.in_channels]
        return a * x + b * predicted

    if arguments.ranks > 1:
        divide(model.float(), torch.cat([noise, noise]), per_step[0][0], given, device)
        model = model.to(torch.bfloat16) if arguments.weights == "bf16" else model
    step = measure.compiled(one_step, mode)
    x = torch.empty(2 * batch, *noise.shape[1:], device=device)

    def sample():
        # The outermost autocast casts each weight once a run where nothing is compiled.
        with torch.no_grad(), torch.autocast(device.split(":")[0], torch.bfloat16):
            x[:batch].copy_(noise)
            x[batch:].copy_(noise)
            for t, a, b in per_step:
                torch.compiler.cudagraph_mark_step_begin()
                x.copy_(step(x, t, a, b))

    for _ in range(arguments.warmup):
        sample()
    measure.synchronize(device)
    measure.reset_peak_memory(device)
    times = [measure.seconds(sample, device) for _ in range(arguments.runs)]
    seconds = statistics.median(times)
    if not torch.isfinite(x).all():
        raise RuntimeError("the samples are not finite")
    macs = stdit.macs_per_clip(config)
    return {
        "seconds": round(seconds, 3), "seconds_min": round(min(times), 3),
        "seconds_max": round(max(times), 3), "ms_per_step": round(seconds / arguments.steps * 1000, 2),
        "tflops": round(4 * batch * arguments.steps * macs / seconds / 1e12, 4),
        "peak_memory_gib": measure.peak_memory_gib(device),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    train_stdit.add_model_arguments(parser)
    parser.add_argument("--batch", type=int, default=1, help="clips")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--guidance", type=float, default=7.0)
    parser.add_argument("--weights", choices=["autocast", "bf16"], default="autocast")
    modes = {name: options for name, options in measure.MODES.items() if name != "compile-graph"}
    parser.add_argument("--mode", type=measure.names_of(modes), default=["eager"])
    parser.add_argument("--attention", type=measure.names_of(measure.ATTENTION), default=["auto"])
    parser.add_argument("--warmup", type=int, default=1, help="runs before timing")
    parser.add_argument("--runs", type=int, default=3, help="timed; the median is reported")
    parser.add_argument("--ranks", type=int, default=1, help="GPUs, or processes of --device cpu")
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    if 1000 % arguments.steps:
        parser.error(f"--steps must divide 1000, got {arguments.steps}")
    if arguments.ranks == 1:
        run(arguments)
        return
    if arguments.mode != ["eager"]:
        parser.error("several ranks are eager")
    ulysses.on_ranks(run, arguments)


def run(arguments):
    measure.prepare_device(arguments)
    config = train_stdit.config_of(arguments, frames=80, height=64, width=64)

    def measurement(mode, attention):
        def run():
            with measure.attention(attention):
                return time_sampling(arguments, config, mode)

        description = {
            "peer": f"torch {mode}", "ranks": arguments.ranks, "model": train_stdit.model_name(config),
            "input": [config.in_channels, config.frames, config.height, config.width],
            "text_tokens": config.text_tokens, "steps": arguments.steps,
            "guidance": arguments.guidance, "weights": arguments.weights, "attention": attention,
            "batch": arguments.batch, "device": measure.device_name(arguments.device),
        }
        return description, run

    measure.run_all(measurement(mode, attention)
                    for mode in arguments.mode for attention in arguments.attention)


if __name__ == "__main__":
    sys.exit(main())
