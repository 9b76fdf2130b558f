#!/usr/bin/env python3
"""Trains small tokenizers under published rules, and writes them with texts and the ids that they must give.

usage: make_tokenizer_fixtures.py [FOLDER]          (default: tests/tokenizers/data)

FOLDER/NAME/ is a tokenizer as its users find it; FOLDER/NAME.jsonl has one object a line: "text", its bytes as
hexadecimal, and "ids", from Hugging Face's tokenizers or, for NAME with a .model file, from SentencePiece.

Wants tokenizers==0.23.3, transformers==5.23.0, sentencepiece==0.2.3, protobuf.
"""
import io
import json
import os
import pathlib
import random
import sys

os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1", HF_HUB_OFFLINE="1")
import sentencepiece  # noqa: E402
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,  # noqa: E402
                        processors, trainers)

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tokenizer_texts  # noqa: E402

# transformers, models/qwen2/tokenization_qwen2.py; the other is in LLaMA 3's tokenizer.json.
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
# A few rules as SentencePiece's own table has them, which is too large for a fixture.
RULES = {"\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "\u200b": " ", "\ufb01": "fi", "\u00bd": "1\u20442",
         "\u2460": "1", "e\u0301": "\u00e9", "\uff76\uff9e": "\u30ac", "\uff76": "\u30ab", "\u0001": "", "\u212b": "\u00c5"}


def corpus(count):
    rng = random.Random(7)
    return [tokenizer_texts.caption(rng) if rng.random() < 0.7 else rng.choice(tokenizer_texts.SENTENCES)
            for _ in range(count)]


def json_encoder(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: tokenizer.encode(text).ids


def clip_encoder(folder):
    from transformers import CLIPTokenizerFast
    tokenizer = CLIPTokenizerFast.from_pretrained(folder).backend_tokenizer
    return lambda text: tokenizer.encode(text).ids


def sentence_piece_encoder(folder, before, after):
    model = sentencepiece.SentencePieceProcessor(model_file=str(next(folder.glob("*.model"))))
    return lambda text: before + model.encode(text) + after


def train_byte_level(folder, lines, size, pattern, llama3):
    tokenizer = Tokenizer(models.BPE(ignore_merges=llama3))
    tokenizer.normalizer = None if llama3 else normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    if llama3:
        tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
        begin = tokenizer.token_to_id("<|begin_of_text|>")
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="$A $B",
                                          special_tokens=[("<|begin_of_text|>", begin)])])
    else:
        tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        tokenizer.add_tokens([AddedToken("aesthetic score", single_word=True, lstrip=True, rstrip=True)])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


def train_clip(folder, lines, size):
    """As CLIP's: of each byte a token with and without </w>."""
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<|endoftext|>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(
            r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"),
            "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [*alphabet, *(c + "</w>" for c in alphabet), *sorted(model["vocab"], key=model["vocab"].get),
              "<|startoftext|>", "<|endoftext|>"]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False))
    merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    token = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    tokens = {"bos_token": {"content": "<|startoftext|>", **token}, "eos_token": {"content": "<|endoftext|>", **token},
              "unk_token": {"content": "<|endoftext|>", **token}, "pad_token": "<|endoftext|>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, **tokens}))


def train_bert(folder, lines, size):
    """As bert-base-uncased: vocab.txt, and a tokenizer_config.json that names no special tokens."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(lines, trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=special, show_progress=False))
    vocab = tokenizer.get_vocab()
    (folder / "vocab.txt").write_text("".join(token + "\n" for token in sorted(vocab, key=vocab.get)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "model_max_length": 512}))


def bert_encoder(folder):
    from transformers import BertTokenizer
    tokenizer = BertTokenizer.from_pretrained(folder)
    return lambda text: tokenizer.encode(text)


def train_sentence_piece(path, lines, size, small, **options):
    model = io.BytesIO()
    if small and options.get("normalization_rule_name", "nmt_nfkc") == "nmt_nfkc":
        rules = path.parent / "rules.tsv"
        rules.write_text("".join(
            "\t".join(" ".join(f"{ord(c):X}" for c in part) for part in rule) + "\n" for rule in RULES.items()))
        options.update(normalization_rule_tsv=str(rules))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=size, minloglevel=2, num_threads=1,
        character_coverage=0.9995, hard_vocab_limit=False, **options)
    if "normalization_rule_tsv" in options:
        rules.unlink()
    path.write_bytes(model.getvalue())


def convert(model_path, out, kind):
    """A tokenizer.json as transformers' converters made the published ones (SpmConverter, LlamaConverter)."""
    from transformers.convert_slow_tokenizer import import_protobuf
    proto = import_protobuf().ModelProto()
    proto.ParseFromString(model_path.read_bytes())
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    if kind == "llama2":
        from transformers.convert_slow_tokenizer import generate_merges
        vocab = {piece: i for i, (piece, _) in enumerate(pieces)}
        tokenizer = Tokenizer(models.BPE(vocab, generate_merges(vocab, pieces), unk_token="<unk>", fuse_unk=True,
                                         byte_fallback=True))
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                               decoders.Strip(" ", 1, 0)])
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    else:
        tokenizer = Tokenizer(models.Unigram(pieces, unk_id=proto.trainer_spec.unk_id,
                                             byte_fallback=proto.trainer_spec.byte_fallback))
        tokenizer.normalizer = normalizers.Sequence([
            normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
            normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            prepend_scheme="always" if kind == "t5" else "first")
        tokenizer.decoder = decoders.Metaspace()
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    for i, piece in enumerate(proto.pieces):
        if piece.type in (2, 3):
            tokenizer.add_special_tokens([AddedToken(piece.piece, normalized=False, special=True)])
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)


