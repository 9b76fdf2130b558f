"""The PyTorch peer of `kinora bench train` and `kinora bench sample` for Stable Diffusion's U-Nets: diffusers' own
class, channels_last, random weights. Wants torch and diffusers.

    python bench/peers/unet.py --work train --batch 32 --mode eager,compile-default,compile-max-autotune-no-cudagraphs
    python bench/peers/unet.py --work sample --batch 1 --steps 50 --mode compile-default --graph
    python bench/peers/unet.py --work train --batch 2 --size 16 --channels 32,64 --device cpu --threads 2

Training: latents and 77 states of CLIP a sample lie in the device's memory; forward (bf16 autocast over fp32 weights),
the mean squared error of the noise, backward, AdamW and an average of the weights as in train_dit.py. Sampling: weights
in bf16, the batch is doubled for guidance, a step of DDIM follows; --graph captures the whole step as a CUDA graph by
hand. Prints one line of JSON a measurement, the median of blocks of steps.
"""

import argparse
import statistics

import torch
import torch.nn.functional as F
from diffusers import UNet2DConditionModel

import measure
import train_dit

VERSIONS = {"1": {"cross_attention_dim": 768, "attention_head_dim": 8},
            "2": {"cross_attention_dim": 1024, "attention_head_dim": [5, 10, 20, 20], "use_linear_projection": True}}
TOKENS = 77


def build(arguments, dtype):
    torch.manual_seed(0)
    config = dict(VERSIONS[arguments.version], sample_size=arguments.size)
    if arguments.channels:
        levels = len(arguments.channels)
        config |= {"block_out_channels": arguments.channels, "cross_attention_dim": 64, "attention_head_dim": 4,
                   "down_block_types": ["CrossAttnDownBlock2D"] * (levels - 1) + ["DownBlock2D"],
                   "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * (levels - 1)}
    with torch.device(arguments.device):
        return UNet2DConditionModel(**config).to(dtype, memory_format=torch.channels_last)


def inputs(arguments, model, batch):
    shape = (batch, 4, arguments.size, arguments.size)
    text = (batch, TOKENS, model.config.cross_attention_dim)
    return torch.randn(shape, device=arguments.device), torch.randn(text, device=arguments.device)


def alphas():
    """Stable Diffusion's chain."""
    return torch.cumprod(1 - torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2, 0)


def training(arguments, mode):
    device, batch = arguments.device, arguments.batch
    model = build(arguments, torch.float32).train()
    parameters = list(model.parameters())
    x0, text = inputs(arguments, model, batch)
    chain = alphas().float().to(device)

    def compute(x0, text, t, noise):
        signal = chain[t].view(-1, 1, 1, 1)
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=arguments.precision == "bf16"):
            x_t = signal.sqrt() * x0 + (1 - signal).sqrt() * noise
            predicted = model(x_t.contiguous(memory_format=torch.channels_last), t, text, return_dict=False)[0]
        return F.mse_loss(predicted.float(), noise)

    loss_of = measure.compiled(compute, mode)
    update = train_dit.Update(parameters, arguments.optimizer, arguments.clip, False)

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        t = torch.randint(0, 1000, (batch,), device=device)
        loss_of(x0, text, t, torch.randn_like(x0)).backward()
        update.step()
        for p in parameters:
            p.grad = None

    return step, model


def sampling(arguments, mode):
    device, batch = arguments.device, arguments.batch
    model = build(arguments, torch.bfloat16 if arguments.precision == "bf16" else torch.float32)
    model.requires_grad_(False).eval()
    noise, text = inputs(arguments, model, batch)
    both = torch.cat([text, torch.randn_like(text)]).to(model.dtype)
    x, t = noise.clone(), torch.zeros((), device=device)

    def compute(x, t, both):
        shown = torch.cat([x, x]).to(both.dtype).contiguous(memory_format=torch.channels_last)
        wanted, unwanted = model(shown, t.expand(2 * batch), both, return_dict=False)[0].float().chunk(2)
        return 0.99 * x + 0.01 * (unwanted + 7.5 * (wanted - unwanted))

    one = measure.compiled(compute, mode)

    def advance():
        x.copy_(one(x, t, both))

    with torch.no_grad():
        if arguments.graph:
            return measure.captured(advance).replay, model

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            advance()

    return step, model


def measured(arguments, mode):
    step, model = (training if arguments.work == "train" else sampling)(arguments, mode)

    def block():
        for _ in range(arguments.steps):
            step()

    for _ in range(arguments.warmup):
        step()
    measure.synchronize(arguments.device)
    measure.reset_peak_memory(arguments.device)
    times = [measure.seconds(block, arguments.device) / arguments.steps * 1000 for _ in range(arguments.blocks)]
    milliseconds = statistics.median(times)
    return {"parameters": sum(p.numel() for p in model.parameters()), "ms_per_step": round(milliseconds, 3),
            "ms_min": round(min(times), 3), "ms_max": round(max(times), 3),
            "images_per_s": round(arguments.batch / milliseconds * 1000, 3),
            "peak_memory_gib": measure.peak_memory_gib(arguments.device)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", choices=["train", "sample"], default="train")
    parser.add_argument("--version", choices=VERSIONS, default="1", help="of Stable Diffusion")
    parser.add_argument("--size", type=int, default=64, help="of latents")
    parser.add_argument("--channels", type=lambda text: [int(n) for n in text.split(",")], default=None,
                        help="a small U-Net of these levels instead")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--mode", type=measure.names_of(measure.MODES), default=["eager"])
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--optimizer", choices=["fused", "compiled"], default="fused")
    parser.add_argument("--clip", type=float, default=0.0, help="largest global norm; 0: no clipping")
    parser.add_argument("--graph", action="store_true", help="sampling: a CUDA graph of the step")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="steps of a timed block")
    parser.add_argument("--blocks", type=int, default=3, help="the median block is reported")
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    measure.prepare_device(arguments)

    def measurement(mode):
        description = {"peer": f"diffusers, torch {mode}" + (", graph" if arguments.graph else ""),
                       "work": arguments.work, "model": f"UNet-SD{arguments.version}", "batch": arguments.batch,
                       "input": [4, arguments.size, arguments.size], "precision": arguments.precision,
                       "device": measure.device_name(arguments.device)}
        return description, lambda: measured(arguments, mode)

    measure.run_all(measurement(mode) for mode in arguments.mode)


if __name__ == "__main__":
    main()
