#!/usr/bin/env python3
"""Makes the fixtures of `kinora eval` by published implementations:

    tools/make_eval_fixtures.py

tests/eval/data/metrics.safetensors    features, logits and images, and what torch-fidelity, pytorch-fid
                                       (SciPy), prdc and scikit-image say of them
tests/eval/data/networks.safetensors   what pytorch-fid's, torch-fidelity's and clean-fid's Inception and
                                       judge_cifar.py's ResNet-20 make of formula.py's weights and pixels
tests/eval/data/script.pt              a tiny TorchScript network of images and clips
tests/eval/data/middle.pt, flow.pt     and of two frames: the mean of both; red's change to the right, green's downwards
tests/io/data/npz/                     what NumPy writes

Wants torch, torchvision, scipy, torch-fidelity, pytorch-fid, clean-fid, prdc and scikit-image."""

import math
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools/reference")]

import formula  # noqa: E402
import judge_cifar  # noqa: E402

EVAL = ROOT / "tests/eval/data"
NPZ = ROOT / "tests/io/data/npz"


def pixels(name, shape):
    """uint8 of formula.py's values: noise."""
    return ((formula.values(name, shape) + 1) * 128).floor().clamp(0, 255).to(torch.uint8)


def metrics():
    from prdc import compute_prdc
    from pytorch_fid.fid_score import calculate_frechet_distance
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity
    from torch_fidelity.metric_isc import isc_features_to_metric
    from torch_fidelity.metric_kid import kernel_mmd
    from torch_fidelity.metric_prc import calculate_precision_recall_full

    rng = np.random.default_rng(5)
    mix = rng.normal(size=(16, 16)) / 4
    a = (rng.normal(size=(160, 16)) @ mix + 3).astype(np.float32)
    b = (rng.normal(size=(160, 16)) @ (mix + 0.1 * rng.normal(size=(16, 16))) + 3.1).astype(np.float32)
    logits = (2 * rng.normal(size=(100, 7))).astype(np.float32)

    def gaussian(x):
        return x.astype(np.float64).mean(0), np.cov(x.astype(np.float64), rowvar=False)

    few = a[:9]  # a singular covariance
    kid = {"kid_kernel": "poly", "kid_kernel_poly_degree": 3, "kid_kernel_poly_gamma": None,
           "kid_kernel_poly_coef0": 1}
    ta, tb = torch.tensor(a).double(), torch.tensor(b).double()
    precision, recall = calculate_precision_recall_full(ta, tb, 3)
    more = compute_prdc(real_features=b, fake_features=a, nearest_k=3)
    # Part i of ours is every tenth sample from i on; theirs are contiguous.
    logits = torch.tensor(logits)
    scores = isc_features_to_metric(logits[[j for i in range(10) for j in range(i, 100, 10)]], 10, False)

    left = pixels("left", (40, 53, 3)).numpy()
    right = np.clip(left.astype(int) + (20 * rng.normal(size=left.shape)).astype(int), 0, 255).astype(np.uint8)
    ssim = structural_similarity(left, right, data_range=255, channel_axis=-1, gaussian_weights=True, sigma=1.5,
                                 use_sample_covariance=False)
    expected = {
        "frechet": calculate_frechet_distance(*gaussian(a), *gaussian(b)),
        "frechet_singular": calculate_frechet_distance(*gaussian(few), *gaussian(b)),
        "inception_score": scores["inception_score_mean"],
        "inception_score_std": scores["inception_score_std"],
        "kernel": kernel_mmd(ta.numpy(), tb.numpy(), **kid),
        "precision": precision, "recall": recall, "density": more["density"], "coverage": more["coverage"],
        "psnr": peak_signal_noise_ratio(right, left, data_range=255), "ssim": ssim}
    tensors = {"a": torch.tensor(a), "b": torch.tensor(b), "logits": logits,
               "left": torch.tensor(left), "right": torch.tensor(right),
               "mean": torch.tensor(gaussian(a)[0]), "covariance": torch.tensor(gaussian(a)[1])}
    tensors |= {f"expected.{key}": torch.tensor([float(value)], dtype=torch.float64) for key, value in expected.items()}
    print({key: float(value) for key, value in expected.items()})
    save_file(tensors, EVAL / "metrics.safetensors")


def state_of(module):
    """Weights of formula.py; convolutions 2^(1/2) times as large, so that ReLUs do not damp the signal."""
    state = {}
    for name, value in module.state_dict().items():
        if name.endswith("num_batches_tracked"):
            state[name] = value
        elif name.endswith("running_var"):
            state[name] = (1 + formula.values(name, value.shape) / 4).float()
        else:
            scale = math.sqrt(2) if value.dim() == 4 else 1
            state[name] = (formula.weight(name, value.shape) * scale).float()
    return state


