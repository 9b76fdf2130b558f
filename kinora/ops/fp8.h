#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "kinora/kernels/fp8.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/ops/fp8_state.h"

/// Training in 8-bit floats: the quantised weights, and the scales of the operands (kernels/fp8.h).
namespace kinora::ops {

/// Where the scales of inputs and gradients come from. Weights are quantised by their own magnitude
/// in each of them; with a scale for each tensor frozen ones that have no more digits than E4M3, as
/// those of a file in it, by a power of two, which loses none.
enum class Fp8Scaling : uint8_t {
  /// One a tensor, from its largest magnitudes in the last steps (Micikevicius et al. 2022). They
  /// are known before the tensor is: the kernel that makes it quantises it, too.
  kDelayed,
  /// One a tensor, from its own largest magnitude: two more passes over every operand, and nothing
  /// to measure first.
  kCurrent,
  /// One for each 128 elements that a product adds up (Liu et al. 2024, "DeepSeek-V3", section
  /// 3.3), of weights for each 128 x 128: one more pass over every operand. Needs Hopper.
  kBlock,
};

/// What is computed in fp8.
enum class Fp8Use : uint8_t {
  kTraining,
  /// Passes without gradients, of weights that stay: delayed scaling, whose scales begin anew with
  /// each run of sampling. A run's first pass takes each operand's scale from the operand itself.
  /// Nothing has a transposed copy.
  kSampling,
};

/// Inputs and weights are E4M3, gradients E5M2; with block scaling, where a factor has few elements
/// to fit, gradients are E4M3, too, which has one bit more.
class Fp8 {
 public:
  /// `num_linears`: linears are numbered from 0. kConfig where the device has no fp8 products.
  Fp8(int64_t num_linears, at::Device device, Fp8Scaling scaling = Fp8Scaling::kDelayed,
      Fp8Use use = Fp8Use::kTraining);

  /// What sizes of fp8 products are multiples of: both widths of a linear, and with block scaling
  /// rows.
  static constexpr int64_t kMultiple = 16;

  /// Whether products on `device` can be fp8 ones: built with nvcc, compute capability 8.9 or more.
  [[nodiscard]] static bool possible(at::Device device);

  [[nodiscard]] at::Device device() const { return device_; }
  [[nodiscard]] Fp8Scaling scaling() const { return scaling_; }
  [[nodiscard]] Fp8Use use() const { return use_; }
  [[nodiscard]] bool is_for_sampling() const { return use_ == Fp8Use::kSampling; }

  /// Forgets all magnitudes, as before the first step: before a run of sampling, and behind passes
  /// that were none of training. Does not wait for the device.
  void begin_anew();

  /// Once before the passes of an optimizer step, in sampling before each pass: makes the new
  /// scales of delayed scaling. Does not wait for the device.
  void begin_step();
  /// Behind it, block by block: learns of the linears, which are numbered as they stand, and makes
  /// room for the copies of their weights. Quantises those that are not trained and stay, where
  /// they were written to or lie elsewhere.
  void know(const std::vector<LinearWeights>& of_block);

  /// Before the first step: weights that are trained, or that are frozen, come before they are read
  /// and go again, as those that ranks divide. Their copies are of one block at a time.
  void trained_take_turns() { trained_take_turns_ = true; }
  void frozen_take_turns() { frozen_take_turns_ = true; }

  /// When the weights of a block are there, before its forward and before its backward: quantises
  /// those that take turns, and so overwrites those of the block before; of those that stay the
  /// trained ones, in a forward that finds new ones, or is the first of a step that has this block
  /// in fp8. Forward finds the scales.
  void begin_block(const std::vector<LinearWeights>& linears, bool is_forward, bool are_new);

  /// With delayed scaling nothing is known of inputs and gradients in the first step: training
  /// computes it in the block's type, and only measures. The step after restore() is no first one.
  [[nodiscard]] bool is_calibrating() const {
    return is_delayed() && num_steps_ <= 1 && !is_for_sampling();
  }
  /// Whether an operand's scale is known before the operand, so that what makes it can quantise it.
  [[nodiscard]] bool knows_scales() const { return is_delayed() && num_steps_ > 1; }

  /// What another run of the same model needs to go on after the steps so far; nothing before the
  /// first, and nothing but with delayed scaling. Waits for the device.
  [[nodiscard]] std::optional<Fp8State> state() const;
  /// Goes on from there, with delayed scaling: the next step computes in fp8, with the scales that
  /// it would have had. kIo for the state of another number of linears or with a fault_of().
  void restore(const Fp8State& state);

  /// The largest magnitudes of this step's inputs and gradients so far, which begin_step() will
  /// make scales of: ranks that train one model take the largest of all, and then state() is that
  /// of each. Delayed scaling; else undefined.
  [[nodiscard]] at::Tensor magnitudes() const { return is_delayed() ? amax_ : at::Tensor(); }
  /// Of the linears whose weights are quantised.
  [[nodiscard]] int64_t num_linears() const { return static_cast<int64_t>(linears_.size()); }
  /// The number of the first part of the linear that this is a part of: its own if there is none.
  [[nodiscard]] int64_t first_part(int64_t number) const { return linear(number).first_part; }
  /// [out, in]
  [[nodiscard]] const Operand& weight(int64_t number) const { return linear(number).weight; }
  /// Whether its weight has a gradient: the product of both transposed copies.
  [[nodiscard]] bool trains_weight(int64_t number) const { return linear(number).trains_weight; }
  /// The ranks of its low-rank updates together. Above 0 its operands have their values, too, which
  /// the updates read.
  [[nodiscard]] int64_t update_rank(int64_t number) const { return linear(number).update_rank; }

