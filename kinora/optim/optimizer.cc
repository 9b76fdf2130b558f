#include "kinora/optim/optimizer.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/device/dry_run.h"
#include "kinora/kernels/block_codes.h"
#include "kinora/ops/optimizer_step.h"
#include "kinora/optim/distance.h"
#include "kinora/optim/orthogonalise.h"
#include "kinora/optim/trust_ratio.h"

namespace kinora::optim {

namespace {

std::vector<at::Tensor> arrays_of(const Arena& arena) {
  std::vector<at::Tensor> arrays;
  for (const Bucket& bucket : arena.buckets()) {
    arrays.insert(arrays.end(), {bucket.master, bucket.grad, bucket.exp_avg, bucket.exp_avg_sq,
                                 bucket.exp_avg_scales, bucket.exp_avg_sq_scales, bucket.compute,
                                 bucket.base, bucket.grad_sum, bucket.factors, bucket.instability});
    arrays.insert(arrays.end(), bucket.ema.begin(), bucket.ema.end());
  }
  return arrays;
}

bool are_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.is_same(y); });
}

/// Elements of a bucket, counted from its slice's begin, whose parameters have one factor, and are
/// all matrices, or divided by ranks, or none of them is; `first` is that of the first of them.
struct Stretch {
  int64_t begin = 0;
  int64_t end = 0;
  const Slot* first = nullptr;
};

/// All of this rank's slice, padding with what is before it. Weights that are rounded
/// stochastically have a stretch for each parameter, whose random numbers then depend on nothing
/// else.
std::vector<Stretch> stretches_of(const Bucket& bucket, bool rounds_stochastically) {
  std::vector<Stretch> stretches = {{0, 0, &bucket.slots.front()}};
  for (const Slot& slot : bucket.slots) {
    const int64_t begin =
        std::clamp<int64_t>(slot.offset - bucket.slice_begin, 0, bucket.slice_numel);
    const Slot& before = *stretches.back().first;
    if (rounds_stochastically || slot.lr_factor != before.lr_factor ||
        slot.is_matrix != before.is_matrix || slot.box.has_value() != before.box.has_value()) {
      stretches.back().end = begin;
      stretches.push_back({begin, begin, &slot});
    }
  }
  stretches.back().end = bucket.slice_numel;
  std::erase_if(stretches, [](const Stretch& stretch) { return stretch.begin == stretch.end; });
  return stretches;
}

/// origin: where in the slice the arrays of `whole` begin.
ops::OptimizerBucket part_of(const ops::OptimizerBucket& whole, const Stretch& stretch,
                             const Bucket& bucket, int64_t origin = 0) {
  const auto part = [&stretch, origin](const at::Tensor& array, int64_t each = 1) {
    return array.defined() ? array.narrow(0, (stretch.begin - origin) / each,
                                          (stretch.end - stretch.begin) / each)
                           : array;
  };
  const int64_t begin = bucket.slice_begin + stretch.begin;
  const int64_t num_squares =
      bucket.place_of(Role::exp_avg_sq(), bucket.slice_begin + stretch.end) -
      bucket.place_of(Role::exp_avg_sq(), begin);
  ops::OptimizerBucket result{
      .master = part(whole.master),
      .grad = part(whole.grad),
      .exp_avg = part(whole.exp_avg),
      .exp_avg_sq = whole.exp_avg_sq.defined() && num_squares > 0
                        ? whole.exp_avg_sq.narrow(
                              0, bucket.place_of(Role::exp_avg_sq(), begin) - origin, num_squares)
                        : at::Tensor(),
      .ema = {},
      .compute = part(whole.compute),
      .leaves_grad = whole.leaves_grad,
      .lr_factor = stretch.first->lr_factor,
      .exp_avg_scales = part(whole.exp_avg_scales, kernels::kCodeBlock),
      .exp_avg_sq_scales = part(whole.exp_avg_sq_scales, kernels::kCodeBlock),
      .rounding = random_name(stretch.first->path.c_str()),
      .place = begin - stretch.first->offset,
      .base = part(whole.base),
      .grad_sum = part(whole.grad_sum)};
  for (const at::Tensor& ema : whole.ema) {
    result.ema.push_back(part(ema));
  }
  return result;
}

