"""DeepSpeed Ulysses (Jacobs et al. 2023) in PyTorch, and processes to run it in: what peers that divide
tokens share.

Every rank has s of S tokens. Around an attention four all-to-alls, of q, k, v and the result, change to all
tokens of H / P of the heads and back.
"""

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional


class Exchange(torch.autograd.Function):
    """From a P-th of dim `joined` and all of `split` to a P-th of `split` and all of `joined`."""

    @staticmethod
    def forward(context, x, split, joined, traffic):
        context.dims, context.traffic = (split, joined), traffic
        return traffic.exchanged(x, split, joined)

    @staticmethod
    def backward(context, gradient):
        split, joined = context.dims
        return context.traffic.exchanged(gradient, joined, split), None, None, None


class Traffic:
    """Counts all-to-alls, and leaves them out where `muted`: results are then what the memory held."""

    def __init__(self):
        self.sizes = []
        self.muted = False

    def exchanged(self, x, split, joined):
        sent = x.unflatten(split, (dist.get_world_size(), -1)).movedim(split, 0).contiguous()
        received = torch.empty_like(sent)
        self.sizes.append(sent.nbytes)
        if not self.muted:
            dist.all_to_all_single(received, sent)
        return received.movedim(0, joined).flatten(joined, joined + 1)

    def exchange(self, x, split, joined):
        if not torch.compiler.is_compiling():
            return Exchange.apply(x, split, joined, self)
        sent = x.unflatten(split, (dist.get_world_size(), -1)).movedim(split, 0).contiguous()
        received = functional.all_to_all_single_autograd(sent, None, None, dist.group.WORLD)
        return functional.wait_tensor(received).movedim(0, joined).flatten(joined, joined + 1)


class AllGather(torch.autograd.Function):
    """The ranks' parts of `dim`, from which all compute the same loss. The gradient is this rank's part, P
    times: averaged over the ranks, gradients of weights are right."""

    @staticmethod
    def forward(context, part, dim):
        context.dim = dim
        parts = [torch.empty(part.shape, dtype=part.dtype, device=part.device) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim)

    @staticmethod
    def backward(context, gradient):
        return own_part(gradient, context.dim) * dist.get_world_size(), None


def own_part(x, dim):
    return x.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def largest(value):
    """The largest of all ranks' numbers."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return max(values)


def relative_error(got, expected):
    return ((got.float() - expected.float()).norm() / expected.float().norm()).item()


def _run_rank(rank, function, arguments, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(arguments.ranks), LOCAL_RANK=str(rank))
    if arguments.device == "cuda":
        arguments.device = f"cuda:{rank}"
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device(arguments.device))
    else:
        dist.init_process_group("gloo")
    if rank > 0:
        sys.stdout = open(os.devnull, "w")
    try:
        function(arguments)
    finally:
        dist.destroy_process_group()


def on_ranks(function, arguments):
    """function(arguments) in arguments.ranks processes, each with its GPU; rank 0 alone prints."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(_run_rank, (function, arguments, port), nprocs=arguments.ranks)
