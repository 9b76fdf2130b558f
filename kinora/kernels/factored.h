#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kinora/core/host_device.h"
#include "kinora/core/rounding.h"
#include "kinora/kernels/instruction_set.h"
#include "kinora/kernels/optimizer.h"

/// The first half of the updates of Adafactor and CAME (UpdateRule) on flat buckets: gradients
/// become directions, which update_weights follows. In the order of operations of
/// transformers.Adafactor(relative_step=False, scale_parameter=False, clip_threshold=1.0,
/// eps=(1e-30, ...)) and of the authors' came_pytorch.CAME(eps=(1e-30, 1e-16),
/// clip_threshold=1.0).
///
/// A parameter is a matrix G [rows, columns], of which the second moment is r_i c_j / mean(r) with
/// the mean squares r of its rows and c of its columns. Or it is a vector, which here is one row:
/// the means of its columns are the second moments themselves. A rank's slice has pieces of it. A
/// piece is cut into tiles of kTileRows x kTileColumns, numbered through all parameters, whose
/// partial sums are added in a fixed order: the same pieces give the same bits, on CPU and GPU,
/// whatever the number of threads.
///
/// An update is a few passes (FactoredPass), each over all tiles, means or parameters in one
/// launch; between them ranks that divide the state add up numbers. What a step decides is read
/// from StepControl; with control.skip no pass does anything.
///
/// This header has what CPU and GPU share and the CPU kernels; kernels/cuda/factored.h the
/// launcher.
namespace kinora::kernels {

inline constexpr int kTileRows = 64;
inline constexpr int kTileColumns = 256;
/// Rows of a tile that are added side by side, and columns of a row: a GPU's warps and lanes.
inline constexpr int kTileWarps = 8;
inline constexpr int kTileLanes = 32;
/// Numbers of a parameter that are added side by side: the threads of a GPU's block.
inline constexpr int kFactoredThreads = 256;

inline constexpr float kSquaresEps = 1e-30F;  ///< added to means of squares of gradients
inline constexpr float kInstabilityEps = 1e-16F;

/// Decays of the means.
struct FactoredRule {
  UpdateRule rule = UpdateRule::kAdafactor;  ///< or kCame, of which the decays are
  double mean = 0.9;                         ///< of directions
  double squares = 0.999;
  double instability = 0.9999;
};

/// Some rows of a parameter, or a part of one row.
struct FactoredPiece {
  float* grad = nullptr;  ///< in: the gradient; out: the direction; [rows, columns]
  float* mean = nullptr;  ///< in and out, likewise: the mean of directions; null: kAdafactor
  int64_t parameter = 0;  ///< its number
  int64_t row = 0;        ///< of its first element in the parameter
  int64_t column = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  // number_factored sets the rest.
  int64_t first_tile = 0;
  int64_t first_row_sum = 0;     ///< of FactoredTable::row_sums
  int64_t first_column_sum = 0;  ///< of FactoredTable::column_sums

  [[nodiscard]] KINORA_HOST_DEVICE int64_t row_tiles() const { return ceil_div(rows, kTileRows); }
  [[nodiscard]] KINORA_HOST_DEVICE int64_t column_tiles() const {
    return ceil_div(columns, kTileColumns);
  }
};

struct FactoredParameter {
  float* factors = nullptr;      ///< in and out: means of rows, then of columns
  float* instability = nullptr;  ///< in and out, likewise; null: a vector, or kAdafactor
  int64_t rows = 0;
  int64_t columns = 0;
  bool is_matrix = false;  ///< false: rows is 1, of which there is no mean
  // number_factored sets the rest.
  int64_t first_mean = 0;  ///< of FactoredTable::means
  int64_t first_piece = 0;
  int64_t num_pieces = 0;
  int64_t first_tile = 0;
  int64_t num_tiles = 0;

