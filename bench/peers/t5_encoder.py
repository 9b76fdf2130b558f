"""The PyTorch peer of `kinora bench text-encoder`: T5-XXL's encoder (T5 1.1) with random weights on captions
of random lengths. Wants torch alone.

    python bench/peers/t5_encoder.py --attention transformers,sdpa --batching longest,bucketed \
        --mode compile-max-autotune-no-cudagraphs

The network is transformers' T5EncoderModel. Its attention, too (`transformers`: scores plus bias, softmax in
fp32), or `sdpa`, which has the bias and the mask as attn_mask of scaled_dot_product_attention. `longest` pads all
captions to the longest one, in batches of --batch; `bucketed` sorts them, pads to multiples of --unit, and takes
as many captions of one padded length as --batch-tokens hold. Weights and captions are those of kinora, made by
the same generators, so "checksum" can be compared. Prints one line of JSON a measurement.
"""

import argparse
import math

import torch
import torch.nn.functional as F

import measure

D_MODEL, D_KV, HEADS, D_FF, VOCAB, BUCKETS, MOST_DISTANCE = 4096, 64, 64, 10240, 32128, 32, 128
SEED = 1


def shapes(layers):
    """Shape and deviation of each weight, under transformers' names; None: a norm's."""
    result = {"shared.weight": ((VOCAB, D_MODEL), 1.0), "encoder.final_layer_norm.weight": ((D_MODEL,), None)}
    inner = HEADS * D_KV
    for i in range(layers):
        attention = f"encoder.block.{i}.layer.0."
        result[attention + "SelfAttention.q.weight"] = ((inner, D_MODEL), (D_MODEL * D_KV) ** -0.5)
        result[attention + "SelfAttention.k.weight"] = ((inner, D_MODEL), D_MODEL ** -0.5)
        result[attention + "SelfAttention.v.weight"] = ((inner, D_MODEL), D_MODEL ** -0.5)
        result[attention + "SelfAttention.o.weight"] = ((D_MODEL, inner), inner ** -0.5)
        if i == 0:
            result[attention + "SelfAttention.relative_attention_bias.weight"] = ((BUCKETS, HEADS), D_MODEL ** -0.5)
        result[attention + "layer_norm.weight"] = ((D_MODEL,), None)
        mlp = f"encoder.block.{i}.layer.1."
        result[mlp + "DenseReluDense.wi_0.weight"] = ((D_FF, D_MODEL), D_MODEL ** -0.5)
        result[mlp + "DenseReluDense.wi_1.weight"] = ((D_FF, D_MODEL), D_MODEL ** -0.5)
        result[mlp + "DenseReluDense.wo.weight"] = ((D_MODEL, D_FF), D_FF ** -0.5)
        result[mlp + "layer_norm.weight"] = ((D_MODEL,), None)
    return result


def weights(layers, device):
    result = {}
    for seed, (name, (shape, deviation)) in enumerate(sorted(shapes(layers).items()), SEED):
        torch.manual_seed(seed)
        drawn = torch.randn(shape, device=device)
        drawn = drawn * 0.1 + 1.0 if deviation is None else drawn * deviation
        result[name] = drawn.to(torch.bfloat16)
    return result


def captions(arguments):
    state = SEED

    def draw(below):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % below

    result = []
    for _ in range(arguments.captions):
        length = arguments.least_tokens + draw(arguments.most_tokens - arguments.least_tokens + 1)
        result.append([draw(VOCAB) for _ in range(length)])
    return result


def distance_buckets(length, device):
    """transformers' T5Attention._relative_position_bucket, bidirectional."""
    place = torch.arange(length, device=device)
    distance = place[None, :] - place[:, None]
    half = BUCKETS // 2
    exact = half // 2
    far = distance.abs()
    steps = torch.log(far.clamp_min(1).float() / exact) / math.log(MOST_DISTANCE / exact) * (half - exact)
    shared = (exact + steps.long()).clamp_max(half - 1)
    return torch.where(far < exact, far, shared) + (distance > 0).long() * half


def rms_norm(x, weight):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def attend(q, k, v, bias, kind):
    if kind == "sdpa":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
    scores = q @ k.transpose(2, 3) + bias
    return scores.float().softmax(-1).to(q.dtype) @ v


def block(kind, x, bias, w):
    batch, length, _ = x.shape
    normed = rms_norm(x, w["layer.0.layer_norm"])
    q, k, v = (F.linear(normed, w["layer.0.SelfAttention." + name]).view(batch, length, HEADS, D_KV).transpose(1, 2)
               for name in "qkv")
    attended = attend(q, k, v, bias, kind).transpose(1, 2).reshape(batch, length, -1)
    x = x + F.linear(attended, w["layer.0.SelfAttention.o"])
    normed = rms_norm(x, w["layer.1.layer_norm"])
    hidden = (F.gelu(F.linear(normed, w["layer.1.DenseReluDense.wi_0"]), approximate="tanh")
              * F.linear(normed, w["layer.1.DenseReluDense.wi_1"]))
    return x + F.linear(hidden, w["layer.1.DenseReluDense.wo"])


