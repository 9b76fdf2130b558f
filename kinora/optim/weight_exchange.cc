#include "kinora/optim/weight_exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kinora/core/rounding.h"
#include "kinora/device/host_memory.h"
#include "kinora/optim/held_weights.h"

namespace kinora::optim {
namespace {

// Bytes that move at once: long enough for the link, and little beside what an evaluation takes.
constexpr int64_t kExchangedPiece = int64_t{64} << 20;
// One piece leaves for the host while the next comes from it.
constexpr size_t kExchangeRooms = 2;
// What tensors in the host's memory begin on.
constexpr int64_t kSetAlignment = 256;

int64_t padded(int64_t bytes) {
  return round_up(bytes, kSetAlignment);
}

int64_t padded_size_of(const std::vector<at::Tensor>& all) {
  int64_t sum = 0;
  for (const at::Tensor& bytes : all) {
    sum += padded(bytes.numel());
  }
  return sum;
}

}  // namespace

WeightExchange::WeightExchange(Arena& arena)
    : arena_(arena),
      waiting_(device::zeros_in_host_memory(padded_size_of(arena.weight_bytes()), at::kByte,
                                            arena.options().device)),
      link_(arena.options().device, kExchangeRooms) {}

void WeightExchange::bring(Set set) {
  if (there_ == set) {
    return;
  }
  if (HeldWeights* held = arena_.held()) {
    held->begin_change();
  }
  std::array<at::Tensor, kExchangeRooms> rooms;
  for (at::Tensor& room : rooms) {
    room = at::empty({std::min(kExchangedPiece, waiting_.numel())}, waiting_.options());
  }
  int64_t begin = 0;  // in waiting_
  size_t turn = 0;
  for (const at::Tensor& here : arena_.weight_bytes()) {
    for (int64_t at = 0; at < here.numel(); at += kExchangedPiece) {
      const int64_t size = std::min(kExchangedPiece, here.numel() - at);
      const at::Tensor piece = here.narrow(0, at, size);
      const at::Tensor other = waiting_.narrow(0, begin + at, size);
      const at::Tensor room = rooms[turn].narrow(0, 0, size);
      link_.wait(turn);  // what was there has left
      device::copy_bytes(piece, room);
      device::copy_bytes(other, piece);
      link_.run([&] {  // behind these
        device::copy_bytes(room, other);
        link_.mark(turn);
      });
      turn = (turn + 1) % kExchangeRooms;
    }
    here.unsafeGetTensorImpl()->bump_version();  // copies that are kept of it are of the other set
    begin += padded(here.numel());
  }
  link_.wait_for_all();
  there_ = set;
}

}  // namespace kinora::optim
