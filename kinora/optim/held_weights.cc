#include "kinora/optim/held_weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/device/dry_run.h"
#include "kinora/device/host_memory.h"
#include "kinora/kernels/weight_product.h"

namespace kinora::optim {
namespace {

/// Bytes of codes and scales.
int64_t bytes_of(const ops::QuantisedWeight& weight) {
  return static_cast<int64_t>(weight.codes.nbytes() + weight.scales.nbytes());
}

int64_t aligned(int64_t bytes) {
  return round_up(bytes, kernels::kCodeAlignment);
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
        plan.part.size += round_up(memory, kSlotAlignment);
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

/// `amount` spread by `times`; what is more than one can have goes to the others.
std::vector<double> spread(double amount, const std::vector<double>& most,
                           const std::vector<double>& times) {
  const size_t count = most.size();
  std::vector<double> parts(count, 0.0);
  for (size_t round = 0; round < count && amount > 0.0; ++round) {
    const auto time_of = [&](size_t i) { return parts[i] < most[i] ? times[i] : 0.0; };
    double all = 0.0;
    for (size_t i = 0; i < count; ++i) {
      all += time_of(i);
    }
    std::vector<double> more(count, 0.0);
    for (size_t i = 0; i < count && all > 0.0; ++i) {
      more[i] = std::min(amount * time_of(i) / all, most[i] - parts[i]);
    }
    for (size_t i = 0; i < count; ++i) {
      parts[i] += more[i];
      amount -= more[i];
    }
  }
  return parts;
}

/// About the time that a ring's blocks take together. Weights that are twice as many make a block
/// less than twice as slow where each of two streams, image and text, meets its own: Flux's blocks
/// of two take 1.4 times as long as those of one.
double time_of(double elements, double blocks) {
  return std::sqrt(elements * blocks);
}

/// Of a ring, modulation or the others.
struct RingSize {
  double elements = 0.0;
  double blocks = 0.0;
};

/// Of each ring the share that lies in the host's memory. Blocks take time by what is not
/// modulation, and as much must come over the link in the time of one as in that of another.
/// @param stays  modulation does not come: the host multiplies, in that time.
std::vector<double> shares_of(const std::vector<RingSize>& rings, double offload, bool stays) {
  std::vector<double> modulation;
  std::vector<double> others;
  std::vector<double> all;
  std::vector<double> times;
  double left = 0.0;
  for (size_t i = 0; i < rings.size(); i += 2) {
    modulation.push_back(rings[i].elements);
    others.push_back(rings[i + 1].elements);
    all.push_back(modulation.back() + others.back());
    const RingSize& of_time = rings[others.back() > 0.0 ? i + 1 : i];
    times.push_back(time_of(of_time.elements, of_time.blocks));
    left += offload * all.back();
  }
  std::vector<double> of_modulation = spread(left, stays ? modulation : all, times);
  std::vector<double> of_others;
  if (stays) {
    for (const double away : of_modulation) {
      left -= away;
    }
    of_others = spread(left, others, times);
  } else {
    for (size_t i = 0; i < all.size(); ++i) {
      const double away = of_modulation[i];
      of_modulation[i] = std::min(away, modulation[i]);
      of_others.push_back(away - of_modulation[i]);
    }
  }
  const auto share = [](double part, double whole) { return whole > 0.0 ? part / whole : 0.0; };
  std::vector<double> shares;
  for (size_t i = 0; i < all.size(); ++i) {
    shares.push_back(share(of_modulation[i], modulation[i]));
    shares.push_back(share(of_others[i], others[i]));
  }
  return shares;
}

}  // namespace

HeldWeights::HeldWeights(const std::vector<nn::NamedParameter>& parameters,
                         const HeldOptions& options, at::ScalarType compute_type, at::Device device,
                         bool train)
    : format_(options.format), modulation_(options.modulation) {
  std::vector<Plan> plans = plans_of(parameters, options, train);
  std::vector<RingSize> sizes;
  for (const Plan& plan : plans) {
    sizes.resize(std::max(sizes.size(), 2 * (plan.part.ring / 2) + 2));
    RingSize& ring = sizes[plan.part.ring];
    ring.elements += static_cast<double>(plan.part.size);
    ring.blocks += plan.part.size > 0 ? 1.0 : 0.0;
  }
  KINORA_CHECK(std::ranges::any_of(sizes, [](const RingSize& ring) { return ring.elements > 0.0; }),
               kConfig,
               "[arena] the model's blocks have no weight that is frozen, so that none can lie in "
               "few bits or in the host's memory. Hint: finetune.lora.targets freezes all but "
               "low-rank updates");
  const std::vector<double> shares = shares_of(sizes, options.offload, multiplies_at_host());
  rings_.resize(sizes.size());
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
    part.stays = is_at_host && is_of_modulation(part.ring) && multiplies_at_host();
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
  const std::shared_ptr<ops::HostProducts> products = host_products(device);
  size_t product = 0;
  for (const Part& part : parts_) {
    for (size_t i = part.first; i < part.end; ++i) {
      const Slot& slot = weights_[i].slot;
      if (part.stays) {
        const device::NotCounted not_counted;  // in dry runs
        owners[i]->value = at::empty(slot.shape, at::TensorOptions(at::kMeta).dtype(compute_type));
        owners[i]->at_host = {.products = products, .number = product++};
        in_room_.emplace_back();
        continue;
      }
      const at::Tensor& room = rooms_[part.room];
      owners[i]->value = slot_view(room, slot).detach();
      in_room_.push_back(slot.room > 0 ? owners[i]->value
                                       : room.narrow(0, slot.offset, slot.numel));
      owners[i]->grad = at::Tensor();
    }
  }
}

HeldWeights::~HeldWeights() = default;

bool HeldWeights::multiplies_at_host() const {
  return modulation_ == ModulationUse::kHostProducts &&
         (!format_ || kernels::has_product(*format_));
}

/// Those of all weights that stay at the host, in order; null: there are none.
std::shared_ptr<ops::HostProducts> HeldWeights::host_products(at::Device device) const {
  std::vector<ops::HostWeight> staying;
  for (const Part& part : parts_) {
    for (size_t i = part.first; i < part.end && part.stays; ++i) {
      const Weight& weight = weights_[i];
      const int64_t rows = weight.slot.shape.front();
      staying.push_back({.rows = rows,
                         .width = weight.slot.numel / rows,
                         .plain = weight.plain,
                         .codes = weight.codes});
    }
  }
  return staying.empty() ? nullptr
                         : std::make_shared<ops::HostProducts>(std::move(staying), device);
}

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
  std::vector<int64_t> elements;  // [room]
  std::vector<int64_t> bytes;     // [arrival]
  for (size_t number = 0; number < rings_.size(); ++number) {
    Ring& ring = rings_[number];
    const bool outlives = train && is_of_modulation(number) && are_blocks[number] &&
                          modulation_ == ModulationUse::kBothWays;
    const size_t in_use = outlives ? 2 : 1;
    // The next of `all`, whose sizes are `sizes`, which take turns; made where it is not there yet.
    const auto next_of = [](std::vector<size_t>& all, std::vector<int64_t>& sizes, size_t turn) {
      if (turn == all.size()) {
        all.push_back(sizes.size());
        sizes.push_back(0);
      }
      return all[turn];
    };
    const auto enlarge = [](int64_t& size, int64_t least) { size = std::max(size, least); };
    std::vector<size_t> rooms;
    size_t seen = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      Part& part = parts_[i];
      if (part.ring != number || part.size == 0 || part.stays) {
        continue;
      }
      const size_t turns = format_ ? in_use : in_use + ahead_in(number);  // of rooms
      part.room = next_of(rooms, elements, seen++ % turns);
      enlarge(elements[part.room], part.size);
      if (part.at_host.defined()) {
        const size_t places = format_ ? 1 + ahead_in(number) : turns;
        part.arrival = next_of(ring.arrivals, bytes, ring.at_host.size() % places);
        enlarge(bytes[part.arrival], part.at_host.numel());
        ring.at_host.push_back(i);
      }
    }
  }
  for (const int64_t size : elements) {
    rooms_.push_back(at::empty({size}, at::TensorOptions(device).dtype(type)));
  }
  arrivals_.resize(bytes.size());
  for (const Part& part : parts_) {
    if (!part.at_host.defined() || part.stays || arrivals_[part.arrival].bytes.defined()) {
      continue;
    }
    arrivals_[part.arrival].bytes =
        format_ ? at::empty({bytes[part.arrival]}, at::TensorOptions(device).dtype(at::kByte))
                : rooms_[part.room].view(at::kByte);
  }
  link_ = std::make_unique<device::SideStream>(device, arrivals_.size());
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
  for (const at::Tensor& room : rooms_) {
    sum += static_cast<int64_t>(room.nbytes());
  }
  for (const Arrival& arrival : arrivals_) {
    sum += format_ ? arrival.bytes.numel() : 0;
  }
  return sum;
}

