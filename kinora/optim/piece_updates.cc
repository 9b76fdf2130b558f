#include "kinora/optim/piece_updates.h"

#include <algorithm>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/device/host_memory.h"

namespace kinora::optim {
namespace {

constexpr int64_t kAlignment = 256;

}  // namespace

PieceUpdates::PieceUpdates(at::Device device, size_t num_buckets, const at::Tensor& rooms,
                           size_t num_rooms, Seen seen)
    : num_buckets_(num_buckets),
      rooms_(rooms),
      num_rooms_(num_rooms),
      seen_(std::move(seen)),
      brings_(device, num_buckets + num_rooms),
      updates_(device, num_buckets + num_rooms + 1),
      returns_(device, num_buckets + num_rooms) {}

ops::OptimizerBucket PieceUpdates::stage(size_t bucket, const ops::OptimizerBucket& piece) {
  Piece staged;
  staged.bucket = bucket;
  const int64_t room = rooms_.numel() / static_cast<int64_t>(num_rooms_);
  int64_t used = 0;
  const auto place = [&](at::Tensor& array, bool is_read, bool is_written) {
    if (!array.defined()) {
      return;
    }
    if (const at::Tensor here = seen_(array); here.defined()) {
      array = here;
      return;
    }
    const auto bytes = static_cast<int64_t>(array.nbytes());
    KINORA_CHECK(used + bytes <= room, kShape, "[optim] a piece needs more than its room of ", room,
                 " bytes");
    const auto number = static_cast<int64_t>(room_of(pieces_.size()));
    const at::Tensor copy = rooms_.narrow(0, number * room + used, bytes).view(array.scalar_type());
    used += round_up(bytes, kAlignment);
    if (is_read) {
      staged.in.push_back({array, copy});
    }
    if (is_written) {
      staged.out.push_back({copy, array});
    }
    array = seen_(copy);
  };
  ops::OptimizerBucket result = piece;
  const at::Tensor grad = result.grad;
  place(result.grad, true, false);
  brings_gradients_ = !result.grad.is_same(grad);
  if (brings_gradients_ && !piece.leaves_grad) {
    staged.zeroed = grad;
    result.leaves_grad = true;  // the copy
  }
  place(result.compute, !piece.master.defined(), true);
  std::vector<at::Tensor*> state = {
      &result.master,         &result.exp_avg,           &result.exp_avg_sq,
      &result.exp_avg_scales, &result.exp_avg_sq_scales, &result.base};
  for (at::Tensor& average : result.ema) {
    state.push_back(&average);
  }
  for (at::Tensor* array : state) {
    place(*array, true, true);
  }
  pieces_.push_back(std::move(staged));
  return result;
}

void PieceUpdates::bring(const Piece& piece) const {
  for (const Copy& copy : piece.in) {
    device::copy_bytes(copy.from, copy.to);
  }
  if (piece.zeroed.defined()) {
    piece.zeroed.zero_();
  }
}

void PieceUpdates::launch(size_t bucket, const std::function<void(size_t piece)>& update) {
  const auto first = std::ranges::find(pieces_, bucket, &Piece::bucket);
  for (auto piece = first; piece != pieces_.end() && piece->bucket == bucket; ++piece) {
    const auto number = static_cast<size_t>(piece - pieces_.begin());
    brings_.run([&] {
      returns_.wait(room_mark(number));
      bring(*piece);
      brings_.mark(room_mark(number));
    });
    updates_.run([&] {
      brings_.wait(room_mark(number));
      update(number);
      updates_.mark(room_mark(number));
    });
    returns_.run([&] {
      updates_.wait(room_mark(number));
      for (const Copy& copy : piece->out) {
        device::copy_bytes(copy.from, copy.to);
      }
      returns_.mark(room_mark(number));
    });
  }
  brings_.run([&] { brings_.mark(bucket); });
  updates_.run([&] { updates_.mark(bucket); });
  returns_.run([&] { returns_.mark(bucket); });
}

void PieceUpdates::then_return(const std::function<void()>& work) {
  returns_.run([&] {
    updates_.wait(control_mark());
    work();
  });
}

void PieceUpdates::bring_control(const at::Tensor& control, const at::Tensor& copy) {
  updates_.run([&] {
    device::copy_bytes(control, copy);
    updates_.mark(control_mark());
  });
}

void PieceUpdates::wait_for_all() const {
  brings_.wait_for_all();
  updates_.wait_for_all();
  returns_.wait_for_all();
}

}  // namespace kinora::optim
