#pragma once

#include <cstdint>
#include <string>

#include "kinora/inference/convert_weights.h"

namespace kinora::apps {

struct ConvertArguments {
  inference::ConvertOptions options;
  std::string dtype;
  std::string updates;
  uint64_t max_shard_bytes = 0;
};

}  // namespace kinora::apps
