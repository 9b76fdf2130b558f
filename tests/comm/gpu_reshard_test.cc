// What GPUs store in each other's memory, against packed all_to_alls of CPU tensors.
#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "kinora/core/cuda.h"
#include "kinora/device/device.h"
#include "kinora/device/graph.h"
#include "tests/comm/ranks.h"

namespace kinora::comm {
namespace gpu_reshard_test {

/// Values of which no two ranks' and places' are equal.
at::Tensor counted(at::IntArrayRef shape, int64_t rank, at::ScalarType type) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    count *= size;
  }
  return at::arange(count, at::kLong).add(rank * count).remainder(251).to(type).view(shape);
}

class GpuReshardTest : public testing::TestWithParam<int64_t> {
 protected:
  /// Runs `body` on as many ranks as GPUs.
  void on_gpus(const std::function<void(const Group& world, at::Device device)>& body) const {
    if (cuda_device_count() < GetParam()) {
      GTEST_SKIP() << "needs " << GetParam() << " GPUs, there are " << cuda_device_count();
    }
    RankOptions options;
    options.time_limit = std::chrono::seconds(40);
    run_on_ranks(
        GetParam(),
        [&](const Group& group) {
          World world = group.world();
          world.store_prefix += "gpus/";
          const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(world.local_rank));
          at::accelerator::setDeviceIndex(device.index());  // graphs are recorded there
          body(connect(world, device), device);
          device::synchronize(device);
        },
        options);
  }
};

struct Case {
  std::vector<int64_t> shape;  // of the part, but for the factor W of dim `split`
  int64_t split;
  int64_t joined;
  at::ScalarType type;
};

TEST_P(GpuReshardTest, EqualsTheOneOnCpusForShapesTypesAndGrowingSizes) {
  on_gpus([](const Group& world, at::Device device) {
    const std::vector<Case> cases = {
        {{3, 5, 2}, 0, 1, at::kFloat},               // runs of 8 bytes times 5
        {{3, 5, 7}, 1, 0, at::kByte},                // odd bytes
        {{2, 3, 4, 8}, 1, 3, at::kBFloat16},         // something before and between
        {{2, 3, 4, 8}, 3, 1, at::kHalf},             //
        {{1, 2, 6, 3, 1, 72}, 4, 2, at::kBFloat16},  // packed heads
        {{1, 2, 6, 4, 72}, 2, 3, at::kFloat},
        {{5, 33, 1152}, 0, 1, at::kBFloat16},
        {{9, 130, 1152}, 0, 1, at::kBFloat16},  // larger than what was reserved before
        {{3, 5, 2}, 0, 1, at::kFloat},          // smaller again
    };
    for (const auto& [shape, split, joined, type] : cases) {
      std::vector<int64_t> sizes = shape;
      sizes[split] *= world.size();
      const at::Tensor x = counted(sizes, world.rank(), type);
      const at::Tensor expected = world.reshard(x, split, joined);
      // Twice: the second must wait until the first was read.
      const at::Tensor first = world.reshard(x.to(device), split, joined);
      const at::Tensor zeros = world.reshard(x.to(device).zero_(), split, joined);
      EXPECT_TRUE(at::equal(first.cpu(), expected)) << x.sizes() << ' ' << split << ' ' << joined;
      EXPECT_EQ(zeros.ne(0).sum().item<int64_t>(), 0);
    }
    const at::Tensor apart = counted({4 * world.size(), 6}, world.rank(), at::kFloat).t();
    EXPECT_TRUE(at::equal(world.reshard(apart.to(device), 1, 0).cpu(), world.reshard(apart, 1, 0)))
        << "one that is not contiguous";
  });
}

TEST_P(GpuReshardTest, IsRecordedAndReplayedBetweenOtherCalls) {
  on_gpus([](const Group& world, at::Device device) {
    const at::Tensor x = counted({4 * world.size(), 8, 16}, world.rank(), at::kFloat).to(device);
    const auto there_and_back = [&] { return world.reshard(world.reshard(x, 0, 1).mul(2), 1, 0); };
    at::Tensor y = there_and_back();
    device::Graph graph;
    graph.record([&] { y = there_and_back(); });
    for (int64_t i = 1; i <= 5; ++i) {
      x.fill_(static_cast<double>(i + world.rank()));
      graph.replay();
      EXPECT_TRUE(at::equal(y, x.mul(2))) << "replay " << i;
      // A larger one makes new memory; the graph keeps its own.
      const at::Tensor more = counted({i * world.size(), 300, 512}, world.rank(), at::kFloat);
      EXPECT_TRUE(at::equal(world.reshard(more.to(device), 0, 1).cpu(), world.reshard(more, 0, 1)));
    }
  });
}

