#include "kinora/comm/link_speed.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

#include "kinora/core/error.h"
#include "kinora/core/seconds.h"

namespace kinora::comm {
namespace {

constexpr Operation kMeasured[] = {Operation::kAllReduce, Operation::kAllGather,
                                   Operation::kReduceScatter};
constexpr int64_t kNumSizes = 3;
constexpr int64_t kSmallest = int64_t{1} << 16;  // bytes
constexpr int64_t kGrowth = 8;                   // from a size to the next, on a CPU
constexpr int64_t kGpuGrowth = 32;
constexpr int64_t kCalls = 4;       // timed at once
constexpr int64_t kBlocks = 3;      // of which the fastest counts: others' work only adds
constexpr double kSlowCall = 0.05;  // seconds from which one call is enough
constexpr double kLongest = 1.0;  // seconds of a call; from two sizes on, those longer are left out

void call(const Group& group, Operation operation, const at::Tensor& whole) {
  const int64_t part = whole.numel() / group.size();
  const at::Tensor mine = whole.narrow(0, group.rank() * part, part);
  if (operation == Operation::kAllReduce) {
    group.all_reduce(whole);
  } else if (operation == Operation::kAllGather) {
    group.all_gather(whole, mine);
  } else {
    group.reduce_scatter(mine, whole);
  }
}

double slowest_rank(const Group& group, double seconds) {
  const at::Tensor all = at::empty({1}, at::kFloat);
  all.fill_(seconds);
  group.all_reduce(all, Reduction::kMax);
  return all.item<float>();
}

/// Seconds of a call, of the slowest rank.
double time_calls(const Group& group, Operation operation, const at::Tensor& whole) {
  const auto finish = [&] {
    if (whole.is_cuda()) {
      at::accelerator::synchronizeDevice(whole.device().index());
    }
  };
  const auto seconds_of = [&](int64_t calls) {
    finish();
    group.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; ++i) {
      call(group, operation, whole);
    }
    finish();
    return seconds_since(start) / static_cast<double>(calls);
  };
  call(group, operation, whole);  // connects
  const double once = slowest_rank(group, seconds_of(1));
  if (once > kSlowCall) {
    return once;
  }
  double fastest = once;
  for (int64_t block = 0; block < kBlocks; ++block) {
    fastest = std::min(fastest, seconds_of(kCalls));
  }
  return slowest_rank(group, fastest);
}

}  // namespace

double ring_bytes(Operation operation, int64_t ranks, double bytes) {
  const auto size = static_cast<double>(ranks);
  return (operation == Operation::kAllReduce ? 2.0 : 1.0) * bytes * (size - 1.0) / size;
}

Link fit_link(const std::vector<double>& bytes, const std::vector<double>& seconds) {
  KINORA_CHECK(bytes.size() == seconds.size(), kInternal, "[link] got ", bytes.size(),
               " sizes and ", seconds.size(), " times.");
  const bool are_equal =
      std::all_of(bytes.begin(), bytes.end(), [&](double size) { return size == bytes.front(); });
  KINORA_CHECK(!are_equal, kConfig, "[link] a line needs times of at least two sizes, got one.");
  // Least squares of ((latency + slope * b) / t - 1): with u = 1 / t and v = b / t its normal
  // equations are
  //   latency * sum(uu) + slope * sum(uv) = sum(u)
  //   latency * sum(uv) + slope * sum(vv) = sum(v)
  double uu = 0.0;
  double uv = 0.0;
  double vv = 0.0;
  double u_sum = 0.0;
  double v_sum = 0.0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const double u = 1.0 / seconds[i];
    const double v = bytes[i] / seconds[i];
    uu += u * u;
    uv += u * v;
    vv += v * v;
    u_sum += u;
    v_sum += v;
  }
  const double determinant = uu * vv - uv * uv;
  KINORA_CHECK(determinant > 0.0, kConfig, "[link] a line needs times of at least two sizes, got ",
               bytes.size(), " samples.");
  const double latency = (u_sum * vv - v_sum * uv) / determinant;
  const double slope = (v_sum * uu - u_sum * uv) / determinant;
  if (slope <= 0.0) {  // larger messages took no longer
    return {u_sum / uu, std::numeric_limits<double>::infinity()};
  }
  return latency < 0.0 ? Link{0.0, vv / v_sum} : Link{latency, 1.0 / slope};
}

std::vector<OperationSpeed> measure(const Group& group, at::Device device) {
  std::vector<OperationSpeed> speeds;
  for (const Operation operation : kMeasured) {
    OperationSpeed speed;
    speed.operation = operation;
    if (group.size() > 1) {
      std::vector<double> sent;
      std::vector<double> seconds;
      const int64_t growth = device.is_cuda() ? kGpuGrowth : kGrowth;
      int64_t bytes = kSmallest;
      for (int64_t i = 0; i < kNumSizes; ++i) {
        const int64_t part = bytes / (4 * group.size());
        const at::Tensor whole =
            at::zeros({part * group.size()}, at::device(device).dtype(at::kFloat));
        const LinkSample sample = {static_cast<int64_t>(whole.nbytes()),
                                   time_calls(group, operation, whole)};
        sent.push_back(ring_bytes(operation, group.size(), static_cast<double>(sample.bytes)));
        seconds.push_back(sample.seconds);
        speed.samples.push_back(sample);
        bytes *= growth;
        if (i > 0 && sample.seconds * static_cast<double>(growth) > kLongest) {
          break;
        }
      }
      speed.link = fit_link(sent, seconds);
    }
    speeds.push_back(std::move(speed));
  }
  return speeds;
}

}  // namespace kinora::comm
