"""The PyTorch peer of kinora_attention_bench: softmax(Q K^T / sqrt(D)) V, forward and backward, in bf16.

    python bench/peers/attention.py --shape 8x8x4096x4096x40,8x8x1024x1024x80 --attention unfused,flash,cudnn

A shape is BxHxQxKxD: batch, heads, queries, keys, channels a head. As in that program the L2 cache is overwritten before
each launch. "unfused" keeps the scores in memory (two products and a softmax, as attention was computed before fused
kernels); the others are backends of scaled_dot_product_attention, on the packed projections [B, N, parts, H, D] that a
linear leaves. Prints one line of JSON a measurement: the median of --repeats launches.
"""

import argparse
import statistics

import torch
import torch.nn.functional as F

import measure

FLUSH_BYTES = 256 << 20  # more than any L2
NAMES = {"unfused": None, **{name: name for name in measure.ATTENTION if name not in ("auto", "math")}}


def unfused(q, k, v):
    scores = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return torch.matmul(torch.softmax(scores, -1), v)


def cold_milliseconds(function, device, repeats):
    if not device.startswith("cuda"):
        return measure.milliseconds(function, device, repeats=1, blocks=repeats)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)
    times = []
    for call in range(repeats + 3):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        if call >= 3:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def measured(arguments, shape, name):
    batch, heads, queries, keys, head_dim = shape
    device = arguments.device

    def packed(length, parts):
        whole = torch.randn(batch, length, parts, heads, head_dim, device=device).bfloat16()
        return [part.squeeze(2).transpose(1, 2).requires_grad_() for part in whole.split(1, 2)]

    (q,), (k, v) = packed(queries, 1), packed(keys, 2)
    compute = unfused if name == "unfused" else F.scaled_dot_product_attention
    with measure.attention("auto" if name == "unfused" else NAMES[name]):
        with torch.no_grad():
            forward_ms = cold_milliseconds(lambda: compute(q, k, v), device, arguments.repeats)
        measure.reset_peak_memory(device)
        out = compute(q, k, v)
        gradient = torch.randn(batch, queries, heads, head_dim, device=device).bfloat16().transpose(1, 2)
        backward_ms = cold_milliseconds(
            lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), device, arguments.repeats)
    return {"forward_ms": round(forward_ms, 4), "backward_ms": round(backward_ms, 4),
            "both_ms": round(forward_ms + backward_ms, 4), "peak_memory_gib": measure.peak_memory_gib(device)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="8x8x4096x4096x40", help="BxHxQxKxD, several with commas")
    parser.add_argument("--attention", type=measure.names_of(NAMES), default=["unfused", "flash", "cudnn"])
    parser.add_argument("--repeats", type=int, default=20)
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    measure.prepare_device(arguments)

    def measurement(shape, name):
        description = {"peer": f"torch {name}", "work": "attention", "shape": shape,
                       "device": measure.device_name(arguments.device)}
        return description, lambda: measured(arguments, [int(n) for n in shape.split("x")], name)

    measure.run_all(measurement(shape, name) for shape in arguments.shape.split(",") for name in arguments.attention)


if __name__ == "__main__":
    main()
