#include "kinora/ops/channel_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/ops/channel_norm_launch.h"
#include "kinora/ops/channels_last.h"
#include "kinora/ops/cuda_launch.h"
#include "kinora/ops/edges.h"

namespace kinora::ops {
namespace {

bool wants_gradients(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  return at::GradMode::is_enabled() &&
         (a.requires_grad() || b.requires_grad() || c.requires_grad());
}

bool takes_channel_kernel(const at::Tensor& x) {
  return x.is_cuda() && x.numel() > 0 && is_channels_last(x) && cuda::channel_norm_takes(x);
}

constexpr double kLeastLength = 1e-12;
constexpr int64_t kFramesDim = 2;

bool takes_rms_kernel(const at::Tensor& x, const at::Tensor& weight) {
  return !wants_gradients(x, weight, weight) && x.numel() > 0 && is_channels_last(x) &&
         cuda::channel_rms_takes(x);
}

at::Tensor rms_by_calls(const at::Tensor& x, const at::Tensor& weight, bool silu) {
  const at::Tensor wide = x.to(c10::promoteTypes(x.scalar_type(), at::kFloat));
  const at::Tensor length =
      at::linalg_vector_norm(wide, 2, {1}, /*keepdim=*/true).clamp_min(kLeastLength);
  std::vector<int64_t> per_channel(static_cast<size_t>(x.dim()) - 1, 1);
  per_channel[0] = x.size(1);
  const double root = std::sqrt(static_cast<double>(x.size(1)));
  const at::Tensor y = (wide / length * (weight.view(per_channel) * root)).to(x.scalar_type());
  return silu ? at::silu(y) : y;
}

void rms_by_kernel(const at::Tensor& x, const at::Tensor& weight, bool silu,
                   const at::Tensor& out) {
  cuda::channel_rms(x, weight.to(at::kFloat).contiguous(),
                    {.factor = static_cast<float>(std::sqrt(static_cast<double>(x.size(1)))),
                     .least = static_cast<float>(kLeastLength),
                     .silu = silu},
                    out);
}

}  // namespace

at::Tensor channel_moments(const at::Tensor& x) {
  if (!wants_gradients(x, x, x) && takes_channel_kernel(x)) {
    at::Tensor out = at::empty({2, x.size(0), x.size(1)}, x.options().dtype(at::kDouble));
    cuda::channel_moments(x, out);
    return out;
  }
  const at::Tensor wide = x.to(c10::promoteTypes(x.scalar_type(), at::kFloat));
  std::vector<int64_t> places(static_cast<size_t>(x.dim()) - 2);
  std::iota(places.begin(), places.end(), 2);
  const auto summed = [&](const at::Tensor& values) {
    return places.empty() ? values.to(at::kDouble) : values.sum(places, false, at::kDouble);
  };
  return at::stack({summed(wide), summed(wide.square())});
}

at::Tensor channel_affine(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                          bool silu, bool overwrite) {
  if (!wants_gradients(x, scale, shift) && takes_channel_kernel(x)) {
    at::Tensor out = overwrite ? x : at::empty_like(x);
    cuda::channel_affine(x, scale.to(at::kFloat).contiguous(), shift.to(at::kFloat).contiguous(),
                         silu, out);
    return out;
  }
  std::vector<int64_t> per_channel(static_cast<size_t>(x.dim()), 1);
  per_channel[0] = x.size(0);
  per_channel[1] = x.size(1);
  const auto type = c10::promoteTypes(x.scalar_type(), at::kFloat);
  const at::Tensor factors = scale.view(per_channel);
  const at::Tensor terms = shift.view(per_channel);
  if (overwrite && x.scalar_type() == type) {
    at::Tensor out = x;
    at::addcmul_out(out, terms, x, factors);
    return silu ? at::silu_(out) : out;
  }
  const at::Tensor y = at::addcmul(terms, x.to(type), factors);
  const at::Tensor result = silu ? at::silu(y) : y;
  return overwrite ? x.copy_(result) : result.to(x.scalar_type());
}

at::Tensor channel_affine_with_edges(const at::Tensor& x, const at::Tensor& scale,
                                     const at::Tensor& shift, bool silu,
                                     const std::vector<std::array<int64_t, 2>>& counts,
                                     const at::Tensor& before) {
  KINORA_CHECK(x.dim() == 5 && counts.size() == 3, kShape,
               "[channel_affine] edges are of clips [B, C, T, H, W], got ", x.sizes(), " and ",
               counts.size(), " dims");
  const kernels::ChannelEdges edges = cuda::edges_of(x, counts);
  if (wants_gradients(x, scale, shift) || !takes_channel_kernel(x) ||
      edges.out_places() > cuda::kMostPlaces || (before.defined() && x.size(0) > 1)) {
    const at::Tensor made = repeat_edges(channel_affine(x, scale, shift, silu), counts);
    return before.defined() ? at::cat({before, made}, kFramesDim) : made;
  }
  const int64_t earlier = before.defined() ? before.size(kFramesDim) : 0;
  std::vector<int64_t> sizes = cuda::sizes_with(edges, x);
  const int64_t frames = sizes[kFramesDim];
  sizes[kFramesDim] += earlier;
  at::Tensor out = at::empty(sizes, x.options().memory_format(channels_last(x)));
  if (earlier > 0) {
    out.narrow(kFramesDim, 0, earlier).copy_(before);
  }
  cuda::channel_affine(x, scale.to(at::kFloat).contiguous(), shift.to(at::kFloat).contiguous(),
                       silu, out.narrow(kFramesDim, earlier, frames), edges);
  return out;
}

bool norms_in_one_pass(const at::Tensor& like) {
  const auto type = like.scalar_type();
  return like.is_cuda() && cuda::available() && !at::GradMode::is_enabled() &&
         (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

at::Tensor channel_rms(const at::Tensor& x, const at::Tensor& weight, bool silu) {
  if (!takes_rms_kernel(x, weight)) {
    return rms_by_calls(x, weight, silu);
  }
  at::Tensor out = at::empty_like(x);
  rms_by_kernel(x, weight, silu, out);
  return out;
}

at::Tensor channel_rms_joined(const std::vector<at::Tensor>& clips, const at::Tensor& weight,
                              bool silu, int64_t zeros) {
  std::vector<int64_t> sizes = clips.front().sizes().vec();
  sizes[kFramesDim] = zeros;
  if (std::ranges::all_of(clips,
                          [&](const at::Tensor& clip) { return takes_rms_kernel(clip, weight); })) {
    for (const at::Tensor& clip : clips) {
      sizes[kFramesDim] += clip.size(kFramesDim);
    }
    const at::Tensor out =
        at::empty(sizes, clips.front().options().memory_format(at::MemoryFormat::ChannelsLast3d));
    out.narrow(kFramesDim, 0, zeros).zero_();
    int64_t begin = zeros;
    for (const at::Tensor& clip : clips) {
      rms_by_kernel(clip, weight, silu, out.narrow(kFramesDim, begin, clip.size(kFramesDim)));
      begin += clip.size(kFramesDim);
    }
    return out;
  }
  std::vector<at::Tensor> parts;
  if (zeros > 0) {
    parts.push_back(at::zeros(sizes, clips.front().options()));
  }
  for (const at::Tensor& clip : clips) {
    parts.push_back(rms_by_calls(clip, weight, silu));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, kFramesDim);
}

GroupAffine group_affine(const at::Tensor& sums, const at::Tensor& weight, const at::Tensor& bias,
                         int64_t elements, double epsilon, at::ScalarType type) {
  const int64_t channels = weight.numel();
  if (!wants_gradients(sums, weight, bias) && type == at::kFloat &&
      cuda::group_affine_takes(sums, weight, bias)) {
    const auto options = sums.options().dtype(at::kFloat);
    GroupAffine result{at::empty({sums.size(1), channels}, options),
                       at::empty({sums.size(1), channels}, options)};
    cuda::group_affine(sums, weight, bias, elements, epsilon, result.scale, result.shift);
    return result;
  }
  const at::Tensor moments = sums / static_cast<double>(elements);
  const at::Tensor mean = moments.select(0, 0);
  const at::Tensor variance = (moments.select(0, 1) - mean.square()).clamp_min(0.0);
  const at::Tensor rstd = at::rsqrt(variance + epsilon);
  const auto spread = [&](const at::Tensor& group_values) {  // [B, groups] -> [B, C]
    return group_values.to(type).repeat_interleave(channels / sums.size(2), 1);
  };
  GroupAffine result;
  result.scale = spread(rstd) * weight;
  result.shift = bias - spread(mean) * result.scale;
  return result;
}

}  // namespace kinora::ops
