#include "kinora/optim/held_weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
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

bool is_modulation(const std::string& path) {
  return path.find(".adaLN_modulation.") != std::string::npos ||
         path.find(".modulation.") != std::string::npos;
}

/// Two for each bucket of the model.
std::vector<HeldWeights::Plan> HeldWeights::plans_of(
    const std::vector<nn::NamedParameter>& parameters, const HeldOptions& options, bool train) {
  std::unordered_map<std::string, nn::Parameter*> by_path;
  for (const auto& [path, parameter] : parameters) {
    by_path.emplace(path, parameter);
  }
  std::map<std::string, size_t> ring_of;
  std::vector<Plan> plans;
  for (const nn::BucketSpec& spec : options.buckets) {
    const size_t ring = ring_of.emplace(spec.ring, ring_of.size()).first->second;
    for (const bool of_modulation : {true, false}) {
      Plan& plan = plans.emplace_back();
      plan.part.ring = 2 * ring + (of_modulation ? 0 : 1);
      for (const std::string& path : spec.parameters) {
        const auto found = by_path.find(path);
        if (spec.ring.empty() || is_modulation(path) != of_modulation || found == by_path.end() ||
            !is_held(path, *found->second, train)) {
          continue;
        }
        const nn::Parameter& parameter = *found->second;
        plan.weights.push_back({.slot = {.path = path,
                                         .shape = parameter.shape,
                                         .offset = plan.part.size,
                                         .numel = parameter.numel(),
                                         .channels_last = parameter.channels_last,
                                         .room = parameter.room},
                                .codes = {},
                                .plain = {}});
        plan.owners.push_back(found->second);
        const int64_t memory = plan.weights.back().slot.memory();
        plan.part.size += (memory + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
      }
    }
  }
  return plans;
}

namespace {

bool is_of_modulation(size_t ring) {
  return ring % 2 == 0;
}

/// Parts that are on their way while one is used.
size_t ahead_in(size_t ring) {
  return is_of_modulation(ring) ? 2 : 1;
}

/// Of each ring the share that lies in the host's memory, of elements by ring. Blocks take time by
/// what is not modulation, and as much must come over the link in the time of one as in that of
/// another.
std::vector<double> shares_of(const std::vector<double>& elements, double offload) {
  const size_t count = elements.size() / 2;
  const auto all_of = [&](size_t i) { return elements[2 * i] + elements[2 * i + 1]; };
  double left = 0.0;
  for (const double of_ring : elements) {
    left += offload * of_ring;
  }
  std::vector<double> away(count, 0.0);
  // Each by its time; what is more than a ring has goes to the others.
  for (size_t round = 0; round < count && left > 0.0; ++round) {
    double times = 0.0;
    const auto time_of = [&](size_t i) {
      const double own = elements[2 * i + 1] > 0.0 ? elements[2 * i + 1] : elements[2 * i];
      return away[i] < all_of(i) ? own : 0.0;
    };
    for (size_t i = 0; i < count; ++i) {
      times += time_of(i);
    }
    std::vector<double> more(count, 0.0);
    for (size_t i = 0; i < count && times > 0.0; ++i) {
      more[i] = std::min(left * time_of(i) / times, all_of(i) - away[i]);
    }
    for (size_t i = 0; i < count; ++i) {
      away[i] += more[i];
      left -= more[i];
    }
  }
  std::vector<double> shares;
  for (size_t i = 0; i < count; ++i) {
    const double of_modulation = std::min(away[i], elements[2 * i]);
    shares.push_back(elements[2 * i] > 0.0 ? of_modulation / elements[2 * i] : 0.0);
    shares.push_back(elements[2 * i + 1] > 0.0 ? (away[i] - of_modulation) / elements[2 * i + 1]
                                               : 0.0);
  }
  return shares;
}

}  // namespace

HeldWeights::HeldWeights(const std::vector<nn::NamedParameter>& parameters,
                         const HeldOptions& options, at::ScalarType compute_type, at::Device device,
                         bool train)
    : format_(options.format), modulation_in_backward_(options.modulation_in_backward) {
  std::vector<Plan> plans = plans_of(parameters, options, train);
  std::vector<double> elements;  // by ring
  for (const Plan& plan : plans) {
    elements.resize(std::max(elements.size(), 2 * (plan.part.ring / 2) + 2), 0.0);
    elements[plan.part.ring] += static_cast<double>(plan.part.size);
  }
  KINORA_CHECK(std::ranges::any_of(elements, [](double size) { return size > 0.0; }), kConfig,
               "[arena] the model's blocks have no weight that is frozen, so that none can lie in "
               "few bits or in the host's memory. Hint: finetune.lora.targets freezes all but "
               "low-rank updates");
  const std::vector<double> shares = shares_of(elements, options.offload);
  rings_.resize(elements.size());
  std::vector<std::array<double, 2>> so_far(rings_.size());  // elements: all, those at the host
  std::vector<nn::Parameter*> owners;
  for (size_t i = 0; i < plans.size(); ++i) {
    auto& [part, weights, of_weights] = plans[i];
    // Spread among the buckets of a ring, so that the next one comes while others are used. The
    // first ones of a pass are the device's, if any are.
    constexpr double kAlmost = 0.999;
    auto& [all, away] = so_far[part.ring];
    const auto size = static_cast<double>(part.size);
    all += size;
    const bool is_at_host = part.size > 0 && shares[part.ring] * all - away >= kAlmost * size;
    away += is_at_host ? size : 0.0;
    part.first = weights_.size();
    if (format_ || is_at_host) {
      for (Weight& weight : weights) {
        places_.emplace(weight.slot.path, weights_.size());
        weights_.push_back(std::move(weight));
      }
      owners.insert(owners.end(), of_weights.begin(), of_weights.end());
    } else {
      part.size = 0;
    }
    part.end = weights_.size();
    hold(part, is_at_host, device, compute_type);
    parts_.push_back(std::move(part));
  }
  make_rooms(options, compute_type, device, train);
  for (const Part& part : parts_) {
    for (size_t i = part.first; i < part.end; ++i) {
      const Slot& slot = weights_[i].slot;
      const at::Tensor& room = rooms_[part.room].wide;
      owners[i]->value = slot_view(room, slot).detach();
      in_room_.push_back(slot.room > 0 ? owners[i]->value
                                       : room.narrow(0, slot.offset, slot.numel));
      owners[i]->grad = at::Tensor();
    }
  }
}

HeldWeights::~HeldWeights() = default;

/// Makes what the weights of a bucket are held as.
void HeldWeights::hold(Part& part, bool is_at_host, at::Device device, at::ScalarType type) {
  const auto like = [&](const Slot& slot, at::Device where) {
    const int64_t rows = slot.shape.front();
    return ops::zero_weight(*format_, rows, slot.numel / rows, where);
  };
  if (!is_at_host) {
    for (size_t i = part.first; i < part.end; ++i) {
      weights_[i].codes = like(weights_[i].slot, device);
    }
    return;
  }
  if (!format_) {
    const at::Tensor plain = device::zeros_in_host_memory(part.size, type, device);
    part.at_host = plain.view(at::kByte);
    for (size_t i = part.first; i < part.end; ++i) {
      weights_[i].plain = slot_view(plain, weights_[i].slot);
    }
    return;
  }
  int64_t bytes = 0;
  for (size_t i = part.first; i < part.end; ++i) {
    weights_[i].codes = like(weights_[i].slot, at::kMeta);
    bytes += aligned(bytes_of(weights_[i].codes));
  }
  part.at_host = device::zeros_in_host_memory(bytes, at::kByte, device);
  int64_t begin = 0;
  for (size_t i = part.first; i < part.end; ++i) {
    ops::QuantisedWeight& codes = weights_[i].codes;
    codes = codes_at(codes, part.at_host, begin);
    begin += aligned(bytes_of(codes));
  }
}

void HeldWeights::make_rooms(const HeldOptions& options, at::ScalarType type, at::Device device,
                             bool train) {
  std::vector<bool> are_blocks(rings_.size(), false);
  for (size_t i = 0; i < parts_.size(); ++i) {
    const bool is_block = parts_[i].size > 0 && options.buckets[i / 2].is_block;
    are_blocks[parts_[i].ring] = are_blocks[parts_[i].ring] || is_block;
  }
  std::vector<std::pair<int64_t, int64_t>> sizes;  // [room]: elements, bytes of codes
  for (size_t number = 0; number < rings_.size(); ++number) {
    Ring& ring = rings_[number];
    const bool outlives = train && is_of_modulation(number) && are_blocks[number];
    const size_t turns = outlives && modulation_in_backward_ ? 2 : 1;  // of those in use
    std::vector<size_t> near;
    size_t seen = 0;
    const auto room_of = [&sizes](std::vector<size_t>& rooms, size_t turn) {
      if (turn == rooms.size()) {
        rooms.push_back(sizes.size());
        sizes.emplace_back(0, 0);
      }
      return rooms[turn];
    };
    for (size_t i = 0; i < parts_.size(); ++i) {
      Part& part = parts_[i];
      if (part.ring != number || part.size == 0) {
        continue;
      }
      const bool is_at_host = part.at_host.defined();
      part.room = is_at_host ? room_of(ring.rooms, ring.at_host.size() % (turns + ahead_in(number)))
                             : room_of(near, seen % turns);
      auto& [elements, bytes] = sizes[part.room];
      elements = std::max(elements, part.size);
      if (is_at_host) {
        ring.at_host.push_back(i);
        bytes = std::max(bytes, format_ ? part.at_host.numel() : 0);
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
  for (const Part& part : parts_) {
    for (size_t i = part.first; i < part.end && !part.at_host.defined(); ++i) {
      sum += bytes_of(weights_[i].codes);
    }
  }
  return sum;
}

int64_t HeldWeights::host_bytes() const {
  int64_t sum = 0;
  for (const Part& part : parts_) {
    sum += part.at_host.defined() ? part.at_host.numel() : 0;
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
  if (weight.is_coded()) {
    ops::quantise(in_order(value, weight.slot), weight.codes);
  } else {
    weight.plain.copy_(value);
  }
}

at::Tensor HeldWeights::value(const std::string& path, at::ScalarType type) const {
  const Weight& weight = weights_[places_.at(path)];
  if (!weight.is_coded()) {
    return weight.plain.to(type, /*non_blocking=*/false, /*copy=*/true);
  }
  const at::Tensor wide = at::empty({weight.slot.numel}, weight.codes.codes.options().dtype(type));
  ops::dequantise(weight.codes, wide);
  return in_shape(wide, weight.slot);
}

ops::BucketHook HeldWeights::hook(ops::BucketHook next) {
  return [this, next = std::move(next)](ops::BucketMoment moment, int64_t bucket) {
    for (const size_t part : {0, 1}) {
      prepare(moment, 2 * static_cast<size_t>(bucket) + part);
    }
    if (next) {
      next(moment, bucket);
    }
  };
}

/// What graphs that were replayed since have left in the rooms is not known.
void HeldWeights::forget_rooms(const Ring& ring) {
  for (const size_t room : ring.rooms) {
    rooms_[room].holds = false;
  }
}

void HeldWeights::prepare(ops::BucketMoment moment, size_t number) {
  const Part& part = parts_[number];
  Ring& ring = rings_[part.ring];
  const bool forward = moment == ops::BucketMoment::kBeforeForward;
  const bool reads = forward || (moment == ops::BucketMoment::kBeforeBackward &&
                                 (modulation_in_backward_ || !is_of_modulation(part.ring)));
  if (!reads) {
    return;
  }
  if (forward) {
    if (static_cast<int64_t>(number) <= ring.last_forward && !ring.is_begun) {  // a new pass
      forget_rooms(ring);
      for (size_t other = part.ring % 2; other < rings_.size(); other += 2) {
        rings_[other].is_begun = false;  // by a pass that did not come so far
      }
    }
    ring.last_forward = static_cast<int64_t>(number);
    ring.is_begun = false;
  }
  if (part.at_host.defined()) {
    fetch_unless_there(number);
    link_->wait(part.room);
  } else {
    widen(part, {});
  }
  // What comes next, which may be the first of another ring.
  const auto from = std::ranges::lower_bound(ring.at_host, number);
  const auto after = from != ring.at_host.end() && *from == number ? from + 1 : from;
  const size_t ahead = ahead_in(part.ring);
  const auto has_parts = [](const Ring& other) { return !other.at_host.empty(); };
  if (forward) {
    const auto left = static_cast<size_t>(ring.at_host.end() - after);
    std::for_each(after, after + static_cast<ptrdiff_t>(std::min(ahead, left)),
                  [this](size_t next) { fetch_unless_there(next); });
    for (size_t other = part.ring + 2; other < rings_.size() && left < ahead; other += 2) {
      Ring& next = rings_[other];
      if (has_parts(next) && next.at_host.front() > number) {
        if (!next.is_begun) {
          forget_rooms(next);
          fetch(next.at_host.front());
        }
        next.is_begun = true;
        break;
      }
    }
    return;
  }
  const auto left = static_cast<size_t>(from - ring.at_host.begin());
  for (size_t i = 1; i <= std::min(ahead, left); ++i) {
    fetch_unless_there(*(from - static_cast<ptrdiff_t>(i)));
  }
  for (size_t other = part.ring; other >= 2 && left < ahead; other -= 2) {
    const Ring& before = rings_[other - 2];
    if (has_parts(before) && before.at_host.back() < number) {
      fetch_unless_there(before.at_host.back());
      break;
    }
  }
}

void HeldWeights::fetch_unless_there(size_t number) {
  const Room& room = rooms_[parts_[number].room];
  if (!room.holds || room.part != number) {
    fetch(number);
  }
}

/// Brings a part from the host to its room, when all is done that the device was given.
void HeldWeights::fetch(size_t number) {
  const Part& part = parts_[number];
  Room& room = rooms_[part.room];
  room.part = number;
  room.holds = true;
  link_->run([&] {
    const auto bytes = part.at_host.numel();
    if (format_) {
      const at::Tensor codes = room.codes.narrow(0, 0, bytes);
      device::copy_bytes(part.at_host, codes);
      widen(part, codes);
    } else {
      device::copy_bytes(part.at_host, room.wide.view(at::kByte).narrow(0, 0, bytes));
    }
    link_->mark(part.room);
  });
}

/// Writes what the codes of a part stand for to its room. `codes`: what came of those of the host;
/// undefined: they are the device's own.
void HeldWeights::widen(const Part& part, const at::Tensor& codes) const {
  int64_t begin = 0;
  for (size_t i = part.first; i < part.end; ++i) {
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
