#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kinora/eval/feature_network.h"
#include "kinora/models/text_encoders/clip_image_encoder.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/pipelines/image_encoder_file.h"
#include "kinora/tokenizers/tokenizer.h"

namespace kinora::eval {

/// Both towers of a CLIP (Radford et al. 2021), which put pictures and prompts into one space. Its
/// features of a picture are P numbers, a vector of length 1; those of a clip are its frames'
/// vectors, one after the other.
class ClipNetwork : public FeatureNetwork {
 public:
  /// folder: transformers' CLIPModel with its tokenizer and preprocessor_config.json. In fp32.
  /// kIo, kConfig for parts that are missing or do not fit together.
  ClipNetwork(const std::filesystem::path& folder, at::Device device);

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] at::Tensor prepare(const at::Tensor& sample) const override;
  [[nodiscard]] NetworkOutput forward(const at::Tensor& inputs) const override;

  /// The prompts' vectors of length 1: float32 [N, P] on the CPU. What is longer than the tower's
  /// positions is cut off, which the log says.
  [[nodiscard]] at::Tensor embed(const std::vector<std::string>& prompts) const;

 private:
  std::string name_;
  pipelines::ImagePreprocessing preprocessing_;
  tokenizers::Tokenizer tokenizer_;
  std::unique_ptr<models::ClipImageEncoder> images_;
  std::unique_ptr<models::TextEncoder> text_;
};

}  // namespace kinora::eval
