#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "kinora/models/model.h"
#include "kinora/models/transformers/branches.h"
#include "kinora/ops/block_stack.h"

namespace kinora::models {

/// What all transformers have in common: buckets, and a fast path on which the blocks are one stack
/// (ops/block_stack.h), with the residual stream in the compute type and the tokens wherever a
/// nn::Sequence has them.
class BlockModel : public Model {
 public:
  [[nodiscard]] std::vector<nn::BucketSpec> buckets() const override { return buckets_; }
  void to_device(const at::Device& device) override;

  [[nodiscard]] int64_t num_fast_linears() const override;
  [[nodiscard]] bool can_sample_in_fp8() const override { return num_fast_linears() > 0; }
  void use_fast_path(std::shared_ptr<ops::BlockKernels> kernels,
                     ops::Recompute level = ops::Recompute::kNone) override;
  void begin_step() override;
  /// Nothing, but a run of sampling in fp8 begins: models that prepare something call it first.
  [[nodiscard]] diffusion::Prepared prepare(const at::Tensor& times,
                                            const diffusion::Conditions& conditions) override;

 protected:
  explicit BlockModel(const ModelConfig& config);

  /// To be called when all children are there. Those of blocks lie together, in order of use.
  /// linears: of each block, those that can compute in fp8, in order; [] = there is no fast path.
  void set_buckets(std::vector<nn::BucketSpec> buckets,
                   std::vector<std::vector<nn::Linear*>> linears);

  /// Whether blocks run as a stack: on the fast path, unless something looks at modules' outputs.
  [[nodiscard]] bool is_fast() const { return kernels_ != nullptr && !is_tapped(); }
  /// Of the pass over tokens x [B, T, S', C] (undefined: none, for stack_vectors()), of which a
  /// frame has tokens_a_frame on all ranks.
  [[nodiscard]] FastPass fast_pass(const at::Tensor& x, int64_t tokens_a_frame) const;
  /// All blocks of a pass, in order of use. To be called before anything adds gradients.
  [[nodiscard]] ops::BlockStack stack(std::vector<ops::Block> blocks,
                                      const diffusion::Pass& pass) const;
  /// Runs it on inputs whose x [.., C] is in any type: fp32.
  [[nodiscard]] at::Tensor run(ops::BlockStack stack, ops::StackInputs inputs) const;

  /// The same with two streams, both in any type: in the compute type where there is no norm.
  [[nodiscard]] std::array<at::Tensor, 2> run_joint(ops::BlockStack stack,
                                                    ops::StackInputs inputs) const;

  /// ops::stack_vectors by the fast path's kernels.
  [[nodiscard]] at::Tensor stack_vectors(const ops::BlockStack& stack, const at::Tensor& condition,
                                         const at::Tensor& vectors) const;
  /// ops::packed_text by them.
  [[nodiscard]] at::Tensor packed_text(const ops::CrossAttentionBody& body,
                                       const at::Tensor& text) const;

  /// The bucket of the block that is used as number `use` in a pass.
  [[nodiscard]] int64_t block_bucket(int64_t use) const { return first_block_ + use; }

 private:
  [[nodiscard]] bool samples_in_fp8() const;
  void quantise_weights() const;

  std::vector<nn::BucketSpec> buckets_;
  int64_t first_block_ = 0;  // in buckets_
  std::vector<std::vector<nn::Linear*>> linears_;
  std::vector<const nn::Parameter*> outside_;  // that add up over a step: no islands, in no ring
  std::shared_ptr<ops::BlockKernels> kernels_;
  ops::Recompute level_ = ops::Recompute::kNone;
};

}  // namespace kinora::models
