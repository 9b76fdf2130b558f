#include <CLI/CLI.hpp>

#include <memory>

#include "apps/kinora/options/command.h"

namespace kinora::apps {

void add_data_check(CLI::App& data, Chosen& chosen) {
  auto arguments = std::make_shared<DataCheckArguments>();
  CLI::App* command = data.add_subcommand(
      "check", "Look at all samples of a set and say which can be used, and why others cannot.");
  command
      ->add_option(
          "set", arguments->set,
          "A recipe, or a folder, manifest (.csv, .jsonl, .parquet), archive (.tar) or file "
          "of latents")
      ->required();
  command->add_option("overrides", arguments->overrides,
                      "key.path=value, each over the recipe, or over what is guessed of a path");
  command->add_flag("--full", arguments->full,
                    "Decode everything once, instead of only reading headers");
  command->add_flag("--json", arguments->json, "Print one JSON object, with all names");
  command->add_flag("--all", arguments->all, "Print all names, not the first of each cause");
  command->add_option("--index", arguments->index,
                      "The file that keeps what was found (default: data.index, else one in the "
                      "user's cache folder)");
  command->add_option("--quarantine", arguments->quarantine,
                      "Write the names of unusable samples to this file, for data.quarantine");
  command->add_option("--threads", arguments->threads, "Threads; 0 takes all cores");
  command->callback([arguments, &chosen] { chosen = *arguments; });
}

}  // namespace kinora::apps
