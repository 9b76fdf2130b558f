#include "kinora/optim/far_updates.h"

#include <algorithm>
#include <utility>

#include "kinora/device/host_memory.h"

namespace kinora::optim {
namespace {

// Of a piece's room: the gradient, and weights in fp32.
constexpr int64_t kRoomBytes = FarUpdates::kPiece * 8;
constexpr int64_t kAlignment = 64;

at::Tensor on_host(int64_t bytes, at::Device device) {
  return device::zeros_in_host_memory(bytes, at::kByte, device);
}

const volatile kernels::StepControl& content_of(const at::Tensor& control) {
  return *reinterpret_cast<const volatile kernels::StepControl*>(control.const_data_ptr());
}

}  // namespace

FarUpdates::FarUpdates(at::Device device, size_t num_buckets)
    : device_(device),
      num_buckets_(num_buckets),
      control_(on_host(sizeof(kernels::StepControl), device)),
      host_control_(device::seen_by_host(control_)),
      done_control_(on_host(sizeof(kernels::StepControl), device)),
      rooms_(on_host(kRoomBytes * static_cast<int64_t>(kRooms), device)),
      link_(device, num_buckets),
      copies_(device, num_buckets + kRooms),
      host_(device, kRooms),
      calls_(device) {}

void FarUpdates::add(size_t bucket, ops::BucketTable by_device) {
  buckets_.push_back({bucket, std::move(by_device), pieces_.size()});
  first_of_host_ = buckets_.size();
}

void FarUpdates::clear() {
  buckets_.clear();
  pieces_.clear();
}

at::Tensor FarUpdates::place_for(const at::Tensor& array, int64_t* used) const {
  const int64_t begin = static_cast<int64_t>(room_of(pieces_.size())) * kRoomBytes + *used;
  const auto bytes = static_cast<int64_t>(array.nbytes());
  *used += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return rooms_.narrow(0, begin, bytes).view(array.scalar_type());
}

ops::OptimizerBucket FarUpdates::stage(const ops::OptimizerBucket& piece) {
  Piece staged;
  int64_t used = 0;
  const auto place = [&](const at::Tensor& array, bool is_read, bool is_written) {
    at::Tensor there = array.defined() ? device::seen_by_host(array) : array;
    if (array.defined() && !there.defined()) {
      const at::Tensor room = place_for(array, &used);
      if (is_read) {
        staged.in.push_back({array, room});
      }
      if (is_written) {
        staged.out.push_back({room, array});
      }
      there = device::seen_by_host(room);
    }
    return there;
  };
  const bool has_master = piece.master.defined();
  ops::OptimizerBucket result = piece;
  result.grad = place(piece.grad, true, false);
  result.master = place(piece.master, true, true);
  result.compute = place(piece.compute, !has_master, true);
  std::vector<at::Tensor*> state = {&result.exp_avg, &result.exp_avg_sq, &result.exp_avg_scales,
                                    &result.exp_avg_sq_scales, &result.base};
  for (at::Tensor& average : result.ema) {
    state.push_back(&average);
  }
  for (at::Tensor* array : state) {
    *array = array->defined() ? device::seen_by_host(*array) : *array;
  }
  if (used > 0 && !piece.leaves_grad) {
    staged.zeroed = piece.grad;
    result.leaves_grad = true;  // the copy
  }
  pieces_.push_back(std::move(staged));
  // The host begins with a third of the buckets.
  first_of_host_ = buckets_.size() - (buckets_.size() + 2) / 3;
  return result;
}

void FarUpdates::add_piece(ops::BucketTable by_host) {
  pieces_.back().table = std::move(by_host);
}

void FarUpdates::fetch(size_t piece) {
  const Piece& fetched = pieces_[piece];
  for (const Copy& copy : fetched.in) {
    device::copy_bytes(copy.from, copy.to);
  }
  if (fetched.zeroed.defined()) {
    fetched.zeroed.zero_();
  }
  copies_.mark(mark_of(piece));
}

void FarUpdates::update(size_t piece, const kernels::UpdateParameters& parameters) {
  if (disk_ != nullptr) {
    disk_->update(piece, parameters, host_control_);
  } else {
    ops::update_weights(pieces_[piece].table, parameters, host_control_);
  }
}

void FarUpdates::balance(size_t first) {
  const bool link_is_done = content_of(done_control_).steps == content_of(control_).steps;
  const size_t next = link_is_done ? first + 1 : first - std::min<size_t>(first, 1);
  // Later steps may have begun meanwhile, as it was.
  first_of_host_.compare_exchange_strong(first, std::min(next, buckets_.size()));
}

void FarUpdates::launch_on_host(size_t first, const kernels::UpdateParameters& parameters) {
  const size_t begin = buckets_[first].first_piece;
  const size_t end = pieces_.size();
  for (size_t piece = begin; piece < std::min(begin + kRooms, end); ++piece) {
    copies_.run([&] { fetch(piece); });
  }
  size_t bucket = first;
  for (size_t piece = begin; piece < end; ++piece) {
    host_.run([&] {
      copies_.wait(mark_of(piece));
      calls_.enqueue([this, piece, first, parameters, is_last = piece + 1 == end] {
        update(piece, parameters);
        if (is_last && disk_ == nullptr) {
          balance(first);
        }
      });
      host_.mark(room_of(piece));
    });
    const bool ends_bucket = piece + 1 == end || (bucket + 1 < buckets_.size() &&
                                                  buckets_[bucket + 1].first_piece == piece + 1);
    copies_.run([&] {
      host_.wait(room_of(piece));
      for (const Copy& copy : pieces_[piece].out) {
        device::copy_bytes(copy.from, copy.to);
      }
      if (ends_bucket) {
        copies_.mark(buckets_[bucket].number);
      }
      if (piece + kRooms < end) {
        fetch(piece + kRooms);
      }
    });
    bucket += ends_bucket ? 1 : 0;
  }
}

void FarUpdates::launch(const kernels::UpdateParameters& parameters, const at::Tensor& control) {
  calls_.check();
  const size_t first = first_of_host();
  link_.run([&] {
    for (size_t i = 0; i < first; ++i) {
      ops::update_weights(buckets_[i].by_device, parameters, control);
      link_.mark(buckets_[i].number);
    }
    device::copy_bytes(control, done_control_);
  });
  if (first < buckets_.size()) {
    copies_.run([&] { device::copy_bytes(control, control_); });
    launch_on_host(first, parameters);
  }
}

}  // namespace kinora::optim
