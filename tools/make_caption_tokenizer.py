#!/usr/bin/env python3
"""Learns the tokenizer of the generated captions, configs/captions/spiece.model.

    tools/make_caption_tokenizer.py configs/captions/spiece.model

Wants the package sentencepiece. The words are read from the tables of the sources that word the
captions, so that nothing has to be built first; each line is some of them in any order. A common
word becomes one piece, and any other word of Latin letters is spelled.
"""

import random
import re
import sys
from pathlib import Path

import sentencepiece

DATA = Path(__file__).resolve().parent.parent / "kinora" / "data"
SOURCES = ["caption_words.h", "scene_captions.cc", "moving_captions.cc", "shapes.cc", "moving_shapes.cc"]
LINES = 20_000
WORDS_A_LINE = 12


def words() -> list[str]:
    found = set()
    for name in SOURCES:
        text = (DATA / name).read_text()
        for table in re.findall(r"constexpr std::array<(?:std::string_view|const char\*)[^;]*;", text):
            for phrase in re.findall(r'"([^"]*)"', table):
                found.update(word for word in phrase.split() if re.fullmatch("[a-z]+", word))
    return sorted(found | {"one", "an"})


def main() -> None:
    known = words()
    draw = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    lines = [" ".join(draw.choices(known, k=WORDS_A_LINE)) for _ in range(LINES)]
    lines += [" ".join(letters)] * 100
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=sys.argv[1].removesuffix(".model"),
        model_type="unigram",
        vocab_size=len(known) + 2 * len(letters) + 8,
        hard_vocab_limit=False,
        character_coverage=1.0,
        normalization_rule_name="identity",
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=1,
        num_threads=1,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
    spelled = [word for word in known if len(model.encode(word)) != 1]
    print(f"{model.get_piece_size()} pieces; {len(known)} words, of which these take several: {spelled}")


if __name__ == "__main__":
    main()
