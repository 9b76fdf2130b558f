#include "kinora/train/plan/plan_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "kinora/parallel/tensor.h"
#include "kinora/train/boost/booster_options.h"
#include "kinora/train/plan/step_estimate.h"
#include "kinora/train/recompute_plan.h"

namespace kinora::train {
namespace {

/// A setting to try. Larger numbers take less memory.
struct Candidate {
  int stage = 0;
  size_t recompute = 0;  // of plan_with()
  RecomputePlan plan = {};
  int64_t blocks = 0;    // of the model
  int64_t division = 1;  // of the samples of a rank: micro-batches
  int64_t micro_batch = 1;
  int64_t sequence = 1;
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t chunks = 1;  // stages of each of its ranks
  double offload = 0.0;
  double offload_weights = 0.0;  // above 0 where all state is at the host
  bool in_backward = false;
  int64_t num_overrides = 0;
  double samples_per_s = 0.0;

  /// Of `ranks` those that take other samples.
  [[nodiscard]] int64_t data_ranks(int64_t ranks) const {
    return ranks / (sequence * tensor * pipeline);
  }

  /// Their order: by speed in steps of a hundredth, which the estimate does not tell apart, then
  /// what changes least, then what leaves the most on the GPU.
  [[nodiscard]] std::array<int64_t, 4> rank() const {
    constexpr double kStep = 0.01;
    constexpr double kParts = 100.0;
    return {-std::lround(std::log(samples_per_s) / kStep), num_overrides,
            static_cast<int64_t>(recompute),
            std::lround((at_host() +
                         static_cast<double>(plan.offloaded_blocks) / static_cast<double>(blocks)) *
                        kParts)};
  }

  [[nodiscard]] ops::Recompute level() const {
    return plan.first_blocks == blocks ? ops::Recompute::kBlock : plan.level;
  }
  /// Blocks that keep anything on the GPU.
  [[nodiscard]] int64_t near() const { return blocks - plan.offloaded_blocks; }
  /// Those of them that keep more than their input.
  [[nodiscard]] int64_t whole() const { return std::max<int64_t>(near() - plan.first_blocks, 0); }

  /// Whether this one cannot fit if `other` does not.
  [[nodiscard]] bool needs_as_much_as(const Candidate& other) const {
    return stage <= other.stage && level() <= other.level() && near() >= other.near() &&
           whole() >= other.whole() && division <= other.division && sequence <= other.sequence &&
           tensor <= other.tensor && pipeline == other.pipeline && chunks == other.chunks &&
           in_backward <= other.in_backward && at_host() <= other.at_host();
  }

  /// Of state and weights.
  [[nodiscard]] double at_host() const { return offload + offload_weights; }

