#pragma once

#include <string>
#include <vector>

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

/// Whether anything is trained that the vectors which modulate blocks depend on: what makes them,
/// or anything before or behind the blocks. Where not, the fast path's backward does not read what
/// makes them.
[[nodiscard]] bool trains_modulation(models::Model& model);

/// Whether a GPU's host multiplies with what makes these vectors, as much of it as lies in its
/// memory and nobody trains: few vectors, weights that such products read, no blocks that modulate
/// themselves, and no train.deterministic, since the host adds in another order than the GPU.
[[nodiscard]] bool has_host_products(const RunConfig& config, int64_t data_ranks);

/// "3.1M of 675M parameters are trained; LoRA of rank 8 on 56 linears": "" where all are.
[[nodiscard]] std::string describe_finetuning(const RunConfig& config, nn::Module& model,
                                              const optim::Arena& arena);

/// Fills the arena from checkpoint.init_from, but for what finetune.fresh and finetune.positions
/// except, and sets what DoRA starts from. Returns what was not taken from the file, "" for
/// nothing. kIo where the file does not fit.
std::string initialise_from(const RunConfig& config, nn::Module& model, optim::Arena& arena);

}  // namespace kinora::train
