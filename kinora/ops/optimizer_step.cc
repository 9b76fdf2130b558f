#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include "kinora/ops/optimizer_step.h"

#include <ATen/Parallel.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/philox.h"
#include "kinora/core/rounding.h"
#include "kinora/kernels/block_codes.h"
#include "kinora/kernels/cast.h"
#include "kinora/kernels/sum_squares.h"
#include "kinora/ops/cuda_launch.h"

namespace kinora::ops {
namespace {

using kernels::StepControl;

constexpr int64_t kUpdateChunk = 16384;  // elements that one thread takes at a time
static_assert(kUpdateChunk % kernels::kCodeBlock == 0);

void check_flat(const at::Tensor& tensor, const char* name, at::ScalarType type,
                const at::Tensor& like) {
  KINORA_CHECK(tensor.defined() && tensor.scalar_type() == type && tensor.is_contiguous() &&
                   tensor.numel() == like.numel() && tensor.device() == like.device(),
               kShape, "[optimizer] ", name, " must be contiguous ", type, " with ", like.numel(),
               " elements on ", like.device(), ", got ",
               tensor.defined() ? tensor.toString() : "an undefined tensor", " with ",
               tensor.defined() ? tensor.numel() : 0, " elements",
               tensor.defined() && tensor.is_contiguous() ? "" : ", not contiguous");
}

bool is_16_bit(at::ScalarType type) {
  return type == at::kBFloat16 || type == at::kHalf;
}

DType kernel_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? DType::kBF16 : DType::kF16;
}

StepControl* host_control(const at::Tensor& control) {
  return reinterpret_cast<StepControl*>(control.data_ptr<uint8_t>());
}

void write_control(const StepControl& value, const at::Tensor& control) {
  const at::Tensor host = at::empty({sizeof(StepControl)}, at::TensorOptions(at::kByte));
  std::memcpy(host.data_ptr<uint8_t>(), &value, sizeof(value));
  control.copy_(host);
}

kernels::StepExchange* host_exchange(const at::Tensor& exchange) {
  return reinterpret_cast<kernels::StepExchange*>(exchange.data_ptr<uint8_t>());
}

bool has_codes(const OptimizerBucket& bucket) {
  return bucket.exp_avg.defined() && bucket.exp_avg.scalar_type() == at::kByte;
}

void check_moment(const at::Tensor& moment, const at::Tensor& scales, const char* name,
                  const OptimizerBucket& bucket) {
  check_flat(moment, name, has_codes(bucket) ? at::kByte : at::kFloat, bucket.grad);
  const int64_t blocks = has_codes(bucket) ? bucket.numel() / kernels::kCodeBlock : 0;
  KINORA_CHECK(blocks == 0 || (scales.defined() && scales.scalar_type() == at::kFloat &&
                               scales.is_contiguous() && scales.numel() == blocks &&
                               scales.device() == bucket.device()),
               kShape, "[optimizer] the codes of ", name, " must have ", blocks,
               " contiguous fp32 scales on ", bucket.device(), ", got ",
               scales.defined() ? scales.numel() : 0);
}

void check_blocks(const OptimizerBucket& bucket) {
  KINORA_CHECK(bucket.numel() % kernels::kCodeBlock == 0, kShape,
               "[optimizer] codes and stochastic rounding want whole blocks of ",
               kernels::kCodeBlock, " elements, got ", bucket.numel(), " elements");
  std::vector<at::Tensor> arrays = {bucket.master,     bucket.grad, bucket.exp_avg,
                                    bucket.exp_avg_sq, bucket.base, bucket.grad_sum,
                                    bucket.compute};
  arrays.insert(arrays.end(), bucket.ema.begin(), bucket.ema.end());
  for (const at::Tensor& array : arrays) {
    constexpr uintptr_t kBytes = 16;
    KINORA_CHECK(!array.defined() || array.is_meta() ||
                     reinterpret_cast<uintptr_t>(array.const_data_ptr()) % kBytes == 0,
                 kShape, "[optimizer] blocks must be aligned to ", kBytes, " bytes");
  }
}

void check_bucket(const OptimizerBucket& bucket) {
  KINORA_CHECK(bucket.grad.defined(), kShape, "[optimizer] grad must be defined");
  check_flat(bucket.grad, "grad", at::kFloat, bucket.grad);
  if (bucket.exp_avg.defined()) {
    check_moment(bucket.exp_avg, bucket.exp_avg_scales, "exp_avg", bucket);
  }
  if (bucket.exp_avg_sq.defined()) {
    check_moment(bucket.exp_avg_sq, bucket.exp_avg_sq_scales, "exp_avg_sq", bucket);
  }
  if (bucket.base.defined()) {
    check_flat(bucket.base, "base", at::kFloat, bucket.grad);
  }
  if (bucket.grad_sum.defined()) {
    check_flat(bucket.grad_sum, "grad_sum", at::kFloat, bucket.grad);
  }
  KINORA_CHECK(bucket.ema.size() <= kernels::kMaxEmas, kShape, "[optimizer] there must be at most ",
               kernels::kMaxEmas, " EMAs, got ", bucket.ema.size());
  for (const at::Tensor& ema : bucket.ema) {
    check_flat(ema, "ema", at::kFloat, bucket.grad);
  }
  if (bucket.compute.defined()) {
    KINORA_CHECK(is_16_bit(bucket.compute.scalar_type()), kShape,
                 "[optimizer] compute must be bf16 or fp16, got ", bucket.compute.scalar_type());
    check_flat(bucket.compute, "compute", bucket.compute.scalar_type(), bucket.grad);
  }
  if (bucket.master.defined()) {
    check_flat(bucket.master, "master", at::kFloat, bucket.grad);
  } else {
    KINORA_CHECK(bucket.compute.defined() && bucket.compute.scalar_type() == at::kBFloat16, kShape,
                 "[optimizer] without a master compute must be bf16");
  }
  if (has_codes(bucket) || !bucket.master.defined()) {
    check_blocks(bucket);
  }
}

void check_call(const OptimizerBucket& bucket, const at::Tensor& control) {
  KINORA_CHECK(control.device() == bucket.device(), kShape,
               "[optimizer] the control block must be on ", bucket.device(), ", got ",
               control.device());
}

void check_parameters(const OptimizerBucket& bucket, const kernels::UpdateParameters& parameters) {
  KINORA_CHECK(bucket.exp_avg_sq.defined() || !kernels::has_second_moment(parameters.rule), kShape,
               "[optimizer] the rule needs exp_avg_sq");
  KINORA_CHECK(bucket.exp_avg.defined() || !kernels::reads_first_moment(parameters.rule), kShape,
               "[optimizer] the rule needs exp_avg");
  KINORA_CHECK((bucket.base.defined() && bucket.grad_sum.defined()) ||
                   parameters.rule != kernels::UpdateRule::kProdigy,
               kShape, "[optimizer] the rule needs base and grad_sum");
  KINORA_CHECK((bucket.base.defined() && !bucket.ema.empty()) ||
                   parameters.rule != kernels::UpdateRule::kScheduleFree,
               kShape, "[optimizer] the rule needs base and an average");
  KINORA_CHECK(static_cast<int>(bucket.ema.size()) == parameters.num_emas, kShape,
               "[optimizer] there must be ", parameters.num_emas, " EMAs, got ", bucket.ema.size());
  const bool codes = parameters.moments == kernels::MomentFormat::k8Bit;
  KINORA_CHECK(has_codes(bucket) == codes, kShape, "[optimizer] moments must be ",
               codes ? "codes of 8 bits" : "fp32", ", got ",
               bucket.exp_avg.defined() ? c10::toString(bucket.exp_avg.scalar_type()) : "none");
  KINORA_CHECK(bucket.master.defined() || parameters.masters == kernels::MasterFormat::kBF16,
               kShape, "[optimizer] masters must be fp32, got none");
  if (kernels::updates_blocks(parameters)) {
    check_blocks(bucket);
  }
}

kernels::UpdateBuffers pointers(const OptimizerBucket& bucket) {
  kernels::UpdateBuffers buffers;
  buffers.lr_factor = bucket.lr_factor;
  buffers.leaves_grad = bucket.leaves_grad;
  buffers.rounding = bucket.rounding;
  buffers.place = bucket.place;
  if (bucket.master.defined()) {
    buffers.master = bucket.master.data_ptr<float>();
  }
  buffers.grad = bucket.grad.data_ptr<float>();
  const auto set = [&](const at::Tensor& moment, const at::Tensor& scales, float** values,
                       kernels::CodedMoment* coded) {
    if (moment.defined() && has_codes(bucket)) {
      *coded = {moment.data_ptr<uint8_t>(), scales.data_ptr<float>()};
    } else if (moment.defined()) {
      *values = moment.data_ptr<float>();
    }
  };
  set(bucket.exp_avg, bucket.exp_avg_scales, &buffers.exp_avg, &buffers.coded_avg);
  set(bucket.exp_avg_sq, bucket.exp_avg_sq_scales, &buffers.exp_avg_sq, &buffers.coded_avg_sq);
  if (bucket.base.defined()) {
    buffers.base = bucket.base.data_ptr<float>();
  }
  if (bucket.grad_sum.defined()) {
    buffers.grad_sum = bucket.grad_sum.data_ptr<float>();
  }
  for (size_t k = 0; k < bucket.ema.size(); ++k) {
    buffers.ema[k] = bucket.ema[k].data_ptr<float>();
  }
  if (bucket.compute.defined()) {
    buffers.compute = bucket.compute.data_ptr();
    buffers.compute_type = kernel_type(bucket.compute);
  }
  return buffers;
}

/// body(begin, end) over [0, count) in chunks of fixed size.
template <typename Body>
void for_chunks(int64_t count, int64_t chunk, const Body& body) {
  at::parallel_for(0, ceil_div(count, chunk), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      body(i * chunk, std::min(count, (i + 1) * chunk));
    }
  });
}

