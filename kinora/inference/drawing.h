#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
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

  /// Draws batch by batch: pixels or latents, as the model has them. Each group of ranks has
  /// samples of its own, of which its first rank hears by events.done; all ranks of `world` call
  /// it. Batches that are whole in `there` (of each sample, the same on all ranks; empty: none is)
  /// are left out. False where this rank's group was stopped. kConfig where the ranks do not
  /// divide.
  bool draw_batches(const comm::Group& world, const pipelines::DrawEvents& events,
                    const std::vector<bool>& there = {});

  /// All samples by this process alone, float32 [B, C, H, W] or [B, C, T, H, W] on the CPU.
  [[nodiscard]] at::Tensor draw();

 private:
  /// The samples of one request, and their conditions by number.
  struct Part {
    int64_t first;  // among all
    int64_t count;
    pipelines::ConditionsOf conditions_of;
  };

  [[nodiscard]] std::vector<Asked> ask_for_classes(const Request& request,
                                                   pipelines::ConditionsOf& conditions);
  [[nodiscard]] std::vector<Asked> ask_for_texts(const Request& request,
                                                 pipelines::ConditionsOf& conditions);
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
