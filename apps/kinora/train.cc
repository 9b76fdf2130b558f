// kinora train CONFIG [key=value ...]

#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "apps/kinora/commands.h"
#include "apps/kinora/ranks.h"
#include "kinora/checkpoint/checkpoint.h"
#include "kinora/comm/group.h"
#include "kinora/comm/link_speed.h"
#include "kinora/comm/self_check.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/train/trainer.h"

namespace kinora::apps {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string resume = "never";
  RankArguments ranks;
  bool help_config = false;
};

/// What to go on from: as the command line says, but after a restart from the newest checkpoint of
/// the run, if it has one.
train::Resume resume_of(const Arguments& arguments, const train::RunConfig& config,
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

void check_ranks(const comm::Group& group, at::Device device, const train::RunConfig& config) {
  std::vector<comm::Fact> facts = comm::program_facts();
  facts.push_back({"configuration", dump_config(config), true});
  const comm::SelfCheck found = comm::self_check(group, facts);
  const comm::Link link = comm::measure(group, device).front().link;  // of all_reduce
  if (group.rank() == 0) {
    log_info("[train] self-check: ", group.size(), " ranks on ", found.num_hosts,
             found.num_hosts == 1 ? " host" : " hosts", ", with one program and configuration",
             found.num_hosts == 1 ? "" : "; clocks differ by " + human_duration(found.clock_offset),
             "; all-reduce at ", human_bytes(static_cast<int64_t>(link.bytes_per_s)), "/s a rank");
  }
}

int run_rank(const Arguments& arguments, const train::RunConfig& config, const comm::World& world) {
  std::optional<train::Trainer> trainer;  // outlives what ends the process after an error
  on_rank(world, config.train.device, [&](const comm::Group& group, at::Device device) {
    if (world.size > 1) {
      check_ranks(group, device, config);
    }
    const StopSignal stop;
    trainer.emplace(config, resume_of(arguments, config, world), group);
    trainer->run(&stop);
  });
  return 0;
}

int train(const Arguments& arguments) {
  if (arguments.help_config) {
    std::cout << help_config<train::RunConfig>();
    return 0;
  }
  KINORA_CHECK(!arguments.config.empty(), kConfig,
               "[train] a recipe is needed. Hint: kinora train configs/demo.yaml");
  const auto config = load_config<train::RunConfig>(arguments.config, arguments.overrides);
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  return world ? run_rank(arguments, config, *world) : launch(arguments.ranks, config.train.device);
}

}  // namespace

void add_train(CLI::App& app, Action& run) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("train", "Train a model as a recipe says.");
  command->add_option("config", arguments->config, "The recipe, a YAML file");
  command->add_option("overrides", arguments->overrides, "key.path=value, each over the recipe");
  command->add_option("--resume", arguments->resume,
                      "auto: go on from the newest checkpoint, if there is one; never: the run "
                      "directory must be new; or the folder of a checkpoint");
  add_rank_options(*command, arguments->ranks);
  command->add_flag("--help-config", arguments->help_config,
                    "Print every key of a recipe with its meaning and default");
  command->callback([arguments, &run] { run = [arguments] { return train(*arguments); }; });
}

}  // namespace kinora::apps
