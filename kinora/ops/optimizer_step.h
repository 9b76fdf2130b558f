#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kinora/kernels/optimizer.h"

/// The optimizer's kernels (kernels/optimizer.h) on tensors. On the CPU the plain kernels, in
/// parallel; on a GPU one launch each for all buckets, which waits for nothing and can be recorded
/// in a graph, or ATen calls in a build without nvcc, which wait. Results on the CPU do not depend
/// on the number of threads.
namespace kinora::ops {

/// A control block on `device`, uint8 [sizeof(StepControl)].
[[nodiscard]] at::Tensor make_step_control(const kernels::StepControl& start, at::Device device);

/// Its content. Waits for the device.
[[nodiscard]] kernels::StepControl read_step_control(const at::Tensor& control);

/// The sum of squares within the control block: double, no dims, on its device.
[[nodiscard]] at::Tensor sum_squares_of(const at::Tensor& control);

/// Of the step that prepare_update was of, likewise: what gradients are multiplied by, fp32;
/// whether it is skipped, int32; the steps applied with it, int64.
[[nodiscard]] at::Tensor multiplier_of(const at::Tensor& control);
[[nodiscard]] at::Tensor skip_of(const at::Tensor& control);
[[nodiscard]] at::Tensor applied_steps_of(const at::Tensor& control);

/// Within the control block, likewise: double [2], kernels::StepControl's distance_terms and
/// grad_sum_norm.
[[nodiscard]] at::Tensor distance_sums_of(const at::Tensor& control);

/// The loss scale within the control block: fp32, no dims, on its device; follows the updates.
[[nodiscard]] at::Tensor loss_scale_of(const at::Tensor& control);

/// What host and device tell each other, uint8 [sizeof(StepExchange)], zeroed: host memory, pinned
/// where `device` is a GPU.
[[nodiscard]] at::Tensor make_step_exchange(at::Device device);

/// Sets the learning rate of step `step` (counted from 1). The step kStepRing before it must be
/// done.
void set_step_lr(const at::Tensor& exchange, int64_t step, double lr);

/// The report of step `step` if it is there. Throws kInternal if a later one has taken its place.
[[nodiscard]] std::optional<kernels::StepReport> find_report(const at::Tensor& exchange,
                                                             int64_t step);

/// The report of step `step`, once it is there: looks again and again, without a call that waits
/// for the device. Throws kCuda if the device has failed.
[[nodiscard]] kernels::StepReport wait_report(const at::Tensor& exchange, int64_t step,
                                              at::Device device);

/// Contiguous tensors of one size on one device: with codes or without a master of whole blocks of
/// kCodeBlock elements, aligned.
struct OptimizerBucket {
  at::Tensor master;               ///< fp32; undefined: compute is all there is
  at::Tensor grad;                 ///< fp32, zero afterwards
  at::Tensor exp_avg;              ///< fp32, or uint8: codes; undefined: the rule has none
  at::Tensor exp_avg_sq;           ///< likewise; undefined: the rule has none
  std::vector<at::Tensor> ema;     ///< fp32, at most kMaxEmas
  at::Tensor compute;              ///< bf16 or fp16; undefined: none
  bool leaves_grad = false;        ///< grad need not be zero afterwards
  double lr_factor = 1.0;          ///< of the step's learning rate
  at::Tensor exp_avg_scales = {};  ///< fp32, one for each kCodeBlock elements; of codes alone
  at::Tensor exp_avg_sq_scales = {};
  uint64_t rounding = 0;  ///< without a master: as in kernels::UpdateBuffers, as the next
  int64_t place = 0;
  at::Tensor base = {};  ///< fp32, as the next; undefined: the rule has none
  at::Tensor grad_sum = {};

  [[nodiscard]] int64_t numel() const { return grad.numel(); }
  [[nodiscard]] at::Device device() const { return grad.device(); }
};

/// Buckets on one device with what the kernels need to go over all of them: made once.
class BucketTable {
 public:
  /// No buckets.
  BucketTable() = default;
  /// All with the same number of EMAs. Throws kShape. Copies the table to the device: not within a
  /// graph.
  /// own_kernels: false on a GPU composes the update of ATen calls.
  explicit BucketTable(std::vector<OptimizerBucket> buckets, bool own_kernels = true);

  [[nodiscard]] const std::vector<OptimizerBucket>& buckets() const { return buckets_; }
  [[nodiscard]] int64_t num_chunks() const { return num_chunks_; }
  /// kernels::UpdateBucket [buckets], uint8 on the device; undefined where no kernel of ours reads
  /// it.
  [[nodiscard]] const at::Tensor& device_table() const { return device_table_; }
  /// Scratch of the sum of squares.
  [[nodiscard]] const at::Tensor& workspace() const { return workspace_; }

 private:
  std::vector<OptimizerBucket> buckets_;
  int64_t num_chunks_ = 0;
  at::Tensor device_table_;
  at::Tensor workspace_;
};

/// Adds the sum of squares of all gradients to grad_sum_squares. Throws kShape if the control block
/// is on another device.
void add_sum_squares(const BucketTable& table, const at::Tensor& control);

/// kernels::prepare_update, where the control block lies.
/// @param exchange  undefined: the learning rate in the control block stays.
void prepare_update(const at::Tensor& control, const kernels::UpdatePolicy& policy,
                    const at::Tensor& exchange = {});

/// kernels::conclude_update, where the control block lies.
void conclude_update(const at::Tensor& control);

/// kernels::make_directions over all buckets.
void make_directions(const BucketTable& table, const kernels::UpdateParameters& parameters,
                     const at::Tensor& control);

/// kernels::adapt_distance, where the control block lies.
void adapt_distance(const at::Tensor& control, const kernels::UpdatePolicy& policy);

/// kernels::update_weights over all buckets; parameters.num_emas is theirs. Throws kShape.
void update_weights(const BucketTable& table, const kernels::UpdateParameters& parameters,
                    const at::Tensor& control);
/// add_sum_squares and update_weights; on a GPU gradients are read once where states are fp32.
void update_and_add_squares(const BucketTable& table, const kernels::UpdateParameters& parameters,
                            const at::Tensor& control);

/// Writes the report of the step that the control block has just been through.
/// @param loss  one fp32 element on the device, or undefined.
void publish_report(const at::Tensor& control, const at::Tensor& loss, const at::Tensor& exchange);

/// make_directions and update_weights of one bucket as ATen calls, on any device: the path of a GPU
/// without our own kernels, and the oracle of tests. They wait for the device, to read the control
/// block.
void make_directions_composed(const OptimizerBucket& bucket,
                              const kernels::UpdateParameters& parameters,
                              const at::Tensor& control);
void update_weights_composed(const OptimizerBucket& bucket,
                             const kernels::UpdateParameters& parameters,
                             const at::Tensor& control);

/// The norm of the elements, fp32, no dims: their magnitudes added up, or the root of their
/// squares' sum. A GPU adds fp32 in a tree; elsewhere sums are in double.
[[nodiscard]] at::Tensor norm_of(const at::Tensor& values, int64_t order);

/// out = in, rounded to nearest even. in: fp32, contiguous; out: same size, bf16 or fp16,
/// contiguous, same device. Throws kShape.
void round_to(const at::Tensor& in, const at::Tensor& out);

}  // namespace kinora::ops
