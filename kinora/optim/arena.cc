#include "kinora/optim/arena.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <unordered_set>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/core/process_memory.h"
#include "kinora/core/rounding.h"
#include "kinora/core/text.h"
#include "kinora/device/device.h"
#include "kinora/device/dry_run.h"
#include "kinora/device/host_memory.h"
#include "kinora/kernels/optimizer.h"
#include "kinora/ops/optimizer_step.h"
#include "kinora/ops/random.h"
#include "kinora/optim/arena_layout.h"
#include "kinora/optim/disk_state.h"
#include "kinora/optim/held_weights.h"
#include "kinora/optim/optimizer.h"
#include "kinora/optim/orthogonalise.h"

namespace kinora::optim {
namespace {

void check_options(const ArenaOptions& options) {
  const at::ScalarType type = options.compute_type;
  KINORA_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, kConfig,
               "[arena] compute_type must be fp32, bf16 or fp16, got ", type);
  KINORA_CHECK(options.num_averages() <= kernels::kMaxEmas, kConfig, "[arena] at most ",
               kernels::kMaxEmas, " EMAs can be kept, got ", options.num_averages(),
               kernels::first_ema(options.rule) > 0 ? " with schedule_free's mean" : "");
  KINORA_CHECK(options.train || options.ema_decays.empty(), kConfig,
               "[arena] EMAs are kept in training only");
  for (const double decay : options.ema_decays) {
    KINORA_CHECK(decay >= 0.0 && decay < 1.0, kConfig,
                 "[arena] an EMA's decay must be in [0, 1), got ", decay);
  }
  KINORA_CHECK(options.offload >= 0.0 && options.offload <= 1.0, kConfig,
               "[arena] the share of state in the host's memory must be in [0, 1], got ",
               options.offload);
  KINORA_CHECK(options.offload_weights >= 0.0 && options.offload_weights <= options.offload,
               kConfig, "[arena] the share of weights in the host's memory must be in [0, ",
               options.offload, "], the share of state that is there, got ",
               options.offload_weights, ". Hint: optim.offload=1");
  KINORA_CHECK(
      options.offload_weights == 0.0 || options.disk.empty(), kConfig,
      "[arena] state on a disk is for weights that stay where they are computed with. Hint: "
      "without optim.disk, or optim.offload_weights=0");
  if (!takes_one_pass(options.rule)) {
    KINORA_CHECK(options.moments == kernels::MomentFormat::kF32, kConfig, "[arena] ",
                 to_string(options.rule),
                 " keeps its moments in fp32: its updates are more than the one pass that reads "
                 "codes of 8 bits. Hint: optim.moments=fp32");
    KINORA_CHECK(options.offload == 0.0, kConfig, "[arena] ", to_string(options.rule),
                 " keeps its state on the device: its updates are more than the one pass that "
                 "reads the host's memory, got a share of ",
                 options.offload, " to offload. Hint: optim.offload=0");
  }
  if (options.in_backward) {
    KINORA_CHECK(takes_one_pass(options.rule) && !keeps_factors(options.rule), kConfig, "[arena] ",
                 to_string(options.rule),
                 " needs all gradients before the first update. Hint: optim.in_backward=false, or "
                 "optim.rule=adamw, lion, sgd or schedule_free");
    KINORA_CHECK(options.disk.empty(), kConfig,
                 "[arena] state on a disk is updated when all gradients are there. Hint: "
                 "optim.in_backward=false, or without optim.disk");
    KINORA_CHECK(options.compute_type != at::kHalf, kConfig,
                 "[arena] in fp16 gradients that overflow leave a whole step out, which must be "
                 "known before the first update. Hint: optim.in_backward=false, or "
                 "train.precision=bf16");
    KINORA_CHECK(options.tensor.size() == 1 && options.pipeline.size() == 1, kConfig,
                 "[arena] ranks that divide the model add up gradients at the end of backward. "
                 "Hint: optim.in_backward=false, or parallel.tensor=1 and parallel.pipeline=1");
  }
  KINORA_CHECK(
      options.disk.empty() || options.offload > 0.0, kConfig,
      "[arena] state on a disk is the share to offload, which is 0. Hint: optim.offload=1");
  KINORA_CHECK(options.rule != kernels::UpdateRule::kAdafactor ||
                   options.moments == kernels::MomentFormat::kF32,
               kConfig,
               "[arena] adafactor has no moments that codes of 8 bits would shrink. Hint: "
               "optim.moments=fp32");
  KINORA_CHECK(options.rule != kernels::UpdateRule::kScheduleFree ||
                   options.moments == kernels::MomentFormat::kF32,
               kConfig,
               "[arena] schedule_free keeps weights in place of a first moment, which codes of 8 "
               "bits would round. Hint: optim.moments=fp32");
  if (options.tensor.size() > 1) {
    const kernels::UpdateRule rule = options.rule;
    KINORA_CHECK(
        !options.train || (takes_one_pass(rule) && rule != kernels::UpdateRule::kAdafactor),
        kConfig, "[arena] ", to_string(rule),
        " needs whole parameters, but parallel.tensor divides them among ", options.tensor.size(),
        " ranks. Hint: optim.rule=adamw, lion, sgd or schedule_free; or parallel.tensor=1");
    KINORA_CHECK(!options.held.any(), kConfig,
                 "[arena] frozen weights that are held in few bits, or offloaded, are whole, but "
                 "parallel.tensor divides them among ",
                 options.tensor.size(),
                 " ranks. Hint: without finetune.frozen_weights and finetune.offload");
  }
  if (options.pipeline.size() > 1) {
    KINORA_CHECK(!options.train || options.rule != kernels::UpdateRule::kProdigy, kConfig,
                 "[arena] prodigy measures its distance over all parameters, but "
                 "parallel.pipeline divides them among ",
                 options.pipeline.size(),
                 " ranks. Hint: another optim.rule, or parallel.pipeline=1");
    KINORA_CHECK(!options.held.any(), kConfig,
                 "[arena] frozen weights that are held in few bits, or offloaded, are those of all "
                 "blocks, but parallel.pipeline divides these among ",
                 options.pipeline.size(),
                 " ranks. Hint: without finetune.frozen_weights and finetune.offload");
  }
  const Sharding& sharding = options.sharding;
  KINORA_CHECK(sharding.stage >= 0 && sharding.stage <= 3, kConfig,
               "[arena] the stage of ZeRO must be 0 to 3, got ", sharding.stage);
  KINORA_CHECK(options.train || !sharding.divides(), kConfig,
               "[arena] only the state of training is divided");
  const int64_t ranks = sharding.group.size();
  KINORA_CHECK(!sharding.divides() || kBucketAlignment % ranks == 0, kConfig,
               "[arena] state can be divided among 2^k or 3 * 2^k ranks, got ", ranks,
               ". Hint: parallel.shard says among how many, parallel.replicate how often");
  KINORA_CHECK(options.masters == kernels::MasterFormat::kF32 || type == at::kBFloat16, kConfig,
               "[arena] weights can be kept in bf16 where they compute in bf16, got ", type,
               ". Hint: train.precision=bf16, or optim.master=fp32");
  const bool has_blocks = options.moments == kernels::MomentFormat::k8Bit ||
                          options.masters == kernels::MasterFormat::kBF16;
  constexpr int64_t kBlocks = kBucketAlignment / kernels::kCodeBlock;
  KINORA_CHECK(!sharding.divides() || !has_blocks || kBlocks % ranks == 0, kConfig,
               "[arena] 8-bit moments and bf16 masters lie in blocks of ", kernels::kCodeBlock,
               " and can be divided among 1, 2, 3, 4, 6, 8, 12, 16, 24 or ", kBlocks,
               " ranks, got ", ranks,
               ". Hint: a smaller parallel.shard, and parallel.replicate groups of as many");
}

/// A view that autograd takes for a variable of its own.
at::Tensor leaf_view(const at::Tensor& flat, const Slot& slot, bool requires_grad) {
  at::Tensor leaf = slot_view(flat, slot).detach();
  leaf.set_requires_grad(requires_grad);
  return leaf;
}

/// The numbers by their places in C order.
void random_fill(const at::Tensor& values, const RandomStream& stream,
                 kernels::Distribution distribution, double scale) {
  const at::Tensor ordered =
      values.is_contiguous() ? values : at::empty(values.sizes(), values.options());
  ops::random_fill(ordered, stream, distribution, scale);
  if (!ordered.is_same(values)) {
    at::Tensor(values).copy_(ordered);
  }
}

void initialise(const at::Tensor& values, const nn::Init& init, const Slot& slot, uint64_t seed) {
  if (slot.box) {  // whole for a moment: what is here depends on nobody else
    Slot whole = slot;
    whole.box.reset();
    const at::Tensor all = at::zeros(slot.box->whole, values.options());
    initialise(all, init, whole, seed);
    at::Tensor(values).copy_(slot.box->cut(all));
    return;
  }
  const std::string& path = slot.path;
  const RandomStream stream{seed, random_name(path.c_str()), 0, RandomPurpose::kInit};
  switch (init.kind) {
    case nn::Init::Kind::kZero:
      return;  // as allocated
    case nn::Init::Kind::kOne:
      values.fill_(1.0);
      return;
    case nn::Init::Kind::kConstant:
      values.fill_(init.scale);
      return;
    case nn::Init::Kind::kNormal:
      return random_fill(values, stream, kernels::Distribution::kNormal, init.scale);
    case nn::Init::Kind::kUniform:
      return random_fill(values, stream, kernels::Distribution::kSymmetricUniform, init.scale);
  }
  KINORA_UNREACHABLE("[arena] ", path, " has an unknown initialisation");
}

bool has_own_compute(const Bucket& bucket) {
  return bucket.compute.defined() && !bucket.compute.is_same(bucket.master);
}

/// The elements of a slot that lie in a bucket's slice, counted from the slot's first.
struct Overlap {
  int64_t begin = 0;
  int64_t end = 0;

