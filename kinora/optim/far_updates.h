#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kinora/device/host_calls.h"
#include "kinora/kernels/optimizer.h"
#include "kinora/optim/disk_state.h"
#include "kinora/optim/piece_updates.h"

namespace kinora::optim {

/// Updates of buckets whose state lies in the memory of a GPU's host, beside what the GPU computes:
/// some buckets by the GPU, to which their state comes over the link, and at the same time the
/// others by the host's cores, to which gradients come and from which what forward reads goes back.
/// Each step moves one bucket from those who were done last to the others. Both give the same bits.
/// State on a disk is updated by the host alone.
///
///   for each step:  wait_for_control();  the control block is prepared;  begin();
///     launch() for each bucket, in any order, or launch_all();
///     end();
class FarUpdates {
 public:
  /// Bytes of a piece that come to the GPU, as many as one copy is fast with; elements of one of
  /// the host.
  static constexpr int64_t kDevicePieceBytes = int64_t{24} << 20;
  static constexpr int64_t kHostPiece = int64_t{4} << 20;
  static constexpr int64_t kDeviceRooms = 4;

  /// num_buckets: the arena's.
  /// @param rooms    uint8 on the device: kDeviceRooms times what the host has of a piece
  /// @param is_half  weights have a copy of 16 bits for forward
  FarUpdates(at::Device device, size_t num_buckets, const kernels::UpdateParameters& parameters,
             const at::Tensor& rooms, bool is_half);

  /// A bucket, by its number in the arena, in their order.
  void add(size_t bucket) { buckets_.push_back(bucket); }
  /// Its pieces: with what updates each of them.
  [[nodiscard]] PieceUpdates& by_device() { return by_device_; }
  /// Likewise. Either all buckets have such pieces or none has: then the host updates nothing.
  [[nodiscard]] PieceUpdates& by_host() { return by_host_; }
  /// When all have been added: whether the host has pieces; and whose they are, one by one, and who
  /// then has what updates them; null: nobody's.
  void settle(bool host_helps, DiskUpdates* disk);
  /// No buckets. Between steps whose updates are done.
  void clear();

  /// The current stream waits until no step reads the control block any more.
  void wait_for_control() const;
  void begin(const at::Tensor& control);
  /// Of one of the buckets, whose gradients the current stream has made. It goes on.
  void launch(size_t bucket);
  /// First those of the host: a stream takes so many orders at once, and those for the device would
  /// keep these waiting.
  void launch_all();
  void end();

  /// The current stream waits for a bucket of the arena; for all.
  void wait_for(size_t bucket) const;
  void wait_for_all() const;
  /// The current stream waits until the gradients of a bucket of the arena have been read.
  void wait_for_gradient(size_t bucket) const;
  /// Throws what an update by the host has thrown.
  void check() const { calls_.check(); }
  /// Buckets that the host updates in the next step, of all that are here.
  [[nodiscard]] std::pair<size_t, size_t> shares() const { return {of_host(), buckets_.size()}; }

 private:
  /// Gradients that are at the host before their turn: of a few blocks, so that backward goes on.
  static constexpr size_t kHostRooms = 16;

  [[nodiscard]] size_t of_host() const {
    return disk_ != nullptr ? buckets_.size() : of_host_.load();
  }
  /// Whether the host has the i-th of buckets_ in this step: every so many of them.
  [[nodiscard]] bool is_of_host(size_t i) const;
  void launch_on_host(size_t bucket);
  void launch_on_device(size_t bucket);
  void update_by_host(size_t piece);
  /// When the host is done with a step in which it had so many buckets.
  void balance(size_t of_host);

  kernels::UpdateParameters parameters_;
  std::vector<size_t> buckets_;
  DiskUpdates* disk_ = nullptr;
  std::atomic<size_t> of_host_ = 0;  // buckets, where the GPU takes a part
  size_t of_host_now_ = 0;           // of them in this step
  // The control block of this step: on the device; in the host's memory; and there that of the last
  // step whose updates by the device are done.
  at::Tensor device_control_;
  at::Tensor control_;
  at::Tensor host_control_;  // control_, as the host sees it
  at::Tensor done_control_;
  PieceUpdates by_device_;
  PieceUpdates by_host_;
  device::HostCalls calls_;  // last: calls use the others
};

}  // namespace kinora::optim
