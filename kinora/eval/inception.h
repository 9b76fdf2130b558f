#pragma once

#include <map>
#include <string>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/eval/feature_network.h"
#include "kinora/eval/folded_conv.h"

namespace kinora::eval {

/// The Inception v3 of FID (Szegedy et al. 2016, as TensorFlow's inception-2015-12-05 has it), with
/// the names of pytorch-fid's and torch-fidelity's weights, which are torchvision's. It differs
/// from torchvision's network: average pools do not count padding, the last block's pool takes the
/// maximum, and there are 1008 classes.
class Inception : public FeatureNetwork {
 public:
  static constexpr int64_t kSize = 299;  ///< pixels a side
  static constexpr int64_t kFeatures = 2048;
  static constexpr int64_t kClasses = 1008;

  /// kIo for tensors that are missing or of other shapes.
  Inception(const checkpoint::WeightsFile& file, InputResize resize, at::Device device);

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] bool is_fid() const override { return true; }
  [[nodiscard]] at::Tensor prepare(const at::Tensor& sample) const override;
  /// Features: the last average pool's. Logits: without the bias, as inception scores are computed.
  [[nodiscard]] NetworkOutput forward(const at::Tensor& inputs) const override;

 private:
  enum class LastPool { kMean, kMax };

  [[nodiscard]] at::Tensor conv(const at::Tensor& x, const std::string& name) const;
  /// The convolutions `names` below `block`, one after the other.
  [[nodiscard]] at::Tensor chain(at::Tensor x, const std::string& block,
                                 std::initializer_list<const char*> names) const;
  [[nodiscard]] at::Tensor block_a(const at::Tensor& x, const std::string& block) const;
  [[nodiscard]] at::Tensor block_b(const at::Tensor& x, const std::string& block) const;
  [[nodiscard]] at::Tensor block_c(const at::Tensor& x, const std::string& block) const;
  [[nodiscard]] at::Tensor block_d(const at::Tensor& x, const std::string& block) const;
  [[nodiscard]] at::Tensor block_e(const at::Tensor& x, const std::string& block,
                                   LastPool pool) const;

  InputResize resize_;
  std::map<std::string, FoldedConv> convs_;
  at::Tensor classifier_;  ///< [1008, 2048]
};

}  // namespace kinora::eval
