#include "kinora/models/layers/place_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "kinora/models/layers/band_layers.h"

namespace kinora::models {
namespace {

nn::ConvShape projection(int64_t channels) {
  return nn::ConvShape::same(channels, channels, 1, 3);
}

}  // namespace

PlaceAttention::PlaceAttention(int64_t channels, int64_t groups, double epsilon)
    : norm_(groups, channels, epsilon),
      q_(projection(channels)),
      k_(projection(channels)),
      v_(projection(channels)),
      proj_out_(projection(channels)) {
  add_child("norm", norm_);
  add_child("q.conv", q_);
  add_child("k.conv", k_);
  add_child("v.conv", v_);
  add_child("proj_out.conv", proj_out_);
}

nn::Bands PlaceAttention::forward(nn::Bands x) const {
  return over_whole(x, [this](const at::Tensor& all) { return whole(all); });
}

at::Tensor PlaceAttention::whole(const at::Tensor& x) const {
  const at::Tensor normed = norm_.forward(x);
  const auto tokens = [&normed](const nn::Conv& conv) {
    return conv.forward(normed).flatten(2).transpose(1, 2).unsqueeze(1);  // [B, 1, T H W, C]
  };
  const at::Tensor seen =
      at::scaled_dot_product_attention(tokens(q_), tokens(k_), tokens(v_), /*attn_mask=*/{},
                                       /*dropout_p=*/0.0, /*is_causal=*/true);
  return x + proj_out_.forward(seen.squeeze(1).transpose(1, 2).reshape(x.sizes()));
}

ClipSize PlaceAttention::plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const {
  // x in bands and joined, normed and its fp32 copies, q, k, v, what attention sees, its
  // projection, the result.
  constexpr int64_t kCopies = 11;
  needs->push_back(whole_need({.rows = 1, .row_bytes = in.bytes()}, kCopies));
  needs->back().kept = in.bytes();
  return in;
}

}  // namespace kinora::models
