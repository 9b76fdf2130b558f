#pragma once

#include <cstdint>

#include "kinora/models/layers/band_net.h"
#include "kinora/nn/conv.h"
#include "kinora/nn/group_norm.h"

namespace kinora::models {

/// x + attention with one head, of the group normed x, in which a place sees those that come before
/// it, frame by frame and row by row, and itself: norm, q.conv, k.conv, v.conv, proj_out.conv.
class PlaceAttention : public BandLayer {
 public:
  PlaceAttention(int64_t channels, int64_t groups, double epsilon);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  [[nodiscard]] at::Tensor whole(const at::Tensor& x) const;

  nn::GroupNorm norm_;
  nn::Conv q_;
  nn::Conv k_;
  nn::Conv v_;
  nn::Conv proj_out_;
};

}  // namespace kinora::models
