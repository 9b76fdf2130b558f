#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/ops/quantised_weight.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/device/host_bytes.h"
#include "kinora/ops/cuda_launch.h"

namespace kinora::ops {
namespace {

using kernels::WeightCodes;
using kernels::WeightFormat;

WeightCodes codes_of(const QuantisedWeight& weight) {
  return {.format = weight.format,
          .count = weight.count,
          .group = weight.group,
          .codes = weight.codes.data_ptr<uint8_t>(),
          .scales = weight.scales.data_ptr<float>()};
}

/// body(part, first element) over the weight's groups, by several threads.
template <typename Body>
void for_groups(const WeightCodes& all, const Body& body) {
  constexpr int64_t kElements = 1 << 16;  // of a part, at least
  const int64_t groups = ceil_div(all.count, all.group);
  at::parallel_for(0, groups, std::max<int64_t>(kElements / all.group, 1),
                   [&](int64_t begin, int64_t end) {
                     const int64_t first = begin * all.group;
                     WeightCodes part = all;
                     part.count = std::min(end * all.group, all.count) - first;
                     part.codes += all.format == WeightFormat::kNf4 ? first / 2 : first;
                     part.scales += begin;
                     body(part, first);
                   });
}

/// What the codes stand for, without their scales: fp32 [count].
at::Tensor numbers_of(const QuantisedWeight& weight) {
  if (weight.format != WeightFormat::kNf4) {
    const at::Tensor codes = weight.codes.narrow(0, 0, weight.count);
    return codes.view(weight.format == WeightFormat::kInt8 ? at::kChar : at::kFloat8_e4m3fn)
        .to(at::kFloat);
  }
  const at::Tensor numbers =
      at::tensor(at::ArrayRef<float>(kernels::kNf4Numbers), weight.scales.options());
  const at::Tensor codes =
      at::stack({weight.codes.bitwise_right_shift(4), weight.codes.bitwise_and(0xf)}, 1);
  return numbers.index_select(0, codes.flatten().narrow(0, 0, weight.count).to(at::kInt));
}

}  // namespace

QuantisedWeight zero_weight(WeightFormat format, int64_t rows, int64_t width, at::Device device) {
  const int64_t count = rows * width;
  const int64_t group = format == WeightFormat::kNf4 ? kernels::kNf4Group : width;
  const auto options = at::TensorOptions(device);
  return {.format = format,
          .count = count,
          .group = group,
          .codes = at::zeros({kernels::code_bytes(format, count)}, options.dtype(at::kByte)),
          .scales = at::zeros({ceil_div(count, group)}, options.dtype(at::kFloat))};
}

void quantise(const at::Tensor& values, const QuantisedWeight& weight) {
  KINORA_CHECK(values.numel() == weight.count, kShape, "[quantise] the weight has ", weight.count,
               " elements, got ", values.numel());
  if (weight.codes.is_meta()) {
    return;
  }
  const at::Tensor in = values.detach().cpu().to(at::kFloat).contiguous();
  const bool here = weight.codes.is_cpu();
  QuantisedWeight own = weight;
  if (!here) {
    own.codes = at::zeros(weight.codes.sizes(), at::kByte);
    own.scales = at::zeros(weight.scales.sizes(), at::kFloat);
  }
  const auto* first = in.const_data_ptr<float>();
  for_groups(codes_of(own), [first](const WeightCodes& part, int64_t begin) {
    kernels::quantise_weight(part, first + begin);
  });
  if (!here) {
    weight.codes.copy_(own.codes);
    weight.scales.copy_(own.scales);
  }
}

void dequantise(const QuantisedWeight& weight, const at::Tensor& out) {
  const bool has_rows = out.dim() == 2 && out.stride(1) == 1 && out.size(1) % 16 == 0;
  KINORA_CHECK(out.numel() == weight.count && (out.is_contiguous() || has_rows) &&
                   out.device() == weight.codes.device(),
               kShape, "[dequantise] out must have ", weight.count, " elements on ",
               weight.codes.device(), ", got ", out.sizes(), " on ", out.device());
  if (out.is_meta()) {
    return;
  }
  const DType type = device::dtype_of(out.scalar_type());
  if (out.is_cpu() && !out.is_contiguous()) {
    const at::Tensor values = at::empty(out.sizes(), out.options());
    dequantise(weight, values);
    out.variable_data().copy_(values);
  } else if (out.is_cpu()) {
    auto* const bytes = static_cast<std::byte*>(out.data_ptr());
    for_groups(codes_of(weight), [bytes, type](const WeightCodes& part, int64_t begin) {
      kernels::dequantise_weight(part, type, bytes + begin * static_cast<int64_t>(size_of(type)));
    });
  } else if (cuda::available()) {
    cuda::dequantise_weight(codes_of(weight), type, out);
  } else {
    const at::Tensor scales =
        weight.scales.repeat_interleave(weight.group).narrow(0, 0, weight.count);
    out.variable_data().copy_((numbers_of(weight) * scales).view(out.sizes()));
  }
}

}  // namespace kinora::ops
