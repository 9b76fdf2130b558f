#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>

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

/// Of one picture: fp32 [3, crop, crop]. Resized as Pillow does it, to the last bit, and so equal
/// to CLIPImageProcessor's on Pillow but for the rounding of the normalised float.
[[nodiscard]] at::Tensor preprocessed(const io::Image& image, const ImagePreprocessing& how);

/// The image tower of the CLIP in `folder` (transformers' CLIPModel, or
/// CLIPVisionModelWithProjection, which is the tower: config.json, weights), frozen, in fp32. Names
/// and shapes are compared before any weight is read. kIo, kConfig as open_text_encoder().
[[nodiscard]] std::unique_ptr<models::ClipImageEncoder> open_image_encoder(
    const std::filesystem::path& folder, at::Device device);

}  // namespace kinora::pipelines
