#!/usr/bin/env python3
"""Writes tests/diffusion/data/objectives.txt, training losses of discrete chains by diffusers, and
tests/train/data/diffusers_schedulers, configurations of its schedulers.

Chains, noised samples, targets and SNRs are those of diffusers' DDPMScheduler (add_noise, get_velocity,
rescale_zero_terminal_snr, compute_snr) with its tables in double. The weights are min-SNR's as diffusers'
training examples have it, but 1 where the SNR is 0, as in the authors' program, and P2's. The bound
comes from torch.distributions, gradients from autograd, SpeeDiT's probabilities from the pairs that
Open-Sora 1.1's program draws.

Needs torch, numpy and diffusers (0.42.1 was used). Always writes the same bytes with the same versions.
"""

import argparse
import math
import pathlib

import numpy as np
import torch
from diffusers import (DDIMScheduler, DDPMScheduler, DPMSolverMultistepScheduler,
                       FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler)
from diffusers.schedulers.scheduling_ddpm import rescale_zero_terminal_snr
from diffusers.training_utils import compute_snr
from make_diffusion_fixtures import Records, decoder_nll, tanh_cdf

T = 1000
STABLE_DIFFUSION = dict(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012)
LINEAR = dict(beta_schedule="linear", beta_start=1e-4, beta_end=0.02)
COSINE = dict(beta_schedule="squaredcos_cap_v2")
# name: chain, zero terminal SNR, prediction, weights (kind, then min-SNR's gamma or P2's k and gamma),
# learned variance
CASES = {
    "v_scaled_linear_min_snr": (STABLE_DIFFUSION, False, "v_prediction", ("min_snr", 5.0), True),
    "v_linear_zero_snr_min_snr": (LINEAR, True, "v_prediction", ("min_snr", 5.0), True),
    "sample_squared_cosine_min_snr": (COSINE, False, "sample", ("min_snr", 3.0), True),
    "sample_linear_zero_snr_p2": (LINEAR, True, "sample", ("p2", 1.0, 1.0), False),
    "eps_scaled_linear_min_snr": (STABLE_DIFFUSION, False, "epsilon", ("min_snr", 5.0), True),
    "eps_linear_p2": (LINEAR, False, "epsilon", ("p2", 1.0, 1.0), True),
    "v_squared_cosine_p2": (COSINE, False, "v_prediction", ("p2", 2.0, 0.5), False),
    "sample_linear": (LINEAR, False, "sample", ("none",), True),
}


def scheduler_of(chain, zero_snr, prediction):
    scheduler = DDPMScheduler(T, prediction_type=prediction, **chain)
    scheduler.betas = exact_betas(chain)
    assert torch.allclose(scheduler.betas.float(), DDPMScheduler(T, **chain).betas, rtol=2e-6)
    if zero_snr:
        scheduler.betas = rescale_zero_terminal_snr(scheduler.betas)
    scheduler.alphas_cumprod = torch.cumprod(1.0 - scheduler.betas, 0)
    return scheduler


def exact_betas(chain):
    """The scheduler's, which it computes in float32."""
    if chain["beta_schedule"] == "squaredcos_cap_v2":
        bar = lambda u: math.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2  # noqa: E731
        return torch.tensor(
            [min(1 - bar((i + 1) / T) / bar(i / T), 0.999) for i in range(T)], dtype=torch.float64)
    power = 2 if chain["beta_schedule"] == "scaled_linear" else 1
    ends = [chain[end] ** (1 / power) for end in ("beta_start", "beta_end")]
    return torch.linspace(*ends, T, dtype=torch.float64) ** power


def weights_of(scheduler, t, kind, *values):
    snr = compute_snr_in_double(scheduler, t)
    if kind == "none":
        return torch.ones_like(snr)
    if kind == "p2":
        k, gamma = values
        return 1 / (k + snr) ** gamma
    weights = torch.stack([snr, values[0] * torch.ones_like(snr)], dim=1).min(dim=1)[0]
    if scheduler.config.prediction_type == "epsilon":
        weights = weights / snr
    elif scheduler.config.prediction_type == "v_prediction":
        weights = weights / (snr + 1)
    weights[snr == 0] = 1.0
    return weights


def compute_snr_in_double(scheduler, t):
    bar = scheduler.alphas_cumprod[t]
    snr = bar / (1 - bar)
    in_float = compute_snr(scheduler, t)
    assert torch.allclose(snr.float(), in_float, rtol=1e-5), (snr, in_float)
    return snr


