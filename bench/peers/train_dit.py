"""The PyTorch peer of `kinora bench train`: one DiT training step, the same work, timed.

    python bench/peers/train_dit.py --model DiT-XL/2 --batch 256 --precision bf16 \
        --mode compile-default,compile-reduce-overhead --attention auto,flash
    python bench/peers/train_dit.py --hidden 128 --depth 4 --heads 4 --patch 4 --in-channels 3 \
        --height 32 --width 32 --num-classes 16 --batch 32 --device cpu --threads 2

A step draws t, noise and label dropout on the device, computes the full objective (IDDPM's hybrid loss,
or rectified flow), gradients, the clipped global norm, AdamW and the EMA. Inputs stay in the device's
memory. Layers that start at zero are randomised, since zeros cost less power and so less time.

Modes (several with commas between them): eager; compile-*, torch.compile over forward and loss;
compile-graph, the whole step, optimizer included, captured in one CUDA graph. --optimizer fused clips
inside of torch's fused AdamW; compiled is one torch.compile over norm, clipping, AdamW and EMA.
--clip 0 leaves clipping out. Prints one line of JSON a measurement.
"""

import argparse
import statistics
import sys
from dataclasses import replace

import torch

import measure  # also makes tools/reference importable
import dit
import iddpm


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


class Update:
    """Clipping by the global norm, AdamW, EMA (unless average is False)."""

    def __init__(self, parameters, kind, clip, in_graph, average=True):
        self.parameters, self.clip = parameters, clip
        self.ema = [p.detach().clone() for p in parameters] if average else []
        self.fused = kind == "fused"
        capturable = parameters[0].is_cuda and (in_graph or not self.fused)
        self.optimizer = torch.optim.AdamW(
            parameters, lr=1e-4, weight_decay=0.0, fused=self.fused, foreach=not self.fused,
            capturable=capturable)
        self.step = self.fused_step if self.fused else torch.compile(self.compiled_step, dynamic=False)

    def divisor(self):
        """Gradients divided by it have at most the norm wanted, as by clip_grad_norm_."""
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters], foreach=True)
        return ((norm + 1e-6) / self.clip).clamp(min=1.0)

    @torch.no_grad()
    def fused_step(self):
        if self.clip:
            self.optimizer.grad_scale = self.divisor()  # the fused kernel divides by it
        self.optimizer.step()
        if self.ema:
            torch._foreach_lerp_(self.ema, self.parameters, 1e-4)

    @torch.no_grad()
    def compiled_step(self):
        if self.clip:
            torch._foreach_div_([p.grad for p in self.parameters], self.divisor())
        self.optimizer.step()
        if self.ema:
            torch._foreach_lerp_(self.ema, self.parameters, 1e-4)


def add_model_arguments(parser):
    parser.add_argument("--model", help='such as "DiT-S/2"; the sizes below replace parts of it')
    parser.add_argument("--image-size", type=int, default=256, help="of a named model, in pixels")
    for name in ("height", "width", "in-channels", "patch", "hidden", "depth", "heads", "num-classes"):
        parser.add_argument(f"--{name}", type=int, default=0, help="model size (input in its own units)")


def check_model_arguments(parser, arguments):
    if not arguments.model and not (arguments.hidden and arguments.depth and arguments.heads):
        parser.error("give --model, or --hidden, --depth and --heads")


def model_name(arguments, config):
    return arguments.model or f"h{config.hidden}-d{config.depth}-p{config.patch}"


def config_of(arguments):
    if arguments.model:
        config = dit.named_config(arguments.model)
        side = arguments.image_size // 8  # the autoencoder's factor
        config = replace(config, height=side, width=side)
    else:
        config = dit.ModelConfig(height=32, width=32)
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
        raise RuntimeError(f"the timed loss is {timed}, the reference's {expected}")


