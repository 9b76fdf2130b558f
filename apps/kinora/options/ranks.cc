#include "apps/kinora/options/ranks.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <vector>

#include "apps/kinora/options/numbers.h"
#include "kinora/core/error.h"
#include "kinora/core/rank_limit.h"

namespace kinora::apps {

void add_rank_options(CLI::App& command, RankArguments& arguments) {
  command.add_option("--ranks", arguments.ranks,
                     "Processes on this machine: a number, or auto for one a GPU. Under torchrun, "
                     "srun or mpirun they have been started already");
  command
      .add_option("--nodes", arguments.nodes,
                  "Machines on which this command is started by hand, each with --ranks (1)")
      ->check(whole(1));
  command.add_option("--node-rank", arguments.node_rank, "Which machine this is, from 0")
      ->check(whole(0));
  command.add_option("--rendezvous", arguments.rendezvous,
                     "HOST:PORT, an address of machine 0 and a port that is free there");
  command
      .add_option("--max-restarts", arguments.max_restarts,
                  "How often all ranks start again from the newest checkpoint after a failure (0)")
      ->check(whole(0));
  command.add_flag(
      "--oversubscribe", arguments.oversubscribe,
      "Without GPUs: allow more ranks than " + std::to_string(kRanksPerCore) + " for each core");
}

void add_sharing_options(CLI::App& command, pipelines::SamplingRanks& wanted) {
  command
      .add_option(
          "--guidance-ranks", wanted.guidance,
          "Ranks that share classifier-free guidance, 1 or 2; default: as suits --ranks and "
          "the number of samples")
      ->check(whole(1, 2));
  command
      .add_option("--sequence", wanted.sequence,
                  "Ranks that share the tokens of a sample; default: as suits")
      ->check(whole(1));
  command
      .add_option("--tensor", wanted.tensor,
                  "Ranks that share the weights: each has some of the heads and of the MLP's "
                  "columns of every block (1)")
      ->check(whole(1));
  command
      .add_option("--pipeline", wanted.pipeline,
                  "Ranks that share the blocks: each has consecutive ones, through which the "
                  "samples of a batch follow each other (1)")
      ->check(whole(1));
  const std::vector<std::string> names(parallel::kSequenceSchemeNames.begin(),
                                       parallel::kSequenceSchemeNames.end());
  command
      .add_option_function<std::string>(
          "--sequence-scheme",
          [&wanted, names](const std::string& name) {
            wanted.scheme = static_cast<parallel::SequenceScheme>(
                std::find(names.begin(), names.end(), name) - names.begin());
          },
          "How attention reaches the tokens of other ranks, as parallel.sequence_scheme (auto)")
      ->check(CLI::IsMember(names));
}

void check(const RankArguments& arguments) {
  KINORA_CHECK(arguments.ranks.empty() || arguments.ranks == kAutoRanks ||
                   positive_number(arguments.ranks).has_value(),
               kConfig, "[ranks] --ranks must be auto or a positive number, got ", arguments.ranks);
  if (arguments.nodes == 1) {
    KINORA_CHECK(arguments.node_rank <= 0 && arguments.rendezvous.empty(), kConfig,
                 "[ranks] --node-rank and --rendezvous are for several machines, but --nodes is 1");
    return;
  }
  KINORA_CHECK(arguments.node_rank >= 0 && arguments.node_rank < arguments.nodes, kConfig,
               "[ranks] --node-rank must be 0 to ", arguments.nodes - 1, " with --nodes ",
               arguments.nodes, ", got ",
               arguments.node_rank < 0 ? "none" : std::to_string(arguments.node_rank));
  KINORA_CHECK(!arguments.ranks.empty(), kConfig,
               "[ranks] --ranks, the number on each machine, must be given with --nodes");
  KINORA_CHECK(!arguments.rendezvous.empty(), kConfig,
               "[ranks] --rendezvous HOST:PORT, an address of machine 0, must be given with "
               "--nodes");
  (void)parse_address(arguments.rendezvous);
}

std::optional<int64_t> positive_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    return std::nullopt;
  }
  return value;
}

Address parse_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  const auto port = colon == std::string::npos
                        ? std::nullopt
                        : positive_number(std::string_view(text).substr(colon + 1));
  KINORA_CHECK(port && *port <= UINT16_MAX && colon > 0, kConfig,
               "[ranks] --rendezvous must be HOST:PORT, got ", text);
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return {host, *port};
}

}  // namespace kinora::apps
