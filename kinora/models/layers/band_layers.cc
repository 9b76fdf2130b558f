#include "kinora/models/layers/band_layers.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <utility>

#include "kinora/ops/convolution.h"

namespace kinora::models {
namespace {

constexpr int64_t kRowsDim = 2;

/// conv(before(x)), and with `residual` (may be null) added to it; both are freed on the way. For
/// convolutions that keep the number of rows, without gradients. Each band is computed where it
/// lies, as if zeros were around it, then its outer rows once more from the rows that are there: so
/// nothing but these is copied.
nn::Bands convolve_bands(nn::Bands x, const nn::Conv& conv, const Pointwise& before,
                         nn::Bands* residual) {
  const auto prepared = [&](const at::Tensor& rows) { return before ? before(rows) : rows; };
  const std::array<int64_t, 2> halo = halo_of(conv);
  nn::Bands result = x.like();
  x.meet(halo);
  at::Tensor above;  // the last rows of the band that was freed, or of the rank above
  if (x.begin(0) > 0) {
    above = x.rows(x.begin(0) - halo[0], x.begin(0));
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t begin = x.begin(i);
    const int64_t end = x.end(i);
    at::Tensor band = conv.forward(prepared(x.rows(begin, end)));
    if (begin > 0) {
      const int64_t last = std::min(end, begin + halo[0]);
      const int64_t seen = std::min(x.num_rows(), last + halo[1]);
      const at::Tensor rows = at::cat({above, x.rows(begin, seen)}, kRowsDim);
      band.narrow(kRowsDim, 0, last - begin)
          .copy_(convolve_rows(conv, prepared(rows),
                               {.x = {}, .missing = {0, last + halo[1] - seen}}));
    }
    if (end < x.num_rows()) {
      const int64_t first = std::max(begin, end - halo[1]);
      const int64_t seen = std::max<int64_t>(0, first - halo[0]);
      at::Tensor rows = x.rows(std::max(begin, seen), end + halo[1]);
      if (seen < begin) {
        rows = at::cat({above, rows}, kRowsDim);
      }
      band.narrow(kRowsDim, first - begin, end - first)
          .copy_(convolve_rows(conv, prepared(rows),
                               {.x = {}, .missing = {seen - (first - halo[0]), 0}}));
      above = x.rows(end - halo[0], end).clone();
    }
    x.release(i, {0, 0});
    if (residual != nullptr) {
      band.add_(residual->rows(begin, end));
      residual->release(i, {0, 0});
    }
    result.add(band);
  }
  return result;
}

nn::Bands norm_silu_convolve(nn::Bands x, const nn::GroupNorm& norm, const nn::Conv& conv,
                             nn::Bands* residual) {
  const at::Tensor sums = nn::band_sums(x, norm);
  const int64_t elements = x.group_elements(norm.groups());
  if (!at::GradMode::is_enabled()) {
    if (!x.may_overwrite()) {
      return convolve_bands(
          std::move(x), conv,
          [&](const at::Tensor& rows) { return norm.apply_silu(rows, sums, elements); }, residual);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      (void)norm.apply_silu(x[i], sums, elements, /*overwrite=*/true);
    }
    return convolve_bands(std::move(x), conv, {}, residual);
  }
  const nn::Bands::Layer layer = [&norm, &conv, elements](const nn::Rows& rows,
                                                          const std::vector<at::Tensor>& also) {
    const at::Tensor y = convolve_rows(conv, norm.apply_silu(rows.x, also[0], elements), rows);
    return also.size() > 1 ? y + also[1] : y;
  };
  return residual != nullptr
             ? over_both(std::move(x), std::move(*residual), halo_of(conv), layer, {sums})
             : nn::over_bands(std::move(x), halo_of(conv), layer, {sums});
}

}  // namespace

std::array<int64_t, 2> halo_of(const nn::Conv& conv) {
  const nn::ConvShape& shape = conv.shape();
  const int64_t above = shape.padding[0][0];
  return {above, shape.kernel[0] - shape.stride[0] - above};
}

at::Tensor convolve_rows(const nn::Conv& conv, const at::Tensor& x, const nn::Rows& rows) {
  std::vector<nn::Padding> padding = conv.shape().padding;
  padding[0] = rows.missing;
  return conv.forward(x, padding);
}

nn::Bands over_both(nn::Bands x, nn::Bands other, std::array<int64_t, 2> halo,
                    const nn::Bands::Layer& layer, std::vector<at::Tensor> also) {
  nn::Bands result = x.like();
  also.emplace_back();
  for (size_t i = 0; i < x.size(); ++i) {
    also.back() = other[i];
    result.add(x.computed(i, halo, layer, also));
    x.release(i, halo);
    other.release(i, {0, 0});
  }
  return result;
}

nn::Bands convolve(nn::Bands x, const nn::Conv& conv, const Pointwise& after) {
  return nn::over_bands(std::move(x), halo_of(conv),
                        [&conv, after](const nn::Rows& rows, const auto& /*also*/) {
                          const at::Tensor y = convolve_rows(conv, rows.x, rows);
                          return after ? after(y) : y;
                        });
}

nn::Bands convolve(nn::Bands x, const nn::Conv& conv, nn::Bands other, const Join& join) {
  return over_both(std::move(x), std::move(other), halo_of(conv),
                   [&conv, join](const nn::Rows& rows, const std::vector<at::Tensor>& also) {
                     return join(convolve_rows(conv, rows.x, rows), also.back());
                   },
                   {});
}

nn::Bands norm_silu_convolve(nn::Bands x, const nn::GroupNorm& norm, const nn::Conv& conv) {
  return norm_silu_convolve(std::move(x), norm, conv, nullptr);
}

nn::Bands norm_silu_convolve(nn::Bands x, const nn::GroupNorm& norm, const nn::Conv& conv,
                             nn::Bands residual) {
  return norm_silu_convolve(std::move(x), norm, conv, &residual);
}

nn::Bands convolve_doubled(nn::Bands x, const nn::Conv& conv) {
  return nn::over_bands(std::move(x), {1, 1}, [&conv](const nn::Rows& rows, const auto& /*also*/) {
    return conv.forward_doubled(rows.x, rows.missing);
  });
}

at::Tensor run_in_bands(const at::Tensor& x, const std::vector<nn::BandStage>& stages,
                        const nn::BandLimits& limits,
                        const std::function<nn::Bands(nn::Bands)>& network) {
  const nn::BandPlan plan = nn::plan_bands(stages, limits, at::GradMode::is_enabled());
  return network(nn::Bands(nn::for_bands(x, plan), plan)).joined();
}

BandPlace place_of(const at::Tensor& x) {
  return {.rows = x.size(2),
          .row_bytes = x.size(0) * x.size(3) * x.element_size(),
          .copies = x.is_cuda() && x.scalar_type() == at::kFloat &&
                    !at::globalContext().allowTF32CuDNN()};
}

nn::BandNeed whole_need(const BandPlace& place, int64_t channels) {
  return {.stored = 0, .kept = 0, .work = place.bytes(channels), .rows = 1, .halo = 1};
}

}  // namespace kinora::models
