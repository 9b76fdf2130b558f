// The fast path of a DiT by its kernels on a GPU against the plain path in fp32 on the same GPU
// with the same weights: output and every gradient.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "kinora/core/cuda.h"
#include "kinora/device/device.h"
#include "kinora/device/graph.h"
#include "kinora/ops/fp8.h"
#include "tests/models/transformers/random_dit.h"
#include "tests/tolerances.h"

namespace kinora::models {
namespace gpu_fast_path_test {

using ops::Switch;

// Relative L2. Rounding is off by 2.6 % (E4M3, 3 bits) and 5.2 % (E5M2, 2 bits) in the root mean
// square, and random data averages nothing out: a weight's gradient of the last block has both, and
// the errors of every product behind it add up towards the first block. An emulation of this model
// (weights, sizes of kFp8Geometries; operands of the blocks' products rounded to these formats with
// a scale a tensor, all else in float64) gave up to 15.6 % in the gradients, the first qkv's, and
// 5.5 % in the output over nine draws.
constexpr double kFp8Tolerance = 0.2;
constexpr double kFp8OutputTolerance = 0.08;

// Numbers of tokens that fill no tile of any kernel.
constexpr Geometry kGeometries[] = {
    {.hidden = 144, .heads = 2, .batch = 1, .rows = 15, .columns = 17},
    {.hidden = 128, .heads = 2, .batch = 1, .rows = 3, .columns = 5},
    {.hidden = 144, .heads = 2, .batch = 257, .rows = 3, .columns = 3},
    {.hidden = 128, .heads = 2, .batch = 257, .rows = 3, .columns = 5},
    {.hidden = 128, .heads = 2, .batch = 257, .rows = 3, .columns = 5, .tuned = true},
    {.hidden = 128, .heads = 2, .batch = 257, .rows = 3, .columns = 5, .rank = 8},
    {.hidden = 144, .heads = 2, .batch = 3, .rows = 15, .columns = 17, .rank = 16},
};

// Batch times tokens is a multiple of 16 in all but the last, as block scaling wants it. Of a rank
// the weights are frozen below updates, tuned without.
constexpr Geometry kFp8Geometries[] = {
    {.hidden = 144, .heads = 2, .batch = 1, .rows = 16, .columns = 16},
    {.hidden = 144, .heads = 2, .batch = 16, .rows = 3, .columns = 5},
    {.hidden = 128, .heads = 2, .batch = 257, .rows = 4, .columns = 4},
    {.hidden = 128, .heads = 2, .batch = 16, .rows = 4, .columns = 4},
    {.hidden = 128, .heads = 2, .batch = 16, .rows = 4, .columns = 4, .tuned = true},
    {.hidden = 128, .heads = 2, .batch = 16, .rows = 4, .columns = 4, .rank = 8},
    {.hidden = 144, .heads = 2, .batch = 16, .rows = 3, .columns = 5, .rank = 12},
    {.hidden = 144, .heads = 2, .batch = 3, .rows = 15, .columns = 17},
};

// What every scaling can be asked of: of products with block scaling of other sizes a library may
// lack some.
bool fills_blocks(const Geometry& geometry) {
  constexpr int64_t kBlock = 128;
  return geometry.hidden % kBlock == 0 &&
         geometry.batch * geometry.rows * geometry.columns % kBlock == 0;
}

const at::Device kGpu(at::kCUDA, 0);

std::shared_ptr<ops::BlockKernels> gpu_kernels(const ops::KernelOptions& options = {},
                                               at::ScalarType type = at::kBFloat16,
                                               bool deterministic = true) {
  return std::make_shared<ops::BlockKernels>(options, kGpu, type, deterministic);
}

std::shared_ptr<ops::BlockKernels> fp8_kernels(
    const Geometry& geometry, ops::Fp8Scaling scaling = ops::Fp8Scaling::kDelayed) {
  constexpr int64_t kLinearsOfABlock = 4;
  auto kernels = gpu_kernels();
  kernels->use_fp8(std::make_unique<ops::Fp8>(
      kLinearsOfABlock * geometry.config().transformer.depth, kGpu, scaling));
  return kernels;
}

/// What a step of a geometry is held against.
struct Reference {
  explicit Reference(const Geometry& geometry)
      : geometry(geometry),
        exact(plain_results(geometry, kGpu, at::kFloat)),
        plain(plain_results(geometry, kGpu, at::kBFloat16)) {}

  [[nodiscard]] std::unique_ptr<RandomDiT> fast(
      const std::shared_ptr<ops::BlockKernels>& kernels,
      const Recomputation& recomputation = kRecomputations[0]) const {
    return fast_dit(geometry, kGpu, at::kBFloat16, kernels, recomputation);
  }

  void expect_as_near(const ops::NamedResults& results, const std::string& how) const {
    ops::expect_as_near(exact, plain, results, geometry.name() + ", " + how, slack());
  }

  [[nodiscard]] double slack() const { return geometry.slack(); }