/// For the sum of squares alone: a bucket whose state no kernel of a GPU reads.
ops::OptimizerBucket gradient_of(const ops::OptimizerBucket& bucket) {
  ops::OptimizerBucket result;
  result.master = result.grad = bucket.grad;
  result.ema.assign(bucket.ema.size(), bucket.grad);
  return result;
}

/// Elements of a piece that a GPU updates, whole blocks of codes, of which the host has so many
/// bytes as kDevicePieceBytes at most; on a disk nothing is for the GPU.
int64_t device_piece(const ArenaOptions& options) {
  const bool coded = options.moments == kernels::MomentFormat::k8Bit;
  const int64_t moments = (keeps_first_moments(options.rule) ? 1 : 0) +
                          (kernels::has_second_moment(options.rule) ? 1 : 0);
  const int64_t words = static_cast<int64_t>(options.num_averages()) +
                        (options.masters == kernels::MasterFormat::kF32 ? 1 : 0) +
                        (keeps_base(options.rule) ? 1 : 0) + (coded ? 0 : moments);
  // What forward reads, and gradients.
  const int64_t far_weights = options.offload_weights == 0.0 ? 0 : options.in_backward ? 2 : 6;
  const int64_t of_block = kernels::kCodeBlock * (4 * words + far_weights) +
                           (coded ? moments * (kernels::kCodeBlock + 4) : 0);
  return FarUpdates::kDevicePieceBytes / std::max(of_block, kernels::kCodeBlock) *
         kernels::kCodeBlock;
}

/// Bytes of what such pieces have at once on the GPU: each array of them aligned.
int64_t device_room_bytes(const ArenaOptions& options) {
  constexpr int64_t kAligned = 4096;
  return options.disk.empty()
             ? FarUpdates::kDeviceRooms * (FarUpdates::kDevicePieceBytes + kAligned)
             : 0;
}

/// `sum`, a double, over the ranks of all groups: in fp32, which groups can add and norms are.
void add_over(const at::Tensor& sum, std::initializer_list<comm::Group> groups) {
  const at::Tensor over_ranks = sum.to(at::kFloat);
  for (const comm::Group& group : groups) {
    group.all_reduce(over_ranks);
  }
  sum.copy_(over_ranks);
}

double beta2_of(const OptimizerConfig& config) {
  constexpr double kAdamW = 0.999;
  constexpr double kLion = 0.99;
  if (config.beta2 > 0.0) {
    return config.beta2;
  }
  return config.rule == kernels::UpdateRule::kLion ? kLion : kAdamW;
}

/// A bucket's slice, `whole`, in pieces of `size` elements.
std::vector<std::pair<Stretch, ops::OptimizerBucket>> pieces_of(const ops::OptimizerBucket& whole,
                                                                const Bucket& bucket,
                                                                int64_t size) {
  std::vector<std::pair<Stretch, ops::OptimizerBucket>> pieces;
  for (int64_t begin = 0; begin < bucket.slice_numel; begin += size) {
    const Stretch piece{begin, std::min(begin + size, bucket.slice_numel), &bucket.slots.front()};
    pieces.emplace_back(piece, part_of(whole, piece, bucket));
  }
  return pieces;
}

void check_raw(const Arena& arena) {
  KINORA_CHECK(!arena.is_bound(), kInternal,
               "[optim] cannot step while an EMA stands in for the weights");
}

}  // namespace

const char* to_string(kernels::UpdateRule rule) {
  switch (rule) {
    case kernels::UpdateRule::kAdamW:
      return "adamw";
    case kernels::UpdateRule::kLion:
      return "lion";
    case kernels::UpdateRule::kSgd:
      return "sgd";
    case kernels::UpdateRule::kMuon:
      return "muon";
    case kernels::UpdateRule::kAdafactor:
      return "adafactor";
    case kernels::UpdateRule::kCame:
      return "came";
    case kernels::UpdateRule::kLamb:
      return "lamb";
    case kernels::UpdateRule::kProdigy:
      return "prodigy";
    case kernels::UpdateRule::kScheduleFree:
      return "schedule_free";
  }
  return "unknown";
}

