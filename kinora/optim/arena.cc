#include "kinora/optim/arena.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/kernels/optimizer.h"
#include "kinora/ops/optimizer_step.h"
#include "kinora/ops/random.h"
#include "kinora/optim/arena_layout.h"

namespace kinora::optim {
namespace {

void check_options(const ArenaOptions& options) {
  const at::ScalarType type = options.compute_type;
  KINORA_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, kConfig,
               "[arena] compute_type must be fp32, bf16 or fp16, got ", type);
  KINORA_CHECK(options.tier == Tier::kDevice, kConfig,
               "[arena] parameters can only be kept on the device so far; pinned host memory and "
               "files are to come");
  KINORA_CHECK(options.ema_decays.size() <= kernels::kMaxEmas, kConfig, "[arena] at most ",
               kernels::kMaxEmas, " EMAs can be kept, got ", options.ema_decays.size());
  KINORA_CHECK(options.train || options.ema_decays.empty(), kConfig,
               "[arena] EMAs are kept in training only");
  for (const double decay : options.ema_decays) {
    KINORA_CHECK(decay >= 0.0 && decay < 1.0, kConfig,
                 "[arena] an EMA's decay must be in [0, 1), got ", decay);
  }
}

at::Tensor slot_view(const at::Tensor& flat, const Slot& slot) {
  return flat.narrow(0, slot.offset, slot.numel).view(slot.shape);
}

/// A view that autograd takes for a variable of its own.
at::Tensor leaf_view(const at::Tensor& flat, const Slot& slot, bool requires_grad) {
  at::Tensor leaf = slot_view(flat, slot).detach();
  leaf.set_requires_grad(requires_grad);
  return leaf;
}

void initialise(const at::Tensor& values, const nn::Init& init, const std::string& path,
                uint64_t seed) {
  const RandomStream stream{seed, random_name(path.c_str()), 0, RandomPurpose::kInit};
  switch (init.kind) {
    case nn::Init::Kind::kZero:
      return;  // as allocated
    case nn::Init::Kind::kNormal:
      return ops::random_fill(values, stream, kernels::Distribution::kNormal, init.scale);
    case nn::Init::Kind::kUniform:
      return ops::random_fill(values, stream, kernels::Distribution::kSymmetricUniform, init.scale);
  }
  KINORA_UNREACHABLE("[arena] ", path, " has an unknown initialisation");
}

bool has_own_compute(const Bucket& bucket) {
  return bucket.compute.defined() && !bucket.compute.is_same(bucket.master);
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
  }
  KINORA_UNREACHABLE("[arena] unknown role");
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
  }
  KINORA_UNREACHABLE("[arena] unknown role");
}

Arena::Arena(const std::vector<nn::NamedParameter>& parameters,
             const std::vector<nn::BucketSpec>& buckets, const ArenaOptions& options)
    : options_(options) {
  check_options(options);
  ArenaLayout layout = lay_out(parameters, buckets);
  buckets_ = std::move(layout.buckets);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    std::vector<Owner> owners;
    for (size_t k = 0; k < buckets_[i].slots.size(); ++k) {
      places_[buckets_[i].slots[k].path] = {i, k};
      owners.push_back({layout.owners[i][k], at::Tensor()});
    }
    owners_.push_back(std::move(owners));
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    materialise(&buckets_[i], &owners_[i]);
  }
}

void Arena::materialise(Bucket* bucket, std::vector<Owner>* owners) const {
  const auto fp32 = at::TensorOptions(at::kFloat).device(options_.device);
  at::Tensor master = at::zeros({bucket->numel}, fp32);
  for (size_t k = 0; k < owners->size(); ++k) {
    const Slot& slot = bucket->slots[k];
    initialise(slot_view(master, slot), (*owners)[k].parameter->init, slot.path, options_.seed);
  }
  if (bucket->fp32_island || options_.compute_type == at::kFloat) {
    bucket->compute = master;
  } else {
    bucket->compute = at::empty({bucket->numel}, fp32.dtype(options_.compute_type));
    ops::round_to(master, bucket->compute);
  }
  if (options_.train) {
    bucket->master = master;
    bucket->grad = at::zeros({bucket->numel}, fp32);
    bucket->exp_avg = at::zeros({bucket->numel}, fp32);
    bucket->exp_avg_sq = at::zeros({bucket->numel}, fp32);
    for (size_t k = 0; k < options_.ema_decays.size(); ++k) {
      bucket->ema.push_back(master.clone());
    }
  }
  for (size_t k = 0; k < owners->size(); ++k) {
    nn::Parameter* parameter = (*owners)[k].parameter;
    parameter->value = leaf_view(bucket->compute, bucket->slots[k], options_.train);
    parameter->grad = options_.train ? slot_view(bucket->grad, bucket->slots[k]) : at::Tensor();
  }
}

