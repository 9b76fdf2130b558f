#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kinora/device/host_calls.h"
#include "kinora/device/side_stream.h"
#include "kinora/kernels/optimizer.h"
#include "kinora/ops/optimizer_step.h"
#include "kinora/optim/disk_state.h"

namespace kinora::optim {

/// Updates of buckets whose state lies in the memory of a GPU's host, beside what the GPU computes:
/// the first buckets by the GPU, over the link, and at the same time the last ones by the host's
/// cores, to which gradients are copied and from which what forward reads comes back. Each step
/// moves one bucket from those who were done last to the others. Both give the same bits. State on
/// a disk is updated by the host alone.
class FarUpdates {
 public:
  /// Elements of a piece, of which the host updates one while others are copied.
  static constexpr int64_t kPiece = int64_t{4} << 20;

  /// num_buckets: the arena's.
  FarUpdates(at::Device device, size_t num_buckets);

  /// The next bucket in the order of use, by its number in the arena: what the GPU updates it with.
  void add(size_t bucket, ops::BucketTable by_device);
  /// Its next piece, with the arrays that are not in the host's memory replaced by their place
  /// there; and what updates these. Either all buckets have pieces or none has: then the host
  /// updates nothing.
  [[nodiscard]] ops::OptimizerBucket stage(const ops::OptimizerBucket& piece);
  void add_piece(ops::BucketTable by_host);
  /// Whose pieces, one by one, those of stage() are, and who then has what updates them; null:
  /// nobody's.
  void updates_on_disk(DiskUpdates* disk) { disk_ = disk; }
  /// No buckets. Between steps whose updates are done.
  void clear();

  /// One step of all buckets. The current stream goes on.
  void launch(const kernels::UpdateParameters& parameters, const at::Tensor& control);
  /// The current stream waits for a bucket of the arena; for all.
  void wait_for(size_t bucket) const {
    copies_.wait(bucket);
    link_.wait(bucket);
  }
  void wait_for_all() const {
    copies_.wait_for_all();
    link_.wait_for_all();
  }
  /// Throws what an update by the host has thrown.
  void check() const { calls_.check(); }
  /// Buckets that the host updates in the next step, of all that are here.
  [[nodiscard]] std::pair<size_t, size_t> shares() const {
    return {buckets_.size() - first_of_host(), buckets_.size()};
  }

 private:
  /// Pieces under way at once.
  static constexpr size_t kRooms = 3;

  struct Copy {
    at::Tensor from;
    at::Tensor to;
  };
  struct Piece {
    std::vector<Copy> in;
    std::vector<Copy> out;
    at::Tensor zeroed;  // when it has been copied; undefined: nothing
    ops::BucketTable table;
  };
  struct Bucket {
    size_t number;
    ops::BucketTable by_device;
    size_t first_piece;
  };

  /// In buckets_.
  [[nodiscard]] size_t first_of_host() const {
    return disk_ != nullptr ? 0 : first_of_host_.load();
  }
  [[nodiscard]] at::Tensor place_for(const at::Tensor& array, int64_t* used) const;
  [[nodiscard]] static size_t room_of(size_t piece) { return piece % kRooms; }
  [[nodiscard]] size_t mark_of(size_t piece) const { return num_buckets_ + room_of(piece); }
  void fetch(size_t piece);
  void update(size_t piece, const kernels::UpdateParameters& parameters);
  void launch_on_host(size_t first, const kernels::UpdateParameters& parameters);
  /// When the host is done with a step in which it updated the buckets from `first` on.
  void balance(size_t first);

  at::Device device_;
  size_t num_buckets_;
  std::vector<Bucket> buckets_;
  std::vector<Piece> pieces_;
  DiskUpdates* disk_ = nullptr;
  std::atomic<size_t> first_of_host_ = 0;  // where the GPU takes a part
  // In the host's memory: the control block of this step, and that of the last one whose updates
  // over the link are done.
  at::Tensor control_;
  at::Tensor host_control_;  // the former, as the host sees it
  at::Tensor done_control_;
  at::Tensor rooms_;
  device::SideStream link_;    // marks: the arena's buckets
  device::SideStream copies_;  // the arena's buckets, then rooms
  device::SideStream host_;    // rooms
  device::HostCalls calls_;    // last: calls use the others
};

}  // namespace kinora::optim
