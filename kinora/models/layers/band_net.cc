#include "kinora/models/layers/band_net.h"

#include <ATen/core/grad_mode.h>

#include "kinora/models/layers/band_layers.h"

namespace kinora::models {

at::Tensor BandNet::forward(const at::Tensor& x, int64_t budget) const {
  const ClipSize in = {.batch = x.size(0),
                       .channels = x.size(1),
                       .frames = x.size(2),
                       .rows = x.size(3),
                       .columns = x.size(4),
                       .element_bytes = static_cast<int64_t>(x.element_size())};
  nn::Bands bands(x, plan(in, budget, at::GradMode::is_enabled()));
  for (const auto& layer : layers_) {
    bands = layer->forward(std::move(bands));
  }
  return tapped(bands.joined());
}

nn::BandPlan BandNet::plan(const ClipSize& in, int64_t budget, bool with_gradients) const {
  std::vector<nn::BandNeed> needs;
  ClipSize size = in;
  for (const auto& layer : layers_) {
    size = layer->plan(size, &needs);
  }
  // What comes and goes is not in pieces.
  needs.push_back(whole_need({.rows = 1, .row_bytes = in.bytes() + size.bytes()}, 1));
  return nn::plan_bands({{.needs = needs, .units = in.rows / unit_}}, budget, with_gradients);
}

}  // namespace kinora::models
