#include "kinora/optim/factored.h"

#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kinora/ops/optimizer_step.h"

namespace kinora::optim {
namespace {

constexpr double kDecay = -0.8;  // of the share that Adafactor's squares have of the means

/// Some rows of a parameter's gradient, or a part of one row: what a slice may have of it. A vector
/// is a column.
struct Piece {
  at::Tensor grad;  // [rows, columns], a view
  at::Tensor mean;  // of directions, likewise; undefined: the rule keeps none
  int64_t row = 0;
  int64_t column = 0;

  [[nodiscard]] at::Tensor of_rows(const at::Tensor& rows) const {
    return rows.narrow(0, row, grad.size(0));
  }
  [[nodiscard]] at::Tensor of_columns(const at::Tensor& columns) const {
    return columns.narrow(0, column, grad.size(1));
  }
};

struct Parameter {
  std::vector<Piece> pieces;
  int64_t numel = 0;
  int64_t rows = 0;
  int64_t columns = 0;  // 1: its factors are the second moments themselves

  [[nodiscard]] bool is_factored() const { return columns > 1; }
};

std::vector<Piece> pieces_of(const Arena::Part& part, const at::Tensor& mean, int64_t columns) {
  std::vector<Piece> pieces;
  int64_t done = 0;
  for (const kernels::FactoredPiece& piece :
       kernels::cut_pieces(part.begin, part.values.numel(), columns)) {
    const auto view = [&](const at::Tensor& values) {
      return values.narrow(0, done, piece.rows * piece.columns).view({piece.rows, piece.columns});
    };
    pieces.push_back(
        {view(part.values), mean.defined() ? view(mean) : mean, piece.row, piece.column});
    done += piece.rows * piece.columns;
  }
  return pieces;
}

std::vector<Parameter> parameters_of(const Arena& arena) {
  std::vector<Parameter> parameters;
  for (const Bucket& bucket : arena.buckets()) {
    for (const Slot& slot : bucket.slots) {
      const int64_t rows = slot.is_factored() ? slot.shape.front() : slot.numel;
      const int64_t columns = slot.numel / rows;
      const at::Tensor mean = bucket.exp_avg.defined()
                                  ? arena.own_part(slot.path, Role::exp_avg()).values
                                  : at::Tensor();
      parameters.push_back(
          {.pieces = pieces_of(arena.own_part(slot.path, Role::grad()), mean, columns),
           .numel = slot.numel,
           .rows = rows,
           .columns = columns});
    }
  }
  return parameters;
}

/// What a mean keeps in a step, and takes of what is new: fp32 numbers on the device.
struct Shares {
  at::Tensor keep;
  at::Tensor take;
};

/// One step of all parameters, by what ranks have of them.
class Directions {
 public:
  Directions(const Arena& arena, at::Tensor control)
      : arena_(arena),
        control_(std::move(control)),
        parameters_(parameters_of(arena)),
        skips_(ops::skip_of(control_).ne(0)) {}

  [[nodiscard]] Shares adafactor_shares() const {
    const at::Tensor take =
        ops::applied_steps_of(control_).to(at::kDouble).pow(kDecay).to(at::kFloat);
    return {.keep = take.neg().add_(1.0), .take = take};
  }

  [[nodiscard]] Shares shares_of(double decay) const {
    return {.keep = at::full({}, decay, fp32()), .take = at::full({}, 1.0 - decay, fp32())};
  }

  /// Gradients become directions: divided by the roots of their second moments, and clipped.
  void divide_by_second_moments(const Shares& shares) const {
    const at::Tensor multiplier = ops::multiplier_of(control_);
    const at::Tensor factors =
        follow(Role::factors(), shares, kernels::kSquaresEps,
               [&](const Piece& piece) { return piece.grad.mul_(multiplier).square(); });
    const at::Tensor norms = at::zeros({static_cast<int64_t>(parameters_.size())}, fp32());
    int64_t first = 0;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Parameter& parameter = parameters_[i];
      divide_by_roots(parameter, factors, first);
      first += num_means(parameter, Role::factors());
      const at::Tensor mean_square = norms.select(0, static_cast<int64_t>(i));
      for (const Piece& piece : parameter.pieces) {
        mean_square.add_(piece.grad.square().sum(), 1.0 / static_cast<double>(parameter.numel));
      }
    }
    add_over_ranks(norms);
    norms.sqrt_().clamp_min_(1.0);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      for (const Piece& piece : parameters_[i].pieces) {
        piece.grad.div_(norms.select(0, static_cast<int64_t>(i)));
      }
    }
  }

