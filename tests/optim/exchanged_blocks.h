#pragma once

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kinora/kernels/weight_codes.h"
#include "kinora/ops/bucket_hook.h"
#include "kinora/optim/held_weights.h"
#include "kinora/optim/weight_exchange.h"
#include "tests/optim/model.h"

/// Two sets of weights that change places, on any device.
namespace kinora::optim {

/// Blocks of a matrix and a bias each, and an fp32 island, which sample in bf16.
class ExchangedBlocks {
 public:
  static constexpr int64_t kBlocks = 3;

  explicit ExchangedBlocks(HeldOptions held, at::Device device = at::kCPU, int64_t width = 32) {
    parameters_.add("out.scale", {5}, nn::Init::normal(0.5), /*fp32_island=*/true);
    std::vector<nn::BucketSpec> buckets = {{"out", {"out.scale"}, true}};
    for (int64_t i = 0; i < kBlocks; ++i) {
      const std::string block = "blocks." + std::to_string(i);
      parameters_.add(block + ".fc.weight", {width, 32});
      parameters_.add(block + ".fc.bias", {width});
      buckets.push_back({.name = block,
                         .parameters = {block + ".fc.weight", block + ".fc.bias"},
                         .ring = "blocks",
                         .is_block = true});
    }
    held.buckets = buckets;
    ArenaOptions options;
    options.device = device;
    options.compute_type = at::kBFloat16;
    options.train = false;
    options.held = std::move(held);
    arena_.emplace(parameters_.named(), buckets, options);
  }

  [[nodiscard]] Arena& arena() { return *arena_; }
  [[nodiscard]] const std::vector<nn::NamedParameter>& named() const { return parameters_.named(); }
  void load_random() {
    for (const auto& [path, parameter] : named()) {
      arena().load_parameter(path, at::randn(parameter->shape));
    }
  }
  /// What forward reads: tells of blocks before.
  [[nodiscard]] std::vector<at::Tensor> read() {
    const ops::BucketHook hook =
        arena().held() == nullptr ? ops::BucketHook() : arena().held()->hook();
    std::vector<at::Tensor> all = {named().front().parameter->value.clone()};
    for (int64_t i = 0; i < kBlocks; ++i) {
      if (hook) {
        hook(ops::BucketMoment::kBeforeForward, i + 1);
      }
      all.push_back(named()[static_cast<size_t>(2 * i + 1)].parameter->value.clone());
      all.push_back(named()[static_cast<size_t>(2 * i + 2)].parameter->value.clone());
    }
    return all;
  }
  [[nodiscard]] std::vector<uint32_t> versions() const {
    std::vector<uint32_t> all;
    for (const auto& [path, parameter] : named()) {
      all.push_back(static_cast<uint32_t>(parameter->value._version()));
    }
    return all;
  }

 private:
  TestParameters parameters_;
  std::optional<Arena> arena_;
};

inline void expect_equal(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(at::equal(got[i], want[i])) << i;
  }
}

/// Each set is read as it was loaded, as often as it is brought.
inline void expect_brings_each_set(ExchangedBlocks& blocks) {
  using Set = WeightExchange::Set;
  blocks.load_random();
  const std::vector<at::Tensor> first = blocks.read();
  WeightExchange exchange(blocks.arena());
  expect_equal(blocks.read(), first);
  exchange.bring(Set::kSecond);
  for (const at::Tensor& value : blocks.read()) {
    EXPECT_FALSE(value.any().item<bool>());
  }
  blocks.load_random();
  const std::vector<at::Tensor> second = blocks.read();
  EXPECT_FALSE(at::equal(second[1], first[1]));
  for (int turn = 0; turn < 2; ++turn) {
    exchange.bring(Set::kFirst);
    expect_equal(blocks.read(), first);
    exchange.bring(Set::kFirst);
    expect_equal(blocks.read(), first);
    exchange.bring(Set::kSecond);
    EXPECT_EQ(exchange.there(), Set::kSecond);
    expect_equal(blocks.read(), second);
  }
}

/// Ways in which they are held.
inline std::vector<HeldOptions> exchanged_ways() {
  return {{},
          {.offload = 0.5},
          {.offload = 1.0},
          {.format = kernels::WeightFormat::kNf4},
          {.format = kernels::WeightFormat::kFp8, .offload = 0.5}};
}
inline std::string name_of_way(const testing::TestParamInfo<HeldOptions>& info) {
  const HeldOptions& held = info.param;
  return std::string(held.format ? kernels::name_of(*held.format) : "as_read") + "_offload_" +
         std::to_string(static_cast<int>(100 * held.offload));
}

/// Whose sets are of several pieces.
inline constexpr int64_t kWideBlocks = int64_t{1} << 20;  // 66 MiB each

}  // namespace kinora::optim
