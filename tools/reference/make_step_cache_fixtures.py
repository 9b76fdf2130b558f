#!/usr/bin/env python3
"""Writes tests/models/data/step_cache.safetensors: drawings with step caches, in float64, of models that
have formula.py's weights. Wants torch and diffusers.

flux_first_block, flux_pab, wan_first_block and wan_pab are diffusers' own caches (FirstBlockCacheConfig,
PyramidAttentionBroadcastConfig). flux_tea follows the published TeaCache for Flux, and dit_* and stdit3_*
are loops written by hand here, on the reference models of this folder.

  CASE.noise      [B, C, (T,) H, W]: where Euler's method begins
  CASE.samples    [steps, ...]: what it has after each step
  CASE.computed   I64 [steps]: whether the blocks behind the first were computed; of pab a bit each for
                  attention in space, in time, to texts, and MLPs
  CASE.text, CASE.pooled, CASE.text_lengths, CASE.labels, CASE.fps, ...: conditions

Of the metadata, `CASE` is JSON: the model's config and the cache's.
"""

import json
import pathlib

import diffusers
import torch
from diffusers import FirstBlockCacheConfig, PyramidAttentionBroadcastConfig
from diffusers.hooks import apply_first_block_cache, apply_pyramid_attention_broadcast

import dit
import formula
import make_mmdit_fixtures
import make_wan_fixtures
import stdit3
import tensor_file
import video_layers

PATH = pathlib.Path(__file__).resolve().parents[2] / "tests/models/data/step_cache.safetensors"
STEPS = 10
TIMES = [1 - step / STEPS for step in range(STEPS + 1)]
LOW, HIGH = 0.15, 0.95  # noise levels within which pab leaves anything out
FLUX_POLYNOMIAL = [4.98651651e+02, -2.83781631e+02, 5.58554382e+01, -3.82021401e+00, 2.64230861e-01]


def draw(velocity, noise, computed_of):
    """Euler's method on a flow; computed_of() says of the last evaluation what was computed."""
    x, samples, computed = noise, [], []
    for now, next_ in zip(TIMES, TIMES[1:]):
        with torch.no_grad():
            x = x + (next_ - now) * velocity(x, torch.full((len(x),), now, dtype=torch.float64))
        samples.append(x)
        computed.append(computed_of())
    return {"noise": noise, "samples": torch.stack(samples), "computed": torch.tensor(computed)}


class Calls:
    """Whether a module was called since it was last asked."""

    def __init__(self, module):
        self.was_called = False
        module.register_forward_hook(self.note)

    def note(self, *_):
        self.was_called = True

    def __call__(self):
        was_called, self.was_called = self.was_called, False
        return int(was_called)


# ---- diffusers' own ----

def flux():
    config = make_mmdit_fixtures.flux()
    model = formula.fill(diffusers.FluxTransformer2DModel(**config)).eval()
    text = formula.values("text", [1, 5, config["joint_attention_dim"]]) * 2
    pooled = formula.values("pooled", [1, config["pooled_projection_dim"]]) * 2
    noise = formula.values("noise", [1, 3, 6, 10]) * 2

    def velocity(x, t):
        with model.cache_context("all"):
            return make_mmdit_fixtures.run_flux(model, x, t, text, pooled, None, None)

    return model, config, velocity, noise, {"text": text, "pooled": pooled}


def wan():
    config = make_wan_fixtures.config()
    model = formula.fill(diffusers.WanTransformer3DModel(**config)).eval()
    text = formula.values("text", [1, 5, config["text_dim"]]) * 2
    filled = torch.cat([text, text.new_zeros(1, make_wan_fixtures.TEXT_TOKENS - 5, text.shape[2])], 1)
    noise = formula.values("noise", [1, 3, 3, 6, 10]) * 2

    def velocity(x, t):
        with model.cache_context("all"):
            return model(x, t * 1000, filled).sample

    return model, config, velocity, noise, {"text": text, "text_lengths": torch.tensor([5])}


