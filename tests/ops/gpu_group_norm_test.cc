#include <gtest/gtest.h>

#include "kinora/core/cuda.h"
#include "kinora/ops/cuda_launch.h"
#include "kinora/ops/group_norm.h"
#include "tests/ops/tensors.h"

namespace kinora::ops {
namespace gpu_group_norm_test {

class GpuGroupNormTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_available() || !cuda::available()) {
      GTEST_SKIP() << "no GPU or no kernels";
    }
  }
};

/// x, weight, bias, channel_bias, offset (the last two only `with_terms`), dy.
std::vector<at::Tensor> inputs(const std::vector<int64_t>& sizes, at::ScalarType type,
                               at::ScalarType vectors, bool with_terms) {
  const auto layout =
      sizes.size() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
  const auto vector = [&](int64_t number, at::ScalarType of) {
    return normal({sizes[1]}, number, of).to(at::kCUDA);
  };
  std::vector<at::Tensor> in = {normal(sizes, 1, type).to(at::kCUDA).contiguous(layout),
                                vector(2, vectors),
                                vector(3, vectors),
                                at::Tensor(),
                                at::Tensor(),
                                normal(sizes, 6, type).to(at::kCUDA).contiguous(layout)};
  if (with_terms) {
    in[3] = vector(4, vectors);
    in[4] = normal({sizes[0], sizes[1]}, 5, type).to(at::kCUDA);
  }
  return in;
}

/// y and the gradients of the inputs that are wanted (bit i: of input i).
std::vector<at::Tensor> results(std::vector<at::Tensor> in, const GroupNormOptions& options,
                                unsigned wanted) {
  for (size_t i = 0; i < 5; ++i) {
    if (in[i].defined()) {
      in[i] = in[i].detach().set_requires_grad((wanted >> i & 1U) != 0);
    }
  }
  at::Tensor y = group_norm(in[0], in[1], in[2], options, in[3], in[4]);
  std::vector<at::Tensor> out = {y.detach()};
  if (y.requires_grad()) {
    y.backward(in[5]);
  }
  for (size_t i = 0; i < 5; ++i) {
    out.push_back(in[i].defined() ? in[i].grad() : at::Tensor());
  }
  return out;
}

/// The same composed of ATen's calls, in double.
std::vector<at::Tensor> exact_results(std::vector<at::Tensor> in, const GroupNormOptions& options) {
  for (at::Tensor& tensor : in) {
    if (tensor.defined()) {
      tensor = tensor.to(at::kDouble);
    }
  }
  return results(in, options, 31);
}

constexpr const char* kNames[] = {"y", "dx", "dweight", "dbias", "dchannel_bias", "doffset"};

TEST_F(GpuGroupNormTest, NodeEqualsAtensCalls) {
  // One launch, three launches, a clip.
  const std::vector<std::vector<int64_t>> shapes = {
      {2, 320, 9, 7}, {3, 264, 5, 11}, {1, 960, 70, 64}, {2, 64, 3, 5, 4}};
  for (const auto& sizes : shapes) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const auto vectors : {at::kFloat, type}) {
        for (const bool with_terms : {false, true}) {
          const GroupNormOptions options = {
              .groups = sizes[1] == 264 ? 8 : 32, .epsilon = 1e-5, .silu = with_terms};
          const auto in = inputs(sizes, type, vectors, with_terms);
          const auto got = results(in, options, 31);
          const auto expected = exact_results(in, options);
          for (size_t i = 0; i < got.size(); ++i) {
            SCOPED_TRACE(testing::Message() << sizes << type << vectors << kNames[i]);
            ASSERT_EQ(got[i].defined(), expected[i].defined());
            if (!got[i].defined()) {
              continue;
            }
            const at::ScalarType of = i < 2 || i == 5 ? type : vectors;
            EXPECT_EQ(got[i].scalar_type(), of);
            EXPECT_LT(relative_error(got[i], expected[i]),
                      of == at::kFloat ? 2e-6 : (of == at::kHalf ? 4e-4 : 3e-3));
          }
          EXPECT_EQ(got[0].strides(), in[0].strides());
          EXPECT_EQ(got[1].strides(), in[0].strides());
        }
      }
    }
  }
}

TEST_F(GpuGroupNormTest, EachGradientCanBeWantedAlone) {
  const auto in = inputs({2, 320, 9, 7}, at::kBFloat16, at::kFloat, true);
  const GroupNormOptions options = {.silu = true};
  const auto all = results(in, options, 31);
  for (unsigned wanted = 0; wanted < 32; ++wanted) {
    const auto got = results(in, options, wanted);
    EXPECT_TRUE(got[0].equal(all[0]));
    for (size_t i = 0; i < 5; ++i) {
      const bool is_wanted = (wanted >> i & 1U) != 0;
      ASSERT_EQ(got[i + 1].defined(), is_wanted) << kNames[i + 1];
      EXPECT_TRUE(!is_wanted || got[i + 1].equal(all[i + 1])) << kNames[i + 1];
    }
  }
}

// A gradient that lies otherwise, and images that do: to the kernels or to ATen, the same comes
// out.
TEST_F(GpuGroupNormTest, OtherLayoutsGiveTheSame) {
  auto in = inputs({2, 320, 9, 7}, at::kFloat, at::kFloat, true);
  const GroupNormOptions options = {.silu = true};
  const auto expected = exact_results(in, options);
  in[5] = in[5].contiguous(at::MemoryFormat::Contiguous);
  const auto compare = [&] {
    const auto got = results(in, options, 31);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LT(relative_error(got[i], expected[i]), 2e-6) << kNames[i];
    }
  };
  compare();
  in[0] = in[0].contiguous(at::MemoryFormat::Contiguous);
  compare();
}

}  // namespace gpu_group_norm_test
}  // namespace kinora::ops
