#include "kinora/inference/kept_tokenizer.h"

#include <memory>
#include <optional>

#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/pipelines/tokenizer_folder.h"
#include "kinora/tokenizers/tokenizer_files.h"

namespace kinora::inference {
namespace {

namespace fs = std::filesystem;
using tokenizers::TokenizerFiles;

const std::string kPrefix = "kinora.tokenizer.";
constexpr int64_t kMostBytes = int64_t{64} << 20;  // base64 of them fits a header

/// The copy in the folder of the run that the checkpoint or file of weights is in.
std::optional<fs::path> copy_in_run(const fs::path& path, const std::string& tokenizer) {
  fs::path folder = fs::absolute(path).lexically_normal();
  for (int i = 0; i < 3; ++i, folder = folder.parent_path()) {  // RUN/checkpoints/step-N
    if (!fs::exists(folder / "config.yaml")) {
      continue;
    }
    if (auto copy = pipelines::copied_tokenizer(tokenizer, folder / "tokenizer")) {
      return copy;
    }
  }
  return std::nullopt;
}

}  // namespace

void take_kept_tokenizer(const fs::path& path, const checkpoint::WeightsFile* file,
                         ModelRecipe& recipe) {
  std::string& tokenizer = recipe.text.tokenizer;
  if (tokenizer.empty()) {
    return;
  }
  if (file != nullptr) {
    if (auto files = TokenizerFiles::from_texts(
            [file](const std::string& name) { return file->metadata(kPrefix + name); },
            path.string())) {
      recipe.kept_tokenizer = std::make_shared<const TokenizerFiles>(*std::move(files));
      return;
    }
  }
  if (const auto copy = copy_in_run(path, tokenizer)) {
    tokenizer = copy->string();
  }
}

std::map<std::string, std::string> tokenizer_metadata(const ModelRecipe& recipe) {
  const std::string& path = recipe.text.tokenizer;
  if (path.empty()) {
    return {};
  }
  if (!recipe.kept_tokenizer && !fs::exists(path)) {
    log_warn("[text] the tokenizer ", path,
             " is not there, so the file of weights names it by its path alone. Hint: "
             "text.tokenizer=PATH where samples are drawn");
    return {};
  }
  const TokenizerFiles files =
      recipe.kept_tokenizer ? *recipe.kept_tokenizer : TokenizerFiles::read(path);
  if (files.num_bytes() > kMostBytes) {
    log_warn("[text] the tokenizer ", path, " has ", human_bytes(files.num_bytes()),
             ", more than a header holds, so the file of weights names it by its path alone");
    return {};
  }
  std::map<std::string, std::string> metadata;
  for (auto& [name, text] : files.texts()) {
    metadata[kPrefix + name] = text;
  }
  return metadata;
}

}  // namespace kinora::inference
