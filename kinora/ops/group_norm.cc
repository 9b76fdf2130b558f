#include "kinora/ops/group_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/silu.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/device/dry_run.h"
#include "kinora/ops/channels_last.h"
#include "kinora/ops/group_norm_launch.h"

namespace kinora::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t groups,
           const at::Tensor& channel_bias, const at::Tensor& offset) {
  KINORA_CHECK(x.dim() >= 2, kShape, "[group_norm] x must have shape [B, C, ...], got ", x.sizes());
  const int64_t channels = x.size(1);
  KINORA_CHECK(groups > 0 && channels % groups == 0, kShape,
               "[group_norm] groups must divide the channels of x, ", channels, ", got ", groups);
  const auto check_vector = [&](const at::Tensor& vector, const char* name, at::IntArrayRef shape) {
    KINORA_CHECK(vector.sizes() == shape, kShape, "[group_norm] ", name, " must have shape ", shape,
                 ", got ", vector.sizes());
  };
  check_vector(weight, "weight", {channels});
  check_vector(bias, "bias", {channels});
  if (channel_bias.defined()) {
    check_vector(channel_bias, "channel_bias", {channels});
  }
  if (offset.defined()) {
    check_vector(offset, "offset", {x.size(0), channels});
  }
}

/// In a dry run what is made and kept as much: libtorch has no such norm for the meta device.
at::Tensor normalised(const at::Tensor& z, const at::Tensor& weight, const at::Tensor& bias,
                      const GroupNormOptions& options) {
  if (z.is_meta()) {
    std::vector<int64_t> per_channel(static_cast<size_t>(z.dim()), 1);
    per_channel[1] = z.size(1);
    return z * weight.reshape(per_channel) + bias.reshape(per_channel);
  }
  return at::group_norm(z, options.groups, weight, bias, options.epsilon);
}

at::Tensor composed(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    const GroupNormOptions& options, const at::Tensor& channel_bias,
                    const at::Tensor& offset) {
  const auto type = c10::promoteTypes(x.scalar_type(), at::kFloat);
  std::vector<int64_t> per_channel(static_cast<size_t>(x.dim()), 1);
  per_channel[1] = x.size(1);
  at::Tensor z = x.to(type);
  if (channel_bias.defined()) {
    z = z + channel_bias.to(type).reshape(per_channel);
  }
  if (offset.defined()) {
    per_channel[0] = x.size(0);
    z = z + offset.to(type).reshape(per_channel);
  }
  const at::Tensor normed = normalised(z, weight.to(type), bias.to(type), options);
  return (options.silu ? at::silu(normed) : normed)
      .to(x.scalar_type())
      .contiguous(x.suggest_memory_format());
}

bool is_aligned(const at::Tensor& x) {
  constexpr uintptr_t kAlignment = 16;
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kAlignment == 0;
}

bool takes_vector(const at::Tensor& vector) {
  return !vector.defined() || (vector.is_cuda() && (vector.scalar_type() == at::kFloat ||
                                                    vector.scalar_type() == at::kBFloat16 ||
                                                    vector.scalar_type() == at::kHalf));
}

bool takes_kernel(const at::Tensor& x, int64_t groups) {
  return x.is_cuda() && x.numel() > 0 && is_channels_last(x) && is_aligned(x) &&
         cuda::group_norm_takes(x, groups);
}

at::Tensor contiguous(const at::Tensor& vector) {
  return vector.defined() ? vector.contiguous() : vector;
}

at::Tensor launch(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const GroupNormOptions& options, const at::Tensor& channel_bias,
                  const at::Tensor& offset, const cuda::GroupNormStatistics& statistics) {
  at::Tensor y = at::empty_like(x);
  cuda::group_norm_forward(x, contiguous(weight), contiguous(bias), options,
                           contiguous(channel_bias), contiguous(offset), y, statistics);
  return y;
}

/// Keeps x and the statistics, from which backward computes the rest again.
struct GroupNormFunction : torch::autograd::Function<GroupNormFunction> {
  using Optional = std::optional<at::Tensor>;  // torch takes no undefined tensors

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const Optional& given_channel_bias,
                            const Optional& given_offset, int64_t groups, double epsilon,
                            bool silu) {
    const at::Tensor channel_bias = given_channel_bias.value_or(at::Tensor());
    const at::Tensor offset = given_offset.value_or(at::Tensor());
    const auto floats = x.options().dtype(at::kFloat);
    const cuda::GroupNormStatistics statistics = {at::empty({4, x.size(0), x.size(1)}, floats),
                                                  at::empty({x.size(0), groups}, floats)};
    context->save_for_backward(
        {x, weight, bias, channel_bias, offset, statistics.factors, statistics.rstd});
    context->saved_data["silu"] = silu;
    return launch(x, weight, bias, {groups, epsilon, silu}, channel_bias, offset, statistics);
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    variable_list gradients(8);  // of forward's arguments
    if (!incoming[0].defined()) {
      return gradients;
    }
    at::Tensor dy = incoming[0].contiguous(channels_last(x));
    if (!is_aligned(dy)) {
      dy = dy.clone();
    }
    for (size_t i = 0, edge = 0; i < 5; ++i) {
      if (saved[i].defined() && context->needs_input_grad(edge++)) {
        gradients[i] = i == 0 ? at::empty_like(x) : at::empty(saved[i].sizes(), saved[i].options());
      }
    }
    cuda::group_norm_backward(
        dy, x, {saved[5], saved[6]}, context->saved_data["silu"].toBool(),
        {gradients[0], gradients[1], gradients[2], gradients[3], gradients[4]});
    return gradients;
  }
};

/// What a dry run that stands for a GPU makes and keeps: x alone, as GroupNormFunction.
struct DryGroupNorm : torch::autograd::Function<DryGroupNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return at::empty_like(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& /*incoming*/) {
    return {at::empty_like(context->get_saved_variables().front())};
  }
};

}  // namespace

at::Tensor group_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const GroupNormOptions& options, const at::Tensor& channel_bias,
                      const at::Tensor& offset) {
  check(x, weight, bias, options.groups, channel_bias, offset);
  const at::Tensor* const vectors[] = {&weight, &bias, &channel_bias, &offset};
  bool takes = takes_kernel(x, options.groups);
  bool wants_gradients = x.requires_grad();
  for (const at::Tensor* vector : vectors) {
    takes = takes && takes_vector(*vector);
    wants_gradients = wants_gradients || (vector->defined() && vector->requires_grad());
  }
  if (x.is_meta() && device::is_gpu(x.device())) {
    return DryGroupNorm::apply(x);
  }
  if (!takes) {
    return composed(x, weight, bias, options, channel_bias, offset);
  }
  if (!at::GradMode::is_enabled() || !wants_gradients) {
    return launch(x, weight, bias, options, channel_bias, offset, {});
  }
  const auto optional = [](const at::Tensor& vector) {
    return vector.defined() ? std::optional<at::Tensor>(vector) : std::nullopt;
  };
  return GroupNormFunction::apply(x, weight, bias, optional(channel_bias), optional(offset),
                                  options.groups, options.epsilon, options.silu);
}

}  // namespace kinora::ops