def of_diffusers(make, kind, **options):
    model, config, velocity, noise, conditions = make()
    state = {}

    def told(x, t):
        state["t"] = 1000 * t[0].item()
        return velocity(x, t)

    is_flux = "axes_dims_rope" in config
    blocks = model.transformer_blocks if is_flux else model.blocks
    cache = {"kind": kind}
    if kind == "first_block":
        computed_of = Calls(blocks[1].norm1)
        apply_first_block_cache(model, FirstBlockCacheConfig(threshold=options["threshold"]))
        cache |= options
    else:
        space = Calls(blocks[0].attn.to_q if is_flux else blocks[0].attn1.to_q)
        texts = (lambda: 0) if is_flux else Calls(blocks[0].attn2.to_q)
        computed_of = lambda: space() + 4 * texts()  # noqa: E731
        levels = (1000 * LOW, 1000 * HIGH)
        apply_pyramid_attention_broadcast(model, PyramidAttentionBroadcastConfig(
            spatial_attention_block_skip_range=options["space"],
            cross_attention_block_skip_range=None if is_flux else options["texts"],
            spatial_attention_timestep_skip_range=levels, cross_attention_timestep_skip_range=levels,
            current_timestep_callback=lambda: state["t"]))
        ranges = [options["space"] / STEPS, 0, 0 if is_flux else options["texts"] / STEPS, 0]
        cache |= {"ranges": ranges, "interval": [LOW, HIGH]}
    result = draw(told, noise, computed_of)
    return result | conditions, {"architecture": "flux" if is_flux else "wan", "model": config, "cache": cache,
                                 "shapes": {k: list(v.shape) for k, v in model.named_parameters()}}


# ---- by hand ----

class Skipper:
    """Has blocks leave themselves out. first_norm(x, args): what the first block reads. order: what was
    computed last goes on as a polynomial in the noise level, fitted through one evaluation more, as far as these
    lie apart."""

    def __init__(self, blocks, first_norm, kind, threshold, polynomial=(), order=0):
        self.first_norm, self.kind, self.threshold, self.polynomial = first_norm, kind, threshold, polynomial
        self.order, self.evaluation, self.sum, self.watched = order, -1, 0.0, None
        self.levels, self.all_watched, self.residuals = [], [], []
        for number, block in enumerate(blocks):
            block.forward = self.around(block.forward, number == 0, number == len(blocks) - 1)

    def fitted(self, values):
        """Solves for the polynomial's coefficients, and evaluates it."""
        count = min(self.order + 1, len(values))
        levels = torch.tensor(self.levels[-count:])
        powers = torch.linalg.inv(torch.vander(levels, increasing=True))
        farthest = levels[-1] - (levels[0] - levels[-1])  # levels fall
        now = max(TIMES[self.evaluation], farthest.item()) ** torch.arange(count) @ powers
        return sum(share * value for share, value in zip(now, values[-count:]))

    def decide(self, watched):
        """The sample that changes most decides for all."""
        reuses = False
        if self.residuals and (self.kind == "first_block" or self.evaluation < STEPS - 1):
            dims = tuple(range(1, watched.dim()))
            before = self.fitted(self.all_watched) if self.kind == "first_block" else self.watched
            change = ((watched - before).abs().mean(dims) / before.abs().mean(dims)).max().item()
            if self.kind == "first_block":
                reuses = change <= self.threshold
            else:
                self.sum += sum(c * change ** p for p, c in enumerate(reversed(self.polynomial or [1, 0])))
                reuses = self.sum < self.threshold
        if not reuses:
            self.sum = 0.0
            self.levels.append(TIMES[self.evaluation])
            self.all_watched.append(watched)
        self.watched = watched
        self.computes = not reuses

    def around(self, forward, is_first, is_last):
        def run(x, *args):
            if is_first:
                self.evaluation += 1
                self.begin = x
                if self.kind == "tea":
                    self.decide(self.first_norm(x, args))
                else:
                    self.begin = forward(x, *args)
                    self.decide(self.begin - x)
            if is_first and self.kind == "first_block":
                x = self.begin
            elif self.computes:
                x = forward(x, *args)
            if is_last:
                if self.computes:
                    self.residuals.append(x - self.begin)
                else:
                    x = self.begin + self.fitted(self.residuals)
            return x
        return run

    def __call__(self):
        return int(self.computes)


