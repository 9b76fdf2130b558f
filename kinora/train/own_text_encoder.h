#pragma once

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/train/run_config.h"

/// A published CLIP that is trained along with the model (text.train).
namespace kinora::train {

/// With text.train: makes text.encoder the model's own, by its sizes (model.text_encoder), its
/// tokenizer (text.tokenizer) and where its weights are (text_start), and no frozen one any more.
/// What was done before, in a resumed run, stays. kConfig for another encoder than CLIP, and
/// without checkpoint.init_from or data.text tokens.
[[nodiscard]] RunConfig with_own_text_encoder(RunConfig config);

/// Adds the weights of config.text_start to those of a model, as text_encoder.*.
void add_text_encoder(const RunConfig& config, checkpoint::LateTensors& weights);

}  // namespace kinora::train
