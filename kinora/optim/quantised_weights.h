#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kinora/nn/module.h"
#include "kinora/nn/plan.h"
#include "kinora/ops/bucket_hook.h"
#include "kinora/ops/quantised_weight.h"
#include "kinora/optim/arena.h"

namespace kinora::optim {

/// Weights in few bits, in the buckets of rings. While a bucket is used, they lie widened in a room
/// that the buckets of its ring take turns in. So the device holds codes, and one bucket's weights
/// in the compute type; two where a block makes the vectors that modulate it, since backward of the
/// block before begins when these are still read.
class QuantisedWeights {
 public:
  struct Weight {
    Slot slot;  ///< offset: in the room of its bucket
    ops::QuantisedWeight codes;
  };

  /// Takes what is not trained of `parameters`, all of them where `train` is false, and points
  /// their values into the rooms. They must outlive this. All are zeros until they are loaded.
  QuantisedWeights(const std::vector<nn::NamedParameter>& parameters,
                   const QuantisedOptions& options, at::ScalarType compute_type, at::Device device,
                   bool train);

  [[nodiscard]] kernels::WeightFormat format() const { return format_; }
  [[nodiscard]] bool contains(const std::string& path) const { return places_.contains(path); }
  /// In the order of the buckets.
  [[nodiscard]] const std::vector<Weight>& weights() const { return weights_; }
  [[nodiscard]] int64_t num_elements() const;
  /// Of codes and scales.
  [[nodiscard]] int64_t code_bytes() const;
  [[nodiscard]] int64_t room_bytes() const;

  /// Sets a weight to the nearest of `value`. kShape.
  void load(const std::string& path, const at::Tensor& value);
  /// What a weight stands for, in its shape: a new tensor.
  [[nodiscard]] at::Tensor value(const std::string& path, at::ScalarType type) const;

  /// Widens the weights of a bucket when it is used, and then tells `next`, which may be empty.
  /// Borrows this.
  [[nodiscard]] ops::BucketHook hook(ops::BucketHook next = {}) const;

 private:
  kernels::WeightFormat format_;
  std::vector<Weight> weights_;
  std::vector<at::Tensor> widened_;            // [weight]: its place in a room
  std::vector<std::pair<size_t, size_t>> in_;  // [bucket of the model]: its weights, first and end
  std::unordered_map<std::string, size_t> places_;
  std::map<std::string, at::Tensor> rooms_;
};

/// The parameters and buckets without the weights that `quantised` has.
[[nodiscard]] std::vector<nn::NamedParameter> without(std::vector<nn::NamedParameter> parameters,
                                                      const QuantisedWeights& quantised);
[[nodiscard]] std::vector<nn::BucketSpec> without(std::vector<nn::BucketSpec> buckets,
                                                  const QuantisedWeights& quantised);

}  // namespace kinora::optim
