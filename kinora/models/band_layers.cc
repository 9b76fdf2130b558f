#include "kinora/models/band_layers.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "kinora/ops/convolution.h"

namespace kinora::models {
namespace {

/// conv(silu(norm(x))) of rows of x, the sums of the whole of which are the first of `also`.
nn::Bands::Layer norm_silu_layer(const nn::Bands& x, const nn::GroupNorm& norm,
                                 const nn::Conv& conv) {
  return [&norm, &conv, elements = x.group_elements(norm.groups()), overwrite = x.may_overwrite()](
             const nn::Rows& rows, const std::vector<at::Tensor>& also) {
    return convolve_rows(conv, norm.apply_silu(rows.x, also[0], elements, overwrite), rows);
  };
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
  const at::Tensor sums = nn::band_sums(x, norm);
  const nn::Bands::Layer layer = norm_silu_layer(x, norm, conv);
  return nn::over_bands(std::move(x), halo_of(conv), layer, {sums});
}

nn::Bands norm_silu_convolve(nn::Bands x, const nn::GroupNorm& norm, const nn::Conv& conv,
                             nn::Bands residual) {
  const at::Tensor sums = nn::band_sums(x, norm);
  const auto layer = [inner = norm_silu_layer(x, norm, conv)](const nn::Rows& rows,
                                                              const std::vector<at::Tensor>& also) {
    return inner(rows, also).add_(also[1]);  // in place: the convolution's is nobody else's
  };
  return over_both(std::move(x), std::move(residual), halo_of(conv), layer, {sums});
}

nn::Bands convolve_doubled(nn::Bands x, const nn::Conv& conv) {
  return nn::over_bands(std::move(x), {1, 1}, [&conv](const nn::Rows& rows, const auto& /*also*/) {
    return conv.forward_doubled(rows.x, rows.missing);
  });
}

at::Tensor run_in_bands(const at::Tensor& x, const std::vector<nn::BandStage>& stages,
                        int64_t budget, const std::function<nn::Bands(nn::Bands)>& network) {
  const nn::BandPlan plan = nn::plan_bands(stages, budget, at::GradMode::is_enabled());
  return network(nn::Bands(x, plan)).joined();
}

BandPlace place_of(const at::Tensor& x) {
  return {.rows = x.size(2), .row_bytes = x.size(0) * x.size(3) * x.element_size()};
}

nn::BandNeed whole_need(const BandPlace& place, int64_t channels) {
  return {.stored = 0, .kept = 0, .work = place.bytes(channels), .rows = 1, .halo = 1};
}

}  // namespace kinora::models