  [[nodiscard]] bool empty() const { return begin >= end; }
};

Overlap overlap(const Slot& slot, int64_t slice_begin, int64_t slice_numel) {
  return {std::max<int64_t>(slice_begin - slot.offset, 0),
          std::min(slice_begin + slice_numel - slot.offset, slot.numel)};
}

template <typename AnyBucket>
int64_t num_elements_of(const std::vector<AnyBucket>& buckets) {
  int64_t sum = 0;
  for (const AnyBucket& bucket : buckets) {
    for (const Slot& slot : bucket.slots) {
      sum += c10::multiply_integers(slot.whole_shape());
    }
  }
  return sum;
}

/// Bytes of the storages under `tensors`, each counted once.
int64_t distinct_bytes(const std::vector<at::Tensor>& tensors,
                       const std::vector<at::Tensor>& counted_elsewhere) {
  std::unordered_set<const void*> seen;
  for (const at::Tensor& tensor : counted_elsewhere) {
    if (tensor.defined()) {
      seen.insert(tensor.storage().data());
    }
  }
  int64_t sum = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && seen.insert(tensor.storage().data()).second) {
      sum += static_cast<int64_t>(tensor.storage().nbytes());
    }
  }
  return sum;
}

}  // namespace

std::string to_string(Role role) {
  switch (role.kind) {
    case Role::Kind::kCompute:
      return "compute";
    case Role::Kind::kMaster:
      return "master";
    case Role::Kind::kGrad:
      return "grad";
    case Role::Kind::kExpAvg:
      return "exp_avg";
    case Role::Kind::kExpAvgSq:
      return "exp_avg_sq";
    case Role::Kind::kEma:
      return "ema." + std::to_string(role.ema);
    case Role::Kind::kExpAvgScales:
      return "exp_avg_scales";
    case Role::Kind::kExpAvgSqScales:
      return "exp_avg_sq_scales";
    case Role::Kind::kFactors:
      return "factors";
    case Role::Kind::kInstability:
      return "instability";
    case Role::Kind::kBase:
      return "base";
    case Role::Kind::kGradSum:
      return "grad_sum";
  }
  KINORA_UNREACHABLE("[arena] unknown role");
}

int64_t Role::elements_each() const {
  const bool scales = kind == Kind::kExpAvgScales || kind == Kind::kExpAvgSqScales;
  return scales ? kernels::kCodeBlock : 1;
}

