#pragma once

#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kinora/checkpoint/shards.h"

namespace kinora::checkpoint {

/// Where the state is kept while it is written and training goes on.
enum class SnapshotPlace {
  kDevice,  ///< beside the arena: costs a copy within the GPU's memory
  kHost,    ///< costs the way there, before the next update
  kNone,    ///< nowhere: training waits for the disk
};

/// "on device", "in host memory", "none".
[[nodiscard]] std::string_view to_string(SnapshotPlace place);

/// Bytes that a snapshot leaves on a GPU, for libraries that load late and steps that need more
/// than those so far.
inline constexpr int64_t kDeviceReserve = int64_t{2} << 30;

/// The first place with room for `bytes`: on a GPU beside the most that tensors have ever taken and
/// kDeviceReserve; in host memory where all `ranks_per_host` ranks together leave half of what is
/// available.
[[nodiscard]] SnapshotPlace choose_place(at::Device device, int64_t bytes, int64_t ranks_per_host);

struct Snapshot {
  SnapshotPlace place = SnapshotPlace::kNone;
  /// Comes when a copy on the device is there.
  std::optional<c10::Event> ready;
};

/// Copies what `files` write and lets them write the copy, so that the arena may change: on a GPU
/// by what is enqueued on the current stream after this call. A device without room after all makes
/// it kHost.
[[nodiscard]] Snapshot take_snapshot(std::vector<ShardFile>& files, at::Device device,
                                     SnapshotPlace place, Staging& staging);

}  // namespace kinora::checkpoint
