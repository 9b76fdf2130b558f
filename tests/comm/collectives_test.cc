// Every collective on 2 and 4 ranks against what one process computes.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "kinora/comm/group.h"
#include "tests/comm/ranks.h"

namespace kinora::comm {
namespace collectives_test {

const at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kByte};
const int64_t kSizes[] = {0, 1, 3, 257, 20001};

bool is_floating(at::ScalarType type) {
  return type != at::kLong && type != at::kByte;
}

/// What `rank` brings: integers from 0 to 12, whose sums and quarters every type can hold.
at::Tensor input_of(int64_t rank, int64_t count, at::ScalarType type) {
  return at::arange(count, at::kLong).mul(7).add(rank * 5).remainder(13).to(type);
}

/// Of all ranks: [W, count].
at::Tensor inputs(const Group& world, int64_t count, at::ScalarType type) {
  std::vector<at::Tensor> all;
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    all.push_back(input_of(rank, count, type));
  }
  return at::stack(all);
}

at::Tensor reduced(const at::Tensor& all, Reduction reduction) {
  const at::Tensor exact = all.to(at::kDouble);
  switch (reduction) {
    case Reduction::kSum:
      return exact.sum(0).to(all.scalar_type());
    case Reduction::kMean:
      return exact.mean(0).to(all.scalar_type());
    case Reduction::kMax:
      return all.size(1) == 0 ? all[0] : exact.amax(0).to(all.scalar_type());
  }
  return {};
}

std::vector<Reduction> reductions_of(at::ScalarType type) {
  if (is_floating(type)) {
    return {Reduction::kSum, Reduction::kMean, Reduction::kMax};
  }
  return type == at::kLong ? std::vector<Reduction>{Reduction::kSum, Reduction::kMax}
                           : std::vector<Reduction>{Reduction::kMax};
}

void check_reductions(const Group& world, int64_t count, at::ScalarType type) {
  const at::Tensor all = inputs(world, count, type);
  const at::Tensor wide = inputs(world, world.size() * count, type);
  for (const Reduction reduction : reductions_of(type)) {
    const at::Tensor tensor = input_of(world.rank(), count, type);
    world.all_reduce(tensor, reduction);
    EXPECT_TRUE(at::equal(tensor, reduced(all, reduction)));

    const at::Tensor expected = reduced(wide, reduction).narrow(0, world.rank() * count, count);
    const at::Tensor whole = wide[world.rank()].clone();
    const at::Tensor part = at::empty({count}, whole.options());
    world.reduce_scatter(part, whole, reduction);
    EXPECT_TRUE(at::equal(part, expected));
    const at::Tensor in_place = whole.narrow(0, world.rank() * count, count);
    world.reduce_scatter(in_place, whole, reduction);
    EXPECT_TRUE(at::equal(in_place, expected));
  }
}

void check_moves(const Group& world, int64_t count, at::ScalarType type) {
  const int64_t size = world.size();
  const int64_t rank = world.rank();
  const at::Tensor all = inputs(world, count, type);
  const at::Tensor output = at::full({size, count}, 99, all.options());
  world.all_gather(output, all[rank].clone());
  EXPECT_TRUE(at::equal(output, all));
  output.fill_(99);
  output[rank].copy_(all[rank]);
  world.all_gather(output, output[rank]);
  EXPECT_TRUE(at::equal(output, all));

  const at::Tensor wide = inputs(world, size * count, type);
  const at::Tensor exchanged = at::full({size * count}, 99, all.options());
  world.all_to_all(exchanged, wide[rank].clone());
  EXPECT_TRUE(at::equal(exchanged, wide.narrow(1, rank * count, count).reshape({-1})));

  for (int64_t root = 0; root < size; ++root) {
    const at::Tensor tensor = all[rank].clone();
    world.broadcast(tensor, root);
    EXPECT_TRUE(at::equal(tensor, all[root]));
  }

  // Around the ring, two messages a pair.
  const int64_t next = (rank + 1) % size;
  const int64_t previous = (rank + size - 1) % size;
  const at::Tensor first = at::full({count}, 99, all.options());
  const at::Tensor second = at::full({count + 1}, 99, all.options());
  const Work works[] = {world.send_async(all[rank].clone(), next),
                        world.send_async(input_of(rank, count + 1, type), next),
                        world.receive_async(first, previous),
                        world.receive_async(second, previous)};
  for (const Work& work : works) {
    work.wait();
  }
  EXPECT_TRUE(at::equal(first, all[previous]));
  EXPECT_TRUE(at::equal(second, input_of(previous, count + 1, type)));
  first.fill_(99);
  world.exchange(first, next, all[rank].clone(), previous);
  EXPECT_TRUE(at::equal(first, all[next]));
}

/// Sums that round: in the order of the ranks, in fp32, and alike in both operations.
void check_rounding(const Group& world) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const int64_t count = world.size() * 1001;
    std::vector<at::Tensor> all;
    for (int64_t rank = 0; rank < world.size(); ++rank) {
      all.push_back(at::arange(count, at::kFloat)
                        .mul(0.37 + 0.11 * static_cast<double>(rank))
                        .sin()
                        .to(type));
    }
    at::Tensor expected = all[0].to(at::kFloat);
    for (int64_t rank = 1; rank < world.size(); ++rank) {
      expected = expected.add(all[rank]);
    }
    expected = expected.to(type);
    const at::Tensor reduced = all[world.rank()].clone();
    world.all_reduce(reduced);
    EXPECT_TRUE(at::equal(reduced, expected));
    const at::Tensor part = at::empty({1001}, expected.options());
    world.reduce_scatter(part, all[world.rank()]);
    EXPECT_TRUE(at::equal(part, expected.narrow(0, world.rank() * 1001, 1001)));
  }
}

class CollectivesTest : public testing::TestWithParam<int64_t> {};

TEST_P(CollectivesTest, AgreeWithOneProcess) {
  run_on_ranks(GetParam(), [](const Group& world) {
    for (const at::ScalarType type : kTypes) {
      for (const int64_t count : kSizes) {
        SCOPED_TRACE(std::string(at::toString(type)) + ", " + std::to_string(count));
        check_reductions(world, count, type);
        check_moves(world, count, type);
      }
    }
    check_rounding(world);
    world.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesTest, testing::Values(2, 4),
                         testing::PrintToStringParamName());

}  // namespace collectives_test
}  // namespace kinora::comm
