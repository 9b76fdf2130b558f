#!/usr/bin/env python3
"""Writes tests/inference/data/prompt_weights.safetensors: weighted prompts as Compel and AUTOMATIC1111 embed
them with the text encoder of tests/inference/data/pixart_alpha. Wants torch, transformers 5, compel 2.5.

Compel's are the package's own (EmbeddingsProvider, DownweightMode.REMOVE, padding not attended to, as PixArt's
pipeline does). A1111's is its formula of "Original" emphasis written down, over the tokens of the text alone.

  compel.N, a1111.N   fp32 [tokens, 16]: of prompt N, padding left out

The metadata has the pieces and their weights.
"""

import json
import pathlib

import torch
import transformers
from compel import DownweightMode
from compel.embeddings_provider import EmbeddingsProvider

import tensor_file

DATA = pathlib.Path(__file__).resolve().parents[2] / "tests/inference/data"
LENGTH = 120
PROMPTS = [
    [("a", 1.0), ("red", 1.3), ("circle", 1.0)],
    [("a", 1.0), ("red", 0.6), ("circle above a", 1.0), ("blue square", 1.21)],
    [("two stars", 0.5), ("and", 1.0), ("a cross", 0.0)],
    [("a green circle", 1.1)],
]


def compel_states(tokenizer, encoder, pieces):
    provider = EmbeddingsProvider(tokenizer, encoder, padding_attention_mask_value=0,
                                  downweight_mode=DownweightMode.REMOVE, model_max_length=LENGTH)
    texts, weights = zip(*pieces)
    with torch.no_grad():
        states = provider.get_embeddings_for_weighted_prompt_fragments([list(texts)], [list(weights)])
    return states[0]


def a1111_states(tokenizer, encoder, pieces):
    ids, multipliers = [], []
    for text, weight in pieces:
        own = tokenizer(text, add_special_tokens=False).input_ids
        ids += own
        multipliers += [weight] * len(own)
    ids, multipliers = ids + [tokenizer.eos_token_id], torch.tensor(multipliers + [1.0])
    with torch.no_grad():
        z = encoder(torch.tensor([ids])).last_hidden_state
    original_mean = z.mean()
    z = z * multipliers.reshape(multipliers.shape + (1,)).expand(z.shape)
    ratio = original_mean / z.mean()
    return (z * ratio if 0.5 <= ratio <= 2.0 else z)[0], float(ratio)


def main():
    folder = DATA / "pixart_alpha"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer")
    tokenizer.eos_token, tokenizer.pad_token = "</s>", "<pad>"  # the folder has tokenizer.json alone
    encoder = transformers.T5EncoderModel.from_pretrained(folder / "text_encoder", dtype=torch.float32).eval()
    tensors = {}
    for number, pieces in enumerate(PROMPTS):
        a1111, ratio = a1111_states(tokenizer, encoder, pieces)
        print(f"prompt {number}: {len(a1111)} tokens, A1111 restores the mean by {ratio:.4f}")
        tensors[f"a1111.{number}"] = a1111
        tensors[f"compel.{number}"] = compel_states(tokenizer, encoder, pieces)[: len(a1111)]
    tensor_file.save(DATA / "prompt_weights.safetensors", tensors, {"prompts": json.dumps(PROMPTS)})


if __name__ == "__main__":
    main()
