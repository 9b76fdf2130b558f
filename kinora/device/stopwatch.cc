#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/device/stopwatch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <chrono>

#include "kinora/core/log.h"
#include "kinora/device/stopwatch_launch.h"

namespace kinora::device {
namespace {

int64_t host_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Stopwatch::Stopwatch(at::Device device)
    : state_(at::zeros({2}, at::device(device).dtype(at::kLong))) {}

void Stopwatch::begin() {
  if (state_.is_cpu()) {
    state_.mutable_data_ptr<int64_t>()[1] = host_nanoseconds();
  } else if (cuda::has_stopwatch()) {
    cuda::begin_lap(state_);
  }
}

void Stopwatch::end() {
  if (state_.is_cpu()) {
    auto* state = state_.mutable_data_ptr<int64_t>();
    state[0] += host_nanoseconds() - state[1];
  } else if (cuda::has_stopwatch()) {
    cuda::end_lap(state_);
  }
}

at::Tensor Stopwatch::total() const {
  at::Tensor total = at::empty({1}, at::TensorOptions(at::kLong).pinned_memory(!state_.is_cpu()));
  total.copy_(state_.narrow(0, 0, 1), /*non_blocking=*/true);
  return total;
}

Lap::~Lap() {
  try {
    stopwatch_.end();
  } catch (const std::exception& error) {
    log_warn("[stopwatch] a time is lost: ", error.what());  // what went wrong shows again
  }
}

}  // namespace kinora::device
