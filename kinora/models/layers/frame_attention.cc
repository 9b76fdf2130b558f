#include "kinora/models/layers/frame_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <utility>

#include "kinora/models/layers/band_layers.h"
#include "kinora/ops/attention.h"

namespace kinora::models {
namespace {

/// Of x, that wide heads may take.
constexpr int64_t kFreeCopies = 4;

}  // namespace

FrameAttention::FrameAttention(int64_t channels, int64_t groups, double epsilon)
    : group_norm_(groups, channels, epsilon),
      to_q_(channels, channels, nn::Init::xavier_uniform(channels, channels)),
      to_k_(channels, channels, nn::Init::xavier_uniform(channels, channels)),
      to_v_(channels, channels, nn::Init::xavier_uniform(channels, channels)),
      to_out_(channels, channels, nn::Init::xavier_uniform(channels, channels)) {
  add_child("group_norm", group_norm_);
  add_child("to_q", to_q_);
  add_child("to_k", to_k_);
  add_child("to_v", to_v_);
  add_child("to_out.0", to_out_);
}

nn::Bands FrameAttention::forward(nn::Bands x) const {
  return over_own_rows(
      x, [this](const at::Tensor& all, int64_t from, int64_t to) { return rows(all, from, to); });
}

at::Tensor FrameAttention::rows(const at::Tensor& x, int64_t from, int64_t to) const {
  const auto tokens_of = [](const at::Tensor& places) {
    return places.flatten(2).transpose(1, 2);  // [B, T H W, C]
  };
  const at::Tensor normed = group_norm_.forward(x);
  const at::Tensor tokens = tokens_of(normed);
  const at::Tensor own = x.narrow(3, from, to - from);
  const at::Tensor q =
      to_q_.forward(tokens_of(normed.narrow(3, from, to - from))).unsqueeze(1);  // [B, 1, .., C]
  const at::Tensor k = to_k_.forward(tokens).unsqueeze(1);
  const at::Tensor v = to_v_.forward(tokens).unsqueeze(1);
  // Frame by frame: what a frame sees is all that came before, so that no mask is needed.
  const int64_t places = x.size(3) * x.size(4);
  const int64_t own_places = (to - from) * x.size(4);
  std::vector<at::Tensor> frames;
  for (int64_t t = 0; t < x.size(2); ++t) {
    frames.push_back(ops::wide_head_attention(
        q.narrow(2, t * own_places, own_places), k.narrow(2, 0, (t + 1) * places),
        v.narrow(2, 0, (t + 1) * places), kFreeCopies * static_cast<int64_t>(x.nbytes())));
  }
  const at::Tensor seen = to_out_.forward(at::cat(frames, 2).squeeze(1));
  return own + seen.transpose(1, 2).reshape(own.sizes());
}

ClipSize FrameAttention::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  // x in bands and joined, normed and its fp32 copies, q, k, v, what attention sees, the result; or
  // in place of the fp32 copies and two more what wide heads take.
  constexpr int64_t kCopies = 6 + kFreeCopies;
  needs->push_back(whole_need({.rows = 1, .row_bytes = in.bytes()}, kCopies));
  needs->back().kept = in.bytes();
  return in;
}

}  // namespace kinora::models
