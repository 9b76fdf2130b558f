#include <CLI/CLI.hpp>

#include <memory>

#include "apps/kinora/options/command.h"
#include "apps/kinora/options/numbers.h"

namespace kinora::apps {

void add_plan(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command = app.add_subcommand(
      "plan", "The memory that a recipe needs, and what makes it fit, before anything of it runs.");
  command->add_option("config", arguments->config, "The recipe, a YAML file")->required();
  command->add_option("overrides", arguments->overrides, "key.path=value, each over the recipe");
  command->add_option(
      "--gpu", arguments->gpu,
      "What it shall run on: h200, 4090, ... (another name lists all), or a number of "
      "GiB; default: this machine's GPU, else its CPU");
  command->add_option("--ranks", arguments->ranks, "Processes, a GPU each")
      ->check(whole(1, 65536))
      ->capture_default_str();
  command->add_flag("--search", arguments->search,
                    "List the fastest settings that fit, of what is computed again, the samples at "
                    "once and how ranks share the work");
  command->add_flag("--layers", arguments->layers, "Also what each block keeps for backward");
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  command->callback([arguments, &chosen] { chosen = *arguments; });
}

}  // namespace kinora::apps
