#pragma once

#include <memory>

#include "kinora/data/data_config.h"
#include "kinora/data/source.h"

namespace kinora::data {

/// The samples of a run: the whole set, and its two disjoint parts.
struct RunData {
  std::unique_ptr<Source> whole;
  std::unique_ptr<Source> train;
  std::unique_ptr<Source> validation;  ///< null if nothing is held out
};

/// Opens the data and holds out data.validation samples. `tokens` as for open_source(). kConfig if
/// too few are left.
[[nodiscard]] RunData open_data(const DataConfig& config, const CaptionTokens* tokens = nullptr);

}  // namespace kinora::data
