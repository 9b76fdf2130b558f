#include "kinora/ops/host_product.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/device/dry_run.h"
#include "kinora/device/host_bytes.h"
#include "kinora/device/host_memory.h"
#include "kinora/kernels/weight_product.h"

namespace kinora::ops {
namespace {

/// Threads take parts as they get on: one whose core has something else to do delays nobody.
void multiply(const kernels::WeightProduct& call, const float* in) {
  constexpr int64_t kElements = 1 << 16;  // of a part, at least
  const int64_t rows = std::max<int64_t>(kElements / call.width, 1);
  const int64_t parts = ceil_div(call.rows, rows);
  const std::vector<float> ordered = kernels::in_order_of_weight(call, in);
  std::atomic<int64_t> next = 0;
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), parts);
  at::parallel_for(0, threads, 1, [&](int64_t /*first*/, int64_t /*end*/) {
    for (int64_t part = next++; part < parts; part = next++) {
      kernels::multiply_weight(call, ordered, part * rows, std::min((part + 1) * rows, call.rows));
    }
  });
}

}  // namespace

HostProducts::HostProducts(std::vector<HostWeight> weights, at::Device device)
    : device_(device),
      weights_(std::move(weights)),
      begun_(weights_.size()),
      stream_(device, weights_.size()),
      calls_(device::in_dry_run() ? nullptr : std::make_unique<device::HostCalls>(device)) {}

HostProducts::~HostProducts() = default;

at::Tensor HostProducts::at_host(int64_t rows, int64_t width) const {
  return device::zeros_in_host_memory(rows * width, at::kFloat, device_).view({rows, width});
}

HostProducts::Call HostProducts::make_call(const HostWeight& weight, const at::Tensor& in) {
  const int64_t num_vectors = in.size(0);
  Call call{.out = at_host(num_vectors, weight.rows)};
  if (calls_ == nullptr) {
    return call;
  }
  kernels::WeightProduct product{.rows = weight.rows,
                                 .width = weight.width,
                                 .num_vectors = num_vectors,
                                 .out = device::seen_by_host(call.out).data_ptr<float>()};
  if (weight.plain.defined()) {
    product.type = device::dtype_of(weight.plain.scalar_type());
    product.weight = device::seen_by_host(weight.plain).const_data_ptr();
  } else {
    product.codes = {.format = weight.codes.format,
                     .count = weight.codes.count,
                     .group = weight.codes.group,
                     .codes = device::seen_by_host(weight.codes.codes).data_ptr<uint8_t>(),
                     .scales = device::seen_by_host(weight.codes.scales).data_ptr<float>()};
  }
  const auto* values = device::seen_by_host(in).const_data_ptr<float>();
  call.kept = calls_->keep([product, values] { multiply(product, values); });
  return call;
}

void HostProducts::begin(const std::vector<size_t>& numbers, const at::Tensor& x) {
  for (const size_t number : numbers) {
    KINORA_CHECK(x.dim() == 2 && x.size(1) == weights_[number].width, kShape,
                 "[host_product] x must be [V, ", weights_[number].width, "], got ", x.sizes());
  }
  const int64_t num_vectors = x.size(0);
  Calls& made = calls_of_[num_vectors];
  if (!made.in.defined()) {
    made.in = at_host(num_vectors, x.size(1));
    made.calls.resize(weights_.size());
  }
  for (const size_t number : numbers) {
    if (Call& call = made.calls[number]; !call.out.defined()) {
      call = make_call(weights_[number], made.in);
    }
    begun_[number] = num_vectors;
  }
  stream_.run([&] {
    made.in.copy_(x);  // once: a kernel waits until others of the device leave room for it
    for (const size_t number : numbers) {
      if (calls_ != nullptr) {
        calls_->enqueue_kept(made.calls[number].kept);
      }
      stream_.mark(number);
    }
  });
}

at::Tensor HostProducts::result(size_t number) const {
  if (calls_ != nullptr) {
    calls_->check();
  }
  stream_.wait(number);
  return calls_of_.at(begun_[number]).calls[number].out;
}

}  // namespace kinora::ops
