"""Makes the fixture of tests/checkpoint: a training file in the layout of the original DiT.

    .venv/bin/python tools/make_checkpoint_fixtures.py [FILE]

{"model": state dict, "ema": state dict, "opt": optimizer's state dict, "args": argparse.Namespace}, as
train.py of facebookresearch/DiT saves it. Element k of every weight of "model" is (k % 61 - 30) / 32,
and the average is half of it; pos_embed is the true table. FILE is tests/checkpoint/data/dit_training.pt
unless given.
"""

import argparse
import copy
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools" / "reference"))
import dit  # noqa: E402

CONFIG = dit.ModelConfig(height=4, width=6, in_channels=4, patch=2, hidden=4, depth=1, heads=2,
                       num_classes=3)


def main():
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else (
        ROOT / "tests" / "checkpoint" / "data" / "dit_training.pt")
    model = dit.DiT(CONFIG)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                line = torch.arange(parameter.numel()) % 61 - 30
                parameter.copy_((line / 32).reshape(parameter.shape))
    average = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in average.parameters():
            if parameter.requires_grad:
                parameter.mul_(0.5)
    # Of one parameter only: the moments of all would double the file.
    some = [model.final_layer.linear.bias]
    optimizer = torch.optim.AdamW(some, lr=1e-4)
    some[0].grad = torch.zeros_like(some[0])
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    arguments = argparse.Namespace(model="DiT-S/2", image_size=256, num_classes=3, epochs=1400,
                                   global_batch_size=256, vae="ema")
    torch.save({"model": model.state_dict(), "ema": average.state_dict(),
                "opt": optimizer.state_dict(), "args": arguments}, path)
    print(f"wrote {path}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