@torch.no_grad()
def networks():
    import pytorch_fid.inception
    from cleanfid.resize import build_resizer
    import torch_fidelity.feature_extractor_inceptionv3 as extractor

    bare = pytorch_fid.inception._inception_v3(num_classes=1008, aux_logits=False, weights=None)
    state = state_of(bare)
    pytorch_fid.inception.load_state_dict_from_url = lambda *args, **kwargs: state
    theirs = pytorch_fid.inception.InceptionV3().eval()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, Path(folder) / "weights.pth")
        fidelity = extractor.FeatureExtractorInceptionV3("inception-v3-compat", ["2048", "logits_unbiased"],
                                                         feature_extractor_weights_path=str(Path(folder) / "weights.pth")).eval()
    images = torch.stack([pixels(f"image.{i}", (3, 40, 52)) for i in range(2)])
    features, logits = fidelity(images)
    clean = build_resizer("clean")

    def clean_resized(image):
        return torch.tensor(clean(image.permute(1, 2, 0).numpy())).permute(2, 0, 1)

    # clean-fid feeds its TorchScript network, the same Inception, with (x - 128) / 128 at 299 x 299.
    inputs = torch.stack([clean_resized(image) for image in images])
    tensorflow_resize = extractor.interpolate_bilinear_2d_like_tensorflow1x
    extractor.interpolate_bilinear_2d_like_tensorflow1x = lambda x, **kwargs: inputs
    clean_features, _ = fidelity(images)
    large = pixels("large", (3, 400, 350))
    judge = judge_cifar.Judge().eval()
    judge.load_state_dict(state_of(judge))
    small = torch.stack([pixels(f"small.{i}", (3, 32, 32)) for i in range(3)])
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (judge_cifar.MEAN, judge_cifar.STD))
    judged_logits, judged_features = judge((small / 255 - mean) / std)
    every = slice(None, None, 23)
    tensors = {
        "tensorflow.features": features, "tensorflow.logits": logits,
        "pytorch.features": theirs(images / 255)[0].flatten(1), "clean.features": clean_features,
        "tensorflow.resized": tensorflow_resize(large[None].float(), size=(299, 299), align_corners=False)[0][:, every, every],
        "pytorch.resized": build_resizer("legacy_pytorch")(large.permute(1, 2, 0).numpy()),
        "clean.resized": clean_resized(large)[:, every, every],
        "resnet.features": judged_features, "resnet.logits": judged_logits}
    tensors["pytorch.resized"] = torch.tensor(tensors["pytorch.resized"]).permute(2, 0, 1)[:, every, every]
    for name, value in tensors.items():
        print(name, tuple(value.shape), float(value.mean()), float(value.std()))
    save_file({name: value.contiguous() for name, value in tensors.items()}, EVAL / "networks.safetensors")


class Script(torch.nn.Module):
    """Mean and mean square by channel; of clips also the mean change from frame to frame."""

    def forward(self, x: torch.Tensor, return_features: bool = False):
        values = x.flatten(2)
        features = torch.cat([values.mean(2), values.square().mean(2)], 1)
        if x.dim() == 5:
            change = (x[:, :, 1:] - x[:, :, :-1]).flatten(2).mean(2)
            features = torch.cat([features, change], 1)
        if not return_features:
            features = torch.zeros_like(features)
        return features, values.mean(2)


class Middle(torch.nn.Module):

    def forward(self, first: torch.Tensor, second: torch.Tensor):
        return (first + second) / 2


class Flow(torch.nn.Module):

    def forward(self, first: torch.Tensor, second: torch.Tensor):
        return (second - first)[:, :2]


def arrays():
    floats = np.arange(24, dtype=np.float64).reshape(2, 3, 4) / 8
    members = {"doubles": floats, "floats": floats.astype(np.float32), "halves": floats.astype(np.float16),
               "fortran": np.asfortranarray(floats), "big": floats.astype(">f8"), "longs": np.arange(5),
               "bytes": np.arange(7, dtype=np.uint8), "scalar": np.float64(2.5), "empty": np.zeros((0, 3)),
               "bools": np.array([True, False])}
    np.savez(NPZ / "stored.npz", **members)
    np.savez_compressed(NPZ / "deflated.npz", **members)
    np.savez(NPZ / "objects.npz", good=np.arange(3), objects=np.array([{"a": 1}], dtype=object),
             records=np.zeros(2, dtype=[("x", "f4")]), words=np.array(["a"]), complex=np.zeros(2, np.complex64))
    with zipfile.ZipFile(NPZ / "versions.npz", "w") as archive:
        for version in ((1, 0), (2, 0), (3, 0)):
            with archive.open(f"v{version[0]}.npy", "w") as file:
                np.lib.format.write_array(file, floats, version=version)


def main():
    EVAL.mkdir(parents=True, exist_ok=True)
    NPZ.mkdir(parents=True, exist_ok=True)
    arrays()
    for name, network in (("script", Script()), ("middle", Middle()), ("flow", Flow())):
        torch.jit.save(torch.jit.script(network), EVAL / f"{name}.pt")
    metrics()
    networks()


if __name__ == "__main__":
    main()