  [[nodiscard]] KINORA_HOST_DEVICE int64_t num_row_means() const { return is_matrix ? rows : 0; }
  [[nodiscard]] KINORA_HOST_DEVICE int64_t num_means() const { return num_row_means() + columns; }
};

/// How many there are of a table's arrays.
struct FactoredCounts {
  int64_t tiles = 0;
  int64_t row_sums = 0;
  int64_t column_sums = 0;
  int64_t means = 0;
};

/// All pieces of all parameters, in their order, and scratch. No piece is empty; parameters may
/// have none.
struct FactoredTable {
  const FactoredPiece* pieces = nullptr;
  int64_t num_pieces = 0;
  const FactoredParameter* parameters = nullptr;
  int64_t num_parameters = 0;
  FactoredCounts counts = {};
  float* row_sums = nullptr;     ///< of each piece [rows, column_tiles]
  float* column_sums = nullptr;  ///< of each piece [row_tiles, columns]
  float* tile_sums = nullptr;    ///< [tiles]
  float* means = nullptr;        ///< of all parameters: new ones, then the reciprocal roots of them
  float* mean_squares = nullptr;  ///< of the directions of each parameter
};

/// What passes_of puts one after the other. Where ranks divide the state, they add up `means` after
/// kMeanSquares and kMeanInstability, and `mean_squares` after kMeanDirections.
enum class FactoredPass : uint8_t {
  kSumSquares,        ///< over tiles: row_sums and column_sums of squares of gradients
  kMeanSquares,       ///< over means: what this rank has of `means`
  kFollowSquares,     ///< over parameters: factors follow `means`, which become their roots
  kSumDirections,     ///< over tiles: tile_sums of squares of directions
  kMeanDirections,    ///< over parameters: what this rank has of `mean_squares`
  kClip,              ///< over tiles: grad = direction
  kFollowDirections,  ///< over tiles: `mean` follows directions, and of the squares of what lies
                      ///< between the two row_sums and column_sums
  kMeanInstability,   ///< as with squares
  kFollowInstability,
  kTrust,  ///< over tiles: grad = `mean` over the root of the instability
};

/// Of kAdafactor or kCame.
[[nodiscard]] std::span<const FactoredPass> passes_of(UpdateRule rule);

/// The passes, by what they go over.
KINORA_HOST_DEVICE constexpr bool is_of_tiles(FactoredPass pass) {
  return pass == FactoredPass::kSumSquares || pass == FactoredPass::kSumDirections ||
         pass == FactoredPass::kClip || pass == FactoredPass::kFollowDirections ||
         pass == FactoredPass::kTrust;
}
KINORA_HOST_DEVICE constexpr bool is_of_means(FactoredPass pass) {
  return pass == FactoredPass::kMeanSquares || pass == FactoredPass::kMeanInstability;
}

/// What passes over tiles read, write and add up.
KINORA_HOST_DEVICE constexpr bool reads_grad(FactoredPass pass) {
  return pass != FactoredPass::kTrust;
}
KINORA_HOST_DEVICE constexpr bool writes_grad(FactoredPass pass) {
  return pass == FactoredPass::kClip || pass == FactoredPass::kTrust;
}
KINORA_HOST_DEVICE constexpr bool reads_mean(FactoredPass pass) {
  return pass == FactoredPass::kFollowDirections || pass == FactoredPass::kTrust;
}
KINORA_HOST_DEVICE constexpr bool writes_mean(FactoredPass pass) {
  return pass == FactoredPass::kFollowDirections;
}
KINORA_HOST_DEVICE constexpr bool reads_roots(FactoredPass pass) {
  return pass != FactoredPass::kSumSquares;
}
KINORA_HOST_DEVICE constexpr bool sums_rows(FactoredPass pass) {
  return pass == FactoredPass::kSumSquares || pass == FactoredPass::kFollowDirections;
}

/// What a pass goes over: tiles, means or parameters.
[[nodiscard]] int64_t num_items(FactoredPass pass, const FactoredTable& table);

/// Elements [begin, begin + count) of a parameter of rows of `columns` elements: a part of a row,
/// whole rows, a part of a row; each where there is one. Without pointers.
[[nodiscard]] std::vector<FactoredPiece> cut_pieces(int64_t begin, int64_t count, int64_t columns);

/// Numbers tiles, sums and means. `pieces` come in the order of their parameters.
FactoredCounts number_factored(std::span<FactoredPiece> pieces,
                               std::span<FactoredParameter> parameters);

/// What a mean keeps in a step, and takes of what is new.
struct FactoredShares {
  float keep;
  float take;
};

KINORA_HOST_DEVICE inline FactoredShares shares_of(double decay) {
  return {static_cast<float>(decay), static_cast<float>(1.0 - decay)};
}

/// Of what kFollowSquares or kFollowInstability follows.
KINORA_HOST_DEVICE inline FactoredShares shares_of(FactoredPass pass, const FactoredRule& rule,
                                                   const StepControl& control) {
  if (pass == FactoredPass::kFollowInstability) {
    return shares_of(rule.instability);
  }
  if (rule.rule == UpdateRule::kCame) {
    return shares_of(rule.squares);
  }
  const auto take = static_cast<float>(pow(static_cast<double>(control.applied_steps), -0.8));
  return {1.0F - take, take};
}

/// The last item whose number kFirst is at most `number`; these rise.
template <auto kFirst, typename Item>
KINORA_HOST_DEVICE inline const Item& item_of(const Item* items, int64_t count, int64_t number) {
  int64_t first = 0;
  int64_t last = count - 1;
  while (first < last) {
    const int64_t middle = (first + last + 1) / 2;
    if (items[middle].*kFirst <= number) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return items[first];
}

/// A tile: where in the arrays it begins, and how large it is.
struct FactoredTile {
  float* grad;
  float* mean;
  int64_t stride;  ///< from one row to the next
  int rows;
  int columns;
  const float* row_roots;     ///< null: all 1
  const float* column_roots;  ///< likewise
  float* row_sums;            ///< row_stride apart
  int64_t row_stride;
  float* column_sums;
  float mean_square;  ///< of the parameter's directions
};

KINORA_HOST_DEVICE inline FactoredTile factored_tile(FactoredPass pass, const FactoredTable& table,
                                                     int64_t number) {
  const FactoredPiece& piece =
      item_of<&FactoredPiece::first_tile>(table.pieces, table.num_pieces, number);
  const FactoredParameter& parameter = table.parameters[piece.parameter];
  const int64_t column_tiles = piece.column_tiles();
  const int64_t row_tile = (number - piece.first_tile) / column_tiles;
  const int64_t column_tile = (number - piece.first_tile) % column_tiles;
  const int64_t row = row_tile * kTileRows;
  const int64_t column = column_tile * kTileColumns;
  const int64_t place = row * piece.columns + column;
  const auto at_most = [](int most, int64_t count) {
    return count < most ? static_cast<int>(count) : most;
  };
  const float* roots = table.means + parameter.first_mean;
  // Vectors have no instability: their means are the directions.
  const bool has_columns = parameter.is_matrix || pass != FactoredPass::kTrust;
  return {
      .grad = piece.grad + place,
      .mean = reads_mean(pass) ? piece.mean + place : nullptr,
      .stride = piece.columns,
      .rows = at_most(kTileRows, piece.rows - row),
      .columns = at_most(kTileColumns, piece.columns - column),
      .row_roots = parameter.is_matrix ? roots + piece.row + row : nullptr,
      .column_roots =
          has_columns ? roots + parameter.num_row_means() + piece.column + column : nullptr,
      .row_sums = table.row_sums + piece.first_row_sum + row * column_tiles + column_tile,
      .row_stride = column_tiles,
      .column_sums = table.column_sums + piece.first_column_sum + row_tile * piece.columns + column,
      .mean_square = table.mean_squares[piece.parameter]};
}

/// What an element's computation in passes over tiles reads besides its roots.
struct FactoredScalars {
  float multiplier;
  float norm;  ///< what directions are divided by: their root mean square, if that is above 1
  FactoredShares mean;
};

KINORA_HOST_DEVICE inline FactoredScalars factored_scalars(const FactoredRule& rule,
                                                           const StepControl& control,
                                                           float mean_square) {
  const float root = sqrtf(mean_square);
  return {control.multiplier, root < 1.0F ? 1.0F : root, shares_of(rule.mean)};
}

/// One element in a pass over tiles: what writes_grad and writes_mean say, and the term that it
/// adds to sums, or 0.
template <FactoredPass kPass>
KINORA_HOST_DEVICE inline float factored_element(const FactoredScalars& scalars, float row_root,
                                                 float column_root, float* grad, float* mean) {
  if constexpr (kPass == FactoredPass::kTrust) {
    *grad = *mean * row_root * column_root;
    return 0.0F;
  } else {
    const float g = *grad * scalars.multiplier;
    if constexpr (kPass == FactoredPass::kSumSquares) {
      return g * g;
    }
    const float direction = g * row_root * column_root;
    if constexpr (kPass == FactoredPass::kSumDirections) {
      return direction * direction;
    }
    const float clipped = direction / scalars.norm;
    if constexpr (kPass == FactoredPass::kClip) {
      *grad = clipped;
      return 0.0F;
    }
    const float now = *mean * scalars.mean.keep + clipped * scalars.mean.take;
    *mean = now;
    return (clipped - now) * (clipped - now);
  }
}

/// What this rank has of the mean of a row or column: of the sums of tiles, in their order.
KINORA_HOST_DEVICE inline float factored_mean(const FactoredTable& table, int64_t number) {
  const FactoredParameter& parameter =
      item_of<&FactoredParameter::first_mean>(table.parameters, table.num_parameters, number);
  const int64_t place = number - parameter.first_mean;
  const bool is_row = place < parameter.num_row_means();
  double sum = 0.0;
  for (int64_t k = 0; k < parameter.num_pieces; ++k) {
    const FactoredPiece& piece = table.pieces[parameter.first_piece + k];
    const int64_t tiles = is_row ? piece.column_tiles() : piece.row_tiles();
    const int64_t own =
        is_row ? place - piece.row : place - parameter.num_row_means() - piece.column;
    if (own < 0 || own >= (is_row ? piece.rows : piece.columns)) {
      continue;
    }
    const float* sums = is_row ? table.row_sums + piece.first_row_sum + own * tiles
                               : table.column_sums + piece.first_column_sum + own;
    for (int64_t i = 0; i < tiles; ++i) {
      sum += sums[is_row ? i : i * piece.columns];
    }
  }
  return static_cast<float>(sum / static_cast<double>(is_row ? parameter.columns : parameter.rows));
}

/// Number `place` of a parameter's means follows what is new, and is returned.
KINORA_HOST_DEVICE inline float follow_mean(float* kept, const float* means, int64_t place,
                                            const FactoredShares& shares, float eps) {
  const float now = kept[place] * shares.keep + (means[place] + eps) * shares.take;
  kept[place] = now;
  return now;
}

/// Correctly rounded on CPU and GPU.
KINORA_HOST_DEVICE inline float reciprocal_root(float value) {
  return 1.0F / sqrtf(value);
}

/// Items [begin, end) of a pass. Results do not depend on how items are divided. By the best
/// instruction set; or by one that this CPU has, with the same bits.
void run_pass(FactoredPass pass, const FactoredTable& table, const FactoredRule& rule,
              const StepControl& control, int64_t begin, int64_t end);
void run_pass(FactoredPass pass, const FactoredTable& table, const FactoredRule& rule,
              const StepControl& control, int64_t begin, int64_t end, InstructionSet set);

}  // namespace kinora::kernels
