#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "apps/kinora/options/command.h"
#include "apps/kinora/options/numbers.h"

namespace kinora::apps {

using train::RunCommand;

void add_runs(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<RunsArguments>();
  CLI::App* command = app.add_subcommand(
      "runs", "List runs; pause, save, sample, stop, change or report on one of them.");
  command->add_option("folders", arguments->folders,
                      "Runs, or folders that runs are in; default: runs");
  command->add_flag("--json", arguments->json, "One line of JSON for each run");
  command->require_subcommand(0, 1);
  command->callback([arguments, &chosen] { chosen = *arguments; });
  const auto add = [&](const char* name, const char* help) {
    CLI::App* inner = command->add_subcommand(name, help);
    inner->add_option("run", arguments->run, "The run's folder")->required();
    return inner;
  };
  const auto add_request = [&](RunCommand what, const char* help) {
    CLI::App* inner = add(std::string(to_string(what)).c_str(), help);
    inner->add_option("--wait", arguments->wait, "Seconds to wait for the answer; default: 600")
        ->check(real(0.0));
    inner->callback([arguments, what] {
      arguments->what = RunsArguments::What::kAsk;
      arguments->command = what;
    });
    return inner;
  };
  add_request(RunCommand::kPause, "Hold a run still, with everything in memory.");
  add_request(RunCommand::kContinue, "Let a paused run go on.");
  add_request(RunCommand::kSave, "Write a checkpoint now.");
  add_request(RunCommand::kSample, "Draw the run's samples now.");
  add_request(RunCommand::kStop, "Save and end.");
  add_request(RunCommand::kLearningRate, "Change lr.value from the next step on.")
      ->add_option("value", arguments->value, "The new lr.value")
      ->required()
      ->check(real(0.0));
  add_request(RunCommand::kExtend, "Change train.steps.")
      ->add_option("steps", arguments->value, "The new train.steps")
      ->required()
      ->check(whole(1));
  CLI::App* page = add("report", "Write a web page about a run, which opens without a network.");
  page->add_option("--out", arguments->out, "The file to write; default: report.html in the run");
  page->callback([arguments] { arguments->what = RunsArguments::What::kReport; });
}

}  // namespace kinora::apps
