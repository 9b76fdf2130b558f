"""The peer of `kinora bench train` for Open-Sora 2: its authors' own step, written anew (their training needs packages that
want a network). Wants torch.

    python bench/peers/open_sora2_step.py --joint 4 --parallel 8 --checkpointed 2 --batch 12
    python bench/peers/open_sora2_step.py --joint 1 --parallel 1 --checkpointed 1 --hidden 64 --heads 2 --frames 2 --height 4 --width 4 \\
        --text 8 --batch 2 --device cpu

The model in the form of the published weights (tools/reference/open_sora2.py) in bf16 without torch.compile, but for positions
and norms of queries and keys, which are Triton kernels there (Liger) and compiled here. The flags of their first stage at 256 px
(configs/diffusion/train/stage1.py): the first 8 of 19 blocks of two streams and all of one are computed again in backward
(--checkpointed of --joint here), 12 clips of 33 frames a GPU, gradients clipped to a norm of 1, AdamW over fp32 weights from
which those in bf16 are copied (fused here), no average. Latents, T5's states and CLIP's vectors lie in the device's memory.
Prints one line of JSON, the median of blocks of steps.
"""

import argparse
import functools

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import measure
import open_sora2 as reference
import train_dit

STATES = 4096  # width of T5-XXL's
POOLED = 768  # of CLIP-L's vector
CHANNELS = 16
PATCH = 2


def checkpointed(block):
    forward = block.forward
    block.forward = lambda *inputs: checkpoint(forward, *inputs, use_reentrant=False)


def build(arguments):
    torch.manual_seed(0)
    head = arguments.hidden // arguments.heads
    frame = head // 16 * 2
    rest = (head - frame) // 4 * 2
    with torch.device(arguments.device):
        model = reference.OpenSora2(CHANNELS, PATCH, arguments.hidden, arguments.heads, arguments.joint, arguments.parallel,
                                    (head - 2 * rest, rest, rest), STATES, POOLED).to(torch.bfloat16)
    for block in [*list(model.double_blocks)[:arguments.checkpointed], *model.single_blocks]:
        checkpointed(block)
    return model.train()


class Update:
    """AdamW on fp32 copies of the weights, from which those of the model are copied."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.masters = [p.detach().float() for p in parameters]
        self.update = train_dit.Update(self.masters, "fused", 1.0, False, average=False)

    @torch.no_grad()
    def step(self):
        for master, p in zip(self.masters, self.parameters):
            master.grad = torch.empty_like(master)
        torch._foreach_copy_([master.grad for master in self.masters], [p.grad for p in self.parameters])
        self.update.step()
        torch._foreach_copy_(self.parameters, self.masters)
        for master, p in zip(self.masters, self.parameters):
            master.grad = p.grad = None


def training(arguments):
    model = build(arguments)
    update = Update(list(model.parameters()))
    shape = (arguments.batch, CHANNELS, arguments.frames, arguments.height, arguments.width)
    device, dtype = arguments.device, torch.bfloat16
    x0 = torch.randn(shape, device=device)
    text = torch.randn(arguments.batch, arguments.text, STATES, device=device, dtype=dtype)
    pooled = torch.randn(arguments.batch, POOLED, device=device, dtype=dtype)
    given = torch.zeros(shape, device=device, dtype=dtype)
    is_given = torch.zeros(arguments.batch, arguments.frames, device=device)

    def step():
        t = torch.rand(arguments.batch, device=device)
        noise = torch.randn_like(x0)
        share = t.view(-1, 1, 1, 1, 1)
        x_t = ((1 - share) * x0 + share * noise).to(dtype)
        predicted = model(x_t, t.to(dtype), text, pooled, given, is_given)
        F.mse_loss(predicted.float(), noise - x0).backward()
        update.step()

    return step, model


def measured(arguments):
    step, model = training(arguments)
    with measure.attention(arguments.attention):
        return measure.timed_steps(step, model, arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--joint", type=int, default=4, help="blocks")
    parser.add_argument("--parallel", type=int, default=8, help="blocks")
    parser.add_argument("--checkpointed", type=int, default=2, help="of --joint")
    parser.add_argument("--hidden", type=int, default=3072)
    parser.add_argument("--heads", type=int, default=24)
    parser.add_argument("--frames", type=int, default=9, help="of latents")
    parser.add_argument("--height", type=int, default=32, help="of latents")
    parser.add_argument("--width", type=int, default=32, help="of latents")
    parser.add_argument("--text", type=int, default=512, help="tokens")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--attention", choices=measure.ATTENTION, default="auto", help="theirs is FlashAttention 3 where it is there")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=3)
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    measure.prepare_device(arguments)
    measure.make_attention_contiguous()
    reference.turned = torch.compile(reference.turned, dynamic=False)
    reference.HeadNorm.forward = torch.compile(reference.HeadNorm.forward, dynamic=False)
    tokens = arguments.frames * arguments.height * arguments.width // PATCH**2 + arguments.text
    description = {"peer": "open_sora2", "joint": arguments.joint, "parallel": arguments.parallel,
                   "checkpointed": arguments.checkpointed, "tokens": tokens, "batch": arguments.batch,
                   "device": measure.device_name(arguments.device)}
    measure.run_all([(description, functools.partial(measured, arguments))])


if __name__ == "__main__":
    main()
