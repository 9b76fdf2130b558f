#include "kinora/inference/given_frames.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <set>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/data/class_names.h"
#include "kinora/data/frame_choice.h"
#include "kinora/data/normalise.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/file.h"
#include "kinora/io/image_resize.h"
#include "kinora/io/safetensors.h"
#include "kinora/io/video.h"
#include "kinora/models/families.h"

namespace kinora::inference {
namespace {

namespace fs = std::filesystem;

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

/// The frames of a strip, `width` pixels each, as images.
std::vector<io::Image> frames_of_strip(const io::Image& strip, int64_t width) {
  const at::Tensor pixels = pixels_of(strip);
  std::vector<io::Image> frames;
  for (int64_t left = 0; left < strip.width; left += width) {
    const at::Tensor frame = pixels.narrow(1, left, width).contiguous();
    io::Image image;
    io::set_size(image, strip.height, width);
    std::copy_n(frame.const_data_ptr<uint8_t>(), image.pixels.size(), image.pixels.data());
    frames.push_back(std::move(image));
  }
  return frames;
}

std::vector<io::Image> read_strip(const fs::path& path) {
  const io::Image strip = read_picture(path);
  KINORA_CHECK(strip.width % strip.height == 0, kIo, "[sample] ", path,
               " must be a strip of square frames, that is, its width a multiple of its height; "
               "got ",
               strip.width, " x ", strip.height);
  return frames_of_strip(strip, strip.height);
}

/// kConfig where as many frames are asked for as there are not.
void check_enough(const fs::path& path, int64_t available, const FrameReading& reading) {
  KINORA_CHECK(reading.takes_fewer || available >= reading.count, kConfig, "[sample] ", path,
               " must have ", reading.count, " frames at the clips' rate, got ", available,
               ". Hint: a longer video, or fewer --video-frames");
}

/// Frames of a file at a rate of at most reading.fps.
std::vector<io::Image> read_video(const fs::path& path, const FrameReading& reading) {
  io::VideoFile file = io::VideoFile::open(path);
  const int64_t stride = data::FrameChoice{.max_fps = reading.fps}.stride(file.info().fps);
  const int64_t available = (file.num_frames() - 1) / stride + 1;
  check_enough(path, available, reading);
  const int64_t count = std::min(reading.count, available);
  io::Image strip;
  file.read_frames(reading.takes_last ? (available - count) * stride : 0, count, stride, strip);
  return frames_of_strip(strip, file.info().width);
}

/// Whether places are numbers, "0,1,7".
bool are_numbers(const std::string& places) {
  return !places.empty() && places.front() >= '0' && places.front() <= '9';
}

/// How many frames of a video are taken: as many as `places` numbers, else half of a clip.
int64_t frames_wanted(const std::string& places, int64_t num_frames) {
  return are_numbers(places) ? std::count(places.begin(), places.end(), ',') + 1
                             : std::max<int64_t>(num_frames / 2, 1);
}

std::vector<io::Image> read_frames(const fs::path& path, const FrameReading& reading) {
  if (fs::is_directory(path)) {
    std::vector<fs::path> files = files_in(path);
    if (!reading.takes_fewer) {
      check_enough(path, std::ssize(files), reading);
      const auto begin =
          files.begin() + (reading.takes_last ? std::ssize(files) - reading.count : 0);
      files = {begin, begin + reading.count};
    }
    std::vector<io::Image> frames;
    for (const fs::path& file : files) {
      frames.push_back(read_picture(file));
    }
    return frames;
  }
  if (data::is_video_name(path.filename().string())) {
    return read_video(path, reading);
  }
  if (reading.layout == data::FrameLayout::kStrip) {
    return read_strip(path);
  }
  KINORA_CHECK(reading.takes_fewer || reading.takes_last, kConfig, "[sample] ", path,
               " must be a video or a folder of frames, of which the first ", reading.count,
               " are given. Hint: --image gives one picture");
  return {read_picture(path)};
}

/// float32 [C, K, H, W].
at::Tensor read_latents(const fs::path& path, const models::ModelConfig& model) {
  const auto file = io::SafetensorsFile::open(path);
  const io::SafetensorsTensor* found = file.find("latents");
  KINORA_CHECK(found != nullptr, kIo, "[sample] ", path, " has no tensor latents");
  at::Tensor latents =
      device::tensor_from_bytes(found->dtype, found->shape, found->data).to(at::kFloat);
  if (latents.dim() == 5 && latents.size(0) == 1) {
    latents = latents.squeeze(0);
  }
  KINORA_CHECK(latents.dim() == 4 && latents.size(0) == model.in_channels &&
                   latents.size(2) == model.height && latents.size(3) == model.width,
               kIo, "[sample] latents of ", path, " must have shape [", model.in_channels, ", K, ",
               model.height, ", ", model.width, "], got ", latents.sizes());
  return latents;
}

/// The frames as the encoder's latents [C, K, H, W].
at::Tensor encode_frames(const fs::path& path, const GivenOptions& options,
                         const models::ModelConfig& model) {
  KINORA_CHECK(options.encoder != nullptr, kConfig, "[sample] frames of ", path,
               " want an autoencoder for this model, which draws latents of ", model.in_channels,
               " channels. Hint: --autoencoder PATH, or latents in a .safetensors file");
  const models::LatentSpace space = options.encoder->space();
  const int64_t latents = frames_wanted(options.places, model.frames);
  const int64_t wanted =
      options.video_frames > 0 ? options.video_frames : models::pixel_frames(space, latents);
  const at::Tensor pixels = read_pixels(path, {.layout = options.layout,
                                               .fps = options.fps,
                                               .count = wanted,
                                               .takes_last = options.takes_last,
                                               .takes_fewer = options.video_frames == 0,
                                               .height = model.height * space.compression,
                                               .width = model.width * space.compression});
  const at::NoGradGuard no_grad;
  return options.encoder->encode(pixels.unsqueeze(0).to(options.device))
      .mean.to(at::kCPU, at::kFloat)
      .squeeze(0);
}

at::Tensor given_latents(const fs::path& path, const GivenOptions& options,
                         const models::ModelConfig& model) {
  return path.extension() == ".safetensors" ? read_latents(path, model)
                                            : encode_frames(path, options, model);
}

/// Those of one path.
pipelines::GivenFrames read_one(const fs::path& path, const GivenOptions& options,
                                const models::ModelConfig& model) {
  KINORA_CHECK(fs::exists(path), kIo, "[sample] ", path, " does not exist");
  const int64_t wanted =
      options.video_frames > 0 ? options.video_frames : frames_wanted(options.places, model.frames);
  const at::Tensor frames = model.in_channels == models::kPixelChannels
                                ? read_pixels(path, {.layout = options.layout,
                                                     .fps = options.fps,
                                                     .count = wanted,
                                                     .takes_last = options.takes_last,
                                                     .takes_fewer = options.video_frames == 0,
                                                     .height = model.height,
                                                     .width = model.width})
                                : given_latents(path, options, model);
  KINORA_CHECK(
      !are_numbers(options.places) || frames.size(1) >= frames_wanted(options.places, model.frames),
      kConfig, "[sample] ", path, " has too few frames for the places ", options.places, ", got ",
      frames.size(1));
  return {.frames = frames.unsqueeze(0),
          .places = pipelines::frame_places(options.places, frames.size(1), model.frames)};
}

}  // namespace

io::Image read_picture(const fs::path& path) {
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  KINORA_CHECK(fs::exists(path), kIo, "[sample] ", path, " does not exist");
  return io::decode_image(io::read_file(path, kMaxBytes), path.string());
}

at::Tensor pixels_of(const io::Image& image) {
  return at::tensor(image.pixels, at::kByte).view({image.height, image.width, 3});
}

at::Tensor read_pixels(const fs::path& path, const FrameReading& reading) {
  KINORA_CHECK(fs::exists(path), kIo, "[sample] ", path, " does not exist");
  std::vector<at::Tensor> frames;
  for (const io::Image& image : read_frames(path, reading)) {
    frames.push_back(
        pixels_of(io::center_crop(image, reading.height, reading.width)).permute({2, 0, 1}));
  }
  return data::to_float(at::stack(frames, 1), at::kCPU);
}

pipelines::GivenFrames read_given(const std::vector<std::string>& paths,
                                  const GivenOptions& options, const models::ModelConfig& model) {
  check_takes_given(model);
  pipelines::GivenFrames all;
  std::vector<at::Tensor> rows;
  for (const std::string& path : paths) {
    const pipelines::GivenFrames own = read_one(path, options, model);
    KINORA_CHECK(rows.empty() || own.places == all.places, kConfig,
                 "[sample] files that clips take in turn must give as many frames, got ",
                 all.places.size(), " of ", paths.front(), " and ", own.places.size(), " of ",
                 path);
    rows.push_back(own.frames);
    all.places = own.places;
  }
  all.frames = rows.empty() ? at::Tensor() : at::cat(rows);
  return all;
}

pipelines::GivenFrames joined(const pipelines::GivenFrames& first,
                              const pipelines::GivenFrames& second, int64_t num_frames) {
  if (!first.frames.defined() || !second.frames.defined()) {
    return first.frames.defined() ? first : second;
  }
  pipelines::GivenFrames both = first;
  const int64_t rows = std::max(first.frames.size(0), second.frames.size(0));
  both.frames = at::cat(
      {first.frames.expand({rows, -1, -1, -1, -1}), second.frames.expand({rows, -1, -1, -1, -1})},
      2);
  both.places.insert(both.places.end(), second.places.begin(), second.places.end());
  if (!first.levels.empty() || !second.levels.empty()) {
    both.levels.resize(first.places.size());
    both.levels.insert(both.levels.end(), second.levels.begin(), second.levels.end());
    both.levels.resize(both.places.size());
  }
  const std::set<int64_t> different(both.places.begin(), both.places.end());
  KINORA_CHECK(different.size() == both.places.size(), kConfig,
               "[sample] frames must be given once, but ", both.places.size() - different.size(),
               " of --image, --video, --at and --last lie at the same places of a clip of ",
               num_frames, ". Hint: a longer clip, or fewer --video-frames");
  KINORA_CHECK(std::ssize(different) < num_frames, kConfig, "[sample] of a clip of ", num_frames,
               " frames 1 to ", num_frames - 1, " can be given, got ", different.size());
  return both;
}

void check_takes_given(const models::ModelConfig& model) {
  KINORA_CHECK(!models::shows_frames(models::shape_of(model).input), kConfig,
               "[sample] this model is shown a first and a last frame alone. Hint: --image and "
               "--last, no --video and no --loop");
  const auto can = [](const models::Family& family) { return family.conditions.frame_mask; };
  KINORA_CHECK(can(models::family_of(model)), kConfig, "[sample] frames can be given to ",
               models::families_that(can), " only; this model has one time for all that it draws");
  KINORA_CHECK(
      models::shape_of(model).given_way != diffusion::GivenWay::kNone, kConfig,
      "[sample] frames can be given to ", models::family_of(model).name,
      models::family_of(model).conditions.given_is_marked
          ? " where it goes on from a picture. Hint: a folder of image to video, or "
            "model.clean_first_frame=true, and train it with frame_masks.image_head"
          : " where it embeds them beside the input. Hint: model.given_embedders=true, and train "
            "it with frame_masks");
}

}  // namespace kinora::inference
