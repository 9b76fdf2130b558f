#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "kinora/comm/group.h"

/// Test bodies in several processes.
namespace kinora::comm {

struct RankOptions {
  GroupOptions group = {std::chrono::seconds(20), std::chrono::seconds(20)};
  std::chrono::seconds time_limit{60};  ///< after which the processes are killed
};

/// A port at which nobody listens, and which this system gives to nobody who does not ask for it.
[[nodiscard]] int64_t unused_port();

/// Runs `body` in `num_ranks` processes that are connected by Gloo: this binary again, with the
/// current test only, where this function connects and calls `body` instead. What comes before and
/// after it in a test runs in those processes too, on one thread. The test fails, with the output
/// of the ranks concerned, unless all of them succeed; none is left behind. The binary's main() is
/// that of ranks.cc.
void run_on_ranks(int64_t num_ranks, const std::function<void(const Group& world)>& body,
                  const RankOptions& options = {});

}  // namespace kinora::comm
