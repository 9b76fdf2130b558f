#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/inference/draw_start.h"
#include "kinora/inference/drawing_group.h"
#include "kinora/inference/recipe.h"
#include "kinora/inference/request.h"
#include "kinora/inference/trained_model.h"
#include "kinora/pipelines/batch_cost.h"
#include "kinora/pipelines/cache_price.h"
#include "kinora/pipelines/draw.h"

namespace kinora::inference {

/// Samples that are going to be drawn.
class Drawing {
 public:
  /// Reads what they are to show; the samples of all requests lie one behind the other, and those
  /// of one size share batches. The model is borrowed. kConfig for what it does not take, and for
  /// texts of several sizes; kIo.
  Drawing(TrainedModel& trained, const std::vector<Request>& requests, const DrawOptions& options);

  Drawing(const Drawing&) = delete;
  Drawing& operator=(const Drawing&) = delete;

  /// The model's, with what the options change; of several sizes that of the first request.
  [[nodiscard]] const ModelRecipe& recipe() const { return groups_.front().recipe(); }
  /// One a sample.
  [[nodiscard]] const std::vector<Asked>& asked() const { return asked_; }

  /// What all samples begin with, from now on. kConfig for a strength that leaves no step, for
  /// samples of several sizes, and for clips of several pieces; kShape.
  void set_start(const DrawStart& start);

  /// Times what drawing the first samples together and one by one costs (sample.batch_invariant),
  /// on this process alone.
  [[nodiscard]] pipelines::BatchCost batch_cost();

  /// What the first batch is drawn as with the model's step cache and without, by this process
  /// alone, and how long it takes.
  struct CacheTrial {
    pipelines::CachePrice price;  ///< without psnr
    at::Tensor with;              ///< float32 [samples, ...] on the CPU
    at::Tensor without;
  };
  [[nodiscard]] CacheTrial try_cache();

  /// Draws batch by batch, size after size: pixels or latents, as the model has them. Each group of
  /// ranks has samples of its own, of which its first rank hears by events.done; all ranks of
  /// `world` call it. Batches that are whole in `there` (of each sample, the same on all ranks;
  /// empty: none is) are left out. False where this rank's group was stopped. kConfig where the
  /// ranks do not divide.
  bool draw_batches(const comm::Group& world, const pipelines::DrawEvents& events,
                    const std::vector<bool>& there = {});

  /// All samples by this process alone, of each request float32 [B, C, H, W] or [B, C, T, H, W] on
  /// the CPU.
  [[nodiscard]] std::vector<at::Tensor> draw_each();

  /// The same in one tensor. kConfig where requests are of several sizes.
  [[nodiscard]] at::Tensor draw();

 private:
  DrawOptions options_;
  std::vector<DrawingGroup> groups_;  // one a size, in the order of the requests
  std::vector<Asked> asked_;
  std::vector<int64_t> counts_;  // samples of each request
};

}  // namespace kinora::inference