double sum_squares_on_cpu(const at::Tensor& grad) {
  constexpr int64_t kSumChunk = kernels::kSumSquaresChunk;
  const auto* values = grad.const_data_ptr<float>();
  std::vector<double> partial(static_cast<size_t>(ceil_div(grad.numel(), kSumChunk)));
  for_chunks(grad.numel(), kSumChunk, [&](int64_t begin, int64_t end) {
    partial[static_cast<size_t>(begin / kSumChunk)] =
        kernels::sum_squares(values + begin, end - begin);
  });
  double sum = 0.0;
  for (const double part : partial) {
    sum += part;
  }
  return sum;
}

at::Tensor table_on(const float* values, int64_t count, at::Device device) {
  return at::from_blob(const_cast<float*>(values), {count}, at::kFloat).to(device);
}

/// The moment in fp32: itself, or of its codes.
at::Tensor decoded(const at::Tensor& moment, const at::Tensor& scales,
                   const kernels::CodeMap& map) {
  if (!moment.defined() || moment.scalar_type() != at::kByte) {
    return moment;
  }
  const at::Tensor values = table_on(map.value, 256, moment.device());
  return values.index_select(0, moment.to(at::kInt))
      .view({-1, kernels::kCodeBlock})
      .mul_(scales.unsqueeze(1))
      .view({-1});
}

