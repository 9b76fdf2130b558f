"""Judges generated CIFAR-10 pictures with a classifier trained on real ones.

    python tools/judge_cifar.py SAMPLES --judge resnet20-12fca82f.th --data train.tar [--device cuda]

SAMPLES is a folder of 32 x 32 PNG files (searched recursively), or a .npz / .safetensors file with
`images` (uint8, [N, 32, 32, 3] or [N, 3, 32, 32]) and `labels` [N]. The asked class of a file comes
from `labels.json` in the folder ({"file name": class}), or from the first group of --pattern. Without
SAMPLES only the real images are judged.

It prints how often the judge sees the asked class, and Frechet distances between the Gaussians of the
judge's 64 pooled features. They compare only with each other: this is not FID. A small sample makes
the distance larger by itself, so the distance of the samples is printed beside that of as many real
images.

Needs torch, numpy and pillow; no network. The data set must not be redistributed with the project.
"""

import argparse
import io
import json
import re
import sys
import tarfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
# What the judge was trained with (ImageNet's statistics, as its authors chose).
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FEATURES = 64


class Block(nn.Module):
    """Residual block; a narrower input is subsampled and padded with zero channels (He et al. 2016,
    section 4.2, option A), so the shortcut has no weights."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.padding = stride, (outputs - inputs) // 2

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        pad = self.padding
        return F.relu(y + F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, pad, pad)))


class Judge(nn.Module):
    """ResNet-20 for 32 x 32 images. -> (logits [B, 10], features [B, 64])"""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(Block(16, 16, 1) for _ in range(3)))
        self.layer2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1), Block(32, 32, 1))
        self.layer3 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1), Block(64, 64, 1))
        self.linear = nn.Linear(FEATURES, len(CLASSES))

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        features = x.mean((2, 3))
        return self.linear(features), features


def load_judge(path, device):
    state = torch.load(path, weights_only=True, map_location="cpu")
    state = state.get("state_dict", state)
    judge = Judge()
    # Batch-norm step counters are absent from files as old as this one; they play no part here.
    state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    missing, unexpected = judge.load_state_dict(state, strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        sys.exit(f"{path} is not a CIFAR ResNet-20: missing {missing}, unexpected {unexpected}")
    return judge.eval().to(device)


def pixels(data, name):
    image = Image.open(data).convert("RGB")
    if image.size != (32, 32):
        sys.exit(f"{name} must measure 32 x 32 pixels, got {image.size[0]} x {image.size[1]}")
    return np.asarray(image)


def read_real(path, limit, seed):
    """A random subset of class folders in a tar. -> uint8 [N, 32, 32, 3], labels [N]"""
    images, labels = [], []
    with tarfile.open(path) as tar:
        members = [m for m in tar if m.isfile() and m.name.lower().endswith((".jpg", ".jpeg", ".png"))]
        if limit and limit < len(members):
            picks = np.random.default_rng(seed).choice(len(members), limit, replace=False)
            members = [members[i] for i in sorted(picks)]
        for member in members:
            images.append(pixels(io.BytesIO(tar.extractfile(member).read()), member.name))
            labels.append(CLASSES.index(Path(member.name).parent.name))
    return np.stack(images), np.array(labels)


def read_folder(folder, pattern):
    files = sorted(folder.rglob("*.png"))
    table = folder / "labels.json"
    known = json.loads(table.read_text()) if table.exists() else None
    images, labels = [], []
    for file in files:
        if known is not None:
            if file.name not in known:
                continue  # such as a grid
            label = known[file.name]
        else:
            match = re.search(pattern, file.relative_to(folder).as_posix())
            if not match:
                continue
            label = match.group(1)
        images.append(pixels(file, file.name))
        labels.append(int(label))
    if not images:
        sys.exit(f"{folder}: none of {len(files)} PNG files has a known class. Hint: --pattern, labels.json")
    return np.stack(images), np.array(labels)


def read_samples(path, pattern):
    if path.is_dir():
        return read_folder(path, pattern)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            images, labels = file["images"], file["labels"]
    else:
        from safetensors.numpy import load_file

        tensors = load_file(path)
        images, labels = tensors["images"], tensors["labels"]
    if images.ndim == 4 and images.shape[1] == 3:
        images = images.transpose(0, 2, 3, 1)
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3):
        sys.exit(f"{path}: images must be uint8 [N, 32, 32, 3], got {images.dtype} {images.shape}")
    return images, labels.astype(np.int64)


@torch.no_grad()
def look(judge, images, device, batch=500):
    """-> (classes [N], features float64 [N, 64])"""
    mean = torch.tensor(MEAN, device=device)[:, None, None]
    std = torch.tensor(STD, device=device)[:, None, None]
    classes, features = [], []
    for begin in range(0, len(images), batch):
        x = torch.from_numpy(np.ascontiguousarray(images[begin : begin + batch])).to(device)
        x = x.permute(0, 3, 1, 2).float() / 255
        logits, pooled = judge((x - mean) / std)
        classes.append(logits.argmax(1).cpu())
        features.append(pooled.double().cpu())
    return torch.cat(classes).numpy(), torch.cat(features)


def symmetric_root(matrix):
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


def frechet(a, b):
    """|mu_a - mu_b|^2 + tr(A + B - 2 (A^1/2 B A^1/2)^1/2), Dowson and Landau 1982."""
    mean = (a.mean(0) - b.mean(0)).square().sum()
    cov_a, cov_b = torch.cov(a.T), torch.cov(b.T)
    root = symmetric_root(cov_a)
    cross = torch.linalg.eigvalsh(root @ cov_b @ root).clamp(min=0).sqrt().sum()
    return (mean + cov_a.trace() + cov_b.trace() - 2 * cross).item()


def split_distance(features, first, second, draws, generator):
    """Mean distance between disjoint random parts of `first` and `second` images."""
    distances = []
    for _ in range(draws):
        order = torch.randperm(len(features), generator=generator)
        a, b = features[order[:first]], features[order[first : first + second]]
        distances.append(frechet(a, b))
    return sum(distances) / draws


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", nargs="?", type=Path, help="folder, .npz or .safetensors")
    parser.add_argument("--judge", required=True, type=Path, help="resnet20-12fca82f.th")
    parser.add_argument("--data", required=True, type=Path, help="tar of real images in class folders")
    parser.add_argument("--pattern", default=r"class-(\d+)", help="regular expression; group 1 is the class")
    parser.add_argument("--max-real", type=int, default=0, help="read only so many real images (0: all)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(arguments.seed)
    judge = load_judge(arguments.judge, arguments.device)

    images, labels = read_real(arguments.data, arguments.max_real, arguments.seed)
    seen, real = look(judge, images, arguments.device)
    half = len(real) // 2
    report = {"real_images": len(real), "real_agreement": round(float((seen == labels).mean()), 4),
              "real_halves": split_distance(real, half, len(real) - half, 5, generator)}
    print(f"real images: {len(real)}, the judge agrees with {100 * report['real_agreement']:.1f} %")
    print(f"Frechet distance, two halves of the real images ({half} and {len(real) - half}): "
          f"{report['real_halves']:.4f}")

    if arguments.samples:
        images, labels = read_samples(arguments.samples, arguments.pattern)
        seen, features = look(judge, images, arguments.device)
        n = len(features)
        if 2 * n > len(real):
            sys.exit(f"{n} samples need at least {2 * n} real images to compare with, got {len(real)}")
        if n <= FEATURES:
            print(f"note: {n} samples do not span {FEATURES} features; distances mean little")
        report |= {
            "samples": n,
            "agreement": round(float((seen == labels).mean()), 4),
            "samples_to_real": frechet(features, real),
            "real_matched_to_rest": split_distance(real, n, len(real) - n, 10, generator),
            "real_matched_to_matched": split_distance(real, n, n, 10, generator),
            "agreement_by_class": {
                name: round(float((seen[labels == i] == i).mean()), 3)
                for i, name in enumerate(CLASSES) if (labels == i).any()},
        }
        report["ratio_to_rest"] = report["samples_to_real"] / report["real_matched_to_rest"]
        report["ratio_to_matched"] = report["samples_to_real"] / report["real_matched_to_matched"]
        print(f"samples: {n}, the judge agrees with {100 * report['agreement']:.1f} %")
        for name, share in report["agreement_by_class"].items():
            print(f"  {name:<12}{100 * share:5.1f} %")
        print(f"Frechet distance, {n} samples to all real images: {report['samples_to_real']:.4f}")
        print(f"Frechet distance, {n} real images to the other real images: "
              f"{report['real_matched_to_rest']:.4f} (samples: {report['ratio_to_rest']:.2f} x)")
        print(f"Frechet distance, {n} real images to {n} other real images: "
              f"{report['real_matched_to_matched']:.4f} (samples: {report['ratio_to_matched']:.2f} x)")
    print(json.dumps({key: round(value, 5) if isinstance(value, float) else value
                      for key, value in report.items()}))


if __name__ == "__main__":
    main()
