#include "kinora/train/plan/step_estimate.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>

#include "kinora/core/error.h"
#include "kinora/inference/setup.h"
#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "kinora/optim/arena_layout.h"
#include "kinora/optim/held_weights.h"
#include "kinora/optim/orthogonalise.h"
#include "kinora/parallel/mesh.h"
#include "kinora/parallel/tensor.h"
#include "kinora/train/finetune.h"
#include "kinora/train/recompute_plan.h"

namespace kinora::train {
namespace {

constexpr double kGradientBytes = 4.0;  // fp32

// Measured on an H200 (docs/performance.md, "Measured", and docs/planning.md): DiT-XL/2 182 TFLOP
// in 357 ms of forward and backward at batch 256, 65,536 tokens, and 21 ms at batch 8; DiT-S/2, of
// a third of the width, 0.69 of that speed; the plain path 311 TFLOP/s; fp8 257 ms; the update 7.85
// ms for 675 M parameters.
constexpr double kFastShare = 0.684;     // of an endless batch and width
constexpr double kPlainShare = 0.41;     // likewise
constexpr double kWidthForHalf = 334.0;  // hidden, with which half the speed is reached
// Tokens at once times hidden, below which a pass hardly gets shorter.
constexpr double kElementsForAPass = 3.9e6;
constexpr double kFp8Gain = 1.39;  // of blocks whose linears are in fp8
// The same of frozen weights below low-rank updates: Flux in 330.7 and 264.1 ms (docs/mmdit.md).
constexpr double kFrozenFp8Gain = 1.25;
constexpr double kBandwidthShare = 0.68;
// Of the time that computation takes: what comes in pieces, each when the one before is used, does
// not fill more of it.
constexpr double kHidden = 0.9;
// Of the time that copies take, however well it is hidden: of frozen weights and activations (Flux
// with low-rank updates took 5 to 9 ms longer for 8 to 12 GB), and of states (DiT-XL/2 8 ms for 0.9
// GB of 8-bit states).
constexpr double kNotHidden = 0.03;
constexpr double kStatesNotHidden = 0.3;
// What 16 virtual cores of a Xeon read to multiply.
constexpr double kHostBytesPerS = 70e9;

/// Forward and backward with recomputation, against those without: DiT-XL/2, 64 samples, on an H100
/// (docs/planning.md): 647.6, 629.1, 585.8 and 529.3 samples/s; and Flux with low-rank updates,
/// whose backward is shorter: 332, 355, 374 and 434 ms.
double recompute_factor(const RunConfig& config) {
  const int64_t all = models::shape_of(config.model).blocks;
  const RecomputePlan plan = parse_recompute(config.train.recompute, all);
  const double blocks =
      static_cast<double>(plan.first_blocks) / static_cast<double>(std::max<int64_t>(all, 1));
  const bool is_frozen = config.finetune.freezes();
  double rest = 1.0;
  if (plan.level == ops::Recompute::kElementwise) {
    rest = is_frozen ? 1.06 : 1.03;
  } else if (plan.level == ops::Recompute::kMlp) {
    rest = 1.105;
  }
  const double whole_block = is_frozen ? 1.255 : 1.23;
  return blocks * whole_block + (1.0 - blocks) * rest;
}

/// Widths C a token and block that `level` keeps for backward, with the MLP of four times the
/// width, as `kinora plan` counts them: DiT's, blocks with more branches keep more; and of Flux
/// with low-rank updates, 512 tokens of text included.
double kept_widths(ops::Recompute level, bool is_frozen) {
  switch (level) {
    case ops::Recompute::kNone:
      return is_frozen ? 19.0 : 18.0;
    case ops::Recompute::kElementwise:
      return is_frozen ? 10.5 : 12.0;
    case ops::Recompute::kMlp:
      return is_frozen ? 6.0 : 8.0;
    case ops::Recompute::kBlock:
      return 1.0;
  }
  KINORA_UNREACHABLE("[plan] unknown level");
}

/// Bytes that a pass over `rows` tokens sends to the host, spread evenly over it, for each block in
/// what train.recompute counts.
double offloaded_bytes(const RunConfig& config, double rows) {
  const models::ModelShape shape = models::shape_of(config.model);
  const RecomputePlan plan = parse_recompute(config.train.recompute, shape.blocks);
  const bool is_whole = plan.first_blocks == shape.blocks;
  const int64_t others = shape.blocks - (is_whole ? 0 : plan.first_blocks);
  // The last block of a pass stays.
  const auto count = static_cast<double>(std::min(plan.offloaded_blocks, others - 1));
  const ops::Recompute level = is_whole ? ops::Recompute::kBlock : plan.level;
  const auto element =
      static_cast<double>(c10::elementSize(inference::compute_type(config.precision)));
  const double coded = config.train.fp8_activations ? 0.516 : 1.0;  // 33 bytes for 32 numbers
  return std::max(0.0, count) * kept_widths(level, config.finetune.freezes()) * rows *
         static_cast<double>(shape.width) * element * coded;
}

/// What the passes before update_weights move for each element, moments left out, which the rule
/// reads and writes in one of them alone.
double direction_bytes_of(kernels::UpdateRule rule) {
  switch (rule) {
    case kernels::UpdateRule::kAdafactor:
      return 16.0;  // three passes over gradients, of which the last writes
    case kernels::UpdateRule::kCame:
      return 20.0;  // likewise, and one more that reads the mean of directions again
    case kernels::UpdateRule::kLamb:
      return 28.0;  // the direction, two norms, and its length
    case kernels::UpdateRule::kProdigy:
      return 48.0;  // the first weights, the sum of gradients, terms and two sums; moments again
    default:
      return 0.0;
  }
}

bool is_fast(const RunConfig& config) {
  return config.precision != Precision::kFp32 && config.path != inference::Path::kPlain;
}

/// Of the frozen weights of blocks: what makes the vectors that modulate them.
double modulation_share(models::Model& model) {
  double all = 0.0;
  double modulation = 0.0;
  for (const auto& [path, parameter] : model.named_parameters()) {
    const bool is_weight = parameter->frozen && parameter->shape.size() > 1;
    const double numel = is_weight ? static_cast<double>(parameter->numel()) : 0.0;
    all += numel;
    modulation += optim::is_modulation(path) ? numel : 0.0;
  }
  return all > 0.0 ? modulation / all : 0.0;
}

}  // namespace

std::vector<BucketCost> bucket_costs(const RunConfig& config, double micro_step_s) {
  const auto model = models::make_model(config.model);  // without values
  const optim::ArenaLayout layout = optim::lay_out(model->named_parameters(), model->buckets());
  const auto weight_bytes =
      static_cast<double>(c10::elementSize(inference::compute_type(config.precision)));
  double computing = 0.0;
  for (const optim::Bucket& bucket : layout.buckets) {
    computing += bucket.is_block ? static_cast<double>(bucket.numel) : 0.0;
  }
  std::vector<BucketCost> costs;
  std::map<std::string, int64_t> rings;
  for (const optim::Bucket& bucket : layout.buckets) {
    const auto numel = static_cast<double>(bucket.numel);
    const double seconds = bucket.is_block ? micro_step_s * numel / computing : 0.0;
    const double read_bytes = bucket.fp32_island ? 4.0 : weight_bytes;
    costs.push_back({.gradient_bytes = kGradientBytes * numel,
                     .weight_bytes = read_bytes * numel,
                     .forward_s = kForwardShare * seconds,
                     .backward_s = (1.0 - kForwardShare) * seconds,
                     .elements = numel,
                     .has_exact_weights = read_bytes == 4.0,
                     .ring = bucket.ring.empty()
                                 ? std::optional<int64_t>()
                                 : rings.emplace(bucket.ring, std::ssize(rings)).first->second});
  }
  return costs;
}

StepEstimate::StepEstimate(const RunConfig& config, const GpuFacts& gpu)
    : gpu_(gpu), shares_(bucket_costs(config, 1.0)) {
  double in_blocks = 0.0;
  for (const BucketCost& bucket : shares_) {
    parameters_ += bucket.gradient_bytes / kGradientBytes;
    in_blocks += bucket.forward_s > 0.0 ? bucket.gradient_bytes / kGradientBytes : 0.0;
  }
  block_share_ = in_blocks / parameters_;
  const std::unique_ptr<models::Model> model = models::make_model(config.model);
  divisible_share_ = parallel::divisible(*model).share;
  const auto units = static_cast<double>(models::shape_of(config.model).blocks);
  blocks_a_unit_ = std::max(1.0, static_cast<double>(std::ssize(model->block_costs())) / units);
  if (config.finetune.freezes()) {
    prepare_finetuning(config, *model);
    double trained = 0.0;
    for (const auto& [path, parameter] : model->named_parameters()) {
      trained += parameter->frozen ? 0.0 : static_cast<double>(parameter->numel());
    }
    trained_share_ = trained / parameters_;
    forward_share_ = is_fast(config) && !trains_modulation(*model) ? modulation_share(*model) : 0.0;
  }
  if (config.optim.rule == kernels::UpdateRule::kMuon) {
    matrix_macs_ = optim::orthogonalise_macs(model->named_parameters());
  }
}

double StepEstimate::samples_per_s(const RunConfig& config, int64_t ranks) const {
  const bool is_half = config.precision != Precision::kFp32;
  const double best = is_half ? gpu_.half_flops : gpu_.fp32_flops;
  if (best == 0.0) {
    return 0.0;
  }
  const parallel::MeshShape mesh = parallel::resolved(config.parallel.mesh(), ranks);
  // What a rank has of the model, where ranks divide it.
  const double of_linears =
      1.0 - divisible_share_ + divisible_share_ / static_cast<double>(mesh.tensor);
  const auto stages = static_cast<double>(mesh.pipeline);
  const double part = of_linears * (1.0 - block_share_ + block_share_ / stages);
  const double parameters = parameters_ * part;
  const double trained = parameters * trained_share_;
  const int64_t data_ranks = mesh.replicate * mesh.shard;
  const int64_t micro_batch = config.micro_batch(data_ranks);
  const auto own_samples = static_cast<double>(micro_batch) / static_cast<double>(mesh.sequence);
  const models::ModelShape shape = models::shape_of(config.model);
  const double rows = own_samples * static_cast<double>(shape.frames * shape.tokens_a_frame());
  const auto width = static_cast<double>(shape.width);
  const double reached = best * (is_fast(config) ? kFastShare : kPlainShare) /
                         std::hypot(1.0, kElementsForAPass / (rows * width)) * width /
                         (width + kWidthForHalf);
  const double fp8_share = config.train.fp8 ? models::fp8_share(config.model) : 0.0;
  const double fp8_gain = config.finetune.lora.any() ? kFrozenFp8Gain : kFp8Gain;
  // A multiply-accumulate is two operations. Backward has as many as forward for gradients of
  // inputs, more for attention, and again as many for those of weights, of which low-rank updates
  // have next to none.
  const double parts = config.finetune.lora.any() ? 2.5 : 3.0;
  const double forward_s = 2.0 * of_linears / stages * models::forward_macs(config.model) *
                           own_samples / reached * (1.0 - fp8_share + fp8_share / fp8_gain);
  const int64_t passes = config.train.global_batch / data_ranks / micro_batch;
  // The first and the last micro-batches of a pipeline make ranks wait (parallel/pipeline.h); a
  // third as long where the gradients of weights are computed meanwhile. What travels is hidden.
  const bool is_late = config.parallel.pp_schedule == parallel::PipelineSchedule::kZeroBubble;
  const double waits =
      (stages - 1.0) / static_cast<double>(passes * config.parallel.pp_chunks * (is_late ? 3 : 1));
  const double micro_step_s =
      (1.0 + waits) * forward_s * (parts + 3.0 * (recompute_factor(config) - 1.0));
  // The gradient read and zeroed, weight, moments and averages read and written, fp32 unless the
  // recipe says otherwise; and the copy for forward. What lies in the host's memory comes and goes
  // over the link, both ways at once, while the next forward goes on.
  const bool coded = config.optim.moments == kernels::MomentFormat::k8Bit;
  const double num_moments = (kernels::has_second_moment(config.optim.rule) ? 1.0 : 0.0) +
                             (optim::keeps_first_moments(config.optim.rule) ? 1.0 : 0.0);
  const double moments = num_moments * (coded ? 1.0 : 4.0);
  const double direction_bytes = direction_bytes_of(config.optim.rule);
  const bool has_masters = config.optim.masters == kernels::MasterFormat::kF32;
  // Schedule-Free's z is as much as a first moment, and its mean one average more.
  const bool has_mean = config.optim.rule == kernels::UpdateRule::kScheduleFree;
  const double averages =
      4.0 * (static_cast<double>(config.ema_decays.size()) + (has_mean ? 2.0 : 0.0));
  const double update_bytes =
      8.0 + direction_bytes + 2.0 * (moments + averages) + (has_masters ? 8.0 + 2.0 : 4.0);
  const double offload = gpu_.host_bytes_per_s > 0.0 ? config.optim.offload : 0.0;
  const int64_t same_part = ranks / (mesh.tensor * mesh.pipeline);
  const double owned =
      trained / static_cast<double>(zero_stage(config.plugin, config.parallel) > 0 ? same_part : 1);
  // Of weights that are there, too, the norm and the update read the gradients, and the update
  // writes the copy for forward.
  const double far_weights = gpu_.host_bytes_per_s > 0.0 ? config.optim.offload_weights : 0.0;
  const bool in_backward = config.optim.in_backward;
  const double far_bytes = owned * (offload * (moments + averages + (has_masters ? 4.0 : 0.0)) +
                                    far_weights * (in_backward ? 2.0 : 4.0 + 4.0));
  const double matrices_s =
      2.0 * matrix_macs_ / (kPlainShare * std::max(gpu_.half_flops, gpu_.fp32_flops));
  const double transfer_s = far_bytes / std::max(gpu_.host_bytes_per_s, 1.0);
  // Frozen weights come while others are used, once for forward and, but for modulation that nobody
  // trains, once for backward.
  const std::optional<kernels::WeightFormat> format =
      inference::format_of(config.finetune.frozen_weights);
  constexpr int64_t kMany = 1 << 20;
  const double weight_bytes =
      format ? static_cast<double>(kernels::code_bytes(*format, kMany)) / kMany
             : static_cast<double>(c10::elementSize(inference::compute_type(config.precision)));
  const double link = std::max(gpu_.host_bytes_per_s, 1.0);
  const double frozen = config.finetune.offload;
  const auto fetch_s = [&](double share) {
    return gpu_.host_bytes_per_s > 0.0
               ? (parameters * share + owned * far_weights) * weight_bytes / link
               : 0.0;
  };
  const double backward_fetch_s = fetch_s(std::max(0.0, frozen - forward_share_));
  const bool stays = has_host_products(config, data_ranks);
  const double forward_fetch_s = stays ? backward_fetch_s : fetch_s(frozen);
  const double product_bytes =
      stays ? parameters * std::min(frozen, forward_share_) * weight_bytes : 0.0;
  // Activations go in forward, while weights come, the link's other way; in backward both come, one
  // way, and gradients go. Each hides behind what its direction computes.
  const double activations_s = gpu_.host_bytes_per_s > 0.0
                                   ? blocks_a_unit_ / stages * offloaded_bytes(config, rows) / link
                                   : 0.0;
  // Updates in backward share the link with activations, both ways: inputs of blocks that the link
  // alone would move in 10 ms each way took 26 of DiT-XL/2's step on an H100.
  constexpr double kShared = 2.5;
  const double hiding_s = in_backward ? micro_step_s - forward_s : forward_s;
  const double shared_s = in_backward && transfer_s > 0.0 ? kShared * activations_s : 0.0;
  const double far_s =
      std::max(kStatesNotHidden * transfer_s, transfer_s + shared_s - (ranks > 1 ? 0.0 : hiding_s));
  const double sent_s = in_backward ? 0.0 : owned * far_weights * 4.0 / link;
  // Copies of the two directions slow each other.
  constexpr double kOfOther = 0.25;
  const double forward_link_s = std::max(forward_fetch_s, activations_s) +
                                kOfOther * std::min(forward_fetch_s, activations_s);
  const double backward_link_s = std::max(backward_fetch_s + activations_s, sent_s);
  const double host_s = product_bytes / kHostBytesPerS;
  const double wait_s =
      std::max(kNotHidden * (forward_fetch_s + backward_fetch_s + 2.0 * activations_s),
               std::max({0.0, forward_link_s / kHidden - forward_s, host_s - forward_s}) +
                   std::max(0.0, backward_link_s / kHidden - (micro_step_s - forward_s)));
  StepCosts costs{.buckets = shares_,
                  .accumulation = passes,
                  .update_s = far_s + matrices_s + static_cast<double>(passes) * wait_s +
                              update_bytes * trained / (kBandwidthShare * gpu_.bytes_per_s)};
  for (BucketCost& bucket : costs.buckets) {
    bucket.forward_s *= micro_step_s;
    bucket.backward_s *= micro_step_s;
    bucket.gradient_bytes *= config.parallel.reduce_type == Precision::kFp32 ? part : 0.5 * part;
    bucket.gradient_bytes *= trained_share_;
    bucket.weight_bytes *= part;
  }
  double step_s = costs.seconds();
  if (ranks > 1) {
    constexpr int64_t kGpusOfAHost = 8;
    constexpr double kLatency = 20e-6;
    constexpr double kAcross = 50e9;
    const int64_t a_host =
        std::max<int64_t>(std::gcd(ranks / mesh.pipeline, kGpusOfAHost) / mesh.tensor, 1);
    const Cluster cluster{.ranks_per_node = a_host,
                          .nodes = same_part / a_host,
                          .inside = {kLatency, gpu_.link_bytes_per_s},
                          .across = {kLatency, kAcross}};
    step_s = predict_step(costs, cluster,
                          static_cast<ZeroStage>(zero_stage(config.plugin, config.parallel)))
                 .step_s;
    if (mesh.sequence > 1) {
      // Ulysses (Jacobs et al. 2023): q, k, v and the output of each block change their division,
      // forward and backward.
      const double bytes = 8.0 * static_cast<double>(shape.blocks) * rows * width * 2.0;
      step_s += static_cast<double>(costs.accumulation) * bytes / gpu_.link_bytes_per_s;
    }
    if (mesh.tensor > 1) {
      // Two all-reduces of the residual stream a block forward, half of each beside products, and
      // two backward, beside the gradients of weights that are trained: by a ring.
      const double waits = 1.0 + 2.0 * (1.0 - trained_share_);
      const auto others = static_cast<double>(mesh.tensor - 1);
      const double bytes = waits * 2.0 * others / static_cast<double>(mesh.tensor) *
                           static_cast<double>(shape.blocks) * rows * width * 2.0;
      step_s += static_cast<double>(costs.accumulation) * bytes / gpu_.link_bytes_per_s;
    }
  }
  return static_cast<double>(config.train.global_batch) / step_s;
}

}  // namespace kinora::train
