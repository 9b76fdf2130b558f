#include "kinora/nn/sequence.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>

#include "tests/error_of.h"
#include "tests/nn/random_values.h"

namespace kinora::nn {
namespace sequence_test {

constexpr int64_t kBatch = 2;
constexpr int64_t kFrames = 3;
constexpr int64_t kTokens = 4;
constexpr int64_t kHidden = 8;

class SequenceTest : public testing::Test {
 protected:
  SequenceTest() { give_random_values(attention_, at::kDouble); }

  SelfAttention attention_{{.hidden = kHidden, .heads = 2}};
  Sequence sequence_;
  at::NoGradGuard no_grad_;
  at::Tensor x_ = normal({kBatch, kFrames, kTokens, kHidden}, 1).to(at::kDouble);
  at::Tensor rotary_ =
      normal({kFrames, kTokens, kHidden / 4}, 2).to(at::kDouble).repeat_interleave(2, -1);
};

TEST_F(SequenceTest, FramesAttendEachForItself) {
  const at::Tensor got = sequence_.self_attention(attention_, x_, Span::kFrame, kTokens, rotary_);
  for (int64_t t = 0; t < kFrames; ++t) {
    EXPECT_TRUE(
        at::allclose(got.select(1, t), attention_.forward(x_.select(1, t), rotary_.select(0, t))));
  }
}

TEST_F(SequenceTest, PlacesAttendThroughTime) {
  const at::Tensor got = sequence_.self_attention(attention_, x_, Span::kTime, kTokens, rotary_);
  for (int64_t s = 0; s < kTokens; ++s) {
    EXPECT_TRUE(
        at::allclose(got.select(2, s), attention_.forward(x_.select(2, s), rotary_.select(1, s))));
  }
}

TEST_F(SequenceTest, OneRotationServesAllPlaces) {
  const at::Tensor shared = rotary_.narrow(1, 0, 1);
  EXPECT_TRUE(at::allclose(
      sequence_.self_attention(attention_, x_, Span::kTime, kTokens, shared),
      sequence_.self_attention(attention_, x_, Span::kTime, kTokens, shared.expand_as(rotary_))));
}

TEST_F(SequenceTest, ClipsAttendAsAWhole) {
  const at::Tensor got = sequence_.self_attention(attention_, x_, Span::kClip, kTokens, rotary_);
  EXPECT_TRUE(
      at::allclose(got.flatten(1, 2), attention_.forward(x_.flatten(1, 2), rotary_.flatten(0, 1))));
}

// 3 frames of 2 x 2 tokens in windows of 2 x 2 x 1: two columns, the last frame in windows of its
// own, which reach beyond the clip.
TEST_F(SequenceTest, WindowsAttendEachForItself) {
  const Windows windows = {
      .rows = 2, .columns = 2, .window_frames = 2, .window_rows = 2, .window_columns = 1};
  const at::Tensor rotary =
      normal({4, kHidden / 4}, 3).to(at::kDouble).repeat_interleave(2, -1);  // [N, D]
  const at::Tensor got = sequence_.window_attention(attention_, x_, windows, rotary)
                             .unflatten(2, {2, 2});  // [B, T, 2, 2, C]
  const at::Tensor grid = x_.unflatten(2, {2, 2});
  for (int64_t column = 0; column < 2; ++column) {
    const at::Tensor inner = grid.select(3, column);  // [B, T, 2, C]
    const at::Tensor first = inner.narrow(1, 0, 2).flatten(1, 2);
    EXPECT_TRUE(at::allclose(got.select(3, column).narrow(1, 0, 2).flatten(1, 2),
                             attention_.forward(first, rotary)));
    const at::Tensor last = inner.select(1, 2);
    EXPECT_TRUE(at::allclose(got.select(3, column).select(1, 2),
                             attention_.forward(last, rotary.narrow(0, 0, 2))));
  }
}

TEST_F(SequenceTest, WindowsOfTheWholeClipAreTheClip) {
  const Windows windows = {
      .rows = 2, .columns = 2, .window_frames = kFrames, .window_rows = 2, .window_columns = 2};
  EXPECT_TRUE(
      at::allclose(sequence_.window_attention(attention_, x_, windows, rotary_.flatten(0, 1)),
                   sequence_.self_attention(attention_, x_, Span::kClip, kTokens, rotary_)));
}

TEST_F(SequenceTest, WindowsNeedAllTokensHere) {
  const Windows windows = {.rows = 4, .columns = 2, .window_rows = 2, .window_columns = 2};
  EXPECT_NE(error_of(ErrorKind::kConfig,
                     [&] { return sequence_.window_attention(attention_, x_, windows); })
                .find("needs all 8 tokens"),
            std::string::npos);
}

TEST_F(SequenceTest, TokensAreAllHereByDefault) {
  EXPECT_TRUE(sequence_.enter(x_).is_same(x_));
  EXPECT_TRUE(sequence_.leave(x_, kTokens).is_same(x_));
}

}  // namespace sequence_test
}  // namespace kinora::nn
