#include "kinora/optim/arena.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kinora/core/error.h"
#include "tests/error_of.h"
#include "tests/optim/model.h"

namespace kinora::optim {
namespace arena_test {

using testing::HasSubstr;

/// Two blocks and an island.
struct SmallModel : TestParameters {
  SmallModel() {
    add("a.weight", {5, 7}, nn::Init::xavier_uniform(7, 5));
    add("a.bias", {5}, nn::Init::zero());
    add("b.weight", {33, 2}, nn::Init::normal(0.02));
    add("head.weight", {3}, nn::Init::normal(1.0), true);
  }
  [[nodiscard]] static std::vector<nn::BucketSpec> buckets() {
    return {{"a", {"a.weight", "a.bias"}, false},
            {"b", {"b.weight"}, false},
            {"islands", {"head.weight"}, true}};
  }
};

ArenaOptions with(at::ScalarType type, std::vector<double> decays = {}, bool train = true) {
  ArenaOptions options;
  options.compute_type = type;
  options.seed = 7;
  options.train = train;
  options.ema_decays = std::move(decays);
  return options;
}

TEST(ArenaTest, SlotsAndBucketsAreAligned) {
  SmallModel model;
  const Arena arena(model.named(), SmallModel::buckets(), with(at::kBFloat16, {0.9}));
  ASSERT_EQ(arena.buckets().size(), 3U);
  EXPECT_EQ(arena.num_elements(), 35 + 5 + 66 + 3);
  for (const Bucket& bucket : arena.buckets()) {
    EXPECT_EQ(bucket.numel % kBucketAlignment, 0);
    int64_t end = 0;
    for (const Slot& slot : bucket.slots) {
      EXPECT_GE(slot.offset, end) << "slots must not overlap";
      EXPECT_LT(slot.offset - end, kSlotAlignment);
      end = slot.offset + slot.numel;
      EXPECT_LE(end, bucket.numel);
      for (const Role role : {Role::compute(), Role::master(), Role::grad(), Role::exp_avg(),
                              Role::exp_avg_sq(), Role::average(0)}) {
        const at::Tensor view = arena.export_parameter(slot.path, role);
        EXPECT_EQ(view.sizes(), at::IntArrayRef(slot.shape));
        EXPECT_TRUE(view.is_contiguous());
        EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data_ptr()) % 64, 0U)
            << slot.path << " " << to_string(role);
      }
    }
  }
}

// In memory [out, kernel, in]; the shape, the values and what is exported are as without.
TEST(ArenaTest, ChannelsLastIsAnOrderInMemoryAlone) {
  const auto arena_of = [](TestParameters& parameters, bool channels_last) {
    parameters.add("conv.weight", {4, 3, 2, 5}, nn::Init::normal(1.0)).channels_last =
        channels_last;
    return std::make_unique<Arena>(parameters.named(), parameters.one_bucket(),
                                   with(at::kBFloat16, {0.9}));
  };
  TestParameters first, second;
  const auto plain = arena_of(first, false);
  const auto ordered = arena_of(second, true);
  const auto exported = [](const Arena& arena, Role role) {
    return arena.export_parameter("conv.weight", role);
  };
  for (const Role role : {Role::compute(), Role::master(), Role::average(0)}) {
    EXPECT_TRUE(at::equal(exported(*ordered, role), exported(*plain, role))) << to_string(role);
  }
  const nn::Parameter& parameter = *second.named().front().parameter;
  EXPECT_TRUE(parameter.value.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(parameter.grad.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(at::equal(ordered->own_part("conv.weight", Role::master()).values,
                        exported(*plain, Role::master()).permute({0, 2, 3, 1}).flatten()));

  const at::Tensor value = at::arange(120).view({4, 3, 2, 5}).to(at::kFloat);
  ordered->load_parameter("conv.weight", value);
  EXPECT_TRUE(at::equal(exported(*ordered, Role::master()), value));
  EXPECT_TRUE(at::equal(parameter.value.to(at::kFloat), value));
}

TEST(ArenaTest, ParametersPointIntoTheBuckets) {
  SmallModel model;
  Arena arena(model.named(), SmallModel::buckets(), with(at::kBFloat16));
  for (const nn::NamedParameter& named : model.named()) {
    const nn::Parameter& parameter = *named.parameter;
    EXPECT_EQ(parameter.value.scalar_type(), parameter.fp32_island ? at::kFloat : at::kBFloat16);
    EXPECT_TRUE(parameter.value.is_leaf());
    EXPECT_TRUE(parameter.value.requires_grad());
    EXPECT_EQ(parameter.value.data_ptr(),
              arena.export_parameter(named.path, Role::compute()).data_ptr());
    EXPECT_EQ(parameter.grad.scalar_type(), at::kFloat);
    EXPECT_EQ(parameter.grad.data_ptr(),
              arena.export_parameter(named.path, Role::grad()).data_ptr());
    EXPECT_FALSE(parameter.grad.requires_grad());
    EXPECT_TRUE(at::equal(
        parameter.value.detach(),
        arena.export_parameter(named.path, Role::master()).to(parameter.value.scalar_type())));
  }
  model.named()[0].parameter->grad.add_(1.0);
  EXPECT_EQ(arena.buckets()[0].grad.sum().item<float>(), 35.0F);
  arena.zero_grad();
  EXPECT_EQ(arena.buckets()[0].grad.abs().sum().item<float>(), 0.0F);
}

TEST(ArenaTest, BackwardReachesTheLeaves) {
  SmallModel model;
  const Arena arena(model.named(), SmallModel::buckets(), with(at::kFloat));
  const at::Tensor& weight = model.named()[0].parameter->value;
  weight.mul(3.0).sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::full({5, 7}, 3.0)));
}

