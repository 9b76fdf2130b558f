#include <cmath>

#include "kinora/kernels/cuda/diffusion_loss.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gpu_diffusion_loss_test {

using GpuDiffusionLossTest = GpuTest;

struct Shape {
  int64_t batch;
  int64_t sample_size;
};

// One element, less than a vector, one block and several a sample, more samples than groups.
constexpr Shape kShapes[] = {{1, 1}, {257, 7}, {3, 1024}, {257, 1032}, {5, 4095}, {2, 40'000}};

struct Results {
  std::vector<float> mse, vb, total, mean, gradient;
};

struct Inputs {
  Inputs(const Shape& shape, DType type, Target target, bool learned_variance)
      : shape(shape),
        type(type),
        target(target),
        learned_variance(learned_variance),
        prediction_size(shape.sample_size * (learned_variance ? 2 : 1) +
                        (target == Target::kVelocity ? shape.sample_size / 2 : 0)),
        prediction(encode(random_values(shape.batch * prediction_size, 1), type)),
        noise(random_values(shape.batch * shape.sample_size, 2)),
        x0(random_values(shape.batch * shape.sample_size, 3)),
        weights(random_values(shape.batch, 4)) {
    for (float& value : x0) {
      value = std::min(1.0F, std::max(-1.0F, value));  // a third on the outermost levels
    }
    for (int64_t b = 0; b < shape.batch; ++b) {
      t.push_back(static_cast<float>(b % 3));
    }
  }

  /// What both devices are told alike.
  [[nodiscard]] DiffusionLoss call() const {
    DiffusionLoss call;
    call.target = target;
    call.learned_variance = learned_variance;
    call.batch = shape.batch;
    call.sample_size = shape.sample_size;
    call.prediction_size = prediction_size;
    call.type = type;
    call.num_timesteps = 3;
    call.bound_scale = 0.25;
    call.mean_share = 0.5;
    call.grad_factor = 3.0;
    return call;
  }

  [[nodiscard]] Results on_cpu() const {
    Results results = empty();
    std::vector<uint8_t> gradient(prediction.size());
    DiffusionLoss on_host = call();
    on_host.prediction = prediction.data();
    on_host.noise = noise.data();
    on_host.x0 = x0.data();
    on_host.weights = weights.data();
    on_host.t = t.data();
    on_host.table = table.data();
    on_host.mse = results.mse.data();
    on_host.vb = results.vb.data();
    on_host.total = results.total.data();
    on_host.mean = results.mean.data();
    on_host.d_prediction = gradient.data();
    on_host.grad_scale = &loss_scale;
    diffusion_loss(on_host);
    results.gradient = decode(gradient, type);
    return results;
  }

  [[nodiscard]] Results on_gpu(size_t offset, bool in_place) const {
    const Results start = empty();
    const DeviceArray<uint8_t> device_prediction(prediction, offset * size_of(type));
    const DeviceArray<uint8_t> gradient(std::vector<uint8_t>(prediction.size()),
                                        offset * size_of(type));
    const DeviceArray<float> device_noise(noise, offset);
    const DeviceArray<float> device_x0(x0, offset);
    const DeviceArray<float> device_weights(weights);
    const DeviceArray<float> device_t(t);
    const DeviceArray<float> device_table(table);
    const DeviceArray<float> scale(std::vector<float>{loss_scale});
    const DeviceArray<float> mse(start.mse);
    const DeviceArray<float> vb(start.vb);
    const DeviceArray<float> total(start.total);
    const DeviceArray<float> mean(start.mean);
    const DeviceArray<uint8_t> workspace(
        std::vector<uint8_t>(cuda::diffusion_loss_workspace_bytes(shape.batch, shape.sample_size)));
    DiffusionLoss on_device = call();
    on_device.prediction = device_prediction.data();
    on_device.noise = device_noise.data();
    on_device.x0 = device_x0.data();
    on_device.weights = device_weights.data();
    on_device.t = device_t.data();
    on_device.table = device_table.data();
    on_device.mse = mse.data();
    on_device.vb = vb.data();
    on_device.total = total.data();
    on_device.mean = mean.data();
    on_device.d_prediction = in_place ? device_prediction.data() : gradient.data();
    on_device.grad_scale = scale.data();
    EXPECT_EQ(cuda::diffusion_loss(on_device, workspace.data(), nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return {mse.host(), vb.host(), total.host(), mean.host(),
            decode((in_place ? device_prediction : gradient).host(), type)};
  }

  [[nodiscard]] Results empty() const {
    const std::vector<float> samples(static_cast<size_t>(shape.batch), -1.0F);
    return {samples, samples, samples, {10.0F}, {}};
  }

  Shape shape;
  DType type;
  Target target;
  bool learned_variance;
  int64_t prediction_size;
  std::vector<uint8_t> prediction;
  std::vector<float> noise, x0, weights, t;
  // Of the 1000-step linear schedule at t = 0, 1 and 600, with weights.
  std::vector<float> table = {0.99995F,  0.01F,     0.0100005F, -9.816725F, 0.6063848F,  0.25F,
                              0.99989F,  0.014829F, 0.0080872F, -9.816725F, 0.7880388F,  3.0F,
                              0.159898F, 0.987133F, 0.0122833F, -4.418849F, 0.00032013F, 1.0F};
  float loss_scale = 128.0F;
};

void expect_equal(const Results& got, const Results& want, const Inputs& inputs) {
  expect_close(got.mse, want.mse, DType::kF32, 1.0, "mse");
  expect_close(got.vb, want.vb, DType::kF32, 1.0, "vb");
  expect_close(got.total, want.total, DType::kF32, 1.0, "total");
  expect_close(got.mean, want.mean, DType::kF32, 10.0, "mean");
  // 384 is the scale; a gradient is a sum of terms of either sign.
  const double usual = 384.0 / static_cast<double>(inputs.shape.batch * inputs.shape.sample_size);
  expect_close(got.gradient, want.gradient, inputs.type, usual, "gradient");
}

TEST_F(GpuDiffusionLossTest, EqualsTheCpu) {
  struct Case {
    Target target;
    bool learned_variance;
  };
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape& shape : kShapes) {
      for (const Case& one :
           {Case{Target::kNoise, true}, Case{Target::kNoise, false}, Case{Target::kData, true},
            Case{Target::kData, false}, Case{Target::kV, true}, Case{Target::kV, false},
            Case{Target::kVelocity, false}}) {
        const Inputs inputs(shape, type, one.target, one.learned_variance);
        const Results want = inputs.on_cpu();
        for (const size_t offset : {0, 1}) {
          SCOPED_TRACE(testing::Message()
                       << to_string(type) << " " << shape.batch << " x " << shape.sample_size
                       << " target " << static_cast<int>(one.target)
                       << (one.learned_variance ? ", variance" : "") << ", offset " << offset);
          expect_equal(inputs.on_gpu(offset, false), want, inputs);
          expect_equal(inputs.on_gpu(offset, true), want, inputs);
        }
      }
    }
  }
}

TEST_F(GpuDiffusionLossTest, TheSameBitsTwice) {
  const Inputs inputs({257, 5000}, DType::kBF16, Target::kNoise, true);
  const Results first = inputs.on_gpu(0, false);
  const Results second = inputs.on_gpu(0, false);
  EXPECT_EQ(first.mean, second.mean);
  EXPECT_EQ(first.vb, second.vb);
  EXPECT_EQ(first.gradient, second.gradient);
}

TEST_F(GpuDiffusionLossTest, NanAndInfinityPropagate) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    Inputs inputs({4, 8}, type, Target::kNoise, true);
    std::vector<float> prediction = decode(inputs.prediction, type);
    prediction[3] = NAN;
    prediction[16 + 8] = NAN;  // a variance
    prediction[32] = INFINITY;
    inputs.prediction = encode(prediction, type);
    const Results got = inputs.on_gpu(0, false);
    EXPECT_TRUE(std::isnan(got.mse[0]));
    EXPECT_TRUE(std::isnan(got.gradient[3]));
    EXPECT_FALSE(std::isnan(got.gradient[4]));
    EXPECT_FALSE(std::isnan(got.mse[1]));
    EXPECT_TRUE(std::isnan(got.vb[1]));
    EXPECT_TRUE(std::isnan(got.gradient[16 + 8]));
    EXPECT_EQ(got.mse[2], INFINITY);
    EXPECT_FALSE(std::isnan(got.total[3]));
    EXPECT_TRUE(std::isnan(got.mean[0]));
  }
}

TEST_F(GpuDiffusionLossTest, ATimestepOutsideOfTheTableGivesNan) {
  Inputs inputs({2, 8}, DType::kF32, Target::kNoise, true);
  inputs.t = {3.0F, 1.0F};
  const Results got = inputs.on_gpu(0, false);
  EXPECT_TRUE(std::isnan(got.vb[0]));
  EXPECT_FALSE(std::isnan(got.vb[1]));
}

}  // namespace gpu_diffusion_loss_test
}  // namespace kinora::kernels
