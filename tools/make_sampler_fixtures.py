#!/usr/bin/env python3
"""Writes tests/diffusion/data/samplers.json: whole sampling loops of diffusers' schedulers.

For each scheduler class, options of its constructor's own signature are drawn at random (seeded); the
loop runs in float32 with a toy denoiser, start and noise that the C++ test writes down in the same way.
Kept are the options, the timesteps and the last x. Combinations that diffusers refuses, whose result is
not finite, or that Kinora leaves out, are printed and counted with their reasons.

Needs torch, numpy, scipy, torchsde and diffusers (0.42 was used). Always writes the same bytes with the same
versions.
"""

import argparse
import collections
import inspect
import json
import logging
import math
import pathlib
import random
import warnings

import diffusers
import torch
from diffusers.utils import logging as diffusers_logging

SHAPE = (2, 3, 2, 2)
ELEMENTS = 24
# They cut the timesteps of some sigmas to whole ones, so that rounding can change one by 1.
CUT = (
    "DPMSolverMultistepScheduler",
    "DPMSolverSinglestepScheduler",
    "UniPCMultistepScheduler",
    "DEISMultistepScheduler",
    "SASolverScheduler",
)
# Where rounding moves the result by more, relative to its largest value, nothing can be compared.
ROUNDING = 3e-5
PATTERNS = [[1.0, -1.0, -1.0], [1.0, 1.0, -1.0, 1.0, -1.0], [-1.0, -1.0, 1.0, 1.0, 1.0, 1.0, -1.0]]
FLOW_MATCH = ("FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler")


def start():
    return torch.tensor([1.4 * math.sin(1.7 * i + 0.3) for i in range(ELEMENTS)]).view(SHAPE)


def noise(evaluation):
    values = [1.4 * math.cos(2.3 * i + 1.1 * evaluation) for i in range(ELEMENTS)]
    return torch.tensor(values).view(SHAPE)


def denoiser(x, t, learned_variance):
    out = 0.4 * torch.cos(1.5 * x + t / 300.0) + 0.25 * x
    if learned_variance:
        out = torch.cat([out, 0.5 + 0.4 * torch.sin(x + t / 200.0)], 1)
    return out


# Values of a parameter, in every class that has it; the first is drawn most often.
VALUES = {
    "num_train_timesteps": [1000, 1000, 400],
    "beta_start": [0.0001, 0.00085],
    "beta_end": [0.02, 0.012],
    "beta_schedule": ["linear", "scaled_linear", "squaredcos_cap_v2"],
    "solver_order": [2, 1, 3],
    "prediction_type": ["epsilon", "sample", "v_prediction"],
    "thresholding": [False, False, True],
    "dynamic_thresholding_ratio": [0.995, 0.9],
    "sample_max_value": [1.0, 1.5],
    "lower_order_final": [True, False],
    "euler_at_final": [False, False, True],
    "use_karras_sigmas": [False, False, False, True],
    "use_exponential_sigmas": [False, False, False, True],
    "use_beta_sigmas": [False, False, False, True],
    "use_lu_lambdas": [False, False, False, True],
    "use_flow_sigmas": [False, False, False, True],
    "flow_shift": [1.0, 3.0],
    "shift": [1.0, 3.0, 0.5],
    "shift_terminal": [None, None, 0.02],
    "use_dynamic_shifting": [False, False, True],
    "time_shift_type": ["exponential", "linear"],
    "final_sigmas_type": ["zero", "sigma_min"],
    "lambda_min_clipped": [-math.inf, -math.inf, -4.0],
    "variance_type": [None, None, "learned_range"],
    "timestep_spacing": ["linspace", "leading", "trailing"],
    "steps_offset": [0, 0, 1],
    "rescale_betas_zero_snr": [False, False, True],
    "clip_sample": [False, True],
    "clip_sample_range": [1.0, 1.3],
    "set_alpha_to_one": [True, False],
    "skip_prk_steps": [True, True, False],
    "predict_x0": [True, True, False],
    "disable_corrector": [[], [], [0], [1, 3]],
    "sigma_min": [None, None, 0.05],
    "sigma_max": [None, None, 60.0],
    "original_inference_steps": [50, 40],
    "timestep_scaling": [10.0, 1.0],
    "stochastic_sampling": [False, False, True],
    "sigma_data": [0.5, 1.0],
    "sigma_schedule": ["karras", "exponential"],
    "rho": [7.0, 5.0],
    "predictor_order": [2, 1, 3, 4],
    "corrector_order": [2, 1, 3, 4],
    "s_noise": [1.0, 1.01],
    "clip_denoised": [True, False],
}

