"""The PyTorch peer of `kinora bench train`: one DiT training step, the same work, timed.

    python bench/peers/train_dit.py --model DiT-XL/2 --batch 128 --mode compile-default --precision bf16
    python bench/peers/train_dit.py --hidden 128 --depth 4 --heads 4 --patch 4 --in-channels 3 \
        --height 32 --width 32 --num-classes 16 --batch 32 --device cpu --threads 2

A step draws t, noise and label dropout on the device, computes the full objective (IDDPM's hybrid loss,
or rectified flow), gradients, the clipped global norm, fused AdamW and the EMA. Inputs stay in the
device's memory. Layers that start at zero are randomised, since zeros cost less power and so less time.
Prints one line of JSON.
"""

import argparse
import json
import resource
import statistics
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "reference"))
import dit  # noqa: E402
import iddpm  # noqa: E402

MODES = {
    "eager": None,
    "compile-default": {},
    "compile-max-autotune": {"mode": "max-autotune"},
    "compile-max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
    "compile-reduce-overhead": {"mode": "reduce-overhead"},
}
ATTENTION = {"auto": None, "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
             "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


class Iddpm:
    """iddpm.hybrid_terms with its constants gathered once a step from one table on the device."""

    def __init__(self, device):
        s = iddpm.Schedule()
        signal, sigma = s.alpha_bar.sqrt(), (1 - s.alpha_bar).sqrt()
        columns = [signal, sigma, sigma / signal * s.posterior_x0, s.posterior_log_variance, s.betas.log()]
        self.table = torch.stack(columns, dim=1).float().to(device)
        self.steps = s.steps

    def draw_t(self, batch, device):
        return torch.randint(self.steps, (batch,), device=device)

    def loss(self, predict, x0, t, noise, labels):
        constants = self.table[t].reshape(-1, 5, 1, 1, 1).unbind(1)
        signal, sigma, mean_weight, low, high = constants
        output = predict(signal * x0 + sigma * noise, t.float(), labels).float()
        eps, v = output.chunk(2, dim=1)
        fraction = (v + 1) / 2
        log_variance = fraction * high + (1 - fraction) * low
        # mean - true mean: what x_t adds to both cancels.
        shift = mean_weight * (noise - eps.detach())
        kl = 0.5 * (log_variance - low + torch.exp(low - log_variance)
                    + shift**2 * torch.exp(-log_variance) - 1)
        # At t = 0 the posterior mean is the predicted x0 itself.
        nll = -iddpm.discretized_log_likelihood(x0, x0 + shift, 0.5 * log_variance)
        bound = torch.where((t == 0).reshape(-1, 1, 1, 1), nll, kl) / 0.6931471805599453
        return ((noise - eps) ** 2 + bound).mean()


class Flow:
    """Rectified flow with logit-normal t."""

    def __init__(self, device):
        del device

    def draw_t(self, batch, device):
        return torch.randn(batch, device=device).sigmoid()

    def loss(self, predict, x0, t, noise, labels):
        weight = t.reshape(-1, 1, 1, 1)
        output = predict((1 - weight) * x0 + weight * noise, t, labels).float()
        return ((output - (noise - x0)) ** 2).mean()


def config_of(arguments):
    if arguments.model:
        config = dit.named_config(arguments.model)
        side = arguments.image_size // 8  # the autoencoder's factor
        config = replace(config, height=side, width=side)
    else:
        config = dit.DiTConfig(height=32, width=32)
    names = ("height", "width", "in_channels", "patch", "hidden", "depth", "heads", "num_classes")
    changes = {name: getattr(arguments, name) for name in names if getattr(arguments, name)}
    flow = arguments.objective == "flow"
    return replace(config, **changes, learn_sigma=not flow, time_scale=1000.0 if flow else 1.0)


def build(config, device):
    torch.manual_seed(0)
    with torch.device(device):
        model = dit.DiT(config)
    for layer in model.zero_initialized():
        torch.nn.init.normal_(layer.weight, std=0.02)
        torch.nn.init.normal_(layer.bias, std=0.02)
    return model


def check_iddpm(model, objective, x0, labels):
    """The loss that is timed is the reference's."""
    t, noise = objective.draw_t(len(x0), x0.device), torch.randn_like(x0)
    t[0] = 0
    with torch.no_grad():
        timed = objective.loss(model, x0, t, noise, labels).item()
        expected = iddpm.iddpm_loss(iddpm.Schedule(), model, x0, t, noise, labels)["loss"].mean().item()
    if abs(timed - expected) > 1e-3 * abs(expected):
        sys.exit(f"the timed loss is {timed}, the reference's {expected}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help='such as "DiT-S/2"; the sizes below replace parts of it')
    parser.add_argument("--image-size", type=int, default=256, help="of a named model, in pixels")
    for name in ("height", "width", "in-channels", "patch", "hidden", "depth", "heads", "num-classes"):
        parser.add_argument(f"--{name}", type=int, default=0, help="model size (input in its own units)")
    parser.add_argument("--objective", choices=["iddpm", "flow"], default="iddpm")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--mode", choices=list(MODES), default="eager")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="fp32")
    parser.add_argument("--attention", choices=list(ATTENTION), default="auto")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads")
    parser.add_argument("--warmup", type=int, default=10, help="steps before timing")
    parser.add_argument("--steps", type=int, default=20, help="steps of a timed block")
    parser.add_argument("--blocks", type=int, default=5, help="the median block is reported")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if not arguments.model and not (arguments.hidden and arguments.depth and arguments.heads):
        parser.error("give --model, or --hidden, --depth and --heads")
    device, batch, cuda = arguments.device, arguments.batch, arguments.device.startswith("cuda")
    torch.backends.cuda.matmul.allow_tf32 = arguments.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = arguments.precision == "tf32"

    config = config_of(arguments)
    model = build(config, device)
    x0 = torch.randn(batch, config.in_channels, config.height, config.width, device=device)
    classes = torch.randint(config.num_classes, (batch,), device=device)
    objective = (Iddpm if arguments.objective == "iddpm" else Flow)(device)
    if arguments.objective == "iddpm":
        check_iddpm(model, objective, x0, classes)

    def predict(x, t, labels):
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=arguments.precision == "bf16"):
            return model(x, t, labels)

    def loss_function(x, t, noise, labels):
        return objective.loss(predict, x, t, noise, labels)

    options = MODES[arguments.mode]
    if options is not None:
        loss_function = torch.compile(loss_function, dynamic=False, fullgraph=True, **options)
    parameters = [p for p in model.parameters() if p.requires_grad]
    ema = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.0, fused=True)

    def step():
        torch.compiler.cudagraph_mark_step_begin()
        t, noise = objective.draw_t(batch, device), torch.randn_like(x0)
        dropped = torch.rand(batch, device=device) < config.label_dropout
        loss = loss_function(x0, t, noise, torch.where(dropped, config.num_classes, classes))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(ema, parameters, 1e-4)
        return loss

    def block(steps):
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            loss = step()
        value = loss.item()  # waits
        if cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / steps * 1000, value

    backend = ATTENTION[arguments.attention]
    with sdpa_kernel(backend) if backend is not None else nullcontext():
        block(arguments.warmup)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(arguments.blocks):
            milliseconds, loss = block(arguments.steps)
            times.append(milliseconds)
    milliseconds = statistics.median(times)
    if cuda:
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    macs = dit.macs_per_image(config)
    print(json.dumps({
        "peer": f"torch {torch.__version__} {arguments.mode}",
        "model": arguments.model or f"h{config.hidden}-d{config.depth}-p{config.patch}",
        "input": [config.in_channels, config.height, config.width],
        "parameters": sum(p.numel() for p in parameters),
        "objective": arguments.objective, "precision": arguments.precision,
        "attention": arguments.attention, "batch": batch,
        "device": torch.cuda.get_device_name() if cuda else f"cpu, {torch.get_num_threads()} threads",
        "ms_per_step": round(milliseconds, 3),
        "ms_min": round(min(times), 3), "ms_max": round(max(times), 3),
        "images_per_s": round(batch / milliseconds * 1000, 2),
        "tflops": round(6 * macs * batch / milliseconds / 1e9, 4),
        "macs_per_image": macs, "peak_memory_gib": round(peak / 2**30, 3), "loss": round(loss, 4),
    }))


if __name__ == "__main__":
    main()
