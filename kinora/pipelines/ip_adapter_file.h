#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <filesystem>
#include <vector>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/io/image.h"
#include "kinora/models/model_config.h"

/// IP-Adapters (models/unets/ip_adapter.h) as they are published: a file (.safetensors, .bin) with
/// image_proj.* and ip_adapter.*, and an image encoder in a folder beside it.
namespace kinora::pipelines {

/// `model`, which is resolved, with the adapter of this file; scale: of attention to the picture.
/// kConfig, naming the first key that does not fit with both shapes, for one of another U-Net, and
/// naming its kind for one that Kinora lacks (full face, FaceID); kIo.
[[nodiscard]] models::ModelConfig with_ip_adapter(models::ModelConfig model,
                                                  const std::filesystem::path& file, double scale);

/// Its weights as a U-Net names them. The file must outlive them.
[[nodiscard]] checkpoint::LateTensors ip_adapter_tensors(const checkpoint::WeightsFile& file);

/// The folder image_encoder/ beside the file of an adapter. kIo, naming it, where it is not there.
[[nodiscard]] std::filesystem::path find_image_encoder(const std::filesystem::path& adapter);

/// Of pictures, for diffusion::Conditions::image_prompt.
struct ImagePrompts {
  at::Tensor given{};  ///< fp32 [N, P] or, for a "plus" adapter, [N, places, P] on the CPU
  at::Tensor none{};   ///< [1, ...], what guidance leads away from; undefined: it does not
};

/// kConfig, naming config.json and both numbers, unless the image encoder in `folder` says as much
/// of a picture as the adapter of `model` reads; kIo. It reads config.json alone.
void check_image_encoder(const std::filesystem::path& folder, const models::ModelConfig& model);

/// What the image encoder in `folder` (transformers' CLIPVisionModelWithProjection or CLIPModel)
/// says of pictures. They are preprocessed as its preprocessor_config.json says, without one as
/// CLIP's for its size. The encoder is gone when this returns. Errors of check_image_encoder() and
/// open_image_encoder().
[[nodiscard]] ImagePrompts encode_image_prompts(const std::vector<io::Image>& pictures,
                                                const std::filesystem::path& folder,
                                                const models::ModelConfig& model,
                                                at::Device device);

}  // namespace kinora::pipelines
