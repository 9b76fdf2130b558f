#include "kinora/inference/placed_frames.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/models/families.h"

namespace kinora::inference {
namespace {

// Latents of a clip that begins later than the samples that are shown before these.
constexpr int64_t kShownLatents = 2;

/// Latents [1, C, K, h, w] from that place on.
pipelines::GivenFrames from(int64_t place, const at::Tensor& latents, double level) {
  pipelines::GivenFrames those{
      .frames = latents,
      .places = std::vector<int64_t>(static_cast<size_t>(latents.size(2))),
      .levels = std::vector<double>(static_cast<size_t>(latents.size(2)), level)};
  std::iota(those.places.begin(), those.places.end(), place);
  return those;
}

/// Latents [1, C, K, h, w] of what begins where that says, in clips of num_latents.
void place(const at::Tensor& latents, const PlacedFrames& where, const models::LatentSpace& space,
           int64_t num_latents, PlacedLatents& all) {
  const double level = 1.0 - where.strength;
  const bool is_first = where.frame == 0;
  const int64_t shown = is_first ? 0 : std::min(latents.size(2), kShownLatents);
  if (shown > 0) {
    // The first latent is of one frame, so the next one begins at the next frame.
    all.before =
        inference::joined(all.before, from(where.frame, latents.narrow(2, 0, shown), level),
                          models::pixel_frames(space, num_latents) + 1);
  }
  if (const int64_t rest = latents.size(2) - shown; rest > 0) {
    const int64_t first = is_first ? 0 : where.frame / space.frame_compression + shown;
    all.inside = inference::joined(all.inside, from(first, latents.narrow(2, shown, rest), level),
                                   num_latents);
  }
}

/// The first frames [3, K, H, W] that are one, and whole latents behind it.
at::Tensor whole_latents(const at::Tensor& pixels, int64_t room, int64_t frame_compression) {
  const int64_t count = std::min(pixels.size(1), room);
  return pixels.narrow(1, 0, (count - 1) / frame_compression * frame_compression + 1);
}

}  // namespace

void PlacedLatents::add_to(pipelines::ClipOptions& clips, int64_t num_frames) const {
  clips.given = joined(clips.given, inside, num_frames);
  const auto shown = std::ssize(before.places);
  if (shown == 0) {
    return;
  }
  for (int64_t& place : clips.given.places) {
    place += shown;
  }
  pipelines::GivenFrames first = before;
  std::iota(first.places.begin(), first.places.end(), 0);
  clips.given = joined(first, clips.given, num_frames + shown);
  clips.shown_places = before.places;
}

PlacedLatents read_placed(const DrawOptions& options, const GivenOptions& how,
                          const models::ModelConfig& model) {
  KINORA_CHECK(models::shape_of(model).places_frames, kConfig,
               "[sample] frames from any frame on are given to models with "
               "model.single_first_frame and without model.sliding_window. Hint: a folder of "
               "LTXConditionPipeline, or --image and --last");
  KINORA_CHECK(how.encoder != nullptr, kConfig,
               "[sample] given frames want an autoencoder for this model, which draws latents of ",
               model.in_channels, " channels. Hint: --autoencoder PATH");
  const models::LatentSpace& space = how.encoder->space();
  const int64_t num_frames = models::pixel_frames(space, model.frames);
  FrameReading reading{.layout = how.layout,
                       .fps = how.fps,
                       .height = model.height * space.compression,
                       .width = model.width * space.compression};
  PlacedLatents all;
  const auto add = [&](const at::Tensor& pixels, const PlacedFrames& where) {
    const at::NoGradGuard no_grad;
    const at::Tensor latents =
        how.encoder->encode(pixels.unsqueeze(0).to(how.device)).mean.to(at::kCPU, at::kFloat);
    place(latents, where, space, model.frames, all);
  };
  for (const PlacedFrames& placed : options.at) {
    KINORA_CHECK(placed.frame >= 0 && placed.frame < num_frames, kConfig, "[sample] of a clip of ",
                 num_frames, " frames, 0 to ", num_frames - 1, ", none is frame ", placed.frame,
                 " of --at ", placed.path);
    KINORA_CHECK(placed.strength >= 0.0 && placed.strength <= 1.0, kConfig,
                 "[sample] the strength of --at ", placed.path, " must lie in 0 to 1, got ",
                 placed.strength);
    reading.count = num_frames - placed.frame;
    add(whole_latents(read_pixels(placed.path, reading), reading.count, space.frame_compression),
        placed);
  }
  if (!options.last.empty()) {
    reading.count = options.video_frames;
    reading.takes_last = true;
    reading.takes_fewer = false;
    const at::Tensor pixels = read_pixels(options.last, reading);
    const int64_t count = pixels.size(1);
    KINORA_CHECK(count <= num_frames && count % space.frame_compression == 1, kConfig,
                 "[sample] of --last one frame must be given, or a multiple of ",
                 space.frame_compression, " and one, and at most ", num_frames, ", got ", count,
                 ". Hint: --video-frames");
    add(pixels, {.frame = num_frames - count});
  }
  const auto is_zero = [](double level) { return level == 0.0; };
  for (pipelines::GivenFrames* those : {&all.inside, &all.before}) {
    if (std::ranges::all_of(those->levels, is_zero)) {
      those->levels.clear();
    }
  }
  return all;
}

}  // namespace kinora::inference
