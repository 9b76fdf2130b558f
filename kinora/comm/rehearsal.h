#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/comm/world.h"

/// What ranks compute, keep in memory and would exchange, without the exchange: for benchmarks.
namespace kinora::comm {

/// A call that was only noted.
struct RehearsedCall {
  Operation operation = Operation::kBarrier;
  int64_t bytes = 0;                 ///< as in Traffic
  std::vector<int64_t> world_ranks;  ///< of the group
  int64_t from = -1;                 ///< group ranks: of exchange and receive,
  int64_t to = -1;                   ///< of exchange and send
};
using RehearsedCalls = std::vector<RehearsedCall>;

/// The group of all ranks of `world`, none of which needs to be there: calls on it, and on groups
/// split off it, are checked and counted as always, added to `calls`, and done at once. Results
/// keep what their memory held, on any device.
[[nodiscard]] Group rehearse(const World& world, std::shared_ptr<RehearsedCalls> calls);

}  // namespace kinora::comm
