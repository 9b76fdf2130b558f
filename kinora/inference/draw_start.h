#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kinora/io/image.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/models/model_config.h"
#include "kinora/pipelines/clips.h"
#include "kinora/pipelines/ip_adapter_file.h"

namespace kinora::inference {

/// What samples begin with in the place of their seed's noise alone. Of N rows sample i takes row i
/// modulo N.
struct DrawStart {
  at::Tensor noise = {};  ///< float32 [N, *sample_shape]; undefined: that of the seed
  at::Tensor data = {};   ///< the same shape, as the model sees it; undefined: none
  /// How much of the data is drawn anew: pipelines::make_partial_sampler(). With a mask 1 is from
  /// noise alone.
  double strength = 1.0;
  /// Which part of the data is drawn (diffusion::SampleStart::mask): float32 [N, 1, H, W].
  at::Tensor mask = {};
  /// What is shown beside it (diffusion::Conditions::beside): float32 [N, C, (T,) H, W], of K
  /// pictures of subjects [N, C, K, h, w].
  at::Tensor beside = {};
  /// What ControlNets are shown (diffusion::Conditions::control): uint8 [N, 3 K, h, w] in pixels.
  at::Tensor control = {};
  /// What an IP-Adapter reads, or a model of clips of its given frames
  /// (diffusion::Conditions::image_prompt).
  pipelines::ImagePrompts image_prompts = {};
  /// Some frames of clips, in the place of those that DrawOptions name. None: these stay.
  pipelines::GivenFrames given = {};
};

/// The tensor `name` of a safetensors file, float32 [N, *model.sample_shape()]; one sample may come
/// without N. kIo for another shape, and for values that are not finite.
[[nodiscard]] at::Tensor read_samples(const std::filesystem::path& path, const std::string& name,
                                      const models::ModelConfig& model);

/// Pictures, or clips (a folder of frames or a video file, as given_frames.h reads them), cropped
/// to the model's size in pixels: float32 [files, 3, (T,) H, W] in [-1, 1] on the CPU. space: of
/// models of latents that of what encodes them; nothing: of pixels. kIo; kConfig for a model of
/// latents without, and for clips of another number of frames.
[[nodiscard]] at::Tensor read_initial(const std::vector<std::string>& paths,
                                      const models::ModelConfig& model,
                                      const std::optional<models::LatentSpace>& space);

/// Pictures that a model changes which is shown them as tokens (ShownInput::kReference), in whole
/// patches: float32 [files, 3, H, W] in [-1, 1] on the CPU. Each takes the size, of those that Flux
/// Kontext was trained on, whose ratio of sides is nearest to its own; with keeps_size its own.
/// kIo; kConfig as read_initial(), for one smaller than a patch, and for sizes that differ then.
[[nodiscard]] at::Tensor read_references(const std::vector<std::string>& paths,
                                         const models::ModelConfig& model,
                                         const std::optional<models::LatentSpace>& space,
                                         bool keeps_size);

/// Pictures of subjects for a model with model.references, cropped to the size of what it draws:
/// float32 [1, 3, files, H, W] in [-1, 1] on the CPU. kConfig for more than it is shown, and as
/// read_initial(); kIo.
[[nodiscard]] at::Tensor read_subjects(const std::vector<std::string>& paths,
                                       const models::ModelConfig& model,
                                       const std::optional<models::LatentSpace>& space);

/// Masks of `pictures`, one for all or one for each, cropped as these: float32 [N, 1, H, W] in
/// pixels, 1 where they are white or a light grey and a picture is drawn. kIo; kConfig, naming both
/// files and both sizes, for a mask of another size than its picture, and for one of colours.
[[nodiscard]] at::Tensor read_masks(const std::vector<std::string>& paths,
                                    const std::vector<std::string>& pictures,
                                    const models::ModelConfig& model,
                                    const std::optional<models::LatentSpace>& space);

/// Pixels as the model sees them: float32 [N, *model.sample_shape()] on the CPU. encoder: as
/// read_initial's, whose mean is taken; null: of pixels.
[[nodiscard]] at::Tensor as_drawn(const at::Tensor& pixels, models::Autoencoder* encoder,
                                  at::Device device);

/// What `model` is shown of pictures beside what it draws, as shown_beside.h has it, on the CPU.
/// pixels, masks: as the functions above read them. kConfig without a mask where it needs one.
[[nodiscard]] at::Tensor shown_beside(const at::Tensor& pixels, const at::Tensor& masks,
                                      const models::ModelConfig& model,
                                      models::Autoencoder* encoder, at::Device device);

/// What a model is shown of such pictures, on the CPU: with zeros for those that it could be shown
/// besides. encoder: as as_drawn's.
[[nodiscard]] at::Tensor shown_subjects(const at::Tensor& pixels, const models::ModelConfig& model,
                                        models::Autoencoder* encoder, at::Device device);

/// Pictures for the ControlNets of `model`, as many as it has for each of N samples, one behind the
/// other: uint8 [N, 3 K, h, w]. kIo; kConfig, naming file and sizes, for one of another size than
/// what is drawn, and for another number of them.
[[nodiscard]] at::Tensor read_controls(const std::vector<std::string>& paths,
                                       const models::ModelConfig& model);

/// Pictures that prompt an IP-Adapter, of any size. kConfig where there are none or where `model`
/// has no IP-Adapter; kIo.
[[nodiscard]] std::vector<io::Image> read_image_prompts(const std::vector<std::string>& paths,
                                                        const models::ModelConfig& model);

/// Masks of pixels for what the model draws, by their nearest pixels: float32 [N, 1, H, W].
[[nodiscard]] at::Tensor mask_of_drawn(const at::Tensor& masks, const models::ModelConfig& model);

}  // namespace kinora::inference
