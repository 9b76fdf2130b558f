#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <string>

#include "kinora/eval/resize_input.h"

namespace kinora::eval {

/// What a network says of a batch.
struct NetworkOutput {
  at::Tensor features;  ///< float32 [B, D]
  at::Tensor logits;    ///< float32 [B, K], before softmax; undefined: the network has no classes
};

/// A network whose features are compared. Its weights are constant.
class FeatureNetwork {
 public:
  FeatureNetwork() = default;
  FeatureNetwork(const FeatureNetwork&) = delete;
  FeatureNetwork& operator=(const FeatureNetwork&) = delete;
  virtual ~FeatureNetwork() = default;

  /// Tells networks whose features must not be compared from each other: how it is built, how it
  /// resizes and, unless it is the Inception of FID, a checksum of its weights. ASCII.
  [[nodiscard]] virtual std::string name() const = 0;

  /// Whether a Frechet distance of its features may be called FID.
  [[nodiscard]] virtual bool is_fid() const { return false; }

  /// What forward() takes of a sample: uint8 [3, H, W], or [3, T, H, W] of a clip, on the CPU. Any
  /// number of threads at once. kShape for samples that the network does not take.
  [[nodiscard]] virtual at::Tensor prepare(const at::Tensor& sample) const = 0;

  /// inputs: [B, ...], what prepare() made of samples, on the network's device.
  [[nodiscard]] virtual NetworkOutput forward(const at::Tensor& inputs) const = 0;
};

/// Which network, and what it is given.
struct NetworkChoice {
  /// Weights (.safetensors, or what torch.save wrote) of the Inception of FID or of a ResNet-20 for
  /// CIFAR-10, told apart by their names; or a description of them, .json.
  std::filesystem::path weights = {};
  /// A TorchScript file instead, which may run code of its author.
  std::filesystem::path script = {};
  InputResize resize = InputResize::kClean;  ///< of the Inception
  int64_t script_size = 0;                   ///< pixels a side; 0: as the samples are
  PixelRange script_range = PixelRange::kBytes;
};

/// "KIND CHECKSUM" of a file: a name of its content.
[[nodiscard]] std::string named_by_content(const std::string& kind,
                                           const std::filesystem::path& path);

/// Opens it on `device`. A description is an object with "architecture" ("inception-v3-fid" or
/// "resnet20-cifar") and "weights" (a path from the description's folder), and for the ResNet
/// perhaps "mean" and "std" by channel (of pixels in [0, 1]). kIo for files that are none of these,
/// kConfig unless one of both is given.
[[nodiscard]] std::unique_ptr<FeatureNetwork> open_network(const NetworkChoice& choice,
                                                           at::Device device);

}  // namespace kinora::eval