const char* to_string(kernels::MomentFormat format) {
  return format == kernels::MomentFormat::k8Bit ? "8bit" : "fp32";
}

const char* to_string(kernels::MasterFormat format) {
  return format == kernels::MasterFormat::kBF16 ? "bf16" : "fp32";
}

Optimizer::Optimizer(const OptimizerConfig& config, const Arena& arena, bool own_kernels)
    : rule_(config.rule), in_backward_(arena.options().in_backward), own_kernels_(own_kernels) {
  for (const double beta : {config.momentum, config.beta1, config.beta2, config.beta3}) {
    KINORA_CHECK(beta >= 0.0 && beta < 1.0, kConfig, "[optim] betas must be in [0, 1), got ", beta);
  }
  KINORA_CHECK(config.eps > 0.0, kConfig, "[optim] eps must be above 0, got ", config.eps);
  KINORA_CHECK(config.weight_decay >= 0.0, kConfig,
               "[optim] weight_decay must not be negative, got ", config.weight_decay);
  KINORA_CHECK(config.max_grad_norm >= 0.0, kConfig,
               "[optim] max_grad_norm must not be negative (0: no clipping), got ",
               config.max_grad_norm);
  KINORA_CHECK(config.d0 > 0.0 && config.d_coef > 0.0, kConfig,
               "[optim] d0 and d_coef must be above 0, got ", config.d0, " and ", config.d_coef);
  KINORA_CHECK(!in_backward_ || config.max_grad_norm == 0.0, kConfig,
               "[optim] clipping by the norm of all gradients needs them all before the first "
               "update, and optim.in_backward does not keep them. Hint: optim.max_grad_norm=0, or "
               "optim.in_backward=false");
  KINORA_CHECK(arena.options().train, kConfig, "[optim] this arena was made for sampling");
  KINORA_CHECK(arena.options().rule == config.rule, kConfig,
               "[optim] this arena has the moments of ", to_string(arena.options().rule),
               ", not of ", to_string(config.rule));
  KINORA_CHECK(
      arena.options().moments == config.moments && arena.options().masters == config.masters,
      kConfig, "[optim] this arena has moments in ", to_string(arena.options().moments),
      " and masters in ", to_string(arena.options().masters), ", not in ",
      to_string(config.moments), " and ", to_string(config.masters));
  const bool is_muon = config.rule == kernels::UpdateRule::kMuon;
  parameters_.rule = is_muon ? kernels::UpdateRule::kAdamW : config.rule;
  parameters_.moments = config.moments;
  parameters_.masters = config.masters;
  parameters_.seed = arena.options().seed;
  parameters_.beta1 = config.beta1;
  parameters_.beta2 = beta2_of(config);
  parameters_.eps = config.eps;
  parameters_.weight_decay = config.weight_decay;
  parameters_.first_distance = config.d0;
  factored_ = {.rule = config.rule,
               .mean = parameters_.beta1,
               .squares = parameters_.beta2,
               .instability = config.beta3};
  policy_.beta1 = parameters_.beta1;
  policy_.beta2 = parameters_.beta2;
  policy_.max_grad_norm = config.max_grad_norm;
  policy_.first_distance = config.d0;
  policy_.weighs_steps = config.rule == kernels::UpdateRule::kScheduleFree;
  policy_.distance_factor = config.d_coef;
  policy_.dynamic_loss_scale = arena.options().compute_type == at::kHalf;
  kernels::StepControl start;
  start.loss_scale = policy_.dynamic_loss_scale ? kernels::kInitialLossScale : 1.0F;
  start.distance = rule_ == kernels::UpdateRule::kProdigy ? config.d0 : 0.0;
  control_ = ops::make_step_control(start, arena.options().device);
  exchange_ = ops::make_step_exchange(arena.options().device);
  const std::vector<double>& decays = arena.options().ema_decays;
  parameters_.num_emas = static_cast<int>(arena.options().num_averages());
  std::copy(decays.begin(), decays.end(), parameters_.ema_decay + kernels::first_ema(config.rule));
  of_matrices_ = parameters_;
  of_matrices_.rule = kernels::UpdateRule::kMuon;
  of_matrices_.beta1 = config.momentum;
  const at::Device device = arena.options().device;
  if (std::ranges::any_of(arena.buckets(), &Bucket::is_offloaded) && device::is_gpu(device)) {
    // Of a dry run, too, which has no GPU.
    far_rooms_ =
        at::empty({device_room_bytes(arena.options())}, at::device(device).dtype(at::kByte));
    if (device.is_cuda()) {
      far_ = std::make_unique<FarUpdates>(device, arena.buckets().size(), parameters_, far_rooms_,
                                          arena.options().compute_type != at::kFloat);
    }
  }
}

