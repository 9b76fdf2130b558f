#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kinora/models/model.h"

namespace kinora::models {

/// What the transformers have in common whose blocks compute by nn's modules: buckets, and a fast
/// path on which these modules and the seams between them run by kernels (ops/fused.h), with the
/// residual stream in the compute type and the tokens wherever a nn::Sequence has them.
class BlockModel : public Model {
 public:
  [[nodiscard]] std::vector<nn::BucketSpec> buckets() const override { return buckets_; }
  void to_device(const at::Device& device) override;

  [[nodiscard]] int64_t num_fast_linears() const override;
  /// kConfig for fp8.
  void use_fast_path(std::shared_ptr<ops::BlockKernels> kernels,
                     ops::Recompute level = ops::Recompute::kNone) override;

 protected:
  explicit BlockModel(const ModelConfig& config);

  /// To be called when all children are there. Those of blocks lie together, in order of use.
  void set_buckets(std::vector<nn::BucketSpec> buckets);

  /// Whether block (of STDiT3: pair) number `block` keeps only its input.
  [[nodiscard]] bool recomputes(int64_t block) const {
    return recomputes_blocks_ || block < recompute_blocks();
  }
  /// To be called first in a pass. Returns what run_block() tells of buckets in it.
  [[nodiscard]] ops::BucketHook start(const diffusion::Pass& pass) const;
  /// The bucket of the block that is used as number `use` in a pass.
  [[nodiscard]] int64_t block_bucket(int64_t use) const { return first_block_ + use; }
  /// The embedded tokens in the type of the residual stream.
  [[nodiscard]] at::Tensor as_stream(const at::Tensor& x) const;

 private:
  void zero_gradients(size_t bucket) const;

  std::vector<nn::BucketSpec> buckets_;
  std::vector<std::vector<const nn::Parameter*>> parameters_;  // of buckets_
  int64_t first_block_ = 0;                                    // in buckets_
  std::shared_ptr<ops::BlockKernels> kernels_;
  bool recomputes_blocks_ = false;
};

}  // namespace kinora::models
