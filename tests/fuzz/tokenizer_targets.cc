// Files of tokenizers: tokenizer.json, models of SentencePiece, vocabularies and merges of CLIP.

#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "kinora/core/text.h"
#include "kinora/io/file.h"
#include "kinora/tokenizers/tokenizer.h"
#include "tests/fuzz/targets.h"

namespace kinora::fuzz {
namespace {

namespace fs = std::filesystem;

/// A folder that lives as long as this object.
class TokenizerFolder {
 public:
  TokenizerFolder()
      : path_(fs::temp_directory_path() / ("kinora-fuzz-tokenizer-" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  TokenizerFolder(const TokenizerFolder&) = delete;
  TokenizerFolder& operator=(const TokenizerFolder&) = delete;
  ~TokenizerFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  void write(const char* name, std::span<const std::byte> bytes) const {
    io::FileWriter writer(path_ / name);
    writer.append(bytes);
    writer.close();
  }
  void write(const char* name, std::string_view text) const {
    write(name, std::as_bytes(std::span(text)));
  }

  /// Loads what lies here, and takes a text there and back.
  void use() const {
    const auto tokenizer = tokenizers::Tokenizer::load(path_);
    const auto tokens = tokenizer.encode(
        "A  caf\xC3\xA9 ab<x>abc, e\xCC\x81 1234's "
        "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xFF "
        "\xE4\xBA\xBA\xE3\x80\x80\t\n </s> "
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        {.max_length = 20 + tokenizer.num_special_tokens()});
    (void)tokenizer.decode(tokens.ids, /*special_tokens=*/true);
  }

 private:
  fs::path path_;
};

void parse_with(const char* name, std::span<const std::byte> bytes) {
  const TokenizerFolder folder;
  folder.write(name, bytes);
  folder.use();
}

constexpr std::string_view kVocab =
    R"({"a": 0, "a</w>": 1, "aa</w>": 2, "b": 3, "ab": 4, "<|startoftext|>": 5, "<|endoftext|>": 6})";
constexpr std::string_view kMerges = "#version: 0.2\na a</w>\na b\n";

constexpr std::string_view kBpe = R"j({"added_tokens": [
  {"id": 9, "content": "<x>", "special": true, "lstrip": true, "rstrip": true, "normalized": true},
  {"id": 8, "content": "s", "special": false, "single_word": true}],
 "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"},
   {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}, {"type": "Prepend", "prepend": "a"},
   {"type": "Strip", "strip_left": true, "strip_right": true}]},
 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
   {"type": "Split", "pattern": {"Regex": "(?i:'s|'t)|[^\\r\\n\\p{L}]?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"},
    "behavior": "Isolated", "invert": false}, {"type": "Digits", "individual_digits": true},
   {"type": "Punctuation"}, {"type": "ByteLevel", "add_prefix_space": true, "use_regex": false}]},
 "model": {"type": "BPE", "unk_token": "?", "fuse_unk": true, "byte_fallback": true,
   "continuing_subword_prefix": "", "end_of_word_suffix": "", "ignore_merges": true,
   "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "?": 5, "<0xC3>": 6, "<0xA9>": 7, "aa": 10},
   "merges": ["a b", ["ab", "c"], "a a"]},
 "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"},
   {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}],
    "special_tokens": {"x": {"ids": [9, 1]}}}, {"type": "BertProcessing", "sep": ["a", 0], "cls": ["b", 1]}]},
 "decoder": {"type": "ByteLevel"}})j";

constexpr std::string_view kUnigram =
    R"j({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"},
   {"type": "Replace", "pattern": {"String": "A"}, "content": "a"}]},
 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
   {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": true}]},
 "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": true,
   "vocab": [["<unk>", 0], ["_", -1.5], ["a", -2], ["ab", -1e-3], ["abc", -3], ["_a", -2], ["<0xFF>", 0]]},
 "post_processor": {"type": "RobertaProcessing", "sep": ["a", 2], "cls": ["b", 3]},
 "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "_"}, "content": " "},
   {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 1},
   {"type": "Metaspace", "replacement": "_"}, {"type": "BPEDecoder", "suffix": "</w>"}]}})j";

constexpr std::string_view kConfig =
    R"j({"tokenizer_class": "CLIPTokenizer", "model_max_length": 77,
 "pad_token": "a", "eos_token": {"content": "<|endoftext|>", "lstrip": false, "special": true},
 "added_tokens_decoder": {"0": {"content": "a"}, "12": {"content": "<x>", "normalized": true}},
 "add_bos_token": true, "extra_ids": 3, "truncation_side": "left"})j";

}  // namespace

std::vector<Target> tokenizer_targets() {
  const auto clip_with = [](const char* name, std::span<const std::byte> bytes) {
    const TokenizerFolder folder;
    folder.write("vocab.json", kVocab);
    folder.write("merges.txt", kMerges);
    folder.write(name, bytes);
    folder.use();
  };
  const auto model = [](const char* name) {
    return io::read_file(fs::path(KINORA_FUZZ_TOKENIZERS) / name, 1 << 20);
  };
  return {
      {"tokenizer_json",
       [](auto bytes) { parse_with("tokenizer.json", bytes); },
       {bytes_of(kBpe), bytes_of(kUnigram)}},
      {"sentence_piece",
       [](auto bytes) { parse_with("spiece.model", bytes); },
       {model("t5_spiece/spiece.model"), model("umt5_spiece/spiece.model"),
        model("llama2_model/tokenizer.model")}},
      {"vocab_json",
       [clip_with](auto bytes) { clip_with("vocab.json", bytes); },
       {bytes_of(kVocab)}},
      {"merges", [clip_with](auto bytes) { clip_with("merges.txt", bytes); }, {bytes_of(kMerges)}},
      {"tokenizer_config",
       [clip_with](auto bytes) { clip_with("tokenizer_config.json", bytes); },
       {bytes_of(kConfig)}},
  };
}

}  // namespace kinora::fuzz
