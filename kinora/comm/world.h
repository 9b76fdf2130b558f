#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

/// Which process of how many this is, and where they meet. No torch here.
namespace kinora::comm {

/// One process among those that work together. The default is a process that works alone.
struct World {
  int64_t rank = 0;        ///< 0 <= rank < size
  int64_t size = 1;        ///< processes in all
  int64_t local_rank = 0;  ///< among the processes of this host: the GPU to take
  int64_t local_size = 1;  ///< processes of this host; 0: the launcher does not say
  /// Where rank 0 (or the launcher, see below) keeps the store. Not needed by a world of one.
  std::string store_host;
  int64_t store_port = 0;
  /// The launcher keeps the store, so that rank 0 too only connects to it.
  bool store_is_hosted = false;
  /// Keeps several worlds in one store apart, as after a restart.
  std::string store_prefix;
  int64_t restart = 0;  ///< how often the launcher has started all processes again
};

/// The value of an environment variable, null if it is not set.
using Environment = std::function<const char*(const char* name)>;

/// The variables of this process (getenv).
[[nodiscard]] Environment process_environment();

/// What the launcher says. The innermost one counts, in this order:
/// - torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (all of them),
///   LOCAL_WORLD_SIZE, TORCHELASTIC_USE_AGENT_STORE, TORCHELASTIC_RESTART_COUNT (KINORA_RESTART of
///   our own launcher, core/launcher.h, comes first);
/// - Open MPI: OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}; MASTER_ADDR where there is more
///   than one host; MASTER_PORT, 29500 without it;
/// - SLURM (srun): SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID; MASTER_ADDR, else the first host of
///   SLURM_STEP_NODELIST, SLURM_JOB_NODELIST or SLURM_NODELIST; MASTER_PORT, else
///   20000 + SLURM_JOB_ID % 10000;
/// - none: a world of one. SLURM_NTASKS without SLURM_PROCID is an allocation's shell, and
///   MASTER_ADDR and MASTER_PORT alone name no launcher.
/// kConfig, naming the variables, if some of a launcher's are missing or contradict each other.
[[nodiscard]] World world_from_environment(const Environment& environment = process_environment());

/// The store_prefix of ranks whose launcher keeps the store.
[[nodiscard]] std::string store_prefix(int64_t restart);

/// kConfig unless ranks lie within their sizes and a world of several has a store's address.
void check_world(const World& world);

/// The name of this machine, for people.
[[nodiscard]] std::string host_name();

/// The first host of SLURM's notation: "node[08-11,20],login" -> "node08", "a[1-2]b[3]" -> "a1b3".
/// kConfig if `list` is not of that form.
[[nodiscard]] std::string first_slurm_host(std::string_view list);

/// "4(x2),3" -> {4, 4, 3}, SLURM's tasks per node. kConfig if `text` is not of that form.
[[nodiscard]] std::vector<int64_t> slurm_tasks_per_node(std::string_view text);

}  // namespace kinora::comm