at::Tensor Bucket::tensor(Role role) const {
  switch (role.kind) {
    case Role::Kind::kCompute:
      return compute;
    case Role::Kind::kMaster:
      return master;
    case Role::Kind::kGrad:
      return grad;
    case Role::Kind::kExpAvg:
      return exp_avg;
    case Role::Kind::kExpAvgSq:
      return exp_avg_sq;
    case Role::Kind::kEma:
      return role.ema < ema.size() ? ema[role.ema] : at::Tensor();
    case Role::Kind::kExpAvgScales:
      return exp_avg_scales;
    case Role::Kind::kExpAvgSqScales:
      return exp_avg_sq_scales;
    case Role::Kind::kFactors:
      return factors;
    case Role::Kind::kInstability:
      return instability;
    case Role::Kind::kBase:
      return base;
    case Role::Kind::kGradSum:
      return grad_sum;
  }
  KINORA_UNREACHABLE("[arena] unknown role");
}

int64_t Slot::pitch() const {
  constexpr int64_t kRowElements = 64;  // rows of 16 bits then start on 128 bytes, as products want
  return round_up(shape.back() + room, kRowElements);
}

int64_t Slot::memory() const {
  return room > 0 ? (shape.front() + room) * pitch() : numel;
}

bool Slot::is_factored() const {
  return optim::is_matrix(at::IntArrayRef(shape));
}

int64_t Slot::num_factors() const {
  const int64_t all = c10::multiply_integers(shape);
  return is_factored() ? shape.front() + all / shape.front() : all;
}

int64_t Bucket::count_of(Role role, int64_t elements) const {
  if (role.is_of_rows()) {
    int64_t count = 0;
    for (const Slot& slot : slots) {
      const int64_t its =
          role.kind == Role::Kind::kFactors ? slot.num_factors() : slot.num_instabilities();
      count += slot.offset < elements ? its : 0;
    }
    return count;
  }
  int64_t count = elements / role.elements_each();
  if (role.kind == Role::Kind::kExpAvgSq) {
    for (size_t k = 0; k < slots.size(); ++k) {
      const int64_t end = k + 1 < slots.size() ? slots[k + 1].offset : numel;  // with padding
      if (slots[k].is_matrix) {
        count -= std::clamp(elements, slots[k].offset, end) - slots[k].offset;
      }
    }
  }
  return count;
}

namespace {

/// The system promises more than it has, and ends the process that takes it at its word; so what
/// can never fit is refused. A GPU's memory is refused by its own allocator.
void check_host_memory(const std::vector<Bucket>& buckets, const ArenaOptions& options,
                       int64_t on_disk) {
  if (!options.device.is_cpu() || device::in_dry_run()) {
    return;
  }
  double elements = 0.0;
  for (const Bucket& bucket : buckets) {
    elements += static_cast<double>(bucket.slice_numel);
  }
  // Trained: weights, gradients, moments; fp32 unless options say otherwise.
  const double moments = (kernels::has_second_moment(options.rule) ? 1.0 : 0.0) +
                         (keeps_first_moments(options.rule) ? 1.0 : 0.0) +
                         (keeps_base(options.rule) ? 1.0 : 0.0) +
                         (options.rule == kernels::UpdateRule::kProdigy ? 1.0 : 0.0);
  const double state = 1.0 + (options.masters == kernels::MasterFormat::kF32 ? 1.0 : 0.5) +
                       moments * (options.moments == kernels::MomentFormat::kF32 ? 1.0 : 0.25);
  const double arrays = options.train ? state + static_cast<double>(options.num_averages()) : 1.0;
  const double bytes = elements * arrays * sizeof(float) - static_cast<double>(on_disk);
  const auto memory = static_cast<double>(physical_memory());
  KINORA_CHECK(bytes <= memory, kMemory, "[model] ", human_count(static_cast<int64_t>(elements)),
               " parameters", options.train ? ", their gradients and the optimizer's state" : "",
               " need ", human_number(bytes / kGiB, 3), " GiB, and this machine has ",
               human_number(memory / kGiB, 3), " GiB. Hint: kinora plan shows what a recipe needs");
}

/// The last of those that are not used all the time, of which `mark` is then set.
void choose_last(std::vector<Bucket>& buckets, double share, bool Bucket::*mark) {
  int64_t elements = 0;
  for (const Bucket& bucket : buckets) {
    elements += bucket.ring.empty() ? 0 : bucket.numel;
  }
  auto left = static_cast<int64_t>(share * static_cast<double>(elements));
  for (auto bucket = buckets.rbegin(); bucket != buckets.rend() && left > 0; ++bucket) {
    if (!bucket->ring.empty()) {
      (*bucket).*mark = true;
      left -= bucket->numel;
    }
  }
}

/// Every so many of them, so that what is done for these is spread over a pass; of those alone that
/// have `among` where it is given.
void choose_spread(std::vector<Bucket>& buckets, double share, bool Bucket::*mark,
                   bool Bucket::*among = nullptr) {
  double due = 0.0;  // elements
  for (Bucket& bucket : buckets) {
    if (bucket.ring.empty() || (among != nullptr && !(bucket.*among))) {
      continue;
    }
    const auto numel = static_cast<double>(bucket.numel);
    due += share * numel;
    if (due > 0.5 * numel) {
      bucket.*mark = true;
      due -= numel;
    }
  }
}

}  // namespace

at::Tensor in_shape(const at::Tensor& elements, const Slot& slot) {
  if (!slot.channels_last) {
    return elements.view(slot.shape);
  }
  std::vector<int64_t> stored = slot.shape;
  std::rotate(stored.begin() + 1, stored.begin() + 2, stored.end());
  return elements.view(stored).movedim(-1, 1);
}

at::Tensor slot_view(const at::Tensor& flat, const Slot& slot) {
  const at::Tensor memory = flat.narrow(0, slot.offset, slot.memory());
  return slot.room == 0 ? in_shape(memory, slot) : memory.as_strided(slot.shape, {slot.pitch(), 1});
}

