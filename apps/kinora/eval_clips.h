#pragma once

#include <c10/core/Device.h>

#include <nlohmann/json.hpp>

#include "apps/kinora/options/eval.h"
#include "kinora/comm/group.h"

namespace kinora::apps {

/// How the clips in arguments.eval.samples hold together and move, in the networks that are named.
/// On every rank of `group`, which share the work; all get the same figures.
[[nodiscard]] nlohmann::ordered_json score_clips(const EvalArguments& arguments,
                                                 const comm::Group& group, at::Device device);

}  // namespace kinora::apps
