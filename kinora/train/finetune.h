#pragma once

#include <string>
#include <vector>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/checkpoint/low_rank_file.h"
#include "kinora/models/model.h"
#include "kinora/nn/module.h"
#include "kinora/nn/plan.h"
#include "kinora/optim/arena.h"
#include "kinora/train/run_config.h"

/// Fine-tuning: what of a model is trained, how fast, and from which weights.
namespace kinora::train {

/// Freezes parameters, adds low-rank updates and sets factors of learning rates, as finetune.* and
/// lr.* say. Before the parameters have their memory. kConfig for a pattern that nothing matches,
/// with the names most like it, and where keys contradict each other.
void prepare_finetuning(const RunConfig& config, nn::Module& model);

/// The model's buckets, in which each update lies behind its linear's.
[[nodiscard]] std::vector<nn::BucketSpec> with_updates(std::vector<nn::BucketSpec> buckets,
                                                       nn::Module& model);

[[nodiscard]] std::vector<nn::NamedParameter> trained_parameters(nn::Module& model);

/// "3.1M of 675M parameters are trained; LoRA of rank 8 on 56 linears": "" where all are.
[[nodiscard]] std::string describe_finetuning(const RunConfig& config, nn::Module& model,
                                              const optim::Arena& arena);

/// Fills the arena from checkpoint.init_from, but for what finetune.fresh and finetune.positions
/// except, and sets what DoRA starts from. Returns what was not taken from the file, "" for
/// nothing. kIo where the file does not fit.
std::string initialise_from(const RunConfig& config, nn::Module& model, optim::Arena& arena);

/// Merges the updates of a run into its weights, raw or averaged, under their plain names. Returns
/// what was trained, as an adapter; an empty one where the run has no updates, whose weights are
/// plain.
checkpoint::Adapter merge_updates(const RunConfig& config, checkpoint::LateTensors& weights);

[[nodiscard]] checkpoint::AdapterSettings adapter_settings(const LoraConfig& lora);

/// Merges adapters, each "FILE" or "FILE:WEIGHT", into plain weights of `model`.
void merge_adapters(const std::vector<std::string>& choices, const models::ModelConfig& model,
                    checkpoint::LateTensors& weights);

/// The other names that adapters of such a model may have: those of diffusers, where it has it.
[[nodiscard]] nn::Naming adapter_naming(const models::ModelConfig& model);

}  // namespace kinora::train
