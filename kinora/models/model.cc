#include "kinora/models/model.h"

#include "kinora/core/error.h"
#include "kinora/models/families.h"

namespace kinora::models {

void Model::set_recompute(int64_t num_blocks) {
  const int64_t blocks = shape_of(config_).blocks;
  KINORA_CHECK(num_blocks >= 0 && num_blocks <= blocks, kConfig,
               "[model] recomputed blocks must be 0 to ", blocks, ", got ", num_blocks);
  recompute_blocks_ = num_blocks;
}

void Model::use_sequence(std::shared_ptr<const nn::Sequence> sequence) {
  sequence_ = std::move(sequence);
}

void Model::use_step_cache(const diffusion::StepCacheConfig& config) {
  KINORA_CHECK(!config.any(), kConfig, "[sample] ", config.key(), " is for transformers, and ",
               name_of(config_), " is none. Hint: sample.cache=none, sample.patches=1");
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): models that have one keep them
void Model::use_fast_path(std::shared_ptr<ops::BlockKernels> kernels, ops::Recompute /*level*/) {
  KINORA_CHECK(kernels == nullptr, kConfig, "[model] ", name_of(config_),
               " has no fast path. Hint: leave model.path at auto");
}

void Model::offload_activations(int64_t num_blocks, const at::Device& /*device*/) {
  KINORA_CHECK(
      num_blocks == 0, kConfig, "[model] ", name_of(config_),
      " cannot keep activations in the host's memory. Hint: train.recompute=block computes "
      "them again");
}

void Model::keep_activations_in_fp8(bool in_fp8) {
  KINORA_CHECK(!in_fp8, kConfig, "[model] ", name_of(config_),
               " cannot keep activations in 8 bits. Hint: train.recompute=block computes them "
               "again");
}

void Model::divide_norms(bool divided) {
  KINORA_CHECK(!divided, kConfig, "[model] ", name_of(config_),
               " cannot divide norms among ranks. Hint: parallel.divided_norms=false");
}

}  // namespace kinora::models
