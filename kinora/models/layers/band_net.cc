#include "kinora/models/layers/band_net.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <utility>

#include "kinora/models/layers/band_layers.h"
#include "kinora/ops/channel_norm.h"

namespace kinora::models {

namespace {

constexpr int64_t kPieceDim = 2;  // of frames

}  // namespace

ClipSize clip_size(const at::Tensor& x) {
  return {.batch = x.size(0),
          .channels = x.size(1),
          .frames = x.size(2),
          .rows = x.size(3),
          .columns = x.size(4),
          .element_bytes = static_cast<int64_t>(x.element_size()),
          .one_pass_norms = ops::norms_in_one_pass(x)};
}

at::Tensor BandNet::forward(const at::Tensor& x, const nn::BandLimits& limits) const {
  nn::Bands bands(x, plan(clip_size(x), limits, at::GradMode::is_enabled()));
  for (const auto& layer : layers_) {
    bands = layer->forward(std::move(bands));
  }
  return tapped(bands.joined());
}

nn::BandStage BandNet::stage(const ClipSize& in) const {
  nn::BandStage stage{.needs = {}, .units = in.rows / unit_};
  ClipSize size = in;
  for (const auto& layer : layers_) {
    size = layer->plan(size, &stage.needs);
  }
  // What comes and goes is not in pieces.
  stage.needs.push_back(whole_need({.rows = 1, .row_bytes = in.bytes() + size.bytes()}, 1));
  return stage;
}

nn::BandPlan BandNet::plan(const ClipSize& in, const nn::BandLimits& limits,
                           bool with_gradients) const {
  return nn::plan_bands({stage(in)}, limits, with_gradients);
}

at::Tensor BandNet::forward_pieces(const at::Tensor& x, const std::vector<int64_t>& pieces,
                                   const nn::BandLimits& limits) const {
  const nn::BandPlan plan =
      piece_plan(clip_size(x), *std::max_element(pieces.begin(), pieces.end()), limits,
                 at::GradMode::is_enabled());
  ClipMemory memory;
  std::vector<at::Tensor> made;
  for (const at::Tensor& piece : x.split_with_sizes(pieces, kPieceDim)) {
    memory.piece = piece;
    nn::Bands bands(piece, plan);
    for (const auto& layer : layers_) {
      bands = layer->forward_next(std::move(bands), memory);
    }
    made.push_back(bands.joined());
    memory.begins = false;
  }
  return tapped(at::cat(made, kPieceDim));
}

nn::BandStage BandNet::piece_stage(const ClipSize& in, int64_t frames) const {
  ClipSize piece = in;
  piece.frames = frames;
  nn::BandStage needs = stage(piece);
  // Beside a piece lie the whole that comes, all that was made, and what layers remember.
  int64_t beside = in.bytes();
  ClipSize whole = in;
  std::vector<nn::BandNeed> ignored;
  for (const auto& layer : layers_) {
    beside += layer->remembered_bytes(piece);
    whole = layer->plan(whole, &ignored);
    piece = layer->plan(piece, &ignored);
  }
  for (nn::BandNeed& need : needs.needs) {
    need.stored += beside + whole.bytes();
  }
  return needs;
}

nn::BandPlan BandNet::piece_plan(const ClipSize& in, int64_t frames, const nn::BandLimits& limits,
                                 bool with_gradients) const {
  nn::BandStage stage = piece_stage(in, frames);
  for (nn::BandNeed& need : stage.needs) {
    need.kept *= (in.frames + frames - 1) / frames;
  }
  return nn::plan_bands({std::move(stage)}, limits, with_gradients);
}

bool BandNet::piece_fits(const ClipSize& in, int64_t frames, const nn::BandLimits& limits) const {
  return nn::fits_whole(piece_stage(in, frames), limits);
}

}  // namespace kinora::models
