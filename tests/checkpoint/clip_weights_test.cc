#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "kinora/checkpoint/model_weights.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/transformers/stdit3.h"
#include "tests/checkpoint/testing.h"

namespace kinora::checkpoint {
namespace clip_weights_test {

constexpr const char* kProjection = "x_embedder.proj.weight";

models::ModelConfig tiny(int64_t patch_frames) {
  models::ModelConfig config;
  config.architecture = "stdit3";
  config.frames = 2 * patch_frames;
  config.height = 4;
  config.width = 4;
  config.in_channels = 4;
  config.transformer.patch_frames = patch_frames;
  config.transformer.patch = 2;
  config.transformer.hidden = 16;
  config.transformer.depth = 1;
  config.transformer.heads = 2;
  config.text_channels = 6;
  config.text_tokens = 3;
  return models::resolved(config);
}

class ClipWeightsTest : public testing::Test {
 protected:
  /// A file with values for everything that such a model has.
  WeightsFile file_for(models::STDiT3& model, bool of_images) {
    for (const auto& [path, parameter] : model.named_parameters()) {
      values_[path] = at::randn(parameter->shape);
    }
    for (const auto& [path, buffer] : model.named_buffers()) {
      values_[path] = at::randn(buffer->sizes());
    }
    if (of_images) {
      values_[kProjection] = values_[kProjection].select(2, 0).contiguous();
    }
    std::vector<io::SafetensorsTensor> entries;
    for (const auto& [path, tensor] : values_) {
      entries.push_back({.name = path,
                         .dtype = device::dtype_of(tensor.scalar_type()),
                         .shape = tensor.sizes().vec(),
                         .data = device::bytes_of(tensor)});
    }
    io::write_safetensors(folder_.path() / "w.safetensors", entries, {});
    return WeightsFile::open(folder_.path() / "w.safetensors");
  }

  static optim::Arena arena_of(models::STDiT3& model) {
    return {model.named_parameters(), model.buckets(),
            optim::ArenaOptions{.compute_type = at::kBFloat16, .ema_decays = {}, .sharding = {}}};
  }

  TemporaryFolder folder_;
  std::map<std::string, at::Tensor> values_;
};

TEST_F(ClipWeightsTest, PublishedNamesLoadBuffersIncluded) {
  models::STDiT3 model(tiny(2));
  const WeightsFile file = file_for(model, false);
  for (const char* name :
       {"spatial_blocks.0.attn.q_norm.weight", "temporal_blocks.0.cross_attn.kv_linear.weight",
        "temporal_blocks.0.scale_shift_table", "fps_embedder.mlp.2.bias", "t_block.1.weight",
        "y_embedder.y_proj.fc1.weight", "y_embedder.y_embedding", "rope.freqs",
        "final_layer.scale_shift_table", "final_layer.linear.bias"}) {
    EXPECT_TRUE(file.contains(name)) << name;
  }
  optim::Arena arena = arena_of(model);
  for (const auto& [path, parameter] : model.named_parameters()) {
    if (path.ends_with("norm.weight")) {
      EXPECT_TRUE((parameter->value == 1.0).all().item<bool>()) << path << " starts at one";
    }
  }
  load_weights(file, model, arena);
  for (const auto& [path, parameter] : model.named_parameters()) {
    EXPECT_TRUE(at::equal(arena.export_parameter(path, optim::Role::master()), values_.at(path)))
        << path;
    EXPECT_EQ(parameter->value.scalar_type(), parameter->fp32_island ? at::kFloat : at::kBFloat16)
        << path;
  }
  for (const auto& [path, buffer] : model.named_buffers()) {
    EXPECT_TRUE(at::equal(*buffer, values_.at(path))) << path;
  }
}

TEST_F(ClipWeightsTest, ThePatchesOfAnImageModelAreOneFrameDeep) {
  models::STDiT3 model(tiny(1));
  const WeightsFile file = file_for(model, true);
  optim::Arena arena = arena_of(model);
  load_weights(file, model, arena);
  EXPECT_TRUE(at::equal(arena.export_parameter(kProjection, optim::Role::master()),
                        values_.at(kProjection).unsqueeze(2)));

  models::STDiT3 deep(tiny(2));
  optim::Arena deep_arena = arena_of(deep);
  EXPECT_NE(refusal(ErrorKind::kIo, [&] { load_weights(file, deep, deep_arena); })
                .find("x_embedder.proj.weight (must be [16, 4, 2, 2, 2], is [16, 4, 2, 2])"),
            std::string::npos);
}

}  // namespace clip_weights_test
}  // namespace kinora::checkpoint
