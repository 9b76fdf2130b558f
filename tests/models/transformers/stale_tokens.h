#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kinora/models/model.h"
#include "kinora/nn/sequence.h"

namespace kinora::models {

/// What PipeFusion computes (Fang et al. 2024, section 4.1), by its definition: a pass has all
/// tokens of the sample, but attention takes the keys and values of the tokens outside of one patch
/// from the pass that had that patch last. So the tokens of the patch come out as they should, and
/// of the others the result is thrown away. Nothing is cut, and no kernel is asked.
class StaleTokens : public nn::Sequence {
 public:
  /// The passes of one evaluation of `model`, patch by patch; 1: as without patches.
  [[nodiscard]] at::Tensor evaluate(Model& model, int64_t patches, const at::Tensor& x_t,
                                    const at::Tensor& t, const diffusion::Conditions& conditions) {
    patches_ = patches;
    at::Tensor last;
    for (patch_ = 0; patch_ < patches; ++patch_) {
      uses_ = 0;
      last = model.forward(x_t, t, conditions);
    }
    return last;
  }

  [[nodiscard]] bool divides_tokens() const override { return true; }

  [[nodiscard]] at::Tensor leave(const at::Tensor& part,
                                 int64_t /*tokens_a_frame*/) const override {
    left_ = with_own(part, left_, 2);
    return left_;
  }

  [[nodiscard]] at::Tensor self_attention(const nn::SelfAttention& attention, const at::Tensor& x,
                                          nn::Span span, int64_t tokens_a_frame,
                                          const at::Tensor& rotary) const override {
    if (span == nn::Span::kTime) {
      return nn::Sequence::self_attention(attention, x, span, tokens_a_frame, rotary);
    }
    const int64_t frames = x.size(1);
    at::Tensor angles;
    if (rotary.defined()) {
      angles = rotary.expand({frames, tokens_a_frame, -1}).flatten(0, 1);
    }
    const at::Tensor packed = attention.project(x.flatten(1, 2), angles)
                                  .unflatten(1, {frames, tokens_a_frame});  // [B, T, S, 3, H, D]
    at::Tensor& kept = next();
    kept = with_own(packed.narrow(3, 1, 2), kept, 2);
    const int64_t first = span == nn::Span::kFrame ? 0 : 1;
    const auto sequences = [first](const at::Tensor& of) { return of.flatten(first, first + 1); };
    return attention.proj.forward(attend(sequences(packed.select(3, 0)),
                                         sequences(kept.select(3, 0)), sequences(kept.select(3, 1)),
                                         {})
                                      .view_as(x));
  }

  [[nodiscard]] std::vector<at::Tensor> stream_attention(
      ops::BlockKernels* /*kernels*/, const std::vector<at::Tensor>& packed,
      const std::vector<int64_t>& tokens, const at::Tensor& text_lengths,
      const std::shared_ptr<const ops::BlockMask>& /*blocks*/) const override {
    std::vector<at::Tensor> q;
    std::vector<at::Tensor> kv;
    for (const at::Tensor& stream : packed) {  // [B, S, 3, H, D]
      at::Tensor& kept = next();
      kept = with_own(stream.narrow(2, 1, 2), kept, 1);
      q.push_back(stream.select(2, 0));
      kv.push_back(kept);
    }
    const at::Tensor all = at::cat(kv, 1);
    const int64_t before = all.size(1) - tokens.back();
    return attend(at::cat(q, 1), all.select(2, 0), all.select(2, 1),
                  text_lengths.defined() ? text_lengths + before : text_lengths)
        .split_with_sizes(tokens, 1);
  }

 private:
  [[nodiscard]] at::Tensor& next() const {
    if (uses_ == kept_.size()) {
      kept_.emplace_back();
    }
    return kept_[uses_++];
  }

  /// `fresh` in the patch's places of the dim of tokens, and `kept` elsewhere.
  [[nodiscard]] at::Tensor with_own(const at::Tensor& fresh, const at::Tensor& kept,
                                    int64_t dim) const {
    if (patches_ == 1) {
      return fresh;
    }
    const int64_t count = fresh.size(dim);
    std::vector<int64_t> shape(static_cast<size_t>(fresh.dim()), 1);
    shape[static_cast<size_t>(dim)] = count;
    const at::Tensor place = at::arange(count, fresh.options().dtype(at::kLong)).view(shape);
    return at::where(at::logical_and(place >= patch_ * count / patches_,
                                     place < (patch_ + 1) * count / patches_),
                     fresh, kept);
  }

  /// q [B, N, H, D], k, v [B, L, H, D], lengths: undefined or [B]. Returns [B, N, H D].
  [[nodiscard]] static at::Tensor attend(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const at::Tensor& lengths) {
    at::Tensor logits = at::matmul(q.transpose(1, 2), k.permute({0, 2, 3, 1})) /
                        std::sqrt(static_cast<double>(q.size(3)));  // [B, H, N, L]
    if (lengths.defined()) {
      logits = logits.masked_fill(
          at::arange(k.size(1), lengths.options()) >= lengths.view({-1, 1, 1, 1}),
          -std::numeric_limits<double>::infinity());
    }
    return at::matmul(at::softmax(logits, -1), v.transpose(1, 2)).transpose(1, 2).flatten(2);
  }

  int64_t patch_ = 0;
  int64_t patches_ = 1;
  mutable size_t uses_ = 0;
  mutable std::vector<at::Tensor> kept_;  // keys and values, by use
  mutable at::Tensor left_;
};

}  // namespace kinora::models
