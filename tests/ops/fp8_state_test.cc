#include "kinora/ops/fp8_state.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

namespace kinora::ops {
namespace fp8_state_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Fp8State sound() {
  return {at::ones({3, 2}), at::zeros({3, 2, kFp8History}), at::ones({3, 2})};
}

TEST(Fp8State, MagnitudesOfTheLastStepMayBeAnything) {
  Fp8State state = sound();
  EXPECT_EQ(fault_of(state), "");
  state.amax[0][0] = kInfinity;
  state.amax[2][1] = kNan;
  EXPECT_EQ(fault_of(state), "") << "what does not enter the history does no harm";
}

TEST(Fp8State, OtherShapesAndTypesAreFaults) {
  EXPECT_EQ(fault_of({}), "amax must be F32 [0, 2], got nothing");
  Fp8State state = sound();
  state.history = at::zeros({3, 2, 8});
  EXPECT_EQ(fault_of(state), "history must be F32 [3, 2, 16], got Float [3, 2, 8]");
  state = sound();
  state.scale = at::ones({2, 2});
  EXPECT_EQ(fault_of(state), "scale must be F32 [3, 2], got Float [2, 2]");
  state = sound();
  state.scale = at::Tensor();
  EXPECT_EQ(fault_of(state), "scale must be F32 [3, 2], got nothing");
  state = sound();
  state.amax = state.amax.to(at::kDouble);
  EXPECT_EQ(fault_of(state), "amax must be F32 [3, 2], got Double [3, 2]");
}

TEST(Fp8State, NumbersThatNoRunLeavesAreFaults) {
  for (const float value : {0.0F, -1.0F, kInfinity, kNan}) {
    Fp8State state = sound();
    state.scale[1][0] = value;
    EXPECT_TRUE(fault_of(state).starts_with("scale must be finite and positive, got ")) << value;
    EXPECT_TRUE(fault_of(state).ends_with(" at 2")) << fault_of(state);
  }
  for (const float value : {-1.0F, kInfinity, kNan}) {
    Fp8State state = sound();
    state.history[0][1][3] = value;
    EXPECT_TRUE(fault_of(state).starts_with("history must be finite and not negative, got "))
        << value;
  }
  Fp8State state = sound();
  state.amax[0][0] = -1.0F;
  EXPECT_EQ(fault_of(state), "amax must be no negative number, got -1 at 0");
}

}  // namespace fp8_state_test
}  // namespace kinora::ops
