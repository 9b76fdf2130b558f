"""The PyTorch peers of `kinora bench sequence`: attention layers whose tokens are divided among ranks.

    python bench/peers/sequence_attention.py --ranks 4 --tokens 32768,65536 \
        --schemes one,ulysses4,context_parallel,context_parallel-alltoall --mode eager,compile-default
    python bench/peers/sequence_attention.py --ranks 2 --tokens 32 --hidden 32 --heads 4 --frames 2 \
        --device cpu --threads 1 --schemes one,ulysses4 --check

--depth layers x + attention(layer_norm(x)) on one clip [1, frames, tokens, hidden], forward and backward,
random weights; bf16 on a GPU, fp32 on a CPU. With several frames layers attend within frames and through
time in turn.

one: every rank computes everything; the fastest counts. ulysses4: four all-to-alls around every attention,
in time too (ulysses.py). context_parallel: torch's (torch.distributed.tensor.experimental), which gathers
keys and values; context_parallel-alltoall: the same with keys and values around a ring. Both need a GPU;
attention in time is local.

Prints one line of JSON a measurement, with the keys of `kinora bench sequence --json`: ms of the slowest
rank, and in eager mode of ulysses4 compute_ms, the same without sending anything, and communication_ms, the
same all-to-alls alone. difference: from one rank's output and input gradient, relative; --check fails where
it is too large. Bytes are of rank 0 and only known on a GPU.
"""

import argparse
import statistics
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import _cp_options, set_rotate_method

import measure
import ulysses

SCHEMES = ("one", "ulysses4", "context_parallel", "context_parallel-alltoall")
ROUNDS = 3
# context_parallel replaces the function in F.
local_attention = F.scaled_dot_product_attention


def attend(q, k, v, in_time, attention):
    """q, k, v: [B, T, S, H, D]."""
    def sequences(x):
        return (x.transpose(1, 2) if in_time else x).flatten(0, 1).transpose(1, 2)

    y = attention(sequences(q), sequences(k), sequences(v)).transpose(1, 2)
    y = y.unflatten(0, (q.shape[0], -1))
    return y.transpose(1, 2) if in_time else y


class Layer(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)
        for weights in self.parameters():
            nn.init.normal_(weights, std=hidden**-0.5)

    def forward(self, x, attention):
        h = F.layer_norm(x, x.shape[-1:])
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).unbind(-3)  # [B, T, S', H, D]
        return x + self.proj(attention(q, k, v).flatten(-2))


class Stack(nn.Module):
    def __init__(self, arguments):
        super().__init__()
        self.layers = nn.ModuleList(Layer(arguments.hidden, arguments.heads)
                                    for _ in range(arguments.depth))
        self.several_frames = arguments.frames > 1

    def forward(self, x, scheme, traffic):
        for i, layer in enumerate(self.layers):
            in_time = self.several_frames and i % 2 == 1

            def attention(q, k, v, in_time=in_time):
                if scheme != "ulysses4":
                    ring = scheme != "one" and not in_time
                    function = F.scaled_dot_product_attention if ring else local_attention
                    return attend(q, k, v, in_time, function)
                q, k, v = (traffic.exchange(part, 3, 2) for part in (q, k, v))
                return traffic.exchange(attend(q, k, v, in_time, local_attention), 2, 3)

            x = layer(x, attention)
        return x


@contextmanager
def divided(scheme, mesh, whole):
    """The parts of these tensors [1, T, S, C] that a rank has, in the context that the scheme needs."""
    if scheme == "one":
        yield whole
    elif scheme == "ulysses4":
        yield [ulysses.own_part(x, 2).clone() for x in whole]
    else:
        set_rotate_method("alltoall" if scheme.endswith("alltoall") else "allgather")
        _cp_options.enable_load_balance = False  # that is for causal attention
        parts = [x.clone() for x in whole]
        with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2] * len(parts),
                              no_restore_buffers=set(parts)):
            yield [x.clone() for x in parts]  # they still have the memory of the whole


def median_ms(step, arguments):
    """Of a step in the median block; blocks are waited for."""
    def block():
        for _ in range(arguments.steps):
            step()

    times = []
    for _ in range(3):
        dist.barrier()
        times.append(measure.seconds(block, arguments.device) / arguments.steps * 1000)
    return statistics.median(times)


def communication_ms(sizes, arguments):
    most = max(sizes)
    sent = torch.zeros(most, dtype=torch.uint8, device=arguments.device)
    received = torch.empty_like(sent)

    def step():
        for size in sizes:
            dist.all_to_all_single(received[:size], sent[:size])

    step()
    return ulysses.largest(median_ms(step, arguments))


def memory(device):
    return torch.cuda.memory_allocated() if device.startswith("cuda") else 0


