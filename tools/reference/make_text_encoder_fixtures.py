#!/usr/bin/env python3
"""Writes tests/models/data/{t5,t5_gated,umt5,t5_xxl_layer,clip_old_end,clip_projection,llama,ldm_bert}.safetensors: what
transformers' text encoders (ldm_bert: diffusers' LDMBertModel) make of formula.py's weights, in float64; and the weights of the first as a
folder of transformers, tests/pipelines/data/t5_bin. Wants torch and transformers 5. With names as arguments it
writes only those.

  ids, lengths               I64 [rows], [texts]: the texts one after the other
  states                     [rows, C]: each text's own, padding masked
  before_last                [rows, C]: hidden_states[-2], not normed
  two_before_last            [rows, C], llama: hidden_states[-3]
  pooled                     [texts, P], CLIP
  padded.ids, padded.states  [texts, L], [texts, L, C]: padded, nothing masked
  large.states               [rows, C], t5_gated: with all wo times 2^15, beyond fp16
  grad.KEY                   [2]: norm, and product with values(KEY), of the gradient of
                             sum(states * values("states")) + sum(pooled * values("pooled"))

Prints how far transformers itself lands in 16 bits. t5_xxl_layer is one block of T5-XXL's width; its file has no gradients. Of the metadata, `config` is
config.json's text, and `q_scale` what T5's q are multiplied with, about 1 / sqrt(d_kv): T5 starts so,
since it does not divide scores. Norms of T5 compute their mean square in float32, as transformers does.
"""

import json
import math
import pathlib
import sys

import torch
import transformers

import formula
import tensor_file

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests/models/data"
PAD = 1


def q_scale(config):
    return 2.0 ** -round(math.log2(config.d_kv) / 2) if hasattr(config, "d_kv") else 1.0


def fill(model, prefix):
    """formula.fill with `prefix` before each name, and q_scale."""
    model.double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(formula.weight(prefix + name, parameter.shape))
            if name.endswith(".q.weight"):
                parameter.mul_(q_scale(model.config))


