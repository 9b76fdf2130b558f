"""Weights in NF4 as bitsandbytes has them: what tests/ops/quantised_weight_test.cc compares with.

    python3 -m pip install bitsandbytes
    python3 make_weight_code_fixtures.py tests/ops/data/nf4.safetensors
"""
import sys

import bitsandbytes.functional as bnb
import torch
from safetensors.torch import save_file


def main(path: str) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(48, 40, generator=generator) * 0.05
    weight[0, :3] = torch.tensor([0.0, -0.3, 0.3])
    weight[3] *= 100.0
    weight[8:10] = 0.0  # a block of zeros, and more
    codes, state = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    tensors = {"weight": weight, "codes": codes.flatten(), "absmax": state.absmax}
    for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        state.dtype = dtype
        tensors[name] = bnb.dequantize_4bit(codes, state).reshape(weight.shape)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


if __name__ == "__main__":
    main(sys.argv[1])
