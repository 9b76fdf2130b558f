#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kinora/data/data_config.h"
#include "kinora/io/image.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/models/model_config.h"
#include "kinora/pipelines/clips.h"

namespace kinora::inference {

struct GivenOptions {
  data::FrameLayout layout = data::FrameLayout::kImage;  ///< of an image file
  std::string places;  ///< where the frames lie in clips, see pipelines::frame_places
  /// Of a video so many frames, of which it must have as many; 0: as read_given() says.
  int64_t video_frames = 0;
  bool takes_last = false;  ///< of a video its last ones
  double fps = 0.0;         ///< of the clips: frames of faster videos are left out
  /// Of models of latents: what encodes frames, on `device`; null: they are given as latents.
  models::Autoencoder* encoder = nullptr;
  at::Device device = at::kCPU;
};

/// The references of clips of `model`, a row of each path. A path is an image, a strip of square
/// frames, a folder of frames in the order of their names, a video file (its first frames: as many
/// as options.places numbers, else at most half of a clip), or for latents a safetensors file with
/// latents [C, K, H, W] or [1, C, K, H, W]. Images are cropped to the model's size. Of models of
/// latents the encoder's mean of them is given, of all together: places count latent frames.
/// kConfig where the model takes no given frames, or latents and there is no encoder, and for paths
/// of other numbers of frames than the first's; kShape for a number of frames that the encoder does
/// not take; kIo.
[[nodiscard]] pipelines::GivenFrames read_given(const std::vector<std::string>& paths,
                                                const GivenOptions& options,
                                                const models::ModelConfig& model);

/// Both, of each clip; one of them may have a row for all. kConfig where they lie at the same
/// places, or leave no frame to draw of `num_frames`.
[[nodiscard]] pipelines::GivenFrames joined(const pipelines::GivenFrames& first,
                                            const pipelines::GivenFrames& second,
                                            int64_t num_frames);

/// How frames of files become pixels.
struct FrameReading {
  data::FrameLayout layout = data::FrameLayout::kImage;  ///< of an image file
  double fps = 0.0;                                      ///< as GivenOptions has it
  int64_t count = 1;        ///< of a video its first ones, or all that there are
  bool takes_last = false;  ///< of a video its last ones
  bool takes_fewer = true;  ///< else a video that has fewer is refused
  int64_t height = 0;
  int64_t width = 0;
};

/// The frames of such a file or folder, cropped to that size: float32 [3, K, H, W] in [-1, 1]. kIo.
[[nodiscard]] at::Tensor read_pixels(const std::filesystem::path& path,
                                     const FrameReading& reading);

/// A picture of any size. kIo.
[[nodiscard]] io::Image read_picture(const std::filesystem::path& path);

/// uint8 [H, W, 3], a copy.
[[nodiscard]] at::Tensor pixels_of(const io::Image& image);

/// kConfig unless some frames of the model's clips can be given.
void check_takes_given(const models::ModelConfig& model);

}  // namespace kinora::inference
