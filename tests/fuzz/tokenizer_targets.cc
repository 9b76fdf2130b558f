// Files of tokenizers: tokenizer.json, models of SentencePiece, vocabularies and merges of CLIP.

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"
#include "kinora/tokenizers/char_map.h"
#include "kinora/tokenizers/protobuf.h"
#include "kinora/tokenizers/tokenizer.h"
#include "kinora/tokenizers/utf8.h"
#include "tests/fuzz/targets.h"
#include "tests/places.h"

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

/// Every place in a tree of JSON.
void collect(nlohmann::json& node, std::vector<nlohmann::json*>& nodes) {
  nodes.push_back(&node);
  if (node.is_structured()) {
    for (nlohmann::json& child : node) {
      collect(child, nodes);
    }
  }
}

/// Since most damage to JSON is found by its parser: the bytes as edits of one of the files above,
/// three bytes an edit, which replace a place by a copy of another or by something odd.
void parse_edited(std::span<const std::byte> bytes) {
  using nlohmann::json;
  static const std::vector<json> kOdd = {nullptr,
                                         true,
                                         0,
                                         -1,
                                         1 << 24,
                                         INT64_MAX,
                                         UINT64_MAX,
                                         1e300,
                                         -1e-300,
                                         "",
                                         "<0x00>",
                                         "\\p{L}+",
                                         "(?=a)|",
                                         "\u2581",
                                         json::array(),
                                         json::object(),
                                         json::array({"a", "b"}),
                                         json::array({json::array({"a", 1})})};
  const auto byte = [&](size_t i) { return static_cast<size_t>(bytes[i]); };
  json tree = json::parse(!bytes.empty() && byte(0) % 2 == 1 ? kUnigram : kBpe);
  for (size_t i = 1; i + 3 <= bytes.size(); i += 3) {
    if (byte(i) == 0 && byte(i + 1) == 0) {
      continue;
    }
    std::vector<json*> nodes;
    collect(tree, nodes);
    json& place = *nodes[byte(i) % nodes.size()];
    const json other =
        byte(i + 2) % 2 == 0 ? kOdd[byte(i + 1) % kOdd.size()] : *nodes[byte(i + 1) % nodes.size()];
    if (other.dump().size() < 4096) {
      place = other;
    }
  }
  const std::string text = tree.dump();
  parse_with("tokenizer.json", std::as_bytes(std::span(text)));
}

/// The bytes as the pieces of a model, three each, so that the message is always whole.
void parse_pieces(std::span<const std::byte> bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const auto field = [](uint8_t tag, const std::string& content) {
    return std::string({static_cast<char>(tag), static_cast<char>(content.size())}) + content;
  };
  constexpr std::string_view kTexts[] = {"a",
                                         "b",
                                         "ab",
                                         "aa",
                                         "\xE2\x96\x81",
                                         "\xE2\x96\x81"
                                         "a",
                                         "<unk>",
                                         "</s>",
                                         "<0x41>",
                                         "\xC3\xA9",
                                         "aaaa",
                                         "c"};
  std::string model;
  for (size_t i = 4; i + 3 <= bytes.size(); i += 3) {
    std::string piece = field(0x0A, std::string(kTexts[byte(i) % std::size(kTexts)]));
    piece += std::string("\x15\0\0", 3);  // a score whose last two bytes count
    piece += static_cast<char>(byte(i + 1));
    piece += static_cast<char>(0xC0);
    piece += '\x18';
    piece += static_cast<char>(byte(i + 2) % 8);
    model += field(0x0A, piece);
  }
  if (bytes.size() >= 4) {
    std::string trainer = {'\x18', static_cast<char>(byte(0) % 4), '\xC0', '\x02'};
    trainer += static_cast<char>(byte(1) % 128);                               // unk_id
    trainer += std::string({'\x98', '\x02', static_cast<char>(byte(2) % 2)});  // byte_fallback
    model += field(0x12, trainer);
    model += field(
        0x1A, {'\x18', static_cast<char>(byte(3) % 2), '\x20', static_cast<char>(byte(3) / 2 % 2)});
  }
  parse_with("spiece.model", std::as_bytes(std::span(model)));
}

/// A table of replacements, looked up at every character of a text.
void parse_map(std::span<const std::byte> bytes) {
  const tokenizers::CharMap map(as_text(bytes), "fuzz");
  const std::string_view text = "e\xCC\x81 \xEF\xAC\x81\t\xC2\xBD \xEF\xBD\xB6\xEF\xBE\x9E a";
  for (size_t at = 0; at < text.size(); at += tokenizers::code_point_at(text, at).size) {
    for (const auto& found : {map.longest(text.substr(at)), map.shortest(text.substr(at))}) {
      KINORA_CHECK(!found || (is_utf8(found->text) && is_utf8(text.substr(at, found->size))),
                   kInternal, "[fuzz] a replacement is not UTF-8");
    }
  }
}

/// The table of a model: field 2 of its field 3.
Bytes map_of(const Bytes& model) {
  tokenizers::ProtobufMessage message(as_text(model), "fuzz");
  while (const auto field = message.next()) {
    if (field->number == 3) {
      tokenizers::ProtobufMessage rules(field->bytes(), "fuzz");
      while (const auto rule = rules.next()) {
        if (rule->number == 2) {
          return bytes_of(rule->bytes());
        }
      }
    }
  }
  return {};
}

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
    return io::read_file(source_path("tests/tokenizers/data") / name, 1 << 20);
  };
  return {
      {"tokenizer_json",
       [](auto bytes) { parse_with("tokenizer.json", bytes); },
       {bytes_of(kBpe), bytes_of(kUnigram)}},
      {"sentence_piece",
       [](auto bytes) { parse_with("spiece.model", bytes); },
       {model("t5_spiece/spiece.model"), model("umt5_spiece/spiece.model"),
        model("llama2_model/tokenizer.model")}},
      {"tokenizer_stages",
       parse_edited,
       {Bytes(40), bytes_of(std::string("\1") + std::string(60, '\0'))}},
      {"sentence_pieces",
       parse_pieces,
       // Unigram and BPE: <unk> of type 2, then a, b, ab, space.
       {bytes_of(std::string("\1\0\0\3\6\1\2\0\1\1\1\1\1\2\1\1\4\1\1\5\2\1\3\1\1\x0A\1\1", 28)),
        bytes_of(std::string("\2\0\0\3\6\1\2\0\1\1\1\1\1\2\2\1\4\3\1\5\2\1\3\1\1\x0A\4\1", 28))}},
      {"char_map", parse_map, {map_of(model("t5_spiece/spiece.model"))}},
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
