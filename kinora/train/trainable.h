#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kinora/models/model.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/parallel/mesh.h"
#include "kinora/parallel/pipeline.h"
#include "kinora/train/boost/booster.h"
#include "kinora/train/run_config.h"
#include "kinora/train/training_step.h"

namespace kinora::train {

/// The model of a recipe, on the path that the recipe asks for, boosted.
class Trainable {
 public:
  /// `config.model` is resolved. All ranks of the mesh make one. kConfig where the recipe cannot be
  /// had.
  Trainable(const RunConfig& config, const parallel::Mesh& mesh, at::Device device, uint64_t seed);

  [[nodiscard]] models::Model& model() { return *model_; }
  /// Null: the plain path.
  [[nodiscard]] ops::BlockKernels* kernels() const { return kernels_.get(); }
  [[nodiscard]] Boosted& boosted() { return boosted_; }
  /// Whether passes may be recorded in CUDA graphs: Boosted::can_be_recorded(), and all that ranks
  /// exchange goes through one communicator. Replays start the kernels of several in another order
  /// on each rank, so that they wait for each other forever (comm::Torus).
  [[nodiscard]] bool can_be_recorded() const;

  /// Of parallel.dynamic_sequence: the tokens of each sample are divided among so many ranks from
  /// now on, which may be 1, 2, 4, ..., parallel.sequence.
  void divide_among(int64_t ranks);

  [[nodiscard]] PipelineSettings pipeline() const {
    return {.links = links_.get(), .schedule = schedule_, .kernels = kernels_.get()};
  }

  [[nodiscard]] optim::Arena& arena() const { return boosted_.arena(); }
  [[nodiscard]] optim::Optimizer& optimizer() const { return boosted_.optimizer(); }

 private:
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<parallel::PipelineLinks> links_;
  parallel::PipelineSchedule schedule_;
  std::shared_ptr<ops::BlockKernels> kernels_;
  Boosted boosted_;
  bool has_one_communicator_ = true;
  std::vector<std::shared_ptr<const nn::Sequence>> sequences_;  // [k] of 2^k ranks
};

}  // namespace kinora::train
