#include "kinora/optim/held_weights.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/nn/module.h"
#include "kinora/nn/plan.h"

namespace kinora::optim {
namespace held_weights_test {

/// Two blocks of one frozen matrix each, with `room` beside it.
struct TwoBlocks {
  TwoBlocks(int64_t room, const HeldOptions& options) {
    std::vector<nn::NamedParameter> named;
    HeldOptions all = options;
    for (size_t i = 0; i < 2; ++i) {
      matrices[i].shape = {4, 32};
      matrices[i].frozen = true;
      matrices[i].room = room;
      const std::string block = "blocks." + std::to_string(i);
      named.push_back({block + ".fc.weight", &matrices[i]});
      all.buckets.push_back({.name = block,
                             .parameters = {block + ".fc.weight"},
                             .ring = "blocks",
                             .is_block = true});
    }
    held.emplace(named, all, at::kBFloat16, at::kCPU, /*train=*/true);
  }

  std::array<nn::Parameter, 2> matrices;
  std::optional<HeldWeights> held;
};

// Room beside a matrix is in the memory that it takes turns in, and changes nothing of its values.
TEST(HeldWeightsTest, MatricesMayHaveRoomBesideThem) {
  constexpr int64_t kRoom = 8;
  using kernels::WeightFormat;
  const std::vector<HeldOptions> cases = {{.offload = 0.5},
                                          {.offload = 1.0},
                                          {.format = WeightFormat::kInt8},
                                          {.format = WeightFormat::kNf4, .offload = 1.0}};
  for (const HeldOptions& options : cases) {
    SCOPED_TRACE(testing::Message() << "offload " << options.offload << ", "
                                    << (options.format ? kernels::name_of(*options.format) : ""));
    TwoBlocks with(kRoom, options);
    TwoBlocks without(0, options);
    for (const HeldWeights::Weight& weight : with.held->weights()) {
      const at::Tensor values = at::randn({4, 32});
      with.held->load(weight.slot.path, values);
      without.held->load(weight.slot.path, values);
      const at::Tensor held = with.held->value(weight.slot.path, at::kFloat);
      EXPECT_TRUE(held.is_contiguous());
      EXPECT_TRUE(at::equal(held, without.held->value(weight.slot.path, at::kFloat)));
    }
    const ops::BucketHook hook = with.held->hook();
    for (const auto moment :
         {ops::BucketMoment::kBeforeForward, ops::BucketMoment::kBeforeBackward}) {
      for (size_t turn = 0; turn < 2; ++turn) {
        const size_t block = moment == ops::BucketMoment::kBeforeForward ? turn : 1 - turn;
        const std::string path = "blocks." + std::to_string(block) + ".fc.weight";
        if (!with.held->contains(path)) {
          continue;
        }
        hook(moment, static_cast<int64_t>(block));
        const at::Tensor& read = with.matrices[block].value;
        EXPECT_EQ(read.strides(), at::IntArrayRef({64, 1})) << "rows start on 128 bytes";
        EXPECT_TRUE(at::equal(read, with.held->value(path, at::kBFloat16))) << path;
        // Columns behind the rows and rows below them are there, and nobody else's.
        read.detach()
            .as_strided({4 + kRoom, 32 + kRoom}, read.strides())
            .narrow(1, 32, kRoom)
            .fill_(7.0);
        EXPECT_TRUE(at::equal(read, with.held->value(path, at::kBFloat16))) << path;
      }
    }
  }
}

/// Two rings of three blocks, each with modulation and another matrix, both frozen.
struct TwoRings {
  explicit TwoRings(HeldOptions options) {
    std::vector<nn::NamedParameter> named;
    for (size_t i = 0; i < paths.size(); ++i) {
      nn::BucketSpec bucket{.name = "blocks." + std::to_string(i),
                            .parameters = {},
                            .ring = i < 3 ? "first" : "second",
                            .is_block = true};
      for (const char* name : {".adaLN_modulation.1.weight", ".fc.weight"}) {
        nn::Parameter& parameter = *parameters.emplace_back(std::make_unique<nn::Parameter>());
        parameter.shape = {i < 3 ? 64 : 16, 32};
        parameter.frozen = true;
        paths[i].push_back(bucket.name + name);
        named.push_back({paths[i].back(), &parameter});
      }
      bucket.parameters = paths[i];
      options.buckets.push_back(std::move(bucket));
    }
    held.emplace(named, options, at::kFloat, at::kCPU, /*train=*/true);
    for (const HeldWeights::Weight& weight : held->weights()) {
      held->load(weight.slot.path, at::randn(weight.slot.shape));
    }
    hook = held->hook();
  }

  /// Tells of a bucket, whose weights must then be there; modulation if `all`.
  void use(ops::BucketMoment moment, size_t bucket, bool all) {
    hook(moment, static_cast<int64_t>(bucket));
    for (const size_t part : {0, 1}) {
      const std::string& path = paths[bucket][part];
      if (held->contains(path) && (all || part == 1)) {
        EXPECT_TRUE(at::equal(parameters[2 * bucket + part]->value, held->value(path, at::kFloat)))
            << path << (moment == ops::BucketMoment::kBeforeForward ? " forward" : " backward");
      }
    }
  }

