// Layouts of four ranks that cover every pair of choices, each against one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/comm/ranks.h"
#include "tests/train/tiny_families.h"

namespace kinora::train {
namespace layouts_test {

constexpr double kRounding = 2e-5;  // of sums in another order
constexpr int64_t kRanks = 4;

/// The choices, by their places in these lists.
const std::vector<std::string> kFamilies = {"dit", "pixart", "stdit3", "latte", "flux"};
constexpr std::array<int64_t, 3> kTensor = {1, 2, 4};
constexpr std::array<int64_t, 3> kSequence = {1, 2, 4};
constexpr std::array<int64_t, 4> kStages = {0, 1, 2, 3};
const std::vector<std::string> kRecompute = {"none", "block:2"};
constexpr std::array<int64_t, 2> kReplicate = {1, 2};
enum Choice : uint8_t {
  kFamily,
  kT,
  kS,
  kStage,
  kRecomputed,
  kIsFast,
  kIsTuned,
  kPasses,
  kCopies,
  kNorms
};
constexpr std::array<size_t, 10> kCounts = {5, 3, 3, 4, 2, 2, 2, 2, 2, 2};
using Layout = std::array<size_t, kCounts.size()>;

bool is_possible(const Layout& layout) {
  const int64_t others = kTensor[layout[kT]] * kSequence[layout[kS]] * kReplicate[layout[kCopies]];
  const bool has_norms = layout[kIsFast] == 1 && kTensor[layout[kT]] > 1;
  return kRanks % others == 0 && (layout[kNorms] == 0 || has_norms);
}

/// Of all that are possible as few as a greedy search finds that have every pair of choices that
/// any of them has.
std::vector<Layout> pairwise_cover() {
  std::vector<Layout> all = {Layout{}};
  for (size_t choice = 0; choice < kCounts.size(); ++choice) {
    std::vector<Layout> next;
    for (Layout layout : all) {
      for (layout[choice] = 0; layout[choice] < kCounts[choice]; ++layout[choice]) {
        next.push_back(layout);
      }
    }
    all = std::move(next);
  }
  std::erase_if(all, [](const Layout& layout) { return !is_possible(layout); });
  // Values of all choices have numbers one after the other, and so have pairs of them.
  constexpr size_t kValues = std::accumulate(kCounts.begin(), kCounts.end(), size_t{0});
  std::vector<std::vector<size_t>> pairs;
  std::vector<bool> is_open(kValues * kValues);
  for (const Layout& layout : all) {
    std::vector<size_t>& own = pairs.emplace_back();
    size_t before_i = 0;
    for (size_t i = 0; i < layout.size(); before_i += kCounts[i++]) {
      size_t before_j = 0;
      for (size_t j = 0; j < i; before_j += kCounts[j++]) {
        own.push_back((before_i + layout[i]) * kValues + before_j + layout[j]);
        is_open[own.back()] = true;
      }
    }
  }
  std::vector<Layout> cover;
  while (true) {
    size_t best = 0;
    int64_t most = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      const int64_t gain =
          std::ranges::count_if(pairs[i], [&](size_t pair) { return is_open[pair]; });
      if (gain > most) {
        best = i;
        most = gain;
      }
    }
    if (most == 0) {
      return cover;
    }
    for (const size_t pair : pairs[best]) {
      is_open[pair] = false;
    }
    cover.push_back(all[best]);
  }
}

/// Of one rank, but for what is divided.
RunConfig config_of(const Layout& layout) {
  RunConfig config = tiny_of(kFamilies[layout[kFamily]]);
  config.path = layout[kIsFast] == 1 ? inference::Path::kFast : inference::Path::kPlain;
  config.train.recompute = kRecompute[layout[kRecomputed]];
  if (layout[kIsTuned] == 1) {
    config.finetune.lora.targets = {"*blocks.*"};
    config.finetune.lora.rank = 3;
  }
  return config;
}

std::string name_of(const Layout& layout) {
  return kFamilies[layout[kFamily]] + ", tensor " + std::to_string(kTensor[layout[kT]]) +
         ", sequence " + std::to_string(kSequence[layout[kS]]) + ", stage " +
         std::to_string(kStages[layout[kStage]]) + ", replicate " +
         std::to_string(kReplicate[layout[kCopies]]) + ", recompute " +
         kRecompute[layout[kRecomputed]] + (layout[kIsFast] == 1 ? ", fast" : ", plain") +
         (layout[kIsTuned] == 1 ? ", LoRA" : "") + (layout[kPasses] == 1 ? ", accumulated" : "") +
         (layout[kNorms] == 1 ? ", norms divided" : "");
}

TEST(LayoutsTest, EveryPairOfChoicesEqualsOneRank) {
  const std::vector<Layout> cover = pairwise_cover();
  EXPECT_GE(cover.size(), 20U);
  comm::run_on_ranks(kRanks,
                     [&](const comm::Group& world) {
                       std::map<Layout, Outcome> of_one;
                       for (const Layout& layout : cover) {
                         SCOPED_TRACE(name_of(layout));
                         RunConfig config = config_of(layout);
                         Layout alone = layout;
                         for (const Choice divided : {kT, kS, kStage, kPasses, kCopies, kNorms}) {
                           alone[divided] = 0;
                         }
                         if (!of_one.contains(alone)) {
                           of_one.emplace(alone, outcome_of_one(config, world));
                         }
                         config.parallel.tp_size = kTensor[layout[kT]];
                         config.parallel.sp_size = kSequence[layout[kS]];
                         config.parallel.sequence_scheme = parallel::SequenceScheme::kUlysses;
                         config.parallel.zero_stage = kStages[layout[kStage]];
                         config.parallel.replicate = kReplicate[layout[kCopies]];
                         config.parallel.divided_norms = layout[kNorms] == 1;
                         const int64_t together =
                             layout[kNorms] == 1 ? config.parallel.tp_size : 1;  // evenly
                         config.train.micro_batch = layout[kPasses] == 1 ? together : 0;
                         expect_close(outcome_of(config, world), of_one.at(alone), kRounding);
                       }
                     },
                     {.time_limit = std::chrono::seconds(300)});
  std::cout << cover.size() << " layouts\n";
}

}  // namespace layouts_test
}  // namespace kinora::train
