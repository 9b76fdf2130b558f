#pragma once

#include <cstdint>
#include <functional>

#include "kinora/data/source.h"

namespace kinora::data {

/// Calls `see` with the facts of each sample of `source` whose header can be read, once, from
/// several threads at a time. Others are named in the log; kIo when there are more than `max_bad`
/// (-1: as for the loader).
void scan_headers(const Source& source, int64_t num_threads, int64_t max_bad,
                  const std::function<void(int64_t index, const SampleFacts& facts)>& see);

}  // namespace kinora::data
