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
void add_plan(CLI::App& app, Action& run);
void add_bench(CLI::App& app, Action& run);
void add_doctor(CLI::App& app, Action& run);
void add_compare(CLI::App& app, Action& run);
void add_convert(CLI::App& app, Action& run);
void add_demo(CLI::App& app, Action& run);
void add_data(CLI::App& app, Action& run);
void add_runs(CLI::App& app, Action& run);
void add_eval(CLI::App& app, Action& run);

/// Those of "kinora data".
void add_data_check(CLI::App& data, Action& run);
void add_data_encode(CLI::App& data, Action& run);
void add_data_search_batch(CLI::App& data, Action& run);

}  // namespace kinora::apps
