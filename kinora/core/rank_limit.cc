#include "kinora/core/rank_limit.h"

#include <algorithm>
#include <thread>

#include "kinora/core/error.h"

namespace kinora {

void check_num_ranks(int64_t ranks, const RankRoom& room) {
  if (room.gpus > 0) {
    KINORA_CHECK(ranks <= room.gpus, kConfig, "[ranks] --ranks ", ranks,
                 " needs as many GPUs, but there are ", room.gpus,
                 ". Hint: --ranks auto takes one a GPU; on the CPU (train.device=cpu, or --device "
                 "cpu of sample) there can be ",
                 kRanksPerCore, " a core");
    return;
  }
  const int64_t most = kRanksPerCore * room.cores;
  KINORA_CHECK(room.oversubscribe || ranks <= most, kConfig, "[ranks] --ranks must be at most ",
               most, " here, ", kRanksPerCore, " for each of ", room.cores, " cores, got ", ranks,
               ". Hint: --oversubscribe allows more");
}

void check_num_threads(int64_t threads, int64_t cores) {
  const int64_t most = kThreadsPerCore * cores;
  KINORA_CHECK(threads >= 0 && threads <= most, kConfig,
               "[threads] the number of CPU threads must lie in 0 to ", most, ", ", kThreadsPerCore,
               " for each of ", cores, " cores, got ", threads);
}

int64_t num_cores() {
  return std::max<int64_t>(std::thread::hardware_concurrency(), 1);
}

}  // namespace kinora
