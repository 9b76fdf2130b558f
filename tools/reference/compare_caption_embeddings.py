#!/usr/bin/env python3
"""Compares what `kinora data encode-texts` writes with transformers, on random models of a few kilobytes.

usage: compare_caption_embeddings.py PROGRAM

PROGRAM is build/kinora. 300 random captions of 1 to 60 words are cut off after 40 tokens by the tokenizers
of tests/tokenizers/data and embedded by a T5 and a CLIP, both in fp32. Prints the difference over the norm,
of states and pooled vectors. Fails above 1e-5, or where lengths differ.

Wants transformers==5.23.0, torch, safetensors.
"""
import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
import transformers as hf  # noqa: E402
from safetensors import safe_open  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENS = 40
WORDS = ("a the red blue dog Cat playing in snow, under tree; 4k (photo) of an old man's house \u00fcber "
         "\u6771\u4eac mountain-lake at sunset").split()


def encode(program, folder, model, tokenizer, captions, options):
    (folder / "captions.txt").write_text("\n".join(captions) + "\n")
    model.save_pretrained(folder / "model")
    out = folder / "texts.safetensors"
    subprocess.run([program, "data", "encode-texts", ROOT / "configs/demo.yaml", "--text-encoder",
                    folder / "model", "--tokenizer", tokenizer, "--captions-file",
                    folder / "captions.txt", "--out", out, "--dtype", "fp32", "--precision", "fp32",
                    "--device", "cpu", "--clean", "off", "--max-tokens", str(TOKENS), *options],
                   check=True, stderr=subprocess.DEVNULL)
    with safe_open(out, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def difference(got, wanted):
    return ((got - wanted).norm() / wanted.norm()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    program = parser.parse_args().program
    random.seed(1)
    torch.manual_seed(0)
    captions = [" ".join(random.choices(WORDS, k=random.randint(1, 60))) for _ in range(300)]
    data = ROOT / "tests/tokenizers/data"
    t5 = hf.T5EncoderModel(hf.T5Config(vocab_size=700, d_model=64, d_kv=16, d_ff=128, num_layers=4,
                                       num_heads=4, feed_forward_proj="gated-gelu")).eval()
    clip = hf.CLIPTextModelWithProjection(hf.CLIPTextConfig(
        vocab_size=1064, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
        num_attention_heads=4, hidden_act="gelu", projection_dim=24, bos_token_id=1062,
        eos_token_id=1063, pad_token_id=1063)).eval()
    cases = [("t5", t5, "t5_json", hf.PreTrainedTokenizerFast(
                  tokenizer_file=str(data / "t5_json/tokenizer.json"), pad_token="<pad>"),
              ["model.architecture=pixart", "model.text_channels=64", f"model.text_tokens={TOKENS}"]),
             ("clip", clip, "clip", hf.CLIPTokenizer.from_pretrained(data / "clip"),
              ["model.architecture=vdit", "model.text_channels=24"])]
    worst = 0.0
    for name, model, tokenizer, theirs, options in cases:
        with tempfile.TemporaryDirectory() as folder:
            got = encode(program, pathlib.Path(folder), model, data / tokenizer, captions, options)
        batch = theirs(captions, max_length=TOKENS, truncation=True, padding=True, return_tensors="pt")
        mask = batch.attention_mask.bool()
        with torch.no_grad():
            wanted = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
        if not torch.equal(got["lengths"], mask.sum(1)):
            sys.exit(f"{name}: lengths differ")
        figures = [difference(got["embeddings"], wanted.last_hidden_state[mask])]
        if "pooled" in got:
            figures.append(difference(got["pooled"], wanted.text_embeds))
        print(name, " ".join(f"{figure:.1e}" for figure in figures))
        worst = max(worst, *figures)
    if worst > 1e-5:
        sys.exit("too far")


if __name__ == "__main__":
    main()