def time_training(arguments, config, mode):
    device, batch = arguments.device, arguments.batch
    whole_step = mode == "compile-graph"
    if whole_step and not device.startswith("cuda"):
        raise RuntimeError("compile-graph needs a GPU")
    model = build(config, device)
    x0 = torch.randn(batch, config.in_channels, config.height, config.width, device=device)
    classes = torch.randint(config.num_classes, (batch,), device=device)
    objective = (Iddpm if arguments.objective == "iddpm" else Flow)(device)
    if arguments.objective == "iddpm":
        check_iddpm(model, objective, x0[:8], classes[:8])

    def predict(x, t, labels):
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=arguments.precision == "bf16"):
            return model(x, t, labels)

    def objective_loss(x, t, noise, labels):
        return objective.loss(predict, x, t, noise, labels)

    loss_function = measure.compiled(objective_loss, mode)
    parameters = [p for p in model.parameters() if p.requires_grad]
    update = Update(parameters, arguments.optimizer, arguments.clip, whole_step)
    last_loss = torch.zeros((), device=device)

    def step():
        # What the last step left in the memory of compile's CUDA graphs is dead from here on.
        torch.compiler.cudagraph_mark_step_begin()
        t, noise = objective.draw_t(batch, device), torch.randn_like(x0)
        dropped = torch.rand(batch, device=device) < config.label_dropout
        loss = loss_function(x0, t, noise, torch.where(dropped, config.num_classes, classes))
        loss.backward()
        update.step()
        last_loss.copy_(loss.detach())
        for p in parameters:
            p.grad = None

    if whole_step:
        graph = measure.captured(step, arguments.warmup)
        step = graph.replay

    def block():
        for _ in range(arguments.steps):
            step()

    for _ in range(arguments.warmup):
        step()
    measure.synchronize(device)
    if not whole_step:  # the captured step's memory is all allocated by now
        measure.reset_peak_memory(device)
    times = [measure.seconds(block, device) / arguments.steps * 1000 for _ in range(arguments.blocks)]
    milliseconds = statistics.median(times)
    macs = dit.macs_per_image(config)
    return {
        "parameters": sum(p.numel() for p in parameters),
        "ms_per_step": round(milliseconds, 3),
        "ms_min": round(min(times), 3), "ms_max": round(max(times), 3),
        "images_per_s": round(batch / milliseconds * 1000, 2),
        "tflops": round(6 * macs * batch / milliseconds / 1e9, 4),
        "macs_per_image": macs, "peak_memory_gib": measure.peak_memory_gib(device),
        "loss": round(last_loss.item(), 4),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_arguments(parser)
    parser.add_argument("--objective", choices=["iddpm", "flow"], default="iddpm")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--mode", type=measure.names_of(measure.MODES), default=["eager"])
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="fp32")
    parser.add_argument("--attention", type=measure.names_of(measure.ATTENTION), default=["auto"])
    parser.add_argument("--optimizer", choices=["fused", "compiled"], default="fused")
    parser.add_argument("--clip", type=float, default=1.0, help="largest global norm; 0: no clipping")
    parser.add_argument("--warmup", type=int, default=10, help="steps before timing")
    parser.add_argument("--steps", type=int, default=20, help="steps of a timed block")
    parser.add_argument("--blocks", type=int, default=5, help="the median block is reported")
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    check_model_arguments(parser, arguments)
    measure.prepare_device(arguments, tf32=arguments.precision == "tf32")
    config = config_of(arguments)

    def measurement(mode, attention):
        def run():
            with measure.attention(attention):
                return time_training(arguments, config, mode)

        description = {
            "peer": f"torch {mode}",
            "model": model_name(arguments, config),
            "input": [config.in_channels, config.height, config.width],
            "objective": arguments.objective, "precision": arguments.precision,
            "attention": attention, "optimizer": arguments.optimizer, "clip": arguments.clip,
            "batch": arguments.batch, "device": measure.device_name(arguments.device),
        }
        return description, run

    measure.run_all(measurement(mode, attention)
                    for mode in arguments.mode for attention in arguments.attention)


if __name__ == "__main__":
    sys.exit(main())
