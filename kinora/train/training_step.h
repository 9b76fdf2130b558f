#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/data/batch.h"
#include "kinora/device/graph.h"
#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/frame_mask.h"
#include "kinora/diffusion/importance.h"
#include "kinora/diffusion/objective.h"
#include "kinora/models/model_config.h"
#include "kinora/train/boost/booster.h"
#include "kinora/train/boost/pipeline_run.h"
#include "kinora/train/micro_batch.h"
#include "kinora/train/recording_choice.h"

namespace kinora::train {

/// What a training step computes by, besides the data.
struct StepSettings {
  uint64_t seed = 0;
  double label_dropout = 0.0;
  double pooled_dropout = 0.0;  ///< of vectors by themselves; 0: with label_dropout
  models::ModelConfig model = {};
  diffusion::FrameMaskRatios frame_masks = {};  ///< of clips
  int64_t ranks = 1;                            ///< over which gradients are averaged
  at::Device device = at::kCPU;
  /// Record forward and backward of a micro-batch as a CUDA graph, one for each shape of input.
  bool graphs = false;
  /// Where shapes are many: bytes that graphs may take (RecordingChoice). None: they are few.
  std::optional<int64_t> graph_limit = {};
  PipelineSettings pipeline = {};
  /// Divides the tokens of samples among so many ranks from now on (Trainable::divide_among), for
  /// steps of SpreadPasses, without graphs.
  std::function<void(int64_t ranks)> divide_among = {};
  int64_t most_ranks = 1;  ///< of it, and what holds outside of steps
};

/// Micro-batches of prior_data among those of a step.
struct PriorPasses {
  int64_t count = 0;    ///< the last ones
  double weight = 0.0;  ///< of their mean loss
};

/// Micro-batches of which each has its own number of ranks (parallel/sequence_schedule.h), so that
/// ranks may have different ones, and different numbers of them.
struct SpreadPasses {
  int64_t samples = 0;              ///< of all ranks; 0: passes are not spread
  std::vector<int64_t> ranks = {};  ///< that divide each of this rank's micro-batches
};

/// Forward and backward of the micro-batches of one optimizer step: of this rank's, with the
/// gradients of all.
class TrainingStep {
 public:
  /// All are borrowed; `boosted` is `denoiser` for training. `importance` may be null: then times
  /// are drawn as the objective says.
  TrainingStep(diffusion::Denoiser& denoiser, Boosted& boosted,
               const diffusion::Objective& objective, diffusion::LossSecondMoment* importance,
               const StepSettings& settings);

  ~TrainingStep();

  /// Adds the gradients of the mean loss over the global batch, and of the weighted mean over what
  /// of it is `prior`, times the optimizer's loss scale, to those that the parameters have. Every
  /// rank has as many samples, of the same shape, unless they are `spread`. Returns the sum of
  /// these means, fp32, no dims, on the device, over the samples of all ranks: until the next call.
  /// Does not wait for the device; the batches must live until it is done.
  [[nodiscard]] at::Tensor forward_backward(const std::vector<data::Batch>& micro_batches,
                                            int64_t step, const PriorPasses& prior = {},
                                            const SpreadPasses& spread = {});

  /// The same predictions without gradients, to look at what modules return.
  void forward_only(const std::vector<data::Batch>& micro_batches, int64_t step,
                    const SpreadPasses& spread = {});

  /// Seconds of forward and backward of a micro-batch whose tokens `ranks` ranks divide: the least
  /// of `passes` behind `warmup` others. All ranks call it. Gradients are zero then.
  [[nodiscard]] double pass_seconds(const data::Batch& batch, int64_t ranks, int64_t warmup,
                                    int64_t passes);

  /// "3 CUDA graphs of 5 shapes of batches, 1.2 GiB", where shapes are many and may be recorded.
  [[nodiscard]] std::string describe_graphs() const;

  /// Gives importance sampling the losses of the last forward_backward, those of all ranks; waits
  /// for the device. Nothing to do without.
  void update_importance();

 private:
  struct MicroLoss {
    diffusion::Loss loss;  // nothing where a stage ends before the last block
    at::Tensor t;
  };
  struct Recorded;
  /// What the model takes of a batch in this step, on the host.
  [[nodiscard]] MicroBatch inputs_of(const data::Batch& batch, int64_t step) const;
  [[nodiscard]] MicroLoss micro_loss(const MicroBatch& batch, const ops::RandomStep& step,
                                     const diffusion::Pass& pass);
  /// A pass, and its part of the loss of a step.
  struct Part {
    Boosted::Turn turn;
    double share = 1.0;
    bool operator==(const Part&) const = default;
  };
  /// Forward and backward of micro-batches of which each has its own number of ranks. Gradients are
  /// exchanged behind the last one, since ranks end at different ones.
  void spread_steps(const std::vector<data::Batch>& micro_batches, const SpreadPasses& spread,
                    int64_t step);
  /// Forward and backward of all micro-batches by stages, in the order of the schedule.
  void pipeline_steps(const std::vector<data::Batch>& micro_batches, const std::vector<Part>& parts,
                      int64_t step);
  /// Keeps for importance sampling what a stage of a pass knows of its losses: zeros where that is
  /// nothing.
  void see_losses(const MicroLoss& micro, int64_t samples, int64_t chunk);
  /// Forward and backward of one micro-batch.
  void micro_step(const MicroBatch& batch, const Part& part, const ops::RandomStep& step);
  [[nodiscard]] Recorded& recorded_for(const MicroBatch& batch, const Part& part);
  /// As micro_step, by a graph if there is one, or if one can be recorded now.
  void replay(const MicroBatch& batch, const Part& part, int64_t step);
  [[nodiscard]] bool try_to_record(Recorded& recorded);

  diffusion::Denoiser& denoiser_;
  Boosted& boosted_;
  const diffusion::Objective& objective_;
  diffusion::LossSecondMoment* importance_;
  StepSettings settings_;
  std::vector<at::Tensor> seen_t_;
  std::vector<at::Tensor> seen_loss_;
  RecordingChoice recording_;
  bool has_room_ = true;                     // for one more graph, as far as is known
  std::unique_ptr<device::GraphPool> pool_;  // of all graphs: none reads what another one leaves
  at::Tensor graph_step_;                    // int64 [1] on the device: the step, for graphs
  int64_t graph_inputs_ = 0;                 // bytes
  std::vector<std::unique_ptr<Recorded>> recorded_;  // one a shape
};

}  // namespace kinora::train
