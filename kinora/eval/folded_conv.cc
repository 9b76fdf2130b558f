#include "kinora/eval/folded_conv.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/conv2d.h>

#include "kinora/core/error.h"

namespace kinora::eval {

at::Tensor read_weight(const checkpoint::WeightsFile& file, const std::string& name,
                       at::IntArrayRef shape, at::Device device) {
  const at::Tensor value = file.read(name);
  KINORA_CHECK(value.sizes() == shape && value.is_floating_point(), kIo, "[features] ",
               file.path().string(), ": ", name, " must have shape ", shape, ", got ",
               value.sizes());
  return value.to(device, at::kFloat);
}

FoldedConv::FoldedConv(const checkpoint::WeightsFile& file, const std::string& conv,
                       const std::string& norm, const ConvSpec& spec, double epsilon,
                       at::Device device)
    : spec_(spec) {
  const auto of_norm = [&](const char* name) {
    return read_weight(file, norm + name, {spec.out_channels}, at::kCPU).to(at::kDouble);
  };
  const at::Tensor scale = of_norm(".weight") / (of_norm(".running_var") + epsilon).sqrt();
  const at::Tensor weight =
      read_weight(file, conv + ".weight",
                  {spec.out_channels, spec.in_channels, spec.kernel[0], spec.kernel[1]}, at::kCPU);
  weight_ = (weight.to(at::kDouble) * scale.view({-1, 1, 1, 1})).to(device, at::kFloat);
  bias_ = (of_norm(".bias") - of_norm(".running_mean") * scale).to(device, at::kFloat);
}

at::Tensor FoldedConv::operator()(const at::Tensor& x) const {
  return at::conv2d(x, weight_, bias_, spec_.stride, spec_.padding);
}

}  // namespace kinora::eval
