#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/data/source.h"
#include "kinora/inference/prompts.h"
#include "kinora/inference/recipe.h"
#include "kinora/inference/request.h"
#include "kinora/inference/trained_model.h"
#include "kinora/pipelines/clips.h"
#include "kinora/pipelines/draw.h"

namespace kinora::inference {

/// Samples that are going to be drawn.
class Drawing {
 public:
  /// Reads what they are to show; the samples of all requests lie one behind the other, and share
  /// batches. The model is borrowed. kConfig for what it does not take, and for texts of several
  /// sizes; kIo.
  Drawing(TrainedModel& trained, const std::vector<Request>& requests, const DrawOptions& options);

  /// The model's, with what the options change.
  [[nodiscard]] const ModelRecipe& recipe() const { return recipe_; }
  /// One a sample.
  [[nodiscard]] const std::vector<Asked>& asked() const { return asked_; }

  /// All samples, float32 [B, C, H, W] or [B, C, T, H, W] on the CPU: pixels or latents, as the
  /// model has them. All ranks of `world` call it, and those but rank 0 get some only. `progress`
  /// is called with the number of samples done, fractions included. kConfig where the ranks do not
  /// divide.
  [[nodiscard]] at::Tensor draw(const comm::Group& world = {},
                                const std::function<void(double)>& progress = {});

 private:
  using ConditionsOf = std::function<pipelines::DrawConditions(int64_t first, int64_t size)>;

  /// The samples of one request, and their conditions by number.
  struct Part {
    int64_t first;  // among all
    int64_t count;
    ConditionsOf conditions_of;
  };

  [[nodiscard]] std::vector<Asked> ask_for_classes(const Request& request,
                                                   ConditionsOf& conditions);
  [[nodiscard]] std::vector<Asked> ask_for_texts(const Request& request, ConditionsOf& conditions);
  [[nodiscard]] pipelines::DrawConditions conditions_of(int64_t first, int64_t size) const;

  TrainedModel& trained_;
  ModelRecipe recipe_;
  DrawOptions options_;
  std::vector<Asked> asked_;
  std::vector<pipelines::SampleToDraw> samples_;
  std::vector<Part> parts_;
  std::optional<data::TextShape> text_shape_;  // of all requests
  pipelines::ClipOptions clips_;
};

}  // namespace kinora::inference
