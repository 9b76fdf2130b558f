"""The PyTorch peer of `kinora bench train` and `kinora bench sample` for Flux' transformer: diffusers' own class, random
weights. Wants torch and diffusers.

    python bench/peers/flux.py --work train --joint 4 --parallel 8 --tokens 64 --batch 1 --mode compile-default
    python bench/peers/flux.py --work lora --joint 19 --parallel 38 --guidance --mode compile-default --checkpointing
    python bench/peers/flux.py --work sample --joint 19 --parallel 38 --guidance --mode compile-default --graph
    python bench/peers/flux.py --work sample --joint 19 --parallel 38 --guidance --mode compile-default --graph --float8 row
    torchrun --nproc-per-node 2 bench/peers/flux.py --work train --joint 4 --parallel 8 --batch 2 --passes 4 --fsdp2 \
        --mode compile-default
    python bench/peers/flux.py --work train --joint 1 --parallel 1 --hidden 64 --heads 4 --tokens 4 --device cpu

Training: latents, T5's states and CLIP's vector lie in the device's memory; forward (bf16 autocast over fp32 weights),
the mean squared error of the velocity, backward, fused AdamW without an average. LoRA: updates of the blocks' linears
over frozen weights in bf16, in fp32, as PEFT computes them. Sampling: weights in bf16, one forward and a step of Euler;
--graph captures both as a CUDA graph by hand; --float8: torchao's 8-bit products of all linears, with
scales of rows or of tensors, of activations as they come (wants torchao). --regional compiles the two kinds of blocks, not the whole. --fsdp2,
under torchrun: fully_shard of every block, compiled by itself, and of the rest, bf16 parameters, fp32 reduction, gathered again in backward;
--batch is of one rank and of one of the --passes of a step, of which the last reduces, or each with --reduce-each. Prints one line of JSON a
measurement, the median of blocks of steps.
"""

import argparse

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from diffusers import FluxTransformer2DModel
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import measure
import train_dit
import unet

STATES = 4096  # width of T5-XXL's
POOLED = 768  # of CLIP-L's vector
PATCH_CHANNELS = 64  # 16 channels of 2 x 2
BLOCKS = ("FluxTransformerBlock", "FluxSingleTransformerBlock")


def build(arguments, dtype):
    torch.manual_seed(0)
    head = arguments.hidden // arguments.heads
    frame = head // 16 * 2
    rest = (head - frame) // 4 * 2
    with torch.device(arguments.device):
        return FluxTransformer2DModel(
            num_layers=arguments.joint, num_single_layers=arguments.parallel, attention_head_dim=head,
            num_attention_heads=arguments.heads, joint_attention_dim=STATES, pooled_projection_dim=POOLED,
            guidance_embeds=arguments.guidance, in_channels=PATCH_CHANNELS,
            axes_dims_rope=(frame, rest, head - frame - rest)).to(dtype)


def inputs(arguments):
    """Patches [B, N, 64], states [B, L, 4096], vectors [B, 768], and the tokens' places."""
    device, batch, side = arguments.device, arguments.batch, arguments.tokens
    places = torch.zeros(side, side, 3, device=device)
    places[..., 1] = torch.arange(side, device=device)[:, None]
    places[..., 2] = torch.arange(side, device=device)[None, :]
    return (torch.randn(batch, side * side, PATCH_CHANNELS, device=device),
            torch.randn(batch, arguments.text, STATES, device=device), torch.randn(batch, POOLED, device=device),
            places.view(-1, 3), torch.zeros(arguments.text, 3, device=device))


def compiled(arguments, model, compute, mode):
    if arguments.fsdp2:
        return compute
    if not arguments.regional:
        return measure.compiled(compute, mode)
    measure.compiled_blocks(model, BLOCKS, mode)
    return compute


def shard(model, mode):
    """Blocks are compiled by themselves, inside of the hooks that gather their weights."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for blocks in (model.transformer_blocks, model.single_transformer_blocks):
        for i, block in enumerate(blocks):
            if measure.MODES[mode] is not None:
                blocks[i] = torch.compile(block, dynamic=False, fullgraph=True, **measure.MODES[mode])
            fully_shard(blocks[i], mp_policy=policy)
    fully_shard(model)


def add_updates(model, rank):
    """To all linears of the blocks but modulation's."""
    return unet.add_updates(model, rank, lambda name: "transformer_blocks." in name and ".norm" not in name)