  /// Whether they differ in that alone.
  [[nodiscard]] bool is_like(const Candidate& other) const {
    return stage == other.stage && plan == other.plan && division == other.division &&
           sequence == other.sequence && tensor == other.tensor && pipeline == other.pipeline &&
           chunks == other.chunks && in_backward == other.in_backward;
  }
};

/// Of the blocks, computed again whole where the others are by "mlp".
constexpr int64_t kQuarters = 4;
constexpr std::array kLevels = {ops::Recompute::kNone, ops::Recompute::kElementwise,
                                ops::Recompute::kMlp};
constexpr size_t kRecomputes = kLevels.size() + kQuarters;
constexpr size_t kElementwise = 1;  // of these
constexpr std::array<double, 21> kOffload = {0.0,  0.05, 0.1,  0.15, 0.2,  0.25, 0.3,
                                             0.35, 0.4,  0.45, 0.5,  0.55, 0.6,  0.65,
                                             0.7,  0.75, 0.8,  0.85, 0.9,  0.95, 1.0};
constexpr double kHundredth = 0.01;

/// The nearest multiple of kHundredth.
double in_hundredths(double share) {
  return std::round(share / kHundredth) * kHundredth;
}
constexpr std::array<double, 5> kOffloadWeights = {0.0, 0.25, 0.5, 0.75, 1.0};
/// Ranks of a model: those of a host, whose links are quick.
constexpr int64_t kMostTensor = 8;
constexpr int64_t kMostPipeline = 16;
/// More stages a rank make waits shorter, and memory even where blocks have unlike weights.
constexpr int64_t kMostChunks = 4;
/// After so many that do not fit those that need the least are looked at, since perhaps none does.
constexpr ptrdiff_t kManyTooLarge = 16;
constexpr std::array<const char*, 4> kPlugins = {"ddp", "zero1", "zero2", "zero3"};

/// Of what takes the most: the weights that are not trained, else the optimizer's state.
double offload_of(const RunConfig& config) {
  return config.finetune.freezes() ? config.finetune.offload : config.optim.offload;
}

/// Returns the override.
std::string set_offload(RunConfig& config, double share) {
  const bool freezes = config.finetune.freezes();
  (freezes ? config.finetune.offload : config.optim.offload) = share;
  return (freezes ? "finetune.offload=" : "optim.offload=") + human_number(share, 2);
}

int64_t quarters_of(size_t quarters, int64_t blocks) {
  return blocks * static_cast<int64_t>(quarters) / kQuarters;
}

/// Each takes less memory than the one before. activations: quarters of the blocks whose own wait
/// at the host, of those that are not computed again whole, unless all are.
RecomputePlan plan_with(size_t recompute, size_t activations, int64_t blocks) {
  RecomputePlan plan;
  if (recompute < kLevels.size()) {
    plan.level = kLevels[recompute];
  } else {
    plan.first_blocks = quarters_of(recompute - kLevels.size() + 1, blocks);
    plan.level = plan.first_blocks == blocks ? ops::Recompute::kNone : ops::Recompute::kMlp;
  }
  plan.offloaded_blocks = quarters_of(activations, others_of(plan, blocks));
  return plan;
}

class Search {
 public:
  Search(const RunConfig& config, const PlanTarget& target, const GpuFacts& gpu)
      : config_(config), target_(target), estimate_(config, speed_of(gpu)) {}

  std::vector<PlanChoice> find(size_t most) {
    add_all();
    const double as_it_is = estimate_.samples_per_s(config_, target_.ranks);
    std::vector<PlanChoice> found;
    std::vector<const Candidate*> too_large;
    for (const auto& [rank, index] : order()) {
      const Candidate& candidate = candidates_[index];
      if (found.size() == most) {
        break;
      }
      if (std::any_of(too_large.begin(), too_large.end(),
                      [&](const Candidate* other) { return candidate.needs_as_much_as(*other); })) {
        continue;
      }
      std::optional<MemoryPlan> plan = plan_of(candidate);
      if (!plan) {
        continue;
      }
      if (!plan->fits()) {
        too_large.push_back(&last_too_large(candidate));
        if (std::ssize(too_large) == kManyTooLarge && nothing_fits()) {
          break;
        }
        continue;
      }
      PlanChoice choice = refined(candidate, choice_of(candidate, *std::move(plan), as_it_is));
      if (std::ranges::find(found, choice.overrides, &PlanChoice::overrides) == found.end()) {
        found.push_back(std::move(choice));
      }
    }
    return found;
  }

  PlanChoice smallest() {
    add_all();
    const double as_it_is = estimate_.samples_per_s(config_, target_.ranks);
    std::optional<PlanChoice> least;
    for (const Candidate* candidate : smallest_candidates()) {
      std::optional<MemoryPlan> plan = plan_of(*candidate);
      if (plan && (!least || plan->needed() < least->plan.needed())) {
        least = choice_of(*candidate, *std::move(plan), as_it_is);
      }
    }
    KINORA_CHECK(least, kInternal, "[plan] no settings of the recipe can be planned");
    return *std::move(least);
  }

 private:
  /// The candidates by rank, those of one rank in the order in which they were added.
  [[nodiscard]] std::vector<std::pair<std::array<int64_t, 4>, size_t>> order() const {
    std::vector<std::pair<std::array<int64_t, 4>, size_t>> order;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      order.emplace_back(candidates_[i].rank(), i);
    }
    std::ranges::sort(order);
    return order;
  }

  [[nodiscard]] PlanChoice choice_of(const Candidate& candidate, MemoryPlan plan,
                                     double as_it_is) const {
    Settings settings = settings_of(candidate);
    return {.overrides = std::move(settings.overrides),
            .config = std::move(settings.config),
            .plan = std::move(plan),
            .samples_per_s = knows_speed_ ? candidate.samples_per_s : 0.0,
            .slowdown = as_it_is / candidate.samples_per_s};
  }

