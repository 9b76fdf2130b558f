#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kinora/ops/kept_result.h"

/// Step caches: what the blocks of a transformer made at one step of a drawing stands for what they
/// would make at a later one, since neighbouring steps are alike. Of patches it is keys and values
/// alone.
namespace kinora::diffusion {

struct StepCacheConfig {
  enum class Kind : uint8_t {
    kNone,
    kFirstBlock,  ///< of all blocks but the first, whose residual says when (ParaAttention)
    kTea,         ///< of all blocks; what the first one reads says when (Liu et al. 2024, TeaCache)
    kPab,         ///< of branches; the noise level says when (Zhao et al. 2024, PAB)
  };

  Kind kind = Kind::kNone;
  /// kFirstBlock: by how much of it the first block's residual may differ from what stands for it,
  /// as `order` says, while the other blocks are not computed. kTea: sum of the changes of what it
  /// reads, from which on they are. 0: nothing is left out.
  double threshold = 0.1;
  /// kFirstBlock and kTea: what was computed goes on as a polynomial of this degree in the noise
  /// level, through as many evaluations and one (Liu et al. 2025, "From reusing to forecasting:
  /// TaylorSeers"), no farther than these lie apart; there it stays. 0: it stays as it was last.
  int64_t order = 1;
  /// kTea: a polynomial that makes of a change what is summed, highest power first; empty: x.
  std::vector<double> polynomial = {};
  /// kPab: how far the noise level may be from where a result was computed, by ops::BranchKind; 0:
  /// never kept. 2, 4 and 6 steps of 30, as published for Open-Sora 1.2.
  std::vector<double> ranges = {0.06, 0.12, 0.18, 0.0};
  /// Noise levels [low, high] within which anything is left out; empty: all, of kPab those
  /// published for Open-Sora 1.2.
  std::vector<double> interval = {};
  double most_gib = 8.0;  ///< of what a batch keeps
  /// Of kNone: into so many patches the tokens of a sample are cut, which are computed one behind
  /// the other. Each attends to the keys and values that the others had last, so those behind it of
  /// the evaluation before (Fang et al. 2024, "PipeFusion"). 1: all tokens are computed together.
  int64_t patches = 1;
  int64_t patch_warmup = 1;  ///< of a run's evaluations so many compute all tokens together

  [[nodiscard]] bool has_patches() const { return patches > 1; }
  /// Whether anything can be left out, or be of an earlier evaluation.
  [[nodiscard]] bool any() const { return kind == Kind::kPab || measures() || has_patches(); }
  /// The key that asks for it.
  [[nodiscard]] const char* key() const {
    return has_patches() ? "sample.patches" : "sample.cache";
  }
  /// Whether what an evaluation computes depends on values on the device.
  [[nodiscard]] bool measures() const {
    return (kind == Kind::kFirstBlock || kind == Kind::kTea) && threshold > 0.0;
  }
};

/// What kFirstBlock and kTea decided in the last drawing that read its own numbers, for one that is
/// recorded as a CUDA graph: that one decides alike.
class StepCacheDecisions {
 public:
  /// Of an evaluation: what tells it from others of other conditions or levels.
  using Key = std::pair<int64_t, double>;  // StepCache::Moment's rows_kind and level

  /// Of the evaluation that is number `count` of its key in a drawing.
  void add(const Key& key, size_t count, bool reuses);
  /// False where nothing is known.
  [[nodiscard]] bool find(const Key& key, size_t count) const;

 private:
  std::map<Key, std::vector<bool>> all_;
};

/// What was left out so far, in all drawings of a model.
struct StepCacheUse {
  struct Count {
    int64_t all = 0;
    int64_t left_out = 0;
  };
  Count blocks;
  std::array<Count, ops::kBranchKinds> branches;
  int64_t evaluations = 0;  ///< of runs with patches
  int64_t in_patches = 0;   ///< of them
  int64_t most_bytes = 0;   ///< that a batch kept at once
  StepCacheDecisions decisions = {};

  /// "left out 400 of 1000 blocks (40 %), ..., and kept up to 12 MiB", "computed 24 of 25
  /// evaluations in patches, ..."; empty: nothing was asked.
  [[nodiscard]] std::string describe() const;
};

/// What one batch keeps from evaluation to evaluation, and what it decides. Where guidance asks for
/// more or fewer rows in some evaluations, each number of rows has a state of its own. Decisions
/// are of the whole batch: its sample that changes most decides.
class StepCache {
 public:
  /// An evaluation of the denoiser.
  struct Moment {
    int64_t rows_kind = 0;  ///< evaluations with the same one are of the same conditions
    double level = 0.0;     ///< noise level: 0 clean, 1 pure noise
    bool is_last = false;   ///< of the run
  };
  /// Changes a number, or adds up some, among ranks; empty: there is one.
  using Combine = std::function<void(const at::Tensor& numbers)>;

