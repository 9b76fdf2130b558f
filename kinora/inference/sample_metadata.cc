#include "kinora/inference/sample_metadata.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "kinora/core/error.h"

namespace kinora::inference {
namespace {

constexpr const char* kReadable = "parameters";
constexpr const char* kComplete = "kinora";
constexpr size_t kMostOptionBytes = io::kMostTextBytes / 4;

std::string readable(const SampleMetadata& metadata) {
  std::ostringstream text;
  text << (metadata.prompt.empty() ? metadata.label : metadata.prompt) << '\n';
  if (!metadata.negative.empty()) {
    text << "Negative prompt: " << metadata.negative << '\n';
  }
  text << "Steps: " << metadata.steps << ", Sampler: " << metadata.sampler
       << ", CFG scale: " << metadata.guidance << ", Seed: " << metadata.seed
       << ", Sample: " << metadata.index << ", Size: " << metadata.width << 'x' << metadata.height;
  if (metadata.frames > 1) {
    text << ", Frames: " << metadata.frames;
  }
  text << ", Model: " << metadata.model << ", Model hash: " << metadata.weights
       << ", Version: kinora " << metadata.version;
  return text.str();
}

/// JSON of any bytes: those that are not UTF-8 become U+FFFD.
std::string dumped(const nlohmann::json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

/// Of the sample alone.
OptionValues own_options(const SampleMetadata& metadata) {
  OptionValues options = metadata.options;
  options["--captions"] = {metadata.prompt};
  options["--count"] = {std::to_string(metadata.index + 1)};
  options["--batch"] = {"1"};
  return options;
}

}  // namespace

std::vector<io::PictureText> texts_of(const SampleMetadata& metadata) {
  nlohmann::json options = metadata.options;
  if (dumped(options).size() > kMostOptionBytes) {
    options = own_options(metadata);
  }
  const nlohmann::json json = {
      {"version", metadata.version}, {"prompt", metadata.prompt}, {"negative", metadata.negative},
      {"class", metadata.label},     {"model", metadata.model},   {"weights", metadata.weights},
      {"sampler", metadata.sampler}, {"steps", metadata.steps},   {"guidance", metadata.guidance},
      {"seed", metadata.seed},       {"sample", metadata.index},  {"width", metadata.width},
      {"height", metadata.height},   {"frames", metadata.frames}, {"options", options}};
  return {{.key = kReadable, .value = readable(metadata)},
          {.key = kComplete, .value = dumped(json)}};
}

SampleMetadata read_metadata(std::span<const io::PictureText> texts, const std::string& name) {
  const auto found = std::ranges::find(texts, kComplete, &io::PictureText::key);
  KINORA_CHECK(found != texts.end(), kIo, "[sample] ", name,
               " does not say what it was drawn from. Hint: pictures and clips that kinora sample "
               "wrote as png, webp, gif or mp4 do");
  try {
    const auto json = nlohmann::json::parse(found->value);
    return {.version = json.at("version"),
            .prompt = json.at("prompt"),
            .negative = json.at("negative"),
            .label = json.at("class"),
            .model = json.at("model"),
            .weights = json.at("weights"),
            .sampler = json.at("sampler"),
            .steps = json.at("steps"),
            .guidance = json.at("guidance"),
            .seed = json.at("seed"),
            .index = json.at("sample"),
            .width = json.at("width"),
            .height = json.at("height"),
            .frames = json.at("frames"),
            .options = json.at("options").get<OptionValues>()};
  } catch (const nlohmann::json::exception& error) {
    throw_error(ErrorKind::kIo, "[sample] what ", name,
                " says of its drawing is damaged: ", error.what());
  }
}

std::optional<SampleMetadata> read_file_metadata(const std::filesystem::path& path) {
  constexpr std::array<std::string_view, 4> kKeepTexts = {".png", ".webp", ".gif", ".mp4"};
  if (std::ranges::find(kKeepTexts, path.extension().string()) == kKeepTexts.end() ||
      !std::filesystem::is_regular_file(path)) {
    return std::nullopt;
  }
  const std::vector<io::PictureText> texts = io::read_file_texts(path);
  if (std::ranges::find(texts, kComplete, &io::PictureText::key) == texts.end()) {
    return std::nullopt;
  }
  return read_metadata(texts, path.string());
}

}  // namespace kinora::inference
