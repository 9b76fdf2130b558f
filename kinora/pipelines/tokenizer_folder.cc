#include "kinora/pipelines/tokenizer_folder.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"
#include "kinora/pipelines/diffusers_config.h"
#include "kinora/pipelines/text_encoder_file.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;

/// One of these makes a folder a tokenizer's.
constexpr std::array<std::string_view, 5> kTokenizerFiles = {
    "tokenizer.json", "spiece.model", "tokenizer.model", "vocab.json", "vocab.txt"};
/// Read beside them.
constexpr std::array<std::string_view, 3> kBesideTokenizer = {"merges.txt", "tokenizer_config.json",
                                                              "special_tokens_map.json"};

constexpr int64_t kMostBytes = int64_t{1} << 28;  // of a file

/// What Tokenizer::load() may read of the folder or file.
std::vector<fs::path> files_of(const fs::path& path) {
  const bool is_folder = fs::is_directory(path);
  const fs::path folder = is_folder ? path : path.parent_path();
  std::vector<fs::path> files;
  for (const std::string_view name : kBesideTokenizer) {
    files.push_back(folder / name);
  }
  if (is_folder) {
    for (const std::string_view name : kTokenizerFiles) {
      files.push_back(folder / name);
    }
  } else {
    files.push_back(path);
  }
  std::erase_if(files, [](const fs::path& file) { return !fs::is_regular_file(file); });
  return files;
}

}  // namespace

bool has_tokenizer(const fs::path& folder) {
  return std::ranges::any_of(kTokenizerFiles, [&folder](std::string_view name) {
    return fs::is_regular_file(folder / name);
  });
}

std::vector<fs::path> tokenizer_places(const fs::path& text_encoder) {
  fs::path folder = fs::absolute(text_encoder).lexically_normal();
  if (!folder.has_filename()) {
    folder = folder.parent_path();
  }
  if (!fs::is_directory(folder)) {
    folder = folder.parent_path();
  }
  // text_encoder/ and text_encoder_2/ of a pipeline.
  constexpr std::string_view kEncoder = "text_encoder";
  const std::string name = folder.filename().string();
  const std::string number = name.starts_with(kEncoder) ? name.substr(kEncoder.size()) : "";
  std::vector<fs::path> places = {folder, folder / "tokenizer",
                                  folder.parent_path() / ("tokenizer" + number),
                                  folder / "tokenizer_2"};  // of SDXL's refiner, without another
  // That of the T5 behind CLIPs (Flux, Stable Diffusion 3).
  for (const char* last : {"_2", "_3"}) {
    const fs::path config = folder / ("text_encoder" + std::string(last)) / "config.json";
    if (fs::is_regular_file(config) &&
        DiffusersConfig(config).get<std::string>("model_type", "") == "t5") {
      places.insert(places.begin(), folder / ("tokenizer" + std::string(last)));
    }
  }
  places.push_back(folder / kOpenSora2Encoders.back());
  return places;
}

fs::path find_tokenizer(const fs::path& text_encoder) {
  const std::vector<fs::path> places = tokenizer_places(text_encoder);
  const auto found = std::ranges::find_if(places, has_tokenizer);
  std::vector<std::string> names;
  for (const fs::path& place : places) {
    names.push_back(place.string());
  }
  KINORA_CHECK(found != places.end(), kIo, "[tokenizer] none of ", list_names(names, places.size()),
               " has a tokenizer (",
               list_names({kTokenizerFiles.begin(), kTokenizerFiles.end()}, kTokenizerFiles.size()),
               "). Hint: name its folder by --tokenizer, in a recipe by text.tokenizer");
  return *found;
}

void copy_tokenizer(const fs::path& path, const fs::path& folder) {
  fs::create_directories(folder);
  for (const fs::path& file : files_of(path)) {
    io::write_file_atomic(folder / file.filename(), io::read_file(file, kMostBytes));
  }
}

std::optional<fs::path> copied_tokenizer(const fs::path& path, const fs::path& folder) {
  // A file of a name of its own, or a folder's.
  if (path.has_filename() && fs::is_regular_file(folder / path.filename())) {
    return folder / path.filename();
  }
  return has_tokenizer(folder) ? std::optional(folder) : std::nullopt;
}

std::string tokenizer_fingerprint(const fs::path& path) {
  io::Checksum checksum;
  for (const fs::path& file : files_of(path)) {
    const std::vector<std::byte> bytes = io::read_file(file, kMostBytes);
    const std::string head = file.filename().string() + " " + std::to_string(bytes.size()) + "\n";
    checksum.update(std::as_bytes(std::span(head)));
    checksum.update(bytes);
  }
  return checksum.hex();
}

void check_vocabulary(const tokenizers::Tokenizer& tokenizer, const std::string& encoder,
                      int64_t vocab_size) {
  KINORA_CHECK(tokenizer.vocab_size() <= vocab_size, kConfig, "[tokenizer] ", encoder,
               " has a vocabulary of ", vocab_size, ", but the tokenizer has ",
               tokenizer.vocab_size(), " tokens. Hint: take both from one pipeline");
}

}  // namespace kinora::pipelines
