#pragma once

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "kinora/comm/group.h"

namespace kinora::train {

/// The first rank's, for all.
inline std::filesystem::path shared_path(const std::filesystem::path& own,
                                         const comm::Group& world) {
  constexpr int64_t kMost = 1024;
  at::Tensor letters = at::zeros({kMost}, at::kByte);
  std::ranges::copy(own.string(), letters.mutable_data_ptr<uint8_t>());
  world.broadcast(letters, 0);
  return std::string(reinterpret_cast<const char*>(letters.const_data_ptr<uint8_t>()));
}

}  // namespace kinora::train
