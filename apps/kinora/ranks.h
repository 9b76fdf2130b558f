#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "apps/kinora/options/ranks.h"
#include "kinora/comm/group.h"
#include "kinora/comm/world.h"
#include "kinora/core/compute_choice.h"

/// A command as several processes: which of them this one is, and how they start and end.
namespace kinora::apps {

/// The rank that this process is: as our own or another launcher says, or a world of one if it is
/// to work alone. None: it is to launch the ranks. kConfig for options that contradict the
/// launcher.
[[nodiscard]] std::optional<comm::World> own_rank(
    const RankArguments& arguments,
    const comm::Environment& environment = comm::process_environment());

/// What ranks do when SIGINT or SIGTERM asks them to end.
enum class AtStop {
  kEnd,   ///< they are gone within 10 s
  kSave,  ///< they may take a minute to write what they have computed
};

/// kConfig for more ranks than this machine has room for (check_num_ranks).
void check_room(const RankArguments& arguments, DeviceChoice device);

/// Runs this command line again in as many processes as there are to be, until all have ended.
/// Returns the exit code. kConfig, before anything starts, as check_room().
int launch(const RankArguments& arguments, DeviceChoice device, AtStop at_stop = AtStop::kEnd);

/// Does `work` as the rank that this process is, with its device and the group of all ranks. All of
/// them end together: where one throws, it is as leave_with_current_error(); a rank that works
/// alone just throws.
void on_rank(const comm::World& world, DeviceChoice choice,
             const std::function<void(const comm::Group& group, at::Device device)>& work,
             const comm::GroupOptions& options = {});

/// In a catch block of a rank among several: reports the exception, also to the other ranks, and
/// ends the process without destructors, which could wait for ranks that have ended.
[[noreturn]] void leave_with_current_error(const comm::World& world);

}  // namespace kinora::apps