# Where a class has values of its own.
OWN_VALUES = {
    ("DDPMScheduler", "variance_type"): [
        "fixed_small", "fixed_large", "learned_range", "learned", "fixed_small_log", "fixed_large_log"],
    ("DDPMScheduler", "beta_schedule"): [
        "linear", "scaled_linear", "squaredcos_cap_v2", "sigmoid"],
    ("DPMSolverMultistepScheduler", "algorithm_type"): [
        "dpmsolver++", "dpmsolver++", "sde-dpmsolver++", "dpmsolver", "sde-dpmsolver"],
    ("DPMSolverSinglestepScheduler", "algorithm_type"): [
        "dpmsolver++", "dpmsolver++", "sde-dpmsolver++", "dpmsolver"],
    ("EDMDPMSolverMultistepScheduler", "algorithm_type"): ["dpmsolver++", "sde-dpmsolver++"],
    ("DPMSolverMultistepScheduler", "solver_type"): ["midpoint", "heun"],
    ("DPMSolverSinglestepScheduler", "solver_type"): ["midpoint", "heun"],
    ("EDMDPMSolverMultistepScheduler", "solver_type"): ["midpoint", "heun"],
    ("UniPCMultistepScheduler", "solver_type"): ["bh2", "bh1"],
    ("EDMEulerScheduler", "sigma_min"): [0.002, 0.01],
    ("EDMEulerScheduler", "sigma_max"): [80.0, 20.0],
    ("EDMDPMSolverMultistepScheduler", "sigma_min"): [0.002, 0.01],
    ("EDMDPMSolverMultistepScheduler", "sigma_max"): [80.0, 20.0],
    ("DDIMInverseScheduler", "timestep_spacing"): ["leading", "trailing"],
    ("DEISMultistepScheduler", "algorithm_type"): ["deis"],
    ("DEISMultistepScheduler", "solver_type"): ["logrho"],
    ("DEISMultistepScheduler", "use_dynamic_shifting"): [False],
    ("DEISMultistepScheduler", "time_shift_type"): ["exponential"],
    ("SASolverScheduler", "algorithm_type"): ["data_prediction", "data_prediction", "noise_prediction"],
    ("CMStochasticIterativeScheduler", "num_train_timesteps"): [40, 20],
    ("CMStochasticIterativeScheduler", "sigma_min"): [0.002, 0.01],
    ("CMStochasticIterativeScheduler", "sigma_max"): [80.0, 20.0],
    ("DPMSolverMultistepScheduler", "use_dynamic_shifting"): [False],
    ("DPMSolverSinglestepScheduler", "use_dynamic_shifting"): [False],
    ("DPMSolverMultistepScheduler", "time_shift_type"): ["exponential"],
    ("DPMSolverSinglestepScheduler", "time_shift_type"): ["exponential"],
}

# Arguments of step() and set_timesteps() that belong to the method.
CALLS = {
    "DDIMScheduler": {"eta": [0.0, 0.5, 1.0], "use_clipped_model_output": [False, True]},
    "LMSDiscreteScheduler": {"order": [4, 3, 2]},
    "TCDScheduler": {"eta": [0.3, 0.0, 1.0]},
}

# Parameters that are not drawn, and why.
LEFT_OUT_PARAMETERS = {
    "trained_betas": "betas given as numbers take the path of the others",
    "solver_p": "a second scheduler as UniPC's predictor",
    "interpolation_type": "log_linear levels of Euler, which are exponential ones",
    "timestep_type": "continuous timesteps of Euler with v, which are EDM's",
    "invert_sigmas": "flows that count time from noise to data",
    "base_shift": "not read by the scheduler (dynamic_shift has its own test)",
    "max_shift": "not read by the scheduler (dynamic_shift has its own test)",
    "base_image_seq_len": "not read by the scheduler (dynamic_shift has its own test)",
    "max_image_seq_len": "not read by the scheduler (dynamic_shift has its own test)",
    "tau_func": "a function, which no file holds; by itself tau is 1 between timesteps 200 and 800, else 0",
    "noise_sampler_seed": "noise is injected",
}

