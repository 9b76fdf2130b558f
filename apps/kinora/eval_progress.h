#pragma once

#include "apps/kinora/options/eval.h"
#include "kinora/comm/group.h"
#include "kinora/eval/extract.h"

namespace kinora::apps {

/// How the samples of `options` are read: so many at once, with a bar on the first rank.
[[nodiscard]] eval::ExtractOptions shown_extraction(const EvalOptions& options,
                                                    const comm::Group& group, at::Device device);

}  // namespace kinora::apps
