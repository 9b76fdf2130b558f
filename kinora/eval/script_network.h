#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "kinora/eval/feature_network.h"

namespace kinora::eval {

/// A TorchScript file as feature network. It runs what its author wrote, with this user's rights:
/// only for files from people who are trusted.
///
/// Its method forward takes float32 [B, 3, H, W], or [B, 3, T, H, W] of clips, and returns features
/// [B, D], perhaps with sizes of 1 behind, or a tuple of features and logits. Boolean arguments
/// named return_features, rescale and resize get true: the published networks of StyleGAN's and
/// StyleGAN-V's authors have these.
class ScriptNetwork : public FeatureNetwork {
 public:
  /// kIo for files that are no TorchScript. Of `choice` all that is of scripts is used.
  ScriptNetwork(const NetworkChoice& choice, std::string name, at::Device device);
  ~ScriptNetwork() override;

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] at::Tensor prepare(const at::Tensor& sample) const override;
  /// kShape for outputs of another form, kConfig for what the script throws.
  [[nodiscard]] NetworkOutput forward(const at::Tensor& inputs) const override;

 private:
  struct Script;

  std::string name_;
  int64_t size_;
  PixelRange range_;
  std::unique_ptr<Script> script_;
};

/// A TorchScript file whose forward takes two frames. Only for files from people who are trusted,
/// likewise.
class PairScript {
 public:
  /// kIo for files that are no TorchScript.
  PairScript(const std::filesystem::path& path, at::Device device);
  ~PairScript();

  [[nodiscard]] const std::string& name() const { return name_; }

  /// first, second: float32 [B, 3, H, W]. Returns a tensor of floats as float32. kShape for what is
  /// none, kConfig for what the script throws.
  [[nodiscard]] at::Tensor forward(const at::Tensor& first, const at::Tensor& second) const;

 private:
  struct Script;

  std::string name_;
  std::unique_ptr<Script> script_;
};

}  // namespace kinora::eval
