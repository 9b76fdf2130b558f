#include <string>

#include "kinora/core/rounding.h"
#include "kinora/models/transformers/dit.h"

namespace kinora::models {
namespace {

// Blocks whose modulation weights share a bucket: enough that a slab of DiT-XL is 32 M parameters.
constexpr int64_t kBlocksPerSlab = 4;

}  // namespace

std::vector<nn::BucketSpec> dit_buckets(int64_t depth) {
  std::vector<nn::BucketSpec> buckets;
  buckets.push_back(
      {.name = "embedders",
       .parameters = {"x_embedder.proj.weight", "x_embedder.proj.bias", "t_embedder.mlp.0.weight",
                      "t_embedder.mlp.0.bias", "t_embedder.mlp.2.weight", "t_embedder.mlp.2.bias",
                      "y_embedder.embedding_table.weight"},
       .fp32_island = true});
  for (int64_t first = 0; first < depth; first += kBlocksPerSlab) {
    nn::BucketSpec slab{.name = "modulation." + std::to_string(first / kBlocksPerSlab),
                        .parameters = {},
                        .fp32_island = false,
                        .ring = "modulation"};
    // Weights first, then biases: each a contiguous matrix or vector over the slab's blocks.
    for (const char* kind : {"weight", "bias"}) {
      for (int64_t i = first; i < std::min(first + kBlocksPerSlab, depth); ++i) {
        slab.parameters.push_back("blocks." + std::to_string(i) + ".adaLN_modulation.1." + kind);
      }
    }
    buckets.push_back(std::move(slab));
  }
  for (int64_t i = 0; i < depth; ++i) {
    const std::string block = "blocks." + std::to_string(i);
    nn::BucketSpec bucket{
        .name = block, .parameters = {}, .fp32_island = false, .ring = "blocks", .is_block = true};
    for (const char* linear : {"attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"}) {
      bucket.parameters.push_back(block + "." + linear + ".weight");
      bucket.parameters.push_back(block + "." + linear + ".bias");
    }
    buckets.push_back(std::move(bucket));
  }
  buckets.push_back({.name = "final_layer",
                     .parameters = {"final_layer.linear.weight", "final_layer.linear.bias",
                                    "final_layer.adaLN_modulation.1.weight",
                                    "final_layer.adaLN_modulation.1.bias"},
                     .fp32_island = true});
  return buckets;
}

DiTBlockBuckets dit_block_buckets(int64_t depth, int64_t block) {
  const int64_t num_slabs = ceil_div(depth, kBlocksPerSlab);
  return {.modulation = 1 + block / kBlocksPerSlab,  // behind the embedders
          .block = 1 + num_slabs + block,
          .opens_slab = block % kBlocksPerSlab == 0,
          .closes_slab = (block + 1) % kBlocksPerSlab == 0 || block + 1 == depth};
}

}  // namespace kinora::models
