// What each scheme sends against the closed forms of its algorithm.
#include <gtest/gtest.h>

#include "kinora/comm/link_speed.h"
#include "kinora/parallel/sequence_dsp.h"
#include "kinora/parallel/sequence_fastseq.h"
#include "kinora/parallel/sequence_usp.h"
#include "tests/comm/ranks.h"
#include "tests/parallel/token_net.h"

namespace kinora::parallel {
namespace sequence_traffic_test {

using comm::Operation;

// M bytes of all tokens; a part is M / P.
constexpr TokenCase kCase = {nn::Span::kFrame, 2, 4, 16, false};
constexpr int64_t kWhole = kHidden * 2 * 4 * 16 * 4;

struct Sent {
  int64_t all_to_all_calls = 0;
  int64_t all_to_all_bytes = 0;
  int64_t exchange_calls = 0;
  int64_t exchange_bytes = 0;
};

Sent sent_on(const std::vector<comm::Group>& groups) {
  Sent sent;
  for (const comm::Group& group : groups) {
    sent.all_to_all_calls += group.traffic(Operation::kAllToAll).calls;
    sent.all_to_all_bytes += group.traffic(Operation::kAllToAll).bytes;
    sent.exchange_calls += group.traffic(Operation::kExchange).calls;
    sent.exchange_bytes += group.traffic(Operation::kExchange).bytes;
    EXPECT_EQ(group.traffic(Operation::kAllGather).calls, 0);
    EXPECT_EQ(group.traffic(Operation::kReduceScatter).calls, 0);
    EXPECT_EQ(group.traffic(Operation::kAllReduce).calls, 0);
    group.reset_traffic();
  }
  return sent;
}

void expect_sent(const Sent& sent, const Sent& expected, const char* what) {
  EXPECT_EQ(sent.all_to_all_calls, expected.all_to_all_calls) << what;
  EXPECT_EQ(sent.all_to_all_bytes, expected.all_to_all_bytes) << what;
  EXPECT_EQ(sent.exchange_calls, expected.exchange_calls) << what;
  EXPECT_EQ(sent.exchange_bytes, expected.exchange_bytes) << what;
}

/// Of attention in space; that in time must send nothing. The formula of the
/// plan's cost is compared with what was sent forward.
void check(const ShardedSequence& sequence, const std::vector<comm::Group>& groups,
           const SequencePlan& plan, const Sent& forward, const Sent& backward) {
  SCOPED_TRACE(std::string(to_string(plan.scheme)));
  const TokenNet net(/*qk_norm=*/true);
  const at::Tensor part = sequence.enter(tokens_of(kCase)).requires_grad_();
  static_cast<void>(sent_on(groups));

  at::Tensor out = sequence.self_attention(net.in_space, part, kCase.span, 16, {});
  const Sent sent = sent_on(groups);
  expect_sent(sent, forward, "forward");
  out.sum().backward();
  expect_sent(sent_on(groups), backward, "backward");

  out = sequence.self_attention(net.in_time, part, nn::Span::kTime, 16, {});
  out.sum().backward();
  expect_sent(sent_on(groups), {}, "in time");
  const SequenceFacts facts = {.ranks = plan.ranks(),
                               .heads = kHeads,
                               .hidden = kHidden,
                               .batch = kCase.batch,
                               .num_frames = kCase.num_frames,
                               .tokens_a_frame = kCase.tokens_a_frame,
                               .spans = {kCase.span, nn::Span::kTime},
                               .element_bytes = 4};
  const double all_to_all = comm::ring_bytes(Operation::kAllToAll, plan.all_to_all,
                                             static_cast<double>(sent.all_to_all_bytes));
  EXPECT_DOUBLE_EQ(cost_of(plan, facts).sent,
                   all_to_all + static_cast<double>(sent.exchange_bytes));
}

/// Of attention in windows, which all schemes have alike; `world`: all ranks of the sequence.
void check_windows(const ShardedSequence& sequence, const comm::Group& world) {
  const TokenNet net(/*qk_norm=*/true);
  const at::Tensor part = sequence.enter(tokens_of(kCase)).requires_grad_();
  static_cast<void>(sent_on({world}));
  const nn::Windows windows = {
      .rows = 4, .columns = 4, .window_frames = 2, .window_rows = 2, .window_columns = 2};
  const at::Tensor out = sequence.window_attention(net.in_space, part, windows, {});
  const Sent sent = sent_on({world});
  expect_sent(sent, {2, 4 * kWhole / world.size(), 0, 0}, "in windows");
  const SequenceFacts facts = {.ranks = world.size(),
                               .heads = kHeads,
                               .hidden = kHidden,
                               .batch = kCase.batch,
                               .num_frames = kCase.num_frames,
                               .tokens_a_frame = kCase.tokens_a_frame,
                               .windows = 1,
                               .element_bytes = 4};
  EXPECT_DOUBLE_EQ(cost_of(plan_of(SequenceScheme::kRing, world.size()), facts).sent,
                   comm::ring_bytes(Operation::kAllToAll, world.size(),
                                    static_cast<double>(sent.all_to_all_bytes)));
}

/// Of FastSeq for image and text together: what it sends of one stream, of the tokens of both.
void check_streams(const comm::Group& world) {
  const FastSeqSequence sequence(world);
  const TokenNet net(/*qk_norm=*/true);
  const std::vector<int64_t> tokens = {16, 8};
  std::vector<nn::UnmadeStream> streams;
  int64_t part = 0;  // bytes
  for (const int64_t count : tokens) {
    const int64_t own = count / world.size();
    part += 2 * own * kHidden * 4;
    streams.push_back({.x = ops::normal({2, own, kHidden}, count).requires_grad_(),
                       .qkv = net.in_space.qkv.weights(),
                       .num_heads = kHeads,
                       .ready = [](const at::Tensor& packed) { return packed; }});
  }
  static_cast<void>(sent_on({world}));
  const std::vector<at::Tensor> out =
      sequence.unmade_attention(nullptr, streams, tokens, {}, nullptr);
  const int64_t steps = world.size() - 1;
  const Sent sent = sent_on({world});
  expect_sent(sent, {2, part, 2 * steps, steps * part}, "of streams, forward");
  (out[0].sum() + out[1].sum()).backward();
  expect_sent(sent_on({world}), {2, part, 4 * steps, 2 * steps * part}, "of streams, backward");
  const SequenceFacts facts = {.scheme = SequenceScheme::kFastSeq,
                               .ranks = world.size(),
                               .heads = kHeads,
                               .hidden = kHidden,
                               .batch = 2,
                               .tokens_a_frame = tokens[0],
                               .spans = {nn::Span::kClip},
                               .text_tokens = tokens[1],
                               .element_bytes = 4};
  EXPECT_DOUBLE_EQ(cost_of(plan_of(SequenceScheme::kFastSeq, world.size()), facts).sent,
                   comm::ring_bytes(Operation::kAllToAll, world.size(),
                                    static_cast<double>(sent.all_to_all_bytes)) +
                       static_cast<double>(sent.exchange_bytes));
}

class SequenceTrafficTest : public testing::TestWithParam<int64_t> {};

TEST_P(SequenceTrafficTest, IsThatOfTheClosedForms) {
  comm::run_on_ranks(GetParam(), [](const comm::Group& world) {
    const int64_t ranks = world.size();
    const int64_t part = kWhole / ranks;
    const int64_t steps = ranks - 1;
    const auto plan = [&](SequenceScheme scheme) { return plan_of(scheme, ranks); };
    const auto groups_of = [&](const SequencePlan& shape) {
      const SequenceGroups groups = sequence_groups(shape);
      return std::vector<comm::Group>{world.split(groups.all_to_all),
                                      world.split(groups.ring_inside),
                                      world.split(groups.ring_across)};
    };

    check_windows(UspSequence(world, {}, {world, {}}), world);
    check_windows(DspSequence(world), world);

    // Two all-to-alls, of 3 and of 1 part.
    check(UspSequence(world, world, {}), {world}, plan(SequenceScheme::kUlysses),
          {2, 4 * part, 0, 0}, {2, 4 * part, 0, 0});
    check(DspSequence(world), {world}, plan(SequenceScheme::kDsp), {2, 2 * part, 0, 0},
          {2, 2 * part, 0, 0});
    // Keys and values P - 1 times; backward these again and their gradients.
    check(UspSequence(world, {}, {world, {}}), {world}, plan(SequenceScheme::kRing),
          {0, 0, steps, steps * 2 * part}, {0, 0, 2 * steps, 2 * steps * 2 * part});
    for (const SequenceScheme scheme : {SequenceScheme::kNdRing, SequenceScheme::kUsp}) {
      const SequencePlan shape = plan(scheme);
      const std::vector<comm::Group> groups = groups_of(shape);
      const int64_t hops = shape.ring_inside * shape.ring_across - 1;
      const int64_t changes = shape.all_to_all > 1 ? 1 : 0;
      check(UspSequence(world, groups[0], {groups[1], groups[2]}), groups, shape,
            {changes * 2, changes * 4 * part, hops, hops * 2 * part},
            {changes * 2, changes * 4 * part, 2 * hops, 2 * hops * 2 * part});
    }
    // Tokens go around; backward again, with the gradients of those.
    check(FastSeqSequence(world), {world}, plan(SequenceScheme::kFastSeq),
          {1, part, steps, steps * part}, {1, part, 2 * steps, 2 * steps * part});
    check_streams(world);
  });
}

TEST_P(SequenceTrafficTest, EntryAndExitAreOneAllGather) {
  comm::run_on_ranks(GetParam(), [](const comm::Group& world) {
    const DspSequence sequence(world);
    const at::Tensor part = sequence.enter(tokens_of(kCase)).requires_grad_();
    sequence.leave(part, 16).sum().backward();
    EXPECT_EQ(world.traffic(Operation::kAllGather).calls, 1);
    EXPECT_EQ(world.traffic(Operation::kAllGather).bytes, kWhole);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, SequenceTrafficTest, testing::Values(2, 4),
                         testing::PrintToStringParamName());

}  // namespace sequence_traffic_test
}  // namespace kinora::parallel