TEST(ArenaTest, ValuesDependOnSeedAndPathAlone) {
  SmallModel model;
  const Arena arena(model.named(), SmallModel::buckets(), with(at::kFloat));
  TestParameters other;  // another order, other company, another precision
  other.add("unrelated", {100});
  other.add("b.weight", {33, 2}, nn::Init::normal(0.02));
  other.add("a.weight", {5, 7}, nn::Init::xavier_uniform(7, 5));
  const Arena second(other.named(), other.one_bucket(), with(at::kBFloat16));
  for (const char* path : {"a.weight", "b.weight"}) {
    EXPECT_TRUE(at::equal(arena.export_parameter(path, Role::master()),
                          second.export_parameter(path, Role::master())));
  }
  EXPECT_FALSE(at::equal(second.export_parameter("unrelated", Role::master()).narrow(0, 0, 66),
                         second.export_parameter("b.weight", Role::master()).view({-1})));
  SmallModel third_model;
  ArenaOptions reseeded = with(at::kFloat);
  reseeded.seed = 8;
  const Arena third(third_model.named(), SmallModel::buckets(), reseeded);
  EXPECT_FALSE(at::equal(third.export_parameter("b.weight", Role::master()),
                         arena.export_parameter("b.weight", Role::master())));
}

TEST(ArenaTest, InitialValuesHaveTheirDistribution) {
  TestParameters model;
  model.add("xavier", {300, 500}, nn::Init::xavier_uniform(500, 300));
  model.add("normal", {400, 400}, nn::Init::normal(0.02));
  model.add("zero", {40}, nn::Init::zero());
  const Arena arena(model.named(), model.one_bucket(), with(at::kFloat));
  const double bound = std::sqrt(6.0 / 800.0);
  const at::Tensor xavier = arena.export_parameter("xavier", Role::master());
  EXPECT_LT(xavier.abs().max().item<double>(), bound);
  EXPECT_GT(xavier.abs().max().item<double>(), bound * 0.999);
  EXPECT_NEAR(xavier.mean().item<double>(), 0.0, bound * 0.01);
  EXPECT_NEAR(xavier.std().item<double>(), bound / std::sqrt(3.0), bound * 0.005);
  const at::Tensor normal = arena.export_parameter("normal", Role::master());
  EXPECT_NEAR(normal.mean().item<double>(), 0.0, 0.02 * 0.0125);
  EXPECT_NEAR(normal.std().item<double>(), 0.02, 0.02 * 0.009);
  EXPECT_GT(normal.abs().max().item<double>(), 0.02 * 4.0);
  EXPECT_EQ(arena.export_parameter("zero", Role::master()).abs().max().item<float>(), 0.0F);
  EXPECT_EQ(arena.buckets()[0].master.count_nonzero().item<int64_t>(),
            xavier.count_nonzero().item<int64_t>() + normal.count_nonzero().item<int64_t>())
      << "nothing between the slots";
}

