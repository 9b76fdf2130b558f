#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kinora/kernels/optimizer.h"
#include "kinora/ops/optimizer_step.h"
#include "kinora/optim/arena.h"
#include "kinora/optim/disk_state.h"
#include "kinora/optim/factored.h"
#include "kinora/optim/far_updates.h"

namespace kinora::optim {

/// Every rule.
inline constexpr std::array kUpdateRules = {
    kernels::UpdateRule::kAdamW,       kernels::UpdateRule::kLion,
    kernels::UpdateRule::kSgd,         kernels::UpdateRule::kMuon,
    kernels::UpdateRule::kAdafactor,   kernels::UpdateRule::kCame,
    kernels::UpdateRule::kLamb,        kernels::UpdateRule::kProdigy,
    kernels::UpdateRule::kScheduleFree};

/// "adamw", "lion", "sgd", "muon", "adafactor", "came", "lamb", "prodigy" or "schedule_free": the
/// names in recipes and checkpoints.
[[nodiscard]] const char* to_string(kernels::UpdateRule rule);

/// "fp32" or "8bit".
[[nodiscard]] const char* to_string(kernels::MomentFormat format);

/// "fp32" or "bf16".
[[nodiscard]] const char* to_string(kernels::MasterFormat format);

/// torch.optim.AdamW's defaults, except for the weight decay. The learning rate comes with each
/// step.
struct OptimizerConfig {
  kernels::UpdateRule rule = kernels::UpdateRule::kAdamW;
  kernels::MomentFormat moments = kernels::MomentFormat::kF32;
  kernels::MasterFormat masters = kernels::MasterFormat::kF32;
  double momentum = 0.95;  ///< of Muon's matrices
  double beta1 = 0.9;      ///< of the first moment; SGD: the momentum
  double beta2 = 0.0;      ///< of AdamW's second moment, of Lion's momentum; 0: 0.999, 0.99
  double beta3 = 0.9999;   ///< of CAME's instability
  double eps = 1e-8;       ///< AdamW, LAMB, Prodigy, and Muon's other parameters
  /// Of every parameter; decoupled, but SGD's. LAMB's is a part of the direction.
  double weight_decay = 0.0;
  double max_grad_norm = 0.0;    ///< of all gradients together; 0: no clipping
  double offload = 0.0;          ///< ArenaOptions::offload
  double offload_weights = 0.0;  ///< ArenaOptions::offload_weights
  bool in_backward = false;      ///< ArenaOptions::in_backward
  std::string disk = {};         ///< ArenaOptions::disk
  double d0 = 1e-6;              ///< Prodigy: the distance that it begins with
  double d_coef = 1.0;           ///< Prodigy: what its estimates are multiplied by
};

struct StepResult {
  float grad_norm = 0.0F;   ///< before clipping; inf or NaN where skipped
  bool skipped = false;     ///< a gradient was not finite: no weight, moment or EMA has changed
  float loss_scale = 1.0F;  ///< of the next backward
  int64_t applied_steps = 0;
  int64_t skipped_steps = 0;
  float loss = 0.0F;  ///< as it was given; NaN if it was not
  double distance =
      0.0;  ///< Prodigy: what multiplies the learning rate of the next step; others: 0
};

/// What a checkpoint keeps beside the arena's arrays, for a resumed run to go on with the same
/// bits.
struct OptimizerState {
  kernels::UpdateRule rule = kernels::UpdateRule::kAdamW;
  kernels::MomentFormat moments = kernels::MomentFormat::kF32;
  kernels::MasterFormat masters = kernels::MasterFormat::kF32;
  int64_t applied_steps = 0;
  int64_t skipped_steps = 0;
  float loss_scale = 1.0F;
  int32_t good_steps = 0;  ///< applied steps since the loss scale last changed
  double distance = 0.0;   ///< of Prodigy (kernels::StepControl), as the next
  double distance_sum = 0.0;
  double largest_lr = 0.0;  ///< of Schedule-Free (kernels::StepControl), as the next
  double share_sum = 0.0;

  bool operator==(const OptimizerState&) const = default;
};

/// An update rule with clipping, the dynamic loss scale of fp16 and the arena's EMAs: one pass over
/// memory for the norm, one for everything else (kernels/optimizer.h). Of an arena that is divided
/// this rank's slices alone, with the norm of all; gradients stay as they are then. Parameters may
/// have factors of the learning rate (nn::Parameter::lr_factor). With Muon matrices
/// (Slot::is_matrix) take a second pass, and what lies between (orthogonalise); all else is
/// AdamW's. With LAMB and Prodigy everything takes one, and apply_trust_ratios or sum_distance lies
/// between. With Adafactor and CAME the passes of FactoredDirections come before.
///
/// With our kernels on a GPU a step is five launches (more by others than AdamW, Lion, SGD) that
/// depend on nothing but addresses: the learning rate and the results go through pinned memory. So
/// steps can be enqueued without waiting (up to kStepRing ahead), or recorded in a graph once and
/// replayed:
///
///   enqueue_step(arena, lr, loss)      is   begin_step(lr); launch_step(arena, loss);
///   a graph: launch_step recorded once;     then for each step begin_step(lr); replay;
///   wait_report(step)                  at any time until kStepRing steps later
///
/// With ArenaOptions::in_backward updates come one by one, which need no norm: no clipping then,
/// and a step whose gradients turn out not to be finite cannot be left out.
///
///   begin_updates(arena, lr);   for each bucket, when backward has its gradients: update(bucket);
///   end_updates(loss)
///
/// Buckets whose state lies out of a GPU's memory are updated beside it (FarUpdates): the GPU goes
/// on with the next forward meanwhile, and waits for each bucket before it reads it (wait_for), or
/// for all (wait_for_all). Such steps are not for graphs. State on a disk is updated piece by piece
/// on its way through memory (DiskUpdates).
class Optimizer {
 public:
  /// The loss scale is dynamic if the arena computes in fp16, else 1. Throws kConfig for values out
  /// of range, or an arena without training state or with that of another rule or other formats.
  /// own_kernels: false composes the update of libtorch's calls, which waits for the device.
  Optimizer(const OptimizerConfig& config, const Arena& arena, bool own_kernels = true);
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  /// Waits for steps on their way, which write to this object's memory.
  ~Optimizer();

