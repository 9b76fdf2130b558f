#include "kinora/nn/weight_layer.h"

namespace kinora::nn {

void WeightLayer::adapt(const LowRankOptions& options) {
  update_ = std::make_unique<LowRankUpdate>(weight.shape, options, weight.fp32_island);
  weight.frozen = true;
  bias.frozen = true;
  update_->set_layer(weight.layer);
  add_child("", *update_);
}

}  // namespace kinora::nn
