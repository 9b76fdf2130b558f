#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kinora/diffusion/denoiser.h"
#include "kinora/diffusion/step_cache.h"
#include "kinora/models/model_config.h"
#include "kinora/nn/module.h"
#include "kinora/nn/plan.h"
#include "kinora/nn/sequence.h"
#include "kinora/ops/block_stack.h"
#include "kinora/ops/bucket_hook.h"

namespace kinora::ops {
class BlockKernels;
}

namespace kinora::models {

/// A denoiser with named parameters: what training, sampling and checkpoints know of a model.
class Model : public nn::Module, public diffusion::Denoiser {
 public:
  explicit Model(ModelConfig config) : config_(std::move(config)) {}

  [[nodiscard]] const ModelConfig& config() const { return config_; }

  /// Flat parameter buckets in forward order.
  [[nodiscard]] virtual std::vector<nn::BucketSpec> buckets() const = 0;

  /// Moves the buffers to where the parameters are.
  virtual void to_device(const at::Device& device) = 0;

  /// Where the model reads the states of an empty caption for a null one (Conditions::null_text),
  /// as Stable Diffusion does: the buffer that holds them, fp32 [text_tokens, D], zeros until
  /// somebody copies an encoder's into it. Undefined: it has a null embedding of its own.
  [[nodiscard]] virtual at::Tensor null_caption() const { return {}; }

  /// Its pooled vector beside it, where the model reads one: the buffer, fp32 [pooled_channels].
  [[nodiscard]] virtual at::Tensor null_vector() const { return {}; }

  /// The same where a text encoder of the model's own reads an empty caption for a null one: the
  /// buffer of its tokens' ids, fp32 [text_tokens].
  [[nodiscard]] virtual at::Tensor null_tokens() const { return {}; }

  /// The first `num_blocks` blocks keep only their input in training and are computed again in
  /// backward: 0 = none, depth = every block.
  void set_recompute(int64_t num_blocks);

  /// Tells `hook` from now on when the buckets that have a ring are used.
  void tell_buckets(ops::BucketHook hook) { hook_ = std::move(hook); }

  /// Where its tokens lie from now on. kConfig where the model cannot.
  virtual void use_sequence(std::shared_ptr<const nn::Sequence> sequence);

  /// What each block costs, in order of use, as shares of any sum; nothing: it cannot be divided
  /// into stages.
  [[nodiscard]] virtual std::vector<double> block_costs() const { return {}; }
  /// Passes without a stage of their own go through these from now on.
  void use_pipeline(std::shared_ptr<const diffusion::Pipeline> pipeline) {
    pipeline_ = std::move(pipeline);
  }

  /// Linears of the blocks, which the fast path can compute in fp8.
  [[nodiscard]] virtual int64_t num_fast_linears() const { return 0; }
  /// Whether passes without gradients can compute them so, too (ops::Fp8Use::kSampling).
  [[nodiscard]] virtual bool can_sample_in_fp8() const { return false; }
  /// Runs of sampling keep from now on what `config` says. kConfig where the model cannot.
  virtual void use_step_cache(const diffusion::StepCacheConfig& config);
  /// What that has left out since.
  [[nodiscard]] virtual diffusion::StepCacheUse step_cache_use() const { return {}; }
  /// Beside attention and norms, what of the fast path never computes in fp8, in words; empty:
  /// nothing. When parameters have their memory.
  [[nodiscard]] virtual std::string what_stays_16_bit() { return {}; }
  [[nodiscard]] virtual bool has_fast_path() const { return num_fast_linears() > 0; }
  /// Whether overwrite_gradients() does anything on the fast path.
  [[nodiscard]] virtual bool can_overwrite_gradients() const { return num_fast_linears() > 0; }
  /// Takes the fast path from now on, where nothing taps module outputs. `level`: what blocks that
  /// set_recompute() does not name keep for backward. Null: the plain path. kConfig where there is
  /// none.
  virtual void use_fast_path(std::shared_ptr<ops::BlockKernels> kernels,
                             ops::Recompute level = ops::Recompute::kNone);
  /// Whether offload_activations() can.
  [[nodiscard]] virtual bool can_offload_activations() const { return false; }
  /// Has the fast path keep what `num_blocks` blocks need for backward in the host's memory from
  /// now on: 0 = none, depth = every block, else spread evenly over them. set_recompute() names
  /// the first of the others then, unless it names all. What is needed at once, that of the last
  /// block of a pass, never goes there. kConfig where it cannot.
  virtual void offload_activations(int64_t num_blocks, const at::Device& device);
  /// Has the fast path keep what blocks need for backward in 8 bits from now on
  /// (ops/activations_aside.h), or as it was computed. kConfig where offload_activations() cannot.
  virtual void keep_activations_in_fp8(bool in_fp8);
  /// Where ranks divide linears (parallel/tensor.h): whether in passes with gradients each has a
  /// part of the tokens between branches of blocks, too (ops::LinearRanks::gather), or all of them.
  /// kConfig where it cannot.
  virtual void divide_norms(bool divided);
  /// Bytes of the host's memory that offload_activations() has taken.
  [[nodiscard]] virtual int64_t offloaded_activation_bytes() const { return 0; }
  /// Once before the passes of an optimizer step, when weights have changed: quantises them where
  /// the fast path computes in fp8.
  virtual void begin_step() {}
  /// A pass with diffusion::Pass::overwrite overwrites the blocks' gradients from now on, where it
  /// takes the fast path: who updates the weights need not zero them
  /// (optim::Optimizer::leave_gradients).
  void overwrite_gradients() { may_overwrite_ = true; }

 protected:
  [[nodiscard]] int64_t recompute_blocks() const { return recompute_blocks_; }
  [[nodiscard]] const ops::BucketHook& hook() const { return hook_; }
  /// Runs `body`, which reads the weights of a bucket that has a ring, outside of a pass.
  void with_bucket(int64_t bucket, const std::function<void()>& body) const {
    if (hook_) {
      hook_(ops::BucketMoment::kBeforeForward, bucket);
    }
    body();
    if (hook_) {
      hook_(ops::BucketMoment::kAfterForward, bucket);
    }
  }
  [[nodiscard]] const nn::Sequence& sequence() const { return *sequence_; }
  [[nodiscard]] const std::shared_ptr<const nn::Sequence>& shared_sequence() const {
    return sequence_;
  }
  /// Null: all blocks are here.
  [[nodiscard]] const diffusion::Pipeline* pipeline() const { return pipeline_.get(); }
  [[nodiscard]] bool may_overwrite() const { return may_overwrite_; }

 private:
  ModelConfig config_;
  int64_t recompute_blocks_ = 0;
  ops::BucketHook hook_;
  std::shared_ptr<const nn::Sequence> sequence_ = std::make_shared<nn::Sequence>();
  std::shared_ptr<const diffusion::Pipeline> pipeline_;
  bool may_overwrite_ = false;
};

/// The model of a configuration that is resolved(). Parameters get their storage from optim::Arena.
[[nodiscard]] std::unique_ptr<Model> make_model(const ModelConfig& config);

}  // namespace kinora::models
