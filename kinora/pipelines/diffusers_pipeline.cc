#include "kinora/pipelines/diffusers_pipeline.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "kinora/core/error.h"
#include "kinora/pipelines/diffusers_config.h"
#include "kinora/pipelines/diffusers_scheduler.h"
#include "kinora/pipelines/diffusers_transformer.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPipelineFile = "model_index.json";

/// A class of diffusers with the defaults of its __call__.
struct PipelineClass {
  std::string_view name;
  int64_t text_tokens;  // max_sequence_length
  int64_t steps;
  double guidance;
};
constexpr std::array<PipelineClass, 2> kPipelines = {{
    {.name = "PixArtAlphaPipeline", .text_tokens = 120, .steps = 20, .guidance = 4.5},
    {.name = "PixArtSigmaPipeline", .text_tokens = 300, .steps = 20, .guidance = 4.5},
}};

}  // namespace

fs::path TextPipeline::part(const std::string& path) const {
  fs::path found = folder / path;
  KINORA_CHECK(fs::exists(found), kIo, "[diffusers] ", folder, " is a ", class_name,
               ", but it lacks ", found, ". Hint: copy the whole folder of the pipeline");
  return found;
}

std::optional<TextPipeline> find_text_pipeline(const fs::path& path) {
  const fs::path index = path / kPipelineFile;
  if (!fs::is_regular_file(index)) {
    return std::nullopt;
  }
  const auto name = DiffusersConfig(index).get<std::string>("_class_name", "");
  const auto* const found = std::ranges::find(kPipelines, name, &PipelineClass::name);
  if (found == kPipelines.end()) {
    return std::nullopt;
  }
  return TextPipeline{.folder = path, .class_name = name, .text_tokens = found->text_tokens};
}

std::string pipeline_recipe(const TextPipeline& pipeline) {
  (void)pipeline.part("transformer/config.json");
  const fs::path scheduler = pipeline.part("scheduler/scheduler_config.json");
  json recipe = json::parse(diffusers_recipe(pipeline.folder));
  recipe["sample"] = json::parse(sampling_recipe(scheduler));
  const auto& its = *std::ranges::find(kPipelines, pipeline.class_name, &PipelineClass::name);
  recipe["sample"]["steps"] = its.steps;
  recipe["sample"]["guidance"] = its.guidance;
  recipe["autoencoder"]["path"] = (pipeline.folder / "vae").string();
  return recipe.dump(2);
}

}  // namespace kinora::pipelines