def train_all(folder, lines, size, small):
    """Trains all into `folder`; yields name, the reference's encode, and which texts it reads by other rules."""
    def made(name):
        (folder / name).mkdir(parents=True, exist_ok=True)
        return folder / name

    train_byte_level(made("qwen2"), lines, size, QWEN2, llama3=False)
    yield "qwen2", json_encoder(folder / "qwen2"), None
    train_byte_level(made("llama3"), lines, size, LLAMA3, llama3=True)
    yield "llama3", json_encoder(folder / "llama3"), None
    train_clip(made("clip"), lines, size)
    yield "clip", clip_encoder(folder / "clip"), None
    train_bert(made("bert"), lines, size)
    yield "bert", bert_encoder(folder / "bert"), None
    from transformers import BertTokenizer
    BertTokenizer.from_pretrained(folder / "bert").backend_tokenizer.save(
        str(made("bert_json") / "tokenizer.json"), pretty=False)
    yield "bert_json", json_encoder(folder / "bert_json"), None
    # SentencePiece by itself takes "</s>" in a text for text, and cuts texts at none.
    control = ("<s>", "</s>", "<unk>", "<pad>", "<extra_id_")
    has_control = lambda text: any(token in text for token in control)  # noqa: E731
    t5 = {"model_type": "unigram", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    train_sentence_piece(made("t5_spiece") / "spiece.model", lines, size, small, **t5)
    yield "t5_spiece", sentence_piece_encoder(folder / "t5_spiece", [], [1]), has_control
    convert(folder / "t5_spiece" / "spiece.model", folder / "t5_json", "t5")
    yield "t5_json", json_encoder(folder / "t5_json"), None
    train_sentence_piece(made("umt5_spiece") / "spiece.model", lines, size, small, byte_fallback=True,
                         user_defined_symbols=["<sep>", "aesthetic"], **t5)
    yield "umt5_spiece", sentence_piece_encoder(folder / "umt5_spiece", [], [1]), has_control
    if not small:
        train_sentence_piece(made("umt5_plain") / "spiece.model", lines, size, small, byte_fallback=True, **t5)
        convert(folder / "umt5_plain" / "spiece.model", folder / "umt5_json", "umt5")
        yield "umt5_json", json_encoder(folder / "umt5_json"), None
    train_sentence_piece(made("llama2_model") / "tokenizer.model", lines, size, small, model_type="bpe",
                         byte_fallback=True, normalization_rule_name="identity", split_digits=True,
                         remove_extra_whitespaces=False, allow_whitespace_only_pieces=True)
    yield "llama2_model", sentence_piece_encoder(folder / "llama2_model", [1], []), has_control
    convert(folder / "llama2_model" / "tokenizer.model", folder / "llama2_json", "llama2")
    yield "llama2_json", json_encoder(folder / "llama2_json"), None


def main():
    root = pathlib.Path(__file__).parent.parent.parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "tests" / "tokenizers" / "data"
    for name, encode, skip in train_all(folder, corpus(3000), 900, small=True):
        lines = []
        for text in tokenizer_texts.texts(130, seed=1):
            decoded = text.decode(errors="replace")
            if len(text) < 400 and not (skip and skip(decoded)):
                lines.append(json.dumps({"text": text.hex(), "ids": encode(decoded)}) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(lines))
        print(name, len(lines))


if __name__ == "__main__":
    main()