at::Tensor in_order(const at::Tensor& tensor, const Slot& slot) {
  return (slot.channels_last ? tensor.movedim(1, -1) : tensor).reshape({-1});
}

Arena::Arena(const std::vector<nn::NamedParameter>& parameters,
             const std::vector<nn::BucketSpec>& buckets, const ArenaOptions& options)
    : options_(options) {
  check_options(options);
  if (options.held.any()) {
    held_ = std::make_unique<HeldWeights>(parameters, options.held, options.compute_type,
                                          options.device, options.train);
  }
  for (const auto& [path, parameter] : parameters) {
    if (!parameter->is_here) {
      elsewhere_[path] = {.stage = *parameter->stage,
                          .shape = parameter->whole_shape(),
                          .is_frozen = parameter->frozen,
                          .fp32_island = parameter->fp32_island};
    }
  }
  ArenaLayout layout = held_ ? lay_out(without(parameters, *held_), without(buckets, *held_))
                             : lay_out(parameters, buckets);
  buckets_ = std::move(layout.buckets);
  const comm::Group& group = options.sharding.group;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    std::vector<Owner> owners;
    for (size_t k = 0; k < bucket.slots.size(); ++k) {
      bucket.slots[k].is_matrix = options.train && options.rule == kernels::UpdateRule::kMuon &&
                                  is_matrix(*layout.owners[i][k]);
      places_[bucket.slots[k].path] = {i, k};
      owners.push_back({layout.owners[i][k], at::Tensor()});
    }
    owners_.push_back(std::move(owners));
    const bool divides = options.sharding.divides();
    bucket.slice_numel = divides ? bucket.numel / group.size() : bucket.numel;
    bucket.slice_begin = divides ? bucket.slice_numel * group.rank() : 0;
  }
  const double far_weights = options.train ? options.offload_weights : 0.0;
  if (options.in_backward) {
    choose_spread(buckets_, options.offload, &Bucket::is_offloaded);
    choose_spread(buckets_, far_weights > 0.0 ? far_weights / options.offload : 0.0,
                  &Bucket::is_far, &Bucket::is_offloaded);
  } else {
    choose_last(buckets_, options.offload, &Bucket::is_offloaded);
    choose_last(buckets_, far_weights, &Bucket::is_far);
  }
  for (Bucket& bucket : buckets_) {
    const bool in_ring = !bucket.ring.empty();
    bucket.owns_compute = !in_ring || !(bucket.is_far || options.sharding.divides_compute());
    bucket.owns_grad =
        !in_ring || !(bucket.is_far || options.sharding.divides_gradients() || options.in_backward);
  }
  open_disk();
  check_host_memory(buckets_, options, disk_bytes_ - disk_memory_);
  frozen_ = std::move(layout.frozen);
  for (size_t i = 0; i < frozen_.size(); ++i) {
    for (size_t k = 0; k < frozen_[i].slots.size(); ++k) {
      places_[frozen_[i].slots[k].path] = {i, k, /*is_frozen=*/true};
    }
    materialise(&frozen_[i], layout.frozen_owners[i]);
  }
  make_rings();
  for (size_t i = 0; i < buckets_.size(); ++i) {
    materialise(&buckets_[i], &owners_[i]);
  }
}

Arena::~Arena() = default;

at::ScalarType Arena::type_of(bool fp32_island) const {
  return fp32_island ? at::kFloat : options_.compute_type;
}

bool Arena::has_far_master(const Bucket& bucket) const {
  if (bucket.is_far) {
    return true;
  }
  const bool copies = type_of(bucket.fp32_island) != at::kFloat;
  return options_.masters == kernels::MasterFormat::kF32 &&
         (copies || (!bucket.owns_compute && options_.disk.empty()));
}

void Arena::open_disk() {
  if (options_.disk.empty() || !options_.train) {
    return;
  }
  KINORA_CHECK(
      !keeps_base(options_.rule), kConfig,
      "[optim] optim.disk must be empty with optim.rule=schedule_free, whose base it has no "
      "place for. Hint: optim.offload alone");
  const bool coded = options_.moments == kernels::MomentFormat::k8Bit;
  const int64_t moments =
      (keeps_first_moments(options_.rule) ? 1 : 0) + (keeps_second_moments(options_.rule) ? 1 : 0);
  int64_t room = 0;  // of a piece
  for (const Bucket& bucket : buckets_) {
    if (!bucket.is_offloaded) {
      continue;
    }
    const auto bytes_of = [&](int64_t numel) {
      const int64_t arrays =
          static_cast<int64_t>(options_.num_averages()) + (has_far_master(bucket) ? 1 : 0);
      const int64_t of_moment =
          coded ? DiskState::room_for(numel, at::kByte) +
                      DiskState::room_for(numel / kernels::kCodeBlock, at::kFloat)
                : DiskState::room_for(numel, at::kFloat);
      return arrays * DiskState::room_for(numel, at::kFloat) + moments * of_moment;
    };
    disk_bytes_ += bytes_of(bucket.slice_numel);
    room = std::max(room, bytes_of(std::min(bucket.slice_numel, DiskUpdates::kPiece)));
  }
  if (disk_bytes_ == 0) {
    return;
  }
  disk_memory_ = room * static_cast<int64_t>(DiskUpdates::kRooms);
  if (!device::in_dry_run()) {
    disk_ = std::make_unique<DiskState>(options_.disk, disk_bytes_);
  }
}

at::Tensor Arena::fetched(const at::Tensor& state) const {
  if (disk_ == nullptr || !disk_->holds(state)) {
    return state;
  }
  device::synchronize(options_.device);  // updates beside a GPU
  return disk_->read(state).to(options_.device);
}

void Arena::store(const at::Tensor& state, const at::Tensor& values) const {
  if (disk_ != nullptr && disk_->holds(state)) {
    device::synchronize(options_.device);
    disk_->write(state, values.to(state.scalar_type()).cpu());
  } else {
    at::Tensor(state).copy_(values);
  }
}

size_t Arena::gradient_buffers(const std::string& ring) const {
  const auto found = rings_.find(ring);
  return found == rings_.end() ? 0 : found->second.grad.size();
}

