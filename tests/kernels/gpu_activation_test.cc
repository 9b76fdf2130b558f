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

// Tiny and odd ones, and partial tiles of 128 x 64.
constexpr Shape kShapes[] = {{1, 1},    {1, 8},     {3, 5},      {257, 72},
                             {128, 64}, {144, 136}, {4113, 1160}};

constexpr float kScale = 8.0F;

/// Everything that a call can give, on the host. `out` is g forward and du backward, as in `fp8`
/// and `transposed`.
struct Results {
  std::vector<float> out, bias_grad, amax;
  std::vector<uint8_t> fp8, transposed;
};

/// Of the quantised copies.
DType fp8_type(bool backward) {
  return backward ? DType::kF8E5M2 : DType::kF8E4M3;
}

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
    std::vector<uint8_t> out(u.size());
    const float scale = kScale;
    results.amax = {0.0F};
    results.bias_grad.assign(static_cast<size_t>(shape.width), 1.0F);
    results.fp8.assign(numel(), 0);
    results.transposed.assign(transposed_numel(), 0);
    const Fp8Output fp8 = {fp8_type(backward), results.fp8.data(), results.transposed.data(),
                           &scale, results.amax.data()};
    if (backward) {
      ActivationBackward call;
      fill(&call, function);
      call.u = u.data();
      call.dg = dg.data();
      call.du = out.data();
      call.du_fp8 = fp8;
      call.bias_grad = results.bias_grad.data();
      activation_backward(call);
    } else {
      ActivationForward call;
      fill(&call, function);
      call.u = u.data();
      call.g = out.data();
      call.g_fp8 = fp8;
      activation_forward(call);
    }
    results.out = decode(out, type);
    return results;
  }

  [[nodiscard]] Results on_gpu(Activation function, bool backward, const Wanted& wanted,
                               size_t offset) const {
    const size_t bytes = offset * size_of(type);
    const DeviceArray<uint8_t> device_u(u, bytes);
    const DeviceArray<uint8_t> device_dg(dg, bytes);
    const DeviceArray<uint8_t> apart(std::vector<uint8_t>(u.size()), bytes);
    const DeviceArray<uint8_t> data(std::vector<uint8_t>(numel()), offset);
    const DeviceArray<uint8_t> transposed(std::vector<uint8_t>(transposed_numel(), 1), offset);
    const DeviceArray<float> scale(std::vector<float>{kScale});
    const DeviceArray<float> amax(std::vector<float>{0.0F});
    const DeviceArray<float> bias_grad(std::vector<float>(static_cast<size_t>(shape.width), 1.0F),
                                       offset);
    const DeviceArray<uint8_t>& out = !wanted.in_place ? apart : (backward ? device_dg : device_u);
    Fp8Output fp8;
    if (wanted.quantised) {
      fp8 = {fp8_type(backward), data.data(), transposed.data(), scale.data(), amax.data()};
    }
    if (backward) {
      ActivationBackward call;
      fill(&call, function);
      call.u = device_u.data();
      call.dg = device_dg.data();
      call.du = out.data();
      call.du_fp8 = fp8;
      call.bias_grad = wanted.bias_grad ? bias_grad.data() : nullptr;
      const DeviceArray<uint8_t> workspace(std::vector<uint8_t>(
          cuda::activation_backward_workspace_bytes(shape.rows, shape.width, wanted.bias_grad)));
      EXPECT_EQ(cuda::activation_backward(call, workspace.data(), nullptr), cudaSuccess);
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    } else {
      ActivationForward call;
      fill(&call, function);
      call.u = device_u.data();
      call.g = out.data();
      call.g_fp8 = fp8;
      EXPECT_EQ(cuda::activation_forward(call, nullptr), cudaSuccess);
    }
    return {decode(out.host(), type), bias_grad.host(), amax.host(), data.host(),
            transposed.host()};
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

void expect_equal(const Results& got, const Results& want, const Inputs& inputs, bool backward,
                  const Wanted& wanted) {
  // fp32: where the derivative crosses zero, its terms cancel.
  const bool cancels = backward && inputs.type == DType::kF32;
  expect_close(got.out, want.out, inputs.type, cancels ? 1.0 : 1e-2, backward ? "du" : "g");
  if (backward && wanted.bias_grad) {
    expect_close(got.bias_grad, want.bias_grad, DType::kF32,
                 10.0 * std::sqrt(static_cast<double>(inputs.shape.rows)), "bias_grad");
  }
  if (wanted.quantised) {
    const DType fp8 = fp8_type(backward);
    expect_close(decode(got.fp8, fp8), decode(want.fp8, fp8), fp8, 0x1p-6, "fp8");
    expect_close(decode(got.transposed, fp8), decode(want.transposed, fp8), fp8, 0x1p-6,
                 "transposed fp8");
    EXPECT_TRUE(is_close(got.amax[0], want.amax[0], DType::kF32)) << got.amax[0];
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
              expect_equal(inputs.on_gpu(function, backward, wanted, offset), want, inputs,
                           backward, wanted);
            }
          }
        }
      }
    }
  }
}

// A block takes several tiles, and loads the next while it computes one.
TEST_F(GpuActivationTest, EqualsTheCpuInLargeMatrices) {
  const Inputs inputs({16'500, 1096}, DType::kBF16);
  for (const bool backward : {false, true}) {
    const Results want = inputs.on_cpu(Activation::kGeluTanh, backward);
    for (const Wanted& wanted : {Wanted{true, true, false}, Wanted{false, true, true}}) {
      SCOPED_TRACE(backward ? "backward" : "forward");
      expect_equal(inputs.on_gpu(Activation::kGeluTanh, backward, wanted, 0), want, inputs,
                   backward, wanted);
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
  EXPECT_EQ(first.transposed, second.transposed);
}

TEST_F(GpuActivationTest, NanAndInfinityPropagate) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    Inputs inputs({3, 8}, type);
    std::vector<float> u(24, 1.0F);
    u[3] = NAN;
    u[9] = INFINITY;
    inputs.u = encode(u, type);
    const Wanted all = {true, true, false};
    const Results forward = inputs.on_gpu(Activation::kGeluTanh, false, all, 0);
    EXPECT_TRUE(std::isnan(forward.out[3]));
    EXPECT_EQ(forward.out[9], INFINITY);
    EXPECT_TRUE(std::isnan(forward.amax[0]));
    const Results backward = inputs.on_gpu(Activation::kGeluTanh, true, all, 0);
    EXPECT_TRUE(std::isnan(backward.out[3]));
    EXPECT_TRUE(std::isnan(backward.bias_grad[3]));
    EXPECT_FALSE(std::isnan(backward.bias_grad[2]));
    EXPECT_TRUE(std::isnan(backward.amax[0]));
  }
}

}  // namespace gpu_activation_test
}  // namespace kinora::kernels