CLASSES = {
    "DDPMScheduler": 50,
    "DDIMScheduler": 50,
    "DDIMInverseScheduler": 20,
    "PNDMScheduler": 30,
    "DPMSolverMultistepScheduler": 110,
    "DPMSolverSinglestepScheduler": 60,
    "UniPCMultistepScheduler": 80,
    "EulerDiscreteScheduler": 40,
    "EulerAncestralDiscreteScheduler": 25,
    "HeunDiscreteScheduler": 40,
    "LMSDiscreteScheduler": 30,
    "EDMEulerScheduler": 15,
    "EDMDPMSolverMultistepScheduler": 40,
    "FlowMatchEulerDiscreteScheduler": 40,
    "FlowMatchHeunDiscreteScheduler": 8,
    "LCMScheduler": 30,
    "DEISMultistepScheduler": 40,
    "IPNDMScheduler": 5,
    "KDPM2DiscreteScheduler": 25,
    "KDPM2AncestralDiscreteScheduler": 25,
    "DPMSolverSDEScheduler": 25,
    "SASolverScheduler": 60,
    "TCDScheduler": 20,
    "CMStochasticIterativeScheduler": 20,
}


def draw_options(name, rng):
    options = {}
    signature = inspect.signature(getattr(diffusers, name).__init__)
    for parameter in signature.parameters.values():
        if parameter.name == "self" or parameter.kind == inspect.Parameter.VAR_KEYWORD:
            continue
        if parameter.name in LEFT_OUT_PARAMETERS:
            continue
        values = OWN_VALUES.get((name, parameter.name)) or VALUES.get(parameter.name)
        if values is None:
            raise KeyError(f"{name} has a parameter {parameter.name} that this script does not know")
        options[parameter.name] = rng.choice(values)
    if options.get("use_flow_sigmas"):
        options["prediction_type"] = "flow_prediction"
    return options


def reason_to_leave_out(name, o):
    """Combinations that diffusers computes and Kinora does not."""
    sigmas = [o.get(f"use_{s}") for s in ("karras_sigmas", "exponential_sigmas", "beta_sigmas", "lu_lambdas")]
    if o.get("use_flow_sigmas") and any(sigmas):
        return "flow sigmas together with those of a chain's spacing"
    if o.get("use_flow_sigmas") and o.get("final_sigmas_type") == "sigma_min":
        return "flow sigmas that end at a chain's smallest sigma"
    if o.get("use_lu_lambdas") and any(sigmas[:3]):
        return "two spacings of sigmas at once"
    if o.get("rescale_betas_zero_snr") and any(sigmas):
        return "a table of sigmas that does not ascend, so that rounding decides the first timestep"
    if o.get("beta_schedule") == "sigmoid":
        return "sigmoid betas"
    if o.get("algorithm_type") == "sde-dpmsolver" and o["solver_order"] == 3:
        return "an order that sde-dpmsolver does not have, where it is not reached"
    if o.get("algorithm_type") == "noise_prediction" and o["thresholding"]:
        return "thresholds of SA-Solver on noise, which diffusers takes by a timestep that it does not have"
    if name == "UniPCMultistepScheduler" and o["use_dynamic_shifting"] and not o["use_flow_sigmas"]:
        return "dynamic shift without flow sigmas"
    return None


def defaults_of(name):
    parameters = inspect.signature(getattr(diffusers, name).__init__).parameters.values()
    skipped = ("self", *LEFT_OUT_PARAMETERS)
    return {
        p.name: p.default
        for p in parameters
        if p.name not in skipped and p.default is not inspect.Parameter.empty
    }


def as_json(value):
    return None if isinstance(value, float) and math.isinf(value) else value


class LeftOut(Exception):
    """A reason that shows only when the scheduler has its timesteps."""


def perturbed(values, pattern):
    """Values moved by about half a unit of float32's last place, up and down."""
    signs = torch.tensor(PATTERNS[pattern]).repeat(values.numel())[: values.numel()]
    return values * (1.0 + 6e-8 * signs.view(values.shape))


