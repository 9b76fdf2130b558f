#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kinora/device/side_stream.h"
#include "kinora/ops/optimizer_step.h"

namespace kinora::optim {

/// Updates of buckets piece by piece at one place, by a GPU or by its host: what of a piece lies
/// elsewhere comes to a room there, and what the update has changed of it goes back. Some rooms are
/// in turns, and copies have streams of their own, one for each direction, so both directions of
/// the link and the updates go on at once. Nothing waits for the host.
class PieceUpdates {
 public:
  /// An array as the place has it; undefined: it lies elsewhere.
  using Seen = std::function<at::Tensor(const at::Tensor& array)>;

  /// @param num_buckets  the arena's
  /// @param rooms        uint8 on `device` or in its host's memory: num_rooms rooms,
  ///                     each of as many bytes as the arrays of a piece have that lie
  ///                     elsewhere
  PieceUpdates(at::Device device, size_t num_buckets, const at::Tensor& rooms, size_t num_rooms,
               Seen seen);

  /// The next piece of a bucket, with arrays as the place has them: themselves or their room.
  /// kShape where rooms are too small.
  [[nodiscard]] ops::OptimizerBucket stage(size_t bucket, const ops::OptimizerBucket& piece);
  /// What updates it.
  void add(ops::BucketTable table) { pieces_.back().table = std::move(table); }
  /// No pieces. Between steps whose updates are done.
  void clear() { pieces_.clear(); }

  [[nodiscard]] const ops::BucketTable& table(size_t piece) const { return pieces_[piece].table; }

  /// `update` of each piece of a bucket in turn, on the stream of updates. They begin when the
  /// current stream has done what it was given; it goes on.
  void launch(size_t bucket, const std::function<void(size_t piece)>& update);
  /// `work` behind the updates that were launched; then_return: behind all that goes back.
  void then(const std::function<void()>& work) { updates_.run(work); }
  void then_return(const std::function<void()>& work);
  /// `control` to `copy`, on the stream of updates.
  void bring_control(const at::Tensor& control, const at::Tensor& copy);

  // The current stream waits until bring_control() is done; a bucket is; all are; the gradients of
  // a bucket have been read.
  void wait_for_control() const { updates_.wait(control_mark()); }
  void wait_for(size_t bucket) const { returns_.wait(bucket); }
  void wait_for_all() const;
  void wait_for_gradient(size_t bucket) const {
    (brings_gradients_ ? brings_ : updates_).wait(bucket);
  }

 private:
  struct Copy {
    at::Tensor from;
    at::Tensor to;
  };
  struct Piece {
    size_t bucket;
    std::vector<Copy> in;
    std::vector<Copy> out;
    at::Tensor zeroed;  // when it has been copied; undefined: nothing
    ops::BucketTable table;
  };

  [[nodiscard]] size_t room_of(size_t piece) const { return piece % num_rooms_; }
  // Of all streams rooms come behind the buckets.
  [[nodiscard]] size_t room_mark(size_t piece) const { return num_buckets_ + room_of(piece); }
  [[nodiscard]] size_t control_mark() const { return num_buckets_ + num_rooms_; }
  void bring(const Piece& piece) const;

  size_t num_buckets_;
  at::Tensor rooms_;
  size_t num_rooms_;
  Seen seen_;
  bool brings_gradients_ = false;
  std::vector<Piece> pieces_;   // of a bucket together
  device::SideStream brings_;   // marks: buckets that are here, rooms that are full
  device::SideStream updates_;  // buckets and rooms that are updated, the control block
  device::SideStream returns_;  // buckets that are done, rooms that are free
};

}  // namespace kinora::optim
