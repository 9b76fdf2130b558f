#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kinora/core/cuda.h"
#include "kinora/pipelines/staged_copies.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "tests/places.h"

namespace kinora::pipelines {
namespace gpu_streamed_blocks_test {

class GpuStreamedBlocksTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_available()) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
  }
};

// More pieces than buffers, sizes that no piece divides, another type, and copies on top of what
// the current stream still reads.
TEST_F(GpuStreamedBlocksTest, CopiesArriveInOrderWithTheCurrentStream) {
  const at::NoGradGuard no_grad;
  StagedCopies copies(at::kCUDA);
  const auto floats = at::TensorOptions(at::kFloat);
  const at::Tensor to = at::empty({40'000'003}, floats.device(at::kCUDA));
  const at::Tensor narrow = at::empty({5}, floats.device(at::kCUDA).dtype(at::kBFloat16));
  std::vector<at::Tensor> got;
  for (int64_t round = 0; round < 3; ++round) {
    const at::Tensor from = at::arange(to.numel(), floats) + static_cast<double>(round);
    copies.wait_for_current_stream();
    copies.run({{from, to}, {from.narrow(0, 0, 5), narrow}});
    copies.let_current_stream_wait();
    got.push_back(to.clone());
    got.push_back(narrow.clone());
    EXPECT_TRUE(got[got.size() - 2].cpu().equal(from)) << round;
  }
  for (int64_t round = 0; round < 3; ++round) {
    EXPECT_EQ(got[static_cast<size_t>(2 * round + 1)][4].item<double>(),
              4.0 + static_cast<double>(round));
  }
}

TEST_F(GpuStreamedBlocksTest, GiveTheStatesOfAnEncoderInMemory) {
  const at::NoGradGuard no_grad;
  const std::string folder = source_path("tests/pipelines/data/t5_bin").string();
  const auto whole = open_text_encoder(folder, {.device = at::kCUDA});
  const auto streamed = open_text_encoder(folder, {.device = at::kCUDA, .streamed = true});
  const models::TextTokens tokens = {.ids = {3, 1, 2, 5, 4, 1}, .lengths = {4, 2}};
  // Twice, and once not to the end.
  for (const int64_t before_last : {0, 1, 0}) {
    const models::TextLayer layer{.before_last = before_last};
    EXPECT_TRUE(streamed->encode(tokens, layer).states.equal(whole->encode(tokens, layer).states))
        << before_last;
  }
}

}  // namespace gpu_streamed_blocks_test
}  // namespace kinora::pipelines
