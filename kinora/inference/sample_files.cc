#include "kinora/inference/sample_files.h"

#include <ATen/ops/stack.h>

#include <cstdio>
#include <span>
#include <sstream>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/device/host_bytes.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/io/animation.h"
#include "kinora/io/clip_file.h"
#include "kinora/io/image_grid.h"
#include "kinora/io/safetensors.h"
#include "kinora/pipelines/images.h"

namespace kinora::inference {
namespace {

constexpr double kFpsOfStill = 1.0;  // of animations of one frame

/// Of all but png.
io::ClipFormat clip_format(FileFormat format) {
  switch (format) {
    case FileFormat::kGif:
      return io::ClipFormat::kGif;
    case FileFormat::kMp4:
      return io::ClipFormat::kMp4;
    default:
      return io::ClipFormat::kWebp;
  }
}

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
                                                 .data = device::bytes_of(latents)}};
  if (labels.size() == files.labels.size()) {
    tensors.push_back({.name = "labels",
                       .dtype = DType::kI64,
                       .shape = {static_cast<int64_t>(labels.size())},
                       .data = std::as_bytes(std::span(labels))});
  }
  io::write_safetensors(path, tensors);
}

/// Some frames of long clips [B, C, T, H, W], all of short ones.
at::Tensor shown_frames(const at::Tensor& clips) {
  constexpr int64_t kMaxShown = 32;
  const int64_t num_frames = clips.size(2);
  if (num_frames <= kMaxShown) {
    return clips;
  }
  std::vector<at::Tensor> shown;
  for (int64_t i = 0; i < kMaxShown; ++i) {
    shown.push_back(clips.select(2, i * (num_frames - 1) / (kMaxShown - 1)));
  }
  return at::stack(shown, 2);
}

/// The contact sheet; nothing where that were too large, which is no reason to fail when all else
/// is written.
std::optional<io::Image> overview(const at::Tensor& samples) {
  try {
    if (samples.dim() == 5) {
      return io::make_grid(shown_images(shown_frames(samples)), {.columns = 1});
    }
    return io::make_grid(shown_images(samples));
  } catch (const Error& error) {
    log_warn("[sample] no grid of all samples: ", error.what());
    return std::nullopt;
  }
}

void write_images(const SampleFiles& files, const at::Tensor& pixels) {
  const std::vector<io::Image> images = pipelines::to_images(pixels);
  for (size_t i = 0; i < images.size(); ++i) {
    const std::filesystem::path path = files.folder / name_of("image", i, files.labels[i]);
    if (files.format == FileFormat::kUsual || files.format == FileFormat::kPng) {
      io::write_png(path.string() + ".png", images[i]);
    } else {
      io::write_clip(path, std::span(&images[i], 1), kFpsOfStill, clip_format(files.format));
    }
  }
}

void write_clips(const SampleFiles& files) {
  for (size_t i = 0; i < files.labels.size(); ++i) {
    const at::Tensor clip = files.samples[static_cast<int64_t>(i)];  // [C, T, H, W]
    const std::vector<io::Image> frames = pipelines::to_images(clip.transpose(0, 1));
    const std::filesystem::path path = files.folder / name_of("clip", i, std::nullopt);
    if (files.format == FileFormat::kUsual || files.format == FileFormat::kPng) {
      io::write_frames(path, frames);
    }
    if (files.format != FileFormat::kPng) {
      io::write_clip(path, frames, files.fps, clip_format(files.format));
    }
  }
}

}  // namespace

void check_format(FileFormat format, bool is_video) {
  KINORA_CHECK(is_video || format != FileFormat::kMp4, kConfig,
               "[sample] format mp4 is for clips, and this model draws images");
  io::check_can_write(clip_format(format));
}

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

}  // namespace kinora::inference
