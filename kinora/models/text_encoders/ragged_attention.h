#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

/// Attention within texts of different lengths.
namespace kinora::models {

/// Where texts lie that stand one after the other, a row a token: texts of 3 and 2 tokens are five
/// rows. Attention computes texts in groups of about one length.
class RaggedRows {
 public:
  /// Texts that are computed at once, each as long as the longest of them.
  struct Group {
    int64_t count = 0;
    int64_t length = 0;
    at::Tensor rows;   ///< int64 [count * length]; behind a text's end its first row stands again
    at::Tensor valid;  ///< bool [count, 1, 1, length]; which keys are seen; undefined: all
  };

  /// lengths: of each text, at least 1. unit: texts whose lengths become the same when rounded up
  /// to a multiple of it share a group; with 1 nothing is padded.
  /// attended: of each text, how many of its first tokens are keys; empty: all.
  RaggedRows(std::vector<int64_t> lengths, at::Device device, int64_t unit,
             const std::vector<int64_t>& attended = {});

  /// Texts that all have `length` rows, [valid.size(0) * length], of which attention sees those
  /// that are valid: bool [texts, length], one or more of each text. Nothing of it is read on the
  /// host.
  [[nodiscard]] static RaggedRows padded(const at::Tensor& valid);

  /// 1 on the CPU. Larger on a GPU, where a few rows more cost less than another launch.
  [[nodiscard]] static int64_t unit_for(at::Device device);

  [[nodiscard]] const std::vector<int64_t>& lengths() const { return lengths_; }
  [[nodiscard]] int64_t longest() const { return longest_; }
  /// The number of rows.
  [[nodiscard]] int64_t size() const { return size_; }
  [[nodiscard]] const std::vector<Group>& groups() const { return groups_; }

  /// The rows of a group: x [rows, ...] -> [count, length, ...].
  [[nodiscard]] at::Tensor take(const at::Tensor& x, const Group& group) const;
  /// The inverse of all take(): one tensor [count, length, ...] a group -> [rows, ...].
  [[nodiscard]] at::Tensor put_back(const std::vector<at::Tensor>& parts) const;

 private:
  RaggedRows() = default;

  std::vector<int64_t> lengths_;
  int64_t longest_ = 0;
  int64_t size_ = 0;
  std::vector<Group> groups_;
  bool are_in_order_ = false;  // the rows already lie as the only group has them
  at::Tensor places_;          // int64 [rows]: of each row in the groups one after the other
};

struct RaggedAttentionOptions {
  double scale = 1.0;   ///< of the scores
  bool causal = false;  ///< a token sees itself and those before it
  /// What is added to the scores by the distance of the key from the query: [H, 2 M - 1] for the
  /// distances 1 - M to M - 1, M being at least the longest text. Undefined: nothing. Not with
  /// `causal`.
  at::Tensor distance_bias = {};
};

/// Softmax attention of each text's tokens among themselves. q, k, v: [rows, H, D]; returns
/// [rows, H * D] in their type. Differentiable in all, distance_bias too.
[[nodiscard]] at::Tensor ragged_attention(const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const RaggedRows& rows,
                                          const RaggedAttentionOptions& options);

}  // namespace kinora::models
