#include "kinora/ops/edges.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <bit>
#include <optional>

#include "kinora/core/error.h"
#include "kinora/ops/channel_norm_launch.h"
#include "kinora/ops/channels_last.h"
#include "kinora/ops/vectors.h"

namespace kinora::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Counts = std::vector<std::array<int64_t, 2>>;

bool is_empty(const Counts& counts) {
  for (const auto& [before, after] : counts) {
    if (before != 0 || after != 0) {
      return false;
    }
  }
  return true;
}

/// The part of `padded` that came from x.
at::Tensor interior(at::Tensor padded, const Counts& counts) {
  int64_t dim = padded.dim() - static_cast<int64_t>(counts.size());
  for (const auto& [before, after] : counts) {
    padded = padded.narrow(dim, before, padded.size(dim) - before - after);
    ++dim;
  }
  return padded;
}

at::Tensor repeated(const at::Tensor& x, const Counts& counts) {
  std::vector<int64_t> sizes = x.sizes().vec();
  const size_t first_dim = sizes.size() - counts.size();
  for (size_t i = 0; i < counts.size(); ++i) {
    sizes[first_dim + i] += counts[i][0] + counts[i][1];
  }
  at::Tensor padded = at::empty(sizes, x.options().memory_format(x.suggest_memory_format()));
  interior(padded, counts).copy_(x);
  // A dim's edges are copied from slices whose edges in later dims are still to be filled, by the
  // later dims' copies.
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto dim = static_cast<int64_t>(first_dim + i);
    const auto [before, after] = counts[i];
    const int64_t end = padded.size(dim) - after;
    if (before > 0) {
      padded.narrow(dim, 0, before)
          .copy_(padded.narrow(dim, before, 1).expand_as(padded.narrow(dim, 0, before)));
    }
    if (after > 0) {
      padded.narrow(dim, end, after)
          .copy_(padded.narrow(dim, end - 1, 1).expand_as(padded.narrow(dim, end, after)));
    }
  }
  return padded;
}

at::Tensor summed(at::Tensor gradient, const Counts& counts) {
  gradient = gradient.clone();
  const size_t first_dim = static_cast<size_t>(gradient.dim()) - counts.size();
  for (size_t i = counts.size(); i-- > 0;) {
    const auto dim = static_cast<int64_t>(first_dim + i);
    const auto [before, after] = counts[i];
    const int64_t end = gradient.size(dim) - after;
    if (before > 0) {
      gradient.narrow(dim, before, 1).add_(gradient.narrow(dim, 0, before).sum(dim, true));
    }
    if (after > 0) {
      gradient.narrow(dim, end - 1, 1).add_(gradient.narrow(dim, end, after).sum(dim, true));
    }
  }
  return interior(gradient, counts);
}

/// x [B, C, (T,) H, W] with its channels last, in vectors.
std::optional<at::Tensor> places_in_vectors(const at::Tensor& x) {
  return x.dim() == 4 || x.dim() == 5 ? in_vectors(x.movedim(1, -1)) : std::nullopt;
}

at::Tensor from_vectors(const at::Tensor& vectors, at::ScalarType type) {
  return vectors.view(type).movedim(-1, 1);
}

struct RepeatEdges : torch::autograd::Function<RepeatEdges> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::vector<int64_t>& flat) {
    context->saved_data["counts"] = flat;
    return repeated(x, pairs(flat));
  }

  static variable_list backward(AutogradContext* context, const variable_list& incoming) {
    return {summed(incoming[0], pairs(context->saved_data["counts"].toIntVector())), at::Tensor()};
  }

  static Counts pairs(const std::vector<int64_t>& flat) {
    Counts counts;
    for (size_t i = 0; i < flat.size(); i += 2) {
      counts.push_back({flat[i], flat[i + 1]});
    }
    return counts;
  }
};

}  // namespace

at::Tensor repeat_edges(const at::Tensor& x, const Counts& counts) {
  KINORA_CHECK(x.dim() >= static_cast<int64_t>(counts.size()) && x.numel() > 0, kShape,
               "[repeat_edges] x must have ", counts.size(), " dims or more and elements, got ",
               x.sizes());
  if (is_empty(counts)) {
    return x;
  }
  std::vector<int64_t> flat;
  for (const auto& [before, after] : counts) {
    flat.insert(flat.end(), {before, after});
  }
  return RepeatEdges::apply(x, flat);
}

at::Tensor repeat_places(const at::Tensor& x, int64_t frames) {
  const bool is_clip = x.dim() == 5;
  const at::Tensor clip = is_clip ? x : x.unsqueeze(2);  // [B, C, T, H, W]
  const int64_t t = clip.size(2);
  const int64_t h = clip.size(3);
  const int64_t w = clip.size(4);
  const at::Tensor result = clip.permute({0, 2, 3, 4, 1})
                                .unsqueeze(2)
                                .unsqueeze(4)
                                .unsqueeze(6)  // [B, T, 1, H, 1, W, 1, C]
                                .expand({-1, -1, frames, -1, 2, -1, 2, -1})
                                .reshape({x.size(0), t * frames, h * 2, w * 2, x.size(1)})
                                .permute({0, 4, 1, 2, 3});
  return is_clip ? result : result.squeeze(2);
}

at::Tensor repeat_places_with_edges(const at::Tensor& x, int64_t frames, const Counts& left_out,
                                    const Counts& edges) {
  constexpr size_t kDims = 3;
  KINORA_CHECK(x.dim() == 5 && left_out.size() == kDims && edges.size() == kDims, kShape,
               "[repeat_places] x must be a clip [B, C, T, H, W], with three dims left out and "
               "with edges, got ",
               x.sizes(), ", ", left_out.size(), " and ", edges.size());
  kernels::ChannelEdges repeated = cuda::edges_of(x, edges);
  for (size_t d = 0; d < kDims; ++d) {
    repeated.doublings[d] = d == 0 ? std::countr_zero(static_cast<uint64_t>(frames)) : 1;
    repeated.left_out[d][0] = left_out[d][0];
    repeated.left_out[d][1] = left_out[d][1];
  }
  const bool wants_gradients = at::GradMode::is_enabled() && x.requires_grad();
  if (!wants_gradients && x.is_cuda() && x.numel() > 0 && is_channels_last(x) &&
      cuda::channel_norm_takes(x) && std::has_single_bit(static_cast<uint64_t>(frames)) &&
      repeated.out_places() <= cuda::kMostPlaces) {
    at::Tensor out =
        at::empty(cuda::sizes_with(repeated, x), x.options().memory_format(channels_last(x)));
    cuda::channel_repeat(x, repeated, out);
    return out;
  }
  return repeat_edges(interior(repeat_places(x, frames), left_out), edges);
}

at::Tensor cat_places(const std::vector<at::Tensor>& parts, int64_t dim) {
  std::vector<at::Tensor> vectors;
  for (const at::Tensor& part : parts) {
    const std::optional<at::Tensor> those = places_in_vectors(part);
    if (!those) {
      return at::cat(parts, dim);
    }
    vectors.push_back(*those);
  }
  const int64_t from_front = dim < 0 ? dim + parts.front().dim() : dim;
  return from_vectors(at::cat(vectors, from_front - 1), parts.front().scalar_type());
}

at::Tensor packed_places(const at::Tensor& x) {
  const std::optional<at::Tensor> vectors =
      is_channels_last(x) ? std::nullopt : places_in_vectors(x);
  return vectors ? from_vectors(vectors->contiguous(), x.scalar_type())
                 : x.contiguous(channels_last(x));
}

}  // namespace kinora::ops
