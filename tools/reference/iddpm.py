"""Training objectives and the training loop, in plain PyTorch, given timesteps and noise.

IDDPM: Nichol and Dhariwal, "Improved Denoising Diffusion Probabilistic Models" (2021), as DiT uses it:
1000 linear betas, noise prediction, variance learned as a mix of its two bounds, hybrid loss.
Rectified flow: Liu et al. (2023), in the direction of Esser et al. (2024): t = 0 is data, 1 is noise.
"""

import math

import torch


class Schedule:
    """Constants of the 1000-step linear schedule (Ho et al. 2020, section 4), in float64."""

    def __init__(self, steps=1000):
        scale = 1000 / steps
        betas = torch.linspace(scale * 1e-4, scale * 0.02, steps, dtype=torch.float64)
        alphas = 1 - betas
        self.steps = steps
        self.betas = betas
        self.alpha_bar = alphas.cumprod(0)
        self.alpha_bar_prev = torch.cat([torch.ones(1, dtype=torch.float64), self.alpha_bar[:-1]])
        # q(x_{t-1} | x_t, x_0): Ho et al. 2020, equations 6 and 7.
        self.posterior_variance = betas * (1 - self.alpha_bar_prev) / (1 - self.alpha_bar)
        # It is 0 at t = 0; its logarithm takes the next value instead (Nichol and Dhariwal's code).
        clipped = torch.cat([self.posterior_variance[1:2], self.posterior_variance[1:]])
        self.posterior_log_variance = clipped.log()
        self.posterior_x0 = betas * self.alpha_bar_prev.sqrt() / (1 - self.alpha_bar)
        self.posterior_xt = alphas.sqrt() * (1 - self.alpha_bar_prev) / (1 - self.alpha_bar)


def at(constants, t, like):
    """constants[t] shaped to multiply `like` [B, ...], in its dtype."""
    picked = constants.to(like.device)[t.long()].to(like.dtype)
    return picked.reshape(-1, *[1] * (like.dim() - 1))


def add_noise(schedule, x0, t, noise):
    signal = at(schedule.alpha_bar.sqrt(), t, x0)
    return signal * x0 + at((1 - schedule.alpha_bar).sqrt(), t, x0) * noise


def mean_flat(x):
    return x.flatten(1).mean(1)


def normal_kl(mean1, log_var1, mean2, log_var2):
    """KL(N1 || N2) in nats."""
    ratio = torch.exp(log_var1 - log_var2)
    return 0.5 * (log_var2 - log_var1 + ratio + (mean1 - mean2) ** 2 * torch.exp(-log_var2) - 1)


def normal_cdf(x):
    """tanh approximation, the one that the published loss uses."""
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def discretized_log_likelihood(x, mean, log_scale):
    """log P of the 1/127.5 wide bin around x; the outermost bins reach to infinity."""
    inverse = torch.exp(-log_scale)
    upper = normal_cdf(inverse * (x - mean + 1 / 255))
    lower = normal_cdf(inverse * (x - mean - 1 / 255))
    log_upper = upper.clamp(min=1e-12).log()
    log_above = (1 - lower).clamp(min=1e-12).log()
    log_inside = (upper - lower).clamp(min=1e-12).log()
    return torch.where(x < -0.999, log_upper, torch.where(x > 0.999, log_above, log_inside))


def hybrid_terms(schedule, output, x0, t, noise):
    """Per-sample terms [B] of the hybrid loss: mse (of the noise), vb (bits a dimension), loss.

    output [B, 2C, ...]: predicted noise, then the mixing values v. Only v learns from vb: the noise
    enters the mean of vb detached. The two terms are added with weight one, as DiT does.
    """
    x_t = add_noise(schedule, x0, t, noise)
    eps, v = output.chunk(2, dim=1)
    mse = mean_flat((noise - eps) ** 2)

    low = at(schedule.posterior_log_variance, t, x0)
    high = at(schedule.betas.log(), t, x0)
    fraction = (v + 1) / 2
    log_variance = fraction * high + (1 - fraction) * low

    a = at(schedule.alpha_bar, t, x0)
    predicted_x0 = (x_t - (1 - a).sqrt() * eps.detach()) / a.sqrt()
    coefficient_x0 = at(schedule.posterior_x0, t, x0)
    coefficient_xt = at(schedule.posterior_xt, t, x0)
    true_mean = coefficient_x0 * x0 + coefficient_xt * x_t
    mean = coefficient_x0 * predicted_x0 + coefficient_xt * x_t

    kl = mean_flat(normal_kl(true_mean, low, mean, log_variance)) / math.log(2)
    nll = -mean_flat(discretized_log_likelihood(x0, mean, 0.5 * log_variance)) / math.log(2)
    vb = torch.where(t.long() == 0, nll, kl)
    return {"mse": mse, "vb": vb, "loss": mse + vb}


def iddpm_loss(schedule, model, x0, t, noise, labels):
    x_t = add_noise(schedule, x0, t, noise)
    return hybrid_terms(schedule, model(x_t, t.to(x0.dtype), labels), x0, t, noise)


def flow_loss(model, x0, t, noise, labels):
    """Velocity noise - x0 on the line x_t = (1 - t) x0 + t noise. Per-sample terms [B]."""
    weight = t.to(x0.dtype).reshape(-1, *[1] * (x0.dim() - 1))
    x_t = (1 - weight) * x0 + weight * noise
    return {"loss": mean_flat((model(x_t, t.to(x0.dtype), labels) - (noise - x0)) ** 2)}


def train(model, loss_of_step, steps, *, lr, betas, weight_decay, clip, ema_decay):
    """AdamW on loss_of_step(step), global-norm clipping, EMA that starts at the first weights.

    Returns losses, gradient norms before clipping, and the EMA by parameter name.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    ema = {name: p.detach().clone() for name, p in parameters.items()}
    optimizer = torch.optim.AdamW(
        parameters.values(), lr=lr, betas=betas, eps=1e-8, weight_decay=weight_decay)
    losses, norms = [], []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of_step(step)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), clip)
        optimizer.step()
        with torch.no_grad():
            for name, p in parameters.items():
                ema[name].lerp_(p, 1 - ema_decay)
        losses.append(loss.item())
        norms.append(norm.item())
    return losses, norms, ema
