#include "kinora/optim/far_updates.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/device/host_memory.h"

namespace kinora::optim {
namespace {

/// Of a piece at the host: the gradient, and weights as forward reads them.
int64_t host_room_bytes(bool is_half) {
  return FarUpdates::kHostPiece * (is_half ? 6 : 8);
}

at::Tensor on_host(int64_t bytes, at::Device device) {
  return device::zeros_in_host_memory(bytes, at::kByte, device);
}

const volatile kernels::StepControl& content_of(const at::Tensor& control) {
  return *reinterpret_cast<const volatile kernels::StepControl*>(control.const_data_ptr());
}

/// Undefined for what lies in the memory of a GPU's host.
at::Tensor seen_by_device(const at::Tensor& array) {
  return array.is_cpu() || !device::seen_by_host(array).defined() ? array : at::Tensor();
}

}  // namespace

FarUpdates::FarUpdates(at::Device device, size_t num_buckets,
                       const kernels::UpdateParameters& parameters, const at::Tensor& rooms,
                       bool is_half)
    : parameters_(parameters),
      device_control_(
          at::empty({sizeof(kernels::StepControl)}, at::device(device).dtype(at::kByte))),
      control_(on_host(sizeof(kernels::StepControl), device)),
      host_control_(device::seen_by_host(control_)),
      done_control_(on_host(sizeof(kernels::StepControl), device)),
      by_device_(device, num_buckets, rooms, kDeviceRooms, seen_by_device),
      by_host_(device, num_buckets,
               on_host(host_room_bytes(is_half) * static_cast<int64_t>(kHostRooms), device),
               kHostRooms, device::seen_by_host),
      calls_(device) {}

void FarUpdates::settle(bool host_helps, DiskUpdates* disk) {
  disk_ = disk;
  of_host_ = host_helps ? ceil_div(buckets_.size(), 3) : 0;  // to begin with
}

void FarUpdates::clear() {
  buckets_.clear();
  by_device_.clear();
  by_host_.clear();
}

bool FarUpdates::is_of_host(size_t i) const {
  return (i + 1) * of_host_now_ / buckets_.size() != i * of_host_now_ / buckets_.size();
}

void FarUpdates::update_by_host(size_t piece) {
  if (disk_ != nullptr) {
    disk_->update(piece, parameters_, host_control_);
  } else {
    ops::update_weights(by_host_.table(piece), parameters_, host_control_);
  }
}

void FarUpdates::balance(size_t of_host) {
  const bool device_is_done = content_of(done_control_).steps >= content_of(control_).steps;
  const size_t next = device_is_done ? of_host - 1 : of_host + 1;
  // Later steps may have begun meanwhile, as it was. With none left the host is of no help, and is
  // asked no more.
  of_host_.compare_exchange_strong(of_host, std::min(next, buckets_.size()));
}

void FarUpdates::wait_for_control() const {
  by_device_.wait_for_control();
  by_host_.wait_for_control();
}

void FarUpdates::begin(const at::Tensor& control) {
  calls_.check();
  of_host_now_ = of_host();
  by_device_.bring_control(control, device_control_);
  by_host_.bring_control(control, control_);
}

void FarUpdates::launch_on_host(size_t bucket) {
  by_host_.launch(
      bucket, [this](size_t piece) { calls_.enqueue([this, piece] { update_by_host(piece); }); });
}

void FarUpdates::launch_on_device(size_t bucket) {
  by_device_.launch(bucket, [this](size_t piece) {
    ops::update_weights(by_device_.table(piece), parameters_, device_control_);
  });
}

void FarUpdates::launch(size_t bucket) {
  const auto found = std::ranges::find(buckets_, bucket);
  KINORA_CHECK(found != buckets_.end(), kInternal, "[optim] bucket ", bucket, " is not far");
  if (is_of_host(static_cast<size_t>(found - buckets_.begin()))) {
    launch_on_host(bucket);
  } else {
    launch_on_device(bucket);
  }
}

void FarUpdates::launch_all() {
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (is_of_host(i)) {
      launch_on_host(buckets_[i]);
    }
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (!is_of_host(i)) {
      launch_on_device(buckets_[i]);
    }
  }
}

void FarUpdates::end() {
  by_device_.then_return([this] { device::copy_bytes(device_control_, done_control_); });
  if (of_host_now_ > 0 && disk_ == nullptr) {
    by_host_.then([this] { calls_.enqueue([this, of_host = of_host_now_] { balance(of_host); }); });
  }
}

void FarUpdates::wait_for(size_t bucket) const {
  by_device_.wait_for(bucket);
  by_host_.wait_for(bucket);
}

void FarUpdates::wait_for_all() const {
  by_device_.wait_for_all();
  by_host_.wait_for_all();
}

void FarUpdates::wait_for_gradient(size_t bucket) const {
  by_device_.wait_for_gradient(bucket);
  by_host_.wait_for_gradient(bucket);
}

}  // namespace kinora::optim
