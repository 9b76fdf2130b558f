#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "apps/kinora/options/choices.h"
#include "apps/kinora/options/command.h"
#include "apps/kinora/options/numbers.h"

namespace kinora::apps {
namespace {

void add_side(CLI::App& command, const std::string& name, ComparedSide& side) {
  command.add_option(name, side.path, "A run, a checkpoint's folder, or a file of weights")
      ->required();
  const std::string suffix = "-" + name;
  command.add_option("--set" + suffix, side.overrides, "key.path=value over its configuration");
  add_choice(command, "--precision" + suffix, side.precision, precisions(),
             "fp32, bf16 or fp16; default: its own");
  command.add_option("--weights" + suffix, side.weights, "ema (averaged) or raw; default: ema")
      ->check(CLI::IsMember({"ema", "raw"}));
}

}  // namespace

void add_compare(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<CompareArguments>();
  CLI::App* command = app.add_subcommand(
      "compare", "Show two models the same samples and find the first module that differs.");
  add_side(*command, "a", arguments->a);
  add_side(*command, "b", arguments->b);
  command->add_option("--config", arguments->config,
                      "Recipe of the models, for files that do not hold it");
  command->add_option("--count", arguments->count, "Samples of A's data to show; default: 4")
      ->check(whole(1));
  command->add_option("--seed", arguments->seed, "Seed of their noise; default: 0")
      ->check(whole(0));
  command
      ->add_option("--threshold", arguments->threshold,
                   "Relative error from which a module differs; default: 1e-4, 1e-2 where one is "
                   "fp16, 5e-2 where one is bf16")
      ->check(above_zero());
  add_device_option(*command, arguments->device);
  command->add_option("--threads", arguments->threads, "CPU threads; default: libtorch's choice")
      ->check(whole(0));
  command->add_flag("--all", arguments->all, "Print every module, not only those that differ");
  command->add_flag("--json", arguments->json, "One line of JSON for each module");
  command->callback([arguments, &chosen] { chosen = *arguments; });
}

}  // namespace kinora::apps