void encode(const at::Tensor& moment, const kernels::CodeMap& map, const at::Tensor& codes,
            const at::Tensor& scales) {
  const at::Tensor blocks = moment.view({-1, kernels::kCodeBlock});
  scales.copy_(blocks.abs().amax(1));
  const at::Tensor multiplied = blocks.mul(scales.clamp_min(1e-38).reciprocal_().unsqueeze(1));
  const at::Tensor bounds = table_on(map.bound, 255, moment.device());
  codes.copy_(at::bucketize(multiplied, bounds, /*out_int32=*/true).view({-1}));
}

void round_stochastically(const at::Tensor& weight, const RandomStream& stream, int64_t place,
                          const at::Tensor& out) {
  const at::Tensor values = weight.to(at::kCPU);
  const at::Tensor rounded = at::empty({values.numel()}, at::kBFloat16);
  const auto* from = values.const_data_ptr<float>();
  auto* to = static_cast<uint16_t*>(rounded.data_ptr());
  for (int64_t i = 0; i < values.numel(); ++i) {
    const auto element = static_cast<uint64_t>(place + i);
    const PhiloxBlock random = philox(stream, static_cast<uint32_t>(element / 4));
    to[i] = kernels::round_stochastically(from[i], random.word[element % 4]);
  }
  out.copy_(rounded);
}

/// In fp32: themselves, or a copy.
at::Tensor weights_of(const OptimizerBucket& bucket) {
  return bucket.master.defined() ? bucket.master : bucket.compute.to(at::kFloat);
}

at::Tensor denominator_of(const at::Tensor& exp_avg_sq, const kernels::UpdateParameters& parameters,
                          const StepControl& decisions) {
  return exp_avg_sq.sqrt().div_(decisions.bias_correction2_sqrt).add_(parameters.eps);
}

