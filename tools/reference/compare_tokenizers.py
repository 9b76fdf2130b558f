#!/usr/bin/env python3
"""Compares Kinora's tokenizers with Hugging Face's and with SentencePiece, ids and speed.

usage: compare_tokenizers.py [--lines 200000] [--seed 0] PROGRAM DATA [WORK]

PROGRAM is build/bench/kinora_tokenize_records (target of that name, KINORA_BENCH=ON). DATA is a folder with
clip/ and t5/ as Hugging Face has them, or "" for none. Others are trained in the folder WORK (default: a
temporary one) under the published rules of Qwen2, LLaMA 2 and 3, T5, UMT5 and CLIP. Prints one line a
tokenizer: how many texts differ, then the time of both on one thread; and the first texts that differ.

Wants tokenizers==0.23.3, transformers==5.23.0, sentencepiece==0.2.3, protobuf.
"""
import argparse
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1", HF_HUB_OFFLINE="1")
from tokenizers import normalizers  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import make_tokenizer_fixtures as make  # noqa: E402
import tokenizer_texts  # noqa: E402


def run_ours(program, tokenizer, texts, work):
    records, ids = work / "records", work / "ids"
    with open(records, "wb") as out:
        for text in texts:
            out.write(struct.pack("<I", len(text)) + text)
    done = subprocess.run([program, tokenizer, records, ids], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    print("   ", done.stderr.strip().splitlines()[-1])
    data = memoryview(ids.read_bytes()).cast("i")
    all_ids, at = [], 0
    while at < len(data):
        all_ids.append(list(data[at + 1:at + 1 + data[at]]))
        at += 1 + data[at]
    return all_ids, float(re.search(r"encode ([0-9.]+) s", done.stderr).group(1))


def has_old_marks(text):
    """Whether tokenizers puts marks into another order than Unicode 14, since its tables are of Unicode 9."""
    return normalizers.NFC().normalize_str(text) != unicodedata.normalize("NFC", text)


def compare(name, folder, encode, program, texts, work, skip=None):
    print(name)
    ours, our_time = run_ours(program, folder, texts, work)
    decoded = [text.decode(errors="replace") for text in texts]
    start = time.perf_counter()
    theirs = [encode(text) for text in decoded]
    their_time = time.perf_counter() - start
    skipped = [bool(skip and skip(text)) for text in decoded]
    differ = [i for i in range(len(texts)) if ours[i] != theirs[i] and not skipped[i]]
    old_marks = [i for i in differ if has_old_marks(decoded[i])]
    differ = [i for i in differ if i not in set(old_marks)]
    print(f"    {len(differ)} of {len(texts) - sum(skipped)} differ, and {len(old_marks)} with marks younger than "
          f"Unicode 9; ours {our_time:.2f} s, theirs {their_time:.2f} s: "
          f"{their_time / our_time:.1f} times as fast; {len(texts) / our_time:.0f} texts/s")
    for i in differ[:6]:
        first = next((k for k, (a, b) in enumerate(zip(ours[i], theirs[i])) if a != b), -1)
        print(f"      text {i} {decoded[i][:200]!r}\n        at {first}: ours {ours[i][first:first + 12]}, "
              f"theirs {theirs[i][first:first + 12]}")
    return len(differ)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("program")
    parser.add_argument("data")
    parser.add_argument("work", nargs="?")
    options = parser.parse_args()
    work = pathlib.Path(options.work or tempfile.mkdtemp())
    work.mkdir(parents=True, exist_ok=True)
    texts = tokenizer_texts.texts(options.lines, options.seed)
    print(f"{len(texts)} texts, {sum(map(len, texts)) / 1e6:.1f} MB")
    total = 0
    if options.data:
        data = pathlib.Path(options.data)
        for name, encode in (("clip", make.clip_encoder(data / "clip")), ("t5", make.json_encoder(data / "t5"))):
            total += compare(name, data / name, encode, options.program, texts, work)
    for name, encode, skip in make.train_all(work, make.corpus(20_000), 4000, small=False):
        total += compare(name, work / name, encode, options.program, texts, work, skip)
    print(f"{total} differ in all")


if __name__ == "__main__":
    main()
