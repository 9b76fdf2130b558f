"""The rectified flow of Open-Sora 1.2, with t, noise and the frames to be noised given.

Times are in 0 (data) .. 1 (noise); the published code counts them in thousandths. The model learns the
velocity towards the data, data - noise, in the first half of its channels; the other half is ignored.
"""

import torch


def logit_normal(normal_draws, mean=0.0, std=1.0):
    """Draws of N(0, 1) -> times; with mean 0 and std 1 this is what was published."""
    return torch.sigmoid(mean + std * normal_draws)


def latent_frames(num_frames):
    """As published: 17 frames make 5 latent ones, the rest is not counted; an image makes one.
    All samples are of the first one's kind."""
    return torch.ones_like(num_frames) if num_frames[0] == 1 else num_frames // 17 * 5


def transform(t, height, width, num_frames, scale=1.0):
    """More noise for larger clips, relative to an image of 512 x 512 pixels. All [B]; num_frames before
    encoding."""
    ratio = scale * (height * width / 512**2).sqrt() * latent_frames(num_frames).sqrt()
    return ratio * t / (1 + (ratio - 1) * t)


def add_noise(x0, noise, t):
    """[B, C, T, H, W], t [B]"""
    t = t.view(-1, 1, 1, 1, 1)
    return (1 - t) * x0 + t * noise


def noised(x0, noise, t, frame_mask=None):
    """x_t; frames [B, T] that are not in the mask stay data."""
    x_t = add_noise(x0, noise, t)
    return x_t if frame_mask is None else torch.where(frame_mask[:, None, :, None, None], x_t, x0)


def loss(output, x0, noise, frame_mask=None):
    """Mean square over the elements of the noised frames. output [B, 2 C, T, H, W] -> [B]"""
    velocity = output.chunk(2, dim=1)[0]
    error = (velocity - (x0 - noise)).square().mean(dim=(1, 3, 4))  # [B, T]
    if frame_mask is None:
        return error.mean(dim=1)
    return (error * frame_mask).sum(dim=1) / frame_mask.sum(dim=1)


def sampling_times(steps, height, width, num_frames):
    """-> [steps, B]; the last step goes to 0"""
    times = torch.tensor([1 - i / steps for i in range(steps)], dtype=height.dtype)
    return torch.stack([transform(t.expand_as(height), height, width, num_frames) for t in times])


def step(z, velocity, t, t_next):
    """One Euler step towards the data; velocity: guided, the first half of the channels."""
    return z + velocity * (t - t_next).view(-1, 1, 1, 1, 1)


def guided(conditional, unconditional, scale):
    return unconditional + scale * (conditional - unconditional)
