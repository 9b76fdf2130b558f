#include <CLI/CLI.hpp>

#include <memory>

#include "apps/kinora/options/command.h"

namespace kinora::apps {

void add_demo(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<DemoArguments>();
  CLI::App* command = app.add_subcommand(
      "demo", "Train a small model on generated shapes, sample from it and judge the samples.");
  command->add_option("overrides", arguments->overrides, "key.path=value over the recipe");
  command->add_option("--config", arguments->config, "The recipe")->capture_default_str();
  command->callback([arguments, &chosen] { chosen = *arguments; });
}

}  // namespace kinora::apps
