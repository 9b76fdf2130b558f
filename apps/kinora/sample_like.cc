#include "apps/kinora/sample_like.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <utility>
#include <variant>

#include "apps/kinora/options/command_line.h"
#include "kinora/core/build_info.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/io/picture_texts.h"
#include "kinora/models/model_config.h"

namespace kinora::apps {
namespace {

using inference::OptionValues;

constexpr const char* kDefaultOut = "samples-like";

/// Options that decide what a sample looks like: these alone are kept, and taken from a file. So
/// nothing that a file says makes Kinora write anywhere, or start processes.
constexpr std::array<std::string_view, 70> kKept = {"--run",
                                                    "--checkpoint",
                                                    "--config",
                                                    "--set",
                                                    "--weights",
                                                    "--lora",
                                                    "--low-noise-lora",
                                                    "--classes",
                                                    "--captions",
                                                    "--negative",
                                                    "--no-cleaning",
                                                    "--prompt-weights",
                                                    "--text-embeddings",
                                                    "--text-encoder",
                                                    "--embedding",
                                                    "--aesthetic-score",
                                                    "--motion-score",
                                                    "--camera-motion",
                                                    "--count",
                                                    "--only",
                                                    "--frames",
                                                    "--height",
                                                    "--width",
                                                    "--fps",
                                                    "--given",
                                                    "--given-frames",
                                                    "--frame-layout",
                                                    "--given-edit",
                                                    "--image-model",
                                                    "--last",
                                                    "--at",
                                                    "--video",
                                                    "--video-frames",
                                                    "--loop",
                                                    "--overlap",
                                                    "--batch",
                                                    "--sampler",
                                                    "--steps",
                                                    "--guidance",
                                                    "--seed",
                                                    "--autoencoder",
                                                    "--memory-budget",
                                                    "--precision",
                                                    "--quantise",
                                                    "--offload",
                                                    "--exchange-experts",
                                                    "--vram-budget",
                                                    "--init",
                                                    "--latents",
                                                    "--strength",
                                                    "--upsample",
                                                    "--upsample-steps",
                                                    "--upsample-adain",
                                                    "--upsample-tones",
                                                    "--noise",
                                                    "--device",
                                                    "--threads",
                                                    "--mask",
                                                    "--keep-image-size",
                                                    "--reference",
                                                    "--image-guidance",
                                                    "--deterministic",
                                                    "--format",
                                                    "--controlnet",
                                                    "--control",
                                                    "--control-scale",
                                                    "--ip-adapter",
                                                    "--ip-image",
                                                    "--ip-scale",
                                                    "--ip-encoder"};
constexpr std::array<std::string_view, 4> kFlags = {"--no-cleaning", "--deterministic",
                                                    "--keep-image-size", "--exchange-experts"};
constexpr std::array<std::string_view, 2> kModel = {"--run", "--checkpoint"};
constexpr std::array<std::string_view, 4> kNeeded = {"--run", "--checkpoint", "--image-model",
                                                     "--upsample"};
/// What is drawn: one of these on the command line counts instead of all that a file says of it.
constexpr std::array<std::string_view, 7> kAsked = {"--classes",  "--captions", "--text-embeddings",
                                                    "--count",    "--only",     "--captions-file",
                                                    "--wildcards"};

template <typename Names>
bool has(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

template <typename Names>
bool has_any(const OptionValues& options, const Names& names) {
  return std::ranges::any_of(options, [&](const auto& option) { return has(names, option.first); });
}

template <typename Names>
void remove(const Names& names, OptionValues& options) {
  std::erase_if(options, [&](const auto& option) { return has(names, option.first); });
}

std::vector<std::string> words_of(const OptionValues& options) {
  std::vector<std::string> words = {"kinora", "sample"};
  for (const auto& [name, values] : options) {
    if (has(kFlags, name)) {
      words.push_back(name);
      continue;
    }
    for (const std::string& value : values) {
      words.push_back(name + "=" + value);
    }
  }
  return words;
}

/// dpm++ of "dpm++", as configurations write it.
std::string unquoted(std::string word) {
  std::erase(word, '"');
  return word;
}

inference::SampleMetadata read(const std::string& path) {
  return inference::read_metadata(io::read_file_texts(path), path);
}

/// kIo where a model that a file names is not there.
void check_models(const OptionValues& options, const std::string& path) {
  for (const std::string_view name : kNeeded) {
    const auto found = options.find(std::string(name));
    if (found != options.end() && !found->second.empty()) {
      KINORA_CHECK(std::filesystem::exists(found->second.back()), kIo, "[sample] ", path,
                   " was drawn by ", quote(found->second.back()),
                   ", which is not here. Hint: ", has(kModel, name) ? "--model" : name, " PATH");
    }
  }
}

}  // namespace

LikeArguments arguments_like(const SampleArguments& arguments) {
  const inference::SampleMetadata drawn = read(arguments.like);
  OptionValues options = drawn.options;
  std::erase_if(options, [](const auto& option) { return !has(kKept, option.first); });
  const bool other_model = has_any(arguments.given, kModel);
  if (other_model) {
    remove(kModel, options);
    options.erase("--exchange-experts");  // it may have one
  }
  for (const char* name : {"--image-model", "--upsample"}) {
    if (arguments.given.contains(name)) {
      options.erase(name);
    }
  }
  check_models(options, arguments.like);
  if (has_any(arguments.given, kAsked)) {
    remove(kAsked, options);
  }
  for (const auto& [name, values] : arguments.given) {
    if (name != "--like") {
      options[name] = values;
    }
  }
  options.emplace("--out", std::vector<std::string>{kDefaultOut});
  const std::vector<std::string> words = words_of(options);
  std::vector<const char*> argv;
  std::ostringstream said;
  for (const std::string& word : words) {
    argv.push_back(word.c_str());
    said << (argv.size() == 1 ? "" : " ") << word;
  }
  CommandLine line = read_command_line(static_cast<int>(argv.size()), argv.data());
  if (!line.command) {
    log_info("[sample] what ", arguments.like, " was drawn by: ", said.str());
    return {.arguments = {}, .exit_code = line.exit_code, .command = {}, .weights = {}};
  }
  return {.arguments = std::get<SampleArguments>(std::move(*line.command)),
          .exit_code = 0,
          .command = said.str(),
          .weights = other_model ? "" : drawn.weights};
}

inference::SampleMetadata metadata_of(const SampleArguments& arguments,
                                      const inference::DrawingKey& key,
                                      const inference::ModelRecipe& recipe,
                                      const std::vector<std::string>& captions) {
  const models::ModelConfig& model = recipe.model;
  inference::SampleMetadata metadata{
      .version = std::string(build_info().version),
      .prompt = {},
      .negative = arguments.negative,
      .label = {},
      .model = arguments.run.empty() ? arguments.checkpoint : arguments.run,
      .weights = key.at("weights"),
      .sampler = unquoted(key.at("sample.method")),
      .steps = recipe.sample.sampling.steps,
      .guidance = arguments.request.guidance.value_or(recipe.sample.sampling.guidance),
      .seed = arguments.request.seed,
      .index = 0,
      .width = model.width * model.compression,
      .height = model.height * model.compression,
      .frames = model.frames * model.frame_compression,
      .options = arguments.given};
  std::erase_if(metadata.options, [](const auto& option) { return !has(kKept, option.first); });
  if (!captions.empty()) {
    metadata.options["--captions"] = captions;
  }
  return metadata;
}

inference::SampleMetadata metadata_of_sample(inference::SampleMetadata all, int64_t index,
                                             const std::vector<inference::Asked>& asked) {
  const inference::Asked& own = asked[static_cast<size_t>(index)];
  all.index = index;
  all.prompt = own.caption;
  all.label = own.label ? std::to_string(*own.label) : "";
  all.options["--only"] = {std::to_string(index)};
  return all;
}

}  // namespace kinora::apps
