"""Writes and reads safetensors files with torch alone, with the same bytes for the same tensors."""

import json
import struct

import torch

NAMES = {torch.float16: "F16", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}


def save(path, tensors, metadata):
    """Tensors in the order given; metadata maps strings to strings."""
    header, blobs, end = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        flat = tensor.detach().contiguous().reshape(-1)
        blob = bytes(flat.view(torch.uint8).tolist())
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [end, end + len(blob)]}
        blobs.append(blob)
        end += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load(path):
    """-> (tensors by name, metadata). For files that `save` wrote."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    dtypes = {name: dtype for dtype, name in NAMES.items()}
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=dtypes[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors, metadata