  struct Nearby {
    Candidate candidate;
    double needed;  // bytes, about
  };

  /// The fastest with counts of blocks and a share between those that are tried.
  [[nodiscard]] PlanChoice refined(const Candidate& candidate, PlanChoice choice) const {
    constexpr int kTries = 4;
    const double as_it_is = choice.slowdown * candidate.samples_per_s;
    const std::vector<Nearby> all = nearby(candidate, choice.plan.needed());
    auto room = static_cast<double>(target_.memory);
    for (int i = 0; i < kTries; ++i) {
      const auto found =
          std::ranges::find_if(all, [room](const Nearby& one) { return one.needed <= room; });
      if (found == all.end() || found->candidate.rank() >= candidate.rank()) {
        break;
      }
      std::optional<MemoryPlan> plan = plan_of(found->candidate);
      if (plan && plan->fits()) {
        return with_least_offload(found->candidate,
                                  choice_of(found->candidate, *std::move(plan), as_it_is));
      }
      const double more = plan ? static_cast<double>(plan->needed() - target_.memory) : 0.0;
      room = found->needed - std::max(more, 1.0);
    }
    return with_least_offload(candidate, std::move(choice));
  }

  /// In their order, with memory as if it were linear in both counts and the share.
  [[nodiscard]] std::vector<Nearby> nearby(const Candidate& candidate, int64_t needed) const {
    constexpr int64_t kCounts = 20;  // of all blocks
    constexpr int64_t kHundredths = 5;
    const int64_t step = std::max<int64_t>(candidate.blocks / kCounts, 1);
    const int64_t most = candidate.blocks / kQuarters / step * step;  // so that none is among them
    using Change = std::array<int64_t, 3>;                            // blocks, blocks, hundredths
    const auto changed = [&](const Change& change) -> std::optional<Candidate> {
      Candidate other = candidate;
      other.plan.first_blocks += change[0];
      other.plan.offloaded_blocks += change[1];
      other.offload =
          in_hundredths(candidate.offload + kHundredth * static_cast<double>(change[2]));
      const int64_t others = other.blocks - other.plan.first_blocks;
      const bool is_possible = other.plan.first_blocks >= 0 && others > 0 &&
                               other.plan.offloaded_blocks >= 0 &&
                               other.plan.offloaded_blocks <= others &&
                               (change[2] == 0 || other.offload > 0.0) && other.offload <= 1.0;
      return is_possible && complete(other) ? std::optional(other) : std::nullopt;
    };
    const bool is_mixed = candidate.level() == ops::Recompute::kMlp;
    const bool waits = can_offload_activations_ && candidate.recompute != kElementwise &&
                       candidate.level() != ops::Recompute::kBlock;
    Change far = {is_mixed ? most : 0, waits ? most : 0, can_share(candidate) ? kHundredths : 0};
    std::array<double, 3> slopes{};
    for (size_t axis = 0; axis < far.size(); ++axis) {
      Change change{};
      change.at(axis) = far.at(axis);
      std::optional<Candidate> other = changed(change);
      if (!other) {
        change.at(axis) = -far.at(axis);
        other = changed(change);
      }
      const std::optional<MemoryPlan> plan =
          far.at(axis) > 0 && other ? plan_of(*other) : std::nullopt;
      if (plan) {
        slopes.at(axis) =
            static_cast<double>(plan->needed() - needed) / static_cast<double>(change.at(axis));
      } else {
        far.at(axis) = 0;
      }
    }
    std::vector<Nearby> all;
    for (int64_t first = -far[0]; first <= far[0]; first += step) {
      for (int64_t offloaded = -far[1]; offloaded <= far[1]; offloaded += step) {
        for (int64_t share = -far[2]; share <= far[2]; ++share) {
          if (std::optional<Candidate> other = changed({first, offloaded, share})) {
            const double bytes =
                static_cast<double>(needed) + slopes[0] * static_cast<double>(first) +
                slopes[1] * static_cast<double>(offloaded) + slopes[2] * static_cast<double>(share);
            all.push_back({*std::move(other), bytes});
          }
        }
      }
    }
    std::ranges::stable_sort(all, {}, [](const Nearby& one) { return one.candidate.rank(); });
    return all;
  }

