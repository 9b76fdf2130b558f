#include "kinora/optim/factored.h"

#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "kinora/ops/optimizer_step.h"

namespace kinora::optim {
namespace {

constexpr double kDecay = -0.8;  // of the share that a step's squares have of the means
constexpr double kEps = 1e-30;   // added to squares

/// Some rows of a parameter's gradient, or a part of one row: what a slice may have of it. A vector
/// is a column.
struct Piece {
  at::Tensor grad;  // [rows, columns], a view
  int64_t row = 0;
  int64_t column = 0;

  [[nodiscard]] at::Tensor of_rows(const at::Tensor& rows) const {
    return rows.narrow(0, row, grad.size(0));
  }
  [[nodiscard]] at::Tensor of_columns(const at::Tensor& columns) const {
    return columns.narrow(0, column, grad.size(1));
  }
};

/// A parameter with its place among the factors of all.
struct Parameter {
  std::vector<Piece> pieces;
  int64_t numel = 0;
  int64_t rows = 0;
  int64_t columns = 0;  // 1: its factors are the second moments themselves
  int64_t first_factor = 0;

  [[nodiscard]] bool is_factored() const { return columns > 1; }
  [[nodiscard]] at::Tensor of_rows(const at::Tensor& factors) const {
    return factors.narrow(0, first_factor, rows);
  }
  [[nodiscard]] at::Tensor of_columns(const at::Tensor& factors) const {
    return factors.narrow(0, first_factor + rows, columns);
  }
};

std::vector<Piece> pieces_of(const Arena::Part& part, int64_t columns) {
  std::vector<Piece> pieces;
  const int64_t count = part.values.numel();
  for (int64_t done = 0; done < count;) {
    const int64_t row = (part.begin + done) / columns;
    const int64_t column = (part.begin + done) % columns;
    const bool is_whole = column == 0 && count - done >= columns;
    const int64_t rows = is_whole ? (count - done) / columns : 1;
    const int64_t width = is_whole ? columns : std::min(columns - column, count - done);
    pieces.push_back({part.values.narrow(0, done, rows * width).view({rows, width}), row, column});
    done += rows * width;
  }
  return pieces;
}

std::vector<Parameter> parameters_of(const Arena& arena) {
  std::vector<Parameter> parameters;
  int64_t factors = 0;
  for (const Bucket& bucket : arena.buckets()) {
    for (const Slot& slot : bucket.slots) {
      const int64_t rows = slot.is_factored() ? slot.shape.front() : slot.numel;
      const int64_t columns = slot.numel / rows;
      parameters.push_back({.pieces = pieces_of(arena.own_part(slot.path, Role::grad()), columns),
                            .numel = slot.numel,
                            .rows = rows,
                            .columns = columns,
                            .first_factor = factors});
      factors += slot.num_factors();
    }
  }
  return parameters;
}

}  // namespace

void make_factored_directions(const Arena& arena, const at::Tensor& control) {
  const Sharding& sharding = arena.options().sharding;
  const auto add_over_ranks = [&sharding](const at::Tensor& sums) {
    if (sharding.divides()) {
      sharding.group.all_reduce(sums);
    }
  };
  const std::vector<Parameter> parameters = parameters_of(arena);
  int64_t num_factors = 0;
  for (const Bucket& bucket : arena.buckets()) {
    num_factors += bucket.factors.numel();
  }
  const auto fp32 = at::TensorOptions(at::kFloat).device(control.device());

  const at::Tensor means = at::zeros({num_factors}, fp32);  // of the squares
  const at::Tensor multiplier = ops::multiplier_of(control);
  for (const Parameter& parameter : parameters) {
    const at::Tensor rows = parameter.of_rows(means);
    for (const Piece& piece : parameter.pieces) {
      const at::Tensor squares = piece.grad.mul_(multiplier).square();
      piece.of_rows(rows).add_(squares.sum(1), 1.0 / static_cast<double>(parameter.columns));
      if (parameter.is_factored()) {
        piece.of_columns(parameter.of_columns(means))
            .add_(squares.sum(0), 1.0 / static_cast<double>(parameter.rows));
      }
    }
  }
  add_over_ranks(means);
  means.add_(kEps);

  const at::Tensor share =
      ops::applied_steps_of(control).to(at::kDouble).pow(kDecay).to(at::kFloat);
  const at::Tensor rest = share.neg().add_(1.0);
  const at::Tensor skips = ops::skip_of(control).ne(0);
  const at::Tensor factors = at::zeros({num_factors}, fp32);
  int64_t first = 0;
  for (const Bucket& bucket : arena.buckets()) {
    const int64_t count = bucket.factors.numel();
    const at::Tensor now = bucket.factors.mul(rest).add_(means.narrow(0, first, count).mul_(share));
    at::Tensor(bucket.factors).copy_(at::where(skips, bucket.factors, now));
    factors.narrow(0, first, count).copy_(bucket.factors);
    first += count;
  }

  const at::Tensor norms = at::zeros({static_cast<int64_t>(parameters.size())}, fp32);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    if (parameter.pieces.empty()) {
      continue;
    }
    const at::Tensor rows = parameter.of_rows(factors);
    const at::Tensor by_row = (parameter.is_factored() ? rows.div(rows.mean()) : rows).rsqrt();
    const at::Tensor by_column =
        parameter.is_factored() ? parameter.of_columns(factors).rsqrt() : at::Tensor();
    const at::Tensor mean_square = norms.select(0, static_cast<int64_t>(i));
    for (const Piece& piece : parameter.pieces) {
      piece.grad.mul_(piece.of_rows(by_row).unsqueeze(1));
      if (by_column.defined()) {
        piece.grad.mul_(piece.of_columns(by_column));
      }
      mean_square.add_(piece.grad.square().sum(), 1.0 / static_cast<double>(parameter.numel));
    }
  }
  add_over_ranks(norms);
  norms.sqrt_().clamp_min_(1.0);
  for (size_t i = 0; i < parameters.size(); ++i) {
    for (const Piece& piece : parameters[i].pieces) {
      piece.grad.div_(norms.select(0, static_cast<int64_t>(i)));
    }
  }
}

}  // namespace kinora::optim
