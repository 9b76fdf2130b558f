#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/models/model_config.h"

namespace kinora::inference {

/// What samples begin with in the place of their seed's noise alone. Of N rows sample i takes row i
/// modulo N.
struct DrawStart {
  at::Tensor noise = {};  ///< float32 [N, *sample_shape]; undefined: that of the seed
  at::Tensor data = {};   ///< the same shape, as the model sees it; undefined: none
  /// How much of the data is drawn anew: pipelines::make_partial_sampler().
  double strength = 1.0;
};

/// The tensor `name` of a safetensors file, float32 [N, *model.sample_shape()]; one sample may come
/// without N. kIo for another shape, and for values that are not finite.
[[nodiscard]] at::Tensor read_samples(const std::filesystem::path& path, const std::string& name,
                                      const models::ModelConfig& model);

/// Pictures, or clips (a folder of frames or a video file, as given_frames.h reads them), cropped
/// to the model's size, as the model sees them: float32 [files, *model.sample_shape()] on the CPU.
/// encoder: of models of latents, whose mean is taken; null: of pixels. kIo; kConfig for a model of
/// latents without encoder, and for clips of another number of frames.
[[nodiscard]] at::Tensor read_initial(const std::vector<std::string>& paths,
                                      const models::ModelConfig& model,
                                      models::Autoencoder* encoder, at::Device device);

}  // namespace kinora::inference
