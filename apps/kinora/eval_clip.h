#pragma once

#include <c10/core/Device.h>

#include <nlohmann/json.hpp>

#include "apps/kinora/options/eval.h"
#include "kinora/comm/group.h"

namespace kinora::apps {

/// CLIP score of the pictures or clips in arguments.eval.samples with their prompts. On every rank
/// of `group`, which share the work; all get the same figures.
[[nodiscard]] nlohmann::ordered_json score_clip(const EvalArguments& arguments,
                                                const comm::Group& group, at::Device device);

/// Whether the samples are a run or checkpoint, which score_clip_of_run() lets draw.
[[nodiscard]] bool is_run(const EvalArguments& arguments);

/// The same of what it draws from the prompts, or from the captions of its data. kConfig for
/// models that read no captions, and for several ranks.
[[nodiscard]] nlohmann::ordered_json score_clip_of_run(const EvalArguments& arguments);

}  // namespace kinora::apps