  /// The means of directions follow these.
  void follow_means(const Shares& shares) const {
    for (const Parameter& parameter : parameters_) {
      for (const Piece& piece : parameter.pieces) {
        const at::Tensor now = piece.mean.mul(shares.keep).add_(piece.grad.mul(shares.take));
        piece.mean.copy_(at::where(skips_, piece.mean, now));
      }
    }
  }

  /// Directions become their means, divided by the roots of the instability.
  void divide_means_by_instability(const Shares& shares) const {
    const at::Tensor instability =
        follow(Role::instability(), shares, kernels::kInstabilityEps,
               [](const Piece& piece) { return piece.grad.sub(piece.mean).square_(); });
    int64_t first = 0;
    for (const Parameter& parameter : parameters_) {
      for (const Piece& piece : parameter.pieces) {
        piece.grad.copy_(piece.mean);
      }
      const int64_t count = num_means(parameter, Role::instability());
      if (count > 0) {
        divide_by_roots(parameter, instability, first);
      }
      first += count;
    }
  }

 private:
  [[nodiscard]] at::TensorOptions fp32() const {
    return at::TensorOptions(at::kFloat).device(control_.device());
  }

  void add_over_ranks(const at::Tensor& sums) const {
    const Sharding& sharding = arena_.options().sharding;
    if (sharding.divides()) {
      sharding.group.all_reduce(sums);
    }
  }

  /// Numbers that a role keeps of a parameter: its rows', then its columns'.
  static int64_t num_means(const Parameter& parameter, Role role) {
    if (parameter.is_factored()) {
      return parameter.rows + parameter.columns;
    }
    return role.kind == Role::Kind::kFactors ? parameter.numel : 0;
  }

  /// A role's means of rows and columns follow those of `square_of` pieces; all of them, in turn.
  template <typename SquareOf>
  [[nodiscard]] at::Tensor follow(Role role, const Shares& shares, double eps,
                                  const SquareOf& square_of) const {
    int64_t num_all = 0;
    for (const Bucket& bucket : arena_.buckets()) {
      num_all += bucket.tensor(role).numel();
    }
    const at::Tensor means = at::zeros({num_all}, fp32());
    int64_t first = 0;
    for (const Parameter& parameter : parameters_) {
      const int64_t count = num_means(parameter, role);
      if (count > 0) {
        const at::Tensor rows = means.narrow(0, first, parameter.rows);
        for (const Piece& piece : parameter.pieces) {
          const at::Tensor squares = square_of(piece);
          piece.of_rows(rows).add_(squares.sum(1), 1.0 / static_cast<double>(parameter.columns));
          if (parameter.is_factored()) {
            piece.of_columns(means.narrow(0, first + parameter.rows, parameter.columns))
                .add_(squares.sum(0), 1.0 / static_cast<double>(parameter.rows));
          }
        }
      }
      first += count;
    }
    add_over_ranks(means);
    means.add_(eps);
    first = 0;
    for (const Bucket& bucket : arena_.buckets()) {
      const at::Tensor kept = bucket.tensor(role);
      const at::Tensor part = means.narrow(0, first, kept.numel());
      const at::Tensor now = kept.mul(shares.keep).add_(part.mul_(shares.take));
      kept.copy_(at::where(skips_, kept, now));
      part.copy_(kept);
      first += kept.numel();
    }
    return means;
  }

  /// Gradients over the roots of what `means` have of the parameter from number `first` on.
  static void divide_by_roots(const Parameter& parameter, const at::Tensor& means, int64_t first) {
    if (parameter.pieces.empty()) {
      return;
    }
    const at::Tensor rows = means.narrow(0, first, parameter.rows);
    const at::Tensor by_row = (parameter.is_factored() ? rows.div(rows.mean()) : rows).rsqrt();
    at::Tensor by_column;
    if (parameter.is_factored()) {
      by_column = means.narrow(0, first + parameter.rows, parameter.columns).rsqrt();
    }
    for (const Piece& piece : parameter.pieces) {
      piece.grad.mul_(piece.of_rows(by_row).unsqueeze(1));
      if (by_column.defined()) {
        piece.grad.mul_(piece.of_columns(by_column));
      }
    }
  }

  const Arena& arena_;
  at::Tensor control_;
  std::vector<Parameter> parameters_;
  at::Tensor skips_;  // whether the step is skipped
};

}  // namespace

void make_factored_directions_composed(const Arena& arena, const kernels::FactoredRule& rule,
                                       const at::Tensor& control) {
  const Directions directions(arena, control);
  if (rule.rule == kernels::UpdateRule::kAdafactor) {
    return directions.divide_by_second_moments(directions.adafactor_shares());
  }
  directions.divide_by_second_moments(directions.shares_of(rule.squares));
  directions.follow_means(directions.shares_of(rule.mean));
  directions.divide_means_by_instability(directions.shares_of(rule.instability));
}

}  // namespace kinora::optim
