// Every scheme of sequence parallelism against nn::Sequence on one rank: results and all gradients.
#include "kinora/parallel/sequence.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/parallel/token_net.h"

namespace kinora::parallel {
namespace sequence_test {

using ops::relative_error;

constexpr double kRounding = 2e-5;  // of sums in another order

bool suits(SequenceScheme scheme, const TokenCase& c) {
  return scheme != SequenceScheme::kDsp || c.span == nn::Span::kFrame || c.num_frames == 1;
}

std::string describe(SequenceScheme scheme, const TokenCase& c, bool qk_norm) {
  return std::string(to_string(scheme)) + (c.span == nn::Span::kClip ? " clip" : " frame") +
         ", B " + std::to_string(c.batch) + ", T " + std::to_string(c.num_frames) + ", S " +
         std::to_string(c.tokens_a_frame) + (qk_norm ? ", norm" : "") +
         (c.rotary ? ", rotary" : "");
}

struct Outcome {
  at::Tensor output;
  at::Tensor to_tokens;  // of the part
  std::map<std::string, at::Tensor> gradients;
};

/// As data parallelism does, gradients are averaged over the group's ranks.
Outcome outcome_of(const nn::Sequence& sequence, const comm::Group& group, const TokenCase& c,
                   bool qk_norm) {
  TokenNet net(qk_norm);
  const at::Tensor part = sequence.enter(tokens_of(c)).detach().clone().requires_grad_();
  const at::Tensor output = net.forward(sequence, c, part);
  output.backward(ops::normal(output.sizes().vec(), 61));
  Outcome outcome = {output.detach(), part.grad(), {}};
  for (const auto& [path, parameter] : net.named_parameters()) {
    group.all_reduce(parameter->grad, comm::Reduction::kMean);
    outcome.gradients[path] = parameter->grad;
  }
  return outcome;
}

/// A gradient that is zero but for rounding, as that of the queries of a single token, has no
/// relative error.
void expect_close(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  const double error = (got - want).norm().item<double>();
  EXPECT_LE(error, kRounding * std::max(want.norm().item<double>(), 0.1)) << what;
}

void expect_equal(const Outcome& got, const Outcome& want, const nn::Sequence& sequence,
                  int64_t num_ranks) {
  expect_close(got.output, want.output, "output");
  for (const auto& [path, gradient] : want.gradients) {
    expect_close(got.gradients.at(path), gradient, path);
  }
  expect_close(got.to_tokens / static_cast<double>(num_ranks), sequence.enter(want.to_tokens),
               "tokens");
}

struct SchemeCase {
  SequenceScheme scheme;
  int64_t num_ranks;
};

std::vector<SchemeCase> all_cases() {
  std::vector<SchemeCase> cases;
  for (const SequenceScheme scheme : kSchemes) {
    for (const int64_t num_ranks : {2, 4}) {
      cases.push_back({scheme, num_ranks});
    }
  }
  return cases;
}

class SchemeTest : public testing::TestWithParam<SchemeCase> {};

TEST_P(SchemeTest, EqualsOneRank) {
  const auto [scheme, num_ranks] = GetParam();
  comm::run_on_ranks(num_ranks, [scheme = scheme](const comm::Group& world) {
    const auto sequence = make_sequence(plan_of(scheme, world.size()), world);
    int64_t number = 0;
    for (const nn::Span span : {nn::Span::kFrame, nn::Span::kClip}) {
      for (const int64_t tokens : {7, 16}) {
        for (const int64_t frames : {1, 3, 4}) {
          const bool qk_norm = ++number % 2 == 0;
          const TokenCase c = {span, 1 + number % 2, frames, tokens, number % 3 != 0};
          if (suits(scheme, c)) {
            SCOPED_TRACE(describe(scheme, c, qk_norm));
            expect_equal(outcome_of(*sequence, world, c, qk_norm),
                         outcome_of(nn::Sequence(), {}, c, qk_norm), *sequence, world.size());
          }
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, SchemeTest, testing::ValuesIn(all_cases()), [](const auto& info) {
  return std::string(to_string(info.param.scheme)) + "_" + std::to_string(info.param.num_ranks);
});

// Random shapes, on the groups of two sequences side by side.
TEST(SequenceGroupsTest, RandomShapesOfTwoSequencesEqualOneRank) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    const comm::Group group = world.split({{0, 2}, {3, 1}});
    std::mt19937 random(3);  // the same on all ranks
    for (int i = 0; i < 40; ++i) {
      const SequenceScheme scheme = kSchemes[random() % kSchemes.size()];
      const TokenCase c = {random() % 2 == 0 ? nn::Span::kFrame : nn::Span::kClip,
                           1 + static_cast<int64_t>(random() % 3),
                           1 + static_cast<int64_t>(random() % 5),
                           1 + static_cast<int64_t>(random() % 20), random() % 2 == 0};
      const bool qk_norm = random() % 2 == 0;
      if (suits(scheme, c)) {
        SCOPED_TRACE(describe(scheme, c, qk_norm));
        const auto sequence = make_sequence(plan_of(scheme, 2), group);
        expect_equal(outcome_of(*sequence, group, c, qk_norm),
                     outcome_of(nn::Sequence(), {}, c, qk_norm), *sequence, 2);
      }
    }
  });
}

// What fills up parts has no say: NaN there changes no bit of results and gradients.
TEST(SequencePaddingTest, IsInert) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    for (const SequenceScheme scheme : kSchemes) {
      const auto sequence = make_sequence(plan_of(scheme, 4), world);
      for (const nn::Span span : {nn::Span::kFrame, nn::Span::kTime, nn::Span::kClip}) {
        for (const int64_t tokens : {5, 7, 9}) {
          const TokenCase c = {span, 2, 3, tokens, true};
          if (!suits(scheme, c) && span != nn::Span::kTime) {
            continue;
          }
          SCOPED_TRACE(describe(scheme, c, true) + (span == nn::Span::kTime ? " (time)" : ""));
          std::vector<Outcome> outcomes;
          for (const double filling : {0.0, std::numeric_limits<double>::quiet_NaN()}) {
            TokenNet net(/*qk_norm=*/true);
            const at::Tensor part = sequence->enter(tokens_of(c)).clone();
            const int64_t length = part.size(2);
            const int64_t own = std::clamp<int64_t>(tokens - world.rank() * length, 0, length);
            part.narrow(2, own, length - own).fill_(filling);
            part.requires_grad_();
            const at::Tensor out = sequence->self_attention(net.in_space, part, span, tokens, {});
            EXPECT_FALSE(out.narrow(2, own, length - own).detach().any().item<bool>());
            out.backward(ops::normal(out.sizes().vec(), 62));
            Outcome& outcome = outcomes.emplace_back(Outcome{out.detach(), part.grad(), {}});
            for (const auto& [path, parameter] : net.named_parameters()) {
              outcome.gradients[path] = parameter->grad;
              EXPECT_TRUE(at::isfinite(parameter->grad).all().item<bool>()) << path;
            }
            EXPECT_FALSE(part.grad().narrow(2, own, length - own).any().item<bool>());
          }
          EXPECT_TRUE(at::equal(outcomes[0].output, outcomes[1].output));
          EXPECT_TRUE(at::equal(outcomes[0].to_tokens, outcomes[1].to_tokens));
          for (const auto& [path, gradient] : outcomes[0].gradients) {
            EXPECT_TRUE(at::equal(gradient, outcomes[1].gradients.at(path))) << path;
          }
        }
      }
    }
  });
}

// Windows that tile the clip, and that reach beyond its end.
TEST(SequenceTest, WindowsEqualOneRank) {
  comm::run_on_ranks(4, [](const comm::Group& world) {
    const auto sequence = make_sequence(plan_of(SequenceScheme::kDsp, 4), world);
    for (const nn::Windows& windows :
         {nn::Windows{4, 6, 3, 2, 3}, nn::Windows{3, 3, 2, 2, 2}, nn::Windows{1, 5, 3, 1, 4}}) {
      SCOPED_TRACE(windows.rows * windows.columns);
      const int64_t tokens = windows.rows * windows.columns;
      const int64_t in_window =
          windows.window_frames * windows.window_rows * windows.window_columns;
      const at::Tensor angles = angles_of({in_window, kHidden / kHeads / 2}, 50, at::kCPU);
      const TokenCase c = {nn::Span::kClip, 2, 3, tokens, true};
      const auto outcome = [&](const nn::Sequence& of, const comm::Group& group) {
        TokenNet net(/*qk_norm=*/true);
        const at::Tensor part = of.enter(tokens_of(c)).detach().clone().requires_grad_();
        const at::Tensor output =
            of.leave(of.window_attention(net.in_space, part, windows, angles), tokens);
        output.backward(ops::normal(output.sizes().vec(), 61));
        Outcome result = {output.detach(), part.grad(), {}};
        for (const auto& [path, parameter] : net.named_parameters()) {
          group.all_reduce(parameter->grad, comm::Reduction::kMean);
          result.gradients[path] = parameter->grad;
        }
        return result;
      };
      expect_equal(outcome(*sequence, world), outcome(nn::Sequence(), {}), *sequence, 4);
    }
  });
}

TEST(SequenceTest, HalfTypesAndNoGradientsWork) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    const at::NoGradGuard no_grad;
    const TokenCase c = {nn::Span::kFrame, 2, 3, 7, true};
    TokenNet net(/*qk_norm=*/true);
    const at::Tensor want = net.forward(nn::Sequence(), c, tokens_of(c));
    for (const auto& [path, parameter] : net.named_parameters()) {
      parameter->value = parameter->value.to(at::kBFloat16);
    }
    for (const SequenceScheme scheme : kSchemes) {
      const auto sequence = make_sequence(plan_of(scheme, 2), world);
      const at::Tensor got = net.forward(*sequence, c, sequence->enter(tokens_of(c)));
      EXPECT_LT(relative_error(got, want), 3e-2) << to_string(scheme);
    }
  });
}

