#include "kinora/parallel/bucket_groups.h"

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::parallel {
namespace {

/// Bytes of each bucket's fp32 gradients.
std::vector<int64_t> bytes_of(const std::vector<nn::BucketSpec>& buckets,
                              const std::vector<nn::NamedParameter>& parameters) {
  std::unordered_map<std::string, int64_t> bytes;
  for (const auto& [path, parameter] : parameters) {
    bytes[path] = parameter->frozen || !parameter->is_here
                      ? 0
                      : static_cast<int64_t>(sizeof(float)) * parameter->numel();
  }
  std::vector<int64_t> result;
  for (const nn::BucketSpec& bucket : buckets) {
    int64_t sum = 0;
    for (const std::string& path : bucket.parameters) {
      sum += bytes[path];
    }
    result.push_back(sum);
  }
  return result;
}

struct Ring {
  int64_t size = 0;
  int64_t bytes = 0;
  int64_t seen = 0;
};

/// In how many groups the ring is divided.
int64_t num_groups(const Ring& ring, int64_t min_bytes) {
  return min_bytes == 0
             ? ring.size
             : std::clamp(ring.bytes / min_bytes, std::min(kMinGroups, ring.size), ring.size);
}

/// Numbers the groups as the arena does, and leaves out buckets without a parameter that is trained
/// here.
void skip_frozen(BucketGroups& groups, const std::vector<nn::BucketSpec>& buckets,
                 const std::vector<nn::NamedParameter>& parameters) {
  std::unordered_set<std::string> trained;
  for (const auto& [path, parameter] : parameters) {
    if (!parameter->frozen && parameter->is_here) {
      trained.insert(path);
    }
  }
  const auto is_trained = [&trained](const nn::BucketSpec& bucket) {
    return std::ranges::any_of(
        bucket.parameters, [&trained](const std::string& path) { return trained.contains(path); });
  };
  std::vector<std::optional<size_t>> places;
  size_t next = 0;
  for (const nn::BucketSpec& group : groups.buckets) {
    places.push_back(is_trained(group) ? std::optional(next++) : std::nullopt);
  }
  for (size_t i = 0; i < buckets.size(); ++i) {
    std::optional<size_t>& group = groups.group_of[i];
    group = is_trained(buckets[i]) ? places[*group] : std::nullopt;
  }
}

}  // namespace

BucketGroups group_buckets(const std::vector<nn::BucketSpec>& buckets,
                           const std::vector<nn::NamedParameter>& parameters, int64_t min_bytes) {
  const std::vector<int64_t> bytes = bytes_of(buckets, parameters);
  std::unordered_map<std::string, Ring> rings;
  for (size_t i = 0; i < buckets.size(); ++i) {
    Ring& ring = rings[buckets[i].ring];
    ++ring.size;
    ring.bytes += bytes[i];
  }
  BucketGroups result;
  std::unordered_map<std::string, std::pair<int64_t, size_t>> last;  // of a ring: number, place
  for (const nn::BucketSpec& bucket : buckets) {
    Ring& ring = rings[bucket.ring];
    const int64_t number = ring.seen++ * num_groups(ring, min_bytes) / ring.size;
    const auto before = last.find(bucket.ring);
    const bool joins =
        !bucket.ring.empty() && before != last.end() && before->second.first == number;
    if (joins) {
      nn::BucketSpec& group = result.buckets[before->second.second];
      KINORA_CHECK(group.fp32_island == bucket.fp32_island, kInternal, "[bucket_groups] ",
                   bucket.name, " must be an fp32 island as the rest of its ring");
      group.parameters.insert(group.parameters.end(), bucket.parameters.begin(),
                              bucket.parameters.end());
      group.name = group.name.substr(0, group.name.find(" to ")) + " to " + bucket.name;
      result.group_of.emplace_back(before->second.second);
      continue;
    }
    last[bucket.ring] = {number, result.buckets.size()};
    result.group_of.emplace_back(result.buckets.size());
    result.buckets.push_back(bucket);
  }
  skip_frozen(result, buckets, parameters);
  return result;
}

ops::BucketHook BucketGroups::translate(ops::BucketHook hook) const {
  struct Use {
    int64_t size = 0;   // of the model's buckets
    int64_t begun = 0;  // of these, in the pass forward or backward under way
    int64_t ended = 0;
  };
  const auto uses = std::make_shared<std::vector<Use>>(buckets.size());
  for (const std::optional<size_t> group : group_of) {
    if (group) {
      ++(*uses)[*group].size;
    }
  }
  return [uses, group_of = group_of, hook = std::move(hook)](ops::BucketMoment moment,
                                                             int64_t bucket) {
    const std::optional<size_t> group = group_of[static_cast<size_t>(bucket)];
    if (!group) {
      return;
    }
    Use& use = (*uses)[*group];
    const bool is_before =
        moment == ops::BucketMoment::kBeforeForward || moment == ops::BucketMoment::kBeforeBackward;
    bool is_moment_of_group = use.size == 1;
    if (is_before && !is_moment_of_group) {
      is_moment_of_group = use.begun++ == 0;
    } else if (!is_moment_of_group && ++use.ended == use.size) {
      is_moment_of_group = true;
      use.begun = 0;
      use.ended = 0;
    }
    if (is_moment_of_group) {
      hook(moment, static_cast<int64_t>(*group));
    }
  };
}

int64_t choose_bucket_mib(const comm::Link& link, comm::Operation operation, int64_t ranks) {
  constexpr int64_t kLargest = 256;
  constexpr double kMiB = 1 << 20;
  const double sent = 9.0 * link.latency * link.bytes_per_s;
  const double wanted = sent / comm::ring_bytes(operation, ranks, 1.0) / kMiB;
  int64_t mib = 1;
  while (mib < kLargest && static_cast<double>(mib) < wanted) {
    mib *= 2;
  }
  return mib;
}

}  // namespace kinora::parallel
