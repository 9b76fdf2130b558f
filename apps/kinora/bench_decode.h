#pragma once

#include "apps/kinora/commands.h"

namespace kinora::apps {

/// Adds `kinora bench decode` to `kinora bench`.
void add_bench_decode(CLI::App& bench, Action& run);

}  // namespace kinora::apps