TEST(ArenaTest, AveragesStartAsTheWeightsAndMomentsAsZeros) {
  SmallModel model;
  const Arena arena(model.named(), SmallModel::buckets(), with(at::kHalf, {0.9, 0.99}));
  for (const Bucket& bucket : arena.buckets()) {
    ASSERT_EQ(bucket.ema.size(), 2U);
    EXPECT_TRUE(at::equal(bucket.ema[1], bucket.master));
    EXPECT_EQ(bucket.exp_avg.count_nonzero().item<int64_t>(), 0);
    EXPECT_EQ(bucket.exp_avg_sq.count_nonzero().item<int64_t>(), 0);
  }
}

TEST(ArenaTest, CountsBytesByRole) {
  SmallModel model;
  const Arena half(model.named(), SmallModel::buckets(), with(at::kHalf, {0.9, 0.99}));
  EXPECT_EQ(half.bytes(Role::master()), 3 * kBucketAlignment * 4);
  EXPECT_EQ(half.bytes(Role::compute()), 2 * kBucketAlignment * 2)
      << "the island's copy is its master";
  EXPECT_EQ(half.bytes(Role::average(1)), 3 * kBucketAlignment * 4);
  SmallModel other;
  const Arena sampling(other.named(), SmallModel::buckets(), with(at::kHalf, {}, false));
  EXPECT_EQ(sampling.bytes(Role::master()), 0);
  EXPECT_EQ(sampling.bytes(Role::grad()), 0);
  EXPECT_EQ(sampling.bytes(Role::compute()), 2 * kBucketAlignment * 2 + kBucketAlignment * 4);
}

TEST(ArenaTest, OffloadTakesTheStateOfTheLastBlocks) {
  TestParameters parameters;
  std::vector<nn::BucketSpec> specs;
  for (const char* name : {"embed", "block0", "block1", "block2", "final"}) {
    parameters.add(std::string(name) + ".weight", {8, 8});
    const bool is_block = std::string_view(name).starts_with("block");
    specs.push_back({name, {std::string(name) + ".weight"}, false, is_block ? "blocks" : ""});
  }
  const auto offloaded = [&](double share) {
    ArenaOptions options;
    options.compute_type = at::kBFloat16;
    options.ema_decays = {0.9};
    options.offload = share;
    const Arena arena(parameters.named(), specs, options);
    std::string names;
    for (const Bucket& bucket : arena.buckets()) {
      names += bucket.is_offloaded ? bucket.name + " " : "";
    }
    int64_t bytes = 0;
    for (const Role role : arena.state_roles()) {
      bytes += arena.offloaded_bytes(role);
    }
    return std::pair(names, bytes);
  };
  constexpr int64_t kOfABlock = kBucketAlignment * 4 * 4;  // master, two moments, an average
  EXPECT_EQ(offloaded(0.0), std::pair(std::string(), int64_t{0}));
  EXPECT_EQ(offloaded(0.3), std::pair(std::string("block2 "), kOfABlock));
  EXPECT_EQ(offloaded(0.5), std::pair(std::string("block1 block2 "), 2 * kOfABlock));
  EXPECT_EQ(offloaded(1.0), std::pair(std::string("block0 block1 block2 "), 3 * kOfABlock));
  ArenaOptions options;
  options.offload = 1.5;
  EXPECT_THROW(Arena(parameters.named(), specs, options), Error);
}

TEST(ArenaTest, StateRolesNameWhatACheckpointKeeps) {
  SmallModel model;
  const Arena arena(model.named(), SmallModel::buckets(), with(at::kHalf, {0.9, 0.99}));
  std::vector<std::string> names;
  for (const Role role : arena.state_roles()) {
    names.push_back(to_string(role));
    EXPECT_TRUE(arena.buckets()[0].tensor(role).defined());
  }
  EXPECT_THAT(names, testing::ElementsAre("master", "exp_avg", "exp_avg_sq", "ema.0", "ema.1"));
}

TEST(ArenaTest, SamplingKeepsOnlyTheComputeCopies) {
  SmallModel model;
  Arena arena(model.named(), SmallModel::buckets(), with(at::kBFloat16, {}, false));
  const nn::Parameter& weight = *model.named()[0].parameter;
  EXPECT_FALSE(weight.value.requires_grad());
  EXPECT_FALSE(weight.grad.defined());
  EXPECT_FALSE(arena.buckets()[0].master.defined());
  EXPECT_TRUE(arena.state_roles().empty());
  const at::Tensor loaded = at::arange(35, at::kDouble).div(7.0).view({5, 7});
  arena.load_parameter("a.weight", loaded);
  EXPECT_TRUE(at::equal(weight.value, loaded.to(at::kBFloat16)));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] { (void)arena.export_parameter("a.weight", Role::master()); }),
              HasSubstr("made for sampling"));
  arena.refresh_compute();
  EXPECT_TRUE(at::equal(weight.value, loaded.to(at::kBFloat16))) << "there is nothing to refresh";
}

