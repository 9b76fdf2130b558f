// The plain path on a GPU against the same references as on the CPU.

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>

#include "kinora/device/device.h"
#include "kinora/ops/random.h"
#include "tests/tolerances.h"
#include "tests/train/reference_training.h"

namespace kinora::train {
namespace gpu_test {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!device::best_device().is_cuda()) {
      GTEST_SKIP() << "there is no GPU";
    }
  }
};

void expect_fixture(const std::string& name, at::ScalarType type, double tolerance) {
  const models::Fixture fixture(name);
  models::DiT model(fixture.config());
  optim::Arena arena(
      model.named_parameters(), model.buckets(),
      {.device = at::kCUDA, .compute_type = type, .seed = 1, .train = true, .ema_decays = {0.9}});
  model.to_device(at::kCUDA);
  load_initial(fixture, model, arena);
  const auto input = [&](const char* tensor) { return fixture.tensor(tensor).to(at::kCUDA); };
  const at::Tensor output =
      model.forward(input("forward.x_t"), input("forward.t"), {.labels = input("forward.labels")});
  EXPECT_LT(models::relative_error(output, fixture.tensor("forward.output")), tolerance);

  diffusion::Objective objective = fixture.objective();
  diffusion::move_to(objective, at::kCUDA);
  const at::Tensor x0 = input("loss.x0");
  const diffusion::NoisedBatch batch =
      models::noised(objective, x0, input("loss.noise"), input("loss.t"));
  const at::Tensor prediction = model.forward(batch.x_t, batch.t, {.labels = input("loss.labels")});
  const diffusion::Loss loss = diffusion::loss(objective, prediction, batch, x0);
  EXPECT_LT(models::relative_error(loss.per_sample, fixture.tensor("loss.loss")), tolerance);
  torch::autograd::backward({loss.mean}, {});
  for (const auto& [path, parameter] : model.named_parameters()) {
    EXPECT_LT(
        models::relative_error(models::without_key_bias(path, parameter->grad),
                               models::without_key_bias(path, fixture.tensor("grad." + path))),
        tolerance)
        << path;
  }
}

TEST_F(GpuTest, ForwardAndGradientsMatchTheReferenceInFp32) {
  expect_fixture("dit_latent.safetensors", at::kFloat, tolerance::kWholeModel);
  expect_fixture("dit_pixel_flow.safetensors", at::kFloat, tolerance::kWholeModel);
}

TEST_F(GpuTest, ForwardAndGradientsAreNearTheReferenceInBf16) {
  expect_fixture("dit_latent.safetensors", at::kBFloat16, tolerance::kWholeModelInBf16);
  expect_fixture("dit_pixel_flow.safetensors", at::kBFloat16, tolerance::kWholeModelInBf16);
}

TEST_F(GpuTest, FiftyStepsEqualPyTorch) {
  for (const int64_t recomputed : {0, 2}) {
    const Distances far = train_like_the_reference(at::kCUDA, at::kFloat, recomputed);
    EXPECT_LT(far.loss, tolerance::kWholeModel);
    EXPECT_LT(far.grad_norm, tolerance::kWholeModel);
    EXPECT_LT(far.weights, tolerance::kWholeModel) << far.worst;
    EXPECT_LT(far.average, tolerance::kWholeModel);
  }
}

TEST_F(GpuTest, FiftyStepsInBf16StayNearPyTorch) {
  const Distances far = train_like_the_reference(at::kCUDA, at::kBFloat16);
  EXPECT_LT(far.loss, tolerance::kWholeModelInBf16);
  EXPECT_LT(far.weights, 5e-2) << far.worst;
}

TEST_F(GpuTest, InitialWeightsAreThoseOfTheCpu) {
  const models::Fixture fixture("dit_latent.safetensors");
  std::vector<std::map<std::string, at::Tensor>> values(2);
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kCUDA)}) {
    models::DiT model(fixture.config());
    const optim::Arena arena(
        model.named_parameters(), model.buckets(),
        {.device = device, .compute_type = at::kFloat, .seed = 8, .train = true, .ema_decays = {}});
    for (const auto& [path, parameter] : model.named_parameters()) {
      values[device.is_cuda() ? 1 : 0][path] =
          arena.export_parameter(path, optim::Role::master()).to(at::kCPU);
    }
  }
  for (const auto& [path, tensor] : values[0]) {
    EXPECT_LT((tensor - values[1].at(path)).abs().max().item<double>(), 1e-6) << path;
  }
}

TEST_F(GpuTest, RandomNumbersAreThoseOfTheCpu) {
  const at::Tensor index = at::arange(100, 117, at::kLong);
  const auto uniform = [&](at::Device device) {
    return ops::random_uniform({17, 3, 5}, index, 4, 9, RandomPurpose::kTest, device).cpu();
  };
  EXPECT_TRUE(at::equal(uniform(at::kCPU), uniform(at::kCUDA)));
  const auto normal = [&](at::Device device) {
    return ops::random_normal({17, 3, 5}, index, 4, 9, RandomPurpose::kTest, device).cpu();
  };
  // Sine and logarithm may differ in the last bits.
  EXPECT_LT((normal(at::kCPU) - normal(at::kCUDA)).abs().max().item<double>(), 1e-5);
}

}  // namespace gpu_test
}  // namespace kinora::train
