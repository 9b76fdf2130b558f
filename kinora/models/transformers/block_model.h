#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kinora/diffusion/step_cache.h"
#include "kinora/models/model.h"
#include "kinora/models/transformers/branches.h"
#include "kinora/ops/block_stack.h"

namespace kinora::models {

/// Blocks first, ..., end - 1, counted in order of use; a range of their numbers.
struct BlockSpan {
  int64_t first = 0;
  int64_t end = 0;

  struct Iterator {
    int64_t use;
    [[nodiscard]] int64_t operator*() const { return use; }
    Iterator& operator++() {
      ++use;
      return *this;
    }
    bool operator==(const Iterator&) const = default;
  };
  [[nodiscard]] int64_t size() const { return end - first; }
};
[[nodiscard]] inline BlockSpan::Iterator begin(BlockSpan span) {
  return {span.first};
}
[[nodiscard]] inline BlockSpan::Iterator end(BlockSpan span) {
  return {span.end};
}

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
  [[nodiscard]] bool can_offload_activations() const override { return num_fast_linears() > 0; }
  void offload_activations(int64_t num_blocks, const at::Device& device) override;
  void keep_activations_in_fp8(bool in_fp8) override;
  void divide_norms(bool divided) override;
  [[nodiscard]] int64_t offloaded_activation_bytes() const override;
  void begin_step() override;
  /// Nothing, but a run of sampling in fp8 begins: models that prepare something call it first.
  [[nodiscard]] diffusion::Prepared prepare(const at::Tensor& times,
                                            const diffusion::Conditions& conditions) override;
  void use_step_cache(const diffusion::StepCacheConfig& config) override;
  [[nodiscard]] diffusion::StepCacheUse step_cache_use() const override { return cache_use_; }
  [[nodiscard]] std::unique_ptr<diffusion::StepCache> make_cache() override;
  /// All alike.
  [[nodiscard]] std::vector<double> block_costs() const override;

 protected:
  explicit BlockModel(const ModelConfig& config);

  /// forward(), of the blocks of pass.stage.
  [[nodiscard]] virtual at::Tensor compute(const at::Tensor& x_t, const at::Tensor& t,
                                           const diffusion::Conditions& conditions,
                                           const diffusion::Pass& pass) = 0;
  [[nodiscard]] int64_t num_blocks() const { return num_blocks_; }
  /// Whether block `use` is the last one of a stack: what it keeps is needed at once.
  [[nodiscard]] virtual bool ends_stack(int64_t use) const { return use + 1 == num_blocks_; }
  /// What a pass computes.
  [[nodiscard]] BlockSpan blocks_of(const diffusion::Pass& pass) const {
    return pass.stage == nullptr ? BlockSpan{0, num_blocks_}
                                 : BlockSpan{pass.stage->first(), pass.stage->end()};
  }

  /// To be called when all children are there. Those of blocks lie together, in order of use.
  /// linears: of each block, those that can compute in fp8, in order; [] = there is no fast path.
  void set_buckets(std::vector<nn::BucketSpec> buckets,
                   std::vector<std::vector<nn::Linear*>> linears);

  /// Whether blocks run as a stack: on the fast path, unless something looks at modules' outputs.
  [[nodiscard]] bool is_fast() const { return kernels_ != nullptr && !is_tapped(); }
  /// The same of models whose attention is off two streams: they have it only with kernels for what
  /// happens to heads.
  [[nodiscard]] bool is_fast_with_heads() const { return is_fast() && kernels_->has_head_rules(); }
  /// Of the pass over tokens x [B, T, S', C] (undefined: none, for stack_vectors()), of which a
  /// frame has tokens_a_frame on all ranks.
  [[nodiscard]] FastPass fast_pass(const at::Tensor& x, int64_t tokens_a_frame,
                                   const diffusion::Pass& pass = {}) const;
  /// The blocks of a pass, in order of use. To be called before anything adds gradients.
  [[nodiscard]] ops::BlockStack stack(std::vector<ops::Block> blocks,
                                      const diffusion::Pass& pass) const;
  /// ops::BlockStack::centres.
  [[nodiscard]] virtual bool centres() const { return true; }
  /// Runs it on inputs of one stream, whose x [.., C] is in any type: fp32. Nothing behind a
  /// stage's blocks.
  [[nodiscard]] at::Tensor run(ops::BlockStack stack, ops::StackInputs inputs,
                               const diffusion::Pass& pass) const;