  /// Whether a share of it is at the host that may be another.
  [[nodiscard]] bool can_share(const Candidate& candidate) const {
    return candidate.offload != offload_of(config_) && candidate.offload_weights == 0.0;
  }

  /// The same with the least offload that fits, in hundredths, down to the share that is tried
  /// before this one.
  [[nodiscard]] PlanChoice with_least_offload(Candidate candidate, PlanChoice choice) const {
    constexpr int kStep = 5;
    const double as_it_is = choice.slowdown * candidate.samples_per_s;
    for (int less = 1; less <= kStep && can_share(candidate); ++less) {
      candidate.offload = in_hundredths(candidate.offload - kHundredth);
      if (candidate.offload <= 0.0 || !complete(candidate)) {
        break;
      }
      std::optional<MemoryPlan> plan = plan_of(candidate);
      if (!plan || !plan->fits()) {
        break;
      }
      choice = choice_of(candidate, *std::move(plan), as_it_is);
    }
    return choice;
  }

  /// Those that none needs less than.
  [[nodiscard]] std::vector<const Candidate*> smallest_candidates() const {
    const auto is_smaller = [](const Candidate& candidate, const Candidate& than) {
      return than.needs_as_much_as(candidate) && !candidate.needs_as_much_as(than);
    };
    std::vector<const Candidate*> smallest;
    for (const Candidate& candidate : candidates_) {
      if (std::ranges::none_of(
              smallest, [&](const Candidate* other) { return is_smaller(*other, candidate); })) {
        std::erase_if(smallest,
                      [&](const Candidate* other) { return is_smaller(candidate, *other); });
        smallest.push_back(&candidate);
      }
    }
    return smallest;
  }

  [[nodiscard]] bool nothing_fits() const {
    const std::vector<const Candidate*> smallest = smallest_candidates();
    return std::all_of(smallest.begin(), smallest.end(),
                       [this](const Candidate* candidate) { return is_too_large(*candidate); });
  }

  [[nodiscard]] bool is_too_large(const Candidate& candidate) const {
    const std::optional<MemoryPlan> plan = plan_of(candidate);
    return plan && !plan->fits();
  }

  /// Of `too_large` and those that have more of the state or weights at the host, and are the same
  /// but for that, the last one that does not fit.
  [[nodiscard]] const Candidate& last_too_large(const Candidate& too_large) const {
    std::vector<const Candidate*> more;
    for (const Candidate& candidate : candidates_) {
      if (candidate.at_host() > too_large.at_host() && candidate.is_like(too_large)) {
        more.push_back(&candidate);
      }
    }
    if (more.empty()) {
      return too_large;
    }
    std::ranges::sort(more, {}, &Candidate::at_host);
    if (is_too_large(*more.back())) {
      return *more.back();
    }
    const auto fitting = std::partition_point(
        more.begin(), more.end() - 1,
        [this](const Candidate* candidate) { return is_too_large(*candidate); });
    return fitting == more.begin() ? too_large : **(fitting - 1);
  }

  /// Where nothing is known of its speed any GPU gives the order.
  GpuFacts speed_of(const GpuFacts& gpu) {
    knows_speed_ = gpu.half_flops > 0.0;
    return knows_speed_ ? gpu : find_gpu("h200");
  }

  /// Nothing where the run would be refused.
  [[nodiscard]] std::optional<MemoryPlan> plan_of(const Candidate& candidate) const {
    try {
      return plan_memory(settings_of(candidate).config, target_);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kConfig) {
        throw;
      }
      return std::nullopt;
    }
  }

