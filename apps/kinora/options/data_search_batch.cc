#include <CLI/CLI.hpp>

#include <memory>

#include "apps/kinora/options/command.h"
#include "apps/kinora/options/numbers.h"

namespace kinora::apps {

void add_data_search_batch(CLI::App& data, Chosen& chosen) {
  auto arguments = std::make_shared<SearchBatchArguments>();
  CLI::App* command = data.add_subcommand(
      "search-batch",
      "Find batch sizes of data.buckets by timing real steps on this machine: such that all take "
      "as long, or the largest.");
  command->add_option("config", arguments->config, "The recipe")->required();
  command->add_option("overrides", arguments->overrides, "key.path=value, each over the recipe");
  command
      ->add_option("--memory-gib", arguments->memory_gib,
                   "What a step may take (default: of a GPU nine tenths of what is free; of a CPU, "
                   "where the whole process counts, without limit)")
      ->check(above_zero());
  CLI::Option* largest = command->add_flag("--largest", arguments->search.largest,
                                           "The largest batches that fit the memory");
  CLI::Option* seconds = command
                             ->add_option("--step-seconds", arguments->search.step_seconds,
                                          "What a step is to take (default: as long as --base)")
                             ->check(above_zero())
                             ->excludes(largest);
  command
      ->add_option("--base", arguments->search.base,
                   "The row whose step at its batch size the others' are to be like, as 256px:16 "
                   "(default: the first)")
      ->excludes(largest)
      ->excludes(seconds);
  command->add_option("--out", arguments->out, "Write the block data.buckets to this file too");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->callback([arguments, &chosen] { chosen = *arguments; });
}

}  // namespace kinora::apps