Optimizer::~Optimizer() {
  try {
    wait_for_all();
    (void)ops::read_step_control(control_);
  } catch (...) {
    // The device is gone, and writes nothing any more.
  }
}

StepResult Optimizer::step(Arena& arena, double lr) {
  const int64_t step = enqueue_step(arena, lr);
  wait_for_all();
  return wait_report(step);
}

int64_t Optimizer::enqueue_step(Arena& arena, double lr, const at::Tensor& loss) {
  check_raw(arena);
  const int64_t step = begin_step(lr);
  launch_step(arena, loss);
  return step;
}

int64_t Optimizer::begin_step(double lr) {
  KINORA_CHECK(std::isfinite(lr) && lr >= 0.0, kConfig,
               "[optim] the learning rate must be finite and not negative, got ", lr);
  const int64_t step = steps_ + 1;
  if (step > kernels::kStepRing) {  // whose entry this step takes
    (void)ops::wait_report(exchange_, step - kernels::kStepRing, control_.device());
  }
  ops::set_step_lr(exchange_, step, lr);
  steps_ = step;
  return step;
}

void Optimizer::prepare(const Arena& arena) {
  std::vector<at::Tensor> arrays = arrays_of(arena);
  if (are_same(arrays_, arrays)) {
    return;
  }
  std::vector<ops::OptimizerBucket> buckets;
  std::vector<ops::OptimizerBucket> near;
  std::vector<ops::OptimizerBucket> matrices;
  std::vector<ops::OptimizerBucket> boxes;
  std::vector<ops::OptimizerBucket> wholes;
  std::vector<ops::OptimizerBucket> shared;
  std::vector<ops::OptimizerBucket> shared_boxes;
  far_grads_.clear();
  updates_.clear();
  shards_ = arena.options().sharding.divides() ? arena.options().sharding.group : comm::Group{};
  const bool has_stages = arena.options().pipeline.size() > 1;
  const bool on_disk = arena.disk() != nullptr;
  bool host_helps = false;
  if (far_ != nullptr) {
    wait_for_all();
    (void)ops::read_step_control(control_);  // its updates are done
    far_->clear();
  }
  on_disk_ = on_disk ? std::make_unique<DiskUpdates>(*arena.disk(), arena.disk_memory()) : nullptr;
  for (size_t i = 0; i < arena.buckets().size(); ++i) {
    const Bucket& bucket = arena.buckets()[i];
    const bool rounds = !bucket.compute.is_same(bucket.master);
    // Of divided gradients this is but a slice, and those at the host come there: who brings them
    // starts them anew.
    const bool leaves = arena.options().sharding.divides() || !bucket.owns_grad ||
                        (leaves_gradients_ && !bucket.fp32_island);
    const bool stochastic = bucket.master.scalar_type() == at::kBFloat16;
    const ops::OptimizerBucket whole{
        .master = stochastic ? at::Tensor() : bucket.master,
        .grad = bucket.grad,
        .exp_avg = bucket.exp_avg,
        .exp_avg_sq = bucket.exp_avg_sq,
        .ema = bucket.ema,
        .compute = rounds || stochastic ? bucket.compute : at::Tensor(),
        .leaves_grad = leaves,
        .exp_avg_scales = bucket.exp_avg_scales,
        .exp_avg_sq_scales = bucket.exp_avg_sq_scales,
        .base = bucket.base,
        .grad_sum = bucket.grad_sum};
    std::vector<ops::OptimizerBucket> parts;
    for (const Stretch& stretch : stretches_of(bucket, stochastic)) {
      const ops::OptimizerBucket part = part_of(whole, stretch, bucket);
      const bool is_elsewhere = far_ != nullptr && on_disk && bucket.is_offloaded;
      buckets.push_back(is_elsewhere ? gradient_of(part) : part);
      const Slot& slot = *stretch.first;
      const bool is_shared = has_stages && !slot.stage;
      (slot.box ? (is_shared ? shared_boxes : boxes) : (is_shared ? shared : wholes))
          .push_back(buckets.back());
      (stretch.first->is_matrix ? matrices : parts).push_back(buckets.back());
    }
    const bool is_near = !bucket.is_offloaded || (!on_disk && far_ == nullptr);
    if (in_backward_) {
      std::vector<ops::OptimizerBucket> gradients;
      for (size_t k = 0; k < parts.size() && !is_near; ++k) {
        gradients.push_back(gradient_of(parts[k]));
      }
      far_grads_.emplace_back(std::move(gradients), own_kernels_);
      updates_.push_back(is_near ? ops::BucketTable(parts, own_kernels_) : ops::BucketTable());
    }
    if (is_near) {
      near.insert(near.end(), parts.begin(), parts.end());
      continue;
    }
    /// Gives `updates` the bucket's pieces, and what updates each.
    const auto add_pieces = [&](int64_t size, auto& updates, const auto& stage) {
      for (const auto& [piece, arrays] : pieces_of(whole, bucket, size)) {
        const ops::OptimizerBucket staged = stage(arrays);
        std::vector<ops::OptimizerBucket> stretches;
        for (Stretch stretch : stretches_of(bucket, stochastic)) {
          stretch.begin = std::max(stretch.begin, piece.begin);
          stretch.end = std::min(stretch.end, piece.end);
          if (stretch.begin < stretch.end) {
            stretches.push_back(part_of(staged, stretch, bucket, piece.begin));
          }
        }
        updates.add(ops::BucketTable(std::move(stretches), own_kernels_));
      }
    };
    if (far_ == nullptr) {
      add_pieces(DiskUpdates::kPiece, *on_disk_,
                 [&](const ops::OptimizerBucket& piece) { return on_disk_->stage(piece); });
      continue;
    }
    far_->add(i);
    if (on_disk) {
      add_pieces(DiskUpdates::kPiece, *on_disk_, [&](const ops::OptimizerBucket& piece) {
        return far_->by_host().stage(i, on_disk_->stage(piece));
      });
      continue;
    }
    add_pieces(
        device_piece(arena.options()), far_->by_device(),
        [&](const ops::OptimizerBucket& piece) { return far_->by_device().stage(i, piece); });
    host_helps = far_->by_device().table(0).device_table().defined();  // whose bits are the CPU's
    if (host_helps) {
      add_pieces(FarUpdates::kHostPiece, far_->by_host(), [&](const ops::OptimizerBucket& piece) {
        return far_->by_host().stage(i, piece);
      });
    }
  }
  if (far_ != nullptr) {
    far_->settle(host_helps, on_disk_.get());
  }
  if (has_stages || arena.options().tensor.size() > 1) {
    shared_ = ops::BucketTable(std::move(shared), own_kernels_);
    shared_boxes_ = ops::BucketTable(std::move(shared_boxes), own_kernels_);
    boxes_ = ops::BucketTable(std::move(boxes), own_kernels_);
    wholes_ = ops::BucketTable(std::move(wholes), own_kernels_);
  }
  table_ = ops::BucketTable(std::move(buckets), own_kernels_);
  const bool is_all = far_ == nullptr && on_disk_ == nullptr && matrices.empty();
  near_ = is_all ? table_ : ops::BucketTable(std::move(near), own_kernels_);
  matrices_ = ops::BucketTable(std::move(matrices), own_kernels_);
  if (keeps_factors(rule_) && own_kernels_ && ops::has_factored_kernels(arena.options().device)) {
    directions_ = std::make_unique<FactoredDirections>(arena, factored_);
  }
  arrays_ = std::move(arrays);
}

