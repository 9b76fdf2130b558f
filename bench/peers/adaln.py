"""The PyTorch peer of the modulated norm: gate, residual, layer norm, modulation, composed and compiled.

    python bench/peers/adaln.py --shape 256x256x1152,64x1024x1152 --mode eager,compile-default

    x' = x + gate * y;  out = norm(x') * (1 + scale) + shift      gate, scale, shift [B, C], y, out bf16

The backward gives the gradients of x, y, gate, scale, shift from those of x' and out. --residual: the
type of x and x'. GB/s count what a single pass at least reads and writes of [B, N, C] arrays: forward
x, y, x', out; backward dx', dout, x', y, dx, dy. Prints one line of JSON a measurement.
"""

import argparse
import sys

import torch
import torch._functorch.config as functorch_config
import torch.nn.functional as F

import measure

# CUDA graphs would add copies of the inputs to what is timed.
MODES = [name for name in measure.MODES
         if name not in ("compile-reduce-overhead", "compile-max-autotune", "compile-graph")]
functorch_config.donated_buffer = False  # a backward is run again and again


def gated_norm(x, y, gate, scale, shift):
    residual = x + gate[:, None, :] * y
    normed = F.layer_norm(residual.float(), residual.shape[-1:], eps=1e-6)
    out = normed * (1 + scale[:, None, :].float()) + shift[:, None, :].float()
    return residual, out.to(y.dtype)


def time_gated_norm(shape, mode, residual_type, device):
    batch, tokens, width = shape
    torch.manual_seed(0)

    def normal(*size, dtype):
        return torch.randn(size, device=device).to(dtype).requires_grad_()

    x = normal(batch, tokens, width, dtype=residual_type)
    y = normal(batch, tokens, width, dtype=torch.bfloat16)
    gate, scale, shift = (normal(batch, width, dtype=torch.bfloat16) for _ in range(3))
    inputs = (x, y, gate, scale, shift)
    gradients = (torch.randn_like(x), torch.randn_like(y))
    function = measure.compiled(gated_norm, mode)
    outputs = function(*inputs)

    def backward():
        torch.autograd.grad(outputs, inputs, gradients, retain_graph=True)

    elements = batch * tokens * width
    size_x, size_y = x.element_size(), y.element_size()
    forward_bytes = elements * (2 * size_x + 2 * size_y)
    backward_bytes = elements * (3 * size_x + 3 * size_y)
    forward_ms = measure.milliseconds(lambda: function(*inputs), device)
    backward_ms = measure.milliseconds(backward, device)
    return {
        "forward_ms": round(forward_ms, 4), "forward_gbps": round(forward_bytes / forward_ms / 1e6, 1),
        "backward_ms": round(backward_ms, 4), "backward_gbps": round(backward_bytes / backward_ms / 1e6, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="256x256x1152,64x1024x1152", help="BxNxC, several with commas")
    parser.add_argument("--mode", type=measure.names_of(MODES),
                        default=["compile-default", "compile-max-autotune-no-cudagraphs"])
    parser.add_argument("--residual", type=measure.names_of(["bf16", "fp32"]), default=["bf16", "fp32"])
    parser.add_argument("--copy-mib", type=int, default=4096, help="size of the copied array")
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    measure.prepare_device(arguments)
    device = arguments.device
    types = {"bf16": torch.bfloat16, "fp32": torch.float32}

    def measurement(shape, mode, residual):
        def run():
            return time_gated_norm([int(n) for n in shape.split("x")], mode, types[residual], device)

        return {"peer": f"torch {mode}", "shape": shape, "residual": residual,
                "device": measure.device_name(device)}, run

    def copy():
        return {"gbps": measure.copy_gbps(device, arguments.copy_mib << 20)}

    measure.run_all([({"work": "copy", "device": measure.device_name(device)}, copy)]
                    + [measurement(shape, mode, residual) for shape in arguments.shape.split(",")
                       for mode in arguments.mode for residual in arguments.residual])


if __name__ == "__main__":
    sys.exit(main())