TEST(SequenceTest, ErrorsSayWhatDoesNotFit) {
  comm::run_on_ranks(3, [](const comm::Group& world) {
    const TokenCase c = {nn::Span::kFrame, 1, 3, 6, false};
    const TokenNet net(/*qk_norm=*/false);
    const auto attend = [&](SequenceScheme scheme, nn::Span span, int64_t tokens) {
      return [&, scheme, span, tokens] {
        const auto sequence = make_sequence({scheme, 3, 1, 1, ""}, world);
        return sequence->self_attention(net.in_space, sequence->enter(tokens_of(c)), span, tokens,
                                        {});
      };
    };
    const auto expect = [](const std::string& message, const std::string& part) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    for (const SequenceScheme scheme : {SequenceScheme::kUlysses, SequenceScheme::kFastSeq}) {
      expect(error_of(ErrorKind::kConfig, attend(scheme, nn::Span::kFrame, 6)),
             std::string(to_string(scheme)) + " divides 4 heads among 3 ranks");
    }
    expect(error_of(ErrorKind::kConfig, attend(SequenceScheme::kDsp, nn::Span::kClip, 6)),
           "attends over all 3 frames");
    expect(error_of(ErrorKind::kShape, attend(SequenceScheme::kDsp, nn::Span::kFrame, 7)),
           "of 7 tokens a frame each of 3 ranks has 3");
    expect(error_of(ErrorKind::kConfig,
                    [&] {
                      return make_sequence({SequenceScheme::kRing, 1, 2, 1, ""}, world);
                    }),
           "a plan for 2 ranks does not suit a group of 3");
  });
}

}  // namespace sequence_test
}  // namespace kinora::parallel
