#include "kinora/kernels/factored.h"

#include <algorithm>

#include "kinora/core/rounding.h"
#include "kinora/kernels/simd.h"

namespace kinora::kernels {
namespace {

constexpr int kRowSteps = kTileColumns / kTileLanes;

/// The sum of kCount numbers, pairwise: as a GPU's threads add them. They are used up.
template <int kCount, typename Number>
[[gnu::always_inline]] inline Number pairwise_sum(Number* values) {
  for (int half = kCount / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      values[i] += values[i + half];
    }
  }
  return values[0];
}

template <FactoredPass kPass>
struct TileBody {
  [[gnu::always_inline]] static void run(const FactoredTable& table, const FactoredRule& rule,
                                         const StepControl& control, int64_t begin, int64_t end) {
    for (int64_t number = begin; number < end; ++number) {
      const FactoredTile tile = factored_tile(kPass, table, number);
      const FactoredScalars scalars = factored_scalars(rule, control, tile.mean_square);
      const float sum = pass_over(tile, scalars);
      if constexpr (kPass == FactoredPass::kSumDirections) {
        table.tile_sums[number] = sum;
      }
    }
  }

 private:
  /// Returns the sum of all terms, in passes that do not sum rows and columns.
  [[gnu::always_inline]] static float pass_over(const FactoredTile& tile,
                                                const FactoredScalars& scalars) {
    float column_roots[kTileColumns];
    const bool has_columns = reads_roots(kPass) && tile.column_roots != nullptr;
    for (int i = 0; i < tile.columns; ++i) {
      column_roots[i] = has_columns ? tile.column_roots[i] : 1.0F;
    }
    float terms[kTileColumns] = {};  // of a row; zeros behind it
    float column_sums[kTileWarps][kTileColumns] = {};
    float sums[kTileWarps][kTileLanes] = {};
    const int steps = ceil_div(tile.columns, kTileLanes);
    for (int row = 0; row < tile.rows; ++row) {
      const bool has_rows = reads_roots(kPass) && tile.row_roots != nullptr;
      compute_row(scalars, tile.columns, has_rows ? tile.row_roots[row] : 1.0F, column_roots,
                  tile.grad + row * tile.stride,
                  reads_mean(kPass) ? tile.mean + row * tile.stride : nullptr, terms);
      if constexpr (sums_rows(kPass)) {
        add(tile.columns, terms, column_sums[row % kTileWarps]);
        float lanes[kTileLanes] = {};
        for (int i = 0; i < steps; ++i) {
          add(kTileLanes, terms + i * kTileLanes, lanes);
        }
        tile.row_sums[row * tile.row_stride] = pairwise_sum<kTileLanes>(lanes);
      } else if constexpr (kPass == FactoredPass::kSumDirections) {
        for (int i = 0; i < steps; ++i) {
          add(kTileLanes, terms + i * kTileLanes, sums[row % kTileWarps]);
        }
      }
    }
    float sum = 0.0F;
    if constexpr (sums_rows(kPass)) {
      for (int warp = 1; warp < kTileWarps; ++warp) {
        add(tile.columns, column_sums[warp], column_sums[0]);
      }
      std::copy(column_sums[0], column_sums[0] + tile.columns, tile.column_sums);
    } else if constexpr (kPass == FactoredPass::kSumDirections) {
      for (float* lanes : sums) {
        sum += pairwise_sum<kTileLanes>(lanes);
      }
    }
    return sum;
  }

  [[gnu::always_inline]] static void compute_row(const FactoredScalars& scalars, int count,
                                                 float row_root,
                                                 const float* __restrict__ column_roots,
                                                 float* __restrict__ grad, float* __restrict__ mean,
                                                 float* __restrict__ terms) {
    const FactoredScalars constants = scalars;  // no aliasing with the arrays
#pragma GCC ivdep
    for (int i = 0; i < count; ++i) {
      terms[i] = factored_element<kPass>(constants, row_root, column_roots[i], grad + i,
                                         reads_mean(kPass) ? mean + i : nullptr);
    }
  }

  [[gnu::always_inline]] static void add(int count, const float* __restrict__ values,
                                         float* __restrict__ sums) {
#pragma GCC ivdep
    for (int i = 0; i < count; ++i) {
      sums[i] += values[i];
    }
  }

  static_assert(kRowSteps * kTileLanes == kTileColumns);
};

/// factors or instability follow the means of one parameter, which become their roots.
void follow(FactoredPass pass, const FactoredTable& table, const FactoredRule& rule,
            const StepControl& control, const FactoredParameter& parameter) {
  const bool is_squares = pass == FactoredPass::kFollowSquares;
  float* kept = is_squares ? parameter.factors : parameter.instability;
  if (kept == nullptr) {
    return;
  }
  const FactoredShares shares = shares_of(pass, rule, control);
  const float eps = is_squares ? kSquaresEps : kInstabilityEps;
  float* means = table.means + parameter.first_mean;
  const int64_t rows = parameter.num_row_means();
  double sums[kFactoredThreads] = {};
  for (int64_t i = 0; i < rows; ++i) {
    sums[i % kFactoredThreads] += follow_mean(kept, means, i, shares, eps);
  }
  const auto mean = static_cast<float>(pairwise_sum<kFactoredThreads>(sums) /
                                       static_cast<double>(parameter.rows));
  for (int64_t i = 0; i < rows; ++i) {
    means[i] = reciprocal_root(kept[i] / mean);
  }
  for (int64_t i = rows; i < parameter.num_means(); ++i) {
    means[i] = reciprocal_root(follow_mean(kept, means, i, shares, eps));
  }
}

float mean_square(const FactoredTable& table, const FactoredParameter& parameter) {
  double sums[kFactoredThreads] = {};
  for (int64_t i = 0; i < parameter.num_tiles; ++i) {
    sums[i % kFactoredThreads] += table.tile_sums[parameter.first_tile + i];
  }
  return static_cast<float>(pairwise_sum<kFactoredThreads>(sums) /
                            static_cast<double>(parameter.rows * parameter.columns));
}

}  // namespace

