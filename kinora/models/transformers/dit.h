#pragma once

#include <memory>
#include <vector>

#include "kinora/models/transformers/block_model.h"
#include "kinora/nn/linear.h"
#include "kinora/nn/mlp.h"
#include "kinora/nn/module.h"
#include "kinora/nn/plan.h"
#include "kinora/nn/self_attention.h"
#include "kinora/nn/sequence.h"
#include "kinora/ops/linear_weights.h"

namespace kinora::models {

// Shapes: B batch, N tokens, C hidden, P patch side, H and W of the input in patches h and w.

// Members that hold parameters are named as the original's keys.
// NOLINTBEGIN(readability-identifier-naming)

/// Projects patches, fp32: [..., values of a patch] -> [..., C]. Key: proj, whose weight has the
/// shape of the original's convolution: of 2 dims [C, channels, P, P], of 3 [C, channels, p, P, P],
/// of 1 that of a linear, [C, channels p P P].
class PatchEmbed : public nn::Module {
 public:
  PatchEmbed(const ModelConfig& config, int64_t dims);
  [[nodiscard]] at::Tensor forward(const at::Tensor& patches) const;

 private:
  struct Projection : nn::Module {
    Projection(const ModelConfig& config, int64_t dims);
    nn::Parameter weight;
    nn::Parameter bias;
  };
  Projection proj;
};

/// A vector a sample, such as a caption's: two linears with SiLU between them, fp32. Keys mlp.0 and
/// mlp.2.
class VectorEmbedder : public nn::Module {
 public:
  VectorEmbedder(int64_t channels, int64_t hidden);
  /// [B, channels] -> [B, C].
  [[nodiscard]] at::Tensor forward(const at::Tensor& vector) const;

 private:
  struct Mlp : nn::Module {
    Mlp(int64_t channels, int64_t hidden);
    nn::Linear first;
    nn::Linear second;
  };
  Mlp mlp;
};

/// A sinusoid (cos first, max period 1e4), embedded so, all fp32: [B] -> [B, C].
class TimestepEmbedder : public VectorEmbedder {
 public:
  /// time_scale: ModelConfig's; dims: of the sinusoid.
  TimestepEmbedder(int64_t hidden, double time_scale, int64_t dims = 256);
  [[nodiscard]] at::Tensor forward(const at::Tensor& t) const;

 private:
  double time_scale_;
  int64_t dims_;
};

/// A learned vector a class, and one more for the null class: int64 [B] -> [B, C].
class LabelEmbedder : public nn::Module {
 public:
  explicit LabelEmbedder(const ModelConfig& config);
  [[nodiscard]] at::Tensor forward(const at::Tensor& labels) const;

 private:
  struct Table : nn::Module {
    explicit Table(const ModelConfig& config);
    nn::Parameter weight;
  };
  Table embedding_table;
};

/// Linear(SiLU(c)), starting at zero: the modulation vectors. Key "1", as in the original's
/// Sequential.
class Modulation : public nn::Module {
 public:
  /// condition: width of c; 0: hidden.
  Modulation(int64_t hidden, int64_t num_vectors, bool fp32_island, int64_t condition = 0);
  /// c: [B, condition]. Returns num_vectors tensors [B, 1, 1, C], fp32.
  [[nodiscard]] std::vector<at::Tensor> forward(const at::Tensor& c) const;
  [[nodiscard]] ops::LinearWeights weights() const { return linear.weights(); }

 private:
  int64_t num_vectors_;
  nn::Linear linear;
};

/// A block with adaLN-Zero (paper, section 3.2, figure 3).
class DiTBlock : public nn::Module {
 public:
  explicit DiTBlock(const TransformerConfig& config);
  /// x: the residual stream [B, T, S', C], of which images are one frame; c: [B, C] fp32; span:
  /// among which tokens attention goes; tokens: S.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& c,
                                   const nn::Sequence& sequence, nn::Span span,
                                   int64_t tokens) const;

  /// The norm that attention reads.
  [[nodiscard]] at::Tensor first_norm(const at::Tensor& x, const at::Tensor& c) const;

