#include "kinora/diffusion/experts.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace kinora::diffusion {
namespace experts_test {

using Kind = StepCacheConfig::Kind;

/// Always makes `value`, or takes what was kept for it.
class CachedBlock : public Denoiser {
 public:
  CachedBlock(const StepCacheConfig& config, StepCacheUse& use, double value)
      : config_(config), use_(use), value_(value) {}

  [[nodiscard]] Prepared prepare(const at::Tensor& /*times*/,
                                 const Conditions& /*conditions*/) override {
    ++use_.evaluations;
    return {};
  }
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
                                               {}, {.cache = cache.get()});
        cache->end();
        EXPECT_TRUE(at::equal(out, at::full({2, 3}, level < 0.5 ? 2.0 : 1.0))) << level;
      }
    }
    const StepCacheUse::Count& count = kind == Kind::kPab ? use.branches[0] : use.blocks;
    EXPECT_EQ(count.all, 12);
    EXPECT_EQ(count.left_out, 8) << static_cast<int>(kind);
  }
}

TEST(ExpertsTest, ARunOfBothBegins) {
  const StepCacheConfig config;
  StepCacheUse high;
  StepCacheUse low;
  Experts experts(std::make_unique<CachedBlock>(config, high, 1.0),
                  std::make_unique<CachedBlock>(config, low, 2.0), 0.5);
  EXPECT_FALSE(experts.prepare(at::ones({4}), {}).any());
  EXPECT_EQ(high.evaluations, 1);
  EXPECT_EQ(low.evaluations, 1);
}

}  // namespace experts_test
}  // namespace kinora::diffusion
