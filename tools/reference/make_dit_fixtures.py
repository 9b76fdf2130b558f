"""Makes the fixtures of the DiT family: outputs, gradients, 50 optimizer steps, loss terms.

    python tools/reference/make_dit_fixtures.py           writes them
    python tools/reference/make_dit_fixtures.py --check   makes them again and compares

Results are computed in float64 from float32 weights and inputs, then rounded to float32. The script
also runs all of it in float32 and prints how far that lands: what rounding alone may cost a test.
README.md beside this file has the format.
"""

import argparse
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path

import torch

import dit
import iddpm
import tensor_file

TESTS = Path(__file__).resolve().parents[2] / "tests"
VERSION = "1"
TOLERANCE = 1e-6  # of a tensor's norm, between two makings: another CPU sums in another order

CONFIGS = {
    # Latents as the paper's: square, learned variance.
    "dit_latent": dit.ModelConfig(height=8, width=8, in_channels=4, patch=2, hidden=16, depth=2, heads=2,
                                mlp_ratio=2, num_classes=10),
    # Wide pixels, a large patch, flow time.
    "dit_pixel_flow": dit.ModelConfig(height=8, width=12, in_channels=3, patch=4, hidden=16, depth=1,
                                    heads=1, num_classes=5, learn_sigma=False, time_scale=1000.0),
}
TRAINING = {"steps": 50, "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01,
            "clip": 1.0, "ema_decay": 0.99}
POOL, TRAIN_BATCH = 8, 2


def normal(rng, *shape, scale=1.0):
    count = torch.Size(shape).numel()
    return torch.tensor([rng.gauss(0, scale) for _ in range(count)], dtype=torch.float32).reshape(shape)


def integers(rng, top, *shape):
    count = torch.Size(shape).numel()
    return torch.tensor([rng.randrange(top) for _ in range(count)]).reshape(shape)


def random_weights(rng, config):
    """Nothing stays at zero, so that every gradient is worth comparing."""
    model = dit.DiT(config)
    weights = {}
    for name, parameter in model.state_dict().items():
        if name == "pos_embed":
            weights[name] = parameter.clone()
        elif parameter.dim() == 1:
            weights[name] = normal(rng, *parameter.shape, scale=0.1)
        elif "embedding_table" in name:
            weights[name] = normal(rng, *parameter.shape, scale=0.5)
        else:
            fan_in = parameter[0].numel()
            weights[name] = normal(rng, *parameter.shape, scale=0.9 * fan_in**-0.5)
    return weights


def build(config, weights, dtype):
    model = dit.DiT(config).to(dtype)
    model.load_state_dict(weights)
    return model


def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def forward_inputs(rng, config, t):
    shape = (len(t), config.in_channels, config.height, config.width)
    labels = integers(rng, config.label_rows, len(t))
    labels[-1] = config.num_classes  # the null class
    return {"forward.x_t": normal(rng, *shape), "forward.t": torch.tensor(t), "forward.labels": labels}


def loss_inputs(rng, config, t):
    shape = (len(t), config.in_channels, config.height, config.width)
    labels = integers(rng, config.label_rows, len(t))
    labels[0] = config.num_classes
    return {"loss.x0": normal(rng, *shape), "loss.noise": normal(rng, *shape),
            "loss.t": torch.tensor(t, dtype=torch.float32), "loss.labels": labels}


def train_inputs(rng, config):
    shape = (POOL, config.in_channels, config.height, config.width)
    batches = (TRAINING["steps"], TRAIN_BATCH)
    t = 1 + integers(rng, 999, *batches)  # never 0: see loss_terms
    return {"train.x0_pool": normal(rng, *shape), "train.noise_pool": normal(rng, *shape),
            "train.x0_index": integers(rng, POOL, *batches),
            "train.noise_index": integers(rng, POOL, *batches),
            "train.t": t.float(), "train.labels": integers(rng, config.label_rows, *batches)}


def floating(inputs, dtype):
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}


def compute(config, weights, inputs, dtype):
    """Every result of the file, in `dtype`."""
    x = floating(inputs, dtype)
    model = build(config, weights, dtype)
    schedule = iddpm.Schedule()
    results = {}
    with torch.no_grad():
        results["forward.output"] = model(x["forward.x_t"], x["forward.t"], x["forward.labels"])

    batch = (x["loss.x0"], x["loss.t"], x["loss.noise"], x["loss.labels"])
    if config.learn_sigma:
        terms = iddpm.iddpm_loss(schedule, model, *batch)
    else:
        terms = iddpm.flow_loss(model, *batch)
    for name, values in terms.items():
        results[f"loss.{name}"] = values.detach()
    for name, grad in gradients(model, terms["loss"].mean()).items():
        results[f"grad.{name}"] = grad

    if "train.t" in inputs:
        def loss_of_step(step):
            x0 = x["train.x0_pool"][inputs["train.x0_index"][step]]
            noise = x["train.noise_pool"][inputs["train.noise_index"][step]]
            t, labels = x["train.t"][step], inputs["train.labels"][step]
            return iddpm.iddpm_loss(schedule, model, x0, t, noise, labels)["loss"].mean()

        options = {k: v for k, v in TRAINING.items() if k not in ("steps", "eps")}
        losses, norms, ema = iddpm.train(model, loss_of_step, TRAINING["steps"], **options)
        results["train.loss"] = torch.tensor(losses, dtype=dtype)
        results["train.grad_norm"] = torch.tensor(norms, dtype=dtype)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                results[f"train.weights.{name}"] = parameter.detach().clone()
        for name, average in ema.items():
            results[f"train.ema.{name}"] = average
    return results


