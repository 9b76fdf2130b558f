#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kinora/pipelines/sampling_ranks.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's
class App;
}

/// Options of the subcommands that run as several processes.
namespace kinora::apps {

/// --ranks: as many as there are GPUs.
inline constexpr std::string_view kAutoRanks = "auto";

struct RankArguments {
  std::string ranks;       ///< "4" or "auto": on this machine; empty: as a launcher says, else 1
  int64_t nodes = 1;       ///< machines, each of which starts its own ranks
  int64_t node_rank = -1;  ///< which of them this is; -1: not said
  std::string rendezvous;  ///< "HOST:PORT" of machine 0; empty: not said
  int64_t max_restarts = 0;
  bool oversubscribe = false;  ///< see RankRoom
};

void add_rank_options(CLI::App& command, RankArguments& arguments);
/// How ranks share the drawing of samples.
void add_sharing_options(CLI::App& command, pipelines::SamplingRanks& wanted);

/// kConfig for options that are malformed or contradict each other.
void check(const RankArguments& arguments);

/// A positive number, none otherwise.
[[nodiscard]] std::optional<int64_t> positive_number(std::string_view text);

struct Address {
  std::string host;
  int64_t port = 0;
};

/// "HOST:PORT", "[IPv6]:PORT". kConfig otherwise.
[[nodiscard]] Address parse_address(const std::string& text);

}  // namespace kinora::apps
