#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kinora/inference/given_frames.h"
#include "kinora/inference/request.h"
#include "kinora/models/model_config.h"
#include "kinora/pipelines/clips.h"

namespace kinora::inference {

/// Pictures and clips that samples show from one of their frames on, as latents.
struct PlacedLatents {
  pipelines::GivenFrames inside;  ///< stand in the clip
  /// Are shown before it; places are frames of the clip in pixels (ClipOptions::shown_places).
  pipelines::GivenFrames before;

  /// Of clips that are given `given` already, the frames of both, of which those before the clip
  /// come first. Errors of joined().
  void add_to(pipelines::ClipOptions& clips, int64_t num_frames) const;
};

/// Those of `options`, and its --last, of a model with model.single_first_frame. A clip is cut to
/// one and whole latents behind it, and to what is left of the samples' clips. What begins with
/// their first frame stands in them. Of what begins later the first latent is of one frame, which
/// none of theirs is; so it and the next lie before the clip, with positions of their own, and only
/// those behind stand in it (diffusers' LTXConditionPipeline). kConfig where the model takes no
/// such frames, for frames that the samples do not have, and without an encoder; kIo.
[[nodiscard]] PlacedLatents read_placed(const DrawOptions& options, const GivenOptions& how,
                                        const models::ModelConfig& model);

}  // namespace kinora::inference
