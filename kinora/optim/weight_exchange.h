#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kinora/device/side_stream.h"
#include "kinora/optim/arena.h"

namespace kinora::optim {

/// Two sets of weights for the parameters of an arena that is sampled with, of which one is there
/// and the other waits in the host's memory, page-locked for a GPU: when the other is wanted, they
/// change places, piece by piece. So the device has one set, and two small pieces while they move;
/// the host's memory has one, too, and nothing is read from files or made again.
class WeightExchange {
 public:
  enum class Set : uint8_t { kFirst, kSecond };

  /// The first set is there, and the second is zeros until it is brought and loaded. `arena` is
  /// borrowed. kMemory where the host has no room.
  explicit WeightExchange(Arena& arena);

  /// Has a set in the arena, when the current stream comes there. The host does not wait.
  void bring(Set set);
  [[nodiscard]] Set there() const { return there_; }
  /// Of the set that waits.
  [[nodiscard]] int64_t host_bytes() const { return waiting_.numel(); }

 private:
  Arena& arena_;
  at::Tensor waiting_;       // uint8: Arena::weight_bytes(), one behind the other
  device::SideStream link_;  // from the device's rooms, a mark each
  Set there_ = Set::kFirst;
};

}  // namespace kinora::optim
