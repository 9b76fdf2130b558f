#include <CLI/CLI.hpp>

#include <memory>

#include "apps/kinora/options/command.h"

namespace kinora::apps {

void add_doctor(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<DoctorArguments>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Tell what this machine offers, how fast it is, and what may cause trouble.");
  command->add_option("--folder", arguments->folder,
                      "Where the disk is measured, with a file of 256 MiB; default: .");
  command->add_flag("--json", arguments->json, "One line of JSON for each finding");
  add_rank_options(*command, arguments->ranks);
  command->callback([arguments, &chosen] { chosen = *arguments; });
}

}  // namespace kinora::apps
