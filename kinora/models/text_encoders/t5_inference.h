#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kinora/models/text_encoders/t5_encoder.h"
#include "kinora/ops/text_kernels.h"

namespace kinora::models {

/// T5's blocks without gradients, over the rows of all texts: norms, products, gates and attention
/// by ops::TextKernels, in place where that can be. T5Block::forward() is its specification.
///
/// A part of a block (attention, MLP) goes over the rows in chunks of whole texts, so that memory
/// beyond the residual stream is bounded; a weight of 8 bits is widened once a part, for all
/// chunks.
class T5Inference {
 public:
  /// For texts of these lengths. `kernels` is borrowed. most_rows: of a chunk, unless one text has
  /// more.
  T5Inference(const T5Config& config, const std::vector<int64_t>& lengths, at::Device device,
              at::ScalarType type, ops::TextKernels& kernels, int64_t most_rows = kChunkRows);

  /// Whether there is a kernel for every part of such an encoder.
  [[nodiscard]] static bool takes(const T5Config& config, int64_t longest, at::Device device,
                                  at::ScalarType type);

  /// x: fp32 [rows, C], contiguous, becomes what the block returns. distance_bias: as of
  /// RaggedAttentionOptions.
  void run(const T5Block& block, const at::Tensor& x, const at::Tensor& distance_bias);

  /// x, fp32 [rows, C], contiguous, becomes what `norm` returns.
  void finish(const nn::RmsNorm& norm, const at::Tensor& x);

  /// As many fill a GPU, and its products are no faster with more (H200).
  static constexpr int64_t kChunkRows = 2048;

 private:
  struct Chunk {
    int64_t begin = 0;  ///< of its rows
    int64_t end = 0;
    at::Tensor offsets;  ///< int32 [texts + 1], from 0
    int64_t longest = 0;
  };

  void attend(const T5Block& block, const at::Tensor& x, const at::Tensor& distance_bias);
  void transform(const T5Block& block, const at::Tensor& x);
  /// The normed rows of a chunk. weight: fp32 [C].
  [[nodiscard]] at::Tensor normed(const at::Tensor& rows, const at::Tensor& weight);

  const T5Config& config_;
  ops::TextKernels& kernels_;
  std::vector<Chunk> chunks_;
  at::Tensor normed_;  // [most rows of a chunk, C]
  at::Tensor wide_;    // [most rows of a chunk, channels between two products]
};

}  // namespace kinora::models