void Optimizer::add_sum_squares(const Arena& arena) {
  const comm::Group& tensor = arena.options().tensor;
  const comm::Group& pipeline = arena.options().pipeline;
  const at::Tensor sum = ops::sum_squares_of(control_);
  const bool divides_model = tensor.size() > 1 || pipeline.size() > 1;
  if (divides_model) {  // each rank has its share of what all have
    if (pipeline.size() > 1) {
      ops::add_sum_squares(shared_boxes_, control_);
      sum.mul_(static_cast<double>(tensor.size()));  // which divides what is in it below
      ops::add_sum_squares(shared_, control_);
      sum.div_(static_cast<double>(pipeline.size()));
    }
    ops::add_sum_squares(wholes_, control_);
    sum.div_(static_cast<double>(tensor.size()));
    ops::add_sum_squares(boxes_, control_);
  } else {
    ops::add_sum_squares(table_, control_);
  }
  if (shards_.size() > 1 || divides_model) {
    add_over(sum, {shards_, tensor, pipeline});
  }
}

void Optimizer::launch_step(Arena& arena, const at::Tensor& loss) {
  check_raw(arena);
  KINORA_CHECK(!in_backward_, kInternal, "[optim] this arena keeps no gradients for a step");
  wait_for_all();
  prepare(arena);
  add_sum_squares(arena);
  ops::prepare_update(control_, policy_, exchange_);
  if (rule_ == kernels::UpdateRule::kMuon) {
    ops::make_directions(matrices_, of_matrices_, control_);
    orthogonalise(arena);
    ops::update_weights(matrices_, of_matrices_, control_);
  } else if (directions_ != nullptr) {
    directions_->make(control_);
  } else if (keeps_factors(rule_)) {
    make_factored_directions_composed(arena, factored_, control_);
  } else if (rule_ == kernels::UpdateRule::kLamb) {
    ops::make_directions(table_, parameters_, control_);
    apply_trust_ratios(arena);
  } else if (rule_ == kernels::UpdateRule::kProdigy) {
    ops::make_directions(table_, parameters_, control_);
    sum_distance(arena, control_);
    ops::adapt_distance(control_, policy_);
  }
  ops::update_weights(near_, parameters_, control_);
  if (on_disk_ != nullptr && far_ == nullptr) {
    on_disk_->run(parameters_, control_);
  }
  ops::publish_report(control_, loss, exchange_);
  if (far_ != nullptr) {
    far_->begin(control_);
    far_->launch_all();
    far_->end();
  }
}

