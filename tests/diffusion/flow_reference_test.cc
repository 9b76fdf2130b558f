// Open-Sora 1.2's rectified flow (tools/reference/rf.py, computed by PyTorch in double) against
// ours.

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <string>

#include "kinora/device/host_bytes.h"
#include "kinora/diffusion/guidance.h"
#include "kinora/diffusion/objective.h"
#include "kinora/diffusion/sampler.h"
#include "kinora/io/safetensors.h"
#include "tests/diffusion/tensors.h"
#include "tests/places.h"
#include "tests/tolerances.h"

namespace kinora::diffusion {
namespace flow_reference_test {

constexpr int64_t kChannels = 2;  // of the data; the prediction has as many again

RectifiedFlow open_sora() {
  RectifiedFlow flow;
  flow.times = RectifiedFlow::Times::kLogitNormal;
  flow.toward_data = true;
  flow.shift_by_size = true;
  return flow;
}

class FlowReferenceTest : public testing::Test {
 protected:
  [[nodiscard]] at::Tensor tensor(const std::string& name) const {
    const io::SafetensorsTensor* found = file_.find(name);
    EXPECT_NE(found, nullptr) << name;
    return device::tensor_from_bytes(found->dtype, found->shape, found->data);
  }
  [[nodiscard]] double number(const std::string& name, int64_t sample) const {
    return tensor(name)[sample].item<double>();
  }
  [[nodiscard]] at::Tensor mask() const { return tensor("frame_mask").to(at::kBool); }

  /// The shift of a sample's times, as a clip or as an image of its size.
  [[nodiscard]] double shift(int64_t sample, bool of_image) const {
    // The published encoder makes 5 latent frames of 17.
    const int64_t latent_frames = tensor("num_frames")[sample].item<int64_t>() / 17 * 5;
    return size_shift(open_sora(),
                      {.height = number("height", sample),
                       .width = number("width", sample),
                       .latent_frames = of_image ? 1.0 : static_cast<double>(latent_frames)});
  }

  /// The loss of `output` where the frames of `frame_mask` count, and its gradient.
  struct Measured {
    Loss loss;
    at::Tensor gradient;
  };
  [[nodiscard]] Measured measure(const RectifiedFlow& flow, const at::Tensor& output,
                                 const at::Tensor& frame_mask) const {
    const at::Tensor t = tensor("t");
    const at::Tensor prediction = output.clone().requires_grad_();
    const NoisedBatch batch{.x_t = tensor("x_t"),
                            .t = t,
                            .noise = tensor("noise"),
                            .weights = at::ones_like(t),
                            .frame_mask = frame_mask};
    Loss measured = loss(flow, prediction, batch, tensor("x0"));
    torch::autograd::backward({measured.mean}, {});
    return {measured, prediction.grad()};
  }