TEST(ArenaTest, LoadingSetsMasterAndComputeCopy) {
  SmallModel model;
  Arena arena(model.named(), SmallModel::buckets(), with(at::kBFloat16, {0.9}));
  const at::Tensor loaded = at::arange(5, at::kFloat).div(3.0);
  arena.load_parameter("a.bias", loaded);
  EXPECT_TRUE(at::equal(arena.export_parameter("a.bias", Role::master()), loaded));
  EXPECT_TRUE(at::equal(model.named()[1].parameter->value.detach(), loaded.to(at::kBFloat16)));
  EXPECT_EQ(arena.export_parameter("a.bias", Role::average(0)).abs().sum().item<float>(), 0.0F);
  arena.reset_averages();
  EXPECT_TRUE(at::equal(arena.export_parameter("a.bias", Role::average(0)), loaded));
  arena.buckets()[1].master.fill_(1.0 / 3.0);
  arena.refresh_compute();
  EXPECT_EQ(model.named()[2].parameter->value.detach().to(at::kFloat).max().item<float>(),
            0.333984375F);
}

/// SmallModel with everything of its first bucket but the bias frozen, and all of its last.
struct PartlyFrozen {
  /// room: beside the matrix of the first one.
  explicit PartlyFrozen(ArenaOptions options, int64_t room = 0)
      : arena([this, &options, room] {
          model.named()[0].parameter->room = room;
          for (const nn::NamedParameter& named : model.named()) {
            named.parameter->frozen = named.path != "a.bias" && named.path != "b.weight";
          }
          return Arena(model.named(), SmallModel::buckets(), options);
        }()) {}

  SmallModel model;
  Arena arena;
};

TEST(ArenaFrozenTest, FrozenParametersHaveOnlyTheirComputeCopy) {
  const PartlyFrozen frozen(with(at::kBFloat16, {0.9}));
  const Arena& arena = frozen.arena;
  ASSERT_EQ(arena.buckets().size(), 2U) << "a bucket of frozen parameters alone is none";
  EXPECT_EQ(arena.num_trained(), 5 + 66);
  EXPECT_EQ(arena.num_frozen(), 35 + 3);
  const int64_t padded = 2 * kBucketAlignment;
  for (const Role role :
       {Role::master(), Role::grad(), Role::exp_avg(), Role::exp_avg_sq(), Role::average(0)}) {
    EXPECT_EQ(arena.bytes(role), 4 * padded) << to_string(role);
  }
  int64_t own = 0;
  for (const FrozenBucket& bucket : arena.frozen()) {
    own += static_cast<int64_t>(bucket.compute.nbytes());
  }
  EXPECT_EQ(own, 2 * 35 + (arena.frozen().back().fp32_island ? 4 : 2) * 3);
  for (const nn::NamedParameter& named : frozen.model.named()) {
    EXPECT_EQ(named.parameter->value.requires_grad(), !named.parameter->frozen) << named.path;
    EXPECT_EQ(named.parameter->grad.defined(), !named.parameter->frozen) << named.path;
  }
}

TEST(ArenaFrozenTest, ValuesAreThoseOfATrainedOne) {
  SmallModel all;
  const Arena whole(all.named(), SmallModel::buckets(), with(at::kBFloat16));
  PartlyFrozen frozen(with(at::kBFloat16));
  for (const nn::NamedParameter& named : all.named()) {
    EXPECT_TRUE(at::equal(frozen.arena.export_parameter(named.path, Role::compute()),
                          whole.export_parameter(named.path, Role::compute())))
        << named.path;
  }
  const at::Tensor loaded = at::full({5, 7}, 0.3, at::kFloat);
  frozen.arena.load_parameter("a.weight", loaded);
  EXPECT_TRUE(at::equal(frozen.arena.export_parameter("a.weight", Role::average(0)),
                        loaded.to(at::kBFloat16).to(at::kFloat)))
      << "every role of weights is the compute copy";
}