/// A pass over buckets: for all of a table by our kernel on a GPU, for a part of one on the CPU,
/// and for one as ATen calls.
struct Pass {
  void (*on_gpu)(const BucketTable& table, const kernels::UpdateParameters& parameters,
                 const at::Tensor& control);
  void (*on_cpu)(const kernels::UpdateBuffers& buffers, const kernels::UpdateParameters& parameters,
                 const StepControl& control, int64_t begin, int64_t end);
  void (*composed)(const OptimizerBucket& bucket, const kernels::UpdateParameters& parameters,
                   const at::Tensor& control);
};

void pass_over(const BucketTable& table, const kernels::UpdateParameters& parameters,
               const at::Tensor& control, const Pass& pass) {
  for (const OptimizerBucket& bucket : table.buckets()) {
    check_call(bucket, control);
    check_parameters(bucket, parameters);
  }
  if (table.device_table().defined()) {
    pass.on_gpu(table, parameters, control);
    return;
  }
  for (const OptimizerBucket& bucket : table.buckets()) {
    if (bucket.device().is_cpu()) {
      const kernels::UpdateBuffers buffers = pointers(bucket);
      const StepControl& decisions = *host_control(control);
      for_chunks(bucket.numel(), kUpdateChunk, [&](int64_t begin, int64_t end) {
        pass.on_cpu(buffers, parameters, decisions, begin, end);
      });
    } else {
      pass.composed(bucket, parameters, control);
    }
  }
}

/// Changes the control block where it lies: by `on_host` in the host's memory, or a copy of a GPU's
/// where there are no kernels of ours, else by `on_gpu`.
template <typename OnHost, typename OnGpu>
void change_control(const at::Tensor& control, const OnHost& on_host, const OnGpu& on_gpu) {
  if (control.device().is_cpu()) {
    on_host(host_control(control));
  } else if (cuda::available()) {
    on_gpu();
  } else {
    StepControl value = read_step_control(control);
    on_host(&value);
    write_control(value, control);
  }
}

}  // namespace

at::Tensor make_step_control(const StepControl& start, at::Device device) {
  at::Tensor control =
      at::empty({sizeof(StepControl)}, at::TensorOptions(at::kByte).device(device));
  write_control(start, control);
  return control;
}

StepControl read_step_control(const at::Tensor& control) {
  const at::Tensor host = control.to(at::kCPU);
  StepControl value;
  std::memcpy(&value, host.const_data_ptr<uint8_t>(), sizeof(value));
  return value;
}

at::Tensor sum_squares_of(const at::Tensor& control) {
  static_assert(offsetof(StepControl, grad_sum_squares) % sizeof(double) == 0);
  return control.view(at::kDouble)
      .select(0, offsetof(StepControl, grad_sum_squares) / sizeof(double));
}

at::Tensor multiplier_of(const at::Tensor& control) {
  return control.view(at::kFloat).select(0, offsetof(StepControl, multiplier) / sizeof(float));
}

at::Tensor skip_of(const at::Tensor& control) {
  return control.view(at::kInt).select(0, offsetof(StepControl, skip) / sizeof(int32_t));
}

at::Tensor applied_steps_of(const at::Tensor& control) {
  return control.view(at::kLong).select(0, offsetof(StepControl, applied_steps) / sizeof(int64_t));
}

at::Tensor distance_sums_of(const at::Tensor& control) {
  constexpr auto kFirst = static_cast<int64_t>(offsetof(StepControl, distance_terms));
  static_assert(kFirst % sizeof(double) == 0 &&
                offsetof(StepControl, grad_sum_norm) == kFirst + sizeof(double));
  return control.view(at::kDouble).narrow(0, kFirst / static_cast<int64_t>(sizeof(double)), 2);
}

at::Tensor loss_scale_of(const at::Tensor& control) {
  return control.view(at::kFloat).select(0, offsetof(StepControl, loss_scale) / sizeof(float));
}

at::Tensor make_step_exchange(at::Device device) {
  at::Tensor exchange = at::empty({sizeof(kernels::StepExchange)},
                                  at::TensorOptions(at::kByte).pinned_memory(device.is_cuda()));
  *host_exchange(exchange) = kernels::StepExchange{};
  return exchange;
}

void set_step_lr(const at::Tensor& exchange, int64_t step, double lr) {
  std::atomic_ref<double>(host_exchange(exchange)->lr[step % kernels::kStepRing]).store(lr);
}

