#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>

namespace kinora::apps {

/// The process of `kinora train --ranks` that is `rank` of the run in `run`, after `restart`
/// restarts; 0: there is none now.
[[nodiscard]] pid_t rank_process(const std::filesystem::path& run, int64_t rank,
                                 int64_t restart = 0);

}  // namespace kinora::apps