  void add_all() {
    const int first = target_.ranks > 1 ? 0 : zero_stage(config_.plugin, config_.parallel);
    const int last = target_.ranks > 1 ? 3 : first;
    const std::unique_ptr<models::Model> model = models::make_model(config_.model);
    const int64_t units = parallel::divisible(*model).units;
    const auto blocks = std::ssize(model->block_costs());
    can_offload_activations_ =
        target_.device == c10::DeviceType::CUDA && model->can_offload_activations();
    for (int64_t tensor = 1; tensor <= std::min(target_.ranks, kMostTensor); tensor *= 2) {
      if (tensor > 1 && (units % tensor != 0 || units == 0)) {
        continue;
      }
      for (int64_t sequence = 1; sequence * tensor <= target_.ranks; sequence *= 2) {
        if (target_.ranks % (sequence * tensor) != 0 ||
            (sequence > 1 && !config_.model.is_video())) {
          continue;
        }
        for (int64_t pipeline = 1;
             pipeline == 1 ||
             pipeline <= std::min({target_.ranks / (sequence * tensor), blocks, kMostPipeline});
             pipeline *= 2) {
          if (target_.ranks % (sequence * tensor * pipeline) != 0) {
            continue;
          }
          const bool has_chunks =
              pipeline > 1 && config_.parallel.pp_schedule == parallel::PipelineSchedule::k1F1B;
          const int64_t most_chunks =
              has_chunks
                  ? std::min(std::max(config_.parallel.pp_chunks, kMostChunks), blocks / pipeline)
                  : 1;
          for (int stage = first; stage <= (pipeline > 1 ? std::min(last, 1) : last); ++stage) {
            for (int64_t chunks = 1; chunks <= most_chunks; ++chunks) {
              add_settings({.stage = stage,
                            .sequence = sequence,
                            .tensor = tensor,
                            .pipeline = pipeline,
                            .chunks = chunks});
            }
          }
        }
      }
    }
  }

  void add_settings(Candidate candidate) {
    for (size_t recompute = 0; recompute < kRecomputes; ++recompute) {
      candidate.recompute = recompute;
      add_activations(candidate, 0);
      if (!can_offload_activations_ || recompute == kElementwise) {
        continue;  // little is between it and its neighbours in time
      }
      // A block's input alone is little: then all of them.
      for (size_t quarters = recompute + 1 < kRecomputes ? 1 : kQuarters; quarters <= kQuarters;
           ++quarters) {
        add_activations(candidate, quarters);
      }
    }
  }

  void add_activations(Candidate candidate, size_t quarters) {
    candidate.blocks = models::shape_of(config_.model).blocks;
    candidate.plan = plan_with(candidate.recompute, quarters, candidate.blocks);
    add_states(std::move(candidate));
  }

  void add_states(Candidate candidate) {
    for (const double offload : kOffload) {
      if (candidate.pipeline > 1 && offload != offload_of(config_)) {
        continue;
      }
      candidate.offload = offload;
      for (const double weights : kOffloadWeights) {
        const bool is_other = weights != config_.optim.offload_weights;
        const bool is_possible =
            offload == 1.0 && !config_.finetune.freezes() && candidate.pipeline == 1;
        if (weights > offload || (is_other && weights > 0.0 && !is_possible)) {
          continue;
        }
        candidate.offload_weights = weights;
        add_divisions(candidate);
      }
    }
  }

  void add_divisions(const Candidate& candidate) {
    const int64_t data_ranks = candidate.data_ranks(target_.ranks);
    const bool is_other = candidate.offload != offload_of(config_) ||
                          candidate.offload_weights != config_.optim.offload_weights;
    if (is_other && target_.device != c10::DeviceType::CUDA) {
      return;
    }
    if (config_.train.global_batch % data_ranks != 0) {
      return;
    }
    const int64_t own = config_.train.global_batch / data_ranks;
    if (can_update_in_backward(candidate)) {
      add(candidate, 1, own, true);
    }
    for (int64_t division = 1; division <= own && !config_.optim.in_backward; division *= 2) {
      if (own % division != 0) {
        break;
      }
      add(candidate, division, own / division, false);
    }
  }

  [[nodiscard]] bool can_update_in_backward(const Candidate& candidate) const {
    const kernels::UpdateRule rule = config_.optim.rule;
    return optim::takes_one_pass(rule) && !optim::keeps_factors(rule) &&
           config_.optim.max_grad_norm == 0.0 && config_.optim.disk.empty() &&
           config_.precision != Precision::kFp16 && candidate.tensor == 1 &&
           candidate.pipeline == 1 && !config_.image_steps.any() && !config_.prior.any();
  }

  void add(Candidate candidate, int64_t division, int64_t micro_batch, bool in_backward) {
    candidate.division = division;
    candidate.micro_batch = micro_batch;
    candidate.in_backward = in_backward;
    if (complete(candidate)) {
      candidates_.push_back(std::move(candidate));
    }
  }

  struct Settings {
    RunConfig config;
    std::vector<std::string> overrides;
  };

