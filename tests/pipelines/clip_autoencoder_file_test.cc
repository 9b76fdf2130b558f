#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <map>

#include "kinora/device/host_bytes.h"
#include "kinora/io/file.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/autoencoders/hunyuan_vae.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "tests/error_of.h"
#include "tests/io/io_testing.h"
#include "tests/models/formula_values.h"

namespace kinora::pipelines {
namespace clip_autoencoder_file_test {

constexpr const char* kConfig =
    R"({"_class_name": "AutoencoderKLHunyuanVideo", "block_out_channels": [8, 16],
        "layers_per_block": 1, "latent_channels": 2, "norm_num_groups": 4, "scaling_factor": 0.5,
        "spatial_compression_ratio": 2, "temporal_compression_ratio": 2})";

/// A folder as diffusers writes it, with the formula's weights.
class ClipAutoencoderFileTest : public testing::Test {
 protected:
  void write(const std::string& prefix, const std::string& without = "") {
    std::vector<io::SafetensorsTensor> tensors;
    for (const auto& [path, parameter] : model_.named_parameters()) {
      if (path != without) {
        tensors.push_back({.name = prefix + path,
                           .dtype = DType::kF32,
                           .shape = parameter->shape,
                           .data = device::bytes_of(parameter->value)});
      }
    }
    io::write_safetensors(folder_ / "diffusion_pytorch_model.safetensors", tensors);
    io::write_file_atomic(folder_ / "config.json", std::string_view(kConfig));
  }

  void SetUp() override {
    models::set_formula_weights(model_);
    for (const auto& [path, parameter] : model_.named_parameters()) {
      parameter->value = parameter->value.detach();
    }
  }

  io::test::TemporaryFolder folder_;
  models::HunyuanVae model_{{.latent_channels = 2,
                             .block_out_channels = {8, 16},
                             .layers_per_block = 1,
                             .norm_num_groups = 4,
                             .spatial_compression_ratio = 2,
                             .temporal_compression_ratio = 2,
                             .scaling_factor = 0.5}};
};

TEST_F(ClipAutoencoderFileTest, FoldersOfDiffusersAndNamesOfTheOriginal) {
  const at::NoGradGuard no_grad;
  const at::Tensor latents = models::formula_values("z", {1, 2, 3, 4, 5});
  const at::Tensor expected = model_.decode(latents);
  std::string first;
  for (const char* prefix : {"", "vae."}) {
    write(prefix);
    const auto opened = open_autoencoder(folder_.path(), at::kCPU, at::kFloat);
    EXPECT_EQ(opened->space().frame_compression, 2);
    EXPECT_LT((opened->decode(latents) - expected).abs().max().item<double>(), 1e-5);
    const std::string name = fingerprint(folder_.path());
    EXPECT_EQ(name, first.empty() ? name : first);
    first = name;
  }
}

TEST_F(ClipAutoencoderFileTest, WhatIsMissingIsListed) {
  write("", "decoder.mid_block.attentions.0.to_q.weight");
  const std::string error = error_of(
      ErrorKind::kIo, [&] { (void)open_autoencoder(folder_.path(), at::kCPU, at::kFloat); });
  EXPECT_NE(error.find("1 missing"), std::string::npos) << error;
  EXPECT_NE(error.find("decoder.mid_block.attentions.0.to_q.weight"), std::string::npos) << error;
}

}  // namespace clip_autoencoder_file_test
}  // namespace kinora::pipelines
