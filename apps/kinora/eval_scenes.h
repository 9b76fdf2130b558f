#pragma once

#include <nlohmann/json.hpp>

#include "apps/kinora/options/eval.h"

namespace kinora::apps {

/// What share of the held-out scenes (data/scenes.h) the model draws right, by number of objects,
/// beside what chance would give; of a model of clips, of the held-out clips
/// (data/moving_shapes.h), by attribute. kConfig for models that read no captions.
[[nodiscard]] nlohmann::ordered_json score_scenes(const EvalArguments& arguments);

}  // namespace kinora::apps
