#include <CLI/CLI.hpp>

#include <memory>

#include "apps/kinora/options/choices.h"
#include "apps/kinora/options/command.h"
#include "apps/kinora/options/numbers.h"

namespace kinora::apps {

void add_bench_load(CLI::App& bench, Chosen& chosen) {
  auto arguments = std::make_shared<BenchLoadArguments>();
  train::LoadBenchmarkOptions& options = arguments->options;
  CLI::App* command = bench.add_subcommand(
      "load", "Time loading a pipeline's folder, beside reading its files and copying them.");
  command->add_option("folder", options.folder, "Of the pipeline")->required();
  add_device_option(*command, options.device);
  command->add_option("--repeats", options.repeats, "Timed loads")->check(whole(1, kMany));
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  command->callback([arguments, &chosen] { chosen = *arguments; });
}

}  // namespace kinora::apps
