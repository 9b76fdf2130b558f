#include "kinora/inference/drawing_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/inference/setup.h"
#include "kinora/models/families.h"
#include "kinora/optim/arena.h"
#include "tests/error_of.h"
#include "tests/inference/family_models.h"

namespace kinora::inference {
namespace drawing_memory_test {

using testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

// What a GPU holds and what the host holds are all weights, but for the rooms.
TEST(DrawingMemoryTest, CountsWeightsOnceWhereverTheyLie) {
  for (const std::string& family : family_keys()) {
    SCOPED_TRACE(family);
    const ModelRecipe recipe = tiny_model(family_named(family), at::kCPU, Precision::kFp32).recipe;
    const DrawingMemory here = drawing_memory(recipe, {}, 2);
    const DrawingMemory half = drawing_memory(recipe, {.offload = 0.5}, 2);
    const DrawingMemory all = drawing_memory(recipe, {.offload = 1.0}, 2);
    EXPECT_EQ(here.at_host, 0);
    EXPECT_GT(half.at_host, 0);
    EXPECT_GT(all.at_host, half.at_host);
    EXPECT_GE(all.weights + all.at_host, here.weights);
    EXPECT_GT(here.beside, 0);
  }
}

/// In bf16, of latents of 256 pixels.
ModelRecipe large_dit() {
  ModelRecipe recipe;
  recipe.model.name = "DiT-XL/2";
  recipe.model.num_classes = 1000;
  recipe.model.height = 32;
  recipe.model.width = 32;
  recipe.model.in_channels = 4;
  recipe.model = models::resolved(recipe.model);
  recipe.precision = Precision::kBf16;
  return recipe;
}

// DiT-XL/2's 675 M parameters in bf16, and a forward of 16 samples.
TEST(DrawingMemoryTest, IsAboutThatOfItsParameters) {
  const ModelRecipe recipe = large_dit();
  const DrawingMemory here = drawing_memory(recipe, {}, 16);
  EXPECT_NEAR(static_cast<double>(here.weights) / kMiB, 675.0 * 2.0 * 1e6 / kMiB, 30.0);
  const auto [fitting, exchanges, memory] =
      fitting_weights(recipe, {}, 16, here.needed() - 200 * kMiB);
  EXPECT_FALSE(exchanges);
  EXPECT_GT(fitting.offload, 0.0);
  EXPECT_LT(fitting.offload, 1.0);
  EXPECT_LE(drawing_memory(recipe, fitting, 16).needed(), here.needed() - 200 * kMiB);
  EXPECT_EQ(memory.needed(), drawing_memory(recipe, fitting, 16).needed());
  EXPECT_EQ(fitting_weights(recipe, {}, 16, here.needed()).held.offload, 0.0);
  EXPECT_THAT(error_of(ErrorKind::kMemory, [&] { return fitting_weights(recipe, {}, 16, kMiB); }),
              HasSubstr("smaller --batch"));
}

// Of two experts of 675 M parameters the GPU has one where both do not fit, and blocks wait at the
// host only where one alone does not.
TEST(DrawingMemoryTest, ExpertsAreExchangedBeforeBlocksAreOffloaded) {
  ModelRecipe recipe = large_dit();
  const DrawingMemory one = drawing_memory(recipe, {}, 16);
  recipe.sample.sampling.low_noise = 0.5;
  const DrawingMemory both = drawing_memory(recipe, {}, 16);
  const DrawingMemory exchanged = drawing_memory(recipe, {}, 16, /*exchanges_experts=*/true);
  EXPECT_EQ(both.weights, 2 * one.weights);
  EXPECT_EQ(both.at_host, 0);
  EXPECT_EQ(exchanged.weights, one.weights);
  EXPECT_NEAR(static_cast<double>(exchanged.at_host), static_cast<double>(one.weights),
              20.0 * kMiB);
  EXPECT_EQ(exchanged.beside, both.beside);
  EXPECT_LT(exchanged.beside, one.beside) << "steps of one model are recorded as a CUDA graph";

  const auto fitting = [&recipe](int64_t bytes, bool exchanges = false) {
    return fitting_weights(recipe, {.offload = 0.7}, 16, bytes, exchanges);
  };
  const FittingWeights whole = fitting(both.needed());
  EXPECT_FALSE(whole.exchange_experts);
  EXPECT_EQ(whole.held.offload, 0.0);
  for (const FittingWeights& half : {fitting(both.needed() - 1), fitting(exchanged.needed()),
                                     fitting(both.needed(), /*exchanges=*/true)}) {
    EXPECT_TRUE(half.exchange_experts);
    EXPECT_EQ(half.held.offload, 0.0);
    EXPECT_EQ(half.memory.needed(), exchanged.needed());
  }
  const FittingWeights less = fitting(exchanged.needed() - 200 * kMiB);
  EXPECT_TRUE(less.exchange_experts);
  EXPECT_GT(less.held.offload, 0.0);
  EXPECT_LT(less.held.offload, 0.5);
  EXPECT_LE(less.memory.needed(), exchanged.needed() - 200 * kMiB);
  EXPECT_GT(less.memory.at_host, exchanged.at_host) << "what is offloaded, of both";
}

// What a step cache keeps of DiT-XL/2's tokens: each time 16 x 256 x 1152 numbers of 2 or 4 bytes.
TEST(DrawingMemoryTest, CountsWhatStepCachesKeep) {
  using Kind = diffusion::StepCacheConfig::Kind;
  ModelRecipe recipe = large_dit();
  const auto beside = [&recipe](Kind kind, int64_t order, int64_t patches = 1) {
    recipe.sample.sampling.cache = {.kind = kind, .order = order, .patches = patches};
    return drawing_memory(recipe, {}, 16).beside;
  };
  const int64_t without = beside(Kind::kNone, 1);
  const int64_t graphs = 2;  // one evaluation before the recording, and the graph's own
  const int64_t tokens = graphs * 16 * 256 * 1152 * 2;
  for (const auto& [kind, watched] : {std::pair(Kind::kFirstBlock, 1), std::pair(Kind::kTea, 0)}) {
    const int64_t last = beside(kind, 0);
    EXPECT_GE(last - without, tokens);  // beside what an evaluation has anyway
    EXPECT_GE(beside(kind, 1) - last, (1 + watched) * tokens);
    EXPECT_LE(beside(kind, 1) - last, (1 + watched) * 3 * tokens);
  }
  EXPECT_GT(beside(Kind::kPab, 1), without + 10 * tokens) << "28 blocks of attention";
  EXPECT_GT(beside(Kind::kNone, 1, 4), without + 10 * tokens) << "keys and values";
}

}  // namespace drawing_memory_test
}  // namespace kinora::inference