TEST_P(GpuReshardTest, SeveralAtOnceAreAsOneByOne) {
  on_gpus([](const Group& world, at::Device device) {
    const int64_t ranks = world.size();
    const at::Tensor image = counted({2, 6, 3, 4 * ranks, 8}, world.rank(), at::kBFloat16);
    const at::Tensor text = counted({2, 5, 3, 4 * ranks, 8}, world.rank() + 7, at::kBFloat16);
    const std::vector<int64_t> sizes = {6 * ranks, 5 * ranks};
    const std::vector<at::Tensor> given = {image.to(device), text.to(device)};
    // Three calls: one more than a replay's last and the next one's first could share.
    const auto compute = [&] {
      const at::Tensor all = world.reshard_together(given, 3, 1);
      std::vector<at::Tensor> parts = world.reshard_apart(all.select(2, 1), sizes, 1, 2);
      parts.push_back(world.reshard_together(given, 3, 1).clone());
      return parts;
    };
    const auto check = [&](const std::vector<at::Tensor>& got, double factor) {
      const at::Tensor all =
          at::cat({world.reshard(image * factor, 3, 1), world.reshard(text * factor, 3, 1)}, 1);
      EXPECT_TRUE(at::equal(got[2].cpu(), all));
      const std::vector<at::Tensor> apart = all.select(2, 1).split_with_sizes(sizes, 1);
      for (size_t i = 0; i < apart.size(); ++i) {
        EXPECT_TRUE(at::equal(got[i].cpu(), world.reshard(apart[i].contiguous(), 1, 2))) << i;
      }
    };
    check(compute(), 1.0);
    std::vector<at::Tensor> recorded;
    device::Graph graph;
    graph.record([&] { recorded = compute(); });
    for (const double factor : {1.0, 2.0, 0.5, 4.0}) {
      given[0].copy_(image * factor);
      given[1].copy_(text * factor);
      graph.replay();
      graph.replay();
      check(recorded, factor);
    }
  });
}

TEST_P(GpuReshardTest, SumsAndGatheringsByCopiesEqualThoseOfCpus) {
  on_gpus([](const Group& world, at::Device device) {
    world.use_peer_memory();
    // By copies, by copies in more memory, and by NCCL: too few, and a number that does not divide.
    for (const int64_t rows : {512, 2048, 8, 2049}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        SCOPED_TRACE(std::to_string(rows) + " rows of " + c10::toString(type));
        const int64_t n = rows * 1024;
        // Sums of small whole numbers are exact in every type.
        const at::Tensor whole =
            counted({world.size() * n}, world.rank(), at::kLong).remainder(64).to(type);
        const at::Tensor part = whole.narrow(0, 0, n).contiguous();
        const at::Tensor all = at::empty_like(whole);
        const at::Tensor own = at::empty_like(part);
        const at::Tensor sum = whole.clone();
        world.all_gather(all, part);
        world.reduce_scatter(own, whole);
        world.all_reduce(sum);
        for (const bool beside : {false, true}) {
          const at::Tensor x = whole.to(device);
          const at::Tensor gathered = at::empty_like(x);
          const at::Tensor scattered = at::empty_like(part, at::device(device));
          const at::Tensor summed = x.clone();
          const at::Tensor input = part.to(device);
          if (beside) {
            const std::array works = {world.all_gather_async(gathered, input),
                                      world.reduce_scatter_async(scattered, x),
                                      world.all_reduce_async(summed)};
            for (const Work& work : works) {
              work.wait();
            }
          } else {
            world.all_gather(gathered, input);
            world.reduce_scatter(scattered, x);
            world.all_reduce(summed);
          }
          EXPECT_TRUE(at::equal(gathered.cpu(), all));
          EXPECT_TRUE(at::equal(scattered.cpu(), own));
          EXPECT_TRUE(at::equal(summed.cpu(), sum));
        }
      }
    }
  });
}

TEST_P(GpuReshardTest, SumsBesideWorkCanBeReplayed) {
  on_gpus([](const Group& world, at::Device device) {
    world.use_peer_memory();
    const at::Tensor x = counted({2048, 1024}, world.rank(), at::kFloat).to(device);
    const auto twice = [&] {
      const at::Tensor sum = x.clone();
      const Work work = world.all_reduce_async(sum);
      const at::Tensor more = x * 2;
      work.wait();
      const at::Tensor again = sum + more;
      world.all_reduce(again);
      return again;
    };
    const at::Tensor expected = twice().cpu();
    at::Tensor result;
    device::Graph graph;
    graph.record([&] { result = twice(); });
    for (int i = 0; i < 3; ++i) {
      result.zero_();
      graph.replay();
      EXPECT_TRUE(at::equal(result.cpu(), expected)) << i;
      EXPECT_TRUE(at::equal(twice().cpu(), expected)) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, GpuReshardTest, testing::Values(2, 4),
                         testing::PrintToStringParamName());

}  // namespace gpu_reshard_test
}  // namespace kinora::comm
