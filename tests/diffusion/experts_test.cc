#include "kinora/diffusion/experts.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kinora/diffusion/guidance.h"

namespace kinora::diffusion {
namespace experts_test {

using Kind = StepCacheConfig::Kind;

/// Always makes `value`, or takes what was kept for it.
class CachedBlock : public Denoiser {
 public:
  CachedBlock(const StepCacheConfig& config, StepCacheUse& use, double value)
      : config_(config), use_(use), value_(value) {}

  [[nodiscard]] std::unique_ptr<StepCache> make_cache() override {
    return std::make_unique<StepCache>(config_, use_);
  }

 private:
  [[nodiscard]] at::Tensor predict(const at::Tensor& x_t, const at::Tensor& /*t*/,
                                   const Conditions& /*conditions*/, const Pass& pass) override {
    const at::Tensor made = at::full_like(x_t, value_);
    if (config_.kind == Kind::kPab) {
      ops::KeptResult& kept = *pass.cache->next(ops::BranchKind::kSpace);
      if (!kept.is_reused) {
        kept.streams[0] = made;
      }
      return kept.streams[0];
    }
    if (pass.cache->reuses(x_t, [](const at::Tensor&) {})) {
      pass.cache->count_blocks(1, 1);
      return pass.cache->residual();
    }
    pass.cache->count_blocks(1, 0);
    pass.cache->keep(made);
    return made;
  }

  const StepCacheConfig& config_;
  StepCacheUse& use_;
  double value_;
};

TEST(ExpertsTest, ACacheForgetsWhatTheOtherHasMade) {
  for (const Kind kind : {Kind::kFirstBlock, Kind::kTea, Kind::kPab}) {
    const StepCacheConfig config{
        .kind = kind, .ranges = {1.0, 1.0, 1.0, 1.0}, .interval = {0.0, 1.0}};
    StepCacheUse use;
    Experts experts(std::make_unique<CachedBlock>(config, use, 1.0),
                    std::make_unique<CachedBlock>(config, use, 2.0), 0.5);
    for (int run = 0; run < 2; ++run) {
      const auto cache = experts.make_cache();
      for (const double level : {0.9, 0.8, 0.7, 0.4, 0.3, 0.2}) {
        cache->begin({.level = level});
        const at::Tensor out = experts.forward(at::ones({2, 3}), at::full({2}, level, at::kFloat),
                                               {}, {.cache = cache.get(), .time = level});
        cache->end();
        EXPECT_TRUE(at::equal(out, at::full({2, 3}, level < 0.5 ? 2.0 : 1.0))) << level;
      }
    }
    const StepCacheUse::Count& count = kind == Kind::kPab ? use.branches[0] : use.blocks;
    EXPECT_EQ(count.all, 12);
    EXPECT_EQ(count.left_out, 8) << static_cast<int>(kind);
  }
}

/// Notes what is asked of it.
class Noted : public Denoiser {
 public:
  Noted(std::string name, std::vector<std::string>& notes)
      : name_(std::move(name)), notes_(notes) {}

  [[nodiscard]] Prepared prepare(const at::Tensor& times,
                                 const Conditions& /*conditions*/) override {
    EXPECT_EQ(times.sizes(), at::IntArrayRef({1}));
    notes_.push_back(name_ + " begins");
    return {};
  }

 private:
  [[nodiscard]] at::Tensor predict(const at::Tensor& x_t, const at::Tensor& /*t*/,
                                   const Conditions& /*conditions*/,
                                   const Pass& /*pass*/) override {
    notes_.push_back(name_);
    return x_t;
  }

  std::string name_;
  std::vector<std::string>& notes_;
};

// Wan 2.2's boundary is at 0.9, which 32 bits do not hold: a time that they round to is the
// first's.
TEST(ExpertsTest, EachIsBroughtAndItsRunBeginsWhenItGoesOn) {
  std::vector<std::string> notes;
  Experts experts(std::make_unique<Noted>("high", notes), std::make_unique<Noted>("low", notes),
                  0.9, [&](Expert expert) {
                    notes.emplace_back(expert == Expert::kLow ? "bring low" : "bring high");
                  });
  const auto predict = [&](double time) {
    (void)experts.forward(at::ones({2, 3}), at::full({2}, time, at::kFloat), {}, {.time = time});
  };
  for (int run = 0; run < 2; ++run) {
    notes.clear();
    EXPECT_FALSE(experts.prepare(at::ones({4}), {}).any());
    for (const double time : {1.0, 0.9, static_cast<double>(0.9F), 0.8, 0.1}) {
      predict(time);
    }
    EXPECT_EQ(notes, std::vector<std::string>({"bring high", "high begins", "high", "bring high",
                                               "high", "bring high", "high", "bring low",
                                               "low begins", "low", "bring low", "low"}));
  }
  notes.clear();
  (void)experts.prepare(at::ones({1}), {});
  predict(0.1);
  EXPECT_EQ(notes, std::vector<std::string>({"bring low", "low begins", "low"}))
      << "the run before ended with it";
}

// Guidance says the time of each evaluation, prepared or not.
TEST(ExpertsTest, GuidanceTellsTheTime) {
  std::vector<std::string> notes;
  Experts experts(std::make_unique<Noted>("high", notes), std::make_unique<Noted>("low", notes),
                  0.5);
  GuidedDenoiser guided(experts, {}, {});
  guided.prepare({{.t = 0.8, .level = 0.8}, {.t = 0.2, .level = 0.2}}, at::ones({2}));
  (void)guided.predict(at::ones({2, 3}), 0);
  (void)guided.predict(at::ones({2, 3}), 1);
  (void)guided.predict(at::ones({2, 3}), 0.7, 0.7);
  EXPECT_EQ(notes, std::vector<std::string>(
                       {"high begins", "high", "low begins", "low", "high begins", "high"}));
}

}  // namespace experts_test
}  // namespace kinora::diffusion
