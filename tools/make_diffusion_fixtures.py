#!/usr/bin/env python3
"""Writes tests/diffusion/data/*.txt: what other implementations compute.

Samplers and spacings come from diffusers, run in double; the hybrid loss from torch.distributions and
formulas of the papers in double; respacing and importance sampling from short programs of our own
that share nothing with the C++ code. Needs torch, numpy and diffusers (0.42.1 was used). Always
writes the same bytes with the same versions.

A file holds one record a line: name, number of dims, dims, values in C order.
"""

import argparse
import collections
import itertools
import math
import pathlib

import numpy as np
import torch
from diffusers import DDIMScheduler, DDPMScheduler, FlowMatchEulerDiscreteScheduler
from diffusers.schedulers import scheduling_ddpm

NUM_TIMESTEPS = 1000
BETA_START, BETA_END = 1e-4, 0.02  # Ho et al. 2020, section 4
BETAS = np.linspace(BETA_START, BETA_END, NUM_TIMESTEPS, dtype=np.float64)
ALPHA_BAR = np.cumprod(1.0 - BETAS)


class Records:
    def __init__(self, path):
        self.path = path
        self.lines = []

    def add(self, name, values, digits=17):
        array = np.asarray(values, dtype=np.float64)
        numbers = " ".join(f"{v:.{digits}g}" for v in array.ravel())
        shape = " ".join(str(d) for d in array.shape)
        self.lines.append(" ".join(f"{name} {array.ndim} {shape} {numbers}".split()))

    def add_float32(self, name, values):
        self.add(name, np.asarray(values, dtype=np.float32), digits=9)

    def write(self):
        self.path.write_text("\n".join(self.lines) + "\n")
        print(f"{self.path}: {self.path.stat().st_size} bytes")


# ---------------------------------------------------------------------------------------- spacing


def fractional_spacing(total, counts):
    """Sections of `total`; in each, points from an accumulated float stride, rounded by round()."""
    base, extra = divmod(total, len(counts))
    starts = list(itertools.accumulate([base + (i < extra) for i in range(len(counts))], initial=0))
    chosen = []
    for start, end, count in zip(starts, starts[1:], counts):
        stride = (end - start - 1) / (count - 1) if count > 1 else 1
        positions = itertools.accumulate(itertools.repeat(stride, count - 1), initial=0.0)
        chosen += [start + round(p) for p in positions]
    return sorted(set(chosen))


def fingerprint(timesteps):
    """32-bit FNV-1a over the timesteps as two bytes each, low byte first."""
    value = 0x811C9DC5
    for t in timesteps:
        for byte in (t & 255, t >> 8):
            value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def make_spacing(folder):
    out = Records(folder / "spacing.txt")
    counts = range(1, NUM_TIMESTEPS + 1)
    out.add("dit", [fingerprint(fractional_spacing(NUM_TIMESTEPS, [n])) for n in counts])
    for spacing in ("leading", "trailing", "linspace"):
        scheduler = DDPMScheduler(NUM_TIMESTEPS, timestep_spacing=spacing)
        prints = []
        for n in counts:
            scheduler.set_timesteps(n)
            timesteps = [int(t) for t in scheduler.timesteps.flip(0)]
            if len(timesteps) == n + 1:  # numpy.arange went one too far, to timestep -1
                assert spacing == "trailing" and timesteps.pop(0) == -1
            prints.append(fingerprint(timesteps))
        out.add(spacing, prints)
    out.add("sections_300_10,15,20", fractional_spacing(300, [10, 15, 20]))
    out.add("sections_1000_7,11,13", fractional_spacing(1000, [7, 11, 13]))
    out.add("ddim_1000_50", range(0, 1000, 20))
    out.add("dit_1000_250", fractional_spacing(1000, [250]))
    out.write()


def make_schedule(folder):
    """Tables at some timesteps, by numpy and from the definitions (Ho et al. 2020, eq. 4, 6, 7)."""
    out = Records(folder / "schedule.txt")
    index = [0, 1, 2, 10, 499, 998, 999]
    before = np.concatenate([[1.0], ALPHA_BAR[:-1]])
    variance = BETAS * (1 - before) / (1 - ALPHA_BAR)
    out.add("index", index)
    out.add("betas", BETAS[index])
    out.add("alphas_cumprod", ALPHA_BAR[index])
    out.add("posterior_variance", variance[index])
    out.add("posterior_mean_coef1", (np.sqrt(before) * BETAS / (1 - ALPHA_BAR))[index])
    out.add("posterior_mean_coef2", (np.sqrt(1 - BETAS) * (1 - before) / (1 - ALPHA_BAR))[index])
    out.add("posterior_log_variance_clipped", np.log(np.maximum(variance, variance[1]))[index])
    out.add("betas_4000", np.linspace(BETA_START / 4, BETA_END / 4, 4000)[[0, 1, 2000, 3999]])
    out.write()


