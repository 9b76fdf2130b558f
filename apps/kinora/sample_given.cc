#include "apps/kinora/sample_given.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/data/normalise.h"
#include "kinora/io/file.h"
#include "kinora/io/image_resize.h"
#include "kinora/io/safetensors.h"
#include "kinora/ops/host_bytes.h"

namespace kinora::apps {
namespace {

namespace fs = std::filesystem;

io::Image read_image(const fs::path& path) {
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  return io::decode_image(io::read_file(path, kMaxBytes), path.string());
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  KINORA_CHECK(!files.empty(), kIo, "[sample] ", folder, " holds no frames");
  return files;
}

/// uint8 [H, W, 3].
at::Tensor pixels_of(const io::Image& image) {
  return at::tensor(image.pixels, at::kByte).view({image.height, image.width, 3});
}

/// The frames of a strip as images.
std::vector<io::Image> frames_of_strip(const io::Image& strip, const fs::path& path) {
  KINORA_CHECK(strip.width % strip.height == 0, kIo, "[sample] ", path,
               " must be a strip of square frames, that is, its width a multiple of its height; "
               "got ",
               strip.width, " x ", strip.height);
  const at::Tensor pixels = pixels_of(strip);
  std::vector<io::Image> frames;
  for (int64_t left = 0; left < strip.width; left += strip.height) {
    const at::Tensor frame = pixels.narrow(1, left, strip.height).contiguous();
    io::Image image;
    io::set_size(image, strip.height, strip.height);
    std::copy_n(frame.const_data_ptr<uint8_t>(), image.pixels.size(), image.pixels.data());
    frames.push_back(std::move(image));
  }
  return frames;
}

std::vector<io::Image> read_frames(const fs::path& path, data::FrameLayout layout) {
  if (fs::is_directory(path)) {
    std::vector<io::Image> frames;
    for (const fs::path& file : files_in(path)) {
      frames.push_back(read_image(file));
    }
    return frames;
  }
  if (layout == data::FrameLayout::kStrip) {
    return frames_of_strip(read_image(path), path);
  }
  return {read_image(path)};
}

/// float32 [3, K, H, W] in [-1, 1].
at::Tensor read_pixels(const fs::path& path, data::FrameLayout layout,
                       const models::ModelConfig& model) {
  std::vector<at::Tensor> frames;
  for (const io::Image& image : read_frames(path, layout)) {
    frames.push_back(
        pixels_of(io::center_crop(image, model.height, model.width)).permute({2, 0, 1}));
  }
  return data::to_float(at::stack(frames, 1), at::kCPU);
}

/// float32 [C, K, H, W].
at::Tensor read_latents(const fs::path& path, const models::ModelConfig& model) {
  const auto file = io::SafetensorsFile::open(path);
  const io::SafetensorsTensor* found = file.find("latents");
  KINORA_CHECK(found != nullptr, kIo, "[sample] ", path, " has no tensor latents");
  at::Tensor latents =
      ops::tensor_from_bytes(found->dtype, found->shape, found->data).to(at::kFloat);
  if (latents.dim() == 5 && latents.size(0) == 1) {
    latents = latents.squeeze(0);
  }
  KINORA_CHECK(latents.dim() == 4 && latents.size(0) == model.in_channels &&
                   latents.size(2) == model.height && latents.size(3) == model.width,
               kIo, "[sample] latents of ", path, " must have shape [", model.in_channels, ", K, ",
               model.height, ", ", model.width, "], got ", latents.sizes());
  return latents;
}

}  // namespace

pipelines::GivenFrames read_given(const fs::path& path, data::FrameLayout layout,
                                  const std::string& places, const models::ModelConfig& model) {
  check_takes_given(model);
  KINORA_CHECK(fs::exists(path), kIo, "[sample] ", path, " does not exist");
  const at::Tensor frames =
      model.in_channels == 3 ? read_pixels(path, layout, model) : read_latents(path, model);
  return {.frames = frames,
          .places = pipelines::frame_places(places, frames.size(1), model.frames)};
}

void check_takes_given(const models::ModelConfig& model) {
  using models::Architecture;
  KINORA_CHECK(model.architecture == Architecture::kStdit ||
                   model.architecture == Architecture::kStdit2 ||
                   model.architecture == Architecture::kStdit3,
               kConfig,
               "[sample] frames can be given to models of architecture stdit, stdit2 and stdit3 "
               "only; this one has one time for all that it draws");
}

}  // namespace kinora::apps