// Room beside a frozen matrix (kernels/low_rank.h) is memory alone.
TEST(ArenaFrozenTest, RoomBesideAMatrixChangesNoValue) {
  const PartlyFrozen without(with(at::kBFloat16));
  PartlyFrozen frozen(with(at::kBFloat16), /*room=*/8);
  Arena& arena = frozen.arena;
  const at::Tensor& value = frozen.model.named()[0].parameter->value;
  ASSERT_EQ(frozen.model.named()[0].path, "a.weight");
  EXPECT_EQ(value.strides(), at::IntArrayRef({64, 1})) << "7 + 8 columns, to 128 bytes";
  EXPECT_EQ(arena.num_frozen(), without.arena.num_frozen());
  EXPECT_EQ(arena.bytes(Role::compute()) - without.arena.bytes(Role::compute()),
            2 * ((5 + 8) * 64 - 35));
  for (const nn::NamedParameter& named : frozen.model.named()) {
    EXPECT_TRUE(at::equal(arena.export_parameter(named.path, Role::compute()),
                          without.arena.export_parameter(named.path, Role::compute())))
        << named.path;
  }
  value.detach().as_strided({5 + 8, 7 + 8}, {64, 1}).narrow(1, 7, 8).fill_(3.0);
  const at::Tensor loaded = at::full({5, 7}, 0.5, at::kFloat);
  arena.load_parameter("a.weight", loaded);
  EXPECT_TRUE(at::equal(arena.export_parameter("a.weight", Role::master()), loaded));
}

TEST(ArenaFrozenTest, MistakesAreRefused) {
  PartlyFrozen frozen(with(at::kFloat));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] { return frozen.arena.export_parameter("a.weight", Role::grad()); }),
              HasSubstr("a.weight is frozen and has no array grad"));
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] { return frozen.arena.own_part("a.weight", Role::master()); }),
              HasSubstr("a.weight is frozen"));
  SmallModel all;
  for (const nn::NamedParameter& named : all.named()) {
    named.parameter->frozen = true;
  }
  EXPECT_THAT(error_of(ErrorKind::kConfig,
                       [&] {
                         Arena(all.named(), SmallModel::buckets(), with(at::kFloat));
                         return 0;
                       }),
              HasSubstr("nothing to train"));
}

TEST(ArenaTest, LoadingRefusesOtherShapesPathsAndTypes) {
  SmallModel model;
  Arena arena(model.named(), SmallModel::buckets(), with(at::kFloat));
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         arena.load_parameter("a.bias", at::ones({1, 5}));
                       }),
              HasSubstr("must have shape [5], got [1, 5]"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { arena.load_parameter("c", at::ones({5})); }),
              HasSubstr("no parameter c"));
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] { arena.load_parameter("a.bias", at::ones({5}, at::kLong)); }),
              HasSubstr("floating type"));
}

class ArenaBindTest : public testing::TestWithParam<at::ScalarType> {};

TEST_P(ArenaBindTest, BoundAveragesAreReadAndUndoneToTheBit) {
  SmallModel model;
  Arena arena(model.named(), SmallModel::buckets(), with(GetParam(), {0.9, 0.99}));
  std::vector<at::Tensor> raw;
  std::vector<void*> places;
  for (const nn::NamedParameter& named : model.named()) {
    raw.push_back(named.parameter->value.detach().clone());
    places.push_back(named.parameter->value.data_ptr());
  }
  for (const Bucket& bucket : arena.buckets()) {
    bucket.ema[1].mul_(2.0).add_(1.0 / 3.0);
  }
  {
    const BoundWeights bound = arena.bind(WeightSet::average(1));
    EXPECT_TRUE(arena.is_bound());
    for (const nn::NamedParameter& named : model.named()) {
      EXPECT_TRUE(at::equal(named.parameter->value.detach(),
                            arena.export_parameter(named.path, Role::average(1))
                                .to(named.parameter->value.scalar_type())));
    }
    EXPECT_THAT(error_of(ErrorKind::kInternal, [&] { (void)arena.bind(WeightSet::average(0)); }),
                HasSubstr("while an EMA stands in"));
    EXPECT_THAT(
        error_of(ErrorKind::kInternal, [&] { arena.load_parameter("a.bias", at::ones({5})); }),
        HasSubstr("while an EMA stands in"));
  }
  EXPECT_FALSE(arena.is_bound());
  for (size_t i = 0; i < raw.size(); ++i) {
    const at::Tensor& value = model.named()[i].parameter->value;
    EXPECT_TRUE(at::equal(value.detach(), raw[i]));
    EXPECT_EQ(value.data_ptr(), places[i]);
    EXPECT_TRUE(value.requires_grad());
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ArenaBindTest,
                         testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(ArenaTest, BindingRawWeightsChangesNothing) {
  SmallModel model;
  Arena arena(model.named(), SmallModel::buckets(), with(at::kFloat));
  const BoundWeights bound = arena.bind(WeightSet::raw());
  EXPECT_FALSE(arena.is_bound());
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { (void)arena.bind(WeightSet::average(0)); }),
              HasSubstr("no EMA 0"));
}