  io::SafetensorsFile file_ =
      io::SafetensorsFile::open(source_path("tests/diffusion/data/rf_flow.safetensors"));
};

TEST_F(FlowReferenceTest, LargerClipsAreNoisedMore) {
  for (int64_t i = 0; i < 3; ++i) {
    const double drawn = number("t_drawn", i);
    EXPECT_NEAR(FlowSchedule{shift(i, false)}.shifted(drawn), number("t", i), tolerance::kStored);
    EXPECT_NEAR(FlowSchedule{shift(i, true)}.shifted(drawn), number("image.t", i),
                tolerance::kStored);
    EXPECT_GT(number("t", i), number("image.t", i));
  }
}

// What is drawn is shifted so.
TEST_F(FlowReferenceTest, DrawnTimesAreShifted) {
  const NoiseKey key{.seed = 3, .step = 2, .sample_index = sample_numbers(64)};
  const at::Tensor drawn = draw_timesteps(open_sora(), key, at::kCPU).t;
  const double ratio = shift(1, false);
  const at::Tensor shifted = draw_timesteps(open_sora(), key, at::kCPU, nullptr, ratio).t;
  for (int64_t i = 0; i < drawn.size(0); ++i) {
    EXPECT_NEAR(shifted[i].item<double>(), FlowSchedule{ratio}.shifted(drawn[i].item<double>()),
                tolerance::kStored);
  }
}

// The fixture has other noise than ours, in which x_t is linear.
TEST_F(FlowReferenceTest, NoisedFramesAndGivenOnes) {
  const NoiseKey key{.seed = 1, .step = 0, .sample_index = sample_numbers(3)};
  const NoisedBatch batch =
      noise_at(open_sora(), tensor("x0"), {.t = tensor("t"), .weights = {}}, key, mask());
  const at::Tensor more = tensor("t").view({3, 1, 1, 1, 1}) * (batch.noise - tensor("noise"));
  const at::Tensor expected =
      tensor("x_t") + at::where(mask().view({3, 1, 5, 1, 1}), more, at::zeros_like(more));
  EXPECT_LT(relative_difference(batch.x_t, expected), tolerance::kStored);
}

TEST_F(FlowReferenceTest, LossAndGradientInBothDirections) {
  const at::Tensor output = tensor("output");
  RectifiedFlow toward_noise = open_sora();
  toward_noise.toward_data = false;
  for (const double sign : {1.0, -1.0}) {
    const RectifiedFlow flow = sign > 0.0 ? open_sora() : toward_noise;
    const Measured masked = measure(flow, sign * output, mask());
    EXPECT_LT(relative_difference(masked.loss.per_sample, tensor("loss")), tolerance::kStored);
    // The fixture's is that of the sum over samples.
    EXPECT_LT(relative_difference(3.0 * sign * masked.gradient, tensor("grad_output")),
              tolerance::kStored);
    EXPECT_TRUE((masked.gradient.narrow(1, kChannels, kChannels) == 0.0).all().item<bool>());
    const Measured whole = measure(flow, sign * output, {});
    EXPECT_LT(relative_difference(whole.loss.per_sample, tensor("loss_unmasked")),
              tolerance::kStored);
  }
}

TEST_F(FlowReferenceTest, GuidedStepsOfTheSampler) {
  constexpr int64_t kSteps = 4;
  constexpr double kScale = 7.0;
  const at::Tensor prediction =
      guided(tensor("output").narrow(1, 0, kChannels), tensor("unconditional"), kScale,
             GuidanceChannels::kAll, kChannels);
  for (int64_t i = 0; i < 3; ++i) {
    const FlowEulerSampler sampler{.times = euler_times({shift(i, false)}, kSteps),
                                   .toward_data = true};
    for (int64_t k = 0; k < kSteps; ++k) {
      EXPECT_NEAR(sampler.times[static_cast<size_t>(k)], tensor("times")[k][i].item<double>(),
                  tolerance::kStored);
    }
    const at::Tensor x = tensor("z").narrow(0, i, 1);
    const SamplerStep step = flow_euler_step(sampler, 1, x, prediction.narrow(0, i, 1));
    EXPECT_LT(relative_difference(step.x, tensor("stepped").narrow(0, i, 1)), tolerance::kStored);
  }
}

// Black Forest Labs' schedule: exp(0.5) at 256 tokens, exp(1.15) at 4096.
TEST(SizeShiftTest, FluxShiftsByTokens) {
  RectifiedFlow flow;
  flow.shift_by_tokens = {0.5, 1.15};
  EXPECT_NEAR(size_shift(flow, {.tokens = 256}), std::exp(0.5), 1e-12);
  EXPECT_NEAR(size_shift(flow, {.tokens = 4096}), std::exp(1.15), 1e-12);
  EXPECT_NEAR(size_shift(flow, {.tokens = 2176}), std::exp(0.825), 1e-12);
  // LTX-Video's, between other numbers of tokens.
  flow.shift_tokens = {1024, 4096};
  EXPECT_NEAR(size_shift(flow, {.tokens = 1024}), std::exp(0.5), 1e-12);
  EXPECT_NEAR(size_shift(flow, {.tokens = 2560}), std::exp(0.825), 1e-12);
  flow.shift_tokens = {256, 4096};
  // Open-Sora 2: get_res_lin_function() of a frame's tokens, times sqrt(latent frames).
  flow.shift_by_tokens = {1.0, 3.0};
  flow.token_shift = RectifiedFlow::TokenShift::kOpenSora2;
  EXPECT_NEAR(size_shift(flow, {.tokens = 256}), 1.0, 1e-12);
  EXPECT_NEAR(size_shift(flow, {.tokens = 4096}), 3.0, 1e-12);
  EXPECT_NEAR(size_shift(flow, {.latent_frames = 33.0, .tokens = 33 * 256}), std::sqrt(33.0),
              1e-12);
  EXPECT_NEAR(size_shift(flow, {.latent_frames = 9.0, .tokens = 9 * 2176}), 2.0 * 3.0, 1e-12);
}

// Open-Sora 1.3, schedulers/rf/time_sampler.py: (num_frames - 1) // 4 frames of a clip, 1 of an
// image; its encoder makes 5 latent frames of 17 frames, and of each 16 more.
TEST(SizeShiftTest, OpenSora13CountsNoFirstFrameOfAChunk) {
  RectifiedFlow flow = open_sora();
  flow.shift_chunk = 5;
  for (const int64_t chunks : {1, 3, 7}) {
    const int64_t frames = 16 * chunks + 1;
    const double expected = std::sqrt(720.0 * 1280.0 / (512.0 * 512.0)) *
                            std::sqrt(static_cast<double>((frames - 1) / 4));
    EXPECT_NEAR(
        size_shift(
            flow, {.height = 720, .width = 1280, .latent_frames = static_cast<double>(5 * chunks)}),
        expected, 1e-12);
  }
  EXPECT_NEAR(size_shift(flow, {.height = 512, .width = 512, .latent_frames = 1.0}), 1.0, 1e-12);
  EXPECT_NEAR(size_shift(flow, {.height = 512, .width = 512, .latent_frames = 7.0}), std::sqrt(5.0),
              1e-12);  // 21 frames
}

}  // namespace flow_reference_test
}  // namespace kinora::diffusion
