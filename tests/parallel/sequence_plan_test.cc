// The planner against published volumes, and groups of every shape.
#include "kinora/parallel/sequence_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <tuple>

#include "kinora/parallel/sequence.h"
#include "tests/error_of.h"

namespace kinora::parallel {
namespace sequence_plan_test {

using nn::Span;
using testing::HasSubstr;

/// STDiT3-XL at 16 latent frames of 32 x 32 patches; links of one B/s, so that seconds are bytes.
SequenceFacts facts_of(int64_t ranks) {
  const comm::Link link = {0.0, 1.0};
  return {.ranks = ranks,
          .ranks_inside = ranks,
          .inside = link,
          .across = link,
          .heads = 16,
          .hidden = 1152,
          .batch = 1,
          .num_frames = 16,
          .tokens_a_frame = 1024,
          .spans = {Span::kFrame, Span::kTime}};
}

/// Bytes of [B, T, S, C].
double whole(const SequenceFacts& facts) {
  return static_cast<double>(facts.batch * facts.num_frames * facts.tokens_a_frame * facts.hidden *
                             facts.element_bytes);
}

SequencePlan all_of(SequenceScheme scheme, int64_t ranks) {
  return scheme == SequenceScheme::kRing ? SequencePlan{scheme, 1, ranks, 1, ""}
                                         : SequencePlan{scheme, ranks, 1, 1, ""};
}

// Ulysses (Jacobs et al. 2023) 4 M / P; FastSeq (P + 1) / 4 of it; ring 2 M / P a step; DSP (Zhao
// et al. 2024) a quarter of Ulysses on both attentions.
TEST(SequencePlanTest, VolumesAreThePublishedOnes) {
  for (const int64_t ranks : {2, 4, 8}) {
    const SequenceFacts facts = facts_of(ranks);
    const double p = static_cast<double>(ranks);
    const double m = whole(facts);
    const auto sent = [&](SequenceScheme scheme) {
      return cost_of(all_of(scheme, ranks), facts).sent;
    };
    const double ulysses = 4 * (m / p) * (p - 1) / p;
    EXPECT_DOUBLE_EQ(sent(SequenceScheme::kUlysses), ulysses);
    EXPECT_DOUBLE_EQ(sent(SequenceScheme::kFastSeq), ulysses * (p + 1) / 4);
    EXPECT_DOUBLE_EQ(sent(SequenceScheme::kDsp), ulysses / 2);
    EXPECT_DOUBLE_EQ(sent(SequenceScheme::kRing), 2 * (m / p) * (p - 1));
    // Nothing is hidden here: backward takes what it sends.
    const auto seconds = [&](SequenceScheme scheme) {
      return cost_of(all_of(scheme, ranks), facts).seconds;
    };
    EXPECT_DOUBLE_EQ(seconds(SequenceScheme::kUlysses), 2 * ulysses);
    EXPECT_DOUBLE_EQ(seconds(SequenceScheme::kRing), 3 * sent(SequenceScheme::kRing));
  }
}

TEST(SequencePlanTest, UpdatesLeaveOutWhatDividesLinears) {
  SequenceFacts facts = facts_of(4);
  facts.has_updates = true;
  EXPECT_THAT(cost_of(all_of(SequenceScheme::kFastSeq, 4), facts).refused,
              HasSubstr("low-rank updates"));
  for (const SequenceScheme scheme :
       {SequenceScheme::kUlysses, SequenceScheme::kDsp, SequenceScheme::kRing}) {
    EXPECT_EQ(cost_of(all_of(scheme, 4), facts).refused, "");
  }
}

// Open-Sora 1.3: the second attention of a pair of blocks is in windows, which by every scheme
// travels as Ulysses does.
TEST(SequencePlanTest, WindowsDivideHeadsByAnyScheme) {
  SequenceFacts facts = facts_of(4);
  const SequenceFacts in_time = facts;
  facts.spans = {Span::kFrame};
  facts.windows = 1;
  const double ulysses = cost_of(all_of(SequenceScheme::kUlysses, 4), in_time).sent;
  for (const SequenceScheme scheme : {SequenceScheme::kUlysses, SequenceScheme::kFastSeq,
                                      SequenceScheme::kDsp, SequenceScheme::kRing}) {
    const SequencePlan plan = all_of(scheme, 4);
    EXPECT_DOUBLE_EQ(cost_of(plan, facts).sent, cost_of(plan, in_time).sent + ulysses);
    EXPECT_DOUBLE_EQ(cost_of(plan, facts).seconds, cost_of(plan, in_time).seconds + 2 * ulysses);
  }
  facts.heads = 26;
  EXPECT_THAT(cost_of(all_of(SequenceScheme::kRing, 4), facts).refused,
              HasSubstr("26 heads do not divide"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return plan_sequence(facts); }),
              HasSubstr("attention in windows"));
}

TEST(SequencePlanTest, PicksWhatTheLinksFavour) {
  SequenceFacts facts = facts_of(4);
  EXPECT_EQ(plan_sequence(facts).scheme, SequenceScheme::kDsp);
  facts.spans = {Span::kClip};
  EXPECT_EQ(plan_sequence(facts).scheme, SequenceScheme::kUlysses);
  facts.ranks = facts.ranks_inside = 2;  // 3 / 4 of Ulysses forward, as much backward
  facts.flops_per_s = 1e3;               // products hide the gather
  EXPECT_EQ(plan_sequence(facts).scheme, SequenceScheme::kRing) << "attention hides all of it";
  facts.scheme = SequenceScheme::kFastSeq;
  EXPECT_LT(cost_of(plan_sequence(facts), facts).seconds,
            cost_of(all_of(SequenceScheme::kUlysses, 2), facts).seconds);
}

TEST(SequencePlanTest, HeadsThatDoNotDivideLeaveRingsOrUsp) {
  SequenceFacts facts = facts_of(4);
  facts.spans = {Span::kClip};
  facts.heads = 26;  // STDiT3-3B
  const SequencePlan plan = plan_sequence(facts);
  EXPECT_EQ(plan.scheme, SequenceScheme::kUsp);
  EXPECT_EQ(plan.all_to_all, 2);
  EXPECT_EQ(plan.ranks(), 4);
  EXPECT_THAT(plan.reason, HasSubstr("ulysses: 26 heads do not divide"));
  EXPECT_THAT(plan.reason, HasSubstr("dsp: attention over whole clips"));
  facts.heads = 3;
  EXPECT_EQ(plan_sequence(facts).scheme, SequenceScheme::kRing);
}

TEST(SequencePlanTest, SlowLinksAcrossAreUsedLittle) {
  SequenceFacts facts = facts_of(8);
  facts.ranks_inside = 4;
  facts.spans = {Span::kClip};
  facts.across = {0.0, 0.01};
  facts.heads = 12;  // not by 8
  const SequencePlan plan = plan_sequence(facts);
  EXPECT_EQ(plan.ring_across, 2);
  EXPECT_EQ(plan.all_to_all * plan.ring_inside, 4);
  facts.scheme = SequenceScheme::kRing;
  EXPECT_LT(cost_of(plan, facts).seconds, cost_of(plan_sequence(facts), facts).seconds);
}

TEST(SequencePlanTest, FramesComputedTwiceAndMemoryCount) {
  SequenceFacts facts = facts_of(4);
  facts.num_frames = 1;  // one image: three ranks would idle
  facts.flops_per_s = 1.0;
  EXPECT_NE(plan_sequence(facts).scheme, SequenceScheme::kDsp);
  facts = facts_of(4);
  facts.spans = {Span::kClip};
  const double part = whole(facts) / 4;
  facts.free_bytes = 5 * part;
  EXPECT_EQ(plan_sequence(facts).scheme, SequenceScheme::kFastSeq);
  facts.free_bytes = part;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return plan_sequence(facts); }),
              HasSubstr("ulysses: not enough memory for what travels"));
}

