#include <cmath>
#include <cstring>

#include "kinora/kernels/cuda/activation.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gpu_activation_test {

using GpuActivationTest = GpuTest;

struct Shape {
  int64_t rows;
  int64_t width;
};

// Tiny and odd ones, partial tiles of 128 x 64, and several tiles a block.
constexpr Shape kShapes[] = {{1, 1},    {1, 8},     {3, 5},      {257, 72},
                             {128, 64}, {144, 136}, {4113, 1160}};

constexpr float kScale = 8.0F;

/// Everything that a call can give, on the host.
struct Results {
  std::vector<float> g, du, bias_grad, amax;
  std::vector<uint8_t> g_fp8, g_transposed, du_fp8, du_transposed;
};

struct Wanted {
  bool quantised = false;
  bool bias_grad = false;
  bool in_place = false;
};

class Inputs {
 public:
  Inputs(const Shape& shape, DType type)
      : shape(shape),
        type(type),
        u(encode(random_values(shape.rows * shape.width, 1, 2.0F), type)),
        dg(encode(random_values(shape.rows * shape.width, 2), type)) {}

  [[nodiscard]] size_t numel() const { return static_cast<size_t>(shape.rows * shape.width); }
  [[nodiscard]] size_t transposed_numel() const {
    return static_cast<size_t>(transposed_pitch(shape.rows) * shape.width);
  }

  [[nodiscard]] Results on_cpu(Activation function, bool backward) const {
    Results results;
    std::vector<uint8_t> g(u.size());
    std::vector<uint8_t> du(u.size());
    const float scale = kScale;
    results.amax = {0.0F, 0.0F};
    results.bias_grad.assign(static_cast<size_t>(shape.width), 1.0F);
    results.g_fp8.assign(numel(), 0);
    results.du_fp8.assign(numel(), 0);
    results.g_transposed.assign(transposed_numel(), 0);
    results.du_transposed.assign(transposed_numel(), 0);
    const Fp8Output g_fp8 = {DType::kF8E4M3, results.g_fp8.data(), results.g_transposed.data(),
                             &scale, &results.amax[0]};
    if (backward) {
      ActivationBackward call;
      fill(&call, function);
      call.u = u.data();
      call.dg = dg.data();
      call.g = g.data();
      call.du = du.data();
      call.g_fp8 = g_fp8;
      call.du_fp8 = {DType::kF8E5M2, results.du_fp8.data(), results.du_transposed.data(), &scale,
                     &results.amax[1]};
      call.bias_grad = results.bias_grad.data();
      activation_backward(call);
    } else {
      ActivationForward call;
      fill(&call, function);
      call.u = u.data();
      call.g = g.data();
      call.g_fp8 = g_fp8;
      activation_forward(call);
    }
    results.g = decode(g, type);
    results.du = decode(du, type);
    return results;
  }

  [[nodiscard]] Results on_gpu(Activation function, bool backward, const Wanted& wanted,
                               size_t offset) const {
    const size_t bytes = offset * size_of(type);
    const DeviceArray<uint8_t> device_u(u, bytes);
    const DeviceArray<uint8_t> device_dg(dg, bytes);
    const DeviceArray<uint8_t> g(std::vector<uint8_t>(u.size()), bytes);
    const DeviceArray<uint8_t> du(std::vector<uint8_t>(u.size()), bytes);
    const std::vector<uint8_t> empty(numel());
    const std::vector<uint8_t> other(transposed_numel(), 1);
    const DeviceArray<uint8_t> quantised[] = {
        DeviceArray<uint8_t>(empty, offset), DeviceArray<uint8_t>(other, offset),
        DeviceArray<uint8_t>(empty, offset), DeviceArray<uint8_t>(other, offset)};
    const DeviceArray<float> scale(std::vector<float>{kScale});
    const DeviceArray<float> amax(std::vector<float>{0.0F, 0.0F});
    const DeviceArray<float> bias_grad(std::vector<float>(static_cast<size_t>(shape.width), 1.0F),
                                       offset);
    Fp8Output g_fp8;
    Fp8Output du_fp8;
    if (wanted.quantised) {
      g_fp8 = {DType::kF8E4M3, quantised[0].data(), quantised[1].data(), scale.data(), amax.data()};
      du_fp8 = {DType::kF8E5M2, quantised[2].data(), quantised[3].data(), scale.data(),
                amax.data() + 1};
    }
    if (backward) {
      ActivationBackward call;
      fill(&call, function);
      call.u = device_u.data();
      call.dg = device_dg.data();
      call.du = wanted.in_place ? device_dg.data() : du.data();
      call.g = wanted.in_place ? device_u.data() : g.data();
      call.g_fp8 = g_fp8;
      call.du_fp8 = du_fp8;
      call.bias_grad = wanted.bias_grad ? bias_grad.data() : nullptr;
      const DeviceArray<uint8_t> workspace(std::vector<uint8_t>(
          cuda::activation_backward_workspace_bytes(shape.rows, shape.width, wanted.bias_grad)));
      EXPECT_EQ(cuda::activation_backward(call, workspace.data(), nullptr), cudaSuccess);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    } else {
      ActivationForward call;
      fill(&call, function);
      call.u = device_u.data();
      call.g = wanted.in_place ? device_u.data() : g.data();
      call.g_fp8 = g_fp8;
      EXPECT_EQ(cuda::activation_forward(call, nullptr), cudaSuccess);
    }
    return {decode((wanted.in_place ? device_u : g).host(), type),
            decode((wanted.in_place ? device_dg : du).host(), type),
            bias_grad.host(),
            amax.host(),
            quantised[0].host(),
            quantised[1].host(),
            quantised[2].host(),
            quantised[3].host()};
  }

