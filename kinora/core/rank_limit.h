#pragma once

#include <cstdint>

namespace kinora {

/// Ranks that may share a core of a machine without GPUs. More of them are slower than fewer, and
/// each takes memory: what asks for thousands is mistyped.
inline constexpr int64_t kRanksPerCore = 4;

/// What a machine has room for ranks on.
struct RankRoom {
  int64_t gpus = 0;            ///< that the ranks may use
  int64_t cores = 1;           ///< that this process may use
  bool oversubscribe = false;  ///< any number of ranks on the cores
};

/// Before any rank of this machine is started. kConfig where there are GPUs and fewer of them than
/// ranks, and else for more than kRanksPerCore ranks a core.
void check_num_ranks(int64_t ranks, const RankRoom& room);

/// Threads of computation that a core may have. Results depend on their number, so a small machine
/// may repeat what a large one did; what asks for more is mistyped.
inline constexpr int64_t kThreadsPerCore = 64;

/// Before any thread is started. kConfig for a negative number, and for more than kThreadsPerCore a
/// core.
void check_num_threads(int64_t threads, int64_t cores);

/// Cores that this process may use, at least 1.
[[nodiscard]] int64_t num_cores();

}  // namespace kinora
