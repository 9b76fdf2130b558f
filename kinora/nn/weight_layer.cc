#include "kinora/nn/weight_layer.h"

#include "kinora/core/error.h"

namespace kinora::nn {

void WeightLayer::adapt(const LowRankOptions& options) {
  update_ = std::make_unique<LowRankUpdate>(weight.shape, options, weight.fp32_island);
  weight.frozen = true;
  bias.frozen = true;
  update_->set_layer(weight.layer);
  add_child("", *update_);
}

void WeightLayer::divide(const comm::Group& group) {
  if (!cut_ || group.size() == 1) {
    return;
  }
  group_ = group;
  Box box{.whole = weight.shape,
          .dim = cut_->dim == Cut::Dim::kOutputs ? 0 : 1,
          .stretches = {},
          .index = group.rank(),
          .count = group.size()};
  for (const Stretch& stretch : cut_->stretches) {
    KINORA_CHECK(stretch.units % group.size() == 0, kInternal, "[tensor] ", group.size(),
                 " ranks do not divide ", stretch.units, " units of a linear");
    box.stretches.push_back(stretch.size);
  }
  const auto cut = [&box](Parameter& parameter) {
    box.whole = parameter.shape;
    parameter.box = box;
    parameter.shape = box.shape();
  };
  cut(weight);
  if (box.dim == 0 && !bias.shape.empty()) {
    cut(bias);
  }
  if (update_ != nullptr) {
    update_->divide(box);
  }
}

}  // namespace kinora::nn