def make_losses(out):
    generator = torch.Generator().manual_seed(3)
    t = torch.tensor([0, 0, 1, 37, 500, 999])
    shape = (len(t), 2, 2, 3)
    levels = torch.randint(0, 256, shape, generator=generator)
    levels[:, 0, 0, 0] = 0
    levels[:, 0, 0, 1] = 255
    x0 = (levels / 255 * 2 - 1).float()
    noise = torch.randn(shape, generator=generator)
    difference = 0.5 * torch.randn(shape, generator=generator)
    sigma = 1.5 * torch.rand(shape, generator=generator) - 0.75
    sample_weights = torch.rand(len(t), generator=generator) + 0.5
    for name, value in dict(t=t, x0=x0, noise=noise, weights=sample_weights).items():
        out.add_float32(name, value)
    x0, noise, sample_weights = x0.double(), noise.double(), sample_weights.double()

    for name, (chain, zero_snr, kind, weighting, learned) in CASES.items():
        scheduler = scheduler_of(chain, zero_snr, kind)
        x_t = scheduler.add_noise(x0, noise, t)
        target = {"epsilon": noise, "sample": x0,
                  "v_prediction": scheduler.get_velocity(x0, noise, t)}[kind]
        # Rounded, so that both sides see the same prediction.
        prediction = torch.cat([target.float() + difference, sigma], 1).double().requires_grad_()
        mean_output, variance_output = prediction.chunk(2, 1)
        weights = weights_of(scheduler, t, *weighting)
        mse = ((target - mean_output) ** 2).mean((1, 2, 3))
        total = weights * mse
        vb = torch.zeros_like(mse)
        if learned:
            vb = bound(scheduler, kind, t, x0, x_t, mean_output.detach(), variance_output)
            total = total + vb
        mean = (sample_weights * total).mean()
        gradient, = torch.autograd.grad(mean, prediction)
        channels = 2 * shape[1] if learned else shape[1]
        out.add_float32(f"{name}.x_t", x_t)
        out.add_float32(f"{name}.prediction", prediction.detach()[:, :channels])
        out.add(f"{name}.loss_weights", weights)
        out.add(f"{name}.mse", mse.detach())
        out.add(f"{name}.vb", vb.detach())
        out.add(f"{name}.mean", [mean.item()])
        out.add(f"{name}.gradient", gradient[:, :channels], digits=9)


def bound(scheduler, kind, t, x0, x_t, output, variance_output):
    """L_t in bits (Nichol and Dhariwal 2021), where the model's mean is the posterior's of the x_0 that
    it predicts."""
    betas, bars = scheduler.betas, scheduler.alphas_cumprod
    befores = torch.cat([torch.ones(1, dtype=torch.float64), bars[:-1]])
    smalls = betas * (1 - befores) / (1 - bars)
    smalls[0] = smalls[1]
    beta, bar, before, small = (v[t].view(-1, 1, 1, 1) for v in (betas, bars, befores, smalls))
    predicted = {"epsilon": lambda: (x_t - (1 - bar).sqrt() * output) / bar.sqrt(),
                 "sample": lambda: output,
                 "v_prediction": lambda: bar.sqrt() * x_t - (1 - bar).sqrt() * output}[kind]()

    def posterior_mean(clean):  # Ho et al. 2020, eq. 7
        return (before.sqrt() * beta * clean + (1 - beta).sqrt() * (1 - before) * x_t) / (1 - bar)

    v = (variance_output + 1) / 2
    std = torch.exp(0.5 * (v * beta.log() + (1 - v) * small.log()))
    mean = posterior_mean(predicted)
    kl = torch.distributions.kl_divergence(
        torch.distributions.Normal(posterior_mean(x0), small.sqrt().expand_as(x0)),
        torch.distributions.Normal(mean, std))
    nll = decoder_nll(x0, mean, std, tanh_cdf)
    return torch.where(t == 0, nll.mean((1, 2, 3)), kl.mean((1, 2, 3))) / math.log(2)


def make_speedit(out):
    """The distribution of what opensora/schedulers/iddpm/speed.py draws: t by p, and its counterpart."""
    for name, chain in dict(linear=LINEAR, scaled_linear=STABLE_DIFFUSION, cosine=COSINE).items():
        bars = torch.cumprod(1.0 - exact_betas(chain), 0)
        deviation = torch.sqrt(1.0 - bars)
        middle = int(np.argmax(np.gradient(deviation.numpy()) < 5e-5)) + 1
        p = torch.tanh(1e6 * (torch.gradient(deviation)[0] - 1e-4)) + 1.5
        p = torch.nn.functional.normalize(p, p=1, dim=0)
        t = torch.arange(T)
        counterpart = torch.where(t < middle, middle - t, t - middle)
        both = (p + torch.zeros(T, dtype=torch.float64).index_add(0, counterpart, p)) / 2

        generator = torch.Generator().manual_seed(4)
        drawn = torch.multinomial(p, 500_000, replacement=True, generator=generator)
        pairs = torch.cat([drawn, counterpart[drawn]])
        bands = torch.bincount(pairs // 50, minlength=20) / len(pairs)
        expected = both.view(20, 50).sum(1)
        assert (bands - expected).abs().max() < 2e-3, (bands, expected)
        out.add(f"speedit_{name}", both, digits=9)


def make_schedulers(folder):
    """What diffusers saves of schedulers: NAME/scheduler_config.json."""
    DDIMScheduler(T, **STABLE_DIFFUSION, prediction_type="v_prediction", rescale_betas_zero_snr=True,
                  timestep_spacing="trailing", clip_sample=False).save_pretrained(folder / "ddim_v")
    DPMSolverMultistepScheduler(500, beta_schedule="linear", beta_start=2e-4, beta_end=0.04).save_pretrained(
        folder / "dpm_500")
    UniPCMultistepScheduler(T, **COSINE, prediction_type="sample").save_pretrained(folder / "unipc_sample")
    FlowMatchEulerDiscreteScheduler().save_pretrained(folder / "flow_match")
    DPMSolverMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction").save_pretrained(
        folder / "dpm_flow")
    DDPMScheduler(T, beta_schedule="sigmoid").save_pretrained(folder / "sigmoid")
    DDPMScheduler(25, trained_betas=[0.01] * 25).save_pretrained(folder / "trained")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="tests", type=pathlib.Path, help="folder of the tests")
    folder = parser.parse_args().out
    out = Records(folder / "diffusion" / "data" / "objectives.txt")
    make_losses(out)
    make_speedit(out)
    out.write()
    make_schedulers(folder / "train" / "data" / "diffusers_schedulers")


if __name__ == "__main__":
    main()
