#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <string>

#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/pipelines/decode.h"

namespace kinora::inference {

/// What the latents decode to, in [0, 1], is within a level of 255 of `expected`. The largest
/// difference is in the test's report, as `property`.
inline void expect_pictures(models::Autoencoder& decoder, const at::Tensor& latents,
                            const at::Tensor& expected,
                            const std::string& property = "largest_difference") {
  const at::Tensor pictures =
      (pipelines::decode_latents(decoder, latents, at::kCPU, false) / 2 + 0.5).clamp(0.0, 1.0);
  ASSERT_EQ(pictures.sizes(), expected.sizes());
  const double difference = (pictures - expected.to(at::kFloat)).abs().max().item<double>();
  testing::Test::RecordProperty(property, std::to_string(difference));
  EXPECT_LT(difference, 1.0 / 255.0) << property;
}

}  // namespace kinora::inference
