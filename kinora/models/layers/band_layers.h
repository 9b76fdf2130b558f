#pragma once

#include <array>
#include <functional>

#include "kinora/nn/bands.h"
#include "kinora/nn/conv.h"
#include "kinora/nn/group_norm.h"

/// What the autoencoders of images are made of, over bands of rows: a whole is one band.
namespace kinora::models {

/// Of a tensor [B, C, rows, W], place by place.
using Pointwise = std::function<at::Tensor(const at::Tensor& x)>;

using Join = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& other)>;

/// Rows above and below a band of its input that a convolution sees for its output.
[[nodiscard]] std::array<int64_t, 2> halo_of(const nn::Conv& conv);

/// `conv` of x, which `rows` became, with zeros where the whole ends.
[[nodiscard]] at::Tensor convolve_rows(const nn::Conv& conv, const at::Tensor& x,
                                       const nn::Rows& rows);

/// `layer` over x's bands, with `also` and then the band of `other` beside it; both are freed on
/// the way.
[[nodiscard]] nn::Bands over_both(nn::Bands x, nn::Bands other, std::array<int64_t, 2> halo,
                                  const nn::Bands::Layer& layer, std::vector<at::Tensor> also);

/// after(conv(x)); x is freed on the way if nobody else holds it.
[[nodiscard]] nn::Bands convolve(nn::Bands x, const nn::Conv& conv, const Pointwise& after = {});

/// join(conv(x), other), band by band; both are freed on the way.
[[nodiscard]] nn::Bands convolve(nn::Bands x, const nn::Conv& conv, nn::Bands other,
                                 const Join& join);

/// conv(silu(norm(x))), and with `residual` added to it. Overwrites x where it may.
[[nodiscard]] nn::Bands norm_silu_convolve(nn::Bands x, const nn::GroupNorm& norm,
                                           const nn::Conv& conv);
[[nodiscard]] nn::Bands norm_silu_convolve(nn::Bands x, const nn::GroupNorm& norm,
                                           const nn::Conv& conv, nn::Bands residual);

/// `conv`, 3 x 3, of x with every row and column twice.
[[nodiscard]] nn::Bands convolve_doubled(nn::Bands x, const nn::Conv& conv);

/// x, pixels or latents, from top to bottom through `network`, in pieces that keep to the limits.
[[nodiscard]] at::Tensor run_in_bands(const at::Tensor& x, const std::vector<nn::BandStage>& stages,
                                      const nn::BandLimits& limits,
                                      const std::function<nn::Bands(nn::Bands)>& network);

/// Where layers work, to reckon what they need.
struct BandPlace {
  int64_t rows = 0;
  int64_t row_bytes = 0;  ///< of one channel
  /// Whether a convolution's library copies input and result into a layout of its own: cuDNN 9 does
  /// in fp32 without TF32, and in no other type (measured on an H200).
  bool copies = false;

  /// Bytes of so many channels.
  [[nodiscard]] int64_t bytes(int64_t channels) const { return channels * rows * row_bytes; }
  /// What a convolution's library takes besides, of so many channels, inputs and results.
  [[nodiscard]] int64_t scratch(int64_t channels) const { return copies ? bytes(channels) : 0; }
  [[nodiscard]] BandPlace halved() const { return {rows / 2, row_bytes / 2, copies}; }
  [[nodiscard]] BandPlace doubled() const { return {rows * 2, row_bytes * 2, copies}; }
};

/// Of an image batch [B, C, H, W].
[[nodiscard]] BandPlace place_of(const at::Tensor& x);

/// Of what computes all at once: `channels` in all, inputs and results.
[[nodiscard]] nn::BandNeed whole_need(const BandPlace& place, int64_t channels);

}  // namespace kinora::models
