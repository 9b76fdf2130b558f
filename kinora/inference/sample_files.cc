#include "kinora/inference/sample_files.h"

#include <ATen/ops/stack.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <span>
#include <sstream>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/device/host_bytes.h"
#include "kinora/inference/sample_folder.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/io/animation.h"
#include "kinora/io/clip_file.h"
#include "kinora/io/file.h"
#include "kinora/io/image_grid.h"
#include "kinora/io/safetensors.h"
#include "kinora/io/video.h"
#include "kinora/pipelines/images.h"

namespace kinora::inference {
namespace {

namespace fs = std::filesystem;

constexpr double kFpsOfStill = 1.0;  // of animations of one frame
constexpr const char* kLatentsFile = "latents.safetensors";
constexpr const char* kLatents = "latents";
constexpr const char* kLabels = "labels";

// The contact sheet shows so many samples, and fewer where they are large.
constexpr int64_t kMostInGrid = 256;
constexpr int64_t kMostGridPixels = int64_t{1} << 26;

constexpr const char* kGridCountFile = "grid-count";  // so many it shows
constexpr int64_t kMaxPngBytes = int64_t{1} << 30;

/// A clip is a row.
io::GridOptions grid_options(SampleKind kind) {
  return {.columns = kind == SampleKind::kClips ? 1 : 0};
}

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

const char* extension_of(FileFormat format) {
  switch (format) {
    case FileFormat::kUsual:
    case FileFormat::kPng:
      return ".png";
    case FileFormat::kWebp:
      return ".webp";
    case FileFormat::kGif:
      return ".gif";
    case FileFormat::kMp4:
      return ".mp4";
  }
  KINORA_UNREACHABLE("[sample] unknown format");
}

/// "image-00003", "clip-00003".
std::string numbered(const char* kind, int64_t index) {
  char number[32];
  std::snprintf(number, sizeof(number), "-%05lld", static_cast<long long>(index));
  return std::string(kind) + number;
}

/// Some frames of a long clip [C, T, H, W], all of a short one.
at::Tensor shown_frames(const at::Tensor& clip) {
  constexpr int64_t kMaxShown = 32;
  const int64_t num_frames = clip.size(1);
  if (num_frames <= kMaxShown) {
    return clip;
  }
  std::vector<at::Tensor> shown;
  for (int64_t i = 0; i < kMaxShown; ++i) {
    shown.push_back(clip.select(1, i * (num_frames - 1) / (kMaxShown - 1)));
  }
  return at::stack(shown, 1);
}

bool belongs_in_grid(int64_t index, const io::Image& tile) {
  const int64_t most = std::max<int64_t>(kMostGridPixels / (tile.height * tile.width), 1);
  return index < std::min(kMostInGrid, most);
}

void write_latent(const fs::path& path, const at::Tensor& latent) {
  const at::Tensor whole = latent.contiguous();
  const io::SafetensorsTensor tensor{.name = kLatents,
                                     .dtype = DType::kF32,
                                     .shape = whole.sizes().vec(),
                                     .data = device::bytes_of(whole)};
  io::write_safetensors(path, std::span(&tensor, 1));
}

/// A folder of frames that has its name when all of them are in it.
void write_whole_frames(const fs::path& path, std::span<const io::Image> frames) {
  const fs::path temporary = io::temporary_name(path);
  io::write_frames(temporary, frames);
  io::rename_durably(temporary, path);
}

}  // namespace

/// What becomes files of a sample.
struct SampleFiles::Ready {
  int64_t index = 0;
  std::vector<io::Image> frames;  // of an image one
  std::optional<io::Image> tile;  // its part of the contact sheet, if it has one
  at::Tensor latent;
};

void check_format(FileFormat format, bool is_video) {
  KINORA_CHECK(is_video || format != FileFormat::kMp4, kConfig,
               "[sample] format mp4 is for clips, and this model draws images");
  io::check_can_write(clip_format(format));
}

SampleFiles::SampleFiles(SampleFilesOptions options) : options_(std::move(options)) {}

SampleFiles::~SampleFiles() = default;

fs::path SampleFiles::stem(int64_t index) const {
  const std::optional<int64_t> label = options_.labels[static_cast<size_t>(index)];
  if (options_.kind == SampleKind::kClips) {
    return options_.folder / numbered("clip", index);
  }
  return options_.folder /
         (numbered("image", index) + (label ? "_class-" + std::to_string(*label) : ""));
}

fs::path SampleFiles::latent_path(int64_t index) const {
  return scratch_of(options_.folder) / (numbered("latent", index) + ".safetensors");
}

fs::path SampleFiles::tile_path(int64_t index) const {
  return scratch_of(options_.folder) / (numbered("tile", index) + ".png");
}

std::vector<fs::path> SampleFiles::outputs(int64_t index) const {
  if (options_.kind == SampleKind::kLatents) {
    return {latent_path(index)};
  }
  const std::string name = stem(index).string();
  if (options_.kind == SampleKind::kClips && options_.format == FileFormat::kUsual) {
    return {name, name + ".webp"};
  }
  if (options_.kind == SampleKind::kClips && options_.format == FileFormat::kPng) {
    return {name};
  }
  return {name + extension_of(options_.format)};
}

/// Latents that are all together: those of a drawing that was finished.
int64_t SampleFiles::num_joined() const {
  const fs::path path = options_.folder / kLatentsFile;
  if (options_.kind != SampleKind::kLatents || !fs::exists(path)) {
    return 0;
  }
  const auto file = io::SafetensorsFile::open(path);
  const io::SafetensorsTensor* const latents = file.find(kLatents);
  KINORA_CHECK(latents != nullptr && !latents->shape.empty(), kIo, "[sample] ", path.string(),
               " must hold latents. Hint: remove it, or give another --out");
  return latents->shape.front();
}

bool SampleFiles::is_there(int64_t index, int64_t num_joined) const {
  if (options_.only && *options_.only != index) {
    return true;
  }
  const std::vector<fs::path> files = outputs(index);
  return index < num_joined ||
         std::all_of(files.begin(), files.end(), [](const fs::path& file) { return exists(file); });
}

std::vector<bool> SampleFiles::there() const {
  std::vector<bool> there;
  const int64_t joined = num_joined();
  for (int64_t i = 0; i < std::ssize(options_.labels); ++i) {
    there.push_back(is_there(i, joined));
  }
  return there;
}

SampleFiles::Ready SampleFiles::ready(int64_t index, const at::Tensor& sample) const {
  Ready ready{.index = index, .frames = {}, .tile = {}, .latent = {}};
  if (options_.kind == SampleKind::kLatents) {
    ready.latent = sample;
    return ready;
  }
  const bool is_clip = options_.kind == SampleKind::kClips;
  // [T, C, H, W], of an image [1, C, H, W]
  ready.frames =
      pipelines::to_images(sample.dim() == 4 ? sample.transpose(0, 1) : sample.unsqueeze(0));
  io::Image tile =
      is_clip ? shown_images(shown_frames(sample).unsqueeze(0)).front() : ready.frames.front();
  if (!options_.only && belongs_in_grid(index, tile)) {
    ready.tile = std::move(tile);
  }
  return ready;
}

void SampleFiles::write(int64_t first, const at::Tensor& samples) {
  std::vector<Ready> batch;
  const int64_t joined = num_joined();
  for (int64_t i = 0; i < samples.size(0); ++i) {
    if (!is_there(first + i, joined)) {
      batch.push_back(ready(first + i, samples[i]));
    }
  }
  flush();
  writing_ = std::async(std::launch::async, [this, batch = std::move(batch)] {
    for (const Ready& sample : batch) {
      write(sample);
    }
  });
}

void SampleFiles::write_file(const fs::path& path, const Ready& sample) const {
  const std::vector<io::PictureText> texts =
      options_.texts ? options_.texts(sample.index) : std::vector<io::PictureText>();
  const bool is_clip = options_.kind == SampleKind::kClips;
  const double fps = is_clip ? options_.fps : kFpsOfStill;
  if (path.extension() == ".png") {
    const std::vector<std::byte> bytes = io::encode_png(sample.frames.front());
    io::write_file_atomic(path, texts.empty() ? bytes : io::with_png_texts(bytes, texts));
  } else if (path.extension() == ".webp") {
    const std::vector<std::byte> bytes = io::encode_webp(sample.frames, fps);
    io::write_file_atomic(path, texts.empty() ? bytes : io::with_webp_texts(bytes, texts));
  } else if (path.extension() == ".gif") {
    const std::vector<std::byte> bytes = io::encode_gif(sample.frames, fps);
    io::write_file_atomic(path, texts.empty() ? bytes : io::with_gif_texts(bytes, texts));
  } else {
    io::write_mp4(path, sample.frames, {.fps = fps, .texts = texts});
  }
}

void SampleFiles::write(const Ready& sample) const {
  if (sample.tile) {
    io::write_png(tile_path(sample.index), *sample.tile);
  }
  for (const fs::path& path : outputs(sample.index)) {
    if (fs::exists(path)) {
      continue;
    }
    if (sample.latent.defined()) {
      write_latent(path, sample.latent);
    } else if (!path.has_extension()) {
      write_whole_frames(path, sample.frames);
    } else {
      write_file(path, sample);
    }
  }
}

void SampleFiles::flush() {
  if (writing_.valid()) {
    writing_.get();
  }
}

/// One behind the other, without ever holding all of them.
void SampleFiles::join_latents() const {
  const fs::path path = options_.folder / kLatentsFile;
  const auto count = static_cast<int64_t>(options_.labels.size());
  const int64_t joined = num_joined();
  if (joined >= count) {
    return;
  }
  std::vector<int64_t> shape = io::SafetensorsFile::open(latent_path(joined)).find(kLatents)->shape;
  shape.insert(shape.begin(), count);
  std::vector<int64_t> labels;
  for (const std::optional<int64_t>& label : options_.labels) {
    if (label) {
      labels.push_back(*label);
    }
  }
  const bool has_labels = std::ssize(labels) == count;
  std::vector<io::SafetensorsSpec> specs = {
      {.name = kLatents, .dtype = DType::kF32, .shape = shape}};
  if (has_labels) {
    specs.push_back({.name = kLabels, .dtype = DType::kI64, .shape = {count}});
  }
  io::SafetensorsWriter writer(path, specs);
  for (const io::SafetensorsSpec& spec : writer.tensors()) {
    if (spec.name == kLabels) {
      writer.write(kLabels, std::as_bytes(std::span(labels)));
      continue;
    }
    if (joined > 0) {
      writer.write(kLatents, io::SafetensorsFile::open(path).find(kLatents)->data);
    }
    for (int64_t i = joined; i < count; ++i) {
      writer.write(kLatents, io::SafetensorsFile::open(latent_path(i)).find(kLatents)->data);
    }
  }
  writer.finish();
  for (int64_t i = joined; i < count; ++i) {
    fs::remove(latent_path(i));
  }
}

/// Those of a drawing that was finished; none where it made no grid.
std::vector<io::Image> SampleFiles::tiles_of_grid(const fs::path& path) const {
  const fs::path count_file = scratch_of(options_.folder) / kGridCountFile;
  if (!fs::exists(path) || !fs::exists(count_file)) {
    return {};
  }
  try {
    constexpr int64_t kMostDigits = 20;
    const int64_t count = std::stoll(io::read_text(count_file, kMostDigits));
    KINORA_CHECK(count <= kMostInGrid, kIo, "[sample] ", count_file.string(), " must be at most ",
                 kMostInGrid, ", got ", count);
    return io::split_grid(io::decode_image(io::read_file(path, kMaxPngBytes), path.string()), count,
                          grid_options(options_.kind));
  } catch (const std::exception& error) {
    log_warn("[sample] ", path.string(), " is made of what is drawn now alone: ", error.what());
    return {};
  }
}

/// Nothing where that were too large, which is no reason to fail when all else is written.
int64_t SampleFiles::write_grid(const fs::path& path) const {
  std::vector<io::Image> tiles;
  if (!fs::exists(tile_path(0))) {
    tiles = tiles_of_grid(path);
  }
  const int64_t num_before = std::ssize(tiles);
  while (fs::exists(tile_path(std::ssize(tiles)))) {
    const fs::path file = tile_path(std::ssize(tiles));
    tiles.push_back(io::decode_image(io::read_file(file, kMaxPngBytes), file.string()));
  }
  const int64_t count = std::ssize(tiles);
  if (count == num_before) {
    return count;
  }
  try {
    io::write_png(path, io::make_grid(tiles, grid_options(options_.kind)));
  } catch (const Error& error) {
    log_warn("[sample] no grid of the samples: ", error.what());
    return 0;
  }
  io::write_file_atomic(scratch_of(options_.folder) / kGridCountFile, std::to_string(count));
  for (int64_t i = num_before; i < count; ++i) {
    fs::remove(tile_path(i));
  }
  return count;
}

std::string SampleFiles::finish() {
  flush();
  if (options_.kind == SampleKind::kLatents) {
    join_latents();
    return (options_.folder / kLatentsFile).string();
  }
  if (options_.only) {
    return outputs(*options_.only).back().string();
  }
  const auto count = static_cast<int64_t>(options_.labels.size());
  std::ostringstream text;
  text << count << (options_.kind == SampleKind::kClips ? " clips in " : " images in ")
       << options_.folder.string();
  const fs::path path = options_.folder / "grid.png";
  if (const int64_t shown = write_grid(path); shown == count) {
    text << ", all together in " << path.string();
  } else if (shown > 0) {
    text << ", the first " << shown << " together in " << path.string();
  }
  return text.str();
}

}  // namespace kinora::inference