def time_scheme(arguments, tokens, scheme, mode, mesh, base):
    device = arguments.device
    on_gpu = device.startswith("cuda")
    if scheme.startswith("context_parallel") and not on_gpu:
        raise RuntimeError("torch's context parallel needs a GPU")
    torch.manual_seed(0)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    stack = Stack(arguments).to(device, dtype)
    shape = (1, arguments.frames, tokens, arguments.hidden)
    whole = [torch.randn(shape, device=device).to(dtype) for _ in range(2)]
    traffic = ulysses.Traffic()
    run = measure.compiled(stack, mode)
    with divided(scheme, mesh, whole) as (part, incoming):
        del whole

        def forward():
            x = part.detach().requires_grad_()
            return x, run(x, scheme, traffic)

        def step():
            x, y = forward()
            y.backward(incoming)
            stack.zero_grad(set_to_none=True)
            return y.detach(), x.grad

        for _ in range(arguments.warmup):
            results = step()
        result = {}
        if scheme == "one":
            base["results"] = [ulysses.own_part(x, 2).clone() for x in results]
        elif "results" in base:
            pairs = zip(results, base["results"])
            difference = max(ulysses.relative_error(*pair) for pair in pairs)
            result["difference"] = ulysses.largest(difference)
            if arguments.check and not result["difference"] < (5e-2 if on_gpu else 1e-5):
                raise RuntimeError(f"differs from one rank: {result['difference']}")
        del results
        measure.synchronize(device)
        measure.reset_peak_memory(device)
        before = memory(device)
        x, y = forward()
        kept = memory(device) - before
        y.backward(incoming)
        if on_gpu:
            result.update(kept_bytes=kept, peak_bytes=torch.cuda.max_memory_allocated() - before)
        stack.zero_grad(set_to_none=True)
        del x, y

        times, computing = [], []
        traffic.sizes.clear()
        step()
        sizes = list(traffic.sizes)
        for _ in range(ROUNDS):
            milliseconds = median_ms(step, arguments)
            times.append(-ulysses.largest(-milliseconds) if scheme == "one"
                         else ulysses.largest(milliseconds))
            if sizes:
                traffic.muted = True
                computing.append(ulysses.largest(median_ms(step, arguments)))
                traffic.muted = False
        result["ms"] = statistics.median(times)
        if sizes:
            exposed = result["ms"] - statistics.median(computing)
            result.update(compute_ms=statistics.median(computing), exposed_ms=exposed,
                          exposed_share=exposed / result["ms"],
                          communication_ms=communication_ms(sizes, arguments),
                          calls=len(sizes), bytes=sum(sizes))
    if scheme == "one":
        base["ms"] = min(result["ms"], base.get("ms", result["ms"]))  # its best mode and attention
    elif "ms" in base:
        result["efficiency"] = base["ms"] / (arguments.ranks * result["ms"])
    return result


def run(arguments):
    measure.prepare_device(arguments)
    mesh = init_device_mesh(arguments.device.split(":")[0], (arguments.ranks,))

    def measurements():
        for tokens in arguments.tokens:
            base = {}
            for scheme in arguments.schemes:
                for mode in arguments.mode:
                    for attention in arguments.attention:
                        yield measurement(tokens, base, scheme, mode, attention)

    def measurement(tokens, base, scheme, mode, attention):
        def function():
            with measure.attention(attention):
                return time_scheme(arguments, tokens, scheme, mode, mesh, base)

        description = {
            "peer": f"torch {mode}", "tokens": tokens, "scheme": scheme, "attention": attention,
            "ranks": arguments.ranks, "frames": arguments.frames, "hidden": arguments.hidden,
            "heads": arguments.heads, "depth": arguments.depth, "steps": arguments.steps,
            "device": measure.device_name(arguments.device),
        }
        return description, function

    measure.run_all(measurements())


def numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, help="processes, each with its GPU")
    parser.add_argument("--tokens", type=numbers, default=[4096], help="of a frame: one or several numbers")
    parser.add_argument("--frames", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=1152)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--depth", type=int, default=2, help="layers")
    parser.add_argument("--schemes", type=measure.names_of(SCHEMES), default=["one", "ulysses4"])
    parser.add_argument("--mode", type=measure.names_of(measure.MODES), default=["eager"])
    parser.add_argument("--attention", type=measure.names_of(measure.ATTENTION), default=["auto"])
    parser.add_argument("--warmup", type=int, default=3, help="steps before timing")
    parser.add_argument("--steps", type=int, default=10, help="of a timed block")
    parser.add_argument("--check", action="store_true", help="fail where results are not one rank's")
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    if arguments.heads % arguments.ranks or any(n % arguments.ranks for n in arguments.tokens):
        parser.error(f"{arguments.ranks} ranks must divide heads and tokens")
    if arguments.check and arguments.schemes[0] != "one":
        parser.error("--check compares with one, which must come first in --schemes")
    ulysses.on_ranks(run, arguments)


if __name__ == "__main__":
    main()
