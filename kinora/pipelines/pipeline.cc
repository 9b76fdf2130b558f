#include "kinora/pipelines/pipeline.h"

#include "kinora/core/error.h"
#include "kinora/pipelines/compvis_pipeline.h"
#include "kinora/pipelines/diffusers_model.h"
#include "kinora/pipelines/diffusers_pipeline.h"
#include "kinora/pipelines/open_sora2_pipeline.h"
#include "kinora/pipelines/open_sora_pipeline.h"

namespace kinora::pipelines {

std::filesystem::path Pipeline::part(const std::filesystem::path& path) const {
  std::filesystem::path found = folder / path;
  KINORA_CHECK(std::filesystem::exists(found), kIo, "[pipeline] ", folder, " (", class_name,
               ") lacks ", found, ". Hint: ",
               std::filesystem::is_directory(folder)
                   ? "copy the whole folder of the pipeline"
                   : "no such file holds it; put it there, or say where it is with --tokenizer");
  return found;
}

std::optional<Pipeline> find_pipeline(const std::filesystem::path& path) {
  for (const auto find :
       {find_diffusers_pipeline, find_open_sora, find_open_sora2, find_compvis_pipeline}) {
    if (auto found = find(path)) {
      return found;
    }
  }
  return std::nullopt;
}

std::string pipeline_recipe(const Pipeline& pipeline) {
  return pipeline.recipe(pipeline);
}

std::string model_recipe(const std::filesystem::path& path) {
  std::string recipe = diffusers_recipe(path);
  return recipe.empty() ? compvis_recipe(path) : recipe;
}

}  // namespace kinora::pipelines
