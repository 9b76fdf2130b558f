#include "apps/kinora/sample_files.h"

#include <cstdio>
#include <span>
#include <sstream>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/io/animation.h"
#include "kinora/io/image_grid.h"
#include "kinora/io/safetensors.h"
#include "kinora/ops/host_bytes.h"
#include "kinora/pipelines/class_to_image.h"
#include "kinora/train/shown_samples.h"

namespace kinora::apps {
namespace {

/// "image-00003_class-7", "clip-00003".
std::string name_of(const char* kind, size_t index, std::optional<int64_t> label) {
  char number[32];
  std::snprintf(number, sizeof(number), "-%05zu", index);
  return kind + std::string(number) + (label ? "_class-" + std::to_string(*label) : "");
}

/// Latents cannot be shown yet, so they are kept as they are, with their labels.
void write_latents(const std::filesystem::path& path, const SampleFiles& files) {
  std::vector<int64_t> labels;
  for (const std::optional<int64_t>& label : files.labels) {
    if (label) {
      labels.push_back(*label);
    }
  }
  const at::Tensor latents = files.samples.contiguous();
  std::vector<io::SafetensorsTensor> tensors = {{.name = "latents",
                                                 .dtype = DType::kF32,
                                                 .shape = latents.sizes().vec(),
                                                 .data = ops::bytes_of(latents)}};
  if (labels.size() == files.labels.size()) {
    tensors.push_back({.name = "labels",
                       .dtype = DType::kI64,
                       .shape = {static_cast<int64_t>(labels.size())},
                       .data = std::as_bytes(std::span(labels))});
  }
  io::write_safetensors(path, tensors);
}

/// All samples in one picture, a clip as a row of its frames; nothing where that were too large,
/// which is no reason to fail when all else is written.
std::optional<io::Image> overview(const at::Tensor& samples) {
  try {
    return io::make_grid(train::shown_images(samples), {.columns = samples.dim() == 5 ? 1 : 0});
  } catch (const Error& error) {
    log_warn("[sample] no grid of all samples: ", error.what());
    return std::nullopt;
  }
}

void write_images(const SampleFiles& files, const at::Tensor& pixels) {
  const std::vector<io::Image> images = pipelines::to_images(pixels);
  for (size_t i = 0; i < images.size(); ++i) {
    io::write_png(files.folder / (name_of("image", i, files.labels[i]) + ".png"), images[i]);
  }
}

void write_clips(const SampleFiles& files) {
  for (size_t i = 0; i < files.labels.size(); ++i) {
    const at::Tensor clip = files.samples[static_cast<int64_t>(i)];  // [C, T, H, W]
    const std::vector<io::Image> frames = pipelines::to_images(clip.transpose(0, 1));
    const std::filesystem::path path = files.folder / name_of("clip", i, std::nullopt);
    io::write_frames(path, frames);
    io::write_webp(path.string() + ".webp", frames, files.fps);
  }
}

}  // namespace

std::string write_samples(const SampleFiles& files) {
  std::filesystem::create_directories(files.folder);
  const int64_t channels = files.samples.size(1);
  if (channels != 3 && channels != 1) {
    const std::filesystem::path path = files.folder / "latents.safetensors";
    write_latents(path, files);
    return path.string();
  }
  // A clip of one frame is an image.
  const bool is_clip = files.samples.dim() == 5 && files.samples.size(2) > 1;
  if (is_clip) {
    write_clips(files);
  } else {
    write_images(files, files.samples.dim() == 5 ? files.samples.squeeze(2) : files.samples);
  }
  std::ostringstream text;
  text << files.labels.size() << (is_clip ? " clips in " : " images in ") << files.folder.string();
  if (const std::optional<io::Image> grid = overview(files.samples)) {
    const std::filesystem::path path = files.folder / "grid.png";
    io::write_png(path, *grid);
    text << ", all together in " << path.string();
  }
  return text.str();
}

}  // namespace kinora::apps
