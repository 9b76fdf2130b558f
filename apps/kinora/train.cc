// kinora train CONFIG [key=value ...]

#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>

#include "apps/kinora/commands.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/train/trainer.h"

namespace kinora::apps {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string resume = "never";
  int64_t ranks = 1;
  bool help_config = false;
};

int train(const Arguments& arguments) {
  if (arguments.help_config) {
    std::cout << help_config<train::RunConfig>();
    return 0;
  }
  KINORA_CHECK(!arguments.config.empty(), kConfig,
               "[train] a recipe is needed. Hint: kinora train configs/demo.yaml");
  KINORA_CHECK(arguments.ranks == 1, kConfig, "[train] --ranks must be 1, got ", arguments.ranks,
               ": this version trains on one device");
  const auto config = load_config<train::RunConfig>(arguments.config, arguments.overrides);
  const StopSignal stop;
  train::Trainer trainer(config, train::Resume::parse(arguments.resume));
  trainer.run(&stop);
  return 0;
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
  command->add_option("--ranks", arguments->ranks, "Number of processes (1)");
  command->add_flag("--help-config", arguments->help_config,
                    "Print every key of a recipe with its meaning and default");
  command->callback([arguments, &run] { run = [arguments] { return train(*arguments); }; });
}

}  // namespace kinora::apps