  Shape shape;
  DType type;
  std::vector<uint8_t> u, dg;

 private:
  template <typename Call>
  void fill(Call* call, Activation function) const {
    call->function = function;
    call->rows = shape.rows;
    call->width = shape.width;
    call->type = type;
  }
};

void expect_quantised(const Results& got, const Results& want, bool backward) {
  expect_close(decode(got.g_fp8, DType::kF8E4M3), decode(want.g_fp8, DType::kF8E4M3),
               DType::kF8E4M3, 0x1p-6, "g_fp8");
  expect_close(decode(got.g_transposed, DType::kF8E4M3), decode(want.g_transposed, DType::kF8E4M3),
               DType::kF8E4M3, 0x1p-6, "transposed g_fp8");
  EXPECT_TRUE(is_close(got.amax[0], want.amax[0], DType::kF32)) << got.amax[0];
  if (backward) {
    expect_close(decode(got.du_fp8, DType::kF8E5M2), decode(want.du_fp8, DType::kF8E5M2),
                 DType::kF8E5M2, 0x1p-6, "du_fp8");
    expect_close(decode(got.du_transposed, DType::kF8E5M2),
                 decode(want.du_transposed, DType::kF8E5M2), DType::kF8E5M2, 0x1p-6,
                 "transposed du_fp8");
    EXPECT_TRUE(is_close(got.amax[1], want.amax[1], DType::kF32)) << got.amax[1];
  }
}

TEST_F(GpuActivationTest, EqualsTheCpu) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape& shape : kShapes) {
      const Inputs inputs(shape, type);
      for (const Activation function : {Activation::kGeluTanh, Activation::kSilu}) {
        for (const bool backward : {false, true}) {
          const Results want = inputs.on_cpu(function, backward);
          for (const size_t offset : {0, 1}) {
            for (const Wanted& wanted :
                 {Wanted{}, Wanted{true, true, false}, Wanted{false, true, true}}) {
              SCOPED_TRACE(testing::Message()
                           << to_string(type) << " " << shape.rows << " x " << shape.width
                           << (backward ? " backward" : " forward") << ", offset " << offset);
              const Results got = inputs.on_gpu(function, backward, wanted, offset);
              expect_close(got.g, want.g, type, 1e-2, "g");
              if (backward) {
                // fp32: where the derivative crosses zero, its terms cancel.
                expect_close(got.du, want.du, type, type == DType::kF32 ? 1.0 : 1e-2, "du");
                if (wanted.bias_grad) {
                  expect_close(got.bias_grad, want.bias_grad, DType::kF32,
                               10.0 * std::sqrt(static_cast<double>(shape.rows)), "bias_grad");
                }
              }
              if (wanted.quantised) {
                expect_quantised(got, want, backward);
              }
            }
          }
        }
      }
    }
  }
}

TEST_F(GpuActivationTest, GatedEqualsTheCpu) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [rows, width] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {70'000, 8}, {33, 2056}, {5, 10'240}}) {
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(testing::Message() << to_string(type) << " " << rows << " x " << width
                                        << (in_place ? ", in place" : ""));
        std::vector<uint8_t> uv = encode(random_values(rows * 2 * width, 1, 2.0F), type);
        const DeviceArray<uint8_t> device_uv(uv);
        std::vector<uint8_t> g(uv.size() / 2);
        const DeviceArray<uint8_t> device_g(g);
        GatedActivation call = {.function = Activation::kGeluTanh,
                                .rows = rows,
                                .width = width,
                                .type = type,
                                .uv = device_uv.data(),
                                .g = in_place ? device_uv.data() : device_g.data(),
                                .g_stride = in_place ? 2 * width : width};
        ASSERT_EQ(cuda::gated_activation(call, nullptr), cudaSuccess);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        call.uv = uv.data();
        call.g = in_place ? uv.data() : g.data();
        gated_activation(call);
        expect_close(decode((in_place ? device_uv : device_g).host(), type),
                     decode(in_place ? uv : g, type), type, 1e-2, "g");
      }
    }
  }
}

TEST_F(GpuActivationTest, TheSameBitsTwice) {
  const Inputs inputs({4113, 1160}, DType::kBF16);
  const Results first = inputs.on_gpu(Activation::kGeluTanh, true, {true, true, false}, 0);
  const Results second = inputs.on_gpu(Activation::kGeluTanh, true, {true, true, false}, 0);
  EXPECT_EQ(first.bias_grad, second.bias_grad);
  EXPECT_EQ(first.amax, second.amax);
  EXPECT_EQ(first.du_transposed, second.du_transposed);
}

TEST_F(GpuActivationTest, NanAndInfinityPropagate) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    Inputs inputs({3, 8}, type);
    std::vector<float> u(24, 1.0F);
    u[3] = NAN;
    u[9] = INFINITY;
    inputs.u = encode(u, type);
    const Results got = inputs.on_gpu(Activation::kGeluTanh, true, {true, true, false}, 0);
    EXPECT_TRUE(std::isnan(got.g[3]));
    EXPECT_TRUE(std::isnan(got.du[3]));
    EXPECT_EQ(got.g[9], INFINITY);
    EXPECT_TRUE(std::isnan(got.bias_grad[3]));
    EXPECT_FALSE(std::isnan(got.bias_grad[2]));
    EXPECT_TRUE(std::isnan(got.amax[0]));
  }
}

}  // namespace gpu_activation_test
}  // namespace kinora::kernels
