#include "kinora/models/text_encoders/t5_inference.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/models/text_encoders/text_fixture.h"

namespace kinora::models {
namespace t5_inference_test {

class T5InferenceTest : public testing::TestWithParam<const char*> {};

/// All blocks, one after the other, over rows of texts of these lengths.
template <typename RunBlock>
at::Tensor run_blocks(const T5Encoder& encoder, const at::Tensor& x, int64_t longest,
                      const RunBlock& run_block) {
  const at::Tensor buckets = t5_distance_buckets(encoder.config(), longest);
  at::Tensor bias;
  at::Tensor result = x.clone();
  for (const auto& block : encoder.blocks) {
    if (block->has_bias()) {
      bias = block->distance_bias(buckets).contiguous();
    }
    result = run_block(*block, result, bias);
  }
  return result;
}

// On the CPU the kernels' references run.
TEST_P(T5InferenceTest, MatchesTheBlocksForwardForEveryChunk) {
  const at::NoGradGuard no_grad;
  const TextFixture fixture(GetParam());
  T5Encoder encoder(fixture.t5());
  fixture.set_weights(encoder);
  const std::vector<int64_t> lengths = {3, 1, 7, 2, 7};
  const int64_t num_rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const at::Tensor x = formula_values("x", {num_rows, encoder.config().d_model});
  const RaggedRows rows(lengths, at::kCPU, 1);
  const at::Tensor expected =
      run_blocks(encoder, x, 7, [&](const T5Block& block, const at::Tensor& in, const auto& bias) {
        return block.forward(in, rows, bias);
      });
  ops::TextKernels kernels;
  for (const int64_t most_rows : {1, 4, 10, 100}) {
    T5Inference inference(encoder.config(), lengths, at::kCPU, at::kFloat, kernels, most_rows);
    const at::Tensor got = run_blocks(
        encoder, x, 7, [&](const T5Block& block, const at::Tensor& in, const auto& bias) {
          inference.run(block, in, bias);
          return in;
        });
    EXPECT_LT(relative_difference(got, expected), 1e-5) << most_rows;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, T5InferenceTest, testing::Values("t5", "t5_gated", "umt5"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace t5_inference_test
}  // namespace kinora::models
