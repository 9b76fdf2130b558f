#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/data/batch.h"
#include "kinora/data/source.h"
#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/objective.h"
#include "kinora/models/families.h"
#include "kinora/models/model_config.h"

/// What a model is told of samples, in training as in drawing.
namespace kinora::inference {

/// Of the samples of a batch: frames (1: images), height and width of what the model sees.
struct ClipSize {
  int64_t frames = 1;
  int64_t height = 0;
  int64_t width = 0;
};
[[nodiscard]] ClipSize clip_size(const at::Tensor& images);

/// What objectives ask of a clip's size.
[[nodiscard]] diffusion::ClipExtent extent_of(const models::ModelConfig& model,
                                              const ClipSize& size);

/// Samples of the model's size that nobody looks at: for batches of conditions alone.
[[nodiscard]] at::Tensor unseen_samples(const models::ModelConfig& model, int64_t batch);

/// What Conditions::beside must be of for samples of these sizes, [B, C, (T,) H, W], of a model
/// that is shown something beside them.
[[nodiscard]] std::vector<int64_t> sizes_beside(const models::ModelShape& model,
                                                at::IntArrayRef samples);

/// A batch of `samples` with all that the model takes of such, in texts of full length: for what
/// looks at shapes alone.
[[nodiscard]] data::Batch unseen_batch(const models::ModelConfig& model, const at::Tensor& samples);

/// Frames a second that models of clips are told of images, as Open-Sora does.
inline constexpr double kImageFps = 120.0;

/// kConfig where texts of this size are not what `model` takes; length 0: there are none.
void check_texts(const data::TextShape& texts, const models::ModelConfig& model);

/// What `model` takes of a batch (models::FamilyConditions); a model of clips takes images as clips
/// of one frame. Nothing is dropped yet, nor are frames given. kConfig where the data lacks what
/// the model needs.
[[nodiscard]] diffusion::Conditions conditions_of(const data::Batch& batch,
                                                  const models::ModelConfig& model);

/// Copies go on in the background where they can.
[[nodiscard]] diffusion::Conditions to_device(const diffusion::Conditions& conditions,
                                              at::Device device);

/// Classifier-free guidance: classes become the null class, texts the null embedding.
/// dropped: bool [B] on the device.
void drop_conditions(diffusion::Conditions& conditions, const at::Tensor& dropped,
                     int64_t null_class);

/// Of U-Nets that change a picture, and of models that are shown pictures of subjects, whose
/// captions are dropped where `draws`, fp32 [B] in [0, 1), is below `rate`: the pictures become
/// zeros for half of these, and for as many samples that keep their caption (Brooks et al. 2023,
/// "InstructPix2Pix", section 3.2.1). rate: up to 2 / 3.
void drop_pictures(diffusion::Conditions& conditions, const at::Tensor& draws, double rate);

/// Those of the unconditional prediction: what drop_conditions() makes of all of them.
[[nodiscard]] diffusion::Conditions null_of(const diffusion::Conditions& conditions,
                                            int64_t null_class);

/// The same of the score alone, where `conditions` have one: that of pictures to lead away from.
void take_null_score(const diffusion::Conditions& conditions, diffusion::Conditions& null);

}  // namespace kinora::inference
