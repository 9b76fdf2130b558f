#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "kinora/data/data_config.h"
#include "kinora/data/source.h"
#include "kinora/inference/request.h"
#include "kinora/models/model_config.h"

namespace kinora::eval {

/// Says exactly what samples show.
class SampleJudge {
 public:
  /// Opens the data of the run for the names of its classes. kConfig where there is no judge for
  /// what it shows, or for latents.
  SampleJudge(const data::DataConfig& data, const models::ModelConfig& model);

  /// kConfig where what was asked names no class; of layouts where it is none; of scenes and of
  /// generated clips, where the caption is not worded as theirs.
  [[nodiscard]] int64_t label_of(const inference::Asked& asked) const;

  /// Whether `sample`, float32 [3, H, W] or [3, T, H, W] in [-1, 1], shows what was asked.
  /// Errors of label_of().
  [[nodiscard]] bool is_right(const at::Tensor& sample, const inference::Asked& asked) const;

 private:
  enum class Kind { kShapes, kMovingShapes, kMotions, kScenes, kLayouts };

  std::unique_ptr<data::Source> data_;
  Kind kind_ = Kind::kShapes;
};

}  // namespace kinora::eval
