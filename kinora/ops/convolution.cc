#include "kinora/ops/convolution.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/ops/channel_norm.h"

namespace kinora::ops {
namespace {

constexpr int64_t kRowsDim = 2;  // the first spatial dim

/// What a convolution takes and keeps, on the meta device of a dry run, for which libtorch has
/// none.
struct DryConvolution : torch::autograd::Function<DryConvolution> {
  using Context = torch::autograd::AutogradContext;

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, at::IntArrayRef sizes) {
    context->save_for_backward({x, weight, bias.value_or(at::Tensor())});
    return at::empty(sizes, x.options().memory_format(x.suggest_memory_format()));
  }

  static torch::autograd::variable_list backward(
      Context* context, const torch::autograd::variable_list& /*incoming*/) {
    torch::autograd::variable_list gradients;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      gradients.push_back(saved.defined() ? at::empty_like(saved) : at::Tensor());
    }
    gradients.emplace_back();  // the sizes have none
    return gradients;
  }
};

struct Convolution {
  const at::Tensor& weight;
  const at::Tensor& bias;
  const ConvolutionOptions& options;

  [[nodiscard]] size_t spatial_dims() const { return options.stride.size(); }

  /// Of the output, for an input of `size`.
  [[nodiscard]] int64_t out_size(size_t dim, int64_t size) const {
    return out_size(dim, size, options.padding[dim]);
  }
  [[nodiscard]] int64_t out_size(size_t dim, int64_t size, std::array<int64_t, 2> around) const {
    const auto [before, after] = around;
    const int64_t kernel = weight.size(static_cast<int64_t>(dim) + 2);
    return (size + before + after - kernel) / options.stride[dim] + 1;
  }

  /// One call of the library. `rows`: the padding of the first spatial dim.
  [[nodiscard]] at::Tensor call(const at::Tensor& x, std::array<int64_t, 2> rows) const {
    std::vector<int64_t> common;  // the library pads both sides alike
    std::vector<int64_t> more;    // from the last dim to the first, as constant_pad_nd wants it
    for (size_t dim = spatial_dims(); dim-- > 0;) {
      const auto [before, after] = dim == 0 ? rows : options.padding[dim];
      const int64_t both = before == after ? before : 0;
      common.insert(common.begin(), both);
      more.insert(more.end(), {before - both, after - both});
    }
    if (x.is_meta()) {
      std::vector<int64_t> sizes = {x.size(0), weight.size(0)};
      for (size_t dim = 0; dim < spatial_dims(); ++dim) {
        const auto around = dim == 0 ? rows : options.padding[dim];
        sizes.push_back(out_size(dim, x.size(static_cast<int64_t>(dim) + 2), around));
      }
      return DryConvolution::apply(x, weight,
                                   bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt,
                                   at::IntArrayRef(sizes));
    }
    const bool is_even = std::all_of(more.begin(), more.end(), [](int64_t n) { return n == 0; });
    // cuDNN adds no bias: libtorch's addition behind it is slower than ours.
    const bool adds_bias = bias.defined() && x.is_cuda() && !at::GradMode::is_enabled();
    at::Tensor y = at::convolution(
        is_even ? x : at::constant_pad_nd(x, more), weight,
        bias.defined() && !adds_bias ? std::optional<at::Tensor>(bias) : std::nullopt,
        options.stride, common, std::vector<int64_t>(spatial_dims(), 1),
        /*transposed=*/false, std::vector<int64_t>(spatial_dims(), 0), options.groups);
    if (adds_bias) {
      add_channel_bias(y, bias);
    }
    return y;
  }

  /// Output rows [begin, end), of the input rows that they see.
  [[nodiscard]] at::Tensor rows(const at::Tensor& x, int64_t begin, int64_t end) const {
    const int64_t size = x.size(kRowsDim);
    const int64_t first = begin * options.stride[0] - options.padding[0][0];
    const int64_t last =
        (end - 1) * options.stride[0] - options.padding[0][0] + weight.size(kRowsDim);  // exclusive
    const int64_t from = std::clamp<int64_t>(first, 0, size);
    const int64_t to = std::clamp<int64_t>(last, from, size);
    return call(x.narrow(kRowsDim, from, to - from), {from - first, last - to});
  }
};

