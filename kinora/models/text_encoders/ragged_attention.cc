#include "kinora/models/text_encoders/ragged_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

// Shapes: T rows of all texts, b texts of a group, L its length, H heads, D channels of a head.

namespace kinora::models {
namespace {

/// Texts of one group have so many scores at most, a head: with a bias they lie in memory. With the
/// 64 heads of T5-XXL in 16 bits that is 256 MiB.
constexpr int64_t kMostScores = int64_t{1} << 21;
constexpr int64_t kGpuUnit = 64;

/// The numbers of the texts of each group: lengths that are the same when rounded up, kMostScores.
std::vector<std::vector<size_t>> grouped(const std::vector<int64_t>& lengths, int64_t unit) {
  std::map<int64_t, std::vector<size_t>> by_length;
  for (size_t text = 0; text < lengths.size(); ++text) {
    by_length[round_up(lengths[text], unit)].push_back(text);
  }
  std::vector<std::vector<size_t>> groups;
  for (const auto& [length, texts] : by_length) {
    const auto most = static_cast<size_t>(std::max<int64_t>(1, kMostScores / (length * length)));
    for (size_t begin = 0; begin < texts.size(); begin += most) {
      const size_t end = std::min(begin + most, texts.size());
      groups.emplace_back(texts.data() + begin, texts.data() + end);
    }
  }
  return groups;
}

/// The bias of every query and key, [H, L, L], of `by_distance` [H, 2 M - 1]. By embedding, whose
/// gradient adds in the same order on every device.
at::Tensor bias_matrix(const at::Tensor& by_distance, int64_t length) {
  const int64_t middle = by_distance.size(1) / 2;  // distance 0
  const at::Tensor places = at::arange(length, by_distance.options().dtype(at::kLong));
  const at::Tensor distance = places.unsqueeze(0) - places.unsqueeze(1);  // key - query
  return at::embedding(by_distance.t(), distance + middle).permute({2, 0, 1});
}

/// What is added to a group's scores, [1 or b, H, L, L]; nothing where there is nothing.
std::optional<at::Tensor> mask_of(const RaggedRows::Group& group,
                                  const RaggedAttentionOptions& options, at::ScalarType type) {
  if (options.distance_bias.defined()) {
    const at::Tensor bias = bias_matrix(options.distance_bias.to(type), group.length).unsqueeze(0);
    return group.valid.defined()
               ? at::where(group.valid, bias, -std::numeric_limits<double>::infinity()).to(type)
               : bias;
  }
  // Where attention is causal, what lies behind a text's end is seen by nothing that is kept.
  return group.valid.defined() && !options.causal ? std::optional(group.valid) : std::nullopt;
}

/// For a bias that is trained, which the fused kernels take on some devices alone. [b, H, L, D].
at::Tensor composed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& bias, double scale) {
  return at::matmul(at::softmax(at::matmul(q * scale, k.transpose(-2, -1)) + bias, -1), v);
}

}  // namespace

RaggedRows::RaggedRows(std::vector<int64_t> lengths, at::Device device, int64_t unit,
                       const std::vector<int64_t>& attended)
    : lengths_(std::move(lengths)) {
  std::vector<int64_t> first_rows;
  for (size_t text = 0; text < lengths_.size(); ++text) {
    KINORA_CHECK(lengths_[text] >= 1, kShape, "[text] a text must have at least one token, got ",
                 lengths_[text], " for text ", text);
    first_rows.push_back(size_);
    longest_ = std::max(longest_, lengths_[text]);
    size_ += lengths_[text];
  }
  const std::vector<int64_t>& keys = attended.empty() ? lengths_ : attended;
  std::vector<int64_t> places(static_cast<size_t>(size_));
  int64_t place = 0;
  for (const std::vector<size_t>& members : grouped(lengths_, unit)) {
    int64_t length = 0;
    bool is_padded = false;
    for (const size_t text : members) {
      length = std::max(length, lengths_[text]);
      is_padded = is_padded || keys[text] != lengths_[members.front()];
    }
    const auto count = static_cast<int64_t>(members.size());
    at::Tensor rows = at::empty({count * length}, at::kLong);
    at::Tensor valid = at::empty({count, 1, 1, length}, at::kBool);
    int64_t* row = rows.mutable_data_ptr<int64_t>();
    bool* is_valid = valid.mutable_data_ptr<bool>();
    for (const size_t text : members) {
      for (int64_t i = 0; i < length; ++i, ++place) {
        const bool is_there = i < lengths_[text];
        *is_valid++ = i < keys[text];
        *row++ = first_rows[text] + (is_there ? i : 0);
        if (is_there) {
          places[static_cast<size_t>(first_rows[text] + i)] = place;
        }
      }
    }
    groups_.push_back(
        {count, length, rows.to(device), is_padded ? valid.to(device) : at::Tensor()});
  }
  are_in_order_ = groups_.size() == 1 && !groups_.front().valid.defined();
  places_ = at::tensor(places, at::kLong).to(device);
}

