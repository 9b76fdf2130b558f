#include "kinora/checkpoint/snapshot.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "kinora/core/cuda.h"
#include "kinora/core/log.h"
#include "kinora/core/process_memory.h"
#include "kinora/core/rounding.h"
#include "kinora/core/text.h"
#include "kinora/device/device.h"

namespace kinora::checkpoint {
namespace {

/// Arrays begin where any type may.
int64_t room_of(const at::Tensor& array) {
  constexpr int64_t kAlignment = 16;
  const auto bytes = static_cast<int64_t>(array.nbytes());
  return round_up(bytes, kAlignment);
}

int64_t room_of(const std::vector<ShardFile>& files) {
  int64_t sum = 0;
  for (const ShardFile& file : files) {
    for (const at::Tensor& array : file.arrays) {
      sum += room_of(array);
    }
  }
  return sum;
}

/// What tensors may still take if they once again take all they ever took.
int64_t device_room(at::Device device) {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = at::accelerator::getDeviceStats(device.index());
  return cuda_free_memory(device.index()) + stats.reserved_bytes[kAll].current -
         stats.allocated_bytes[kAll].peak;
}

/// Replaces every array by its place in one memory, after `copy` to there. One allocation of that
/// size is quick, and its hole is whole afterwards.
template <typename Copy>
void move_arrays(std::vector<ShardFile>& files, at::Device device, const Copy& copy) {
  const at::Tensor memory =
      at::empty({room_of(files)}, at::TensorOptions(at::kByte).device(device));
  int64_t offset = 0;
  for (ShardFile& file : files) {
    for (at::Tensor& array : file.arrays) {
      at::Tensor place =
          memory.narrow(0, offset, static_cast<int64_t>(array.nbytes())).view(array.scalar_type());
      offset += room_of(array);
      copy(place, array);
      array = std::move(place);
    }
  }
}

void move_to_host(std::vector<ShardFile>& files, at::Device device, Staging& staging) {
  struct Piece {
    at::Tensor to;
    at::Tensor from;
  };
  std::vector<Piece> pieces;
  move_arrays(files, at::kCPU, [&pieces](const at::Tensor& to, const at::Tensor& from) {
    const int64_t elements = kChunkBytes / static_cast<int64_t>(from.element_size());
    for (int64_t first = 0; first < from.numel(); first += elements) {
      const int64_t count = std::min(elements, from.numel() - first);
      pieces.push_back({to.narrow(0, first, count), from.narrow(0, first, count)});
    }
  });
  device::synchronize(device);
  staging.for_each(static_cast<int64_t>(pieces.size()), [&](int64_t i, StagingBuffer& buffer) {
    const Piece& piece = pieces[static_cast<size_t>(i)];
    piece.to.copy_(buffer.on_host(piece.from));
  });
}

/// False, and nothing changed, if there is no room.
bool move_on_device(std::vector<ShardFile>& files, at::Device device) {
  try {
    move_arrays(files, device,
                [](const at::Tensor& to, const at::Tensor& from) { to.copy_(from); });
  } catch (const c10::OutOfMemoryError&) {
    return false;
  }
  return true;
}

}  // namespace

std::string_view to_string(SnapshotPlace place) {
  switch (place) {
    case SnapshotPlace::kDevice:
      return "on device";
    case SnapshotPlace::kHost:
      return "in host memory";
    case SnapshotPlace::kNone:
      return "none";
  }
  return "";
}

SnapshotPlace choose_place(at::Device device, int64_t bytes, int64_t ranks_per_host) {
  if (device.is_cuda() && device_room(device) >= bytes + kDeviceReserve) {
    return SnapshotPlace::kDevice;
  }
  if (available_memory() / 2 >= bytes * ranks_per_host) {
    return SnapshotPlace::kHost;
  }
  log_warn("[checkpoint] neither the device nor the host has room for a copy of ",
           human_bytes(bytes), ": training waits while checkpoints are written");
  return SnapshotPlace::kNone;
}

Snapshot take_snapshot(std::vector<ShardFile>& files, at::Device device, SnapshotPlace place,
                       Staging& staging) {
  Snapshot snapshot{.place = place, .ready = {}};
  if (place == SnapshotPlace::kDevice && !move_on_device(files, device)) {
    snapshot.place = SnapshotPlace::kHost;
  }
  if (snapshot.place == SnapshotPlace::kHost) {
    move_to_host(files, device, staging);
  } else if (snapshot.place == SnapshotPlace::kNone) {
    device::synchronize(device);
  } else if (device.is_cuda()) {
    snapshot.ready.emplace(device.type());
    snapshot.ready->record(at::accelerator::getCurrentStream(device.index()));
  }
  return snapshot;
}

}  // namespace kinora::checkpoint
