#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

#include "kinora/optim/arena.h"

/// Weights that are no numbers, found where they are read: a picture drawn from them is black, and
/// says nothing of why.
namespace kinora::checkpoint {

/// kIo unless all of this rank's values of a role, and all frozen parameters, are finite: names
/// `origin`, the first tensor with others, how many it has and where. Reads them once.
void check_finite(const optim::Arena& arena, optim::Role role, const std::filesystem::path& origin);
/// The same of one tensor.
void check_finite(const std::string& name, const at::Tensor& values,
                  const std::filesystem::path& origin);

}  // namespace kinora::checkpoint