RaggedRows RaggedRows::padded(const at::Tensor& valid) {
  RaggedRows rows;
  rows.lengths_.assign(static_cast<size_t>(valid.size(0)), valid.size(1));
  rows.longest_ = valid.size(1);
  rows.size_ = valid.numel();
  rows.groups_.push_back({valid.size(0), valid.size(1), {}, valid.unsqueeze(1).unsqueeze(1)});
  rows.are_in_order_ = true;
  return rows;
}

int64_t RaggedRows::unit_for(at::Device device) {
  return device.is_cpu() ? 1 : kGpuUnit;
}

at::Tensor RaggedRows::take(const at::Tensor& x, const Group& group) const {
  const at::Tensor rows = are_in_order_ ? x : x.index_select(0, group.rows);
  return rows.unflatten(0, {group.count, group.length});
}

at::Tensor RaggedRows::put_back(const std::vector<at::Tensor>& parts) const {
  if (are_in_order_) {
    return parts.front().flatten(0, 1);
  }
  std::vector<at::Tensor> rows;
  rows.reserve(parts.size());
  for (const at::Tensor& part : parts) {
    rows.push_back(part.flatten(0, 1));
  }
  return at::cat(rows, 0).index_select(0, places_);
}

at::Tensor ragged_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const RaggedRows& rows, const RaggedAttentionOptions& options) {
  KINORA_CHECK(
      q.dim() == 3 && q.size(0) == rows.size() && k.sizes() == q.sizes() && v.sizes() == q.sizes(),
      kShape, "[ragged_attention] q, k and v must have shape [", rows.size(), ", H, D], got ",
      q.sizes(), ", ", k.sizes(), " and ", v.sizes());
  const at::Tensor& bias = options.distance_bias;
  KINORA_CHECK(
      !bias.defined() || (!options.causal && bias.dim() == 2 && bias.size(0) == q.size(1) &&
                          bias.size(1) % 2 == 1 && bias.size(1) / 2 >= rows.longest() - 1),
      kShape, "[ragged_attention] distance_bias must have shape [", q.size(1),
      ", 2 M - 1] with M of ", rows.longest(), " or more, and no causal mask, got ", bias.sizes());
  std::vector<at::Tensor> parts;
  parts.reserve(rows.groups().size());
  for (const RaggedRows::Group& group : rows.groups()) {
    const auto heads_first = [&](const at::Tensor& x) {
      return rows.take(x, group).transpose(1, 2);  // [b, H, L, D]
    };
    const std::optional<at::Tensor> mask = mask_of(group, options, q.scalar_type());
    const at::Tensor out =
        mask && mask->requires_grad()
            ? composed_attention(heads_first(q), heads_first(k), heads_first(v), *mask,
                                 options.scale)
            : at::scaled_dot_product_attention(heads_first(q), heads_first(k), heads_first(v), mask,
                                               /*dropout_p=*/0.0, options.causal, options.scale);
    parts.push_back(out.transpose(1, 2).flatten(2));  // [b, L, H * D]
  }
  return rows.put_back(parts);
}

}  // namespace kinora::models