int64_t Optimizer::begin_updates(Arena& arena, double lr) {
  check_raw(arena);
  KINORA_CHECK(in_backward_, kInternal, "[optim] this arena keeps gradients until all are there");
  prepare(arena);
  const int64_t step = begin_step(lr);
  if (far_ != nullptr) {
    far_->wait_for_control();
  }
  ops::prepare_update(control_, policy_, exchange_);
  if (far_ != nullptr) {
    far_->begin(control_);
  }
  return step;
}

void Optimizer::update(size_t bucket) {
  if (!updates_[bucket].buckets().empty()) {
    ops::update_and_add_squares(updates_[bucket], parameters_, control_);
  } else {
    ops::add_sum_squares(far_grads_[bucket], control_);
    far_->launch(bucket);
  }
}

void Optimizer::wait_for_gradient(size_t bucket) const {
  if (far_ != nullptr) {
    far_->wait_for_gradient(bucket);
  }
}

void Optimizer::end_updates(const at::Tensor& loss) {
  if (shards_.size() > 1) {
    add_over(ops::sum_squares_of(control_), {shards_});
  }
  ops::conclude_update(control_);
  ops::publish_report(control_, loss, exchange_);
  if (far_ != nullptr) {
    far_->end();
  }
}

void Optimizer::wait_for(size_t bucket) const {
  if (far_ != nullptr) {
    far_->wait_for(bucket);
  }
}

void Optimizer::wait_for_all() const {
  if (far_ != nullptr) {
    far_->wait_for_all();
  }
}