# --------------------------------------------------------------------------------------- samplers


def toy_eps(x, t):
    """The optimal eps for data N(0.3, 0.5^2) where alpha-bar is that of the VP-SDE with beta from 0.1
    to 20 (Song et al. 2021b, eq. 33), and a variance output."""
    u = t / 1000.0
    alpha_bar = math.exp(-(0.1 * u + 9.95 * u * u))
    eps = (x - math.sqrt(alpha_bar) * 0.3) * (
        math.sqrt(1 - alpha_bar) / (alpha_bar * 0.25 + 1 - alpha_bar))
    return eps, 0.8 * torch.sin(2 * x + 5 * u)


def toy_velocity(x, t):
    """The optimal velocity for data N(0.3, 0.5^2)."""
    slope = (t - (1 - t) * 0.25) / ((1 - t) ** 2 * 0.25 + t * t)
    return slope * (x - (1 - t) * 0.3) - 0.3


def in_double(scheduler):
    scheduler.betas = torch.from_numpy(BETAS)
    scheduler.alphas_cumprod = torch.from_numpy(ALPHA_BAR)
    scheduler.one = torch.tensor(1.0, dtype=torch.float64)
    scheduler.final_alpha_cumprod = scheduler.one
    return scheduler


def make_trajectories(folder):
    out = Records(folder / "trajectories.txt")
    steps = 10
    shape = (2, 2, 2, 2)
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(shape, generator=generator)
    noises = torch.randn((steps, *shape), generator=generator)
    out.add_float32("start", start)
    out.add_float32("noises", noises)
    betas = dict(beta_start=BETA_START, beta_end=BETA_END, beta_schedule="linear")

    def ddpm(name, spacing, variance, clip):
        scheduler = in_double(DDPMScheduler(
            NUM_TIMESTEPS, variance_type=variance, clip_sample=clip,
            timestep_spacing="leading" if spacing == "dit" else spacing, **betas))
        if spacing == "dit":
            scheduler.set_timesteps(timesteps=fractional_spacing(NUM_TIMESTEPS, [steps])[::-1])
        else:
            scheduler.set_timesteps(steps)
        x = start.double()
        states = []
        for k, t in enumerate(scheduler.timesteps):
            eps, sigma = toy_eps(x, float(t))
            output = torch.cat([eps, sigma], 1) if variance == "learned_range" else eps
            scheduling_ddpm.randn_tensor = lambda *args, k=k, **kwargs: noises[k].double()
            x = scheduler.step(output, int(t), x).prev_sample
            states.append(x)
        out.add_float32(name, torch.stack(states))

    ddpm("ddpm_learned_range_dit", "dit", "learned_range", False)
    ddpm("ddpm_learned_range_linspace_clip", "linspace", "learned_range", True)
    ddpm("ddpm_fixed_small_trailing", "trailing", "fixed_small", False)
    ddpm("ddpm_fixed_large_leading", "leading", "fixed_large", False)

    def ddim(name, spacing, eta, clip):
        scheduler = in_double(DDIMScheduler(
            NUM_TIMESTEPS, clip_sample=clip, timestep_spacing=spacing, **betas))
        scheduler.set_timesteps(steps)
        x = start.double()
        states = []
        for k, t in enumerate(scheduler.timesteps):
            # The library also adds noise of its variance, which is 0, in the last step.
            x = scheduler.step(toy_eps(x, float(t))[0], int(t), x, eta=eta,
                               use_clipped_model_output=clip,
                               variance_noise=noises[k].double()).prev_sample
            states.append(x)
        out.add_float32(name, torch.stack(states))

    ddim("ddim_eta0_leading", "leading", 0.0, False)
    ddim("ddim_eta0_trailing_clip", "trailing", 0.0, True)
    ddim("ddim_eta0.7_trailing", "trailing", 0.7, False)
    ddim("ddim_eta1_leading_clip", "leading", 1.0, True)

    for shift in (1.0, 3.0):
        scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1.0 / steps, steps))
        x = start
        states = []
        for t in scheduler.timesteps:
            x = scheduler.step(toy_velocity(x, float(t) / 1000.0), t, x).prev_sample
            states.append(x)
        out.add_float32(f"flow_sigmas_shift{shift:g}", scheduler.sigmas)
        out.add_float32(f"flow_shift{shift:g}", torch.stack(states))
    out.write()


# ------------------------------------------------------------------------------------------- loss


def decoder_nll(x0, mean, std, cdf):
    """Ho et al. 2020, eq. 13, in nats; the original code's guard against log 0."""
    upper = torch.where(x0 > 0.999, torch.ones_like(x0), cdf((x0 + 1 / 255 - mean) / std))
    lower = torch.where(x0 < -0.999, torch.zeros_like(x0), cdf((x0 - 1 / 255 - mean) / std))
    return -torch.log(torch.clamp(upper - lower, min=1e-12))