  enum Role : int64_t { kInput, kGradient };
  /// Counts the matrix's magnitudes for the next step's scale. Delayed scaling.
  void measure(const at::Tensor& value, int64_t number, Role role);
  /// The 8-bit copies of the input or gradient of linear `number`, beside the value where it has
  /// updates. column_sums: fp32 [C], those of `value` are added; undefined: not wanted.
  [[nodiscard]] Operand quantise(const at::Tensor& value, int64_t number, Role role,
                                 const at::Tensor& column_sums = {});
  /// The same, not filled yet, and what a kernel that makes the matrix needs to fill it: where
  /// knows_scales().
  [[nodiscard]] Operand unfilled(at::IntArrayRef shape, int64_t number, Role role) const;
  [[nodiscard]] kernels::Fp8Output output(const Operand& operand, Role role) const;

 private:
  struct Linear {
    Operand weight{};  ///< of those that take turns in room that others have, too
    int64_t first_part = -1;
    bool trains_weight = true;
    int64_t update_rank = 0;
    int64_t quantised_in = -1;  ///< of a trained one that stays: turn_ then
    bool knows_digits = false;  ///< of a frozen one: its number in weight_digits_ is known
    // Of a frozen one, as it was quantised. While this refers to it, nothing else has its address.
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage{};
    int64_t offset = 0;
    int64_t version = -1;
  };
  [[nodiscard]] const Linear& linear(int64_t number) const {
    return linears_[static_cast<size_t>(number)];
  }
  /// Whether its 8-bit copies are of the weight as it is.
  [[nodiscard]] bool is_quantised(const LinearWeights& linear) const;
  [[nodiscard]] bool is_delayed() const { return scaling_ == Fp8Scaling::kDelayed; }
  /// Where a tensor's number lies in amax_ and so on.
  [[nodiscard]] static int64_t place(int64_t number, Role role) {
    return kStride * (2 * number + role);
  }
  /// Of amax_, history_ or scale_, those of inputs and gradients (dim 1) of the linears (dim 0).
  [[nodiscard]] at::Tensor of_linears(const at::Tensor& numbers) const;
  /// Room for the copies of a weight [out, in], with factors where scaling is by blocks.
  [[nodiscard]] Operand unfilled_weight(at::IntArrayRef shape) const;
  [[nodiscard]] bool trains(const LinearWeights& linear) const {
    return !is_for_sampling() && linear.weight_grad.defined();
  }
  [[nodiscard]] bool takes_turns(const LinearWeights& linear) const {
    return trains(linear) ? trained_take_turns_ : frozen_take_turns_;
  }
  /// Makes room for the linears of a block that are not known yet.
  void make_room(const std::vector<LinearWeights>& of_block);
  /// New scales of these, by number, from their magnitudes; none where scaling is by blocks.
  void scale_weights(const std::vector<LinearWeights>& linears);
  /// Whether a frozen weight has more digits than E4M3, and so which bits its scale has. Does not
  /// wait for the device.
  void learn_digits(const LinearWeights& linear);
  void fill_weight(const LinearWeights& linear, bool with_transposed);
  /// Of a matrix, not filled yet.
  [[nodiscard]] Operand unfilled_bytes(at::IntArrayRef shape, bool has_transposed) const;
  /// Whether a product of the linear reads the transposed copies of its inputs and gradients.
  [[nodiscard]] bool has_transposed(int64_t number) const {
    return !is_for_sampling() && trains_weight(number);
  }

  int64_t num_linears_;
  at::Device device_;
  Fp8Scaling scaling_;
  Fp8Use use_;
  int64_t num_steps_ = 0;
  int64_t turn_ = 0;  // of begin_step()
  // Numbers of a tensor are kStride apart: products want their scales on 16 bytes. Inputs and
  // gradients of linear i are tensors 2 i and 2 i + 1; weights are apart.
  static constexpr int64_t kStride = 4;
  at::Tensor amax_, history_, largest_, scale_, inverse_;
  at::Tensor weight_amax_, weight_largest_, weight_scale_, weight_inverse_;
  at::Tensor weight_digits_;  // int32: the bits of a weight's scale that count
  std::vector<Linear> linears_;
  bool trained_take_turns_ = false;
  bool frozen_take_turns_ = false;
  // [out, in]: what weights of that shape take turns in, as many as a block has at most.
  std::map<std::pair<int64_t, int64_t>, std::vector<Operand>> rooms_;
};

/// The type of the 8-bit copies.
[[nodiscard]] DType fp8_type(Fp8Scaling scaling, Fp8::Role role);

}  // namespace kinora::ops
