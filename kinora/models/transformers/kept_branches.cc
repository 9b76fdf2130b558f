#include "kinora/models/transformers/kept_branches.h"

namespace kinora::models {

std::vector<at::Tensor> KeptBranches::branch(
    ops::BranchKind kind, const std::function<std::vector<at::Tensor>()>& compute) const {
  ops::KeptResult* kept = cache_.next(kind);
  if (kept == nullptr) {
    return compute();
  }
  if (!kept->is_reused) {
    const std::vector<at::Tensor> computed = compute();
    kept->streams = {computed.front(), computed.size() > 1 ? computed[1] : at::Tensor()};
  }
  return {kept->streams.begin(), kept->streams.end()};
}

at::Tensor KeptBranches::self_attention(const nn::SelfAttention& attention, const at::Tensor& x,
                                        nn::Span span, int64_t tokens_a_frame,
                                        const at::Tensor& rotary) const {
  return branch(kind_of(span), [&] {
    return std::vector{sequence_.self_attention(attention, x, span, tokens_a_frame, rotary)};
  })[0];
}

at::Tensor KeptBranches::window_attention(const nn::SelfAttention& attention, const at::Tensor& x,
                                          const nn::Windows& windows,
                                          const at::Tensor& rotary) const {
  return branch(ops::BranchKind::kTime, [&] {
    return std::vector{sequence_.window_attention(attention, x, windows, rotary)};
  })[0];
}

at::Tensor KeptBranches::cross_attention(const nn::CrossAttention& attention, const at::Tensor& x,
                                         const at::Tensor& text, const at::Tensor& lengths) const {
  return branch(ops::BranchKind::kText, [&] {
    return std::vector{sequence_.cross_attention(attention, x, text, lengths)};
  })[0];
}

}  // namespace kinora::models
