#include "kinora/models/unconditional.h"

namespace kinora::models {

bool is_unconditional(const ModelConfig& config) {
  return config.unet.is_unconditional();
}

}  // namespace kinora::models