  void expect_near_in_fp8(const ops::NamedResults& results, const std::string& how) const {
    ops::expect_relative({exact[0]}, {results[0]}, kFp8OutputTolerance,
                         geometry.name() + ", " + how);
    ops::expect_relative(exact, results, kFp8Tolerance, geometry.name() + ", " + how);
  }

  /// Passes without gradients, which are never in fp8.
  void expect_samples(const std::shared_ptr<ops::BlockKernels>& kernels) const {
    RandomDiT exact_dit(geometry, kGpu, at::kFloat);
    RandomDiT plain_dit(geometry, kGpu, at::kBFloat16);
    const auto dit = fast(kernels);
    ops::expect_as_near(exact_dit.sample(), plain_dit.sample(), dit->sample(),
                        geometry.name() + ", sampled", slack());
    ops::expect_as_near(exact_dit.sample(), plain_dit.sample(), dit->sample_prepared(),
                        geometry.name() + ", sampled with prepared vectors", slack());
  }

  Geometry geometry;
  ops::NamedResults exact;  // the plain path in fp32
  ops::NamedResults plain;  // and in bf16
};

class GpuFastPathTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Algorithms are neither taken from nor left to other runs.
    ::unsetenv("XDG_CACHE_HOME");
    ::unsetenv("HOME");
    // It also fills new tensors with NaN: what is read but was never written is seen.
    device::configure_computation(0, true);
  }
  void SetUp() override {
    if (!device::best_device().is_cuda() || !ops::BlockKernels::worthwhile(kGpu, at::kBFloat16)) {
      GTEST_SKIP() << "there is no GPU that has the kernels";
    }
  }
};

/// Records the work of a step at its first call, and replays it at every one.
std::function<void(const std::function<void()>&)> replaying(device::Graph& graph) {
  return [&graph](const std::function<void()>& work) {
    if (!graph.is_recorded()) {
      graph.record(work);
    }
    graph.replay();
  };
}

TEST_F(GpuFastPathTest, Fp32EqualsThePlainPathAtEveryRecomputation) {
  const auto kernels = gpu_kernels({}, at::kFloat);
  for (const Geometry& geometry : kGeometries) {
    const ops::NamedResults exact = plain_results(geometry, kGpu, at::kFloat);
    for (const Recomputation& recomputation : kRecomputations) {
      ops::expect_near(exact, fast_results(geometry, kGpu, at::kFloat, kernels, recomputation),
                       tolerance::kGpuKernels,
                       geometry.name() + ", recomputing " + recomputation.name);
    }
  }
}

// On, not auto: what cannot run is an error instead of a path that was tested elsewhere.
TEST_F(GpuFastPathTest, Bf16IsAsNearAsThePlainPath) {
  const auto kernels =
      gpu_kernels({.adaln = Switch::kOn, .attention = Switch::kOn, .epilogue = Switch::kOn});
  for (const Geometry& geometry : kGeometries) {
    const Reference reference(geometry);
    for (const Recomputation& recomputation : kRecomputations) {
      const auto fast = reference.fast(kernels, recomputation);
      fast->step();
      reference.expect_as_near(fast->results(), std::string("recomputing ") + recomputation.name);
      fast->overwrite_gradients();
      for (const int64_t passes : {1, 2}) {
        fast->step(passes);
        reference.expect_as_near(
            fast->results(1.0 / static_cast<double>(passes)),
            std::to_string(passes) + " overwriting passes, recomputing " + recomputation.name);
      }
    }
    reference.expect_samples(kernels);
  }
}

TEST_F(GpuFastPathTest, EachPartCanBeSwitchedOffAlone) {
  struct Row {
    const char* name;
    ops::KernelOptions options;
  };
  for (const auto& [name, options] :
       {Row{"adaln off", {.adaln = Switch::kOff}},
        Row{"attention off", {.attention = Switch::kOff}},
        Row{"epilogue off", {.epilogue = Switch::kOff}},
        Row{"all off",
            {.adaln = Switch::kOff, .attention = Switch::kOff, .epilogue = Switch::kOff}}}) {
    const auto kernels = gpu_kernels(options);
    for (const Geometry& geometry : {kGeometries[0], kGeometries[3]}) {
      const Reference reference(geometry);
      for (const Recomputation& recomputation : kRecomputations) {
        const auto fast = reference.fast(kernels, recomputation);
        fast->step();
        reference.expect_as_near(fast->results(),
                                 std::string(name) + ", recomputing " + recomputation.name);
      }
    }
    const std::string parts = kernels->describe();
    const auto says = [&parts](const char* part) { return parts.find(part) != std::string::npos; };
    EXPECT_EQ(says("norms composed"), options.adaln == Switch::kOff) << parts;
    EXPECT_EQ(says("attention unfused"), options.attention == Switch::kOff) << parts;
    EXPECT_EQ(says("products libtorch's"), options.epilogue == Switch::kOff) << parts;
  }
}

TEST_F(GpuFastPathTest, SearchedAlgorithmsAreAsNear) {
  const auto kernels = gpu_kernels({}, at::kBFloat16, false);
  for (const Geometry& geometry : {kGeometries[0], kGeometries[3]}) {
    const Reference reference(geometry);
    const auto fast = reference.fast(kernels);
    fast->step();
    reference.expect_as_near(fast->results(), "searched");
  }
}

