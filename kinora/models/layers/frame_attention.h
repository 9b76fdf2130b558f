#pragma once

#include <cstdint>

#include "kinora/models/layers/band_net.h"
#include "kinora/nn/group_norm.h"
#include "kinora/nn/linear.h"

namespace kinora::models {

/// x + attention with one head over the places of the frames up to a place's own, of the group
/// normed x: group_norm, to_q, to_k, to_v, to_out.0.
class FrameAttention : public BandLayer {
 public:
  FrameAttention(int64_t channels, int64_t groups, double epsilon);
  [[nodiscard]] nn::Bands forward(nn::Bands x) const override;
  [[nodiscard]] ClipSize plan(const ClipSize& in, std::vector<nn::BandNeed>* needs) const override;

 private:
  /// Rows [from, to) of what it makes of all of x.
  [[nodiscard]] at::Tensor rows(const at::Tensor& x, int64_t from, int64_t to) const;

  nn::GroupNorm group_norm_;
  nn::Linear to_q_;
  nn::Linear to_k_;
  nn::Linear to_v_;
  nn::Linear to_out_;
};

}  // namespace kinora::models
