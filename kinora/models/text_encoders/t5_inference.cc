#include "kinora/models/text_encoders/t5_inference.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

namespace kinora::models {

T5Inference::T5Inference(const T5Config& config, const std::vector<int64_t>& lengths,
                         at::Device device, at::ScalarType type, ops::TextKernels& kernels,
                         int64_t most_rows)
    : config_(config), kernels_(kernels) {
  std::vector<int32_t> offsets = {0};
  int64_t begin = 0;
  int64_t longest = 0;
  int64_t most = 0;
  const auto finish_chunk = [&] {
    const int64_t rows = offsets.back();
    chunks_.push_back({begin, begin + rows, at::tensor(offsets, at::kInt).to(device), longest});
    most = std::max(most, rows);
    begin += rows;
    offsets = {0};
    longest = 0;
  };
  for (const int64_t length : lengths) {
    if (offsets.size() > 1 && offsets.back() + length > most_rows) {
      finish_chunk();
    }
    offsets.push_back(static_cast<int32_t>(offsets.back() + length));
    longest = std::max(longest, length);
  }
  finish_chunk();
  const auto options = at::TensorOptions(device).dtype(type);
  const int64_t inner = config.num_heads * config.d_kv;
  const int64_t hidden = config.is_gated ? 2 * config.d_ff : config.d_ff;
  normed_ = at::empty({most, config.d_model}, options);
  wide_ = at::empty({most * std::max(3 * inner, hidden)}, options);
}

bool T5Inference::takes(const T5Config& config, int64_t longest, at::Device device,
                        at::ScalarType type) {
  // fp16 would leave its range before wo.
  return type == at::kBFloat16 &&
         (!config.is_gated || config.activation == Activation::kGeluTanh ||
          config.activation == Activation::kSilu) &&
         ops::TextKernels::takes(device, type, config.d_kv, longest);
}

void T5Inference::run(const T5Block& block, const at::Tensor& x, const at::Tensor& distance_bias) {
  attend(block, x, distance_bias);
  transform(block, x);
}

void T5Inference::finish(const nn::RmsNorm& norm, const at::Tensor& x) {
  kernels_.norm(x, norm.weight.value.to(at::kFloat), norm.epsilon(), x);
}

at::Tensor T5Inference::normed(const at::Tensor& rows, const at::Tensor& weight) {
  at::Tensor out = normed_.slice(0, 0, rows.size(0));
  kernels_.norm(rows, weight, config_.layer_norm_epsilon, out);
  return out;
}

void T5Inference::attend(const T5Block& block, const at::Tensor& x,
                         const at::Tensor& distance_bias) {
  const int64_t inner = config_.num_heads * config_.d_kv;
  const at::Tensor weights[] = {block.q.wide_weight(), block.k.wide_weight(),
                                block.v.wide_weight()};
  const at::Tensor last = block.o.wide_weight();
  const at::Tensor norm = block.attention_norm.weight.value.to(at::kFloat);
  for (const Chunk& chunk : chunks_) {
    const at::Tensor rows = x.slice(0, chunk.begin, chunk.end);
    const at::Tensor in = normed(rows, norm);
    at::Tensor heads[3];
    for (int64_t i = 0; i < 3; ++i) {
      heads[i] = wide_.narrow(0, i * rows.size(0) * inner, rows.size(0) * inner)
                     .view({rows.size(0), inner});
      kernels_.linear(in, weights[i], heads[i], /*accumulate=*/false);
    }
    kernels_.attend({.q = heads[0],
                     .k = heads[1],
                     .v = heads[2],
                     .offsets = chunk.offsets,
                     .longest = chunk.longest,
                     .head_dim = config_.d_kv,
                     .bias = distance_bias});
    kernels_.linear(heads[0], last, rows, /*accumulate=*/true);
  }
}

void T5Inference::transform(const T5Block& block, const at::Tensor& x) {
  const at::Tensor first = block.wi.wide_weight();
  const at::Tensor gate = block.wi_1 ? block.wi_1->wide_weight() : at::Tensor();
  const at::Tensor last = block.wo.wide_weight();
  const at::Tensor norm = block.mlp_norm.weight.value.to(at::kFloat);
  const int64_t columns = config_.is_gated ? 2 * config_.d_ff : config_.d_ff;
  for (const Chunk& chunk : chunks_) {
    const at::Tensor rows = x.slice(0, chunk.begin, chunk.end);
    const at::Tensor in = normed(rows, norm);
    const at::Tensor wide =
        wide_.narrow(0, 0, rows.size(0) * columns).view({rows.size(0), columns});
    at::Tensor hidden = wide.slice(1, 0, config_.d_ff);
    kernels_.linear(in, first, hidden, /*accumulate=*/false);
    if (config_.is_gated) {
      kernels_.linear(in, gate, wide.slice(1, config_.d_ff), /*accumulate=*/false);
      hidden =
          kernels_.gate(config_.activation == Activation::kSilu ? kernels::Activation::kSilu
                                                                : kernels::Activation::kGeluTanh,
                        wide);
    } else {
      hidden = activate(config_.activation, hidden);
    }
    kernels_.linear(hidden, last, rows, /*accumulate=*/true);
  }
}

}  // namespace kinora::models