class Encoder:
    """A block is compiled once a shape, and called with each block's weights."""

    def __init__(self, weights, layers, kind, mode):
        self.table = weights["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        self.shared, self.norm = weights["shared.weight"], weights["encoder.final_layer_norm.weight"]
        self.blocks = []
        for i in range(layers):
            prefix = f"encoder.block.{i}."
            self.blocks.append({name.removeprefix(prefix).removesuffix(".weight"): value
                                for name, value in weights.items()
                                if name.startswith(prefix) and "relative" not in name})
        self.block = measure.compiled(lambda x, bias, w: block(kind, x, bias, w), mode)
        self.last = measure.compiled(rms_norm, mode)
        self.bias = measure.compiled(self.bias_of, mode)

    def bias_of(self, buckets, valid):
        bias = F.embedding(buckets, self.table).permute(2, 0, 1)[None]  # [1, H, L, L]
        return bias.masked_fill(~valid[:, None, None, :], torch.finfo(bias.dtype).min)

    def __call__(self, ids, valid, buckets):
        x = F.embedding(ids, self.shared)
        bias = self.bias(buckets, valid)
        for block_weights in self.blocks:
            x = self.block(x, bias, block_weights)
        return self.last(x, self.norm)


def batches(texts, arguments, batching):
    """(numbers of the texts, ids [B, L], valid [B, L]) of each batch."""
    order = list(range(len(texts)))
    groups = []
    if batching == "longest":
        length = max(len(text) for text in texts)
        groups = [(order[i:i + arguments.batch], length) for i in range(0, len(order), arguments.batch)]
    else:
        padded = {}
        for i in sorted(order, key=lambda i: len(texts[i])):
            padded.setdefault(-(-len(texts[i]) // arguments.unit) * arguments.unit, []).append(i)
        for length, members in padded.items():
            # Batches of one length have one size, so that it is compiled once.
            count = max(1, round(len(members) * length / arguments.batch_tokens))
            size = -(-len(members) // count)
            groups += [(members[i:i + size], length) for i in range(0, len(members), size)]
    result = []
    for members, length in groups:
        ids = torch.zeros(len(members), length, dtype=torch.long)
        valid = torch.zeros(len(members), length, dtype=torch.bool)
        for row, i in enumerate(members):
            ids[row, :len(texts[i])] = torch.tensor(texts[i])
            valid[row, :len(texts[i])] = True
        result.append((members, ids.to(arguments.device), valid.to(arguments.device)))
    return result


def time_form(arguments, made, texts, attention, batching, mode):
    # All shapes of the batches are compiled, each for itself.
    torch._dynamo.config.cache_size_limit = 1024
    torch._dynamo.config.accumulated_cache_size_limit = 4096
    encoder = Encoder(made, arguments.layers, attention, mode)
    work = batches(texts, arguments, batching)
    buckets = {ids.shape[1]: distance_buckets(ids.shape[1], arguments.device) for _, ids, _ in work}

    def run():
        with torch.no_grad():
            return [encoder(ids, valid, buckets[ids.shape[1]]) for _, ids, valid in work]

    for _ in range(arguments.warmup):
        results = run()
    total, count = 0.0, 0
    for (members, _, valid), states in zip(work, results):
        kept = states[valid].float()
        total += kept.abs().sum().item()
        count += kept.numel()
        if 0 in members:
            first = states[members.index(0), len(texts[0]) - 1, :4].float().tolist()
    del results, kept, states
    measure.reset_peak_memory(arguments.device)
    milliseconds = measure.milliseconds(run, arguments.device, warmup=0, repeats=1)
    return {"ms": round(milliseconds, 2), "batches": len(work),
            "padded_tokens": sum(ids.numel() for _, ids, _ in work),
            "tokens_per_s": round(sum(map(len, texts)) / milliseconds * 1000),
            "peak_memory_gib": measure.peak_memory_gib(arguments.device),
            "checksum": " ".join(f"{value:.4g}" for value in [total / count, *first])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captions", type=int, default=256)
    parser.add_argument("--least-tokens", type=int, default=5)
    parser.add_argument("--most-tokens", type=int, default=300)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--batch", type=int, default=32, help="captions padded to the longest at once")
    parser.add_argument("--unit", type=int, default=64, help="bucketed lengths are multiples of it")
    parser.add_argument("--batch-tokens", type=int, default=9600, help="of a bucketed batch, about")
    parser.add_argument("--attention", type=measure.names_of(["transformers", "sdpa"]), default=["sdpa"])
    parser.add_argument("--batching", type=measure.names_of(["longest", "bucketed"]), default=["longest", "bucketed"])
    parser.add_argument("--mode", type=measure.names_of(measure.MODES), default=["eager"])
    parser.add_argument("--warmup", type=int, default=3, help="runs before timing")
    measure.add_device_arguments(parser)
    arguments = parser.parse_args()
    measure.prepare_device(arguments)
    texts = captions(arguments)
    made = weights(arguments.layers, arguments.device)
    measure.run_all([
        ({"device": measure.device_name(arguments.device), "attention": attention, "batching": batching, "mode": mode,
          "layers": arguments.layers, "tokens": sum(map(len, texts))},
         lambda attention=attention, batching=batching, mode=mode: time_form(
             arguments, made, texts, attention, batching, mode))
        for mode in arguments.mode for attention in arguments.attention for batching in arguments.batching])


if __name__ == "__main__":
    main()