StepResult Optimizer::wait_report(int64_t step) const {
  KINORA_CHECK(step >= 1 && step <= steps_, kInternal, "[optim] step ", step,
               " has not begun, the last one is ", steps_);
  const kernels::StepReport report = ops::wait_report(exchange_, step, control_.device());
  KINORA_CHECK(report.skipped == 0 || !in_backward_, kDiverged,
               "[optim] gradients are not finite (the loss is ", report.loss,
               "), and optim.in_backward has updated weights with them already: these are lost. "
               "Hint: go on from the last checkpoint; with optim.in_backward=false such a step is "
               "left out");
  return {report.grad_norm,     report.skipped != 0, report.loss_scale, report.applied_steps,
          report.skipped_steps, report.loss,         report.distance};
}

at::Tensor Optimizer::loss_scale() const {
  return ops::loss_scale_of(control_);
}

OptimizerState Optimizer::state() const {
  wait_for_all();
  const kernels::StepControl control = ops::read_step_control(control_);
  return {rule_,
          parameters_.moments,
          parameters_.masters,
          control.applied_steps,
          control.skipped_steps,
          control.loss_scale,
          control.good_steps,
          control.distance,
          control.distance_sum,
          control.largest_lr,
          control.share_sum};
}

void Optimizer::restore(const OptimizerState& state) {
  KINORA_CHECK(state.rule == rule_, kConfig, "[optim] a state of ", to_string(state.rule),
               " is none of ", to_string(rule_));
  KINORA_CHECK(state.moments == parameters_.moments && state.masters == parameters_.masters,
               kConfig, "[optim] a state with moments in ", to_string(state.moments),
               " and masters in ", to_string(state.masters), " is none in ",
               to_string(parameters_.moments), " and ", to_string(parameters_.masters));
  KINORA_CHECK(state.applied_steps >= 0 && state.skipped_steps >= 0 && state.good_steps >= 0 &&
                   state.good_steps < policy_.growth_interval && std::isfinite(state.loss_scale) &&
                   state.loss_scale > 0.0F,
               kIo,
               "[optim] a saved state must have counts of 0 or more and a positive loss scale, "
               "got ",
               state.applied_steps, " applied, ", state.skipped_steps, " skipped, ",
               state.good_steps, " good steps, loss scale ", state.loss_scale);
  KINORA_CHECK(policy_.dynamic_loss_scale || state.loss_scale == 1.0F, kIo,
               "[optim] a saved loss scale of ", state.loss_scale,
               " belongs to an fp16 run, this one is not. Hint: keep train.precision on resume.");
  const bool is_prodigy = rule_ == kernels::UpdateRule::kProdigy;
  KINORA_CHECK(std::isfinite(state.distance) && std::isfinite(state.distance_sum) &&
                   (state.distance > 0.0) == is_prodigy,
               kIo, "[optim] a saved state of ", to_string(rule_), " must have ",
               is_prodigy ? "a distance above 0" : "no distance", ", got ", state.distance,
               " and a sum of ", state.distance_sum);
  const bool has_shares = state.largest_lr > 0.0 && state.share_sum > 0.0;
  KINORA_CHECK(std::isfinite(state.largest_lr) && std::isfinite(state.share_sum) &&
                   state.largest_lr >= 0.0 && state.share_sum >= 0.0 &&
                   (!has_shares || policy_.weighs_steps),
               kIo, "[optim] a saved state of ", to_string(rule_), " must have ",
               policy_.weighs_steps ? "rates of 0 or more" : "no largest rate", ", got ",
               state.largest_lr, " and a sum of ", state.share_sum);
  kernels::StepControl control;
  control.applied_steps = state.applied_steps;
  control.skipped_steps = state.skipped_steps;
  control.loss_scale = state.loss_scale;
  control.good_steps = state.good_steps;
  control.distance = state.distance;
  control.distance_sum = state.distance_sum;
  control.largest_lr = state.largest_lr;
  control.share_sum = state.share_sum;
  control.steps = steps_;
  control_.copy_(ops::make_step_control(control, at::kCPU));
}

}  // namespace kinora::optim
