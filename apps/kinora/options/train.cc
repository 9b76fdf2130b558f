#include <CLI/CLI.hpp>

#include <memory>

#include "apps/kinora/options/command.h"
#include "kinora/core/error.h"

namespace kinora::apps {

void add_train(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand("train", "Train a model as a recipe says.");
  command->add_option("config", arguments->config, "The recipe, a YAML file");
  command->add_option("overrides", arguments->overrides, "key.path=value, each over the recipe");
  command->add_option("--resume", arguments->resume,
                      "auto: go on from the newest checkpoint, if there is one; never: the run "
                      "directory must be new; or the folder of a checkpoint");
  add_rank_options(*command, arguments->ranks);
  command->add_flag("--help-config", arguments->help_config,
                    "Print every key of a recipe with its meaning and default");
  command->callback([arguments, &chosen] {
    KINORA_CHECK(arguments->help_config || !arguments->config.empty(), kConfig,
                 "[train] a recipe is needed. Hint: kinora train configs/demo.yaml");
    chosen = *arguments;
  });
}

}  // namespace kinora::apps
