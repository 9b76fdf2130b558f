"""How many photos a second a PyTorch DataLoader reads, decodes, resizes and crops: the peer of kinora_data_bench.

Wants torch, torchvision and Pillow. Every way takes the files from a tar archive by offset, makes the shorter side
SIZE with antialiasing, cuts SIZE x SIZE from the middle, mirrors every other one and hands out uint8 batches:
  decode_jpeg   torchvision.io.decode_jpeg, torchvision.transforms.v2 on uint8 tensors (bicubic)
  bilinear      the same with the cheaper filter, torchvision's default
  draft         Pillow with draft (the DCT-scaled decode, where a half is still large enough), bicubic
  pillow        Pillow without

    python bench/peers/load_images.py ARCHIVE.tar --workers 0,1,2

own_cpu_ms is processor time for an image, without that of workers: with 0 workers, where machines are shared, it is what
compares with the CPU column of kinora_data_bench.
"""

import argparse
import io
import json
import tarfile
import time

import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F


def by_torchvision(data, size, filter_):
    image = torchvision.io.decode_jpeg(data, mode=torchvision.io.ImageReadMode.RGB)
    image = F.resize(image, [size], interpolation=filter_, antialias=True)
    return F.center_crop(image, [size, size])


def by_pillow(data, size, draft):
    image = Image.open(io.BytesIO(data.numpy()))
    if draft:
        scale = size / min(image.size)
        image.draft("RGB", (round(image.width * scale), round(image.height * scale)))
    image = image.convert("RGB")
    scale = size / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.BICUBIC)
    return F.center_crop(F.pil_to_tensor(image), [size, size])


WAYS = {
    "decode_jpeg": lambda data, size: by_torchvision(data, size, InterpolationMode.BICUBIC),
    "bilinear": lambda data, size: by_torchvision(data, size, InterpolationMode.BILINEAR),
    "draft": lambda data, size: by_pillow(data, size, draft=True),
    "pillow": lambda data, size: by_pillow(data, size, draft=False),
}


class Photos(Dataset):
    def __init__(self, archive, way, size):
        self.bytes = torch.from_file(archive, size=self.file_size(archive), dtype=torch.uint8)
        with tarfile.open(archive) as tar:
            self.places = [(m.offset_data, m.size) for m in tar if m.isfile()]
        self.way = WAYS[way]
        self.size = size

    @staticmethod
    def file_size(path):
        with open(path, "rb") as file:
            return file.seek(0, 2)

    def __len__(self):
        return len(self.places)

    def __getitem__(self, index):
        offset, length = self.places[index]
        image = self.way(self.bytes[offset : offset + length], self.size)
        return image.flip(-1) if index % 2 else image


def speed(arguments, way, workers):
    loader = DataLoader(
        Photos(arguments.archive, way, arguments.size),
        batch_size=arguments.batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
    )
    best = {"images_per_s": 0.0, "own_cpu_ms": float("inf")}
    for _ in loader:  # workers start, and read the archive
        pass
    for _ in range(arguments.repeats):
        start, start_cpu = time.perf_counter(), time.process_time()
        count = sum(len(batch) for batch in loader)
        best["images_per_s"] = max(best["images_per_s"], count / (time.perf_counter() - start))
        best["own_cpu_ms"] = min(best["own_cpu_ms"], (time.process_time() - start_cpu) / count * 1e3)
    return {key: round(value, 3) for key, value in best.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("archive")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--workers", default="1,2", help="0: the process itself")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3, help="epochs, of which the best counts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for workers in map(int, arguments.workers.split(",")):
        for way in arguments.ways.split(","):
            record = {"way": way, "workers": workers} | speed(arguments, way, workers)
            print(json.dumps(record | {"torchvision": torchvision.__version__}), flush=True)


if __name__ == "__main__":
    main()