TEST(SequencePlanTest, WhatWasAskedForIsDoneOrRefused) {
  for (int64_t number = 1; number < static_cast<int64_t>(kNumSequenceSchemes); ++number) {
    SequenceFacts facts = facts_of(4);
    facts.ranks_inside = 2;
    facts.scheme = static_cast<SequenceScheme>(number);
    EXPECT_EQ(plan_sequence(facts).scheme, facts.scheme);
    EXPECT_EQ(plan_sequence(facts).ranks(), 4);
    EXPECT_THAT(plan_sequence(facts).reason, HasSubstr(std::string(to_string(facts.scheme))));
  }
  SequenceFacts facts = facts_of(4);
  facts.scheme = SequenceScheme::kNdRing;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return plan_sequence(facts); }),
              HasSubstr("nd_ring: needs several ranks of each of several hosts"));
  facts.ranks_inside = 3;
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return plan_sequence(facts); }),
              HasSubstr("must divide"));
}

/// Each rank once in each list; groups of one kind share no rank; two ranks that share two kinds of
/// groups are the same.
void check_groups(int64_t heads, int64_t inside, int64_t across) {
  SCOPED_TRACE(std::to_string(heads) + " x " + std::to_string(inside) + " x " +
               std::to_string(across));
  const SequenceGroups groups = sequence_groups({SequenceScheme::kUsp, heads, inside, across, ""});
  const int64_t ranks = heads * inside * across;
  std::set<std::tuple<size_t, size_t, size_t>> places;
  std::vector<std::array<size_t, 3>> group_of(ranks);
  const std::array<std::pair<const std::vector<std::vector<int64_t>>*, int64_t>, 3> kinds = {
      {{&groups.all_to_all, heads}, {&groups.ring_inside, inside}, {&groups.ring_across, across}}};
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    const auto& [lists, length] = kinds[kind];
    ASSERT_EQ(static_cast<int64_t>(lists->size()), ranks / length);
    std::set<int64_t> seen;
    for (size_t list = 0; list < lists->size(); ++list) {
      ASSERT_EQ(static_cast<int64_t>((*lists)[list].size()), length);
      for (const int64_t rank : (*lists)[list]) {
        ASSERT_TRUE(rank >= 0 && rank < ranks && seen.insert(rank).second);
        group_of[rank][kind] = list;
      }
    }
  }
  for (int64_t a = 0; a < ranks; ++a) {
    for (int64_t b = 0; b < a; ++b) {
      const int shared = (group_of[a][0] == group_of[b][0] ? 1 : 0) +
                         (group_of[a][1] == group_of[b][1] ? 1 : 0) +
                         (group_of[a][2] == group_of[b][2] ? 1 : 0);
      ASSERT_LE(shared, 1) << a << " and " << b;
    }
  }
  // Those who exchange most, and rings inside, are neighbours: never outside of heads x inside.
  for (const auto& ring : groups.ring_inside) {
    ASSERT_EQ(ring.front() / (heads * inside), ring.back() / (heads * inside));
  }
}

TEST(SequenceGroupsTest, AreRightForEveryShapeUpTo64Ranks) {
  for (int64_t heads = 1; heads <= 64; ++heads) {
    for (int64_t inside = 1; heads * inside <= 64; ++inside) {
      for (int64_t across = 1; heads * inside * across <= 64; ++across) {
        check_groups(heads, inside, across);
      }
    }
  }
}

TEST(SequenceGroupsTest, TwoByFourIsAsOnPaper) {
  const SequenceGroups groups = sequence_groups({SequenceScheme::kNdRing, 1, 4, 2, ""});
  EXPECT_EQ(groups.ring_inside, (std::vector<std::vector<int64_t>>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(groups.ring_across,
            (std::vector<std::vector<int64_t>>{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

}  // namespace sequence_plan_test
}  // namespace kinora::parallel