class Broadcast:
    """Has modules give again what they gave within a range of noise levels."""

    def __init__(self, ranges):
        self.ranges, self.level, self.computed_at, self.reuses = ranges, None, [None] * 4, [False] * 4

    def begin(self, level):
        for kind, width in enumerate(self.ranges):
            last = self.computed_at[kind]
            self.reuses[kind] = (LOW <= level <= HIGH and last is not None
                                 and abs(level - last) < width - 1e-6)
            if not self.reuses[kind]:
                self.computed_at[kind] = level

    def wrap(self, module, kind):
        forward, kept = module.forward, {}

        def run(*args):
            if not self.reuses[kind]:
                kept["result"] = forward(*args)
            return kept["result"]
        module.forward = run

    def __call__(self):
        return sum(int(not reuses) << kind for kind, reuses in enumerate(self.reuses))


def small_dit():
    config = dit.ModelConfig(height=8, width=12, in_channels=3, patch=2, hidden=16, depth=4, heads=2,
                             num_classes=5, learn_sigma=False, time_scale=1000.0)
    model = formula.fill(dit.DiT(config)).eval()
    model.pos_embed.data = dit.sincos_2d(config.hidden, *config.grid).float()[None].double()
    labels = torch.tensor([3, 1])
    noise = formula.values("noise", [2, 3, 8, 12]) * 2
    noise[1] *= 1.5
    first = model.blocks[0]

    def first_norm(x, args):
        shift, scale = first.adaLN_modulation(args[0]).chunk(6, dim=1)[:2]
        return dit.modulate(first.norm1(x), shift, scale)

    return (model, list(model.blocks), first_norm, lambda x, t: model(x, t, labels), noise, {"labels": labels},
            {"architecture": "dit", "depth": 4, "hidden": 16, "heads": 2})


def small_stdit3():
    config = video_layers.VideoConfig(frames=3, height=6, width=8, in_channels=3, patch=2, patch_frames=1, hidden=24,
                                      depth=2, heads=2, text_channels=10, text_tokens=5, learn_sigma=False,
                                      time_scale=1000.0, qk_norm=True)
    model = stdit3.STDiT3(config).eval()
    freqs = model.rope.freqs.detach().double().clone()
    formula.fill(model).rope.freqs.data = freqs
    conditions = {"text": formula.values("text", [1, 5, 10]) * 2, "text_lengths": torch.tensor([5]),
                  "null_text": torch.tensor([False]), "fps": torch.tensor([8.0]).double(),
                  "height": torch.tensor([6.0]).double(), "width": torch.tensor([8.0]).double()}
    noise = formula.values("noise", [1, 3, 3, 6, 8]) * 2
    first = model.spatial_blocks[0]
    blocks = [block for pair in zip(model.spatial_blocks, model.temporal_blocks) for block in pair]

    def first_norm(x, args):
        shift, scale = video_layers.modulation(first.scale_shift_table, args[0])[:2]
        return video_layers.modulate(first.norm1(x), shift, scale)

    given = {name: value for name, value in conditions.items() if name != "null_text"}
    return (model, blocks, first_norm, lambda x, t: model(x, t, conditions), noise, given,
            {"architecture": "stdit3", "depth": 2, "hidden": 24, "heads": 2})


def by_hand(make, **cache):
    model, blocks, first_norm, velocity, noise, conditions, config = make()
    if cache["kind"] == "pab":
        kept = Broadcast(cache["ranges"])
        for number, block in enumerate(blocks):
            for module, kind in ((block.attn, number % 2), (block.cross_attn, 2), (block.mlp, 3)):
                kept.wrap(module, kind)

        def told(x, t):
            kept.begin(t[0].item())
            return velocity(x, t)
        result = draw(told, noise, kept)
        cache = cache | {"interval": [LOW, HIGH]}
    else:
        result = draw(velocity, noise, Skipper(blocks, first_norm, **cache))
    return result | conditions, {"architecture": config["architecture"], "model": config, "cache": cache}