/// [.., 3, ..], the 3 along `dim`, as [2, .., 2]: row 2 i + a of a doubled picture sees rows
/// i - 1 + a and i + a of what it is made of, and [a, .., p] sums the kernel's rows that fall on
/// the p-th of them.
at::Tensor doubled_taps(const at::Tensor& kernel, int64_t dim) {
  const std::vector<at::Tensor> k = kernel.unbind(dim);
  return at::stack({at::stack({k[0], k[1] + k[2]}, -1), at::stack({k[0] + k[1], k[2]}, -1)});
}

int64_t pieces_for(int64_t elements, int64_t max_elements) {
  return (elements + max_elements - 1) / max_elements;
}

}  // namespace

at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    const ConvolutionOptions& options, int64_t max_elements) {
  const Convolution convolution{weight, bias, options};
  const size_t dims = convolution.spatial_dims();
  KINORA_CHECK(
      x.dim() == static_cast<int64_t>(dims) + 2 && x.size(1) == weight.size(1) * options.groups,
      kShape, "[conv] x must have shape [B, ", weight.size(1) * options.groups, ", ", dims,
      " spatial sizes], got ", x.sizes());
  int64_t out_elements = x.size(0) * weight.size(0);
  for (size_t dim = 0; dim < dims; ++dim) {
    const int64_t size = x.size(static_cast<int64_t>(dim) + 2);
    const auto [before, after] = options.padding[dim];
    KINORA_CHECK(size + before + after >= weight.size(static_cast<int64_t>(dim) + 2), kShape,
                 "[conv] x is smaller than the kernel ", weight.sizes().slice(2), ", got ",
                 x.sizes());
    out_elements *= convolution.out_size(dim, size);
  }
  const int64_t elements = std::max(x.numel(), out_elements);
  if (elements <= max_elements) {
    return convolution.call(x, options.padding[0]);
  }
  std::vector<at::Tensor> results;
  if (x.size(0) > 1) {
    const int64_t count = std::max<int64_t>(1, max_elements / (elements / x.size(0)));
    for (int64_t begin = 0; begin < x.size(0); begin += count) {
      const int64_t items = std::min(count, x.size(0) - begin);
      results.push_back(convolve(x.narrow(0, begin, items), weight, bias, options, max_elements));
    }
    return at::cat(results, 0);
  }
  const int64_t out_rows = convolution.out_size(0, x.size(kRowsDim));
  // the rows around a piece count as well: twice as many pieces leave room for them
  const int64_t count = std::max<int64_t>(1, out_rows / (2 * pieces_for(elements, max_elements)));
  for (int64_t begin = 0; begin < out_rows; begin += count) {
    results.push_back(convolution.rows(x, begin, std::min(begin + count, out_rows)));
  }
  return at::cat(results, kRowsDim);
}

at::Tensor convolve_doubled(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            std::array<int64_t, 2> rows) {
  KINORA_CHECK(weight.dim() == 4 && weight.size(2) == 3 && weight.size(3) == 3, kShape,
               "[conv] the kernel must have shape [O, C, 3, 3], got ", weight.sizes());
  const int64_t channels = weight.size(0);
  const auto wide = c10::promoteTypes(weight.scalar_type(), at::kFloat);
  const at::Tensor phases = doubled_taps(doubled_taps(weight.to(wide), 2), 3)  // [b, a, O, C, 2, 2]
                                .transpose(0, 1)
                                .reshape({4 * channels, weight.size(1), 2, 2})
                                .to(weight.scalar_type());
  const int64_t height = x.size(2) + rows[0] + rows[1] - 2;
  const int64_t width = x.size(3);
  at::Tensor result =
      at::empty({x.size(0), channels, 2 * height, 2 * width},
                x.options().requires_grad(false).memory_format(at::MemoryFormat::ChannelsLast));
  const at::Tensor biases = bias.defined() ? bias.repeat({2}) : bias;
  for (int64_t a = 0; a < 2; ++a) {  // even rows, then odd ones: half of the memory of both at once
    const at::Tensor y = convolve(
        x, phases.narrow(0, 2 * a * channels, 2 * channels), biases,
        {.stride = {1, 1}, .padding = {rows, {1, 1}}, .groups = 1});  // [B, 2 O, h + 1, W + 1]
    for (int64_t b = 0; b < 2; ++b) {
      const at::Tensor part =
          y.narrow(1, b * channels, channels).narrow(2, a, height).narrow(3, b, width);
      result.slice(2, a, std::nullopt, 2).slice(3, b, std::nullopt, 2).copy_(part);
    }
  }
  return result;
}

}  // namespace kinora::ops
