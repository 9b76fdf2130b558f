#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "kinora/io/image.h"
#include "kinora/models/text_encoders/clip_image_encoder.h"

namespace kinora::pipelines {

/// What makes of a picture that which CLIP's image tower takes, as transformers' CLIPImageProcessor
/// does. It starts as OpenAI's.
struct ImagePreprocessing {
  int64_t shortest_edge = 224;  ///< pixels that the shorter side is resized to
  int64_t crop = 224;           ///< pixels a side that are cut out of the middle
  std::array<double, 3> mean = {0.48145466, 0.4578275, 0.40821073};  ///< of pixels in [0, 1]
  std::array<double, 3> std = {0.26862954, 0.26130258, 0.27577711};
};

/// From preprocessor_config.json of a folder. kIo for what is no such file; kConfig for
/// preprocessing that is another one: no bicubic resizing of the shorter side, no square crop
/// within it, no normalising.
[[nodiscard]] ImagePreprocessing read_image_preprocessing(const std::filesystem::path& folder);

/// That of an encoder in `folder` that takes pictures of image_size pixels a side: from there or,
/// of a pipeline of diffusers, image_processor/ beside it; without such a file CLIP's for its size.
/// Errors likewise, and kConfig for another crop.
[[nodiscard]] ImagePreprocessing image_preprocessing_of(const std::filesystem::path& folder,
                                                        int64_t image_size);

/// Of one picture: fp32 [3, crop, crop]. Resized as Pillow does it, to the last bit, and so equal
/// to CLIPImageProcessor's on Pillow but for the rounding of the normalised float.
[[nodiscard]] at::Tensor preprocessed(const io::Image& image, const ImagePreprocessing& how);

/// The image tower of the CLIP in `folder` (transformers' CLIPModel, or
/// CLIPVisionModelWithProjection or CLIPVisionModel, which are the tower: config.json, weights),
/// frozen, in fp32. Names and shapes are compared before any weight is read. kIo, kConfig as
/// open_text_encoder().
[[nodiscard]] std::unique_ptr<models::ClipImageEncoder> open_image_encoder(
    const std::filesystem::path& folder, at::Device device);

/// Bytes of its weights there, without reading them. Errors as open_image_encoder().
[[nodiscard]] int64_t image_encoder_bytes(const std::filesystem::path& folder);

/// Such a tower, and how pictures become what it takes (image_preprocessing_of).
class PictureEncoder {
 public:
  /// Errors of open_image_encoder() and image_preprocessing_of().
  PictureEncoder(const std::filesystem::path& folder, at::Device device);

  /// What it says of each picture: fp32 [N, projection_dim], or the states of all places behind the
  /// block before the last, [N, places, hidden_size]; on its device. Without gradients.
  [[nodiscard]] at::Tensor vectors(const std::vector<io::Image>& pictures) const;
  [[nodiscard]] at::Tensor states(const std::vector<io::Image>& pictures) const;
  /// The states of a grey picture, [1, places, hidden_size].
  [[nodiscard]] at::Tensor states_of_grey() const;

 private:
  [[nodiscard]] at::Tensor pixels_of(const io::Image& picture) const;

  std::unique_ptr<models::ClipImageEncoder> encoder_;
  ImagePreprocessing how_;
  at::Device device_;
};

}  // namespace kinora::pipelines
