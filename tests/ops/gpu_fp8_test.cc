// The scales of fp8 on a GPU: another run goes on from their state as the first one does.
#include "kinora/ops/fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/ops/token_attention.h"

namespace kinora::ops {
namespace gpu_fp8_test {

const at::Device kGpu(at::kCUDA, 0);
constexpr int64_t kNumLinears = 3;
constexpr int64_t kRows = 64;  // cuBLASLt refuses some smaller products
constexpr int64_t kWidth = 64;

/// [kRows, kWidth] in bf16, of magnitudes that differ from step to step and linear to linear.
at::Tensor matrix(int64_t step, int64_t number, bool is_gradient) {
  const double size = std::exp(std::sin(static_cast<double>(3 * step + number))) *
                      (is_gradient ? 1e-3 : 1.0) * static_cast<double>(number + 1);
  const at::Tensor values = at::arange(kRows * kWidth, at::device(kGpu).dtype(at::kFloat));
  return ((values * 0.37).sin() * size).view({kRows, kWidth}).to(at::kBFloat16);
}

struct Fp8Run {
  Fp8Run() {
    kernels.use_fp8(std::make_unique<Fp8>(kNumLinears, kGpu));
    for (int64_t number = 0; number < kNumLinears; ++number) {
      LinearWeights linear;
      linear.weight = matrix(0, number, false);
      linear.number = number;
      linears.push_back(linear);
    }
  }

  /// The 8-bit copies of a step, inputs and gradients of all linears; [] while it only measures.
  std::vector<at::Tensor> step(int64_t step) {
    kernels.fp8()->begin_step();
    kernels.fp8()->know(linears);
    std::vector<at::Tensor> copies;
    for (int64_t number = 0; number < kNumLinears; ++number) {
      for (const bool is_gradient : {false, true}) {
        const Operand operand =
            kernels.operand(matrix(step, number, is_gradient), number, is_gradient);
        if (operand.fp8.defined()) {
          copies.push_back(operand.fp8);
        }
      }
    }
    return copies;
  }

  [[nodiscard]] Fp8State state() const { return kernels.fp8()->state().value(); }

  BlockKernels kernels{{}, kGpu, at::kBFloat16, /*deterministic=*/true};
  std::vector<LinearWeights> linears;
};

class GpuFp8Test : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_available() || !Fp8::possible(kGpu)) {
      GTEST_SKIP() << "there is no GPU with fp8 products";
    }
  }
};

void expect_equal(const Fp8State& left, const Fp8State& right) {
  EXPECT_TRUE(at::equal(left.amax, right.amax));
  EXPECT_TRUE(at::equal(left.history, right.history));
  EXPECT_TRUE(at::equal(left.scale, right.scale));
}

TEST_F(GpuFp8Test, RestoredScalesGoOnAsTheyWould) {
  for (const int64_t stop : {1, 2, 5, 20}) {  // before and after the history is full
    Fp8Run whole;
    for (int64_t step = 0; step < stop; ++step) {
      (void)whole.step(step);
    }
    const Fp8State state = whole.state();
    EXPECT_EQ(fault_of(state), "");
    Fp8Run resumed;
    EXPECT_TRUE(resumed.kernels.fp8()->is_calibrating());
    EXPECT_FALSE(resumed.kernels.fp8()->state().has_value());
    resumed.kernels.fp8()->restore(state);
    expect_equal(resumed.state(), state);
    for (int64_t step = stop; step < stop + 18; ++step) {
      const std::vector<at::Tensor> expected = whole.step(step);
      const std::vector<at::Tensor> got = resumed.step(step);
      ASSERT_EQ(expected.size(), 2U * kNumLinears);
      ASSERT_EQ(got.size(), expected.size()) << "the resumed run must not measure first";
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(at::equal(got[i], expected[i])) << "copy " << i << " of step " << step;
      }
    }
    expect_equal(resumed.state(), whole.state());
  }
}

TEST_F(GpuFp8Test, StatesThatDoNotFitAreRefused) {
  Fp8Run run;
  (void)run.step(0);
  const Fp8State sound = run.state();
  const auto refusal = [&run](const Fp8State& state) {
    try {
      run.kernels.fp8()->restore(state);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  Fp8State state = {sound.amax.slice(0, 0, 2), sound.history.slice(0, 0, 2),
                    sound.scale.slice(0, 0, 2)};
  EXPECT_NE(refusal(state).find("must be of 3 linears, got 2"), std::string::npos);
  state = sound;
  state.scale = sound.scale.clone();
  state.scale[0][0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(refusal(state).find("scale must be finite and positive"), std::string::npos);
  expect_equal(run.state(), sound);
}

/// Attention of a deterministic run is not timed: what is taken is a matter of the shape alone.
TEST_F(GpuFp8Test, DeterministicAttentionIsNotTimed) {
  Fp8Run run;
  const at::Tensor qkv = matrix(0, 0, false).view({2, kRows / 2, kWidth}).repeat({1, 1, 3});
  const at::Tensor tokens = qkv.unsqueeze(2);  // [G, N, M, 3 C]
  const AttendedTokens forward = attend_tokens(run.kernels, tokens, 1, {}, /*keep=*/true);
  ASSERT_TRUE(forward.lse.defined());
  (void)attend_tokens_backward(run.kernels, at::ones_like(forward.out), tokens, forward, 1, {});
  const std::string parts = run.kernels.describe();
  EXPECT_NE(parts.find("forward "), std::string::npos) << parts;
  EXPECT_NE(parts.find("backward "), std::string::npos) << parts;
  EXPECT_EQ(parts.find(" ms"), std::string::npos) << parts;
}

}  // namespace gpu_fp8_test
}  // namespace kinora::ops