  /// The same with two streams, both in any type: in the compute type where there is no norm. All
  /// blocks are computed, and what they read is here.
  [[nodiscard]] std::array<at::Tensor, 2> run_joint(ops::BlockStack stack,
                                                    ops::StackInputs inputs) const;

  /// Where the tokens of a pass of the plain path lie: sequence(), or, while a step cache keeps
  /// results of branches, the same around it.
  [[nodiscard]] std::shared_ptr<const nn::Sequence> sequence_of(const diffusion::Pass& pass) const;

  // Blocks of which a step cache may leave out some, or a stage has some.
  using Streams = std::vector<at::Tensor>;
  /// Computes the blocks that are used as numbers first, ..., end - 1; behind the last one is the
  /// first stream alone.
  using BlockRange = std::function<Streams(Streams streams, int64_t first, int64_t end)>;
  /// The first stream behind `count` blocks; nothing behind a stage's. first_input: the first norm
  /// of the first block, of the first stream.
  [[nodiscard]] at::Tensor through_blocks(Streams streams, int64_t count,
                                          const diffusion::Pass& pass, const BlockRange& blocks,
                                          const std::function<at::Tensor()>& first_input) const;
  /// The same on the plain path: body(i, x) is the block that is used as number i. first_input
  /// reads weights of the first block.
  [[nodiscard]] at::Tensor through_plain_blocks(
      at::Tensor x, int64_t count, const diffusion::Pass& pass,
      const std::function<at::Tensor(int64_t i, const at::Tensor& x)>& body,
      const std::function<at::Tensor()>& first_input) const;
  /// Whether blocks may be left out: then stacks run in pieces.
  [[nodiscard]] static bool runs_in_pieces(const diffusion::Pass& pass) {
    return pass.cache != nullptr && pass.cache->leaves_out_blocks();
  }
  /// Blocks first, ..., end - 1 of a stack and of its vectors [V, n C], without the final norm.
  [[nodiscard]] Streams run_piece(const ops::BlockStack& stack, const ops::StackInputs& inputs,
                                  int64_t first, int64_t end) const;
  /// The norm of a branch, or the final one, with shift and scale at columns `first` of vectors
  /// [V, n C]: in x's type.
  [[nodiscard]] static at::Tensor normed(const at::Tensor& x, const at::Tensor& vectors,
                                         int64_t first, bool centres = true);

  /// ops::stack_vectors by the fast path's kernels.
  [[nodiscard]] at::Tensor stack_vectors(const ops::BlockStack& stack, const at::Tensor& condition,
                                         const at::Tensor& vectors) const;
  /// ops::packed_text by them.
  [[nodiscard]] at::Tensor packed_text(const ops::CrossAttentionBody& body,
                                       const at::Tensor& text) const;

  [[nodiscard]] at::ScalarType compute_type() const;
  /// The bucket of the block that is used as number `use` in a pass.
  [[nodiscard]] int64_t block_bucket(int64_t use) const { return first_block_ + use; }

 private:
  [[nodiscard]] at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) final;
  /// compute(), patch by patch where pass.cache has any.
  [[nodiscard]] at::Tensor in_patches(const at::Tensor& x_t, const at::Tensor& t,
                                      const diffusion::Conditions& conditions,
                                      const diffusion::Pass& pass);
  [[nodiscard]] bool samples_in_fp8() const;
  /// Of the linears of all blocks.
  void tell_fp8() const;
  /// Of so many that train.recompute counts.
  [[nodiscard]] int64_t in_blocks(int64_t count) const;
  /// Of num_blocks() those whose activations are the host's.
  [[nodiscard]] std::vector<bool> offloaded() const;
  /// Those that keep only their input.
  [[nodiscard]] std::vector<bool> recomputed(const std::vector<bool>& offloaded) const;

  std::vector<nn::BucketSpec> buckets_;
  int64_t first_block_ = 0;  // in buckets_
  int64_t num_blocks_ = 0;
  std::vector<std::vector<nn::Linear*>> linears_;
  std::vector<const nn::Parameter*> outside_;  // that add up over a step: no islands, in no ring
  std::shared_ptr<ops::BlockKernels> kernels_;
  ops::Recompute level_ = ops::Recompute::kNone;
  std::shared_ptr<ops::HostActivations> host_activations_;  // null: nothing is offloaded
  int64_t offloaded_blocks_ = 0;                            // of those that train.recompute counts
  bool fp8_activations_ = false;
  bool divides_norms_ = false;
  diffusion::StepCacheConfig cache_;
  diffusion::StepCacheUse cache_use_;
};

}  // namespace kinora::models
