#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "kinora/comm/group.h"
#include "kinora/comm/link_speed.h"
#include "kinora/train/records/run_directory.h"
#include "kinora/train/run_config.h"

namespace kinora::train {

/// What the ranks of a run do before anything else: they find each other fit to train together, by
/// one program with one configuration (comm::self_check), and time their links, which rank 0 tells.
/// Returns the configuration with parallel.bucket_mib as bucket_mib_of(). A world of one has
/// nothing to agree on. All ranks call it. The errors of comm::self_check.
[[nodiscard]] RunConfig agree_on_run(const RunConfig& config, const Resume& resume,
                                     const comm::Group& world);

/// parallel.bucket_mib of a run on `ranks` of `device`. Where GPUs leave it open it is that of the
/// checkpoint to go on from, since the norm of the gradients is summed by buckets, or as `link`,
/// that of reduce-scatter, asks for.
[[nodiscard]] int64_t bucket_mib_of(const RunConfig& config, const Resume& resume,
                                    const comm::Link& link, int64_t ranks, at::Device device);

}  // namespace kinora::train
