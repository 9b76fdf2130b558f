// Who updates what lies out of a GPU's memory, as far as a CPU shows it: every piece once, and the
// balance. gpu_optimizer_test.cc has the copies and the streams.

#include "kinora/optim/far_updates.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "kinora/ops/optimizer_step.h"

namespace kinora::optim {
namespace far_updates_test {

constexpr int64_t kCount = 1'000;

ops::OptimizerBucket bucket_of(double value) {
  ops::OptimizerBucket bucket;
  bucket.master = at::full({kCount}, value);
  bucket.grad = at::full({kCount}, 0.0);
  bucket.exp_avg = at::full({kCount}, 0.0);
  bucket.exp_avg_sq = at::full({kCount}, 0.0);
  return bucket;
}

/// Elements [begin, end) of a bucket.
ops::OptimizerBucket part_of(const ops::OptimizerBucket& whole, int64_t begin, int64_t end) {
  ops::OptimizerBucket part = whole;
  for (at::Tensor* array : {&part.master, &part.grad, &part.exp_avg, &part.exp_avg_sq}) {
    *array = array->narrow(0, begin, end - begin);
  }
  return part;
}

TEST(FarUpdatesTest, EachPieceIsUpdatedOnceAndWhoIsLateGivesABucketAway) {
  constexpr size_t kBuckets = 5;
  std::vector<ops::OptimizerBucket> far;
  std::vector<ops::OptimizerBucket> near;
  const kernels::UpdateParameters parameters;
  FarUpdates updates(at::kCPU, kBuckets, parameters, at::empty({0}, at::kByte), /*is_half=*/false);
  for (size_t i = 0; i < kBuckets; ++i) {
    far.push_back(bucket_of(1.0 + static_cast<double>(i)));
    near.push_back(bucket_of(1.0 + static_cast<double>(i)));
    updates.add(i);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 333}, {333, kCount}}) {
      for (PieceUpdates* pieces : {&updates.by_device(), &updates.by_host()}) {
        pieces->add(ops::BucketTable({pieces->stage(i, part_of(far.back(), begin, end))}));
      }
    }
  }
  updates.settle(/*host_helps=*/true, /*disk=*/nullptr);
  const at::Tensor control = ops::make_step_control({.lr = 0.01}, at::kCPU);
  EXPECT_EQ(updates.shares(), (std::pair<size_t, size_t>{2, kBuckets})) << "a third to begin with";
  // On a CPU what the GPU would do is done at once: the host gives all away.
  size_t of_host = 2;
  for (const bool launches_all : {true, false, true}) {
    for (size_t i = 0; i < kBuckets; ++i) {
      far[i].grad.fill_(0.1 * static_cast<double>(i + (launches_all ? 2 : 1)));
      near[i].grad.copy_(far[i].grad);
    }
    ops::prepare_update(control, {});
    updates.begin(control);
    if (launches_all) {
      updates.launch_all();
    } else {
      for (const size_t bucket : {4, 2, 0, 1, 3}) {
        updates.launch(bucket);
      }
    }
    updates.end();
    updates.check();
    ops::update_weights(ops::BucketTable(near), parameters, control);
    for (size_t i = 0; i < kBuckets; ++i) {
      EXPECT_TRUE(at::equal(far[i].master, near[i].master)) << i;
      EXPECT_TRUE(at::equal(far[i].exp_avg, near[i].exp_avg)) << i;
      EXPECT_TRUE(at::equal(far[i].exp_avg_sq, near[i].exp_avg_sq)) << i;
      EXPECT_EQ(far[i].grad.count_nonzero().item<int64_t>(), 0) << i;
    }
    of_host -= of_host > 0 ? 1 : 0;
    EXPECT_EQ(updates.shares(), (std::pair<size_t, size_t>{of_host, kBuckets}));
  }
}

}  // namespace far_updates_test
}  // namespace kinora::optim