def tanh_cdf(x):
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def make_loss(folder):
    """L_hybrid of Nichol and Dhariwal 2021 from the means and variances of both distributions."""
    out = Records(folder / "loss.txt")
    generator = torch.Generator().manual_seed(2)
    t = torch.tensor([0, 0, 1, 37, 500, 999])
    shape = (len(t), 2, 3, 3)
    levels = torch.randint(0, 256, shape, generator=generator)
    levels[:, 0, 0, 0] = 0
    levels[:, 0, 0, 1] = 255
    x0 = (levels / 255 * 2 - 1).float()
    noise = torch.randn(shape, generator=generator)
    eps = noise + 0.5 * torch.randn(shape, generator=generator)
    sigma = 1.5 * torch.rand(shape, generator=generator) - 0.75
    weights = torch.rand(len(t), generator=generator) + 0.5
    for name, value in dict(t=t, x0=x0, noise=noise, weights=weights,
                            prediction=torch.cat([eps, sigma], 1)).items():
        out.add_float32(name, value)

    x0, noise, weights = x0.double(), noise.double(), weights.double()
    prediction = torch.cat([eps, sigma], 1).double().requires_grad_()
    eps, sigma = prediction.chunk(2, 1)

    def at(table):
        return torch.tensor(table)[t].view(-1, 1, 1, 1)

    before = np.concatenate([[1.0], ALPHA_BAR[:-1]])
    beta, bar, bar_before = at(BETAS), at(ALPHA_BAR), at(before)
    x_t = bar.sqrt() * x0 + (1 - bar).sqrt() * noise  # Ho, eq. 4
    small = np.maximum(BETAS * (1 - before) / (1 - ALPHA_BAR), 0)
    small[0] = small[1]
    small = at(small)
    true_mean = (bar_before.sqrt() * beta * x0
                 + (1 - beta).sqrt() * (1 - bar_before) * x_t) / (1 - bar)  # Ho, eq. 7
    mean = (x_t - beta / (1 - bar).sqrt() * eps.detach()) / (1 - beta).sqrt()  # Ho, eq. 11
    v = (sigma + 1) / 2
    std = torch.exp(0.5 * (v * beta.log() + (1 - v) * small.log()))  # Nichol and Dhariwal, eq. 15
    kl = torch.distributions.kl_divergence(
        torch.distributions.Normal(true_mean, small.sqrt().expand_as(x0)),
        torch.distributions.Normal(mean, std))
    bits = 1 / math.log(2)
    nll = decoder_nll(x0, mean, std, tanh_cdf)
    vb = torch.where(t == 0, nll.mean((1, 2, 3)), kl.mean((1, 2, 3))) * bits
    exact = decoder_nll(x0, mean, std, torch.distributions.Normal(0.0, 1.0).cdf)
    mse = ((noise - eps) ** 2).mean((1, 2, 3))
    loss = (weights * (mse + vb * NUM_TIMESTEPS / 1000)).mean()
    loss.backward()
    out.add("x_t", x_t)
    out.add("mse", mse.detach())
    out.add("vb", vb.detach())
    out.add("exact_decoder_bits", exact.mean((1, 2, 3)).detach()[t == 0] * bits)
    out.add("mean", loss.detach())
    out.add("gradient", prediction.grad)
    out.write()


# ------------------------------------------------------------------------------------- importance


def make_importance(folder):
    """Nichol and Dhariwal 2021, section 3.3: the last ten losses of each of T timesteps."""
    out = Records(folder / "importance.txt")
    total = 7
    random = np.random.RandomState(3)
    # First only some timesteps, so that the histories fill at different updates.
    timesteps = np.concatenate([random.randint(0, 4, 60), random.randint(0, total, 240)])
    losses = random.gamma(2.0, 1.0, len(timesteps)) * (1 + timesteps)
    history = [collections.deque(maxlen=10) for _ in range(total)]
    rows = []
    for count, (t, loss) in enumerate(zip(timesteps, losses), 1):
        history[t].append(loss)
        if count % 20 == 0:
            if any(len(h) < 10 for h in history):
                rows.append([1 / total] * total)
                continue
            norms = np.array([math.sqrt(math.fsum(x * x for x in h) / 10) for h in history])
            rows.append(0.999 * norms / norms.sum() + 0.001 / total)
    assert rows[3][0] == 1 / total and rows[-1][0] != 1 / total
    out.add("timesteps", timesteps)
    out.add("losses", losses)
    out.add("probabilities_every_20", rows)
    out.write()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/diffusion/data")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for make in (make_spacing, make_schedule, make_trajectories, make_loss, make_importance):
        make(folder)


if __name__ == "__main__":
    main()