  /// `use` is borrowed, and counts.
  StepCache(const StepCacheConfig& config, StepCacheUse& use) : config_(config), use_(use) {}

  /// The next pass is that of `moment`.
  void begin(const Moment& moment);
  /// Within a pass: what was kept is another model's, and stands for nothing from here on.
  void forget();
  /// The pass is over. kMemory where more than most_gib is kept.
  void end();

  /// The ranks that evaluate other rows of the batch decide as this one does: `greatest` makes a
  /// number the greatest of theirs.
  void decide_together(Combine greatest) { greatest_ = std::move(greatest); }

  // kFirstBlock and kTea.
  [[nodiscard]] bool leaves_out_blocks() const {
    return config_.kind != StepCacheConfig::Kind::kPab && !config_.has_patches();
  }
  [[nodiscard]] bool computes_first_block() const {
    return config_.kind == StepCacheConfig::Kind::kFirstBlock;
  }
  /// Whether what blocks added before stands for them now. watched [B, ...]: what the first block
  /// adds, or reads. add_up: sums numbers over the ranks that each have a part of every sample.
  /// While a CUDA graph is recorded: as in the drawing before. In a dry run: false.
  [[nodiscard]] bool reuses(const at::Tensor& watched, const Combine& add_up);
  /// What stands for what they would add.
  [[nodiscard]] at::Tensor residual() const;
  /// What they added; behind reuses(), where that was false.
  void keep(at::Tensor residual);
  /// Of `all` blocks so many were not computed.
  void count_blocks(int64_t all, int64_t left_out);

  // kPab.
  /// Where the next branch of the pass, in order of use, has its result. Null: it is not kept.
  [[nodiscard]] ops::KeptResult* next(ops::BranchKind kind);

  // Patches.
  /// Those of an evaluation: 1 while all tokens are computed together.
  [[nodiscard]] int64_t patches() const {
    return number_ < config_.patch_warmup ? 1 : config_.patches;
  }
  /// Whether an evaluation leaves keys and values to the next.
  [[nodiscard]] bool keeps_tokens() const {
    return config_.has_patches() && number_ + 1 >= config_.patch_warmup;
  }
  /// Passes are of this row of the batch alone until the next begin().
  void take_row(int64_t row) { state_ = &states_[{moment_.rows_kind, row}]; }
  /// Those of the attention that is used as number `use` in a pass; undefined until they are
  /// assigned.
  [[nodiscard]] at::Tensor& keys_and_values(size_t use);

 private:
  /// An evaluation that computed all blocks.
  struct Computed {
    double level;           // noise level
    at::Tensor watched{};   // kFirstBlock
    at::Tensor residual{};  // undefined: not yet
  };
  struct State {
    std::deque<Computed> computed;                                     // the newest is the last
    at::Tensor watched;                                                // kTea: at the last step
    double sum = 0.0;                                                  // of changes
    std::array<std::optional<double>, ops::kBranchKinds> computed_at;  // noise level
    std::deque<ops::KeptResult> results;                               // their addresses stay
    std::deque<at::Tensor> keys_and_values;
  };

  /// Which branches of the pass take what was kept. kPab.
  void choose_branches();
  [[nodiscard]] bool is_in_interval() const;
  /// Whether `watched` changed so little.
  [[nodiscard]] bool is_alike(const at::Tensor& watched, const Combine& add_up);
  /// The relative change of `watched` from `before`.
  [[nodiscard]] double change(const at::Tensor& watched, const at::Tensor& before,
                              const Combine& add_up) const;
  /// A member of the evaluations that computed all blocks, as it goes on to this noise level.
  [[nodiscard]] at::Tensor forecast(at::Tensor Computed::*member) const;
  [[nodiscard]] int64_t bytes() const;

  const StepCacheConfig& config_;
  StepCacheUse& use_;
  Combine greatest_;
  std::map<std::pair<int64_t, int64_t>, State> states_;  // by Moment::rows_kind and take_row()
  std::map<int64_t, int64_t> evaluations_;               // begun, by Moment::rows_kind
  std::map<StepCacheDecisions::Key, size_t> decided_;    // how often
  State* state_ = nullptr;                               // of the pass
  Moment moment_;
  int64_t number_ = 0;                            // of the evaluation, among those with its rows
  std::array<bool, ops::kBranchKinds> reuses_{};  // in the pass
  size_t next_ = 0;
};

}  // namespace kinora::diffusion
