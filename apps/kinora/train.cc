// kinora train CONFIG [key=value ...]

#include <filesystem>
#include <iostream>
#include <optional>

#include "apps/kinora/commands.h"
#include "apps/kinora/ranks.h"
#include "kinora/checkpoint/step_folders.h"
#include "kinora/comm/group.h"
#include "kinora/core/config.h"
#include "kinora/core/log.h"
#include "kinora/train/trainer.h"

namespace kinora::apps {
namespace {

/// What to go on from: as the command line says, but after a restart from the newest checkpoint of
/// the run, if it has one.
train::Resume resume_of(const TrainArguments& arguments, const train::RunConfig& config,
                        const comm::World& world) {
  auto said = train::Resume::parse(arguments.resume);
  if (world.restart == 0) {
    return said;
  }
  const auto checkpoints =
      checkpoint::list_checkpoints(std::filesystem::path(config.run_dir) / "checkpoints");
  if (checkpoints.empty() && said.mode == train::Resume::Mode::kPath) {
    return said;
  }
  if (world.rank == 0) {
    log_info("[train] restart ", world.restart, ": going on as by --resume auto");
  }
  return {.mode = train::Resume::Mode::kAuto, .checkpoint = {}};
}

int run_rank(const TrainArguments& arguments, const train::RunConfig& config,
             const comm::World& world) {
  std::optional<train::Trainer> trainer;  // outlives what ends the process after an error
  on_rank(world, config.train.device, [&](const comm::Group& group, at::Device /*device*/) {
    const StopSignal stop;
    trainer.emplace(config, resume_of(arguments, config, world), group);
    trainer->run(&stop);
  });
  return 0;
}

}  // namespace

int run(const TrainArguments& arguments) {
  if (arguments.help_config) {
    std::cout << help_config<train::RunConfig>();
    return 0;
  }
  const auto config = load_config<train::RunConfig>(arguments.config, arguments.overrides);
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  return world ? run_rank(arguments, config, *world)
               : launch(arguments.ranks, config.train.device, AtStop::kSave);
}

}  // namespace kinora::apps
