"""A small GGUF file of all types that Kinora reads, and what ggml's Python package reads of it.

    python3 -m pip install gguf safetensors
    python3 make_gguf_fixtures.py tests/io/data
"""
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file


def blocks(type_: Type, rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of random blocks, whose scales are of a size that weights have."""
    elements, size = gguf.GGML_QUANT_SIZES[type_]
    data = rng.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    scales = {Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,)}.get(type_, (0,))
    for place in scales:
        halves = (rng.standard_normal((rows, columns // elements)) * 0.01).astype(np.float16)
        data[..., place:place + 2] = halves[..., None].view(np.uint8)
    return data.reshape(rows, -1)


def main(folder: str) -> None:
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(pathlib.Path(folder) / "types.gguf", "sd1")
    writer.add_string("general.name", "all types")
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("texts", ["a", "bc"])
    writer.add_float32("half", 0.5)
    expected = {}
    for type_ in (Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_K, Type.Q5_K, Type.Q6_K):
        name = f"{type_.name.lower()}.weight"
        if type_ in (Type.F32, Type.F16, Type.BF16):
            values = rng.standard_normal((3, 5)).astype(np.float32)
            data = values.astype(np.float16) if type_ == Type.F16 else values
            if type_ == Type.BF16:
                data = gguf.quants.quantize(values, type_)
        elif type_ in (Type.Q8_0, Type.Q4_0):
            data = gguf.quants.quantize(rng.standard_normal((3, 64)).astype(np.float32), type_)
        else:
            data = blocks(type_, 2, 512, rng)
        writer.add_tensor(name, data, raw_dtype=type_)
        expected[name] = gguf.quants.dequantize(data, type_).astype(np.float32)
    # A convolution as ComfyUI-GGUF keeps it: its rows are whole blocks, and a key has its shape.
    data = gguf.quants.quantize(rng.standard_normal((6, 64)).astype(np.float32), Type.Q8_0)
    writer.add_tensor("conv.weight", data, raw_dtype=Type.Q8_0)
    writer.add_array("comfy.gguf.orig_shape.conv.weight", [4, 32, 3, 1])
    expected["conv.weight"] = gguf.quants.dequantize(data, Type.Q8_0).astype(np.float32).reshape(4, 32, 3, 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, pathlib.Path(folder) / "types.safetensors")

    # As ComfyUI-GGUF names a U-Net of Stable Diffusion.
    writer = gguf.GGUFWriter(pathlib.Path(folder) / "comfy.gguf", "sd1")
    writer.add_tensor("input_blocks.0.0.weight", np.arange(36, dtype=np.float16).reshape(1, 4, 3, 3))
    writer.add_tensor("input_blocks.0.0.bias", np.ones(1, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
