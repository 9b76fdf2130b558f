#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "kinora/core/cuda.h"
#include "tests/models/text_encoders/text_fixture.h"

namespace kinora::models {
namespace gpu_text_encoder_test {

class GpuTextEncoderTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!cuda_available()) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
  }
};

class GpuT5InferenceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!ops::TextKernels::takes(at::kCUDA, at::kBFloat16, 64, 300)) {
      GTEST_SKIP() << "no kernels of ours here: " << cuda_unavailable_reason();
    }
  }
};

/// The fixture's texts many times over, so that groups have several lengths and members.
TextTokens many(const TextTokens& tokens, int64_t times) {
  TextTokens result;
  for (int64_t i = 0; i < times; ++i) {
    result.ids.insert(result.ids.end(), tokens.ids.begin(), tokens.ids.end());
    result.lengths.insert(result.lengths.end(), tokens.lengths.begin(), tokens.lengths.end());
  }
  return result;
}

TEST_P(GpuTextEncoderTest, StatesMatchTransformers) {
  const at::NoGradGuard no_grad;
  const TextFixture fixture(GetParam());
  for (const auto& [type, bound] :
       {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 2e-2}, {at::kHalf, 3e-3}}) {
    const auto encoder = fixture.encoder();
    fixture.set_weights(*encoder, type, at::kCUDA);
    const TextStates out = encoder->encode(many(fixture.tokens(), 3));
    EXPECT_TRUE(out.states.is_cuda());
    const at::Tensor expected = fixture.tensor("states").repeat({3, 1});
    EXPECT_LT(relative_difference(out.states.cpu(), expected), bound) << type;
    if (out.pooled.defined()) {
      EXPECT_LT(relative_difference(out.pooled.cpu(), fixture.tensor("pooled").repeat({3, 1})),
                bound)
          << type;
    }
    const at::Tensor padded = padded_states(encoder->encode(fixture.padded_tokens()));
    EXPECT_LT(relative_difference(padded.cpu(), fixture.tensor("padded.states")), bound) << type;
  }
}

TEST_P(GpuTextEncoderTest, EightBitsAreThoseOfTheCpu) {
  const at::NoGradGuard no_grad;
  const TextFixture fixture(GetParam());
  for (const EightBit format : {EightBit::kInt8, EightBit::kFp8}) {
    const auto run = [&](at::Device device) {
      const auto encoder = fixture.encoder();
      fixture.set_weights(*encoder, at::kFloat, device);
      for (TextLinear* linear : encoder->linears()) {
        const EightBitWeight bits = to_eight_bits(linear->weight.value.cpu(), format);
        linear->set_eight_bits({bits.values.to(device), bits.scale.to(device)}, at::kFloat);
      }
      return encoder->encode(fixture.tokens()).states.cpu();
    };
    EXPECT_LT(relative_difference(run(at::kCUDA), run(at::kCPU)), 1e-5);
  }
}

TEST_P(GpuTextEncoderTest, GradientsAreThoseOfTheCpu) {
  const TextFixture fixture(GetParam());
  const auto gradients = [&](at::Device device) {
    auto encoder = fixture.encoder();
    fixture.set_weights(*encoder, at::kFloat, device);
    for (const auto& [path, parameter] : encoder->named_parameters()) {
      parameter->value.set_requires_grad(true);
      parameter->grad = at::zeros(parameter->shape, at::TensorOptions(device).dtype(at::kFloat));
    }
    const at::Tensor states = encoder->encode(fixture.tokens()).states;
    const at::Tensor cotangent = formula_values("states", states.sizes()).to(device);
    torch::autograd::backward({(states * cotangent).sum()}, {});
    return encoder;
  };
  const auto on_gpu = gradients(at::kCUDA);
  const auto on_cpu = gradients(at::kCPU);
  const auto expected = on_cpu->named_parameters();
  const auto got = on_gpu->named_parameters();
  double whole = 0.0;
  for (const auto& named : expected) {
    whole = std::max(whole, named.parameter->grad.norm().item<double>());
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor& grad = expected[i].parameter->grad;
    const double off = (got[i].parameter->grad.cpu() - grad).norm().item<double>();
    EXPECT_LE(off, 1e-4 * std::max(grad.norm().item<double>(), 1e-3 * whole)) << expected[i].path;
  }
}

// Heads of 64 channels: what our own kernels take.
TEST_F(GpuT5InferenceTest, ABlockOfXxlsWidthMatchesTransformers) {
  const at::NoGradGuard no_grad;
  const TextFixture fixture("t5_xxl_layer");
  T5Encoder encoder(fixture.t5());
  fixture.set_weights(encoder, at::kBFloat16, at::kCUDA);
  const auto difference = [&] {
    const TextStates out = encoder.encode(many(fixture.tokens(), 3));
    return relative_difference(out.states.cpu(), fixture.tensor("states").repeat({3, 1}));
  };
  EXPECT_LT(difference(), 2e-2);
  std::vector<at::Tensor> exact;
  for (const TextLinear* linear : encoder.linears()) {
    exact.push_back(linear->weight.value);
  }
  for (const auto& [format, bound] : {std::pair{EightBit::kInt8, 2e-2}, {EightBit::kFp8, 8e-2}}) {
    for (size_t i = 0; i < exact.size(); ++i) {
      encoder.linears()[i]->set_eight_bits(to_eight_bits(exact[i], format), at::kBFloat16);
    }
    EXPECT_LT(difference(), bound);
  }
}

// Against T5Block::forward(), which runs where something looks at outputs, and no further from
// fp32's states than it is.
TEST_F(GpuT5InferenceTest, IsAsExactAsTheBlocksForward) {
  const at::NoGradGuard no_grad;
  TextTokens tokens;
  for (const int64_t length : {1, 300, 17, 64, 129, 5, 64}) {
    std::vector<int32_t> text(static_cast<size_t>(length));
    for (size_t i = 0; i < text.size(); ++i) {
      text[i] = static_cast<int32_t>((7 * i + static_cast<size_t>(length)) % 100);
    }
    tokens.add(text);
  }
  for (const bool is_gated : {false, true}) {
    T5Encoder encoder({.vocab_size = 100,
                       .d_model = 256,
                       .d_ff = 520,
                       .num_layers = 3,
                       .num_heads = 4,
                       .activation = is_gated ? Activation::kGeluTanh : Activation::kRelu,
                       .is_gated = is_gated,
                       .bias_in_every_block = is_gated});
    for (const auto& [path, parameter] : encoder.named_parameters()) {
      parameter->value = formula_weight(path, parameter->shape).to(at::kCUDA);
    }
    const at::Tensor exact = encoder.encode(tokens).states;
    for (const auto& [path, parameter] : encoder.named_parameters()) {
      parameter->value = parameter->value.to(at::kBFloat16);
    }
    const at::Tensor own = encoder.encode(tokens).states;
    encoder.set_tap([](const std::string& /*path*/, const at::Tensor& output) { return output; });
    const at::Tensor plain = encoder.encode(tokens).states;
    EXPECT_FALSE(own.equal(plain));  // two ways have run
    EXPECT_LT(relative_difference(own, exact), 1.2 * relative_difference(plain, exact) + 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GpuTextEncoderTest,
                         testing::Values("t5", "t5_gated", "umt5", "clip_old_end",
                                         "clip_projection"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace gpu_text_encoder_test
}  // namespace kinora::models
