#pragma once

#include "kinora/models/model_config.h"

namespace kinora::models {

/// Whether the model draws by itself: nobody tells it captions or classes, labels are not read, and
/// there is nothing that guidance could be by. The configuration is resolved.
[[nodiscard]] bool is_unconditional(const ModelConfig& config);

}  // namespace kinora::models
