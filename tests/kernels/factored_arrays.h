#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kinora/kernels/factored.h"
#include "kinora/kernels/random.h"

namespace kinora::kernels {

/// A matrix, or a vector of rows 0; of which elements [begin, begin + count) are here.
struct FactoredShape {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t begin = 0;
  int64_t count = 0;

  [[nodiscard]] int64_t numel() const { return (rows > 0 ? rows : 1) * columns; }
  [[nodiscard]] static FactoredShape whole(int64_t rows, int64_t columns) {
    return {rows, columns, 0, (rows > 0 ? rows : 1) * columns};
  }
};

/// Everything of some parameters on the host. Gradients are random, and all states begin as zeros.
struct FactoredArrays {
  std::vector<std::vector<float>> grads, means, factors, instabilities;
  std::vector<FactoredPiece> pieces;
  std::vector<FactoredParameter> parameters;
  std::vector<float> row_sums, column_sums, tile_sums, new_means, mean_squares;
  FactoredTable table;

  explicit FactoredArrays(const std::vector<FactoredShape>& shapes) {
    for (const FactoredShape& shape : shapes) {
      const auto count = static_cast<size_t>(shape.count);
      const auto kept = static_cast<size_t>(shape.rows + shape.columns);
      grads.emplace_back(count);
      random_fill(grads.back().data(), shape.count, {4, grads.size(), 1, RandomPurpose::kTest}, 0,
                  Distribution::kNormal, 0.1F);
      means.emplace_back(count);
      factors.emplace_back(kept);
      instabilities.emplace_back(kept);
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      const FactoredShape& shape = shapes[i];
      int64_t done = 0;
      for (FactoredPiece& piece : cut_pieces(shape.begin, shape.count, shape.columns)) {
        piece.grad = grads[i].data() + done;
        piece.mean = means[i].data() + done;
        piece.parameter = static_cast<int64_t>(i);
        done += piece.rows * piece.columns;
        pieces.push_back(piece);
      }
      parameters.push_back({.factors = factors[i].data(),
                            .instability = shape.rows > 0 ? instabilities[i].data() : nullptr,
                            .rows = shape.rows > 0 ? shape.rows : 1,
                            .columns = shape.columns,
                            .is_matrix = shape.rows > 0});
    }
    const FactoredCounts counts = number_factored(pieces, parameters);
    const auto of = [](int64_t count) { return std::vector<float>(static_cast<size_t>(count)); };
    row_sums = of(counts.row_sums);
    column_sums = of(counts.column_sums);
    tile_sums = of(counts.tiles);
    new_means = of(counts.means);
    mean_squares = of(static_cast<int64_t>(parameters.size()));
    table = {.pieces = pieces.data(),
             .num_pieces = static_cast<int64_t>(pieces.size()),
             .parameters = parameters.data(),
             .num_parameters = static_cast<int64_t>(parameters.size()),
             .counts = counts,
             .row_sums = row_sums.data(),
             .column_sums = column_sums.data(),
             .tile_sums = tile_sums.data(),
             .means = new_means.data(),
             .mean_squares = mean_squares.data()};
  }
  FactoredArrays(const FactoredArrays&) = delete;
  FactoredArrays& operator=(const FactoredArrays&) = delete;
};

}  // namespace kinora::kernels
