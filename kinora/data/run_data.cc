#include "kinora/data/run_data.h"

#include <utility>

#include "kinora/data/epoch_order.h"
#include "kinora/data/subset.h"

namespace kinora::data {

RunData open_data(const DataConfig& config, const CaptionTokens* tokens) {
  RunData data;
  data.whole = open_source(config, tokens);
  Split parts = split(data.whole->size(), config.validation, static_cast<uint64_t>(config.seed));
  data.train = std::make_unique<SubsetSource>(*data.whole, std::move(parts.train));
  if (!parts.validation.empty()) {
    data.validation = std::make_unique<SubsetSource>(*data.whole, std::move(parts.validation));
  }
  return data;
}

}  // namespace kinora::data
