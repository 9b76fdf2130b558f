"""The PyTorch peers of `kinora bench train --ranks N`: the step of train_dit.py on several GPUs.

    torchrun --nproc-per-node 4 bench/peers/train_dit_ranks.py --model DiT-XL/2 --batch 128 \
        --strategy ddp,fsdp2 --compile model,blocks
    torchrun --nproc-per-node 2 bench/peers/train_dit_ranks.py --hidden 64 --depth 2 --heads 2 --batch 4 \
        --device cpu --strategy ddp,fsdp2 --compile none

ddp: DistributedDataParallel, gradients as views of its buckets. fsdp2: fully_shard of every block and of
the rest, bf16 parameters, fp32 reduction (ZeRO-3); --reshard-after-forward 0 keeps gathered parameters
(ZeRO-2), --offload keeps parameters, gradients and the optimizer's state in the host's memory, where CPUs update
them. --recompute: blocks are computed again in backward. --compile: the whole model with DDP's graph breaks, every block alone, or nothing. --batch is of
one rank. Prints one line of JSON a measurement, from rank 0; memory is rank 0's.
"""

import argparse
import os
import statistics
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import measure  # also makes tools/reference importable
import dit
import train_dit


class Update:
    """Clipping by the global norm, fused AdamW, EMA if there is to be one, on whole or sharded parameters."""

    def __init__(self, parameters, clip, averages):
        self.parameters, self.clip = parameters, clip
        self.ema = [p.detach().clone() for p in parameters] if averages else []
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.0, fused=True)

    @torch.no_grad()
    def step(self):
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip, foreach=True)
        self.optimizer.step()
        if self.ema:
            torch._foreach_lerp_(self.ema, self.parameters, 1e-4)


def compile_blocks(model):
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block, dynamic=False)


def distributed(arguments, model, strategy, compiled):
    """The model, prepared, and a function of it to call."""
    if arguments.recompute:
        for i, block in enumerate(model.blocks):
            model.blocks[i] = checkpoint_wrapper(block)
    if compiled == "blocks":
        compile_blocks(model)
    if strategy == "ddp":
        device_ids = [torch.device(arguments.device).index] if arguments.device.startswith("cuda") else None
        call = DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True,
                                       static_graph=True)
    else:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if arguments.precision == "bf16" else None,
                                      reduce_dtype=torch.float32)
        reshard = bool(arguments.reshard_after_forward)
        offload = CPUOffloadPolicy() if arguments.offload else OffloadPolicy()
        for block in model.blocks:
            fully_shard(block, mp_policy=policy, reshard_after_forward=reshard, offload_policy=offload)
        # What is not in blocks stays fp32, as the autocast of the other strategy leaves its results.
        fully_shard(model, reshard_after_forward=reshard, offload_policy=offload)
        call = model
    if compiled == "model":
        call = torch.compile(call, dynamic=False)
    return model, call


def time_training(arguments, config, strategy, compiled):
    device, batch = arguments.device, arguments.batch
    model, call = distributed(arguments, train_dit.build(config, device), strategy, compiled)
    torch.manual_seed(dist.get_rank())
    x0 = torch.randn(batch, config.in_channels, config.height, config.width, device=device)
    classes = torch.randint(config.num_classes, (batch,), device=device)
    objective = train_dit.Iddpm(device)

    def predict(x, t, labels):
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=arguments.precision == "bf16"):
            return call(x, t, labels)

    loss_function = objective.loss
    if compiled == "model":  # the model has its own graphs, the rest one more
        loss_function = torch.compile(objective.loss, dynamic=False)
    parameters = [p for p in model.parameters() if p.requires_grad]
    update = Update(parameters, arguments.clip, bool(arguments.averages))
    last_loss = torch.zeros((), device=device)

    def step():
        t, noise = objective.draw_t(batch, device), torch.randn_like(x0)
        dropped = torch.rand(batch, device=device) < config.label_dropout
        loss = loss_function(predict, x0, t, noise, torch.where(dropped, config.num_classes, classes))
        loss.backward()
        update.step()
        last_loss.copy_(loss.detach())
        update.optimizer.zero_grad(set_to_none=strategy != "ddp")

    def block():
        for _ in range(arguments.steps):
            step()

    for _ in range(arguments.warmup):
        step()
    measure.synchronize(device)
    measure.reset_peak_memory(device)
    times = []
    for _ in range(arguments.blocks):
        dist.barrier()
        times.append(measure.seconds(block, device) / arguments.steps * 1000)
    milliseconds = statistics.median(times)
    ranks = dist.get_world_size()
    return {
        "parameters": sum(p.numel() for p in parameters),
        "ms_per_step": round(milliseconds, 3),
        "ms_min": round(min(times), 3), "ms_max": round(max(times), 3),
        "images_per_s": round(ranks * batch / milliseconds * 1000, 2),
        "peak_memory_gib": measure.peak_memory_gib(device),
        "loss": round(last_loss.item(), 4),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    train_dit.add_model_arguments(parser)
    parser.add_argument("--batch", type=int, default=32, help="of a rank")
    parser.add_argument("--strategy", type=measure.names_of(("ddp", "fsdp2")), default=["ddp"])
    parser.add_argument("--compile", type=measure.names_of(("model", "blocks", "none")), default=["model"])
    parser.add_argument("--reshard-after-forward", type=int, default=1)
    parser.add_argument("--offload", type=int, default=0, help="1: fsdp2 with CPUOffloadPolicy")
    parser.add_argument("--recompute", type=int, default=0, help="1: of whole blocks")
    parser.add_argument("--averages", type=int, default=1, help="0: no average of the weights")
    parser.add_argument("--memory-gib", type=float, default=0.0, help="what tensors may take of a GPU; 0: all")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--clip", type=float, default=1.0, help="largest global norm; 0: no clipping")
    parser.add_argument("--warmup", type=int, default=10, help="steps before timing")
    parser.add_argument("--steps", type=int, default=10, help="steps of a timed block")
    parser.add_argument("--blocks", type=int, default=3, help="the median block is reported")
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    train_dit.check_model_arguments(parser, arguments)
    arguments.objective = "iddpm"
    if arguments.device == "cuda":
        arguments.device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(arguments.device)
    measure.prepare_device(arguments)
    if arguments.memory_gib:
        total = torch.cuda.get_device_properties(arguments.device).total_memory
        torch.cuda.set_per_process_memory_fraction(arguments.memory_gib * 2**30 / total)
    dist.init_process_group("cpu:gloo,cuda:nccl" if arguments.device.startswith("cuda") else "gloo")
    config = train_dit.config_of(arguments)

    def measurement(strategy, compiled):
        def run():
            return time_training(arguments, config, strategy, compiled)

        description = {
            "peer": f"torch {strategy}, compile {compiled}", "ranks": dist.get_world_size(),
            "model": train_dit.model_name(arguments, config),
            "reshard_after_forward": arguments.reshard_after_forward, "precision": arguments.precision,
            "clip": arguments.clip, "batch_per_rank": arguments.batch, "offload": bool(arguments.offload),
            "recompute": bool(arguments.recompute), "averages": bool(arguments.averages),
            "device": measure.device_name(arguments.device),
        }
        return description, run

    if dist.get_rank() != 0:
        sys.stdout = open(os.devnull, "w")
    measure.run_all(measurement(strategy, compiled)
                    for strategy in arguments.strategy for compiled in arguments.compile)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
