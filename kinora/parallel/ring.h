#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "kinora/comm/group.h"

/// Parts that go around all ranks, one step at a time, while each rank works on the one that is
/// there. Without autograd.
namespace kinora::parallel {

/// Ranks in rings: of I neighbours inside, by a fast link, and A such rings across a slow one (a
/// group of one: a single ring). Owners of parts count 0 to A I - 1, those of a ring inside one
/// behind the other.
struct Rings {
  comm::Group inside;
  comm::Group across;

  [[nodiscard]] int64_t size() const { return inside.size() * across.size(); }
  /// This rank's part.
  [[nodiscard]] int64_t index() const { return across.rank() * inside.size() + inside.rank(); }
};

/// Brings every rank's part here, the own one first, each for one of size() steps:
///
///   for (PassingParts parts(rings, mine); !parts.done(); parts.next()) {
///     ... parts.here(), of parts.owner() ...
///   }
///
/// While a part is here the next one is on its way already. With two levels the part that a round
/// inside starts with also sets out across when the round starts: the slow link has a whole round's
/// time for it. Sends A (I - 1) times inside and A - 1 times across, of equally large parts; holds
/// two parts, with two levels four.
class PassingParts {
 public:
  /// mine: contiguous, of the same shape on all ranks; not to be changed while this lives.
  PassingParts(Rings rings, at::Tensor mine);

  [[nodiscard]] bool done() const { return step_ == rings_.size(); }
  [[nodiscard]] const at::Tensor& here() const { return here_; }
  [[nodiscard]] int64_t owner() const;
  void next();

 private:
  void set_out();

  Rings rings_;
  int64_t step_ = 0;
  at::Tensor here_;
  at::Tensor from_inside_;  // on its way, while there is a step left in this round
  at::Tensor from_across_;  // likewise, while there is a round left
  at::Tensor sent_across_;  // kept until from_across_ is there
  comm::Work inside_;
  comm::Work across_;
};

/// Adds up what all ranks have for each part, and brings the sums to the parts' owners:
///
///   SummedParts sums(rings);
///   ... size() times, for the owners in the order of PassingParts: sums.add(contribution);
///   own = sums.finish();
///
/// The sums travel in the contributions' type and are rounded to it after each rank. A sum travels
/// while the next contribution is computed; with two levels a ring's sum goes across during the
/// next round. Sends as often as PassingParts: the own contributions stay here until the end.
class SummedParts {
 public:
  explicit SummedParts(Rings rings) : rings_(std::move(rings)) {}

  /// contribution: contiguous, of the same shape on all ranks and steps. It is kept and changed.
  void add(at::Tensor contribution);
  [[nodiscard]] at::Tensor finish();

 private:
  /// A sum on its way round one ring.
  struct Level {
    at::Tensor own;      // of the first step: for this rank's part, which gets here at last
    at::Tensor sent;     // kept until it has arrived there
    at::Tensor arrived;  // or on its way, see work
    comm::Work work;

    void add(const comm::Group& ring, at::Tensor contribution);
    at::Tensor finish();
  };
  void finish_round();

  Rings rings_;
  int64_t step_ = 0;
  Level inside_;
  Level across_;
};

}  // namespace kinora::parallel
