#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kinora/comm/link_speed.h"
#include "kinora/nn/module.h"
#include "kinora/nn/plan.h"
#include "kinora/ops/bucket_hook.h"

/// Larger buckets than a model has, for fewer collectives.
namespace kinora::parallel {

/// Neighbouring buckets of a ring as one.
struct BucketGroups {
  std::vector<nn::BucketSpec> buckets;
  /// [the model's bucket]: its place in the arena of `buckets`, which has none for groups that are
  /// frozen.
  std::vector<std::optional<size_t>> group_of;

  /// For the model, what `hook` is for the groups: one comes before its first bucket and goes after
  /// its last.
  [[nodiscard]] ops::BucketHook translate(ops::BucketHook hook) const;
};

/// Divides every ring as equally as its number of buckets allows in groups of at least `min_bytes`
/// of fp32 gradients (frozen parameters have none) on average, but in no fewer than kMinGroups, so
/// that the exchange of some hides behind the computation of others. 0: all stay as they are.
[[nodiscard]] BucketGroups group_buckets(const std::vector<nn::BucketSpec>& buckets,
                                         const std::vector<nn::NamedParameter>& parameters,
                                         int64_t min_bytes);
inline constexpr int64_t kMinGroups = 4;

/// MiB of a bucket for which latency is at most about a tenth of the time of a collective: with n
/// bytes in latency + n / bandwidth, from 9 latency x bandwidth on. A power of two from 1 to 256,
/// so that small differences between measurements do not matter.
/// @param link   over comm::ring_bytes of `operation` on `ranks` ranks.
[[nodiscard]] int64_t choose_bucket_mib(const comm::Link& link, comm::Operation operation,
                                        int64_t ranks);

}  // namespace kinora::parallel
