"""Makes the fixtures of tests/io that PyTorch and the safetensors package write.

    .venv/bin/python tools/make_torch_fixtures.py [FOLDER]

FOLDER is tests/io/data unless given. The values come from a fixed formula, so the tensors are the
same with every version of PyTorch; the containers' bytes may differ.
"""

import argparse
import collections
import pathlib
import sys

import torch
from safetensors.torch import save_file


def values(shape, dtype):
    """Distinct, exact in every dtype: 0, 1, 2, ... modulo 100 (modulo 2 for bools)."""
    count = int(torch.tensor(shape).prod()) if len(shape) else 1
    line = torch.arange(count, dtype=torch.int64)
    line = line % 2 if dtype == torch.bool else line % 100
    return line.to(dtype).reshape(shape)


DTYPES = {
    "bool": torch.bool,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}


def model_state():
    """Like a module's state_dict(): an OrderedDict with the attribute _metadata."""
    base = values((4, 6), torch.float32)
    state = collections.OrderedDict()
    state["plain.weight"] = base
    state["tied.weight"] = base  # the same tensor twice
    state["transposed"] = base.t()
    state["columns"] = base[:, 1:4:2]
    state["from_the_middle"] = base[2]
    state["expanded"] = values((1, 3), torch.float32).expand(2, 3)
    state["channels_last"] = values((2, 3, 2, 2), torch.float32).to(
        memory_format=torch.channels_last
    )
    state["scalar"] = torch.tensor(7.0)
    state["empty"] = torch.zeros(0, 5)
    state["parameter"] = torch.nn.Parameter(values((3,), torch.float32))
    for name, dtype in DTYPES.items():
        state["dtype." + name] = values((5,), dtype)
    state._metadata = collections.OrderedDict({"": {"version": 1}})
    return state


def training_checkpoint():
    """The keys of the original DiT's train.py: model, ema, opt, args."""
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(values((2, 3), torch.float32))
        model.bias.copy_(values((2,), torch.float32))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model(torch.ones(1, 3)).sum().backward()
    opt.step()
    return {
        "model": model_state(),
        "ema": {"weight": values((2, 3), torch.float32)},
        "opt": opt.state_dict(),
        "args": argparse.Namespace(
            model="DiT-XL/2",
            image_size=256,
            big=2**40,
            huge=2**80,
            negative=-3,
            lr=1e-4,
            resume=None,
            amp=False,
            betas=(0.9, 0.999),
            layers=[1, 2],
            dtype=torch.bfloat16,
            device=torch.device("cuda:0"),
            size=torch.Size([2, 3]),
        ),
    }


def flatten(value, name, out):
    if isinstance(value, torch.Tensor):
        out[name] = value.detach().clone(memory_format=torch.contiguous_format)
    elif isinstance(value, dict):
        for key, item in value.items():
            flatten(item, f"{name}.{key}" if name else str(key), out)


def main():
    default = pathlib.Path(__file__).parent.parent / "tests" / "io" / "data"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)

    checkpoint = training_checkpoint()
    torch.save(checkpoint, folder / "torch_zip.pt")
    torch.save(checkpoint, folder / "torch_zip_protocol4.pt", pickle_protocol=4)
    torch.save(checkpoint, folder / "torch_legacy.pt", _use_new_zipfile_serialization=False)
    torch.serialization.set_crc32_options(False)
    torch.save({"weight": values((2, 3), torch.float32)}, folder / "torch_zip_no_crc.pt")
    torch.serialization.set_crc32_options(True)
    expected = {}
    flatten(checkpoint, "", expected)
    save_file(expected, folder / "torch_expected.safetensors")

    tensors = {"dtype." + name: values((3,), dtype) for name, dtype in DTYPES.items()}
    tensors["scalar"] = torch.tensor(7.0)
    tensors["empty"] = torch.zeros(2, 0)
    tensors['na"me \u00e9'] = values((2, 2), torch.float32)
    save_file(tensors, folder / "python.safetensors", metadata={"format": "pt"})


main()
