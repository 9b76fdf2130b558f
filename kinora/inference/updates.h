#pragma once

#include <string>
#include <vector>

#include "kinora/checkpoint/adapter.h"
#include "kinora/checkpoint/late_tensor.h"
#include "kinora/inference/recipe.h"
#include "kinora/models/model_config.h"
#include "kinora/nn/module.h"

/// Low-rank updates of linears and convolutions: in a model, in its checkpoints, and merged into
/// plain weights.
namespace kinora::inference {

/// Freezes parameters and adds low-rank updates as finetune.* says, before the parameters have
/// their memory. kConfig for a pattern that nothing matches, with the names most like it, and where
/// keys contradict each other.
void add_updates(const FinetuneConfig& finetune, nn::Module& model);

/// Those that are not frozen.
[[nodiscard]] std::vector<nn::NamedParameter> trained_parameters(nn::Module& model);

/// Merges the updates of a run into its weights, raw or averaged, under their plain names. Returns
/// what was trained, as an adapter; an empty one where the run has no updates, whose weights are
/// plain.
checkpoint::Adapter merge_updates(const ModelRecipe& recipe, checkpoint::LateTensors& weights);

/// Reads adapters, each "FILE" or "FILE:WEIGHT", for plain weights of `model`.
[[nodiscard]] std::vector<checkpoint::WeightedAdapter> read_adapters(
    const std::vector<std::string>& choices, const models::ModelConfig& model,
    const checkpoint::LateTensors& weights);

/// Merges such adapters into `weights`. says: logs which they are, and what of them is left out,
/// which is that of text encoders, unless has_encoder: whoever has one merges that there.
void merge_adapters(const std::vector<std::string>& choices, const models::ModelConfig& model,
                    checkpoint::LateTensors& weights, bool says, bool has_encoder = false);

}  // namespace kinora::inference
