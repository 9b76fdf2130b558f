// Attention part by part through libtorch's GPU kernels, against the composition in float64.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <vector>

#include "kinora/core/cuda.h"
#include "kinora/ops/partial_attention.h"
#include "tests/ops/tensors.h"

namespace kinora::ops {
namespace gpu_partial_attention_test {

struct GpuCase {
  at::ScalarType type;
  int64_t queries;
  int64_t keys;
  int64_t head;
  double tolerance;
};

void check(const GpuCase& c) {
  SCOPED_TRACE(std::string(at::toString(c.type)) + ", " + std::to_string(c.queries) + " x " +
               std::to_string(c.keys) + ", head " + std::to_string(c.head));
  // Parts of packed projections, as they come.
  const at::Tensor packed = normal({2, c.keys, 3, 4, c.head}, 1).to(c.type);
  const at::Tensor gradient = normal({2, c.queries, 4, c.head}, 2).to(c.type);
  const auto results = [&](at::Device device, at::ScalarType type) {
    const at::Tensor all = packed.to(device, type);
    const at::Tensor q = all.select(2, 0).narrow(1, 0, c.queries);
    const int64_t first = c.keys / 3;
    Attended seen;
    const auto part = [&](int64_t which, bool second) {
      return all.select(2, which).narrow(1, second ? first : 0, second ? c.keys - first : first);
    };
    for (const bool second : {false, true}) {
      merge(&seen, attend(q, part(1, second), part(2, second)));
    }
    const Attended merged = {seen.out.to(type).contiguous(), seen.log_normaliser.contiguous()};
    std::vector<at::Tensor> found = {seen.out, seen.log_normaliser};
    std::vector<AttendGradients> gradients;
    for (const bool second : {false, true}) {
      gradients.push_back(
          attend_backward(gradient.to(device, type), q, part(1, second), part(2, second), merged));
    }
    found.push_back(gradients[0].q + gradients[1].q);
    found.push_back(at::cat({gradients[0].k, gradients[1].k}, 1));
    found.push_back(at::cat({gradients[0].v, gradients[1].v}, 1));
    return found;
  };
  const std::vector<at::Tensor> got = results(at::Device(at::kCUDA, 0), c.type);
  const std::vector<at::Tensor> want = results(at::kCPU, at::kDouble);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].sizes(), want[i].sizes());
    EXPECT_LT(relative_error(got[i].cpu(), want[i]), c.tolerance) << "result " << i;
  }
}

TEST(GpuPartialAttentionTest, EqualsTheComposition) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "needs a GPU";
  }
  for (const int64_t head : {64, 72}) {
    for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{64, 192}, {37, 101}, {1, 6}}) {
      check({at::kBFloat16, queries, keys, head, 2e-2});
      check({at::kHalf, queries, keys, head, 3e-3});
      check({at::kFloat, queries, keys, head, 2e-3});  // its products may use TF32
    }
  }
}

}  // namespace gpu_partial_attention_test
}  // namespace kinora::ops
