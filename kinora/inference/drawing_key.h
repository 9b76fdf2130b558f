#pragma once

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

}  // namespace kinora::inference