def texts(lengths, vocabulary, end):
    """Ids from 3 on; each text ends with `end`, and one has it twice."""
    result = []
    for number, length in enumerate(lengths):
        draw = formula.values(f"ids.{number}", [length])
        ids = [3 + int((x + 1) / 2 * (vocabulary - 4)) for x in draw.tolist()]
        ids[-1] = end
        if number == 1:
            ids[length // 2] = end
        result.append(ids)
    return result


def padded(ids, length):
    return torch.tensor([text + [PAD] * (length - len(text)) for text in ids])


def rows_of(states, lengths):
    return torch.cat([text[:length] for text, length in zip(states, lengths)])


def encode_rounded(model, dtype, ids, mask):
    return model.to(dtype)(input_ids=ids, attention_mask=mask).last_hidden_state.double()


def run(name, model, lengths, vocabulary, end, prefix="", padded_length=0, gradients=True, large=False):
    fill(model, prefix)
    model.config.architectures = [type(model).__name__]
    ids = texts(lengths, vocabulary, end)
    longest = padded(ids, max(lengths))
    mask = torch.tensor([[1] * len(t) + [0] * (max(lengths) - len(t)) for t in ids])

    def encode(tokens, **mask):
        return model(input_ids=tokens, output_hidden_states=True, **mask)

    output = encode(longest, attention_mask=mask)
    states = rows_of(output.last_hidden_state, lengths)
    pooled = output.get("text_embeds", output.get("pooler_output"))
    tensors = {"ids": torch.tensor(sum(ids, [])), "lengths": torch.tensor(lengths), "states": states,
               "before_last": rows_of(output.hidden_states[-2], lengths)}
    if isinstance(model, transformers.LlamaModel):
        tensors["two_before_last"] = rows_of(output.hidden_states[-3], lengths)
    loss = (states * formula.values("states", states.shape)).sum()
    if pooled is not None:
        tensors["pooled"] = pooled
        loss = loss + (pooled * formula.values("pooled", pooled.shape)).sum()
    if gradients:
        loss.backward()
        for key, parameter in model.named_parameters():
            if parameter.grad is None:  # of what predicts tokens
                continue
            key = prefix + key
            probe = formula.values(key, parameter.shape)
            tensors["grad." + key] = torch.stack(
                [parameter.grad.norm(), (parameter.grad * probe).sum()])
    with torch.no_grad():
        if padded_length:
            tokens = padded(ids, padded_length)
            tensors["padded.ids"] = tokens
            tensors["padded.states"] = encode(tokens).last_hidden_state
        if large:
            for key, parameter in model.named_parameters():
                if key.endswith(".wo.weight"):
                    parameter.mul_(2.0**15)
            large_states = encode(longest, attention_mask=mask).last_hidden_state
            tensors["large.states"] = rows_of(large_states, lengths)
        for dtype in (torch.bfloat16, torch.float16):
            fill(model, prefix)
            rounded = rows_of(encode_rounded(model, dtype, longest, mask), lengths)
            print(f"  transformers in {dtype}: {float((rounded - states).norm() / states.norm()):.1e} of the norm")
    path = DATA / (name + ".safetensors")
    metadata = {"kinora_fixture": "text_encoder", "version": "1",
                "q_scale": str(q_scale(model.config)), "config": model.config.to_json_string(use_diff=False)}
    metadata["config"] = json.dumps(json.loads(metadata["config"]), separators=(",", ":"))
    tensor_file.save(path, {key: value if value.dtype == torch.int64 else value.float()
                            for key, value in tensors.items()}, metadata)
    print(path.name, path.stat().st_size, "bytes,", len(tensors), "tensors")


def t5(name, kind, **config):
    """Heads that do not add up to the width; distances up to three times beyond the last bucket."""
    sizes = {"vocab_size": 48, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 3, "num_heads": 5,
             "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
    configuration = getattr(transformers, kind + "Config")(**sizes, **config)
    model = getattr(transformers, kind + "EncoderModel")._from_config(
        configuration, attn_implementation="eager")
    run(name, model, [5, 17, 1, 17, 40], 48, 2, padded_length=44, large=name == "t5_gated")


def xxl():
    configuration = transformers.T5Config(vocab_size=16, d_model=4096, d_kv=64, d_ff=10240,
                                          num_layers=1, num_heads=64, feed_forward_proj="gated-gelu")
    model = transformers.T5EncoderModel._from_config(configuration, attn_implementation="eager")
    run("t5_xxl_layer", model, [4, 2], 16, 2, gradients=False)


def clip(name, projected, **config):
    sizes = {"vocab_size": 48, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
             "num_attention_heads": 4, "max_position_embeddings": 21, "bos_token_id": 0, "pad_token_id": 1}
    configuration = transformers.CLIPTextConfig(**sizes, **config)
    kind = transformers.CLIPTextModelWithProjection if projected else transformers.CLIPTextModel
    model = kind._from_config(configuration, attn_implementation="eager")
    run(name, model, [5, 17, 1, 17, 21], 48, 47, prefix="" if projected else "text_model.",
        padded_length=21)


def llama():
    """Heads that do not add up to the width, three of which read one of keys."""
    configuration = transformers.LlamaConfig(
        vocab_size=48, hidden_size=24, intermediate_size=40, num_hidden_layers=4, num_attention_heads=6,
        num_key_value_heads=2, head_dim=6, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    model = transformers.LlamaModel._from_config(configuration, attn_implementation="eager")
    run("llama", model, [5, 17, 1, 17, 40], 48, 2, padded_length=44)


def ldm_bert():
    """Heads that do not add up to the width."""
    from diffusers.pipelines.latent_diffusion.pipeline_latent_diffusion import LDMBertConfig, LDMBertModel
    model = LDMBertModel(LDMBertConfig(
        vocab_size=48, d_model=24, encoder_ffn_dim=40, encoder_layers=3, encoder_attention_heads=5, head_dim=6,
        max_position_embeddings=21))
    run("ldm_bert", model, [5, 17, 1, 17, 21], 48, 2, padded_length=21)


def t5_in_bin_files():
    """The weights of t5.safetensors as torch.save's shards with an index, with both names of the vocabulary."""
    metadata = tensor_file.load(DATA / "t5.safetensors")[1]
    model = transformers.T5EncoderModel(transformers.T5Config(**json.loads(metadata["config"])))
    fill(model, "")
    weights = {name: value.float() for name, value in model.state_dict().items()}
    folder = DATA.parents[1] / "pipelines/data/t5_bin"
    folder.mkdir(parents=True, exist_ok=True)
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    place = {name: names[".block.1." in name or ".block.2." in name] for name in weights}
    for file in names:
        torch.save({name: weights[name].clone() for name in weights if place[name] == file}, folder / file)
    index = {"metadata": {"total_size": 0}, "weight_map": place}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(json.loads(metadata["config"]), indent=1) + "\n")
    print(folder.name, sum(path.stat().st_size for path in folder.iterdir()), "bytes")


FIXTURES = {
    "t5": lambda: t5("t5", "T5", feed_forward_proj="relu"),
    "t5_gated": lambda: t5("t5_gated", "T5", feed_forward_proj="gated-gelu"),
    "umt5": lambda: t5("umt5", "UMT5", feed_forward_proj="gated-gelu"),
    "clip_old_end": lambda: clip("clip_old_end", False, hidden_act="quick_gelu", eos_token_id=2),
    "clip_projection": lambda: clip("clip_projection", True, hidden_act="gelu", eos_token_id=47, projection_dim=10),
    "t5_xxl_layer": xxl,
    "llama": llama,
    "ldm_bert": ldm_bert,
    "t5_bin": t5_in_bin_files,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or FIXTURES:
        FIXTURES[name]()