def run(name, options, steps, call, dtype=torch.float32, like=None, pattern=0):
    """Timesteps and the last x. like: timesteps to show to the denoiser of a run whose tables, start
    and outputs are perturbed."""
    scheduler = getattr(diffusers, name)(**options)
    extra = {"mu": call["mu"]} if "mu" in call else {}
    if like is not None and hasattr(scheduler, "alphas_cumprod"):
        scheduler.alphas_cumprod = perturbed(scheduler.alphas_cumprod, pattern)
    scheduler.set_timesteps(steps, **extra)
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)  # as pipelines do; else repeated timesteps confuse the search
    if options.get("prediction_type") == "epsilon" and options.get("rescale_betas_zero_snr"):
        visited = scheduler.timesteps.clamp(0, len(scheduler.alphas_cumprod) - 1).long()
        if (scheduler.alphas_cumprod[visited] == 0).any():
            raise LeftOut("predicted noise where there is no signal")
    learned = str(options.get("variance_type")).startswith("learned")
    arguments = {k: v for k, v in call.items() if k != "mu"}
    x = start().to(dtype) * getattr(scheduler, "init_noise_sigma", 1.0)
    if like is not None:
        x = perturbed(x, pattern)
    shown_times = []
    evaluation = 0
    module = inspect.getmodule(type(scheduler))
    module.randn_tensor = lambda *_, **__: noise(evaluation)
    if name == "DPMSolverSDEScheduler":
        scheduler.noise_sampler = lambda *_: noise(evaluation)
    timesteps = scheduler.timesteps
    if name == "IPNDMScheduler":
        # Of the first step, where there is no signal, it makes 0 / 1e-8.
        timesteps = timesteps[1:]
        scheduler.set_begin_index(1)
    for t in timesteps:
        time = float(t)
        if abs(time) > 1e9:
            raise LeftOut("timesteps that are not finite")
        if options.get("use_flow_sigmas"):
            time = 1000.0 * float(scheduler.sigmas[evaluation])  # not cut to a whole number
        elif name in FLOW_MATCH:
            time = 1000.0 * time / options["num_train_timesteps"]
        shown_times.append(time)
        time = time if like is None else like[evaluation]
        shown = scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else x
        output = denoiser(shown, time, learned)
        output = output if like is None else perturbed(output, pattern)
        x = scheduler.step(output, t, x, **arguments).prev_sample
        evaluation += 1
    return shown_times, x


def rounded(values, digits):
    return [float(f"{v:.{digits}g}") for v in values]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="tests/diffusion/data/samplers.json", type=pathlib.Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    diffusers_logging.set_verbosity(logging.CRITICAL)
    torch.set_num_threads(1)

    defaults = {name: defaults_of(name) for name in CLASSES}
    rng = random.Random(20240)
    cases = []
    left_out = collections.Counter()
    seen = set()
    for name, count in CLASSES.items():
        kept = 0
        while kept < count:
            options = draw_options(name, rng)
            steps = rng.choice([4, 5, 6, 8, 9, 10, 12, 16, 20])
            call = {k: rng.choice(v) for k, v in CALLS.get(name, {}).items()}
            if options.get("use_dynamic_shifting"):
                call["mu"] = rng.choice([0.8, 1.5])
            key = json.dumps([name, options, steps, call], sort_keys=True)
            if key in seen:
                count -= 1  # the space may be small
                continue
            seen.add(key)
            reason = reason_to_leave_out(name, options)
            if reason is None:
                try:
                    times, x = run(name, options, steps, call)
                    if not torch.isfinite(x).all():
                        reason = "the result is not finite"
                    elif x.abs().max() > 1e4:
                        reason = "the result exceeds 1e4"
                    else:
                        exact = run(name, options, steps, call, torch.float64)[1]
                        near = [
                            run(name, options, steps, call, like=times, pattern=p)
                            for p in range(len(PATTERNS))
                        ]
                        bound = ROUNDING * max(1.0, float(x.abs().max()))
                        shift = max(abs(a - b) for n in near for a, b in zip(times, n[0]))
                        if max((other - x).abs().max() for other in (exact, *(n[1] for n in near))) > bound:
                            reason = "float32 rounding of diffusers' tables or sums changes the result by 3e-5"
                        elif shift > 1 or (shift > 3e-4 and name not in CUT):
                            reason = "float32 rounding of diffusers' tables changes the timesteps"
                except LeftOut as error:
                    reason = str(error)
                except Exception as error:  # what a user of diffusers would meet
                    reason = f"diffusers refuses: {type(error).__name__}: {str(error)[:90]}"
            if reason is not None:
                left_out[f"{name}: {reason}"] += 1
                continue
            case = {
                "class": name,
                "steps": steps,
                "options": {
                    k: as_json(v) for k, v in options.items() if v != defaults[name].get(k, ...)
                },
                "call": call,
                "t": rounded(times, 7),
                "x": rounded(x.double().flatten().tolist(), 6),
            }
            cases.append(case)
            kept += 1
    reasons = dict(sorted(left_out.items()))
    for reason, times in reasons.items():
        print(f"left out {times:4d} x {reason}")
    for parameter, reason in LEFT_OUT_PARAMETERS.items():
        print(f"left out parameter {parameter}: {reason}")
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    header = json.dumps({"diffusers": diffusers.__version__, "torch": torch.__version__})
    filled = json.dumps({c: {k: as_json(v) for k, v in d.items()} for c, d in defaults.items()})
    arguments.out.write_text(
        f'{{"versions":{header},\n"defaults":{filled},\n"left_out":{json.dumps(reasons)},\n'
        f'"left_out_parameters":{json.dumps(LEFT_OUT_PARAMETERS)},\n"cases":[\n{lines}\n]}}\n'
    )
    print(f"{len(cases)} cases, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
