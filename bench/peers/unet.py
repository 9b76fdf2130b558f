"""The PyTorch peer of `kinora bench train` and `kinora bench sample` for Stable Diffusion's U-Nets: diffusers' own
class, channels_last, random weights. Wants torch and diffusers.

    python bench/peers/unet.py --work train --batch 32 --mode eager,compile-default,compile-max-autotune-no-cudagraphs
    python bench/peers/unet.py --work sample --batch 1 --steps 50 --mode compile-default --graph
    python bench/peers/unet.py --work train --version xl --size 128 --batch 4 --lora 16 --mode compile-default
    python bench/peers/unet.py --work train --batch 8 --precision fp32 --mode eager
    python bench/peers/unet.py --work train --batch 2 --size 16 --channels 32,64 --device cpu --threads 2

Training: latents and 77 states of CLIP a sample lie in the device's memory; forward (bf16 autocast over fp32 weights),
the mean squared error of the noise, backward, AdamW and an average of the weights as in train_dit.py. --lora trains
low-rank updates of the linears of attention alone, over frozen weights in bf16, as PEFT computes them, and has no
average. --regional compiles residual blocks and transformer blocks by themselves, which takes a minute where SDXL as a
whole takes more than five. Sampling: weights in bf16, the batch is doubled for guidance, a step of DDIM follows; --graph
captures the whole step as a CUDA graph by hand. Prints one line of JSON a measurement, the median of blocks of steps.
"""

import argparse

import torch
import torch.nn.functional as F
from diffusers import UNet2DConditionModel

import measure
import train_dit

VERSIONS = {"1": {"cross_attention_dim": 768, "attention_head_dim": 8},
            "2": {"cross_attention_dim": 1024, "attention_head_dim": [5, 10, 20, 20], "use_linear_projection": True},
            "xl": {"cross_attention_dim": 2048, "attention_head_dim": [5, 10, 20], "use_linear_projection": True,
                   "block_out_channels": [320, 640, 1280], "transformer_layers_per_block": [1, 2, 10],
                   "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
                   "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
                   "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
                   "projection_class_embeddings_input_dim": 2816}}
TOKENS = 77
POOLED = 1280  # of SDXL's captions
UPDATED = ("to_q", "to_k", "to_v", "to_out.0")


class LowRankLinear(torch.nn.Module):
    """y = W x + b + B A x, with W and b frozen and A and B in fp32."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base
        device = base.weight.device
        self.down = torch.nn.Linear(base.in_features, rank, bias=False, device=device)
        self.up = torch.nn.Linear(rank, base.out_features, bias=False, device=device)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def add_updates(model, rank, is_updated=lambda name: name.endswith(UPDATED)):
    """Freezes the model, in bf16, and adds low-rank updates to linears by name, without more to those of attention.
    Returns their parameters."""
    model.requires_grad_(False).to(torch.bfloat16)
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and is_updated(name):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, LowRankLinear(module, rank))
    return [p for p in model.parameters() if p.requires_grad]


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


def compiled(arguments, model, compute, mode):
    if not arguments.regional:
        return measure.compiled(compute, mode)
    torch._dynamo.config.recompile_limit = 64  # blocks of one class have many shapes
    measure.compiled_blocks(model, ("ResnetBlock2D", "BasicTransformerBlock"), mode)
    return compute


def added_conditions(arguments, batch, dtype):
    """What SDXL has beside its tokens: a pooled vector a caption, and the sizes of the picture."""
    if arguments.version != "xl":
        return None
    sizes = torch.tensor([[1024.0, 1024.0, 0.0, 0.0, 1024.0, 1024.0]], device=arguments.device)
    return {"text_embeds": torch.randn(batch, POOLED, device=arguments.device, dtype=dtype),
            "time_ids": sizes.expand(batch, -1).to(dtype)}


def alphas():
    """Stable Diffusion's chain."""
    return torch.cumprod(1 - torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2, 0)


def training(arguments, mode):
    device, batch = arguments.device, arguments.batch
    model = build(arguments, torch.float32).train()
    if arguments.checkpointing:
        model.enable_gradient_checkpointing()
    parameters = add_updates(model, arguments.lora) if arguments.lora else list(model.parameters())
    x0, text = inputs(arguments, model, batch)
    added = added_conditions(arguments, batch, text.dtype)
    chain = alphas().float().to(device)

    def compute(x0, text, t, noise):
        signal = chain[t].view(-1, 1, 1, 1)
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=arguments.precision == "bf16"):
            x_t = signal.sqrt() * x0 + (1 - signal).sqrt() * noise
            predicted = model(x_t.contiguous(memory_format=torch.channels_last), t, text, added_cond_kwargs=added,
                              return_dict=False)[0]
        return F.mse_loss(predicted.float(), noise)

    loss_of = compiled(arguments, model, compute, mode)
    update = train_dit.Update(parameters, arguments.optimizer, arguments.clip, False, average=not (arguments.lora or arguments.no_average))

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
    added = added_conditions(arguments, 2 * batch, model.dtype)
    x, t = noise.clone(), torch.zeros((), device=device)

    def compute(x, t, both):
        shown = torch.cat([x, x]).to(both.dtype).contiguous(memory_format=torch.channels_last)
        predicted = model(shown, t.expand(2 * batch), both, added_cond_kwargs=added, return_dict=False)[0]
        wanted, unwanted = predicted.float().chunk(2)
        return 0.99 * x + 0.01 * (unwanted + 7.5 * (wanted - unwanted))

    one = compiled(arguments, model, compute, mode)

    def advance():
        x.copy_(one(x, t, both))

    return measure.sampling_step(advance, arguments.graph), model


def measured(arguments, mode):
    step, model = (training if arguments.work == "train" else sampling)(arguments, mode)
    result = measure.timed_steps(step, model, arguments)
    return {**result, "images_per_s": round(arguments.batch / result["ms_per_step"] * 1000, 3)}


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
    parser.add_argument("--regional", action="store_true", help="compile blocks by themselves, not the whole")
    parser.add_argument("--lora", type=int, default=0, help="train low-rank updates of this rank; 0: all weights")
    parser.add_argument("--no-average", action="store_true", help="training: without an average of the weights")
    parser.add_argument("--checkpointing", action="store_true", help="training: compute blocks again in backward")
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
        parts = (" of blocks" if arguments.regional else "") + (", graph" if arguments.graph else "")
        description = {"peer": f"diffusers, torch {mode}{parts}", "work": arguments.work,
                       "model": f"UNet-SD{arguments.version}", "lora": arguments.lora, "batch": arguments.batch,
                       "input": [4, arguments.size, arguments.size], "precision": arguments.precision,
                       "device": measure.device_name(arguments.device)}
        return description, lambda: measured(arguments, mode)

    measure.run_all(measurement(mode) for mode in arguments.mode)


if __name__ == "__main__":
    main()