std::vector<at::Tensor> HeldWeights::bytes() const {
  std::vector<at::Tensor> all;
  for (const Part& part : parts_) {
    if (part.at_host.defined()) {
      all.push_back(part.at_host);
      continue;
    }
    for (size_t i = part.first; i < part.end; ++i) {
      for (const at::Tensor& held : {weights_[i].codes.codes, weights_[i].codes.scales}) {
        all.push_back(held.view(at::kByte).flatten());
      }
    }
  }
  return all;
}

void HeldWeights::begin_change() {
  link_->wait_for_all();
  for (const at::Tensor& room : rooms_) {
    room.unsafeGetTensorImpl()->bump_version();
  }
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

/// What graphs that were replayed since have left there is not known.
void HeldWeights::forget_arrivals(const Ring& ring) {
  for (const size_t arrival : ring.arrivals) {
    arrivals_[arrival].holds = false;
  }
}

void HeldWeights::prepare(ops::BucketMoment moment, size_t number) {
  const Part& part = parts_[number];
  Ring& ring = rings_[part.ring];
  const bool forward = moment == ops::BucketMoment::kBeforeForward;
  const bool reads =
      forward || (moment == ops::BucketMoment::kBeforeBackward &&
                  (modulation_ == ModulationUse::kBothWays || !is_of_modulation(part.ring)));
  if (!reads || part.stays) {
    return;
  }
  if (forward) {
    if (static_cast<int64_t>(number) <= ring.last_forward && !ring.is_begun) {  // a new pass
      forget_arrivals(ring);
      for (size_t other = part.ring % 2; other < rings_.size(); other += 2) {
        rings_[other].is_begun = false;  // by a pass that did not come so far
      }
    }
    ring.last_forward = static_cast<int64_t>(number);
    ring.is_begun = false;
  }
  if (part.at_host.defined()) {
    fetch_unless_there(number);
    link_->wait(part.arrival);
  }
  if (format_) {
    widen(part);
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
          forget_arrivals(next);
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
  const Arrival& arrival = arrivals_[parts_[number].arrival];
  if (!arrival.holds || arrival.part != number) {
    fetch(number);
  }
}

/// Brings a part from the host, when all is done that the device was given.
void HeldWeights::fetch(size_t number) {
  const Part& part = parts_[number];
  Arrival& arrival = arrivals_[part.arrival];
  arrival.part = number;
  arrival.holds = true;
  link_->run([&] {
    device::copy_bytes(part.at_host, arrival.bytes.narrow(0, 0, part.at_host.numel()));
    link_->mark(part.arrival);
  });
}

/// Writes what the codes of a part stand for to its room.
void HeldWeights::widen(const Part& part) const {
  int64_t begin = 0;
  for (size_t i = part.first; i < part.end; ++i) {
    const ops::QuantisedWeight& own = weights_[i].codes;
    ops::dequantise(
        part.at_host.defined() ? codes_at(own, arrivals_[part.arrival].bytes, begin) : own,
        in_room_[i]);
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