  // For the fast path.
  [[nodiscard]] ops::Block fast(const FastPass& pass, nn::Span span) const;
  [[nodiscard]] ops::LinearWeights modulation() const { return adaLN_modulation.weights(); }
  /// Those that can compute in fp8, in order.
  [[nodiscard]] std::vector<nn::Linear*> linears();

 private:
  nn::SelfAttention attn;
  nn::Mlp mlp;
  Modulation adaLN_modulation;
};

/// Modulated LayerNorm and projection to patches, fp32: [B, T, S', C] -> [B, T, S', P * P * out].
class FinalLayer : public nn::Module {
 public:
  explicit FinalLayer(const ModelConfig& config);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, const at::Tensor& c) const;

  // For the fast path, whose blocks end with the modulated norm.
  /// c: [B, C]. Returns shift and scale, fp32 [B, 2 C].
  [[nodiscard]] at::Tensor modulation(const at::Tensor& c) const;
  [[nodiscard]] at::Tensor project(const at::Tensor& h) const { return linear.forward(h); }

 private:
  nn::Linear linear;
  Modulation adaLN_modulation;
};

/// The diffusion transformer. Keys, shapes and arithmetic are those of the original, so its
/// checkpoints load by name. The modulation linears of some blocks are one product on the fast
/// path.
class DiT : public BlockModel {
 public:
  /// `config` as resolved() gives it.
  explicit DiT(const ModelConfig& config);
  /// Family::macs.
  [[nodiscard]] static double macs(const ModelConfig& config);

  /// The fast path's vectors of all seams, where they take at most 1 GiB.
  [[nodiscard]] diffusion::Prepared prepare(const at::Tensor& times,
                                            const diffusion::Conditions& conditions) override;

 private:
  /// Needs labels.
  [[nodiscard]] at::Tensor compute(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) override;
  /// x: [B, 1, S', C], or undefined for stack_vectors().
  [[nodiscard]] ops::BlockStack fast_stack(const at::Tensor& x, const diffusion::Pass& pass) const;
  [[nodiscard]] at::Tensor plain_blocks(const at::Tensor& x, const at::Tensor& c,
                                        const diffusion::Pass& pass) const;
  [[nodiscard]] at::Tensor plain_block(int64_t i, at::Tensor x, const at::Tensor& c,
                                       const nn::Sequence& tokens, BlockSpan of_pass) const;
  /// of_pass: the blocks of the pass.
  void call_hook(ops::BucketMoment moment, int64_t block, BlockSpan of_pass) const;
  [[nodiscard]] at::Tensor condition(const at::Tensor& t, const at::Tensor& labels) const;
  [[nodiscard]] at::Tensor to_image(const at::Tensor& patches) const;

  PatchEmbed x_embedder;
  TimestepEmbedder t_embedder;
  LabelEmbedder y_embedder;
  at::Tensor pos_embed;  // [1, N, C]
  struct Blocks : nn::Module {
    explicit Blocks(const TransformerConfig& config);
    std::vector<std::unique_ptr<DiTBlock>> items;
  };
  Blocks blocks;
  FinalLayer final_layer;
};

// NOLINTEND(readability-identifier-naming)

/// Position table of the original: [1, h * w, C], tokens row by row; the first half of C encodes
/// the column, the second the row, each as [sin | cos] with frequencies 10000^(-i / (C / 4)).
[[nodiscard]] at::Tensor sin_cos_position_embedding(int64_t hidden, int64_t rows, int64_t columns);

/// The embedders, slabs of the blocks' modulation weights (so that a slab can be one GEMM), one
/// bucket a block, the final layer. Embedders and final layer are fp32 islands.
[[nodiscard]] std::vector<nn::BucketSpec> dit_buckets(int64_t depth);

/// Where block `block` has its weights in dit_buckets().
struct DiTBlockBuckets {
  int64_t modulation = 0;
  int64_t block = 0;
  bool opens_slab = false;   ///< the first block of its modulation bucket
  bool closes_slab = false;  ///< the last one
};
[[nodiscard]] DiTBlockBuckets dit_block_buckets(int64_t depth, int64_t block);

}  // namespace kinora::models
