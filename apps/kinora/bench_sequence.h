#pragma once

#include "apps/kinora/commands.h"

namespace kinora::apps {

/// Adds `kinora bench sequence` to `kinora bench`.
void add_bench_sequence(CLI::App& bench, Action& run);

}  // namespace kinora::apps