void Arena::make_rings() {
  std::unordered_map<std::string, int64_t> largest;
  for (const Bucket& bucket : buckets_) {
    if (!bucket.owns_compute || !bucket.owns_grad) {
      largest[bucket.ring] = std::max(largest[bucket.ring], bucket.numel);
    }
  }
  const auto options = at::TensorOptions(at::kFloat).device(options_.device);
  for (const Bucket& bucket : buckets_) {
    if (!largest.contains(bucket.ring) || rings_.contains(bucket.ring)) {
      continue;
    }
    Ring& ring = rings_[bucket.ring];
    const int64_t numel = largest[bucket.ring];
    const auto owns_no = [&](bool Bucket::*owns) {
      return std::ranges::any_of(buckets_, [&](const Bucket& other) {
        return other.ring == bucket.ring && !(other.*owns);
      });
    };
    for (size_t k = 0; k < kRingBuffers && owns_no(&Bucket::owns_compute); ++k) {
      ring.compute.push_back(at::zeros({numel}, options.dtype(type_of(bucket.fp32_island))));
    }
    const auto users =
        static_cast<size_t>(std::ranges::count(buckets_, bucket.ring, &Bucket::ring));
    // One more where updates of blocks go on beside backward, so that it rarely waits for them.
    const bool spare = options_.in_backward && options_.offload > 0.0 && bucket.is_block;
    const size_t num_grads =
        std::min(kRingBuffers + (spare ? 1 : 0), std::max(users, kRingBuffers));
    for (size_t k = 0; k < num_grads && owns_no(&Bucket::owns_grad); ++k) {
      ring.grad.push_back(at::zeros({numel}, options));
    }
  }
}

void Arena::materialise(Bucket* bucket, std::vector<Owner>* owners) {
  const auto fp32 = at::TensorOptions(at::kFloat).device(options_.device);
  const auto slice_of = [bucket](const at::Tensor& whole) {
    return bucket->slice_numel == bucket->numel
               ? whole
               : whole.narrow(0, bucket->slice_begin, bucket->slice_numel);
  };
  at::Tensor values = at::zeros({bucket->numel}, fp32);  // of the whole bucket, for a moment
  for (size_t k = 0; k < owners->size(); ++k) {
    const Slot& slot = bucket->slots[k];
    initialise(slot_view(values, slot), (*owners)[k].parameter->init, slot, options_.seed);
  }
  size_t turn = 0;
  if (!bucket->owns_compute || !bucket->owns_grad) {
    turn = rings_.at(bucket->ring).next++;
  }

  const bool is_far = options_.train && bucket->is_offloaded;
  const auto state = [&](int64_t numel, at::ScalarType type) {
    if (!is_far) {
      return at::zeros({numel}, fp32.dtype(type));
    }
    if (options_.disk.empty()) {
      return device::zeros_in_host_memory(numel, type, options_.device);
    }
    if (disk_ != nullptr) {
      return disk_->place(numel, type);
    }
    const device::NotCounted not_counted;
    return at::zeros({numel}, fp32.dtype(type));
  };
  const auto fp32_copy_of = [&](const at::Tensor& values, bool far) {
    if (!far) {
      return values.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    }
    at::Tensor copy = state(values.numel(), at::kFloat);
    store(copy, fetched(values));
    return copy;
  };
  const bool is_fp32 = type_of(bucket->fp32_island) == at::kFloat;
  at::Tensor master;
  if (!bucket->owns_compute) {
    bucket->whole_compute =
        rings_.at(bucket->ring).compute[turn % kRingBuffers].narrow(0, 0, bucket->numel);
    // Of bf16 masters, which take its place below, it stays near.
    const bool keeps_it = options_.masters == kernels::MasterFormat::kF32;
    master = fp32_copy_of(slice_of(values), is_far && keeps_it && has_far_master(*bucket));
    bucket->compute = master;
    if (!is_fp32) {
      const at::ScalarType type = bucket->whole_compute.scalar_type();
      bucket->compute = bucket->is_far ? state(bucket->slice_numel, type)
                                       : at::empty({bucket->slice_numel}, fp32.dtype(type));
      ops::round_to(slice_of(values), bucket->compute);
    }
  } else if (is_fp32) {
    bucket->whole_compute = values;
    master = slice_of(values);
    bucket->compute = master;
  } else {
    bucket->whole_compute = at::empty({bucket->numel}, fp32.dtype(options_.compute_type));
    ops::round_to(values, bucket->whole_compute);
    bucket->compute = slice_of(bucket->whole_compute);
    const bool is_whole = bucket->slice_numel == bucket->numel;
    const bool is_copy = options_.masters == kernels::MasterFormat::kF32 && (is_far || !is_whole);
    master = is_copy ? fp32_copy_of(slice_of(values), is_far) : values;
  }
  if (options_.masters == kernels::MasterFormat::kBF16) {
    master = bucket->compute;
  }
  if (options_.train) {
    bucket->master = master;
    if (bucket->owns_grad) {
      bucket->whole_grad = at::zeros({bucket->numel}, fp32);
      bucket->grad = slice_of(bucket->whole_grad);
    } else {
      const std::vector<at::Tensor>& grads = rings_.at(bucket->ring).grad;
      bucket->whole_grad = grads[turn % grads.size()].narrow(0, 0, bucket->numel);
      if (options_.in_backward && !options_.sharding.divides()) {
        bucket->grad = bucket->whole_grad;
      } else {
        bucket->grad = bucket->is_far && !options_.in_backward
                           ? state(bucket->slice_numel, at::kFloat)
                           : at::zeros({bucket->slice_numel}, fp32);
      }
    }
    const bool coded = options_.moments == kernels::MomentFormat::k8Bit;
    const at::ScalarType moments = coded ? at::kByte : at::kFloat;
    const int64_t num_scales = bucket->slice_numel / kernels::kCodeBlock;
    // Checkpoints do not have what lies between slots, which shares blocks: always zeros.
    const auto moment = [&](Role role, const kernels::CodeMap& map) {
      const int64_t end = bucket->slice_begin + bucket->slice_numel;
      at::Tensor array = state(bucket->place_of(role, end), moments);
      const uint8_t code = coded ? kernels::nearest_code(map.bound, 0.0F) : 0;
      if (code != 0) {
        store(array, at::full({array.numel()}, code, fp32.dtype(moments)));
      }
      return array;
    };
    const auto scales = [&] { return coded ? state(num_scales, at::kFloat) : at::Tensor(); };
    if (keeps_first_moments(options_.rule)) {
      bucket->exp_avg = moment(Role::exp_avg(), kernels::kSignedCodes);
      bucket->exp_avg_scales = scales();
    }
    if (keeps_factors(options_.rule)) {
      bucket->factors = at::zeros({bucket->count_of(Role::factors(), bucket->numel)}, fp32);
    }
    if (options_.rule == kernels::UpdateRule::kCame) {
      bucket->instability = at::zeros({bucket->count_of(Role::instability(), bucket->numel)}, fp32);
    }
    if (keeps_second_moments(options_.rule)) {
      bucket->exp_avg_sq = moment(Role::exp_avg_sq(), kernels::kUnsignedCodes);
      bucket->exp_avg_sq_scales = scales();
    }
    if (keeps_base(options_.rule)) {
      bucket->base = fp32_copy_of(master, is_far);
    }
    if (options_.rule == kernels::UpdateRule::kProdigy) {
      bucket->grad_sum = at::zeros({bucket->slice_numel}, fp32);
    }
    for (size_t k = 0; k < options_.num_averages(); ++k) {
      bucket->ema.push_back(fp32_copy_of(master, is_far));
    }
  }
  for (size_t k = 0; k < owners->size(); ++k) {
    nn::Parameter* parameter = (*owners)[k].parameter;
    const Slot& slot = bucket->slots[k];
    parameter->value = leaf_view(bucket->whole_compute, slot, options_.train);
    parameter->grad = options_.train ? slot_view(bucket->whole_grad, slot) : at::Tensor();
  }
}

