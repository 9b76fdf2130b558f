#include "kinora/pipelines/clips.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <charconv>
#include <numeric>
#include <set>

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::pipelines {
namespace {

// Between the noise of a clip's pieces: piece p of sample i has that of sample i + p *
// kPieceStride.
constexpr int64_t kPieceStride = int64_t{1} << 40;

/// first, first + 1, ...
std::vector<int64_t> run_of(int64_t first, int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

std::vector<int64_t> parse_numbers(std::string_view text) {
  std::vector<int64_t> numbers;
  for (const std::string_view piece : split(text, ',')) {
    const std::string_view digits = trim(piece);
    int64_t number = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    KINORA_CHECK(parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size(), kConfig,
                 "[sample] given frames must be head, tail, head_tail or numbers such as 0,1,7, "
                 "got ",
                 text);
    numbers.push_back(number);
  }
  return numbers;
}

/// Clips of the given frames alone: [B, C, K, H, W] -> given [B, C, T, H, W], its mask and, where
/// there are any, its levels [B, T].
void give(const GivenFrames& those, int64_t num_frames, at::Device device,
          diffusion::Conditions& conditions) {
  std::vector<int64_t> shape = those.frames.sizes().vec();
  shape[2] = num_frames;
  const at::Tensor index = at::tensor(those.places, at::kLong);
  conditions.given = at::zeros(shape, those.frames.options())
                         .index_copy_(2, index, those.frames.contiguous())
                         .to(device);
  conditions.frame_mask =
      at::ones({shape[0], num_frames}, at::kBool).index_fill_(1, index, 0).to(device);
  if (!those.levels.empty()) {
    conditions.given_levels = at::zeros({num_frames}, at::kFloat)
                                  .index_copy_(0, index, at::tensor(those.levels, at::kFloat))
                                  .expand({shape[0], num_frames})
                                  .contiguous()
                                  .to(device);
  }
}

void check(const ClipOptions& options, const diffusion::Sampler& sampler,
           const SamplingConfig& config, at::IntArrayRef sample_shape) {
  KINORA_CHECK(sample_shape.size() == 4, kShape,
               "[sample] clips must have shape [C, T, H, W], got ", sample_shape);
  const int64_t num_frames = sample_shape[1];
  KINORA_CHECK(options.pieces >= 1, kConfig, "[sample] a clip must have at least one piece, got ",
               options.pieces);
  KINORA_CHECK(options.pieces == 1 || (options.overlap >= 1 && options.overlap < num_frames),
               kConfig, "[sample] the overlap of pieces must lie in 1 to ", num_frames - 1,
               ", one less than the frames that the model draws, got ", options.overlap);
  KINORA_CHECK(options.given_edit >= 0.0 && options.given_edit <= 1.0, kConfig,
               "[sample] the edit ratio of given frames must lie in 0 to 1, got ",
               options.given_edit);
  KINORA_CHECK(
      options.given_edit == 0.0 || std::holds_alternative<diffusion::FlowEulerSampler>(sampler),
      kConfig,
      "[sample] an edit ratio of given frames needs a flow (objective.kind flow) drawn by Euler's "
      "method, got ",
      options.given_edit, ". Hint: sample.method=euler");
  KINORA_CHECK(
      options.given.levels.empty() || std::holds_alternative<diffusion::FlowEulerSampler>(sampler),
      kConfig,
      "[sample] frames that are given in part need a flow (objective.kind flow) drawn by Euler's "
      "method. Hint: sample.method=euler");
  KINORA_CHECK(
      (options.given.levels.empty() && options.shown_places.empty()) || options.given_edit == 0.0,
      kConfig,
      "[sample] frames that are given in part or from later frames on have a strength, and "
      "no edit ratio. Hint: no --given-edit");
  KINORA_CHECK(options.shown_places.empty() || options.pieces == 1, kConfig,
               "[sample] clips of several pieces go on from their own frames, and cannot be shown "
               "others at places of their own. Hint: no --loop");
  const bool gives = options.given.frames.defined() || options.pieces > 1;
  const bool is_beside = options.given_way != diffusion::GivenWay::kClean;
  KINORA_CHECK(!is_beside || !gives || std::holds_alternative<diffusion::FlowEulerSampler>(sampler),
               kConfig,
               "[sample] frames are given to this model beside noised ones, along a flow that "
               "Euler's method "
               "draws. Hint: sample.method=euler");
  KINORA_CHECK(
      config.given_noise == 0.0 || !gives ||
          (!is_beside && std::holds_alternative<diffusion::FlowEulerSampler>(sampler)),
      kConfig,
      "[sample] noise on given frames is for models in whose clips these stand, along a flow drawn "
      "by Euler's method, got sample.given_noise ",
      config.given_noise, ". Hint: sample.given_noise=0, or sample.method=euler");
  KINORA_CHECK(config.given_guidance == 1.0 || !gives || is_beside, kConfig,
               "[sample] guidance by given frames is for models with model.given_embedders; others "
               "need sample.given_guidance 1, got ",
               config.given_guidance);
  if (const at::Tensor& frames = options.given.frames; frames.defined()) {
    const auto count = static_cast<int64_t>(options.given.places.size());
    KINORA_CHECK(frames.dim() == 5 && frames.size(0) > 0 &&
                     frames.sizes().slice(1) == at::IntArrayRef({sample_shape[0], count,
                                                                 sample_shape[2], sample_shape[3]}),
                 kShape, "[sample] ", count, " given frames of clips ", sample_shape,
                 " must have shape [N, ", sample_shape[0], ", ", count, ", ", sample_shape[2], ", ",
                 sample_shape[3], "], got ", frames.sizes());
  }
}

}  // namespace

std::vector<int64_t> frame_places(std::string_view where, int64_t count, int64_t num_frames) {
  KINORA_CHECK(count >= 1 && count < num_frames, kConfig, "[sample] of a clip of ", num_frames,
               " frames 1 to ", num_frames - 1, " can be given, got ", count);
  if (where == "head") {
    return run_of(0, count);
  }
  if (where == "tail") {
    return run_of(num_frames - count, count);
  }
  if (where == "head_tail") {
    const int64_t last = count / 2;
    std::vector<int64_t> places = run_of(0, count - last);
    for (const int64_t place : run_of(num_frames - last, last)) {
      places.push_back(place);
    }
    return places;
  }
  std::vector<int64_t> places = parse_numbers(where);
  for (const int64_t place : places) {
    KINORA_CHECK(place >= 0 && place < num_frames, kConfig,
                 "[sample] given frames must lie in 0 to ", num_frames - 1, ", got ", place);
  }
  const auto num_places = static_cast<int64_t>(places.size());
  KINORA_CHECK(std::set<int64_t>(places.begin(), places.end()).size() == places.size(), kConfig,
               "[sample] given frames must be different, got ", where);
  KINORA_CHECK(num_places == count, kConfig, "[sample] there are ", count,
               count == 1 ? " given frame" : " given frames", " for ", num_places,
               num_places == 1 ? " place: " : " places: ", where);
  return places;
}

bool draw_clip_batches(diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler,
                       const SamplingConfig& config, const DrawRequest& request,
                       at::IntArrayRef sample_shape, const ClipOptions& options,
                       const ConditionsOf& conditions_of, at::Device device,
                       const DrawEvents& events) {
  check(options, sampler, config, sample_shape);
  const int64_t num_frames = sample_shape[1];
  const int64_t overlap = options.overlap;
  diffusion::Sampler showing = sampler;
  if (std::holds_alternative<diffusion::FlowEulerSampler>(sampler)) {
    std::get<diffusion::FlowEulerSampler>(showing).given_way = options.given_way;
  }
  diffusion::Sampler editing = showing;
  if (options.given_edit > 0.0) {
    std::get<diffusion::FlowEulerSampler>(editing).given_edit = options.given_edit;
  }
  BatchDrawer first_pieces(denoiser, editing, config, request, sample_shape, device);
  BatchDrawer later_pieces(denoiser, showing, config, request, sample_shape, device);
  const auto draw_batch = [&](int64_t first, int64_t size, const StepReport& report) {
    GivenFrames given = options.given;  // frames: [size, C, K, H, W]
    if (const at::Tensor& frames = options.given.frames; frames.defined()) {
      std::vector<int64_t> rows;
      for (int64_t i = first; i < first + size; ++i) {
        rows.push_back(request.samples[static_cast<size_t>(i)].index % frames.size(0));
      }
      given.frames = frames.index_select(0, at::tensor(rows, at::kLong));
    }
    at::Tensor clips;
    for (int64_t piece = 0; piece < options.pieces; ++piece) {
      DrawConditions conditions = conditions_of(first, size);
      if (given.frames.defined()) {
        give(given, num_frames, device, conditions.conditions);
      }
      if (!options.shown_places.empty()) {
        conditions.conditions.shown_places =
            at::tensor(options.shown_places, at::kFloat).expand({size, -1}).contiguous().to(device);
      }
      const at::Tensor drawn =
          (piece == 0 ? first_pieces : later_pieces)
              .draw(first, size, conditions, piece * kPieceStride, [&](const StepDone& done) {
                report({.step = piece * done.steps + done.step,
                        .steps = options.pieces * done.steps,
                        .x0 = done.x0,
                        .row = done.row});
              });
      clips =
          piece == 0 ? drawn : at::cat({clips, drawn.narrow(2, overlap, num_frames - overlap)}, 2);
      given = {.frames = drawn.narrow(2, num_frames - overlap, overlap),
               .places = run_of(0, overlap)};
    }
    return clips;
  };
  return for_each_batch(request, events, draw_batch);
}

at::Tensor draw_clips(diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler,
                      const SamplingConfig& config, const DrawRequest& request,
                      at::IntArrayRef sample_shape, const ClipOptions& options,
                      const ConditionsOf& conditions_of, at::Device device) {
  DrawnSamples drawn;
  (void)draw_clip_batches(denoiser, sampler, config, request, sample_shape, options, conditions_of,
                          device, drawn.events());
  return drawn.all();
}

}  // namespace kinora::pipelines