  /// What replayed graphs may do to the rooms.
  void overwrite_rooms() {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (held->contains(paths[i / 2][i % 2])) {
        at::Tensor(parameters[i]->value).fill_(1e9);
      }
    }
  }

  std::array<std::vector<std::string>, 6> paths;
  std::vector<std::unique_ptr<nn::Parameter>> parameters;
  std::optional<HeldWeights> held;
  ops::BucketHook hook;
};

// Whatever passes came before: whole ones, some of forward alone, some that ended half-way.
TEST(HeldWeightsTest, WeightsAreThereWhenTheyAreUsed) {
  using ops::BucketMoment;
  const std::optional<kernels::WeightFormat> formats[] = {std::nullopt,
                                                          kernels::WeightFormat::kInt8};
  for (const auto& format : formats) {
    for (const double offload : {0.1, 0.3, 0.5, 0.7, 1.0}) {
      for (const ModulationUse use : {ModulationUse::kBothWays, ModulationUse::kForward}) {
        const bool in_backward = use == ModulationUse::kBothWays;
        SCOPED_TRACE(testing::Message() << "offload " << offload << ", modulation in backward "
                                        << in_backward << ", in codes " << format.has_value());
        TwoRings model({.format = format, .offload = offload, .modulation = use});
        for (const size_t forward : {6, 6, 4, 6, 3, 2, 6}) {
          model.overwrite_rooms();
          for (size_t bucket = 0; bucket < forward; ++bucket) {
            model.use(BucketMoment::kBeforeForward, bucket, true);
          }
          for (size_t bucket = forward; bucket-- > 0 && forward == 6;) {
            model.use(BucketMoment::kBeforeBackward, bucket, in_backward);
          }
        }
      }
    }
  }
}

// Of both rings by their time, of which the second takes half of the first's with a quarter of its
// weights, and modulation first. Whole weights alone.
TEST(HeldWeightsTest, TheHostHasOfEachRingByItsTimeAndModulationFirst) {
  const auto at_host = [](double offload) {
    const TwoRings model({.offload = offload});
    std::array<int64_t, 4> elements = {};
    for (const HeldWeights::Weight& weight : model.held->weights()) {
      const bool is_second = weight.slot.path[7] >= '3';
      elements[2 * is_second + !is_modulation(weight.slot.path)] += weight.slot.numel;
    }
    return elements;
  };
  constexpr int64_t kFirst = 3 * 64 * 32;
  constexpr int64_t kSecond = 3 * 16 * 32;
  EXPECT_EQ(at_host(1.0), (std::array<int64_t, 4>{kFirst, kFirst, kSecond, kSecond}));
  // 5120 of 12,288 elements, and 2560 of 3072.
  EXPECT_EQ(at_host(0.5), (std::array<int64_t, 4>{kFirst / 3 * 2, 0, kSecond, kSecond / 3 * 2}));
  // The second has no more than it has: 7168 and 3072.
  EXPECT_EQ(at_host(2.0 / 3), (std::array<int64_t, 4>{kFirst, 0, kSecond, kSecond}));
}

// It has no room on the device.
TEST(HeldWeightsTest, WhatTheHostMultipliesStaysThere) {
  constexpr int64_t kFirst = 3 * 64 * 32;
  constexpr int64_t kSecond = 3 * 16 * 32;
  for (const bool in_codes : {false, true}) {
    HeldOptions options{.offload = 0.5, .modulation = ModulationUse::kHostProducts};
    if (in_codes) {
      options.format = kernels::WeightFormat::kInt8;
    }
    const TwoRings model(options);
    int64_t staying = 0;
    for (size_t bucket = 0; bucket < model.paths.size(); ++bucket) {
      const std::string& path = model.paths[bucket].front();
      const nn::Parameter& parameter = *model.parameters[2 * bucket];
      ASSERT_TRUE(parameter.at_host) << path;
      EXPECT_TRUE(parameter.value.is_meta());
      EXPECT_EQ(parameter.value.sizes(), at::IntArrayRef(parameter.shape));
      staying += parameter.numel();
      const at::Tensor x = at::randn({2, 32});
      model.hook(ops::BucketMoment::kBeforeForward, static_cast<int64_t>(bucket));
      parameter.at_host.products->begin({parameter.at_host.number}, x);
      EXPECT_TRUE(at::allclose(parameter.at_host.result(),
                               at::linear(x, model.held->value(path, at::kFloat)), 1e-5, 1e-5))
          << path;
      EXPECT_FALSE(model.parameters[2 * bucket + 1]->at_host);
    }
    EXPECT_EQ(staying, kFirst + kSecond);
    // Codes of the device have a room a ring; what stays has none.
    EXPECT_EQ(model.held->room_bytes(), in_codes ? (64 + 16) * 32 * 4 : 0);
  }
  // Codes without a product come over the link.
  const TwoRings travelling({.format = kernels::WeightFormat::kNf4,
                             .offload = 0.5,
                             .modulation = ModulationUse::kHostProducts});
  for (const auto& parameter : travelling.parameters) {
    EXPECT_FALSE(parameter->at_host);
  }
}

}  // namespace held_weights_test
}  // namespace kinora::optim
