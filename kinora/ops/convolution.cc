#include "kinora/ops/convolution.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/ops/channel_norm_launch.h"
#include "kinora/ops/channels_last.h"
#include "kinora/ops/unet_parts.h"

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
    return at::convolution(
        is_even ? x : at::constant_pad_nd(x, more), weight,
        bias.defined() && !adds_bias(x) ? std::optional<at::Tensor>(bias) : std::nullopt,
        options.stride, common, std::vector<int64_t>(spatial_dims(), 1),
        /*transposed=*/false, std::vector<int64_t>(spatial_dims(), 0), options.groups);
  }

  /// cuDNN adds no bias: libtorch's addition behind it is slower than ours.
  [[nodiscard]] bool adds_bias(const at::Tensor& x) const { return bias.defined() && x.is_cuda(); }

  [[nodiscard]] bool wants_gradients(const at::Tensor& x) const {
    return at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad() ||
                                          (bias.defined() && bias.requires_grad()) ||
                                          (options.plus.defined() && options.plus.requires_grad()));
  }

  /// What calls made, y, with what they left out; `plus`: the same part of options.plus.
  [[nodiscard]] at::Tensor finished(const at::Tensor& y, const at::Tensor& plus) const {
    if (!plus.defined()) {
      return adds_bias(y) ? add_bias(y, bias) : y;
    }
    if (!adds_bias(y)) {
      return y + plus;
    }
    if (wants_gradients(y)) {
      return residual_sum(plus, y, bias);
    }
    add_into(y, y, plus, bias);
    return y;
  }

  /// Rows [begin, begin + count) of what is added.
  [[nodiscard]] at::Tensor plus_rows(int64_t begin, int64_t count) const {
    return options.plus.defined() ? options.plus.narrow(kRowsDim, begin, count) : at::Tensor();
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

/// (a, p, i): 1 where tap i of a kernel of 3 rows, or of columns, falls on place p of the 2 that
/// phase a sees. Row 2 i + a of a doubled picture sees rows i - 1 + a and i + a of what it is made
/// of.
at::Tensor taps_along(const at::TensorOptions& options) {
  const at::Tensor along = at::zeros({2, 2, 3}, options);
  along.select(0, 0).select(0, 0).narrow(0, 0, 1).fill_(1.0);
  along.select(0, 0).select(0, 1).narrow(0, 1, 2).fill_(1.0);
  along.select(0, 1).select(0, 0).narrow(0, 0, 2).fill_(1.0);
  along.select(0, 1).select(0, 1).narrow(0, 2, 1).fill_(1.0);
  return along;
}

/// [16, 9]: which weights of a 3 x 3 kernel fall on the 2 x 2 places that a phase sees: entry (2 a
/// + b, 2 p + q; 3 i + j) is 1 where tap (i, j) of phase (a, b) falls on place (p, q).
at::Tensor taps_of_phases(const at::TensorOptions& options) {
  const at::Tensor along = taps_along(options);
  return (along.view({2, 1, 2, 1, 3, 1}) * along.view({1, 2, 1, 2, 1, 3})).reshape({16, 9});
}

/// Where output rows of parity a, of both parities of columns one behind the other, [B, 2 O, h + 1,
/// w + 1], lie in the doubled picture [B, O, 2 h, 2 w]: copy(a part, its places in the picture).
template <typename Copy>
void for_each_phase(const at::Tensor& even, const at::Tensor& odd, const at::Tensor& picture,
                    const Copy& copy) {
  const int64_t channels = picture.size(1);
  for (int64_t a = 0; a < 2; ++a) {
    for (int64_t b = 0; b < 2; ++b) {
      copy((a == 0 ? even : odd)
               .narrow(1, b * channels, channels)
               .narrow(2, a, picture.size(2) / 2)
               .narrow(3, b, picture.size(3) / 2),
           picture.slice(2, a, std::nullopt, 2).slice(3, b, std::nullopt, 2));
    }
  }
}

/// The phases of a doubled picture in their places.
struct JoinPhases : torch::autograd::Function<JoinPhases> {
  using Context = torch::autograd::AutogradContext;

  static at::Tensor forward(Context* context, const at::Tensor& even, const at::Tensor& odd) {
    context->saved_data["sizes"] = even.sizes().vec();
    const at::Tensor picture =
        at::empty({even.size(0), even.size(1) / 2, 2 * even.size(2) - 2, 2 * even.size(3) - 2},
                  even.options().memory_format(at::MemoryFormat::ChannelsLast));
    for_each_phase(even, odd, picture,
                   [](const at::Tensor& part, const at::Tensor& place) { place.copy_(part); });
    return picture;
  }

  static torch::autograd::variable_list backward(Context* context,
                                                 const torch::autograd::variable_list& incoming) {
    const std::vector<int64_t> sizes = context->saved_data["sizes"].toIntVector();
    const auto options = incoming[0].options().memory_format(at::MemoryFormat::ChannelsLast);
    const at::Tensor even = at::empty(sizes, options).zero_();
    const at::Tensor odd = at::empty(sizes, options).zero_();
    for_each_phase(even, odd, incoming[0],
                   [](const at::Tensor& part, const at::Tensor& place) { part.copy_(place); });
    return {even, odd};
  }
};

int64_t pieces_for(int64_t elements, int64_t max_elements) {
  return ceil_div(elements, max_elements);
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
    return convolution.finished(convolution.call(x, options.padding[0]), options.plus);
  }
  std::vector<at::Tensor> results;
  if (x.size(0) > 1) {
    const int64_t count = std::max<int64_t>(1, max_elements / (elements / x.size(0)));
    for (int64_t begin = 0; begin < x.size(0); begin += count) {
      const int64_t items = std::min(count, x.size(0) - begin);
      ConvolutionOptions part = options;
      part.plus = options.plus.defined() ? options.plus.narrow(0, begin, items) : at::Tensor();
      results.push_back(convolve(x.narrow(0, begin, items), weight, bias, part, max_elements));
    }
    return at::cat(results, 0);
  }
  const int64_t out_rows = convolution.out_size(0, x.size(kRowsDim));
  // the rows around a piece count as well: twice as many pieces leave room for them
  const int64_t count = std::max<int64_t>(1, out_rows / (2 * pieces_for(elements, max_elements)));
  const bool in_place = convolution.adds_bias(x) && !convolution.wants_gradients(x);
  at::Tensor whole;  // where in_place, to which pieces go as their bias is added
  for (int64_t begin = 0; begin < out_rows; begin += count) {
    const int64_t rows = std::min(count, out_rows - begin);
    const at::Tensor y = convolution.rows(x, begin, begin + rows);
    const at::Tensor plus = convolution.plus_rows(begin, rows);
    if (!in_place) {
      results.push_back(convolution.finished(y, plus));
      continue;
    }
    if (!whole.defined()) {
      std::vector<int64_t> sizes = y.sizes().vec();
      sizes[kRowsDim] = out_rows;
      whole = at::empty(sizes, y.options().memory_format(y.suggest_memory_format()));
    }
    add_into(whole.narrow(kRowsDim, begin, rows), y, plus, bias);
  }
  return in_place ? whole : at::cat(results, kRowsDim);
}

