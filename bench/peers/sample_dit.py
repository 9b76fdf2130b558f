"""The PyTorch peer of DiT's sampling: DDIM with classifier-free guidance, random weights.

    python bench/peers/sample_dit.py --model DiT-XL/2 --batch 1,8,64 \
        --mode eager,compile-default,compile-reduce-overhead

As the published sampler does it: the batch doubled (classes, then the null class), guidance on the first
three channels of the predicted noise, the variance not used (eta 0). One compiled function is a whole
step: network, guidance, update. compile-graph captures all steps in one CUDA graph.
--weights bf16 keeps the weights in bf16 instead of casting them in each step. Prints one line of JSON a
measurement: ms for a run, the median of five.
"""

import argparse
import statistics
import sys
from dataclasses import replace

import torch

import measure  # also makes tools/reference importable
import dit
import iddpm

GUIDED_CHANNELS = 3


def ddim_times(steps):
    """Every (1000 / steps)-th time of the schedule, from the noisiest, as the published code spaces them."""
    return list(range(0, 1000, 1000 // steps))[::-1]


def ddim_constants(steps):
    """Per step: t, and the factors of x and of the noise in x_next = a x + b noise."""
    alpha_bar = iddpm.Schedule().alpha_bar
    times = ddim_times(steps)
    now = alpha_bar[times]
    after = torch.cat([now[1:], torch.ones(1, dtype=now.dtype)])
    factor_x = (after / now).sqrt()
    factor_noise = (1 - after).sqrt() - factor_x * (1 - now).sqrt()
    return times, factor_x, factor_noise


def guide(output, scale):
    """Both halves get the same guided noise in the first channels, and keep their own in the others."""
    conditional, unconditional = output[:, :GUIDED_CHANNELS].chunk(2)
    guided = unconditional + scale * (conditional - unconditional)
    return torch.cat([torch.cat([guided, guided]), output[:, GUIDED_CHANNELS:]], dim=1)


def build(arguments):
    config = dit.named_config(arguments.model)
    side = arguments.image_size // 8  # the autoencoder's factor
    changes = {"depth": arguments.depth} if arguments.depth else {}
    config = replace(config, height=side, width=side, **changes)
    torch.manual_seed(0)
    with torch.device(arguments.device):
        model = dit.DiT(config).requires_grad_(False).eval()
    for layer in model.zero_initialized():  # zeros cost less power, and so less time
        torch.nn.init.normal_(layer.weight, std=0.02)
        torch.nn.init.normal_(layer.bias, std=0.02)
    return model.to(torch.bfloat16) if arguments.weights == "bf16" else model


def time_sampling(arguments, mode, batch):
    device = arguments.device
    in_graph = mode == "compile-graph"
    if in_graph and not device.startswith("cuda"):
        raise RuntimeError("compile-graph needs a GPU")
    model = build(arguments)
    config = model.config
    classes = torch.randint(config.num_classes, (batch,), device=device)
    labels = torch.cat([classes, torch.full_like(classes, config.num_classes)])
    noise = torch.randn(batch, config.in_channels, config.height, config.width, device=device)
    times, factor_x, factor_noise = ddim_constants(arguments.steps)
    per_step = [
        (torch.full((2 * batch,), float(t), device=device), a.float().to(device), b.float().to(device))
        for t, a, b in zip(times, factor_x, factor_noise)
    ]

    def one_step(x, t, a, b):
        half = x[:batch]
        output = model(torch.cat([half, half]), t, labels).float()
        predicted = guide(output, arguments.guidance)[:, : config.in_channels]
        return a * x + b * predicted

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

    run = measure.captured(sample).replay if in_graph else sample
    for _ in range(arguments.warmup):
        run()
    measure.synchronize(device)
    if not in_graph:  # the captured run's memory is all allocated by now
        measure.reset_peak_memory(device)
    times = [measure.seconds(run, device) * 1000 for _ in range(arguments.runs)]
    milliseconds = statistics.median(times)
    if not torch.isfinite(x).all():
        raise RuntimeError("the samples are not finite")
    return {
        "ms": round(milliseconds, 3), "ms_min": round(min(times), 3), "ms_max": round(max(times), 3),
        "images_per_s": round(batch / milliseconds * 1000, 3),
        "tflops": round(4 * batch * arguments.steps * dit.macs_per_image(config) / milliseconds / 1e9, 4),
        "peak_memory_gib": measure.peak_memory_gib(device),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="DiT-XL/2")
    parser.add_argument("--depth", type=int, default=0, help="instead of the model's")
    parser.add_argument("--image-size", type=int, default=256, help="in pixels")
    parser.add_argument("--batch", default="1,8,64", help="images; several with commas between them")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--guidance", type=float, default=4.0)
    parser.add_argument("--weights", choices=["autocast", "bf16"], default="autocast")
    parser.add_argument("--mode", type=measure.names_of(measure.MODES), default=["eager"])
    parser.add_argument("--attention", type=measure.names_of(measure.ATTENTION), default=["auto"])
    parser.add_argument("--warmup", type=int, default=3, help="runs before timing")
    parser.add_argument("--runs", type=int, default=5, help="timed; the median is reported")
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    if 1000 % arguments.steps:
        parser.error(f"--steps must divide 1000, got {arguments.steps}")
    measure.prepare_device(arguments)

    def measurement(mode, attention, batch):
        def run():
            with measure.attention(attention):
                return time_sampling(arguments, mode, batch)

        description = {
            "peer": f"torch {mode}", "model": arguments.model, "image_size": arguments.image_size,
            "steps": arguments.steps, "guidance": arguments.guidance, "weights": arguments.weights,
            "attention": attention, "batch": batch, "device": measure.device_name(arguments.device),
        }
        return description, run

    measure.run_all(measurement(mode, attention, int(batch)) for mode in arguments.mode
                    for attention in arguments.attention for batch in arguments.batch.split(","))


if __name__ == "__main__":
    sys.exit(main())
