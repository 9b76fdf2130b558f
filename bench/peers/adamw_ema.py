"""The PyTorch peer of the optimizer's pass: AdamW or another rule, EMA and bf16 copies on DiT's parameters.

    python bench/peers/adamw_ema.py --model DiT-XL/2 --kinds fused,8bit,lion,muon

fused: torch's fused AdamW; then a foreach EMA and foreach bf16 copies. compiled: one torch.compile over
AdamW, EMA and copies. 8bit: bitsandbytes' AdamW8bit, lion: lion_pytorch's foreach form, then as fused; they want these
packages. muon: torch.optim.Muon of what has two dims, fused AdamW of the rest. Beside them the bandwidth of a copy. GB/s count what the work at least reads and
writes: 28 bytes a parameter for AdamW (16 with moments of 8 bits), 12 for the EMA (8 where one pass does both), 6 for the copy (2).
Prints one line of JSON a measurement.
"""

import argparse
import sys
from dataclasses import replace

import torch

import measure  # also makes tools/reference importable
import dit


PEERS = {"8bit": "bitsandbytes", "lion": "lion_pytorch"}


def shapes_of(name, depth):
    config = dit.named_config(name)
    config = replace(config, depth=depth) if depth else config
    with torch.device("meta"):
        model = dit.DiT(config)
    return [p.shape for p in model.parameters() if p.requires_grad]


class Work:
    def __init__(self, shapes, device, kind):
        self.parameters = [torch.randn(shape, device=device) * 0.02 for shape in shapes]
        for p in self.parameters:
            p.requires_grad_(True)
            p.grad = torch.randn_like(p) * 0.01
        self.ema = [p.detach().clone() for p in self.parameters]
        self.copies = [p.detach().to(torch.bfloat16) for p in self.parameters]
        if kind == "8bit":
            import bitsandbytes
            self.optimizers = [bitsandbytes.optim.AdamW8bit(self.parameters, lr=1e-4, weight_decay=0.0)]
            return
        if kind == "lion":
            from lion_pytorch.foreach import Lion
            self.optimizers = [Lion(self.parameters, lr=1e-5, weight_decay=0.0)]
            return
        if kind == "muon":
            matrices = [p for p in self.parameters if p.dim() == 2]
            others = [p for p in self.parameters if p.dim() != 2]
            self.optimizers = [torch.optim.Muon(matrices, lr=1e-4, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
                               torch.optim.AdamW(others, lr=1e-4, weight_decay=0.0, fused=True)]
            return
        fused = kind != "compiled"
        self.optimizers = [torch.optim.AdamW(
            self.parameters, lr=1e-4, weight_decay=0.0, fused=fused, foreach=not fused,
            capturable=not fused and device.startswith("cuda"))]

    @torch.no_grad()
    def adamw(self):
        for optimizer in self.optimizers:
            optimizer.step()

    @torch.no_grad()
    def adamw_ema_copies(self):
        self.adamw()
        torch._foreach_lerp_(self.ema, self.parameters, 1e-4)
        torch._foreach_copy_(self.copies, self.parameters)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="DiT-XL/2")
    parser.add_argument("--depth", type=int, default=0, help="instead of the model's")
    parser.add_argument("--copy-mib", type=int, default=4096, help="size of the copied array")
    parser.add_argument("--kinds", type=measure.names_of(["fused", "compiled", "8bit", "lion", "muon"]), default=["fused"])
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    measure.prepare_device(arguments)
    device = arguments.device
    shapes = shapes_of(arguments.model, arguments.depth)
    count = sum(shape.numel() for shape in shapes)

    def measurement(kind, what, bytes_per_parameter):
        def run():
            work = Work(shapes, device, kind)
            function = getattr(work, what)
            if kind == "compiled":
                function = torch.compile(function, dynamic=False)
            ms = measure.milliseconds(function, device)
            return {"ms": round(ms, 4), "gbps": round(count * bytes_per_parameter / ms / 1e6, 1)}

        return {"peer": PEERS.get(kind, f"torch {kind}"), "work": what, "model": arguments.model, "parameters": count,
                "device": measure.device_name(device)}, run

    def copy():
        return {"gbps": measure.copy_gbps(device, arguments.copy_mib << 20)}

    measurements = [({"work": "copy", "device": measure.device_name(device)}, copy)]
    for kind in arguments.kinds:
        adamw = 16 if kind == "8bit" else 28
        measurements.append(measurement(kind, "adamw", adamw))
        beside = 8 + 2 if kind == "compiled" else 12 + 6
        measurements.append(measurement(kind, "adamw_ema_copies", adamw + beside))
    measure.run_all(measurements)


if __name__ == "__main__":
    sys.exit(main())