def without_key_bias(name, tensor):
    """A bias of the keys shifts all scores of a query alike: its true gradient is zero, so what float32
    computes, and what AdamW makes of it, is rounding noise."""
    if name.endswith("attn.qkv.bias"):
        query, _, value = tensor.chunk(3)
        return torch.cat([query, value])
    return tensor


def distance(name, got, expected):
    got, expected = (without_key_bias(name, x.double()) for x in (got, expected))
    return ((got - expected).norm() / expected.norm().clamp(min=1e-30)).item()


def make(name, seed):
    config = CONFIGS[name]
    rng = random.Random(seed)
    weights = random_weights(rng, config)
    if config.learn_sigma:
        inputs = forward_inputs(rng, config, [0.0, 999.0, 417.0, 250.625])
        inputs |= loss_inputs(rng, config, [40, 999, 5, 417])
        inputs |= train_inputs(rng, config)
    else:
        inputs = forward_inputs(rng, config, [0.0, 1.0, 0.337, 0.8125])
        inputs |= loss_inputs(rng, config, [0.0009, 0.25, 0.62])
    facts = asdict(config)
    del facts["label_dropout"]  # the table has the null class's row
    metadata = {"kinora_fixture": "dit", "version": VERSION, "config": json.dumps(facts),
                "objective": "iddpm" if config.learn_sigma else "flow"}
    if config.learn_sigma:
        metadata["training"] = json.dumps(TRAINING)
    return finish(name, {f"weights.{key}": value for key, value in weights.items()} | inputs,
                  compute(config, weights, inputs, torch.float64),
                  compute(config, weights, inputs, torch.float32), metadata)


def loss_terms(seed):
    """The hybrid loss alone, with t = 0. There the bound is the likelihood of a narrow bin, which float32
    loses in its tails, so predictions stay near the noise (DiT's own float32 loss has that limit)."""
    rng = random.Random(seed)
    t = [0, 0, 1, 500, 999]
    shape = (len(t), 2, 3, 4)
    noise = normal(rng, *shape)
    prediction = noise + normal(rng, *shape, scale=0.3)
    x0 = normal(rng, *shape, scale=0.5)
    x0[1, 0] = 1.0  # the outermost bins
    x0[1, 1] = -1.0
    inputs = {"output": torch.cat([prediction, normal(rng, *shape, scale=0.5)], dim=1), "x0": x0,
              "noise": noise, "t": torch.tensor(t, dtype=torch.float32)}

    def results(dtype):
        x = floating(inputs, dtype)
        output = x["output"].requires_grad_()
        terms = iddpm.hybrid_terms(iddpm.Schedule(), output, x["x0"], x["t"], x["noise"])
        (grad,) = torch.autograd.grad(terms["loss"].sum(), output)
        return {name: value.detach() for name, value in terms.items()} | {"grad_output": grad}

    return finish("hybrid_loss", inputs, results(torch.float64), results(torch.float32),
                  {"kinora_fixture": "hybrid_loss", "version": VERSION})


def finish(name, inputs, exact, single, metadata):
    worst = max(exact, key=lambda key: distance(key, single[key], exact[key]))
    print(f"{name}: float32 is within {distance(worst, single[worst], exact[worst]):.1e} of the norm "
          f"of every result, worst {worst}")
    return inputs | {key: value.float() for key, value in exact.items()}, metadata


def check(path, tensors, metadata):
    committed, committed_metadata = tensor_file.load(path)
    faults = [] if committed_metadata == metadata else ["metadata differ"]
    if list(committed) != list(tensors):
        faults.append("other tensor names")
    for name in committed.keys() & tensors.keys():
        if committed[name].shape != tensors[name].shape or committed[name].dtype != tensors[name].dtype:
            faults.append(f"{name}: other shape or dtype")
        elif (gap := distance(name, tensors[name], committed[name])) > TOLERANCE:
            faults.append(f"{name}: off by {gap:.1e} of its norm")
    for fault in faults:
        print(f"{path.name}: {fault}", file=sys.stderr)
    return not faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    files = {TESTS / "models" / "data" / f"{name}.safetensors": make(name, seed)
             for seed, name in enumerate(CONFIGS, start=1)}
    files[TESTS / "diffusion" / "data" / "hybrid_loss.safetensors"] = loss_terms(seed=3)
    good = True
    for path, (tensors, metadata) in files.items():
        if arguments.check:
            good &= check(path, tensors, metadata)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            tensor_file.save(path, tensors, metadata)
            print(f"wrote {path.name}, {path.stat().st_size} bytes")
    if not good:
        sys.exit("the committed fixtures are not what this script makes")


if __name__ == "__main__":
    main()
