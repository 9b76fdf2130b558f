#pragma once

#include <c10/core/Device.h>
#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kinora/comm/group.h"
#include "kinora/comm/world.h"
#include "kinora/pipelines/sampling_ranks.h"
#include "kinora/train/run_config.h"

/// A command as several processes: which of them this one is, and how they start and end.
namespace kinora::apps {

/// The options of the command line.
struct RankArguments {
  std::string ranks;       ///< "4" or "auto": on this machine; empty: as a launcher says, else 1
  int64_t nodes = 1;       ///< machines, each of which starts its own ranks
  int64_t node_rank = -1;  ///< which of them this is; -1: not said
  std::string rendezvous;  ///< "HOST:PORT" of machine 0; empty: not said
  int64_t max_restarts = 0;
};

void add_rank_options(CLI::App& command, RankArguments& arguments);
/// How ranks share the drawing of samples.
void add_sharing_options(CLI::App& command, pipelines::SamplingRanks& wanted);

/// The rank that this process is: as our own or another launcher says, or a world of one if it is
/// to work alone. None: it is to launch the ranks. kConfig for options that contradict each other
/// or the launcher.
[[nodiscard]] std::optional<comm::World> own_rank(
    const RankArguments& arguments,
    const comm::Environment& environment = comm::process_environment());

/// Runs this command line again in as many processes as there are to be, until all have ended.
/// Returns the exit code. kConfig if `device` needs more GPUs than there are.
int launch(const RankArguments& arguments, train::DeviceChoice device);

/// Does `work` as the rank that this process is, with its device and the group of all ranks. All of
/// them end together: where one throws, it is as leave_with_current_error(); a rank that works
/// alone just throws.
void on_rank(const comm::World& world, train::DeviceChoice choice,
             const std::function<void(const comm::Group& group, at::Device device)>& work,
             const comm::GroupOptions& options = {});

/// In a catch block of a rank among several: reports the exception, also to the other ranks, and
/// ends the process without destructors, which could wait for ranks that have ended.
[[noreturn]] void leave_with_current_error(const comm::World& world);

}  // namespace kinora::apps