void Arena::materialise(FrozenBucket* bucket, const std::vector<nn::Parameter*>& owners) {
  at::Tensor values =
      at::zeros({bucket->numel}, at::TensorOptions(at::kFloat).device(options_.device));
  for (size_t k = 0; k < owners.size(); ++k) {
    const Slot& slot = bucket->slots[k];
    if (slot.room == 0) {
      initialise(slot_view(values, slot), owners[k]->init, slot, options_.seed);
    } else {  // as it is without room
      const at::Tensor own = at::zeros(slot.shape, values.options());
      initialise(own, owners[k]->init, slot, options_.seed);
      slot_view(values, slot).copy_(own);
    }
  }
  bucket->compute = values;
  if (const at::ScalarType type = type_of(bucket->fp32_island); type != at::kFloat) {
    bucket->compute = at::empty({bucket->numel}, values.options().dtype(type));
    ops::round_to(values, bucket->compute);
  }
  for (size_t k = 0; k < owners.size(); ++k) {
    owners[k]->value = leaf_view(bucket->compute, bucket->slots[k], false);
    owners[k]->grad = at::Tensor();
  }
}

std::vector<at::Tensor> Arena::weight_bytes() const {
  std::vector<at::Tensor> all;
  for (const Bucket& bucket : buckets_) {
    all.push_back(bucket.compute.view(at::kByte));
  }
  for (const FrozenBucket& bucket : frozen_) {
    all.push_back(bucket.compute.view(at::kByte));
  }
  if (held_ != nullptr) {
    const std::vector<at::Tensor> held = held_->bytes();
    all.insert(all.end(), held.begin(), held.end());
  }
  return all;
}

int64_t Arena::num_trained() const {
  return num_elements_of(buckets_) + num_elsewhere(/*frozen=*/false);
}

int64_t Arena::num_frozen() const {
  return num_elements_of(frozen_) + num_elsewhere(/*frozen=*/true) +
         (held_ ? held_->num_elements() : 0);
}

std::vector<std::string> Arena::frozen_paths() const {
  std::vector<std::string> paths;
  for (const FrozenBucket& bucket : frozen_) {
    for (const Slot& slot : bucket.slots) {
      paths.push_back(slot.path);
    }
  }
  for (const auto& [path, parameter] : elsewhere_) {
    if (parameter.is_frozen) {
      paths.push_back(path);
    }
  }
  std::ranges::sort(paths);
  return paths;
}

int64_t Arena::count_elsewhere() const {
  return std::ranges::count_if(elsewhere_,
                               [](const auto& entry) { return !entry.second.is_frozen; });
}

int64_t Arena::num_elsewhere(bool frozen) const {
  int64_t sum = 0;
  for (const auto& [path, parameter] : elsewhere_) {
    sum += parameter.is_frozen == frozen ? c10::multiply_integers(parameter.shape) : 0;
  }
  return sum;
}

int64_t Arena::bytes(Role role) const {
  std::vector<at::Tensor> arrays;
  std::vector<at::Tensor> masters;
  for (const Bucket& bucket : buckets_) {
    arrays.push_back(bucket.tensor(role));
    if (role.kind == Role::Kind::kCompute) {
      arrays.push_back(bucket.whole_compute);
      masters.push_back(bucket.master);
    } else if (role.kind == Role::Kind::kGrad) {
      arrays.push_back(bucket.whole_grad);
    }
  }
  if (role.kind == Role::Kind::kCompute) {
    for (const FrozenBucket& bucket : frozen_) {
      arrays.push_back(bucket.compute);
    }
  }
  return distinct_bytes(arrays, masters);
}

int64_t Arena::offloaded_bytes(Role role) const {
  std::vector<at::Tensor> arrays;
  std::vector<at::Tensor> computes;
  for (const Bucket& bucket : buckets_) {
    const bool is_state =
        role.kind != Role::Kind::kCompute && role.kind != Role::Kind::kGrad && !role.is_of_rows();
    if (bucket.is_offloaded && is_state) {
      arrays.push_back(bucket.tensor(role));
      computes.push_back(has_far_master(bucket) ? at::Tensor() : bucket.master);
    } else if (bucket.is_far && !options_.in_backward && role.kind == Role::Kind::kGrad) {
      arrays.push_back(bucket.grad);
    } else if (bucket.is_far && role.kind == Role::Kind::kCompute) {
      arrays.push_back(bucket.compute);
      computes.push_back(bucket.master);
    }
  }
  return distinct_bytes(arrays, computes);
}

