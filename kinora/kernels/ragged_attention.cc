#include "kinora/kernels/ragged_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kinora/kernels/elements.h"

namespace kinora::kernels {
namespace {

/// A query's output, of a text that begins at row `begin`.
std::vector<float> attended(const RaggedAttention& call, int64_t begin, int64_t length,
                            int64_t head, int64_t query) {
  const int64_t column = head * call.head_dim;
  const auto at = [&](const void* data, int64_t stride, int64_t token, int64_t d) {
    return static_cast<double>(
        load_element(data, (begin + token) * stride + column + d, call.type));
  };
  std::vector<double> scores(static_cast<size_t>(length));
  double most = -std::numeric_limits<double>::infinity();
  for (int64_t key = 0; key < length; ++key) {
    double product = 0.0;
    for (int64_t d = 0; d < call.head_dim; ++d) {
      product += at(call.q, call.q_stride, query, d) * at(call.k, call.k_stride, key, d);
    }
    double score = static_cast<double>(call.scale) * product;
    if (call.bias != nullptr) {
      score += call.bias[head * (2 * call.reach - 1) + key - query + call.reach - 1];
    }
    scores[static_cast<size_t>(key)] = score;
    most = std::max(most, score);
  }
  double sum = 0.0;
  for (double& score : scores) {
    score = std::exp(score - most);
    sum += score;
  }
  std::vector<float> out;
  for (int64_t d = 0; d < call.head_dim; ++d) {
    double value = 0.0;
    for (int64_t key = 0; key < length; ++key) {
      value += scores[static_cast<size_t>(key)] * at(call.v, call.v_stride, key, d);
    }
    out.push_back(static_cast<float>(value / sum));
  }
  return out;
}

}  // namespace

void ragged_attention(const RaggedAttention& call) {
  for (int64_t text = 0; text < call.texts; ++text) {
    const int64_t begin = call.offsets[text];
    const int64_t length = call.offsets[text + 1] - begin;
    for (int64_t head = 0; head < call.heads; ++head) {
      for (int64_t query = 0; query < length; ++query) {
        // Only this query reads its place of q, which may be that of the output.
        const std::vector<float> out = attended(call, begin, length, head, query);
        for (int64_t d = 0; d < call.head_dim; ++d) {
          store_element(call.out, (begin + query) * call.out_stride + head * call.head_dim + d,
                        call.type, out[static_cast<size_t>(d)]);
        }
      }
    }
  }
}

}  // namespace kinora::kernels
