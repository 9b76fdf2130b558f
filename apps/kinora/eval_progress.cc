#include "apps/kinora/eval_progress.h"

#include <memory>
#include <optional>

#include "kinora/core/progress.h"

namespace kinora::apps {

eval::ExtractOptions shown_extraction(const EvalOptions& options, const comm::Group& group,
                                      at::Device device) {
  eval::ExtractOptions extraction{.batch = options.batch, .device = device, .progress = {}};
  if (group.rank() == 0) {
    const char* const unit = options.set.frames > 0 ? "clips" : "images";
    extraction.progress = [unit, progress = std::make_shared<std::optional<Progress>>()](
                              int64_t done, int64_t total) {
      if (!*progress) {
        progress->emplace(static_cast<double>(total), unit);
      }
      (*progress)->update(static_cast<double>(done));
    };
  }
  return extraction;
}

}  // namespace kinora::apps
