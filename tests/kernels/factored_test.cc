#include "kinora/kernels/factored.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "kinora/kernels/instruction_set.h"
#include "tests/kernels/factored_arrays.h"

namespace kinora::kernels {
namespace factored_test {

StepControl step_of(int64_t applied_steps, float multiplier = 1.0F) {
  StepControl control;
  control.applied_steps = applied_steps;
  control.multiplier = multiplier;
  return control;
}

void take_step(const FactoredTable& table, const FactoredRule& rule, const StepControl& control,
               InstructionSet set = best_instruction_set()) {
  for (const FactoredPass pass : passes_of(rule.rule)) {
    run_pass(pass, table, rule, control, 0, num_items(pass, table), set);
  }
}

TEST(CutPiecesTest, WholeRowsLieBetweenPartsOfTwo) {
  const auto cut = [](int64_t begin, int64_t count, int64_t columns) {
    std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>> result;
    for (const FactoredPiece& piece : cut_pieces(begin, count, columns)) {
      result.emplace_back(piece.row, piece.column, piece.rows, piece.columns);
    }
    return result;
  };
  using Pieces = decltype(cut(0, 0, 1));
  EXPECT_EQ(cut(5, 21, 8), (Pieces{{0, 5, 1, 3}, {1, 0, 2, 8}, {3, 0, 1, 2}}));
  EXPECT_EQ(cut(8, 16, 8), (Pieces{{1, 0, 2, 8}}));
  EXPECT_EQ(cut(9, 4, 8), (Pieces{{1, 1, 1, 4}}));
  EXPECT_EQ(cut(9, 0, 8), Pieces{});
}

/// Parameters whose squares of gradients are products of a number a row and a number a column, as
/// the second moments of a matrix are taken to be: then these are exact.
const std::vector<FactoredShape>& shapes() {
  static const std::vector<FactoredShape> kShapes = {
      FactoredShape::whole(0, 1),   FactoredShape::whole(130, 700), FactoredShape::whole(3, 5),
      FactoredShape::whole(500, 2), FactoredShape::whole(0, 300),   FactoredShape::whole(2, 257)};
  return kShapes;
}

void set_products(FactoredArrays& arrays) {
  for (size_t i = 0; i < arrays.grads.size(); ++i) {
    const int64_t columns = shapes()[i].columns;
    for (size_t k = 0; k < arrays.grads[i].size(); ++k) {
      const auto row = static_cast<int64_t>(k) / columns;
      const auto column = static_cast<int64_t>(k) % columns;
      const float size =
          (0.1F + static_cast<float>(row % 7)) * (1.0F + static_cast<float>(column % 5));
      arrays.grads[i][k] = (row + column) % 2 == 0 ? size : -size;
    }
  }
}

// Over the root of their own squares.
TEST(FactoredTest, TheFirstDirectionsOfProductsAreSigns) {
  FactoredArrays arrays(shapes());
  set_products(arrays);
  const std::vector<std::vector<float>> grads = arrays.grads;
  take_step(arrays.table, {}, step_of(1, 0.5F));
  for (size_t i = 0; i < grads.size(); ++i) {
    for (size_t k = 0; k < grads[i].size(); ++k) {
      ASSERT_NEAR(arrays.grads[i][k], std::copysign(1.0F, grads[i][k]), 3e-6) << i << " " << k;
    }
  }
}

// CAME's are clipped to signs s, of which the mean is s (1 - 0.9), and the instability
// (s - 0.1 s)^2 (1 - 0.9999).
TEST(FactoredTest, TheFirstDirectionsOfCameAreTheirMeansOverTheRootOfTheInstability) {
  FactoredArrays arrays(shapes());
  set_products(arrays);
  const std::vector<std::vector<float>> grads = arrays.grads;
  take_step(arrays.table, {.rule = UpdateRule::kCame}, step_of(1, 0.5F));
  for (size_t i = 0; i < grads.size(); ++i) {
    const double size = shapes()[i].rows > 0 ? 0.1 / std::sqrt(0.81 * 1e-4) : 0.1;
    for (size_t k = 0; k < grads[i].size(); ++k) {
      ASSERT_NEAR(arrays.means[i][k], std::copysign(0.1, grads[i][k]), 1e-6) << i << " " << k;
      ASSERT_NEAR(arrays.grads[i][k] / std::copysign(size, grads[i][k]), 1.0, 1e-5)
          << i << " " << k;
    }
  }
}

TEST(FactoredTest, EachInstructionSetGivesTheBitsOfThePlainLoop) {
  const std::vector<FactoredShape> parts = {
      {0, 7, 0, 7}, {70, 600, 333, 40'001}, {0, 900, 1, 897}, {9, 31, 0, 0}, {90, 33, 5, 2000}};
  for (const UpdateRule rule : {UpdateRule::kAdafactor, UpdateRule::kCame}) {
    FactoredArrays plain(parts);
    for (int64_t step = 1; step <= 2; ++step) {
      take_step(plain.table, {.rule = rule}, step_of(step, 0.3F), InstructionSet::kBase);
    }
    for (const InstructionSet set : {InstructionSet::kAvx2, InstructionSet::kAvx512}) {
      if (set > best_instruction_set()) {
        continue;
      }
      FactoredArrays wide(parts);
      for (int64_t step = 1; step <= 2; ++step) {
        take_step(wide.table, {.rule = rule}, step_of(step, 0.3F), set);
      }
      EXPECT_EQ(wide.grads, plain.grads);
      EXPECT_EQ(wide.means, plain.means);
      EXPECT_EQ(wide.factors, plain.factors);
      EXPECT_EQ(wide.instabilities, plain.instabilities);
    }
  }
}

}  // namespace factored_test
}  // namespace kinora::kernels