std::optional<kernels::StepReport> find_report(const at::Tensor& exchange, int64_t step) {
  kernels::StepReport& report = host_exchange(exchange)->reports[step % kernels::kStepRing];
  // Written last, by a device that put a fence before it.
  const int64_t there = std::atomic_ref<int64_t>(report.step).load(std::memory_order_acquire);
  KINORA_CHECK(there <= step, kInternal, "[optimizer] the report of step ", step,
               " must be read within ", kernels::kStepRing, " steps, that of step ", there,
               " has taken its place");
  return there == step ? std::optional(report) : std::nullopt;
}

kernels::StepReport wait_report(const at::Tensor& exchange, int64_t step, at::Device device) {
  using std::chrono::microseconds;
  constexpr microseconds kSleep(20);
  constexpr int kLooksPerCheck = 1000;
  for (int64_t looks = 1;; ++looks) {
    if (const std::optional<kernels::StepReport> report = find_report(exchange, step)) {
      return *report;
    }
    KINORA_CHECK(device.is_cuda(), kInternal, "[optimizer] step ", step, " was never launched");
    // A device that has failed reports nothing.
    if (looks % kLooksPerCheck == 0) {
      cuda::check_device(device);
    }
    std::this_thread::sleep_for(kSleep);
  }
}

BucketTable::BucketTable(std::vector<OptimizerBucket> buckets, bool own_kernels)
    : buckets_(std::move(buckets)) {
  std::vector<kernels::UpdateBucket> entries;
  for (const OptimizerBucket& bucket : buckets_) {
    check_bucket(bucket);
    KINORA_CHECK(
        bucket.ema.size() == buckets_[0].ema.size() && bucket.device() == buckets_[0].device(),
        kShape, "[optimizer] all buckets must have as many EMAs and be on one device");
    entries.push_back({.buffers = pointers(bucket), .count = bucket.numel()});
  }
  num_chunks_ = kernels::number_chunks(entries);
  if (buckets_.empty() || !buckets_[0].device().is_cuda() || !cuda::available() || !own_kernels) {
    return;
  }
  const auto bytes = static_cast<int64_t>(entries.size() * sizeof(kernels::UpdateBucket));
  const at::Tensor host = at::empty({bytes}, at::TensorOptions(at::kByte));
  std::memcpy(host.data_ptr<uint8_t>(), entries.data(), static_cast<size_t>(bytes));
  device_table_ = host.to(buckets_[0].device());
  workspace_ = cuda::sum_squares_workspace(*this);
}

void add_sum_squares(const BucketTable& table, const at::Tensor& control) {
  for (const OptimizerBucket& bucket : table.buckets()) {
    check_call(bucket, control);
  }
  if (table.device_table().defined()) {
    cuda::add_sum_squares(table, control);
    return;
  }
  for (const OptimizerBucket& bucket : table.buckets()) {
    if (bucket.grad.device().is_cpu()) {
      host_control(control)->grad_sum_squares += sum_squares_on_cpu(bucket.grad);
    } else {
      sum_squares_of(control).add_(bucket.grad.to(at::kDouble).square_().sum());
    }
  }
}

void prepare_update(const at::Tensor& control, const kernels::UpdatePolicy& policy,
                    const at::Tensor& exchange) {
  const kernels::StepExchange* shared = exchange.defined() ? host_exchange(exchange) : nullptr;
  change_control(
      control, [&](StepControl* value) { kernels::prepare_update(value, policy, shared); },
      [&] { cuda::prepare_update(control, policy, shared); });
}

void conclude_update(const at::Tensor& control) {
  change_control(control, kernels::conclude_update, [&] { cuda::conclude_update(control); });
}

void make_directions(const BucketTable& table, const kernels::UpdateParameters& parameters,
                     const at::Tensor& control) {
  pass_over(table, parameters, control,
            {cuda::make_directions, kernels::make_directions, make_directions_composed});
}

void adapt_distance(const at::Tensor& control, const kernels::UpdatePolicy& policy) {
  change_control(
      control, [&](StepControl* value) { kernels::adapt_distance(value, policy); },
      [&] { cuda::adapt_distance(control, policy); });
}

void update_weights(const BucketTable& table, const kernels::UpdateParameters& parameters,
                    const at::Tensor& control) {
  pass_over(table, parameters, control,
            {cuda::update_weights, kernels::update_weights, update_weights_composed});
}