std::string layout_error(const std::vector<nn::NamedParameter>& parameters,
                         const std::vector<nn::BucketSpec>& buckets,
                         ErrorKind kind = ErrorKind::kConfig,
                         const ArenaOptions& options = with(at::kFloat)) {
  return error_of(kind, [&] { const Arena arena(parameters, buckets, options); });
}

TEST(ArenaErrorTest, EveryParameterLiesInExactlyOneBucket) {
  SmallModel model;
  std::vector<nn::BucketSpec> buckets = SmallModel::buckets();
  buckets.pop_back();
  EXPECT_THAT(layout_error(model.named(), buckets), HasSubstr("head.weight lies in no bucket"));
  buckets = SmallModel::buckets();
  buckets[1].parameters.emplace_back("a.bias");
  EXPECT_THAT(layout_error(model.named(), buckets), HasSubstr("got two: a and b"));
  buckets = SmallModel::buckets();
  buckets[1].parameters.emplace_back("c.bias");
  EXPECT_THAT(layout_error(model.named(), buckets), HasSubstr("does not have: c.bias"));
  buckets = SmallModel::buckets();
  buckets[1].name = "a";
  EXPECT_THAT(layout_error(model.named(), buckets), HasSubstr("two buckets a"));
  buckets = SmallModel::buckets();
  buckets.push_back({"empty", {}, false});
  EXPECT_THAT(layout_error(model.named(), buckets), HasSubstr("bucket empty must have parameters"));
}

TEST(ArenaErrorTest, DoubleRegistrationIsNamed) {
  SmallModel model;
  std::vector<nn::NamedParameter> twice = model.named();
  twice.push_back(twice[0]);
  EXPECT_THAT(layout_error(twice, SmallModel::buckets()),
              HasSubstr("a.weight is registered twice"));
  twice.back().path = "c.weight";
  EXPECT_THAT(layout_error(twice, SmallModel::buckets()), HasSubstr("also registered under"));
}

TEST(ArenaErrorTest, IslandsKeepToTheirBuckets) {
  SmallModel model;
  std::vector<nn::BucketSpec> buckets = SmallModel::buckets();
  buckets[2].fp32_island = false;
  EXPECT_THAT(layout_error(model.named(), buckets), HasSubstr("head.weight is an fp32 island"));
  buckets[2].fp32_island = true;
  buckets[1].fp32_island = true;
  EXPECT_THAT(layout_error(model.named(), buckets), HasSubstr("bucket b is one"));
}

TEST(ArenaErrorTest, EmptyAndHugeParametersAreRefused) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{4, 0}, {-1}, {int64_t{1} << 40, int64_t{1} << 40}}) {
    TestParameters model;
    model.add("weight", shape);
    EXPECT_THAT(layout_error(model.named(), model.one_bucket(), ErrorKind::kShape),
                HasSubstr("weight must have dims"));
  }
}

TEST(ArenaErrorTest, OptionsAreChecked) {
  SmallModel model;
  const auto message = [&](const ArenaOptions& options) {
    return layout_error(model.named(), SmallModel::buckets(), ErrorKind::kConfig, options);
  };
  EXPECT_THAT(message(with(at::kDouble)), HasSubstr("got Double"));
  EXPECT_THAT(message(with(at::kFloat, {1.0})), HasSubstr("must be in [0, 1), got 1"));
  EXPECT_THAT(message(with(at::kFloat, std::vector<double>(5, 0.9))), HasSubstr("at most 4"));
  EXPECT_THAT(message(with(at::kFloat, {0.9}, false)), HasSubstr("in training only"));
}

}  // namespace arena_test
}  // namespace kinora::optim
