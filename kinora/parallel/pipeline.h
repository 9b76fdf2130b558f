#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/device/stopwatch.h"
#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/step_cache.h"
#include "kinora/nn/module.h"
#include "kinora/nn/plan.h"
#include "kinora/optim/arena.h"

/// Pipeline parallelism: each rank of a group has some of a model's consecutive blocks, a stage,
/// and sends what these make of a micro-batch to the next. What is not in blocks (embedders, the
/// last layer) every rank has, and computes conditions from, so that streams of tokens alone
/// travel.
namespace kinora::parallel {

/// In which order a rank computes the micro-batches of a step.
enum class PipelineSchedule : uint8_t {
  /// Narayanan et al. 2021 ("Efficient large-scale language model training on GPU clusters"),
  /// sections 2.2.1 and, with several stages a rank, 2.2.2.
  k1F1B,
  /// ZB-H1 of Qi et al. 2023 ("Zero bubble pipeline parallelism"), section 2.3: the gradients of
  /// weights are computed when a rank would wait.
  kZeroBubble,
};

/// Which blocks are where: those of stage s are begins[s], ..., begins[s + 1] - 1, in order of use,
/// and on rank s % ranks.
struct StagePlan {
  int64_t ranks = 1;
  std::vector<int64_t> begins = {0};

  [[nodiscard]] int64_t num_stages() const { return std::ssize(begins) - 1; }
  /// Stages of each rank.
  [[nodiscard]] int64_t chunks() const { return num_stages() / ranks; }
  [[nodiscard]] int64_t rank_of(int64_t stage) const { return stage % ranks; }
  [[nodiscard]] int64_t stage_of_block(int64_t use) const;
};

/// The division of blocks of these costs into ranks * chunks stages whose dearest costs least.
/// kConfig where there are fewer blocks.
[[nodiscard]] StagePlan plan_stages(const std::vector<double>& costs, int64_t ranks,
                                    int64_t chunks);

/// A piece of work: of micro-batch number `micro_batch`, by the rank's stage number `chunk`.
struct PipelineAction {
  enum class Kind : uint8_t {
    kForward,
    kBackward,  ///< of kZeroBubble: of what travels alone
    kWeights,   ///< kZeroBubble: the gradients of weights
  };
  Kind kind = Kind::kForward;
  int64_t micro_batch = 0;
  int64_t chunk = 0;

  bool operator==(const PipelineAction&) const = default;
};

/// What `rank` of plan.ranks does, in order. kConfig where the schedule is not for so many
/// micro-batches, or stages a rank.
[[nodiscard]] std::vector<PipelineAction> pipeline_actions(PipelineSchedule schedule,
                                                           const StagePlan& plan, int64_t rank,
                                                           int64_t micro_batches);

/// Says of each parameter in whose stage it lies, before parameters have memory. buckets: the
/// model's.
void divide_blocks(nn::Module& model, const std::vector<nn::BucketSpec>& buckets,
                   const StagePlan& plan, int64_t rank);

/// What travels between stages. Those of a rank to its neighbours, and back, each have a group of
/// their own: a send may wait for its receive, and nothing else must wait for that.
class PipelineLinks {
 public:
  /// All ranks of the group call it.
  PipelineLinks(const comm::Group& group, StagePlan plan);

  [[nodiscard]] const StagePlan& plan() const { return plan_; }
  [[nodiscard]] const comm::Group& group() const { return group_; }

  using Streams = std::vector<at::Tensor>;
  /// From the stage before `stage`: of the shapes and types of `like`.
  [[nodiscard]] Streams receive_streams(int64_t stage, const Streams& like);
  /// To the stage behind it.
  void send_streams(int64_t stage, const Streams& streams);
  /// The outline of a stream that is to come from the stage before: a tensor of its shape and type
  /// on `device`, of one element's memory, which requires gradients where the stream does. It comes
  /// from host to host: neither waits for its device.
  [[nodiscard]] at::Tensor receive_outline(int64_t stage, at::Device device);
  /// To the stage behind it. kShape unless the stream is of floats, in kMaxDims dims at most.
  void send_outline(int64_t stage, const at::Tensor& stream);
  static constexpr int64_t kMaxDims = 8;
  /// From the stage behind `stage`, of what was sent to it.
  [[nodiscard]] Streams receive_gradients(int64_t stage, const Streams& like);
  /// To the stage before it.
  void send_gradients(int64_t stage, const Streams& gradients);
  /// Waits for what was sent.
  void finish();
  /// What adds up from now on for how long computation waits for what it receives, borrowed; null:
  /// nothing does.
  void time_waits(device::Stopwatch* waiting) { waiting_ = waiting; }