at::Tensor doubled_phases(const at::Tensor& weight) {
  KINORA_CHECK(weight.dim() == 4 && weight.size(2) == 3 && weight.size(3) == 3, kShape,
               "[conv] the kernel must have shape [O, C, 3, 3], got ", weight.sizes());
  const int64_t out = weight.size(0);
  const int64_t in = weight.size(1);
  const at::NoTF32Guard exact;  // sums of few
  const at::Tensor phases =
      at::matmul(taps_of_phases(weight.options().requires_grad(false)),
                 weight.permute({0, 2, 3, 1}).reshape({out, 9, in}));  // [O, 16, C]
  return phases.view({out, 4, 2, 2, in})
      .transpose(0, 1)
      .reshape({4 * out, 2, 2, in})
      .permute({0, 3, 1, 2});
}

at::Tensor convolve_doubled(const at::Tensor& x, const at::Tensor& phases, const at::Tensor& bias,
                            std::array<int64_t, 2> rows) {
  const int64_t half = phases.size(0) / 2;
  const auto of_rows = [&](int64_t a) {
    return convolve(x, phases.narrow(0, a * half, half), {},
                    {.stride = {1, 1}, .padding = {rows, {1, 1}}, .groups = 1});
  };
  const at::Tensor picture = JoinPhases::apply(of_rows(0), of_rows(1));
  return bias.defined() ? add_bias(picture, bias) : picture;
}