void update_and_add_squares(const BucketTable& table, const kernels::UpdateParameters& parameters,
                            const at::Tensor& control) {
  if (!table.device_table().defined()) {
    add_sum_squares(table, control);
    update_weights(table, parameters, control);
    return;
  }
  for (const OptimizerBucket& bucket : table.buckets()) {
    check_call(bucket, control);
    check_parameters(bucket, parameters);
  }
  cuda::update_and_add_squares(table, parameters, control);
}

void publish_report(const at::Tensor& control, const at::Tensor& loss, const at::Tensor& exchange) {
  KINORA_CHECK(!loss.defined() || (loss.scalar_type() == at::kFloat && loss.numel() == 1 &&
                                   loss.device() == control.device()),
               kShape, "[optimizer] the loss must be one fp32 element on ", control.device(),
               ", got ", loss.toString(), " of shape ", loss.sizes());
  if (control.is_cuda() && cuda::available()) {
    cuda::publish_report(control, loss, host_exchange(exchange));
    return;
  }
  const StepControl value = read_step_control(control);
  const at::Tensor host_loss = loss.defined() ? loss.detach().to(at::kCPU) : loss;
  volatile kernels::StepReport* report = kernels::write_report(
      value, loss.defined() ? host_loss.const_data_ptr<float>() : nullptr, host_exchange(exchange));
  report->step = value.steps;
}

void make_directions_composed(const OptimizerBucket& bucket,
                              const kernels::UpdateParameters& parameters,
                              const at::Tensor& control) {
  check_bucket(bucket);
  check_parameters(bucket, parameters);
  check_call(bucket, control);
  const StepControl decisions = read_step_control(control);
  if (decisions.skip != 0) {
    return;
  }
  bucket.grad.mul_(decisions.multiplier);
  if (parameters.rule == kernels::UpdateRule::kMuon) {
    bucket.exp_avg.lerp_(bucket.grad, 1.0 - parameters.beta1);
    bucket.grad.lerp_(bucket.exp_avg, parameters.beta1);
    return;
  }
  const bool is_prodigy = parameters.rule == kernels::UpdateRule::kProdigy;
  const double distance = is_prodigy ? decisions.step_distance : 1.0;
  bucket.exp_avg.mul_(parameters.beta1).add_(bucket.grad, distance * (1.0 - parameters.beta1));
  bucket.exp_avg_sq.mul_(parameters.beta2)
      .addcmul_(bucket.grad, bucket.grad, distance * distance * (1.0 - parameters.beta2));
  if (is_prodigy) {
    bucket.grad_sum.mul_(kernels::prodigy_decay(parameters.beta2))
        .add_(bucket.grad, distance / parameters.first_distance * distance * bucket.lr_factor);
    bucket.grad.mul_(bucket.base.sub(weights_of(bucket))).mul_(bucket.lr_factor);
    return;
  }
  bucket.grad.copy_(weights_of(bucket)).mul_(parameters.weight_decay);
  bucket.grad.addcdiv_(bucket.exp_avg, denominator_of(bucket.exp_avg_sq, parameters, decisions),
                       1.0 / decisions.bias_correction1);
}

