"""The PyTorch peer of `kinora bench train` for STDiT (Open-Sora 1.0): one training step, timed.

    python bench/peers/train_stdit.py --batch 8 --precision bf16 --recompute 28 \
        --mode compile-default,compile-max-autotune-no-cudagraphs
    python bench/peers/train_stdit.py --hidden 64 --depth 2 --heads 2 --frames 4 --height 8 --width 8 \
        --text-channels 32 --text-tokens 12 --batch 2 --device cpu --threads 2
    python bench/peers/train_stdit.py --ranks 4 --batch 1 --precision bf16

The default is 16 x 512 x 512 pixels: latents of 4 x 16 x 64 x 64, captions of 120 tokens of T5. Latents
and embedded captions are precomputed and stay in the device's memory; captions have several lengths,
and their padding is masked. Otherwise the step, its modes and options are those of train_dit.py.
--recompute: so many blocks keep only their input for the backward pass. --ranks: the tokens of the same
clips are divided among so many GPUs, eager: Ulysses with four all-to-alls around both attentions, and
DistributedDataParallel for the gradients; --check compares loss and gradients with those of the whole model
first. Prints one line of JSON a measurement.
"""

import argparse
import statistics
import sys
from dataclasses import replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import measure  # also makes tools/reference importable
import stdit
import train_dit
import ulysses
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


class UlyssesAttention(torch.nn.Module):
    """Of tokens [B, N, C] that are divided in dim `divided`."""

    def __init__(self, attention, divided, traffic):
        super().__init__()
        self.attention, self.divided, self.traffic = attention, divided, traffic

    def forward(self, x, angles=None, valid=None):
        if angles is not None or valid is not None:
            raise NotImplementedError("STDiT has neither positions nor masks in attention")
        a = self.attention
        q, k, v = a.qkv(x).unflatten(2, (3, a.heads, -1)).unbind(2)  # [B, N, H, D]
        q, k, v = (self.traffic.exchange(part, 2, self.divided) for part in (a.q_norm(q), a.k_norm(k), v))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return a.proj(self.traffic.exchange(y.transpose(1, 2), self.divided, 2).flatten(2))


def divide_tokens(model):
    """The blocks work on this rank's tokens of every frame."""
    traffic = ulysses.Traffic()
    for block in model.blocks:
        block = block.block if isinstance(block, Recomputed) else block
        block.attn = UlyssesAttention(block.attn, 1, traffic)  # [B T, S, C]
        block.attn_temp = UlyssesAttention(block.attn_temp, 0, traffic)  # [B S, T, C]
    model.blocks[0].register_forward_pre_hook(
        lambda block, given: (ulysses.own_part(given[0], 2), *given[1:]))
    model.final_layer.register_forward_pre_hook(
        lambda layer, given: (ulysses.AllGather.apply(given[0], 2), *given[1:]))


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


def gradients_of(model, objective, loss, x0):
    """Loss and gradients of all parameters, of drawn noise and times that are always the same."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(x0.shape, generator=generator).to(x0)
    t = torch.randint(1, 1000, (len(x0),), generator=generator).to(x0.device)
    value = loss(x0, t, noise, torch.zeros(len(x0), device=x0.device).bool())
    value.backward()
    found = [value.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    model.zero_grad(set_to_none=True)
    return found


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

    call = model

    def model_of_images(x, t, null_text):
        given = {"text": text[: len(x)], "text_lengths": lengths[: len(x)], "null_text": null_text}
        return as_image(call(x.unflatten(2, clip[1:3]), t, given))

    def predict(x, t, null_text):
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=arguments.precision == "bf16"):
            return model_of_images(x, t, null_text)

    def objective_loss(x, t, noise, null_text):
        return objective.loss(predict, x, t, noise, null_text)

    few = min(batch, 2)
    train_dit.check_iddpm(model_of_images, objective, x0[:few], torch.zeros(few, device=device).bool())
    gradients = gradients_of(model, objective, objective_loss, x0) if arguments.check else None
    if arguments.ranks > 1:
        divide_tokens(model)
        device_ids = [torch.device(device).index] if device.startswith("cuda") else None
        call = DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True,
                                       broadcast_buffers=False)
    if gradients is not None:
        found = gradients_of(model, objective, objective_loss, x0)
        difference = max(ulysses.relative_error(got, want) for got, want in zip(found, gradients))
        if not ulysses.largest(difference) < 1e-4:
            raise RuntimeError(f"the divided model differs from the whole one: {difference}")
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
        if arguments.ranks > 1:  # they are views of DistributedDataParallel's buckets
            torch._foreach_zero_([p.grad for p in parameters])
        else:
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
    times = []
    for _ in range(arguments.blocks):
        if arguments.ranks > 1:
            dist.barrier()
        times.append(measure.seconds(block, device) / arguments.steps * 1000)
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
    parser.add_argument("--ranks", type=int, default=1, help="that divide the tokens, each with its GPU")
    parser.add_argument("--check", action="store_true", help="the divided model against the whole one; fp32")
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    config = config_of(arguments, frames=16, height=64, width=64)
    if not 0 <= arguments.recompute <= config.depth:
        parser.error(f"--recompute must be 0 to {config.depth}, got {arguments.recompute}")
    if arguments.ranks == 1:
        run(arguments)
        return
    if arguments.mode != ["eager"]:
        parser.error("several ranks are eager")
    if config.heads % arguments.ranks or config.grid[1] * config.grid[2] % arguments.ranks:
        parser.error(f"{arguments.ranks} ranks must divide heads and the tokens of a frame")
    ulysses.on_ranks(run, arguments)


def run(arguments):
    measure.prepare_device(arguments, tf32=arguments.precision == "tf32")
    config = config_of(arguments, frames=16, height=64, width=64)

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
            "ranks": arguments.ranks,
            "device": measure.device_name(arguments.device),
        }
        return description, run

    measure.run_all(measurement(mode, attention)
                    for mode in arguments.mode for attention in arguments.attention)


if __name__ == "__main__":
    sys.exit(main())
