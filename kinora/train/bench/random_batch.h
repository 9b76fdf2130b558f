#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "kinora/data/batch.h"
#include "kinora/models/model_config.h"

namespace kinora::train {

/// What a model takes of samples first, ..., first + size - 1, with random values of 0 to 255 of
/// `shape`, [C, h, w] or [C, T, h, w], and random texts of `text_length` tokens; 0: of half to all
/// of the longest. In page-locked memory for a GPU.
[[nodiscard]] data::Batch random_batch(const models::ModelConfig& model, std::vector<int64_t> shape,
                                       int64_t first, int64_t size, int64_t text_length,
                                       at::Device device);

}  // namespace kinora::train
