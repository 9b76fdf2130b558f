#pragma once

#include <functional>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's
class App;
}

/// The subcommands, one file each. Each adds itself to the command line; what it is to run is kept
/// in `run` and called after parsing. It returns the exit code.
namespace kinora::apps {

using Action = std::function<int()>;

void add_train(CLI::App& app, Action& run);
void add_sample(CLI::App& app, Action& run);
void add_bench(CLI::App& app, Action& run);
void add_convert(CLI::App& app, Action& run);
void add_demo(CLI::App& app, Action& run);

}  // namespace kinora::apps
