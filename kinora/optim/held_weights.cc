#include "kinora/optim/held_weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/device/host_memory.h"

namespace kinora::optim {
namespace {

/// Bytes of codes and scales.
int64_t bytes_of(const ops::QuantisedWeight& weight) {
  return static_cast<int64_t>(weight.codes.nbytes() + weight.scales.nbytes());
}

int64_t aligned(int64_t bytes) {
  return (bytes + kernels::kCodeAlignment - 1) / kernels::kCodeAlignment * kernels::kCodeAlignment;
}

bool is_held(const std::string& path, const nn::Parameter& parameter, bool train) {
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

/// The codes of `weight`, which take turns in `bytes` with others: from byte `begin` on.
ops::QuantisedWeight codes_at(const ops::QuantisedWeight& weight, const at::Tensor& bytes,
                              int64_t begin) {
  ops::QuantisedWeight there = weight;
  const auto codes = static_cast<int64_t>(weight.codes.nbytes());
  there.codes = bytes.narrow(0, begin, codes);
  there.scales =
      bytes.narrow(0, begin + codes, static_cast<int64_t>(weight.scales.nbytes())).view(at::kFloat);
  return there;
}

}  // namespace

HeldWeights::HeldWeights(const std::vector<nn::NamedParameter>& parameters,
                         const HeldOptions& options, at::ScalarType compute_type, at::Device device,
                         bool train)
    : format_(options.format) {
  std::unordered_map<std::string, nn::Parameter*> by_path;
  for (const auto& [path, parameter] : parameters) {
    by_path.emplace(path, parameter);
  }
  std::map<std::string, size_t> ring_of;
  std::map<std::string, std::pair<double, double>> elements;  // by ring: all, those at the host
  std::vector<nn::Parameter*> owners;
  for (const nn::BucketSpec& spec : options.buckets) {
    Held held{.first = weights_.size(), .at_host = {}};
    held.ring = ring_of.emplace(spec.ring, ring_of.size()).first->second;
    std::vector<Weight> weights;
    std::vector<nn::Parameter*> of_weights;
    for (const std::string& path : spec.parameters) {
      const auto found = by_path.find(path);
      if (spec.ring.empty() || found == by_path.end() || !is_held(path, *found->second, train)) {
        continue;
      }
      const nn::Parameter& parameter = *found->second;
      const int64_t numel = parameter.numel();
      weights.push_back({.slot = {.path = path,
                                  .shape = parameter.shape,
                                  .offset = held.size,
                                  .numel = numel,
                                  .channels_last = parameter.channels_last},
                         .codes = {},
                         .plain = {}});
      of_weights.push_back(found->second);
      held.size += (numel + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
    }
    // Spread among the buckets of a ring, so that the next one comes while others are used.
    auto& [all, away] = elements[spec.ring];
    const auto size = static_cast<double>(held.size);
    all += size;
    const bool is_at_host = held.size > 0 && options.offload * all - away >= size / 2;
    away += is_at_host ? size : 0.0;
    if (format_ || is_at_host) {
      for (Weight& weight : weights) {
        places_.emplace(weight.slot.path, weights_.size());
        weights_.push_back(std::move(weight));
      }
      owners.insert(owners.end(), of_weights.begin(), of_weights.end());
    } else {
      held.size = 0;
    }
    held.end = weights_.size();
    hold(held, is_at_host, device, compute_type);
    held_.push_back(std::move(held));
  }
  const bool any =
      std::ranges::any_of(elements, [](const auto& of_ring) { return of_ring.second.first > 0.0; });
  KINORA_CHECK(any, kConfig,
               "[arena] the model's blocks have no weight that is frozen, so that none can lie in "
               "few bits or in the host's memory. Hint: finetune.lora.targets freezes all but "
               "low-rank updates");
  rings_.resize(ring_of.size());
  make_rooms(options, compute_type, device, train);
  for (const Held& held : held_) {
    for (size_t i = held.first; i < held.end; ++i) {
      const Slot& slot = weights_[i].slot;
      in_room_.push_back(rooms_[held.room].wide.narrow(0, slot.offset, slot.numel));
      owners[i]->value = in_shape(in_room_.back(), slot).detach();
      owners[i]->grad = at::Tensor();
    }
  }
}

HeldWeights::~HeldWeights() = default;

/// Makes what the weights of a bucket are held as.
void HeldWeights::hold(Held& held, bool is_at_host, at::Device device, at::ScalarType type) {
  const auto like = [&](const Slot& slot, at::Device where) {
    const int64_t rows = slot.shape.front();
    return ops::zero_weight(*format_, rows, slot.numel / rows, where);
  };
  if (!is_at_host) {
    for (size_t i = held.first; i < held.end; ++i) {
      weights_[i].codes = like(weights_[i].slot, device);
    }
    return;
  }
  if (!format_) {
    const at::Tensor plain = device::zeros_in_host_memory(held.size, type, device);
    held.at_host = plain.view(at::kByte);
    for (size_t i = held.first; i < held.end; ++i) {
      const Slot& slot = weights_[i].slot;
      weights_[i].plain = plain.narrow(0, slot.offset, slot.numel);
    }
    return;
  }
  int64_t bytes = 0;
  for (size_t i = held.first; i < held.end; ++i) {
    weights_[i].codes = like(weights_[i].slot, at::kMeta);
    bytes += aligned(bytes_of(weights_[i].codes));
  }
  held.at_host = device::zeros_in_host_memory(bytes, at::kByte, device);
  int64_t begin = 0;
  for (size_t i = held.first; i < held.end; ++i) {
    ops::QuantisedWeight& codes = weights_[i].codes;
    codes = codes_at(codes, held.at_host, begin);
    begin += aligned(bytes_of(codes));
  }
}

void HeldWeights::make_rooms(const HeldOptions& options, at::ScalarType type, at::Device device,
                             bool train) {
  std::vector<bool> make_vectors(rings_.size(), false);
  for (size_t bucket = 0; bucket < held_.size(); ++bucket) {
    const bool makes = train && held_[bucket].size > 0 && makes_vectors(options.buckets[bucket]);
    make_vectors[held_[bucket].ring] = make_vectors[held_[bucket].ring] || makes;
  }
  std::vector<std::pair<int64_t, int64_t>> sizes;  // [room]: elements, bytes of codes
  for (size_t number = 0; number < rings_.size(); ++number) {
    Ring& ring = rings_[number];
    const size_t turns = make_vectors[number] ? 2 : 1;  // of those in use
    std::vector<size_t> near;
    size_t seen = 0;
    const auto room_of = [&sizes](std::vector<size_t>& rooms, size_t turn) {
      if (turn == rooms.size()) {
        rooms.push_back(sizes.size());
        sizes.emplace_back(0, 0);
      }
      return rooms[turn];
    };
    for (size_t bucket = 0; bucket < held_.size(); ++bucket) {
      Held& held = held_[bucket];
      if (held.ring != number || held.size == 0) {
        continue;
      }
      const bool is_at_host = held.at_host.defined();
      held.room = is_at_host ? room_of(ring.rooms, ring.at_host.size() % (turns + 1))
                             : room_of(near, seen % turns);
      auto& [elements, bytes] = sizes[held.room];
      elements = std::max(elements, held.size);
      if (is_at_host) {
        ring.at_host.push_back(bucket);
        bytes = std::max(bytes, format_ ? held.at_host.numel() : 0);
      } else {
        ++seen;
      }
    }
  }
  for (const auto& [elements, bytes] : sizes) {
    const auto options_of_room = at::TensorOptions(device);
    rooms_.push_back({.wide = at::empty({elements}, options_of_room.dtype(type)),
                      .codes = at::empty({bytes}, options_of_room.dtype(at::kByte))});
  }
  link_ = std::make_unique<device::SideStream>(device, rooms_.size());
}

int64_t HeldWeights::num_elements() const {
  int64_t sum = 0;
  for (const Weight& weight : weights_) {
    sum += weight.slot.numel;
  }
  return sum;
}

int64_t HeldWeights::code_bytes() const {
  int64_t sum = 0;
  for (const Held& held : held_) {
    for (size_t i = held.first; i < held.end && !held.at_host.defined(); ++i) {
      sum += bytes_of(weights_[i].codes);
    }
  }
  return sum;
}

int64_t HeldWeights::host_bytes() const {
  int64_t sum = 0;
  for (const Held& held : held_) {
    sum += held.at_host.defined() ? held.at_host.numel() : 0;
  }
  return sum;
}

int64_t HeldWeights::room_bytes() const {
  int64_t sum = 0;
  for (const Room& room : rooms_) {
    sum += static_cast<int64_t>(room.wide.nbytes() + room.codes.nbytes());
  }
  return sum;
}

void HeldWeights::load(const std::string& path, const at::Tensor& value) {
  const Weight& weight = weights_[places_.at(path)];
  KINORA_CHECK(value.sizes() == at::IntArrayRef(weight.slot.shape), kShape, "[arena] ", path,
               " must have shape ", at::IntArrayRef(weight.slot.shape), ", got ", value.sizes());
  KINORA_CHECK(at::isFloatingType(value.scalar_type()), kShape, "[arena] ", path,
               " must be of a floating type, got ", value.scalar_type());
  const at::Tensor values = in_order(value, weight.slot);
  if (weight.is_coded()) {
    ops::quantise(values, weight.codes);
  } else {
    weight.plain.copy_(values);
  }
}

at::Tensor HeldWeights::value(const std::string& path, at::ScalarType type) const {
  const Weight& weight = weights_[places_.at(path)];
  if (!weight.is_coded()) {
    return in_shape(weight.plain.to(type, /*non_blocking=*/false, /*copy=*/true), weight.slot);
  }
  const at::Tensor wide = at::empty({weight.slot.numel}, weight.codes.codes.options().dtype(type));
  ops::dequantise(weight.codes, wide);
  return in_shape(wide, weight.slot);
}

ops::BucketHook HeldWeights::hook(ops::BucketHook next) {
  return [this, next = std::move(next)](ops::BucketMoment moment, int64_t bucket) {
    prepare(moment, static_cast<size_t>(bucket));
    if (next) {
      next(moment, bucket);
    }
  };
}

void HeldWeights::prepare(ops::BucketMoment moment, size_t bucket) {
  const bool forward = moment == ops::BucketMoment::kBeforeForward;
  if (!forward && moment != ops::BucketMoment::kBeforeBackward) {
    return;
  }
  const Held& held = held_[bucket];
  Ring& ring = rings_[held.ring];
  if (forward) {
    if (static_cast<int64_t>(bucket) <= ring.last_forward) {
      // A new pass: what graphs that were replayed since have left in the rooms is not known.
      for (const size_t room : ring.rooms) {
        rooms_[room].holds = false;
      }
    }
    ring.last_forward = static_cast<int64_t>(bucket);
  }
  const auto fetched = [this](size_t which) {
    const Room& room = rooms_[held_[which].room];
    if (!room.holds || room.bucket != static_cast<int64_t>(which)) {
      fetch(which);
    }
  };
  if (held.at_host.defined()) {
    fetched(bucket);
    link_->wait(held.room);
  } else {
    widen(held, {});
  }
  const auto from = std::ranges::lower_bound(ring.at_host, bucket);
  const auto after = from != ring.at_host.end() && *from == bucket ? from + 1 : from;
  if (forward && after != ring.at_host.end()) {
    fetched(*after);
  } else if (!forward && from != ring.at_host.begin()) {
    fetched(*(from - 1));
  }
}

/// Brings a bucket from the host to its room, when all is done that the device was given.
void HeldWeights::fetch(size_t bucket) {
  const Held& held = held_[bucket];
  Room& room = rooms_[held.room];
  room.bucket = static_cast<int64_t>(bucket);
  room.holds = true;
  link_->run([&] {
    const auto bytes = held.at_host.numel();
    if (format_) {
      const at::Tensor codes = room.codes.narrow(0, 0, bytes);
      device::copy_bytes(held.at_host, codes);
      widen(held, codes);
    } else {
      device::copy_bytes(held.at_host, room.wide.view(at::kByte).narrow(0, 0, bytes));
    }
    link_->mark(held.room);
  });
}

/// Writes what the codes of a bucket stand for to its room. `codes`: what came of those of the
/// host; undefined: they are the device's own.
void HeldWeights::widen(const Held& held, const at::Tensor& codes) const {
  int64_t begin = 0;
  for (size_t i = held.first; i < held.end; ++i) {
    const ops::QuantisedWeight& own = weights_[i].codes;
    ops::dequantise(codes.defined() ? codes_at(own, codes, begin) : own, in_room_[i]);
    begin += aligned(bytes_of(own));
  }
}

std::vector<nn::NamedParameter> without(std::vector<nn::NamedParameter> parameters,
                                        const HeldWeights& held) {
  std::erase_if(parameters,
                [&held](const nn::NamedParameter& named) { return held.contains(named.path); });
  return parameters;
}

std::vector<nn::BucketSpec> without(std::vector<nn::BucketSpec> buckets, const HeldWeights& held) {
  for (nn::BucketSpec& bucket : buckets) {
    std::erase_if(bucket.parameters,
                  [&held](const std::string& path) { return held.contains(path); });
  }
  std::erase_if(buckets, [](const nn::BucketSpec& bucket) { return bucket.parameters.empty(); });
  return buckets;
}

}  // namespace kinora::optim
