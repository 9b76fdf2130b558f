#pragma once

#include "apps/kinora/commands.h"

namespace kinora::apps {

/// Adds `kinora bench simulate` to `kinora bench`.
void add_bench_simulate(CLI::App& bench, Action& run);

}  // namespace kinora::apps
