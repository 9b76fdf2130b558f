#pragma once

#include <cstdint>
#include <span>

#include "kinora/inference/drawing.h"
#include "kinora/inference/request.h"
#include "kinora/inference/sample_folder.h"
#include "kinora/inference/trained_model.h"

namespace kinora::inference {

/// What decides the samples of a drawing of one request: a checksum of the weights, the recipe,
/// what was asked for. What moves them by rounding alone is not in it: batch, ranks, device,
/// threads.
[[nodiscard]] DrawingKey drawing_key(const TrainedModel& trained, const Drawing& drawing,
                                     const Request& request, const DrawOptions& options);

/// `key` as if the drawing were of its first `count` samples. asked: of all of them.
[[nodiscard]] DrawingKey key_of_first(DrawingKey key, std::span<const Asked> asked, int64_t count);

}  // namespace kinora::inference
