#include "kinora/tokenizers/tokenizer_files.h"

#include <array>
#include <span>
#include <system_error>
#include <utility>

#include "kinora/core/base64.h"
#include "kinora/core/error.h"
#include "kinora/core/printable.h"
#include "kinora/io/file.h"

namespace kinora::tokenizers {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJson = "tokenizer.json";
constexpr const char* kSentencePiece = "spiece.model";
constexpr const char* kVocabulary = "vocab.json";
constexpr const char* kWordPieces = "vocab.txt";
/// Each goes before those behind it.
constexpr std::array kMain = {kJson, kSentencePiece, kVocabulary, kWordPieces};
constexpr std::array kBeside = {"merges.txt", "tokenizer_config.json", "special_tokens_map.json"};

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

/// The file of `folder` that says what the tokenizer is; empty: there is none.
fs::path main_file(const fs::path& folder) {
  for (const char* name : {kJson, kSentencePiece, "tokenizer.model", kVocabulary, kWordPieces}) {
    if (is_file(folder / name)) {
      return folder / name;
    }
  }
  return {};
}

/// What the main file would be called, whatever it is called.
std::string main_name(const fs::path& file) {
  return file.extension() == ".model"     ? kSentencePiece
         : file.filename() == kVocabulary ? kVocabulary
         : file.extension() == ".txt"     ? kWordPieces
                                          : kJson;
}

bool belongs_to(const std::string& name, const std::string& main) {
  return name != "merges.txt" || main == kVocabulary;
}

}  // namespace

TokenizerFiles TokenizerFiles::read(const fs::path& path) {
  std::error_code ignored;
  const bool is_folder = fs::is_directory(path, ignored);
  const std::string shown = printable_line(path.string());
  const fs::path file = is_folder ? main_file(path) : path;
  KINORA_CHECK(!file.empty(), kIo, "[tokenizer] ", shown,
               " must have tokenizer.json, spiece.model, tokenizer.model, vocab.json with "
               "merges.txt, or vocab.txt, got none of them");
  KINORA_CHECK(is_folder || is_file(file), kIo, "[tokenizer] ", shown,
               " must be a folder or a file, got ",
               fs::exists(path, ignored) ? "neither" : "nothing",
               ". Hint: the folder of a tokenizer is often called tokenizer");
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  TokenizerFiles files(main_name(file), printable_line(folder.string()));
  const auto add = [&files](const std::string& name, const fs::path& from) {
    files.files_[name] = {.shown = from.string(), .bytes = io::read_text(from, kMaxTokenizerBytes)};
  };
  add(files.main_, file);
  for (const char* name : kBeside) {
    if (belongs_to(name, files.main_) && fs::exists(folder / name, ignored)) {
      add(name, folder / name);
    }
  }
  return files;
}

std::map<std::string, std::string> TokenizerFiles::texts() const {
  std::map<std::string, std::string> texts;
  for (const auto& [name, file] : files_) {
    texts[name] = encode_base64(std::as_bytes(std::span(file.bytes)));
  }
  return texts;
}

std::optional<TokenizerFiles> TokenizerFiles::from_texts(
    const std::function<std::string(const std::string& name)>& text_of, const std::string& origin) {
  const auto add = [&](const std::string& name, const std::string& text, TokenizerFiles& files) {
    const std::string shown = origin + ": " + name;
    std::optional<std::string> bytes = decode_base64(text);
    KINORA_CHECK(bytes, kIo, "[tokenizer] ", printable_line(shown), " must be base64");
    KINORA_CHECK(std::ssize(*bytes) <= kMaxTokenizerBytes, kIo, "[tokenizer] ",
                 printable_line(shown), " must have at most ", kMaxTokenizerBytes, " bytes, got ",
                 bytes->size());
    files.files_[name] = {.shown = shown, .bytes = std::move(*bytes)};
  };
  for (const char* main : kMain) {
    const std::string text = text_of(main);
    if (text.empty()) {
      continue;
    }
    TokenizerFiles files(main, printable_line(origin));
    add(main, text, files);
    for (const char* name : kBeside) {
      if (const std::string beside = text_of(name); !beside.empty() && belongs_to(name, main)) {
        add(name, beside, files);
      }
    }
    return files;
  }
  return std::nullopt;
}

const TokenizerFiles::File* TokenizerFiles::find(const std::string& name) const {
  const auto found = files_.find(name);
  return found == files_.end() ? nullptr : &found->second;
}

const TokenizerFiles::File& TokenizerFiles::at(const std::string& name) const {
  const File* const file = find(name);
  KINORA_CHECK(file != nullptr, kIo, "[tokenizer] ", shown_, " must have ", name, " beside ", main_,
               ", got none");
  return *file;
}

int64_t TokenizerFiles::num_bytes() const {
  int64_t sum = 0;
  for (const auto& [name, file] : files_) {
    sum += std::ssize(file.bytes);
  }
  return sum;
}

}  // namespace kinora::tokenizers
