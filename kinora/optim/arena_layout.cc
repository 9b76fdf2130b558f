#include "kinora/optim/arena_layout.h"

#include <unordered_map>
#include <unordered_set>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/kernels/random.h"

namespace kinora::optim {
namespace {

// What one stream of initial values can fill.
constexpr auto kMaxNumel = static_cast<int64_t>(kernels::kMaxStreamElements);

int64_t checked_numel(const nn::NamedParameter& named) {
  int64_t numel = 1;
  for (const int64_t size : named.parameter->shape) {
    KINORA_CHECK(size > 0 && size <= kMaxNumel / numel, kShape, "[arena] ", named.path,
                 " must have dims of 1 or more and at most 2^34 elements, got a dim of ", size);
    numel *= size;
  }
  return numel;
}

/// Behind what the bucket has; its numel becomes the slot's end.
template <typename AnyBucket>
void add_slot(AnyBucket& bucket, const std::string& path, nn::Parameter* parameter) {
  Slot slot{.path = path,
            .shape = parameter->shape,
            .offset = round_up(bucket.numel, kSlotAlignment),
            .numel = checked_numel({path, parameter}),
            .lr_factor = parameter->lr_factor,
            .channels_last = parameter->channels_last,
            .room = parameter->frozen ? parameter->room : 0,
            .box = parameter->box,
            .is_partial = parameter->is_partial,
            .stage = parameter->stage};
  bucket.numel = slot.offset + slot.memory();
  KINORA_CHECK(bucket.numel <= kMaxNumel, kShape, "[arena] bucket ", bucket.name,
               " must have at most 2^34 elements. Hint: split it.");
  bucket.slots.push_back(std::move(slot));
}

}  // namespace

ArenaLayout lay_out(const std::vector<nn::NamedParameter>& parameters,
                    const std::vector<nn::BucketSpec>& specs) {
  std::unordered_map<std::string, nn::Parameter*> by_path;
  std::unordered_set<const nn::Parameter*> seen;
  for (const nn::NamedParameter& named : parameters) {
    KINORA_CHECK(by_path.emplace(named.path, named.parameter).second, kConfig, "[arena] parameter ",
                 named.path, " is registered twice");
    KINORA_CHECK(seen.insert(named.parameter).second, kConfig, "[arena] the parameter at ",
                 named.path, " is also registered under another path");
  }

  ArenaLayout layout;
  std::unordered_map<std::string, std::string> bucket_of;  // parameter's path -> bucket's name
  std::unordered_set<std::string> names;
  for (const nn::BucketSpec& spec : specs) {
    KINORA_CHECK(names.insert(spec.name).second, kConfig, "[arena] there are two buckets ",
                 spec.name);
    KINORA_CHECK(!spec.parameters.empty(), kConfig, "[arena] bucket ", spec.name,
                 " must have parameters, got none");
    Bucket bucket;
    bucket.name = spec.name;
    bucket.fp32_island = spec.fp32_island;
    bucket.ring = spec.ring;
    bucket.is_block = spec.is_block;
    FrozenBucket frozen;
    frozen.name = spec.name;
    frozen.fp32_island = spec.fp32_island;
    std::vector<nn::Parameter*> owners;
    std::vector<nn::Parameter*> frozen_owners;
    for (const std::string& path : spec.parameters) {
      const auto found = by_path.find(path);
      KINORA_CHECK(found != by_path.end(), kConfig, "[arena] bucket ", spec.name,
                   " names a parameter that the model does not have: ", path);
      const auto [earlier, is_new] = bucket_of.emplace(path, spec.name);
      KINORA_CHECK(is_new, kConfig, "[arena] parameter ", path,
                   " must lie in one bucket, got two: ", earlier->second, " and ", spec.name);
      nn::Parameter* parameter = found->second;
      KINORA_CHECK(parameter->fp32_island == spec.fp32_island, kConfig, "[arena] parameter ", path,
                   parameter->fp32_island ? " is an fp32 island, bucket " : " is none, bucket ",
                   spec.name, spec.fp32_island ? " is one" : " is not");
      if (!parameter->is_here) {
        continue;
      }
      if (parameter->frozen) {
        add_slot(frozen, path, parameter);
        frozen_owners.push_back(parameter);
      } else {
        add_slot(bucket, path, parameter);
        owners.push_back(parameter);
      }
    }
    if (!owners.empty()) {
      bucket.numel = round_up(bucket.numel, kBucketAlignment);
      layout.buckets.push_back(std::move(bucket));
      layout.owners.push_back(std::move(owners));
    }
    if (!frozen_owners.empty()) {
      layout.frozen.push_back(std::move(frozen));
      layout.frozen_owners.push_back(std::move(frozen_owners));
    }
  }
  KINORA_CHECK(!layout.buckets.empty() || specs.empty(), kConfig,
               "[arena] every parameter is frozen, so that there is nothing to train");
  for (const nn::NamedParameter& named : parameters) {
    KINORA_CHECK(bucket_of.contains(named.path), kConfig, "[arena] parameter ", named.path,
                 " lies in no bucket");
  }
  return layout;
}

}  // namespace kinora::optim