 private:
  /// Between `stage` and the next.
  [[nodiscard]] const comm::Group& link(bool of_gradients, int64_t stage) const;
  void send(const comm::Group& link, const Streams& tensors, int64_t rank);
  void receive(const comm::Group& link, const at::Tensor& tensor, int64_t rank);

  comm::Group group_;
  StagePlan plan_;
  std::array<comm::Group, 4> links_;  // streams, gradients; and both of the way around
  std::deque<std::pair<comm::Work, at::Tensor>> sent_;
  device::Stopwatch* waiting_ = nullptr;
};

/// A stage's blocks in one pass: receives what they read, sends what they make, and keeps both ends
/// of the pass for its backward.
class StagePass : public diffusion::Stage {
 public:
  /// Borrows the links.
  StagePass(PipelineLinks& links, int64_t stage);

  [[nodiscard]] std::vector<at::Tensor> enter(const std::vector<at::Tensor>& like) override;
  void leave(const std::vector<at::Tensor>& streams) override;
  /// The same of one stream, of which the receiver does not know the shape. What requires no
  /// gradient gets none.
  [[nodiscard]] at::Tensor enter_one(at::Device device);
  void leave_one(const at::Tensor& stream);

  /// Whether the model's last block is here: then backward begins with a loss.
  [[nodiscard]] bool is_last() const;
  /// Backward from what the next stage sends; not of the last stage.
  void backward();
  /// Sends the gradients of what was received; when backward has run.
  void send_gradients();

 private:
  PipelineLinks& links_;
  int64_t stage_;
  std::vector<at::Tensor> received_;  // leaves
  std::vector<at::Tensor> made_;      // with their graph
};

/// The ranks of `world` that share the blocks of one model: `size` of them, as along a mesh's axis
/// `pipeline`. All ranks call it. kConfig unless it divides them.
[[nodiscard]] comm::Group stage_group(const comm::Group& world, int64_t size);

/// The stages of this rank, for passes without gradients.
class StagePipeline : public diffusion::Pipeline {
 public:
  /// Borrows the links.
  explicit StagePipeline(PipelineLinks& links);

  [[nodiscard]] const std::vector<std::unique_ptr<diffusion::Stage>>& stages() const override {
    return stages_;
  }
  [[nodiscard]] at::Tensor share(const at::Tensor& own, const at::Tensor& like) const override;

 private:
  PipelineLinks& links_;
  std::vector<std::unique_ptr<diffusion::Stage>> stages_;
};

/// Sampling by a model whose blocks ranks divide: the rows of a batch (samples, and with guidance
/// unconditional ones) follow each other through the stages, and so do the patches of a row where
/// the model's step cache has any: each rank computes one while others compute the next. With P
/// ranks of equal stages, R rows of M patches a prediction takes R M + P - 1 stages' time of a
/// patch. All ranks call it with the same tensors, and have the whole result. Nothing is prepared
/// for it. Without gradients.
class RowsInFlight : public diffusion::Denoiser {
 public:
  /// Both are borrowed. out_channels: of a prediction.
  RowsInFlight(diffusion::Denoiser& model, PipelineLinks& links, int64_t out_channels);

  [[nodiscard]] std::unique_ptr<diffusion::StepCache> make_cache() override {
    return model_.make_cache();
  }

 private:
  [[nodiscard]] at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) override;

  diffusion::Denoiser& model_;
  StagePipeline pipeline_;
  int64_t out_channels_;
};

/// Sums over the ranks of `arena.options().pipeline` the gradients of what each of them has: of a
/// step, when other ranks' samples are in them. Each rank has the same slices of these.
void add_shared_gradients(const optim::Arena& arena);

}  // namespace kinora::parallel
