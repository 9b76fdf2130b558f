#include "kinora/optim/quantised_weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "kinora/core/error.h"

namespace kinora::optim {
namespace {

/// Bytes of codes and scales.
int64_t bytes_of(const ops::QuantisedWeight& weight) {
  return static_cast<int64_t>(weight.codes.nbytes() + weight.scales.nbytes());
}

bool is_quantised(const std::string& path, const nn::Parameter& parameter, bool train) {
  return (parameter.frozen || !train) && !parameter.fp32_island && parameter.shape.size() >= 2 &&
         path.ends_with(".weight");
}

/// Whether the bucket's block makes the vectors that modulate it: these weights are read until
/// backward of the block before it has begun (ops::BlockStack::modulation_buckets).
bool makes_vectors(const nn::BucketSpec& bucket) {
  return bucket.is_block && std::ranges::any_of(bucket.parameters, [](const std::string& path) {
           return path.find(".adaLN_modulation.") != std::string::npos;
         });
}

}  // namespace

QuantisedWeights::QuantisedWeights(const std::vector<nn::NamedParameter>& parameters,
                                   const QuantisedOptions& options, at::ScalarType compute_type,
                                   at::Device device, bool train)
    : format_(options.format) {
  std::unordered_map<std::string, nn::Parameter*> by_path;
  for (const auto& [path, parameter] : parameters) {
    by_path.emplace(path, parameter);
  }
  std::vector<nn::Parameter*> owners;
  std::vector<std::string> room_of;        // [bucket of the model]
  std::map<std::string, int64_t> largest;  // by room
  std::map<std::string, int64_t> seen;     // by ring
  for (const nn::BucketSpec& spec : options.buckets) {
    const size_t first = weights_.size();
    int64_t size = 0;  // of its room
    for (const std::string& path : spec.parameters) {
      const auto found = by_path.find(path);
      if (spec.ring.empty() || found == by_path.end() ||
          !is_quantised(path, *found->second, train)) {
        continue;
      }
      const nn::Parameter& parameter = *found->second;
      const int64_t numel = parameter.numel();
      const int64_t rows = parameter.shape.front();
      const Slot slot{.path = path,
                      .shape = parameter.shape,
                      .offset = size,
                      .numel = numel,
                      .channels_last = parameter.channels_last};
      size += (numel + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
      places_.emplace(path, weights_.size());
      weights_.push_back({slot, ops::zero_weight(format_, rows, numel / rows, device)});
      owners.push_back(found->second);
    }
    const bool is_odd = seen[spec.ring]++ % 2 == 1;
    room_of.push_back(spec.ring + (is_odd && makes_vectors(spec) ? ", odd" : ""));
    largest[room_of.back()] = std::max(largest[room_of.back()], size);
    in_.emplace_back(first, weights_.size());
  }
  KINORA_CHECK(!weights_.empty(), kConfig,
               "[quantise] the model's blocks have no weight that is frozen, so that none can lie "
               "in few bits. Hint: finetune.lora.targets freezes all but low-rank updates");
  for (const auto& [room, size] : largest) {
    rooms_[room] = at::empty({size}, at::TensorOptions(device).dtype(compute_type));
  }
  for (size_t bucket = 0; bucket < room_of.size(); ++bucket) {
    for (size_t i = in_[bucket].first; i < in_[bucket].second; ++i) {
      const Slot& slot = weights_[i].slot;
      widened_.push_back(rooms_.at(room_of[bucket]).narrow(0, slot.offset, slot.numel));
      owners[i]->value = in_shape(widened_.back(), slot).detach();
      owners[i]->grad = at::Tensor();
    }
  }
}

int64_t QuantisedWeights::num_elements() const {
  int64_t sum = 0;
  for (const Weight& weight : weights_) {
    sum += weight.slot.numel;
  }
  return sum;
}

int64_t QuantisedWeights::code_bytes() const {
  int64_t sum = 0;
  for (const Weight& weight : weights_) {
    sum += bytes_of(weight.codes);
  }
  return sum;
}

int64_t QuantisedWeights::room_bytes() const {
  int64_t sum = 0;
  for (const auto& [name, room] : rooms_) {
    sum += static_cast<int64_t>(room.nbytes());
  }
  return sum;
}

void QuantisedWeights::load(const std::string& path, const at::Tensor& value) {
  const Weight& weight = weights_[places_.at(path)];
  KINORA_CHECK(value.sizes() == at::IntArrayRef(weight.slot.shape), kShape, "[arena] ", path,
               " must have shape ", at::IntArrayRef(weight.slot.shape), ", got ", value.sizes());
  KINORA_CHECK(at::isFloatingType(value.scalar_type()), kShape, "[arena] ", path,
               " must be of a floating type, got ", value.scalar_type());
  ops::quantise(in_order(value, weight.slot), weight.codes);
}

at::Tensor QuantisedWeights::value(const std::string& path, at::ScalarType type) const {
  const Weight& weight = weights_[places_.at(path)];
  const at::Tensor wide = at::empty({weight.slot.numel}, weight.codes.codes.options().dtype(type));
  ops::dequantise(weight.codes, wide);
  return in_shape(wide, weight.slot);
}

ops::BucketHook QuantisedWeights::hook(ops::BucketHook next) const {
  return [this, next = std::move(next)](ops::BucketMoment moment, int64_t bucket) {
    if (moment == ops::BucketMoment::kBeforeForward ||
        moment == ops::BucketMoment::kBeforeBackward) {
      const auto [first, end] = in_[static_cast<size_t>(bucket)];
      for (size_t i = first; i < end; ++i) {
        ops::dequantise(weights_[i].codes, widened_[i]);
      }
    }
    if (next) {
      next(moment, bucket);
    }
  };
}

std::vector<nn::NamedParameter> without(std::vector<nn::NamedParameter> parameters,
                                        const QuantisedWeights& quantised) {
  std::erase_if(parameters, [&quantised](const nn::NamedParameter& named) {
    return quantised.contains(named.path);
  });
  return parameters;
}

std::vector<nn::BucketSpec> without(std::vector<nn::BucketSpec> buckets,
                                    const QuantisedWeights& quantised) {
  for (nn::BucketSpec& bucket : buckets) {
    std::erase_if(bucket.parameters,
                  [&quantised](const std::string& path) { return quantised.contains(path); });
  }
  std::erase_if(buckets, [](const nn::BucketSpec& bucket) { return bucket.parameters.empty(); });
  return buckets;
}

}  // namespace kinora::optim
