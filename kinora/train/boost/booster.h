#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kinora/comm/group.h"
#include "kinora/device/stopwatch.h"
#include "kinora/diffusion/denoiser.h"
#include "kinora/optim/arena.h"
#include "kinora/optim/lr_schedule.h"
#include "kinora/optim/optimizer.h"
#include "kinora/parallel/data_parallel.h"
#include "kinora/parallel/mesh.h"
#include "kinora/train/boost/boostable.h"
#include "kinora/train/boost/booster_options.h"
#include "kinora/train/boost/torch_module.h"

namespace torch::nn {
class Module;
}
namespace kinora::data {
struct LoaderOptions;
}

/// The Booster: mixed precision, AdamW with averages, and many ranks for a model of one's own.
namespace kinora::train {

/// A model with all that training it needs on this rank: its state, its optimizer, and what the
/// ranks exchange.
///
///   for each step:  boosted.backward(loss);  boosted.step();
///
/// With accumulate(n), n calls of backward() make a step. The gradient is that of the mean of all
/// losses that ranks passed to backward() for a step, each the mean over as many samples. All ranks
/// make the same calls. Where ranks divide a module into stages (pp_size), a step is
///
///   boosted.execute_pipeline(input_of, loss_of);  boosted.step();
class Boosted {
 public:
  Boosted(const Boosted&) = delete;
  Boosted& operator=(const Boosted&) = delete;
  ~Boosted();

  /// Passes (forward and backward) of a step, from the next step on; 1 at first. Of zero3 with a
  /// torch::nn::Module a step begins with the first forward that records gradients. kConfig below
  /// 1.
  void accumulate(int64_t num_passes);
  /// Says that forward comes. A torch::nn::Module does not need it. A model of Kinora does, and
  /// forward takes what is returned.
  diffusion::Pass begin();
  /// Backward of `loss`: one element, in any floating type, on the model's device. kShape.
  void backward(const at::Tensor& loss);
  /// All passes of a step by the ranks of pp_size, in place of calls of backward(): each computes
  /// its stage of the torch::nn::Sequential that BoosterOptions::stages names. Of each pass i, of
  /// the n of accumulate(n), the first stage reads input_of(i), and loss_of(output, i) is the loss
  /// of what the last one makes. Both may use what is outside of the Sequential: every rank has it.
  /// It works on one rank, too. kConfig without such a Sequential; kShape where a stage ends in
  /// something else than a floating tensor.
  void execute_pipeline(
      const std::function<at::Tensor(int64_t pass)>& input_of,
      const std::function<at::Tensor(const at::Tensor& output, int64_t pass)>& loss_of);
  /// Updates the weights, with the learning rate that the schedule has for the step, and waits.
  /// kConfig before as many passes as make a step.
  optim::StepResult step();
  /// Steps so far, skipped ones included.
  [[nodiscard]] int64_t steps() const { return steps_; }

  /// Weights (raw or averaged, fp32) and buffers as a safetensors file. All ranks call it.
  void save_model(const std::filesystem::path& path,
                  optim::WeightSet weights = optim::WeightSet::raw());
  /// Weights and buffers from a file of the same names (checkpoint::WeightsFile); averages start
  /// anew. kIo.
  void load_model(const std::filesystem::path& path);
  /// What training goes on from, besides buffers: `folder`/step-N with master weights, moments,
  /// averages and counts, of any ranks and plugin. Returns its path. All ranks call it. kIo.
  std::filesystem::path save_optimizer(const std::filesystem::path& folder);
  /// From such a path, after load_model(). kIo.
  void load_optimizer(const std::filesystem::path& checkpoint);

  [[nodiscard]] optim::Arena& arena() const { return *arena_; }
  [[nodiscard]] optim::Optimizer& optimizer() const { return *optimizer_; }
  /// Nanoseconds for which computation has waited for other ranks so far, in steps, but for what
  /// tensor and sequence ranks exchange within a pass: as device::Stopwatch::total.
  [[nodiscard]] at::Tensor waited() const { return waiting_->total(); }
  /// Null: no other rank has gradients of the same weights.
  [[nodiscard]] parallel::DataParallel* parallel() const { return parallel_.get(); }

  // The steps by which backward() and step() work, for who runs passes of his own (TrainingStep).

  /// Which of its step's passes a pass is.
  struct Turn {
    bool first = true;
    bool last = true;