std::vector<Role> Arena::state_roles() const {
  if (!options_.train) {
    return {};
  }
  std::vector<Role> roles = {Role::master()};
  const bool coded = options_.moments == kernels::MomentFormat::k8Bit;
  if (keeps_first_moments(options_.rule)) {
    roles.push_back(Role::exp_avg());
    if (coded) {
      roles.push_back(Role::exp_avg_scales());
    }
  }
  if (keeps_factors(options_.rule)) {
    roles.push_back(Role::factors());
  }
  if (options_.rule == kernels::UpdateRule::kCame) {
    roles.push_back(Role::instability());
  }
  if (keeps_second_moments(options_.rule)) {
    roles.push_back(Role::exp_avg_sq());
    if (coded) {
      roles.push_back(Role::exp_avg_sq_scales());
    }
  }
  if (keeps_base(options_.rule)) {
    roles.push_back(Role::base());
  }
  if (options_.rule == kernels::UpdateRule::kProdigy) {
    roles.push_back(Role::grad_sum());
  }
  for (size_t k = 0; k < options_.num_averages(); ++k) {
    roles.push_back(Role::average(k));
  }
  return roles;
}

Arena::Place Arena::find(const std::string& path) const {
  const auto found = places_.find(path);
  KINORA_CHECK(found != places_.end(), kConfig, "[arena] there is no parameter ", path);
  return found->second;
}

const Slot& Arena::slot_of(const std::string& path) const {
  const Place place = find(path);
  return place.is_frozen ? frozen_[place.bucket].slots[place.slot]
                         : buckets_[place.bucket].slots[place.slot];
}

Arena::Place Arena::find_trained(const std::string& path) const {
  const Place place = find(path);
  KINORA_CHECK(!place.is_frozen, kConfig, "[arena] ", path, " is frozen");
  return place;
}

at::Tensor Arena::own_box(const std::string& path, Role role) const {
  const bool is_weights = role.kind == Role::Kind::kCompute || role.kind == Role::Kind::kMaster ||
                          role.kind == Role::Kind::kEma;
  if (held_ && held_->contains(path)) {
    KINORA_CHECK(is_weights, kConfig, "[arena] ", path, " is frozen and has no array ",
                 to_string(role));
    return held_->value(path,
                        role.kind == Role::Kind::kCompute ? options_.compute_type : at::kFloat);
  }
  const Place place = find(path);
  if (place.is_frozen) {
    KINORA_CHECK(is_weights, kConfig, "[arena] ", path, " is frozen and has no array ",
                 to_string(role));
    const FrozenBucket& frozen = frozen_[place.bucket];
    const at::Tensor copy = slot_view(frozen.compute, frozen.slots[place.slot]);
    return role.kind == Role::Kind::kCompute ? copy : copy.to(at::kFloat);
  }
  const Bucket& bucket = buckets_[place.bucket];
  const Slot& slot = bucket.slots[place.slot];
  const at::Tensor flat = bucket.tensor(role);
  const int64_t end = slot.offset + slot.numel;
  KINORA_CHECK(flat.defined() && role.elements_each() == 1 && !role.is_of_rows() &&
                   bucket.count_of(role, end) - bucket.count_of(role, slot.offset) == slot.numel,
               kConfig, "[arena] ", path, " has no array ", to_string(role),
               options_.train ? "" : ": this arena was made for sampling");
  if (bucket.slice_numel == bucket.numel) {
    return in_shape(fetched(flat.narrow(0, bucket.place_of(role, slot.offset), slot.numel)), slot);
  }
  // Who owns a part of it sends that to the others.
  at::Tensor values = at::empty({slot.numel}, flat.options());
  for (int64_t rank = 0; rank < options_.sharding.group.size(); ++rank) {
    const Overlap part = overlap(slot, rank * bucket.slice_numel, bucket.slice_numel);
    if (part.empty()) {
      continue;
    }
    const at::Tensor target = values.narrow(0, part.begin, part.end - part.begin);
    if (rank == options_.sharding.group.rank()) {
      const int64_t place = bucket.place_of(role, slot.offset + part.begin);
      target.copy_(fetched(flat.narrow(0, place, target.numel())));
    }
    options_.sharding.group.broadcast(target, rank);
  }
  return in_shape(values, slot);
}

at::Tensor Arena::export_parameter(const std::string& path, Role role) const {
  if (const auto found = elsewhere_.find(path); found != elsewhere_.end()) {
    const auto& [stage, shape, is_frozen, fp32_island] = found->second;
    at::ScalarType type = at::kFloat;
    if (role.kind == Role::Kind::kCompute) {
      type = type_of(fp32_island);
    } else if (role.kind == Role::Kind::kMaster && !is_frozen && !fp32_island &&
               options_.masters == kernels::MasterFormat::kBF16) {
      type = at::kBFloat16;
    }
    at::Tensor values = at::empty(shape, at::device(options_.device).dtype(type));
    options_.pipeline.broadcast(values, stage);
    return values;
  }
  const at::Tensor own = from_boxes(path, role);
  if (options_.pipeline.size() == 1 || (held_ && held_->contains(path)) || !slot_of(path).stage) {
    return own;
  }
  at::Tensor values = own.contiguous();
  options_.pipeline.broadcast(values, options_.pipeline.rank());
  return values;
}

at::Tensor Arena::from_boxes(const std::string& path, Role role) const {
  const at::Tensor own = own_box(path, role);
  const std::optional<nn::Box> box =
      held_ && held_->contains(path) ? std::nullopt : slot_of(path).box;
  if (!box) {
    return own;
  }
  std::vector<int64_t> shape = own.sizes().vec();
  shape.insert(shape.begin(), box->count);
  const at::Tensor all = at::empty(shape, own.options());
  options_.tensor.all_gather(all, own.contiguous());
  return box->join(all.unbind(0));
}