  /// Updates all weights from the gradients, which it zeros. Waits for the device once, at the end.
  StepResult step(Arena& arena, double lr);

  /// The same without waiting; returns the step's number, counted from 1 over this object's life.
  /// @param loss  to appear in the report: one fp32 element on the arena's device, or undefined.
  int64_t enqueue_step(Arena& arena, double lr, const at::Tensor& loss = {});

  /// The results of a step, once it is done. Makes no call that waits for the device. kDiverged
  /// where updates in backward have used gradients that are not finite: weights and state are lost.
  [[nodiscard]] StepResult wait_report(int64_t step) const;

  /// Announces a step and its learning rate to the device, and returns its number. Waits only if
  /// the host is kStepRing steps ahead.
  int64_t begin_step(double lr);
  /// Enqueues a step's work on the current stream. `loss` must stay where it is for a recorded
  /// graph. Before recording one, call this once, or prepare(), which copies to the device.
  void launch_step(Arena& arena, const at::Tensor& loss = {});
  // Of an arena whose updates come in backward: a step in parts, on the current stream.
  /// Announces the step as begin_step does, and returns its number. Makes what steps on this arena
  /// need: before the first one, not while a graph is recorded.
  int64_t begin_updates(Arena& arena, double lr);
  /// Of bucket i of the arena, each once: its gradients are there. May be recorded in a graph where
  /// none runs beside (runs_beside).
  void update(size_t bucket);
  /// The current stream waits until the gradients of bucket i have been read.
  void wait_for_gradient(size_t bucket) const;
  void end_updates(const at::Tensor& loss = {});

  /// Of the gradients of all ranks' parameters, each counted once.
  void add_sum_squares(const Arena& arena);
  /// Does not zero the gradients of buckets that are no fp32 islands: the next backward overwrites
  /// them. Before the first step.
  void leave_gradients() { leaves_gradients_ = true; }
  /// Makes what steps on this arena need.
  void prepare(const Arena& arena);

  /// Whether launch_step leaves updates behind that run beside what comes next.
  [[nodiscard]] bool runs_beside() const { return far_ != nullptr; }
  /// What does; null: nothing.
  [[nodiscard]] const FarUpdates* far() const { return far_.get(); }
  /// The current stream waits for such updates: of bucket i of the arena; of all. Before weights or
  /// state are read, gradients written, or the next step launched.
  void wait_for(size_t bucket) const;
  void wait_for_all() const;

  /// What to multiply the loss by before backward: fp32, no dims, on the arena's device; always the
  /// current one.
  [[nodiscard]] at::Tensor loss_scale() const;

  /// Waits for the device, and for all updates.
  [[nodiscard]] OptimizerState state() const;
  /// kIo for values that no run can have.
  void restore(const OptimizerState& state);

 private:
  kernels::UpdatePolicy policy_;
  kernels::UpdateRule rule_;
  kernels::UpdateParameters parameters_;
  kernels::UpdateParameters of_matrices_;  // of kMuon
  at::Tensor control_;                     // kernels::StepControl in the device's memory
  at::Tensor exchange_;                    // kernels::StepExchange in the host's
  /// Of an arena: all buckets; those whose state is on the device; Muon's matrices, which are not
  /// in near_.
  ops::BucketTable table_;
  /// Of an arena whose updates come in backward, [bucket]: what updates it on the device; of others
  /// their gradients.
  std::vector<ops::BucketTable> updates_;
  std::vector<ops::BucketTable> far_grads_;
  // Where ranks divide the model: of what each along `tensor` has a part of, and of what all of
  // them have; of either what all stages have.
  ops::BucketTable boxes_;
  ops::BucketTable wholes_;
  ops::BucketTable shared_boxes_;
  ops::BucketTable shared_;
  ops::BucketTable near_;
  ops::BucketTable matrices_;
  kernels::FactoredRule factored_;                  // of kAdafactor and kCame
  std::unique_ptr<FactoredDirections> directions_;  // of these; null: composed
  std::unique_ptr<DiskUpdates> on_disk_;            // of buckets in none of these; null: none
  at::Tensor far_rooms_;                            // of far_
  std::unique_ptr<FarUpdates> far_;                 // of such buckets, too; null: none, or no GPU
  std::vector<at::Tensor> arrays_;                  // of the arena that table_ is of
  comm::Group shards_;                              // of the arena's state, where ranks divide it
  int64_t steps_ = 0;                               // begun
  bool leaves_gradients_ = false;
  bool in_backward_;
  bool own_kernels_;
};

}  // namespace kinora::optim