void update_weights_composed(const OptimizerBucket& bucket,
                             const kernels::UpdateParameters& parameters,
                             const at::Tensor& control) {
  check_bucket(bucket);
  check_parameters(bucket, parameters);
  check_call(bucket, control);
  const StepControl decisions = read_step_control(control);
  if (decisions.skip != 0) {
    bucket.grad.zero_();
    return;
  }
  const double lr = decisions.lr * bucket.lr_factor;
  const at::Tensor weight = weights_of(bucket);
  const at::Tensor exp_avg = decoded(bucket.exp_avg, bucket.exp_avg_scales, kernels::kSignedCodes);
  const at::Tensor exp_avg_sq =
      decoded(bucket.exp_avg_sq, bucket.exp_avg_sq_scales, kernels::kUnsignedCodes);
  if (!kernels::takes_directions(parameters.rule)) {
    bucket.grad.mul_(decisions.multiplier);
  }
  switch (parameters.rule) {
    case kernels::UpdateRule::kAdamW: {
      weight.mul_(1.0 - lr * parameters.weight_decay);
      exp_avg.lerp_(bucket.grad, 1.0 - parameters.beta1);
      exp_avg_sq.mul_(parameters.beta2).addcmul_(bucket.grad, bucket.grad, 1.0 - parameters.beta2);
      weight.addcdiv_(exp_avg, denominator_of(exp_avg_sq, parameters, decisions),
                      -lr / decisions.bias_correction1);
      break;
    }
    case kernels::UpdateRule::kLion: {
      weight.mul_(1.0 - lr * parameters.weight_decay);
      const at::Tensor mean =
          exp_avg.mul(parameters.beta1).add_(bucket.grad, 1.0 - parameters.beta1);
      weight.add_(mean.sign_(), -lr);
      exp_avg.mul_(parameters.beta2).add_(bucket.grad, 1.0 - parameters.beta2);
      break;
    }
    case kernels::UpdateRule::kSgd:
      bucket.grad.add_(weight, parameters.weight_decay);
      exp_avg.mul_(parameters.beta1).add_(bucket.grad);
      weight.add_(exp_avg, -lr);
      break;
    case kernels::UpdateRule::kLamb:
      weight.add_(bucket.grad, -lr);
      break;
    case kernels::UpdateRule::kScheduleFree: {
      const at::Tensor& mean = bucket.ema.front();
      exp_avg_sq.mul_(parameters.beta2).addcmul_(bucket.grad, bucket.grad, 1.0 - parameters.beta2);
      bucket.grad.div_(denominator_of(exp_avg_sq, parameters, decisions))
          .add_(weight, parameters.weight_decay);
      bucket.base.add_(bucket.grad, -lr);
      mean.lerp_(bucket.base, decisions.share);
      weight.copy_(bucket.base).lerp_(mean, parameters.beta1);
      break;
    }
    case kernels::UpdateRule::kProdigy: {
      const double rate = kernels::prodigy_rate(decisions, lr);
      weight.mul_(1.0 - rate * parameters.weight_decay);
      weight.addcdiv_(exp_avg, exp_avg_sq.sqrt().add_(decisions.distance * parameters.eps), -rate);
      break;
    }
    case kernels::UpdateRule::kMuon:
    case kernels::UpdateRule::kAdafactor:
    case kernels::UpdateRule::kCame:
      weight.mul_(1.0 - lr * parameters.weight_decay).add_(bucket.grad, -lr);
      break;
  }
  if (has_codes(bucket)) {
    encode(exp_avg, kernels::kSignedCodes, bucket.exp_avg, bucket.exp_avg_scales);
    if (exp_avg_sq.defined()) {
      encode(exp_avg_sq, kernels::kUnsignedCodes, bucket.exp_avg_sq, bucket.exp_avg_sq_scales);
    }
  }
  if (!bucket.master.defined()) {
    round_stochastically(weight, kernels::rounding_stream(parameters, decisions, bucket.rounding),
                         bucket.place, bucket.compute);
    weight.copy_(bucket.compute);
  }
  const auto first = static_cast<size_t>(kernels::first_ema(parameters.rule));
  for (size_t k = first; k < bucket.ema.size(); ++k) {
    const double decay = parameters.ema_decay[k];
    bucket.ema[k].mul_(decay).add_(weight, 1.0 - decay);
  }
  if (bucket.compute.defined() && bucket.master.defined()) {
    bucket.compute.copy_(bucket.master);
  }
  bucket.grad.zero_();
}

at::Tensor norm_of(const at::Tensor& values, int64_t order) {
  const at::ScalarType type = values.is_cuda() ? at::kFloat : at::kDouble;
  return at::linalg_vector_norm(values, order, {}, /*keepdim=*/false, type).to(at::kFloat);
}

void round_to(const at::Tensor& in, const at::Tensor& out) {
  KINORA_CHECK(in.defined() && out.defined() && is_16_bit(out.scalar_type()), kShape,
               "[optimizer] out must be bf16 or fp16");
  check_flat(in, "in", at::kFloat, in);
  check_flat(out, "out", out.scalar_type(), in);
  if (in.device().is_cpu()) {
    const auto* values = in.const_data_ptr<float>();
    auto* rounded = static_cast<uint16_t*>(out.data_ptr());
    for_chunks(in.numel(), kUpdateChunk, [&](int64_t begin, int64_t end) {
      kernels::cast(values + begin, end - begin, kernel_type(out), rounded + begin);
    });
  } else if (cuda::available()) {
    cuda::round_to(in, kernel_type(out), out);
  } else {
    out.copy_(in);
  }
}

}  // namespace kinora::ops
