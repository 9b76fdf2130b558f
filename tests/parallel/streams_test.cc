// Models whose captions have a stream of their own, with the tokens of both on several ranks:
// the same as with all of them on one.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "kinora/ops/block_kernels.h"
#include "kinora/parallel/sequence.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"
#include "tests/models/transformers/random_clips.h"
#include "tests/parallel/plans.h"
#include "tests/tolerances.h"

namespace kinora::parallel {
namespace streams_test {

using models::ClipCase;
using models::RandomClips;

// 4 heads. Odd: parts are filled up, of 15 tokens of the image and 11 of the caption. Even: rings
// can divide them.
constexpr ClipCase kOdd[] = {
    {.name = "sd3_second_attention",
     .architecture = "sd3",
     .frames = 1,
     .qk_norm = true,
     .joint = true,
     .second_attention = true,
     .hidden = 48,
     .heads = 4},
    {.name = "flux",
     .architecture = "flux",
     .frames = 1,
     .qk_norm = true,
     .joint = true,
     .parallel_depth = 2,
     .hidden = 48,
     .heads = 4},
    {.name = "flux_kontext",
     .architecture = "flux",
     .frames = 1,
     .qk_norm = true,
     .joint = true,
     .parallel_depth = 1,
     .input = models::ShownInput::kReference,
     .hidden = 48,
     .heads = 4},
    {.name = "open_sora2_references",
     .architecture = "open_sora2",
     .frames = 2,
     .qk_norm = true,
     .gives_frames = true,
     .embeds_given = true,
     .joint = true,
     .parallel_depth = 1,
     .references = 3,
     .hidden = 48,
     .heads = 4},
    {.name = "flux_words",
     .architecture = "flux",
     .frames = 1,
     .qk_norm = true,
     .joint = true,
     .parallel_depth = 1,
     .has_words = true,
     .hidden = 48,
     .heads = 4},
    {.name = "open_sora2_given_frames",
     .architecture = "open_sora2",
     .frames = 3,
     .qk_norm = true,
     .gives_frames = true,
     .embeds_given = true,
     .joint = true,
     .parallel_depth = 1,
     .hidden = 48,
     .heads = 4},
    {.name = "hunyuan_video",
     .architecture = "hunyuan_video",
     .frames = 2,
     .qk_norm = true,
     .joint = true,
     .parallel_depth = 1,
     .hidden = 48,
     .heads = 4},
    {.name = "cogvideox", .architecture = "cogvideox", .frames = 2, .hidden = 64, .heads = 4},
    {.name = "flux_tuned",
     .architecture = "flux",
     .frames = 1,
     .qk_norm = true,
     .tuned = true,
     .joint = true,
     .parallel_depth = 1,
     .hidden = 48,
     .heads = 4},
    // Of captions it has no stream, and each frame is one.
    {.name = "ltx_video",
     .architecture = "ltx_video",
     .frames = 3,
     .gives_frames = true,
     .hidden = 48,
     .heads = 4,
     .patch = 1},
    {.name = "wan",
     .architecture = "wan",
     .frames = 3,
     .gives_frames = true,
     .hidden = 48,
     .heads = 4},
    {.name = "wan_pictures",
     .architecture = "wan",
     .frames = 2,
     .embeds_given = true,
     .image_channels = 20,
     .hidden = 48,
     .heads = 4},
    {.name = "wan_tuned",
     .architecture = "wan",
     .frames = 2,
     .tuned = true,
     .hidden = 48,
     .heads = 4},
};
constexpr ClipCase kEvenFrames = {.name = "ltx_video_even",
                                  .architecture = "ltx_video",
                                  .frames = 3,
                                  .rows = 4,
                                  .columns = 4,
                                  .hidden = 48,
                                  .heads = 4,
                                  .patch = 1};
constexpr ClipCase kEvenWan = {.name = "wan_even",
                               .architecture = "wan",
                               .frames = 3,
                               .rows = 4,
                               .columns = 4,
                               .hidden = 48,
                               .heads = 4};
constexpr ClipCase kEven = {.name = "flux_even",
                            .architecture = "flux",
                            .frames = 1,
                            .rows = 4,
                            .columns = 4,
                            .qk_norm = true,
                            .joint = true,
                            .parallel_depth = 1,
                            .text_tokens = 8,
                            .hidden = 48,
                            .heads = 4};

void take(RandomClips& clips, bool is_fast) {
  if (is_fast && clips.model().num_fast_linears() > 0) {
    clips.model().use_fast_path(
        std::make_shared<ops::BlockKernels>(ops::KernelOptions{}, at::kCPU, at::kFloat, true));
  }
}

/// Results whose gradients are averaged over the ranks, as data parallelism does.
ops::NamedResults averaged(RandomClips& clips, const comm::Group& world) {
  ops::NamedResults results = clips.results();
  for (ops::NamedResult& result : results) {
    if (result.name != "output") {
      result.value = result.value.contiguous();
      world.all_reduce(result.value, comm::Reduction::kMean);
    }
  }
  return results;
}

void check(const ClipCase& one, SequenceScheme scheme, const comm::Group& world) {
  RandomClips whole(one, at::kCPU, at::kFloat);
  whole.step();
  const bool has_fast_path = whole.model().num_fast_linears() > 0;
  for (const bool is_fast : {false, true}) {
    for (const int64_t recompute : {0, 2}) {
      if (is_fast && !has_fast_path) {
        continue;
      }
      RandomClips part(one, at::kCPU, at::kFloat);
      part.model().use_sequence(make_sequence(plan_of(scheme, world.size()), world));
      part.model().set_recompute(recompute);
      take(part, is_fast);
      part.step();
      ops::expect_near(whole.results(), averaged(part, world), tolerance::kOtherOrderOfBranches,
                       std::string(one.name) + ", " + std::string(to_string(scheme)) +
                           (is_fast ? ", fast, recomputing " : ", plain, recomputing ") +
                           std::to_string(recompute));
      ops::expect_near(whole.sample(), part.sample(), tolerance::kOtherOrderOfBranches,
                       std::string(one.name) + ", drawing");
    }
  }
}

/// Of models whose tokens attend to those around them, over several blocks of tokens.
std::vector<ClipCase> with_windows() {
  std::vector<ClipCase> cases;
  for (ClipCase one : models::kClipCases) {
    if (one.sliding_window) {
      one.heads = 4;
      cases.push_back(one);
    }
  }
  return cases;
}

void check_by_heads(const ClipCase& one, const comm::Group& world) {
  check(one, SequenceScheme::kUlysses, world);
  const bool has_text_stream = one.joint || one.architecture == std::string("cogvideox");
  if (has_text_stream && !one.tuned) {
    check(one, SequenceScheme::kFastSeq, world);
  }
}

void check_all(const comm::Group& world) {
  for (const ClipCase& one : kOdd) {
    check_by_heads(one, world);
  }
  for (const ClipCase& one : with_windows()) {
    check_by_heads(one, world);
  }
  for (const SequenceScheme scheme :
       {SequenceScheme::kUlysses, SequenceScheme::kRing, SequenceScheme::kUsp}) {
    if (scheme != SequenceScheme::kUsp || world.size() > 2) {
      check(kEven, scheme, world);
      check(kEvenFrames, scheme, world);
      check(kEvenWan, scheme, world);
    }
  }
}

TEST(StreamsTest, TwoRanksAreAsOne) {
  comm::run_on_ranks(2, check_all);
}

TEST(StreamsTest, FourRanksAreAsOne) {
  comm::run_on_ranks(4, check_all, {.time_limit = std::chrono::seconds(300)});
}

TEST(StreamsTest, SchemesThatCannotAreNamed) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    const auto message = [&](const ClipCase& one, SequenceScheme scheme) {
      RandomClips clips(one, at::kCPU, at::kFloat);
      clips.model().use_sequence(make_sequence(plan_of(scheme, world.size()), world));
      return error_of(ErrorKind::kConfig, [&] { (void)clips.sample(); });
    };
    EXPECT_NE(message(kOdd[1], SequenceScheme::kRing).find("must divide them evenly, got 15"),
              std::string::npos);
    EXPECT_NE(message(kEven, SequenceScheme::kDsp).find("of text and image together"),
              std::string::npos);
    EXPECT_NE(message(with_windows().front(), SequenceScheme::kRing)
                  .find("in a ring all tokens attend to all"),
              std::string::npos);
  });
  SequenceFacts facts{.ranks = 2,
                      .ranks_inside = 2,
                      .heads = 3,
                      .num_frames = 1,
                      .tokens_a_frame = 15,
                      .spans = {nn::Span::kClip},
                      .text_tokens = 11};
  const std::string none = error_of(ErrorKind::kConfig, [&] { (void)plan_sequence(facts); });
  EXPECT_NE(none.find("3 heads do not divide"), std::string::npos) << none;
  EXPECT_NE(none.find("ring: the tokens do not divide"), std::string::npos) << none;
  EXPECT_NE(none.find("dsp: not for text and image together"), std::string::npos) << none;
  EXPECT_NE(none.find("fastseq: for text and image together"), std::string::npos) << none;
  SequenceFacts asked = facts;
  asked.scheme = SequenceScheme::kFastSeq;
  asked.heads = 4;
  EXPECT_EQ(plan_sequence(asked).scheme, SequenceScheme::kFastSeq);
  asked.is_fp8 = true;
  EXPECT_NE(error_of(ErrorKind::kConfig, [&] { (void)plan_sequence(asked); })
                .find("it makes queries in 16 bits"),
            std::string::npos);
  // Streams without text.
  SequenceFacts frames = facts;
  frames.text_tokens = 0;
  frames.frames_are_streams = true;
  frames.num_frames = 2;
  const std::string refused = error_of(ErrorKind::kConfig, [&] { (void)plan_sequence(frames); });
  EXPECT_NE(refused.find("ring: the tokens do not divide"), std::string::npos) << refused;
  EXPECT_NE(refused.find("fastseq: not for norms over all heads"), std::string::npos) << refused;
  frames.heads = 4;
  EXPECT_EQ(plan_sequence(frames).scheme, SequenceScheme::kUlysses);
  facts.tokens_a_frame = 16;
  facts.text_tokens = 8;
  EXPECT_EQ(plan_sequence(facts).scheme, SequenceScheme::kRing);
  SequenceFacts windows = facts;
  windows.has_block_mask = true;
  EXPECT_NE(error_of(ErrorKind::kConfig, [&] { (void)plan_sequence(windows); })
                .find("windows leave some out"),
            std::string::npos);
  facts.has_pictures = true;
  EXPECT_NE(error_of(ErrorKind::kConfig, [&] { (void)plan_sequence(facts); })
                .find("pictures of any size are among them"),
            std::string::npos);
  facts.has_pictures = false;
  facts.reads_padding = false;
  EXPECT_NE(error_of(ErrorKind::kConfig, [&] { (void)plan_sequence(facts); })
                .find("rings read all tokens of all captions"),
            std::string::npos);
}

}  // namespace streams_test
}  // namespace kinora::parallel
