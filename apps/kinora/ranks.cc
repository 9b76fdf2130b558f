#include "apps/kinora/ranks.h"

#include <c10/util/Logging.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <vector>

#include "apps/kinora/error_report.h"
#include "apps/kinora/options/user_error.h"
#include "kinora/comm/board.h"
#include "kinora/comm/rendezvous.h"
#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/launcher.h"
#include "kinora/core/log.h"
#include "kinora/core/rank_limit.h"
#include "kinora/core/signal_block.h"
#include "kinora/core/text.h"
#include "kinora/train/setup.h"
#include "kinora/train/watchdog.h"

namespace kinora::apps {
namespace {

constexpr const char* kOurLauncher = "KINORA_RESTART";  // only it sets this variable
constexpr std::chrono::seconds kTellTimeout{1};
constexpr std::chrono::seconds kSaveGrace{60};

bool is_default(const RankArguments& arguments) {
  return arguments.nodes == 1 && arguments.node_rank == -1 && arguments.rendezvous.empty() &&
         arguments.max_restarts == 0;
}

int64_t num_gpus(DeviceChoice device) {
  return device == DeviceChoice::kCpu ? 0 : cuda_device_count();
}

int64_t num_local_ranks(const RankArguments& arguments, int64_t gpus) {
  if (arguments.ranks == kAutoRanks) {
    return std::max<int64_t>(gpus, 1);
  }
  const int64_t ranks = arguments.ranks.empty() ? 1 : *positive_number(arguments.ranks);
  check_num_ranks(ranks,
                  {.gpus = gpus, .cores = num_cores(), .oversubscribe = arguments.oversubscribe});
  return ranks;
}

/// argv, to be run again by the same file.
std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) {
    words.push_back(word);
  }
  KINORA_CHECK(!words.empty(), kIo, "[ranks] cannot read /proc/self/cmdline, to start ranks by it");
  words[0] = std::filesystem::read_symlink("/proc/self/exe").string();
  return words;
}

/// The ranks of a machine share its cores, unless somebody has thought about it.
std::vector<std::string> child_variables(int64_t num_ranks) {
  std::vector<std::string> variables = {"TORCHELASTIC_USE_AGENT_STORE=True"};
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    variables.push_back("OMP_NUM_THREADS=" +
                        std::to_string(std::max<int64_t>(num_cores() / num_ranks, 1)));
  }
  return variables;
}

/// Tells all ranks, on all machines, that the world is at an end.
void tell_failure(const comm::World& world, const std::string& what) {
  try {
    comm::Board board(world, kTellTimeout);
    comm::put_failure(board, what);
  } catch (const Error& error) {
    log_debug("[ranks] other ranks could not be told: ", error.what());
  }
}

}  // namespace

std::optional<comm::World> own_rank(const RankArguments& arguments,
                                    const comm::Environment& environment) {
  const comm::World world = comm::world_from_environment(environment);
  if (environment(kOurLauncher) != nullptr) {
    return world;
  }
  if (world.size > 1) {
    KINORA_CHECK(
        is_default(arguments), kConfig, "[ranks] a launcher has started rank ", world.rank, " of ",
        world.size,
        ": --nodes, --node-rank, --rendezvous and --max-restarts are its own affair. Hint: "
        "leave them out, or unset the launcher's variables");
    const auto ranks = positive_number(arguments.ranks);
    KINORA_CHECK(!ranks || *ranks == world.size || *ranks == world.local_size, kConfig,
                 "[ranks] --ranks is ", arguments.ranks, ", but a launcher has started ",
                 world.size, " ranks. Hint: leave --ranks out");
    return world;
  }
  const bool one_rank = arguments.ranks.empty() || arguments.ranks == "1";
  return one_rank && is_default(arguments) ? std::optional(world) : std::nullopt;
}

void check_room(const RankArguments& arguments, DeviceChoice device) {
  const SignalBlock block;  // the driver of GPUs may have threads
  (void)num_local_ranks(arguments, num_gpus(device));
}

int launch(const RankArguments& arguments, DeviceChoice device, AtStop at_stop) {
  // libtorch would add stacks to what is said here of a store that has gone.
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  std::optional<comm::StoreServer> store;
  LaunchOptions options;
  {
    const SignalBlock block;  // the store and the GPUs' driver may have threads
    options.num_ranks = num_local_ranks(arguments, num_gpus(device));
    if (arguments.nodes > 1) {
      const Address address = parse_address(arguments.rendezvous);
      options.master_address = address.host;
      options.master_port = static_cast<int>(address.port);
    }
    if (arguments.node_rank <= 0) {
      store.emplace(options.master_port);
      options.master_port = static_cast<int>(store->port());
    }
  }
  options.command = own_command_line();
  options.first_rank = std::max<int64_t>(arguments.node_rank, 0) * options.num_ranks;
  options.world_size = arguments.nodes * options.num_ranks;
  options.environment = child_variables(options.num_ranks);
  options.max_restarts = arguments.max_restarts;
  options.final_codes = {kExitUsage};
  options.again_codes = {kExitStartAgain};
  if (at_stop == AtStop::kSave) {
    options.stop_grace = kSaveGrace;
  }
  options.peer_failure_code = train::kPeerFailedCode;
  options.on_failure = [&options](int64_t restart, const RankEnd& end) {
    comm::World world;
    world.rank = end.rank;
    world.size = options.world_size;
    world.local_size = 0;
    world.store_host = options.master_address;
    world.store_port = options.master_port;
    world.store_is_hosted = true;
    world.store_prefix = comm::store_prefix(restart);
    tell_failure(world, "rank " + std::to_string(end.rank) + " failed: " + describe_end(end));
  };
  return exit_status(launch_ranks(options));
}

void on_rank(const comm::World& world, DeviceChoice choice,
             const std::function<void(const comm::Group& group, at::Device device)>& work,
             const comm::GroupOptions& options) {
  comm::Group group;  // outlives the catch block: its end could wait for ranks that have ended
  try {
    const at::Device device = train::rank_device(world, choice);
    if (world.size > 1) {
      group = comm::connect(world, device, options);
    }
    work(group, device);
    group.barrier();  // rank 0 may keep the store, which the others need to the end
  } catch (const std::exception&) {
    if (world.size > 1) {
      leave_with_current_error(world);
    }
    throw;
  }
}

void leave_with_current_error(const comm::World& world) {
  const ErrorReport report = report_current_error();
  std::cerr << "kinora: " << report.text << std::endl;
  if (report.exit_code != train::kPeerFailedCode) {
    tell_failure(world, "rank " + std::to_string(world.rank) + " on " + comm::host_name() +
                            " failed: " + report.text);
  }
  std::_Exit(report.exit_code);
}

}  // namespace kinora::apps