Arena::Part Arena::own_part(const std::string& path, Role role) const {
  const Place place = find_trained(path);
  const Bucket& bucket = buckets_[place.bucket];
  const Slot& slot = bucket.slots[place.slot];
  const at::Tensor flat = bucket.tensor(role);
  KINORA_CHECK(flat.defined(), kConfig, "[arena] ", path, " has no array ", to_string(role));
  if (role.is_of_rows()) {
    const int64_t begin = bucket.place_of(role, slot.offset);
    const int64_t end = bucket.place_of(role, slot.offset + slot.numel);
    return {.values = flat.narrow(0, begin, end - begin), .begin = 0};
  }
  const Overlap part = overlap(slot, bucket.slice_begin, bucket.slice_numel);
  if (part.empty()) {
    return {.values = flat.narrow(0, 0, 0), .begin = 0};
  }
  const int64_t each = role.elements_each();  // divides where slots and slices begin
  const int64_t begin = bucket.place_of(role, slot.offset + part.begin);
  const int64_t end = bucket.place_of(role, slot.offset + part.end + each - 1);
  return {.values = flat.narrow(0, begin, end - begin), .begin = part.begin};
}

void Arena::load_parameter(const std::string& path, const at::Tensor& value) {
  check_raw("load a parameter");
  if (held_ && held_->contains(path)) {
    return held_->load(path, value);
  }
  if (const auto found = elsewhere_.find(path); found != elsewhere_.end()) {
    KINORA_CHECK(value.sizes() == at::IntArrayRef(found->second.shape), kShape, "[arena] ", path,
                 " must have shape ", at::IntArrayRef(found->second.shape), ", got ",
                 value.sizes());
    return;
  }
  const Place place = find(path);
  const Slot& slot = slot_of(path);
  KINORA_CHECK(value.sizes() == at::IntArrayRef(slot.whole_shape()), kShape, "[arena] ", path,
               " must have shape ", at::IntArrayRef(slot.whole_shape()), ", got ", value.sizes());
  KINORA_CHECK(at::isFloatingType(value.scalar_type()), kShape, "[arena] ", path,
               " must be of a floating type, got ", value.scalar_type());
  const at::Tensor own = slot.box ? slot.box->cut(value.detach()) : value.detach();
  if (place.is_frozen) {
    slot_view(frozen_[place.bucket].compute, slot).copy_(own);
    return;
  }
  const Bucket& bucket = buckets_[place.bucket];
  if (!options_.train) {
    slot_view(bucket.compute, slot).copy_(own);
    return;
  }
  const at::Tensor source = own.to(at::kFloat);
  if (bucket.owns_compute) {
    slot_view(bucket.whole_compute, slot).copy_(source);
  }
  const Part master = own_part(path, Role::master());
  const at::Tensor values = in_order(source, slot).narrow(0, master.begin, master.values.numel());
  store(master.values, values);
  if (has_own_compute(bucket)) {
    own_part(path, Role::compute()).values.copy_(values);
  }
}

void Arena::refresh_compute() {
  check_raw("refresh the compute copies");
  for (const Bucket& bucket : buckets_) {
    if (bucket.master.defined() && has_own_compute(bucket)) {
      ops::round_to(fetched(bucket.master), bucket.compute);
    }
  }
  gather();
}

void Arena::gather() const {
  for (const Bucket& bucket : buckets_) {
    if (bucket.owns_compute && bucket.slice_numel < bucket.numel) {
      options_.sharding.group.all_gather(bucket.whole_compute, bucket.compute);
    }
  }
}

void Arena::reset_averages() {
  for (const Bucket& bucket : buckets_) {
    for (const at::Tensor& ema : bucket.ema) {
      store(ema, fetched(bucket.master));
    }
    if (bucket.base.defined()) {
      at::Tensor(bucket.base).copy_(bucket.master);
    }
  }
}

void Arena::zero_grad() {
  for (const Bucket& bucket : buckets_) {
    if (bucket.grad.defined()) {
      bucket.whole_grad.zero_();
      bucket.grad.zero_();
    }
  }
}

void Arena::check_raw(const char* action) const {
  KINORA_CHECK(!is_bound_, kInternal, "[arena] cannot ", action,
               " while an EMA stands in for the weights");
}

BoundWeights Arena::bind(WeightSet weights) {
  check_raw("bind other weights");
  if (!weights.ema.has_value()) {
    return BoundWeights(nullptr);
  }
  const size_t k = *weights.ema;
  KINORA_CHECK(k < options_.num_averages(), kConfig, "[arena] there is no EMA ", k,
               ": this arena keeps ", options_.num_averages());
  is_bound_ = true;
  BoundWeights guard(this);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    if (has_own_compute(bucket)) {
      ops::round_to(fetched(bucket.ema[k]), bucket.compute);
      continue;
    }
    const bool is_on_disk = disk_ != nullptr && disk_->holds(bucket.ema[k]);
    if (options_.sharding.divides() || is_on_disk || bucket.master.scalar_type() != at::kFloat) {
      kept_masters_.resize(buckets_.size());
      kept_masters_[i] = bucket.master.clone();
      bucket.master.copy_(fetched(bucket.ema[k]));
      continue;
    }
    for (size_t j = 0; j < owners_[i].size(); ++j) {
      Owner& owner = owners_[i][j];
      owner.value = owner.parameter->value;
      owner.parameter->value = leaf_view(bucket.ema[k], bucket.slots[j], false);
    }
  }
  gather();
  return guard;
}

void Arena::unbind() {
  for (std::vector<Owner>& owners : owners_) {
    for (Owner& owner : owners) {
      if (owner.value.defined()) {
        owner.parameter->value = std::exchange(owner.value, at::Tensor());
      }
    }
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (has_own_compute(buckets_[i])) {
      ops::round_to(fetched(buckets_[i].master), buckets_[i].compute);
    } else if (i < kept_masters_.size() && kept_masters_[i].defined()) {
      buckets_[i].master.copy_(kept_masters_[i]);
    }
  }
  kept_masters_.clear();
  gather();
  is_bound_ = false;
}

BoundWeights::~BoundWeights() {
  if (arena_ == nullptr) {
    return;
  }
  try {
    arena_->unbind();
  } catch (...) {
    // The GPU is gone. The arena stays marked as bound, and whoever uses it next is told.
  }
}

}  // namespace kinora::optim