std::span<const FactoredPass> passes_of(UpdateRule rule) {
  using enum FactoredPass;
  static constexpr FactoredPass kAdafactor[] = {kSumSquares,    kMeanSquares,    kFollowSquares,
                                                kSumDirections, kMeanDirections, kClip};
  static constexpr FactoredPass kCame[] = {kSumSquares,      kMeanSquares,       kFollowSquares,
                                           kSumDirections,   kMeanDirections,    kFollowDirections,
                                           kMeanInstability, kFollowInstability, kTrust};
  return rule == UpdateRule::kCame ? std::span<const FactoredPass>(kCame)
                                   : std::span<const FactoredPass>(kAdafactor);
}

int64_t num_items(FactoredPass pass, const FactoredTable& table) {
  if (is_of_tiles(pass)) {
    return table.counts.tiles;
  }
  return is_of_means(pass) ? table.counts.means : table.num_parameters;
}

std::vector<FactoredPiece> cut_pieces(int64_t begin, int64_t count, int64_t columns) {
  std::vector<FactoredPiece> pieces;
  for (int64_t done = 0; done < count;) {
    FactoredPiece piece;
    piece.row = (begin + done) / columns;
    piece.column = (begin + done) % columns;
    const bool is_whole = piece.column == 0 && count - done >= columns;
    piece.rows = is_whole ? (count - done) / columns : 1;
    piece.columns = is_whole ? columns : std::min(columns - piece.column, count - done);
    done += piece.rows * piece.columns;
    pieces.push_back(piece);
  }
  return pieces;
}

FactoredCounts number_factored(std::span<FactoredPiece> pieces,
                               std::span<FactoredParameter> parameters) {
  FactoredCounts counts;
  size_t next = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    FactoredParameter& parameter = parameters[i];
    parameter.first_mean = counts.means;
    parameter.first_piece = static_cast<int64_t>(next);
    parameter.first_tile = counts.tiles;
    for (; next < pieces.size() && pieces[next].parameter == static_cast<int64_t>(i); ++next) {
      FactoredPiece& piece = pieces[next];
      piece.first_tile = counts.tiles;
      piece.first_row_sum = counts.row_sums;
      piece.first_column_sum = counts.column_sums;
      counts.tiles += piece.row_tiles() * piece.column_tiles();
      counts.row_sums += piece.rows * piece.column_tiles();
      counts.column_sums += piece.row_tiles() * piece.columns;
    }
    parameter.num_pieces = static_cast<int64_t>(next) - parameter.first_piece;
    parameter.num_tiles = counts.tiles - parameter.first_tile;
    counts.means += parameter.num_means();
  }
  return counts;
}

void run_pass(FactoredPass pass, const FactoredTable& table, const FactoredRule& rule,
              const StepControl& control, int64_t begin, int64_t end) {
  run_pass(pass, table, rule, control, begin, end, best_instruction_set());
}

void run_pass(FactoredPass pass, const FactoredTable& table, const FactoredRule& rule,
              const StepControl& control, int64_t begin, int64_t end, InstructionSet set) {
  if (control.skip != 0) {
    return;
  }
  const auto run_tiles = [&]<FactoredPass kPass> {
    run_simd_by<TileBody<kPass>>(set, table, rule, control, begin, end);
  };
  switch (pass) {
    case FactoredPass::kSumSquares:
      return run_tiles.template operator()<FactoredPass::kSumSquares>();
    case FactoredPass::kSumDirections:
      return run_tiles.template operator()<FactoredPass::kSumDirections>();
    case FactoredPass::kClip:
      return run_tiles.template operator()<FactoredPass::kClip>();
    case FactoredPass::kFollowDirections:
      return run_tiles.template operator()<FactoredPass::kFollowDirections>();
    case FactoredPass::kTrust:
      return run_tiles.template operator()<FactoredPass::kTrust>();
    case FactoredPass::kMeanSquares:
    case FactoredPass::kMeanInstability:
      for (int64_t i = begin; i < end; ++i) {
        table.means[i] = factored_mean(table, i);
      }
      return;
    case FactoredPass::kFollowSquares:
    case FactoredPass::kFollowInstability:
      for (int64_t i = begin; i < end; ++i) {
        follow(pass, table, rule, control, table.parameters[i]);
      }
      return;
    case FactoredPass::kMeanDirections:
      for (int64_t i = begin; i < end; ++i) {
        table.mean_squares[i] = mean_square(table, table.parameters[i]);
      }
      return;
  }
}

}  // namespace kinora::kernels