TEST_F(GpuFastPathTest, StepsAreTheSameBitsAndAGraphReplaysThem) {
  const auto kernels = gpu_kernels();
  for (const Geometry& geometry : {kGeometries[0], kGeometries[3], kGeometries[5]}) {
    const Reference reference(geometry);
    for (const Recomputation& recomputation : kRecomputations) {
      const std::string how = geometry.name() + ", recomputing " + recomputation.name;
      const auto fast = reference.fast(kernels, recomputation);
      fast->overwrite_gradients();
      fast->step();
      const ops::NamedResults first = fast->results();
      fast->step();
      ops::expect_same(first, fast->results(), how);

      device::Graph graph;
      fast->step(1, replaying(graph));
      const ops::NamedResults replayed = fast->results();
      reference.expect_as_near(replayed,
                               "replayed, recomputing " + std::string(recomputation.name));
      fast->step(1, replaying(graph));
      ops::expect_same(replayed, fast->results(), how + ", replayed");
    }
  }
}

class GpuFp8FastPathTest : public GpuFastPathTest {
 protected:
  void SetUp() override {
    GpuFastPathTest::SetUp();
    if (!IsSkipped() && !ops::Fp8::possible(kGpu)) {
      GTEST_SKIP() << "this GPU has no fp8 products";
    }
  }
};

/// Steps at every recomputation, accumulated and replayed; sampling between them does not count.
void expect_fp8_steps(const Reference& reference,
                      const std::shared_ptr<ops::BlockKernels>& kernels) {
  for (const Recomputation& recomputation : kRecomputations) {
    const std::string how =
        kernels->describe() + ", recomputing " + std::string(recomputation.name);
    const auto fast = reference.fast(kernels, recomputation);
    fast->overwrite_gradients();
    for (const int64_t passes : {1, 2}) {
      fast->step(passes);
      reference.expect_near_in_fp8(fast->results(1.0 / static_cast<double>(passes)),
                                   std::to_string(passes) + " passes, " + how);
    }
    device::Graph graph;
    for (int replay = 0; replay < 2; ++replay) {
      fast->step(1, replaying(graph));
      reference.expect_near_in_fp8(fast->results(),
                                   "replay " + std::to_string(replay) + ", " + how);
    }
  }
  reference.expect_samples(kernels);
}

TEST_F(GpuFp8FastPathTest, StaysNearTheReference) {
  for (const Geometry& geometry : kFp8Geometries) {
    const Reference reference(geometry);
    const auto kernels = fp8_kernels(geometry);
    const auto calibrating = reference.fast(kernels);
    calibrating->step();
    reference.expect_as_near(calibrating->results(), "while fp8 only measures");
    expect_fp8_steps(reference, kernels);
    const std::string parts = kernels->describe();
    EXPECT_NE(parts.find("delayed scaling: 100 % of the blocks' arithmetic, 8 of 8 linears"),
              std::string::npos)
        << parts;
  }
}

TEST_F(GpuFp8FastPathTest, OtherScalingsNeedNoStepToMeasure) {
  for (const auto& [scaling, name] : {std::pair(ops::Fp8Scaling::kCurrent, "current"),
                                      std::pair(ops::Fp8Scaling::kBlock, "block")}) {
    const bool in_blocks = scaling == ops::Fp8Scaling::kBlock;
    if (in_blocks && cuda_device(0).major != 9) {
      continue;  // Hopper's
    }
    for (const Geometry& geometry : kFp8Geometries) {
      const Reference reference(geometry);
      const auto kernels = fp8_kernels(geometry, scaling);
      expect_fp8_steps(reference, kernels);
      const std::string parts = kernels->describe();
      std::printf("%s: %s\n", geometry.name().c_str(), parts.c_str());
      if (!in_blocks || fills_blocks(geometry)) {
        EXPECT_NE(parts.find(std::string(name) +
                             " scaling: 100 % of the blocks' arithmetic, 8 of 8 linears"),
                  std::string::npos)
            << parts;
      }
    }
  }
}

// Where batch times tokens is no multiple of 16 block scaling gives way to bf16, and says so.
TEST_F(GpuFp8FastPathTest, BlocksGiveWayWhereRowsDoNotFit) {
  if (cuda_device(0).major != 9) {
    GTEST_SKIP() << "block scaling is Hopper's";
  }
  const Reference reference(kGeometries[2]);
  const auto kernels = fp8_kernels(kGeometries[2], ops::Fp8Scaling::kBlock);
  const auto fast = reference.fast(kernels);
  for (int step = 0; step < 2; ++step) {
    fast->step();
    reference.expect_as_near(fast->results(), "step " + std::to_string(step));
  }
  const std::string parts = kernels->describe();
  EXPECT_NE(parts.find("block scaling: 0 % of the blocks' arithmetic, 0 of 8 linears"),
            std::string::npos)
      << parts;
}

}  // namespace gpu_fast_path_test
}  // namespace kinora::models