    bool operator==(const Turn&) const = default;
  };
  void begin_step();
  diffusion::Pass begin_pass(Turn turn);
  /// Backward of `share` times the loss, which ends the pass; adds that much to the step's loss.
  void end_pass(const at::Tensor& loss, double share);
  // Of a pipeline all passes of a step are one, begun as {.first = true, .last = false}, with a
  // backward for each; end_passes() ends it.
  void backward_of(const at::Tensor& loss, double share);
  /// What waited() is of, for waits between these.
  [[nodiscard]] device::Stopwatch& waiting() { return *waiting_; }
  /// Before the last backward.
  void begin_last_backward();
  /// Around each backward of a pipeline.
  void begin_backward();
  void end_backward();
  void end_passes();
  /// After the last pass: the step's loss over all ranks, fp32, no dims, on the device; the same
  /// tensor each time.
  at::Tensor end_step();
  /// Before begin_step() of a step whose update is to follow.
  void begin_update(double lr);
  /// Enqueues the update, or what passes have left of it (ArenaOptions::in_backward), and returns
  /// its number, for Optimizer::wait_report. `loss`: to be reported.
  int64_t enqueue_update(const at::Tensor& loss);
  /// Brings what forward reads up to date, for use outside of passes. All ranks call it.
  void refresh();

  /// Whether no other rank takes part in passes.
  [[nodiscard]] bool is_alone() const { return mesh_.world().size() == 1; }
  /// Whether passes may be recorded in CUDA graphs: not with what ranks of several hosts exchange,
  /// nor with updates beside backward.
  [[nodiscard]] bool can_be_recorded() const {
    const bool updates_beside = arena_->options().in_backward && optimizer_->runs_beside();
    return !updates_beside && (parallel_ == nullptr || parallel_->can_be_recorded());
  }
  /// What the ranks are to each other: "4 ranks, each with its own samples; ZeRO-2 among 4:
  /// master, moments, averages and gradients are divided, in 9 buckets". Empty alone.
  [[nodiscard]] std::string describe_ranks() const;

 private:
  friend class Booster;
  Boosted(std::unique_ptr<Boostable> model, const BoosterOptions& options,
          const parallel::Mesh& mesh, const optim::OptimizerConfig& optimizer,
          const optim::LrSchedule& schedule);
  /// Before forward reads a bucket, waits for its update; then tells `next`, which may be empty.
  [[nodiscard]] ops::BucketHook waiting_for_updates(ops::BucketHook next) const;
  /// What updates a bucket in backward; empty: nothing does.
  [[nodiscard]] std::function<void(size_t bucket)> updating();

  parallel::Mesh mesh_;
  optim::LrSchedule schedule_;
  std::unique_ptr<Boostable> model_;
  std::unique_ptr<optim::Arena> arena_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<device::Stopwatch> waiting_;
  std::unique_ptr<parallel::DataParallel> parallel_;
  bool waits_by_bucket_ = false;   // for updates that run beside the next forward
  at::Tensor loss_;                // of the step: fp32, no dims
  double lr_ = 0.0;                // of the step
  std::optional<int64_t> update_;  // the step's number, where passes update
  int64_t num_passes_ = 1;
  int64_t next_num_passes_ = 1;
  int64_t passes_ = 0;  // of the step, done
  std::optional<diffusion::Pass> begun_;
  int64_t steps_ = 0;
};

/// Prepares models for training as its options say.
///
///   const Booster booster({.plugin = "zero2"}, world);
///   Boosted boosted = booster.boost(model, {.weight_decay = 0.01}, {.value = 1e-3});
class Booster {
 public:
  /// All ranks of `world` make one. kConfig for options that cannot be had, kCuda for a GPU that
  /// is not there.
  explicit Booster(const BoosterOptions& options, const comm::Group& world = {});
  /// For ranks that are a mesh already, that of the options.
  Booster(const BoosterOptions& options, const parallel::Mesh& mesh);

  [[nodiscard]] at::Device device() const { return device_; }
  /// Ranks that compute on different samples, and this one's place among them.
  [[nodiscard]] int64_t data_ranks() const { return mesh_.data_ranks(); }
  [[nodiscard]] int64_t data_rank() const { return mesh_.data_rank(); }

  /// Any model of libtorch, whose parameters move to the device, in the options' precision, with
  /// the values of rank 0; see torch_module.h. It must not be used by others while the result
  /// lives. All ranks call it. kConfig.
  [[nodiscard]] Boosted boost(torch::nn::Module& model, const optim::OptimizerConfig& optimizer,
                              const optim::LrSchedule& schedule) const;
  /// Anything that offers what training needs.
  [[nodiscard]] Boosted boost(std::unique_ptr<Boostable> model,
                              const optim::OptimizerConfig& optimizer,
                              const optim::LrSchedule& schedule) const;
  /// The same loader, for this rank's part of its samples.
  [[nodiscard]] data::LoaderOptions boost(data::LoaderOptions loader) const;
  /// What the options ask of a torch::nn::Module.
  [[nodiscard]] TorchModuleOptions module_options(
      const optim::OptimizerConfig& optimizer = {}) const;
  /// `optimizer`, with what plugin gemini keeps at the host of so many trained parameters.
  [[nodiscard]] optim::OptimizerConfig placed(const optim::OptimizerConfig& optimizer,
                                              int64_t num_parameters) const;

 private:
  BoosterOptions options_;
  parallel::Mesh mesh_;
  at::Device device_;
};

}  // namespace kinora::train