def flux_tea(threshold):
    """As TeaCache4FLUX has it: the whole stack, from image tokens to image tokens."""
    model, config, velocity, noise, conditions = flux()
    first = model.transformer_blocks[0]
    state = {"count": 0, "sum": 0.0}
    steps = STEPS
    original = [block.forward for block in [*model.transformer_blocks, *model.single_transformer_blocks]]
    last = len(original) - 1

    def around(number, forward):
        def run(*args, **kwargs):
            hidden = kwargs["hidden_states"]
            if number == 0:
                modulated = first.norm1(hidden, emb=kwargs["temb"])[0]
                if state["count"] in (0, steps - 1):
                    state["computes"], state["sum"] = True, 0.0
                else:
                    change = ((modulated - state["previous"]).abs().mean() / state["previous"].abs().mean()).item()
                    state["sum"] += sum(c * change ** p for p, c in enumerate(reversed(FLUX_POLYNOMIAL)))
                    state["computes"] = state["sum"] >= threshold
                    if state["computes"]:
                        state["sum"] = 0.0
                state["previous"], state["begin"] = modulated, hidden
                state["count"] += 1
            out = forward(*args, **kwargs) if state["computes"] else (kwargs["encoder_hidden_states"], hidden)
            if number == last:
                if state["computes"]:
                    state["residual"] = out[1] - state["begin"]
                else:
                    out = (out[0], state["begin"] + state["residual"])
            return out
        return run

    for number, block in enumerate([*model.transformer_blocks, *model.single_transformer_blocks]):
        block.forward = around(number, original[number])
    result = draw(velocity, noise, lambda: int(state["computes"]))
    return result | conditions, {"architecture": "flux", "model": config,
                                 "cache": {"kind": "tea", "threshold": threshold, "polynomial": FLUX_POLYNOMIAL},
                                 "shapes": {k: list(v.shape) for k, v in model.named_parameters()}}


def main():
    torch.set_num_threads(1)
    cases = {
        "flux_first_block": of_diffusers(flux, "first_block", threshold=0.5),
        "flux_pab": of_diffusers(flux, "pab", space=2),
        "flux_tea": flux_tea(0.35),
        "wan_first_block": of_diffusers(wan, "first_block", threshold=0.3),
        "wan_pab": of_diffusers(wan, "pab", space=2, texts=3),
        "dit_first_block": by_hand(small_dit, kind="first_block", threshold=0.9),
        "dit_first_block_line": by_hand(small_dit, kind="first_block", threshold=0.9, order=1),
        "dit_tea": by_hand(small_dit, kind="tea", threshold=0.5),
        "dit_tea_parabola": by_hand(small_dit, kind="tea", threshold=0.8, order=2),
        "stdit3_first_block": by_hand(small_stdit3, kind="first_block", threshold=0.5),
        "stdit3_tea_line": by_hand(small_stdit3, kind="tea", threshold=0.4, order=1),
        "stdit3_tea": by_hand(small_stdit3, kind="tea", threshold=0.4, polynomial=[2.0, 0.5, 0.01]),
        "stdit3_pab": by_hand(small_stdit3, kind="pab", ranges=[0.2, 0.3, 0.5, 0.2]),
    }
    tensors, metadata = {}, {"kinora_fixture": "step_cache", "version": "1"}
    for case, (values, about) in cases.items():
        print(case, values["computed"].tolist())
        tensors |= {f"{case}.{name}": value if value.dtype == torch.int64 else value.float()
                    for name, value in values.items()}
        metadata[case] = json.dumps(about, separators=(",", ":"))
    tensor_file.save(PATH, tensors, metadata)
    print(PATH.name, PATH.stat().st_size, "bytes,", len(tensors), "tensors")


if __name__ == "__main__":
    main()
