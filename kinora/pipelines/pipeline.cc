#include "kinora/pipelines/pipeline.h"

#include "kinora/core/error.h"
#include "kinora/pipelines/diffusers_pipeline.h"
#include "kinora/pipelines/open_sora_pipeline.h"

namespace kinora::pipelines {

std::filesystem::path Pipeline::part(const std::filesystem::path& path) const {
  std::filesystem::path found = folder / path;
  KINORA_CHECK(std::filesystem::exists(found), kIo, "[pipeline] ", folder, " is a ", class_name,
               ", but it lacks ", found, ". Hint: copy the whole folder of the pipeline");
  return found;
}

std::optional<Pipeline> find_pipeline(const std::filesystem::path& path) {
  auto found = find_diffusers_pipeline(path);
  return found ? found : find_open_sora(path);
}

std::string pipeline_recipe(const Pipeline& pipeline) {
  const bool is_open_sora = pipeline.text && pipeline.text->scores;
  return is_open_sora ? open_sora_recipe(pipeline) : diffusers_pipeline_recipe(pipeline);
}

}  // namespace kinora::pipelines