def training(arguments, mode):
    model = build(arguments, torch.bfloat16 if arguments.work == "lora" else torch.float32).train()
    if arguments.checkpointing:
        model.enable_gradient_checkpointing()
    if arguments.fsdp2:
        shard(model, mode)
    parameters = add_updates(model, arguments.rank) if arguments.work == "lora" else list(model.parameters())
    x0, text, pooled, image_places, text_places = inputs(arguments)
    guidance = torch.full((arguments.batch,), 3.5, device=arguments.device) if arguments.guidance else None

    def compute(x0, text, pooled, t, noise):
        share = t.view(-1, 1, 1)
        with torch.autocast(arguments.device.split(":")[0], torch.bfloat16):
            predicted = model(hidden_states=(1 - share) * x0 + share * noise, encoder_hidden_states=text,
                              pooled_projections=pooled, timestep=t, img_ids=image_places, txt_ids=text_places,
                              guidance=guidance, return_dict=False)[0]
        return F.mse_loss(predicted.float(), noise - x0)

    loss_of = compiled(arguments, model, compute, mode)
    update = train_dit.Update(parameters, "fused", 0.0, False, average=False)

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        for number in range(arguments.passes):
            if arguments.fsdp2:
                model.set_requires_gradient_sync(arguments.reduce_each or number + 1 == arguments.passes)
            t = torch.rand(arguments.batch, device=arguments.device)
            (loss_of(x0, text, pooled, t, torch.randn_like(x0)) / arguments.passes).backward()
        update.step()
        for p in parameters:
            p.grad = None

    return step, model


def quantise(model, scales, is_tuned):
    """Linears' weights to 8-bit floats once, what they read in each product (torchao, float8 dynamic quantisation).
    torchao also makes torch.compile tune each kernel by coordinate descent in all directions, which took more than
    240 s for 12 blocks; here it is one direction at a time, where asked for."""
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, PerTensor, quantize_
    granularity = PerRow() if scales == "row" else PerTensor()
    quantize_(model, Float8DynamicActivationFloat8WeightConfig(granularity=granularity, set_inductor_config=False))
    torch._inductor.config.coordinate_descent_tuning = is_tuned


def sampling(arguments, mode):
    model = build(arguments, torch.bfloat16).requires_grad_(False).eval()
    if arguments.float8:
        quantise(model, arguments.float8, arguments.tune)
    x, text, pooled, image_places, text_places = inputs(arguments)
    text, pooled = text.to(model.dtype), pooled.to(model.dtype)
    guidance = torch.full((arguments.batch,), 3.5, device=arguments.device) if arguments.guidance else None
    t = torch.full((arguments.batch,), 0.5, device=arguments.device)

    def compute(x, t, text, pooled):
        predicted = model(hidden_states=x.to(model.dtype), encoder_hidden_states=text, pooled_projections=pooled,
                          timestep=t, img_ids=image_places, txt_ids=text_places, guidance=guidance,
                          return_dict=False)[0]
        return x - 0.01 * predicted.float()

    one = compiled(arguments, model, compute, mode)

    def advance():
        x.copy_(one(x, t, text, pooled))

    return measure.sampling_step(advance, arguments.graph), model


def measured(arguments, mode):
    step, model = (sampling if arguments.work == "sample" else training)(arguments, mode)
    return measure.timed_steps(step, model, arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", choices=["train", "lora", "sample"], default="train")
    parser.add_argument("--joint", type=int, default=19, help="blocks")
    parser.add_argument("--parallel", type=int, default=38, help="blocks")
    parser.add_argument("--hidden", type=int, default=3072)
    parser.add_argument("--heads", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=64, help="a side of the picture: 64 is 1024 pixels")
    parser.add_argument("--text", type=int, default=512, help="tokens")
    parser.add_argument("--guidance", action="store_true", help="told to the model, as to Flux dev")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--mode", type=measure.names_of(measure.MODES), default=["eager"])
    parser.add_argument("--passes", type=int, default=1, help="training: of a step")
    parser.add_argument("--fsdp2", action="store_true", help="training, under torchrun")
    parser.add_argument("--reduce-each", action="store_true", help="--fsdp2: less memory")
    parser.add_argument("--regional", action="store_true", help="compile blocks by themselves, not the whole")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--graph", action="store_true", help="sampling: a CUDA graph captured by hand")
    parser.add_argument("--float8", choices=["row", "tensor"], help="sampling: torchao's products in 8 bits")
    parser.add_argument("--tune", action="store_true", help="--float8: kernels by coordinate descent")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=3)
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    if arguments.fsdp2:
        if arguments.device.startswith("cuda"):
            arguments.device = "cuda:" + os.environ["LOCAL_RANK"]
            torch.cuda.set_device(arguments.device)
        dist.init_process_group("nccl" if arguments.device.startswith("cuda") else "gloo")
    measure.prepare_device(arguments)
    is_contiguous = arguments.batch > 1
    if is_contiguous:
        measure.make_attention_contiguous()
    description = {"peer": "flux", "work": arguments.work, "joint": arguments.joint, "parallel": arguments.parallel,
                   "tokens": arguments.tokens**2 + arguments.text, "batch": arguments.batch,
                   "contiguous_attention": is_contiguous, "float8": arguments.float8, "tuned": arguments.tune,
                   "device": measure.device_name(arguments.device)}
    measure.run_all(({**description, "mode": mode}, lambda mode=mode: measured(arguments, mode))
                    for mode in arguments.mode)
    if arguments.fsdp2:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
