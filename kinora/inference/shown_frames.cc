#include "kinora/inference/shown_frames.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <filesystem>

#include "kinora/core/error.h"
#include "kinora/data/normalise.h"
#include "kinora/inference/given_frames.h"
#include "kinora/io/file.h"
#include "kinora/io/image_resize.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/diffusers_config.h"
#include "kinora/pipelines/text_encoder_config.h"

namespace kinora::inference {
namespace {

constexpr int64_t kFrameDim = 2;

/// The clip of `count` frames that begins and ends with these: [1, 3, F, H, W].
struct EndsOfClip {
  at::Tensor frames;
  at::Tensor given;  // bool [1, F]
};

bool is_marked(models::ShownInput input) {
  return input == models::ShownInput::kMarkedFirstFrame;
}

/// Of uint8 [3, H, W].
io::Image image_of(const at::Tensor& pixels) {
  const at::Tensor rows = pixels.permute({1, 2, 0}).contiguous();
  io::Image image;
  io::set_size(image, rows.size(0), rows.size(1));
  std::copy_n(rows.const_data_ptr<uint8_t>(), image.pixels.size(), image.pixels.data());
  return image;
}

EndsOfClip clip_of(const EndFrames& ends, int64_t count, int64_t height, int64_t width) {
  EndsOfClip clip{.frames = at::zeros({1, 3, count, height, width}, at::kFloat),
                  .given = at::zeros({1, count}, at::kBool)};
  for (size_t i = 0; i < ends.size(); ++i) {
    const int64_t place = i == 0 ? 0 : count - 1;
    const at::Tensor pixels = pixels_of(io::center_crop(ends[i], height, width));
    clip.frames.select(kFrameDim, place)
        .copy_(data::to_float(pixels.permute({2, 0, 1}).unsqueeze(0).contiguous(), at::kCPU));
    clip.given.select(1, place).fill_(true);
  }
  return clip;
}

}  // namespace

std::vector<EndFrames> read_end_frames(const std::vector<std::string>& firsts,
                                       const std::string& last, const models::ModelConfig& model) {
  const models::ModelShape shape = models::shape_of(model);
  KINORA_CHECK(!firsts.empty(), kConfig,
               "[sample] this model goes on from a first frame. Hint: --image FILE");
  KINORA_CHECK(!shape.reads_both_ends || !last.empty(), kConfig,
               "[sample] this model fills in between a first and a last frame. Hint: --last FILE");
  KINORA_CHECK(shape.image_states == 0 || shape.reads_both_ends || last.empty(), kConfig,
               "[sample] this model reads what an image encoder says of one frame, the first. "
               "Hint: no --last; Wan2.1-FLF2V and Wan2.2-I2V take one");
  KINORA_CHECK(!models::shows_first_frame(shape.input) || last.empty(), kConfig,
               "[sample] this model goes on from one frame, the first. Hint: no --last");
  KINORA_CHECK(last.empty() || model.frames > 1, kConfig,
               "[sample] a clip of one frame has no last one. Hint: --frames");
  std::vector<EndFrames> clips;
  for (const std::string& first : firsts) {
    clips.push_back({read_picture(first)});
    if (!last.empty()) {
      clips.back().push_back(read_picture(last));
    }
  }
  return clips;
}

at::Tensor shown_frames(const at::Tensor& frames, const at::Tensor& given,
                        const pipelines::LatentEncoder& encoder) {
  const int64_t unit = models::kFrameMaskChannels;
  KINORA_CHECK(encoder.space().frame_compression == unit && encoder.space().first_frame_alone,
               kConfig, "[autoencoder] of ", unit,
               " frames behind the first one latent must be made for this model, got ",
               encoder.space().frame_compression);
  const at::Tensor clip =
      at::where(given.view({given.size(0), 1, -1, 1, 1}).to(frames.device()), frames, 0.0);
  const at::Tensor latents = encoder.encode(clip).mean;  // [B, C, T, h, w]
  const at::Tensor marks = given.to(latents.device(), at::kFloat);
  // The first frame is a latent by itself, and marks all of its channels.
  const at::Tensor mask =
      at::cat({marks.narrow(1, 0, 1).expand({-1, unit}), marks.narrow(1, 1, marks.size(1) - 1)}, 1)
          .view({marks.size(0), latents.size(kFrameDim), unit, 1, 1})
          .transpose(1, 2);
  return at::cat({mask.expand({-1, -1, -1, latents.size(3), latents.size(4)}), latents}, 1);
}

at::Tensor shown_first_frame(const at::Tensor& first, const at::Tensor& given, int64_t latents,
                             bool marked, const pipelines::LatentEncoder& encoder) {
  const at::Tensor mean = encoder.encode(first.unsqueeze(kFrameDim)).mean;  // [B, C, 1, h, w]
  const at::Tensor marks =
      given.view({given.size(0), 1, 1, 1, 1}).to(mean.device(), mean.scalar_type());
  at::Tensor shown = models::as_shown(encoder.space(), mean) * marks;
  if (marked) {
    shown = at::cat({shown, marks.expand({-1, 1, 1, mean.size(3), mean.size(4)})}, 1);
  }
  return at::constant_pad_nd(shown, {0, 0, 0, 0, 0, latents - 1});
}

at::Tensor shown_frames(const std::vector<EndFrames>& clips, const models::ModelConfig& model,
                        models::Autoencoder* encoder, at::Device device) {
  KINORA_CHECK(encoder != nullptr, kConfig,
               "[sample] given frames want an autoencoder for this model, which draws latents of ",
               model.in_channels, " channels. Hint: --autoencoder PATH");
  const models::LatentSpace& space = encoder->space();
  const models::ModelShape shape = models::shape_of(model);
  const pipelines::LatentEncoder latents(*encoder, device, /*micro_batch=*/1);
  const bool is_first_alone = models::shows_first_frame(shape.input);
  const int64_t count = is_first_alone ? 1 : models::pixel_frames(space, model.frames);
  std::vector<at::Tensor> shown;
  for (const EndFrames& ends : clips) {
    const EndsOfClip clip =
        clip_of(ends, count, model.height * space.compression, model.width * space.compression);
    shown.push_back((is_first_alone
                         ? shown_first_frame(
                               clip.frames.select(kFrameDim, 0), clip.given.select(1, 0),
                               model.frames + shape.frames_before, is_marked(shape.input), latents)
                         : shown_frames(clip.frames, clip.given, latents))
                        .cpu());
  }
  return at::cat(shown);
}

FrameStates::FrameStates(const std::string& folder, const models::ModelConfig& model,
                         at::Device device)
    : encoder_((check(folder, model), folder), device) {}

void FrameStates::check(const std::string& folder, const models::ModelConfig& model) {
  const models::ModelShape shape = models::shape_of(model);
  KINORA_CHECK(!folder.empty(), kConfig,
               "[image] this model reads what an image encoder says of given frames. Hint: "
               "image.encoder=FOLDER, CLIP ViT-H's (image_encoder/ of the pipeline)");
  const std::filesystem::path path = std::filesystem::path(folder) / "config.json";
  KINORA_CHECK(std::filesystem::is_regular_file(path), kIo, "[image] image.encoder, ", folder,
               ", has no config.json. Hint: the folder of a CLIPVisionModel of transformers");
  const models::ClipImageConfig config = pipelines::parse_image_encoder_config(
      io::read_text(path, pipelines::kMaxConfigBytes), path.string());
  KINORA_CHECK(config.hidden_size == shape.image_channels, kConfig, "[image] ", path.string(),
               ": hidden_size must be ", shape.image_channels, ", the model's image_channels, got ",
               config.hidden_size);
  const int64_t side = config.image_size / config.patch_size;
  const int64_t places = side * side + 1;
  KINORA_CHECK(!shape.reads_both_ends || shape.image_states == 2 * places, kConfig, "[image] ",
               path.string(), ": of two frames there are ", 2 * places,
               " states, but model.image_positions is ", shape.image_states);
}

at::Tensor FrameStates::of_clip(const EndFrames& frames) const {
  return encoder_.states(frames).flatten(0, 1).unsqueeze(0);
}

void FrameShowing::add_to(data::Batch& batch, const pipelines::LatentEncoder& encoder) const {
  const at::Tensor& pixels = batch.images;
  const int64_t last = pixels.size(kFrameDim) - 1;
  const int64_t latents = models::latent_frames(encoder.space(), last + 1);
  const at::Tensor noised = diffusion::draw_frame_masks(
      ratios, latents, {.seed = seed, .step = step, .sample_index = batch.sample_index});
  const at::Tensor given = at::zeros({pixels.size(0), last + 1}, at::kBool);
  given.select(1, 0).copy_(noised.select(1, 0).logical_not());
  given.select(1, last).copy_(noised.select(1, latents - 1).logical_not());
  const at::Tensor frames = data::to_float(pixels, encoder.device());
  batch.beside = models::shows_first_frame(input)
                     ? shown_first_frame(frames.select(kFrameDim, 0), given.select(1, 0), latents,
                                         is_marked(input), encoder)
                     : shown_frames(frames, given, encoder);
  if (states == nullptr) {
    return;
  }
  std::vector<at::Tensor> rows;
  for (int64_t b = 0; b < pixels.size(0); ++b) {
    EndFrames frames;
    for (const int64_t place : {int64_t{0}, last}) {
      if (given[b][place].item<bool>()) {
        frames.push_back(image_of(pixels[b].select(1, place)));
      }
    }
    rows.push_back(states->of_clip(frames));
  }
  batch.image_prompt = at::cat(rows);
}

}  // namespace kinora::inference
