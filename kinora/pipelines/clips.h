#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/pipelines/draw.h"
#include "kinora/pipelines/sampling_config.h"

namespace kinora::pipelines {

/// Frames of clips that are given, not drawn.
struct GivenFrames {
  at::Tensor frames{};            ///< float32 [N, C, K, H, W], a clip takes one, in turn; or none
  std::vector<int64_t> places{};  ///< K frames of the clip: its frame places[k] is frame k
  /// Of each, of a flow: the noise level below which it is drawn as the others, see
  /// diffusion::Conditions::given_levels; empty: none is.
  std::vector<double> levels{};
};

/// Where `count` given frames lie in a clip: `where` is "head" (the first ones), "tail" (the last
/// ones), "head_tail" (half of them, rounded up, first and the rest last), or their numbers from 0,
/// "0,1,7". kConfig unless there are `count` different frames of the clip, and one left to draw.
[[nodiscard]] std::vector<int64_t> frame_places(std::string_view where, int64_t count,
                                                int64_t num_frames);

/// How clips are drawn.
struct ClipOptions {
  GivenFrames given{};  ///< of the clips' first pieces
  /// The first frames of the sample shape are no part of the clip, but given, and shown as what
  /// begins at these frames of it in pixels (diffusion::Conditions::shown_places). Of one piece.
  std::vector<int64_t> shown_places{};
  /// Of a flow: when they are drawn on, see diffusion::FlowEulerSampler. Frames that pieces share
  /// stay as they are.
  double given_edit = 0.0;
  /// Of a flow, as diffusion::FlowEulerSampler has it.
  diffusion::GivenWay given_way = diffusion::GivenWay::kClean;
  /// A clip is so many pieces of the model's length, drawn one behind the other; each is given the
  /// last `overlap` frames of the one before as its first ones (Open-Sora's loop extension).
  int64_t pieces = 1;
  int64_t overlap = 0;
};

/// Draws clips [C, L, H, W] with L = pieces (T - overlap) + overlap, for sample_shape [C, T, H, W],
/// batch by batch; a batch's steps are those of all its pieces. The conditions are those of all
/// pieces; the rest is as in draw_batches(). kConfig where pieces and overlap, or given_edit and
/// the sampler, do not fit; kShape for given frames of another shape.
bool draw_clip_batches(diffusion::Denoiser& denoiser, const diffusion::Sampler& sampler,
                       const SamplingConfig& config, const DrawRequest& request,
                       at::IntArrayRef sample_shape, const ClipOptions& options,
                       const ConditionsOf& conditions_of, at::Device device,
                       const DrawEvents& events);

/// The same, all in one tensor: float32 [samples, C, L, H, W] on the CPU.
[[nodiscard]] at::Tensor draw_clips(diffusion::Denoiser& denoiser,
                                    const diffusion::Sampler& sampler, const SamplingConfig& config,
                                    const DrawRequest& request, at::IntArrayRef sample_shape,
                                    const ClipOptions& options, const ConditionsOf& conditions_of,
                                    at::Device device);

}  // namespace kinora::pipelines
