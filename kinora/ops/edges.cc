#include "kinora/ops/edges.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kinora/core/error.h"

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

}  // namespace kinora::ops