int64_t Arena::num_elements() const {
  int64_t sum = 0;
  for (const Bucket& bucket : buckets_) {
    for (const Slot& slot : bucket.slots) {
      sum += slot.numel;
    }
  }
  return sum;
}

int64_t Arena::bytes(Role role) const {
  int64_t sum = 0;
  for (const Bucket& bucket : buckets_) {
    const at::Tensor tensor = bucket.tensor(role);
    if (tensor.defined() && (role.kind != Role::Kind::kCompute || has_own_compute(bucket))) {
      sum += static_cast<int64_t>(tensor.nbytes());
    }
  }
  return sum;
}

std::vector<Role> Arena::state_roles() const {
  if (!options_.train) {
    return {};
  }
  std::vector<Role> roles = {Role::master(), Role::exp_avg(), Role::exp_avg_sq()};
  for (size_t k = 0; k < options_.ema_decays.size(); ++k) {
    roles.push_back(Role::average(k));
  }
  return roles;
}

Arena::Place Arena::find(const std::string& path) const {
  const auto found = places_.find(path);
  KINORA_CHECK(found != places_.end(), kConfig, "[arena] there is no parameter ", path);
  return found->second;
}

at::Tensor Arena::export_parameter(const std::string& path, Role role) const {
  const Place place = find(path);
  const Bucket& bucket = buckets_[place.bucket];
  const at::Tensor flat = bucket.tensor(role);
  KINORA_CHECK(flat.defined(), kConfig, "[arena] ", path, " has no array ", to_string(role),
               options_.train ? "" : ": this arena was made for sampling");
  return slot_view(flat, bucket.slots[place.slot]);
}

void Arena::load_parameter(const std::string& path, const at::Tensor& value) {
  check_raw("load a parameter");
  const Place place = find(path);
  const Bucket& bucket = buckets_[place.bucket];
  const Slot& slot = bucket.slots[place.slot];
  KINORA_CHECK(value.sizes() == at::IntArrayRef(slot.shape), kShape, "[arena] ", path,
               " must have shape ", at::IntArrayRef(slot.shape), ", got ", value.sizes());
  KINORA_CHECK(at::isFloatingType(value.scalar_type()), kShape, "[arena] ", path,
               " must be of a floating type, got ", value.scalar_type());
  const at::Tensor source = value.detach();
  if (options_.train) {
    slot_view(bucket.master, slot).copy_(source);
    if (has_own_compute(bucket)) {
      slot_view(bucket.compute, slot).copy_(slot_view(bucket.master, slot));
    }
  } else {
    slot_view(bucket.compute, slot).copy_(source);
  }
}

void Arena::refresh_compute() {
  check_raw("refresh the compute copies");
  for (const Bucket& bucket : buckets_) {
    if (bucket.master.defined() && has_own_compute(bucket)) {
      ops::round_to(bucket.master, bucket.compute);
    }
  }
}

void Arena::reset_averages() {
  for (const Bucket& bucket : buckets_) {
    for (const at::Tensor& ema : bucket.ema) {
      ema.copy_(bucket.master);
    }
  }
}

void Arena::zero_grad() {
  for (const Bucket& bucket : buckets_) {
    if (bucket.grad.defined()) {
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
  KINORA_CHECK(k < options_.ema_decays.size(), kConfig, "[arena] there is no EMA ", k,
               ": this arena keeps ", options_.ema_decays.size());
  is_bound_ = true;
  BoundWeights guard(this);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    if (has_own_compute(bucket)) {
      ops::round_to(bucket.ema[k], bucket.compute);
      continue;
    }
    for (size_t j = 0; j < owners_[i].size(); ++j) {
      Owner& owner = owners_[i][j];
      owner.value = owner.parameter->value;
      owner.parameter->value = leaf_view(bucket.ema[k], bucket.slots[j], false);
    }
  }
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
  for (const Bucket& bucket : buckets_) {
    if (has_own_compute(bucket)) {
      ops::round_to(bucket.master, bucket.compute);
    }
  }
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
