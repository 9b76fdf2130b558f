#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "kinora/data/bucket_report.h"
#include "kinora/data/index.h"
#include "kinora/data/screened.h"
#include "kinora/data/source.h"

namespace kinora::data {

/// What an index says of a set, for people and scripts.
struct SetReport {
  int64_t num_samples = 0;       ///< and `rejected` that never became one: rows of manifests
  int64_t num_usable = 0;        ///< neither rejected nor in quarantine
  int64_t num_unknown = 0;       ///< not looked at yet
  int64_t num_quarantined = 0;   ///< samples in quarantine
  int64_t num_with_caption = 0;  ///< of the usable ones
  int64_t num_classes = 0;
  bool is_video = false;
  Quarantine rejected;             ///< by name: why
  std::vector<PassedOver> beside;  ///< what lies beside the samples and is none
  /// Of the usable ones: how many have this height, width, number of frames.
  std::map<std::tuple<int64_t, int64_t, int64_t>, int64_t> sizes;
};

[[nodiscard]] SetReport report_on(const Source& source, const Index& index,
                                  const Quarantine& quarantine);

/// How a set divides into steps.
struct BatchChoice {
  int64_t global_batch = 1;
  int64_t num_held_out = 0;
  bool is_configured = true;                 ///< else only an example
  std::optional<BucketReport> buckets = {};  ///< of sets in buckets, instead of a global batch
};

/// Writes the report as text, with the first `most_names` names for each cause, and what the
/// buckets, or batch.global_batch and its neighbours, make of the set.
void print(std::ostream& out, const SetReport& report, const BatchChoice& batch,
           int64_t most_names);

/// All of it as one JSON object.
[[nodiscard]] std::string to_json(const SetReport& report, const BatchChoice& batch);

}  // namespace kinora::data