  [[nodiscard]] Settings settings_of(const Candidate& candidate) const {
    Settings settings{.config = config_, .overrides = {}};
    RunConfig& config = settings.config;
    const auto set = [&settings](const std::string& key, const std::string& value) {
      settings.overrides.push_back(key + "=" + value);
    };
    if (zero_stage(config_.plugin, config_.parallel) != candidate.stage) {
      config.plugin = kPlugins[static_cast<size_t>(candidate.stage)];
      config.parallel.zero_stage = -1;
      set("parallel.plugin", config.plugin);
      if (config_.parallel.zero_stage >= 0) {
        set("parallel.zero_stage", "-1");
      }
    }
    if (config_.parallel.sp_size != candidate.sequence) {
      config.parallel.sp_size = candidate.sequence;
      set("parallel.sequence", std::to_string(candidate.sequence));
    }
    if (config_.parallel.tp_size != candidate.tensor) {
      config.parallel.tp_size = candidate.tensor;
      set("parallel.tensor", std::to_string(candidate.tensor));
    }
    if (candidate.tensor == 1 && config.parallel.divided_norms) {
      config.parallel.divided_norms = false;
      set("parallel.divided_norms", "false");
    }
    if (config_.parallel.pp_size != candidate.pipeline) {
      config.parallel.pp_size = candidate.pipeline;
      set("parallel.pipeline", std::to_string(candidate.pipeline));
    }
    if (config_.parallel.pp_chunks != candidate.chunks) {
      config.parallel.pp_chunks = candidate.chunks;
      set("parallel.pipeline_chunks", std::to_string(candidate.chunks));
    }
    // Only of a pipeline.
    if (candidate.pipeline == 1 &&
        config.parallel.pp_schedule != parallel::PipelineSchedule::k1F1B) {
      config.parallel.pp_schedule = parallel::PipelineSchedule::k1F1B;
      set("parallel.pipeline_schedule", "1f1b");
    }
    const std::string recompute = recompute_text(candidate.plan, candidate.blocks);
    if (config_.train.recompute != recompute) {
      config.train.recompute = recompute;
      set("train.recompute", config.train.recompute);
    }
    if (offload_of(config_) != candidate.offload) {
      settings.overrides.push_back(set_offload(config, candidate.offload));
    }
    if (config_.optim.offload_weights != candidate.offload_weights) {
      config.optim.offload_weights = candidate.offload_weights;
      set("optim.offload_weights", human_number(candidate.offload_weights, 2));
    }
    if (config_.optim.in_backward != candidate.in_backward) {
      config.optim.in_backward = candidate.in_backward;
      set("optim.in_backward", "true");
    }
    const int64_t now = config_.train.micro_batch;
    if ((now > 0 ? now : config.micro_batch(candidate.data_ranks(target_.ranks))) !=
        candidate.micro_batch) {
      config.train.micro_batch = candidate.micro_batch;
      set("train.micro_batch", std::to_string(candidate.micro_batch));
    }
    return settings;
  }

  /// Sets what follows from the settings; false if axes do not make so many ranks.
  [[nodiscard]] bool complete(Candidate& candidate) const {
    const Settings settings = settings_of(candidate);
    candidate.num_overrides = std::ssize(settings.overrides);
    try {
      candidate.samples_per_s = estimate_.samples_per_s(settings.config, target_.ranks);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kConfig) {
        throw;
      }
      return false;
    }
    return true;
  }

  RunConfig config_;
  PlanTarget target_;
  bool knows_speed_ = false;
  bool can_offload_activations_ = false;
  StepEstimate estimate_;
  std::vector<Candidate> candidates_;
};

}  // namespace

std::vector<PlanChoice> search_plans(const RunConfig& config, const PlanTarget& target,
                                     const GpuFacts& gpu, size_t most) {
  return Search(config, target, gpu).find(most);
}

PlanChoice smallest_plan(const RunConfig& config, const PlanTarget& target, const GpuFacts& gpu) {
  return Search(config, target, gpu).smallest();
}

std::string PlanChoice::text() const {
  std::string line;
  for (const std::string& override : overrides) {
    line += (line.empty() ? "" : " ") + override;
  }
  return line.empty() ? "the recipe as it is" : line;
}

}  // namespace kinora::train