namespace {

/// weight [O, C, 3, 3, 3] as a convolution of the clip reads it: [4 times O, C, 3 or 2, 2, 2],
/// phase (s, a, b) of frames, rows and columns behind phase, channels_last.
at::Tensor clip_phases(const at::Tensor& weight, int64_t times) {
  const int64_t out = weight.size(0);
  const auto options = weight.options().requires_grad(false);
  const at::Tensor along = taps_along(options);
  // A frame sees the two before it: the first of two is seen as the lower of two rows.
  const at::Tensor in_time = times == 2 ? along.flip(0) : at::eye(3, options).unsqueeze(0);
  const int64_t frames = in_time.size(1);  // that a phase sees
  const at::Tensor taps =
      (in_time.view({times, 1, 1, frames, 1, 1, 3, 1, 1}) *
       along.view({1, 2, 1, 1, 2, 1, 1, 3, 1}) * along.view({1, 1, 2, 1, 1, 2, 1, 1, 3}))
          .reshape({16 * times * frames, 27});
  const at::NoTF32Guard exact;  // sums of few
  return at::matmul(taps, weight.permute({2, 3, 4, 0, 1}).reshape({27, -1}))
      .view({4 * times, 4 * frames, out, -1})
      .transpose(1, 2)
      .reshape({4 * times * out, frames, 2, 2, -1})
      .permute({0, 4, 1, 2, 3});
}

}  // namespace

at::Tensor convolve_doubled_clip(const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& bias, int64_t times, int64_t left_out) {
  KINORA_CHECK(weight.dim() == 5 && weight.sizes().slice(2) == at::IntArrayRef({3, 3, 3}) &&
                   (times == 1 || times == 2) && left_out < times,
               kShape,
               "[conv] the kernel must have shape [O, C, 3, 3, 3], and frames come once or "
               "twice, got ",
               weight.sizes(), " and ", times);
  const at::Tensor phases = convolve(x, clip_phases(weight, times), {},
                                     {.stride = {1, 1, 1}, .padding = {{{0, 0}, {0, 0}, {0, 0}}}});
  kernels::ChannelPhases sizes;
  sizes.frames = phases.size(2);
  sizes.rows = phases.size(3) - 1;
  sizes.columns = phases.size(4) - 1;
  sizes.times = times;
  sizes.left_out = left_out;
  const int64_t channels = weight.size(0);
  at::Tensor out =
      at::empty({x.size(0), channels, sizes.out_frames(), 2 * sizes.rows, 2 * sizes.columns},
                phases.options().memory_format(at::MemoryFormat::ChannelsLast3d));
  if (out.is_cuda() && out.numel() > 0 && is_channels_last(phases) &&
      cuda::channel_norm_takes(out) && out.numel() / x.size(0) / channels <= cuda::kMostPlaces) {
    cuda::channel_phases(sizes, phases, bias, out);
    return out;
  }
  for (int64_t phase = 0; phase < 4 * times; ++phase) {
    const int64_t s = phase / 4;
    const int64_t a = phase / 2 % 2;
    const int64_t b = phase % 2;
    const int64_t skipped = s < left_out ? 1 : 0;  // of the frames
    out.slice(2, times * skipped + s - left_out, std::nullopt, times)
        .slice(3, a, std::nullopt, 2)
        .slice(4, b, std::nullopt, 2)
        .copy_(phases.narrow(1, phase * channels, channels)
                   .narrow(2, skipped, sizes.frames - skipped)
                   .narrow(3, a, sizes.rows)
                   .narrow(4, b, sizes.columns));
  }
  return bias.defined() ? add_bias(out, bias) : out;
}

}  // namespace kinora::ops
