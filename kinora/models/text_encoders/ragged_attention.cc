#include "kinora/models/text_encoders/ragged_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "kinora/core/error.h"

// Shapes: T rows of all texts, b texts of a group, L its length, H heads, D channels of a head.

namespace kinora::models {
namespace {

/// Texts of one group have so many scores at most, a head: with a bias they lie in memory. With the
/// 64 heads of T5-XXL in 16 bits that is 256 MiB.
constexpr int64_t kMostScores = int64_t{1} << 21;
constexpr int64_t kGpuUnit = 64;

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// The bias of every query and key, [H, L, L]: row i is the window of `by_distance` [H, 2 M - 1]
/// that begins at distance -i.
at::Tensor bias_matrix(const at::Tensor& by_distance, int64_t length) {
  const int64_t middle = by_distance.size(1) / 2;  // distance 0
  return by_distance.slice(1, middle - (length - 1), middle + length)
      .unfold(1, length, 1)  // [H, L, L], the last row first
      .flip(1);
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

}  // namespace

RaggedRows::RaggedRows(std::vector<int64_t> lengths, at::Device device, int64_t unit)
    : lengths_(std::move(lengths)) {
  std::map<int64_t, std::vector<std::vector<size_t>>> texts;  // by rounded length, in groups
  std::vector<int64_t> first_row;
  for (size_t i = 0; i < lengths_.size(); ++i) {
    const int64_t length = lengths_[i];
    KINORA_CHECK(length >= 1, kShape, "[text] a text must have at least one token, got ", length,
                 " for text ", i);
    const int64_t rounded = round_up(length, unit);
    std::vector<std::vector<size_t>>& groups = texts[rounded];
    const auto most = static_cast<size_t>(std::max<int64_t>(1, kMostScores / (rounded * rounded)));
    if (groups.empty() || groups.back().size() == most) {
      groups.emplace_back();
    }
    groups.back().push_back(i);
    first_row.push_back(size_);
    longest_ = std::max(longest_, length);
    size_ += length;
  }
  std::vector<int64_t> places(static_cast<size_t>(size_));
  int64_t place = 0;
  for (const auto& [rounded, same_length] : texts) {
    for (const std::vector<size_t>& members : same_length) {
      Group group{
          .count = static_cast<int64_t>(members.size()), .length = 0, .rows = {}, .valid = {}};
      bool is_padded = false;
      for (const size_t text : members) {
        is_padded = is_padded || lengths_[text] != lengths_[members.front()];
        group.length = std::max(group.length, lengths_[text]);
      }
      std::vector<int64_t> rows;
      at::Tensor valid = at::empty({group.count, 1, 1, group.length}, at::kBool);
      bool* is_valid = valid.mutable_data_ptr<bool>();
      for (const size_t text : members) {
        for (int64_t i = 0; i < group.length; ++i, ++place) {
          const bool is_there = i < lengths_[text];
          rows.push_back(first_row[text] + (is_there ? i : 0));
          *is_valid++ = is_there;
          if (is_there) {
            places[static_cast<size_t>(rows.back())] = place;
          }
        }
      }
      group.rows = at::tensor(rows, at::kLong).to(device);
      group.valid = is_padded ? valid.to(device) : at::Tensor();
      groups_.push_back(std::move(group));
    }
  }
  places_ = at::tensor(places, at::kLong).to(device);
}

int64_t RaggedRows::unit_for(at::Device device) {
  return device.is_cpu() ? 1 : kGpuUnit;
}

at::Tensor RaggedRows::take(const at::Tensor& x, const Group& group) const {
  const at::Tensor rows = are_in_order() ? x : x.index_select(0, group.rows);
  return rows.unflatten(0, {group.count, group.length});
}

at::Tensor RaggedRows::put_back(const std::vector<at::Tensor>& parts) const {
  if (are_in_order()) {
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
    const at::Tensor out = at::scaled_dot_product_attention(
        heads_first(q), heads_first(k), heads_first(v), mask_of(group, options, q.scalar_type()),
        /*dropout_p=*/0.0, options.causal, options.scale);
    parts.push_back(out.transpose(1, 2).flatten(2));  // [b, L, H * D]
  }
  return rows.put_back(parts);
}

}  // namespace kinora::models
