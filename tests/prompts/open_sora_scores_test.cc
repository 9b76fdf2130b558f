#include "kinora/prompts/open_sora_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/error_of.h"

namespace kinora::prompts {
namespace open_sora_scores_test {

std::string numbers(std::string_view prompt, const OpenSoraScores& scores) {
  return with_scores(prompt, scores, OpenSoraWording::kNumbers);
}
std::string words(std::string_view prompt, const OpenSoraScores& scores) {
  return with_scores(prompt, scores, OpenSoraWording::kWords);
}
std::string rate(std::string_view prompt, const OpenSoraScores& scores) {
  return with_scores(prompt, scores, OpenSoraWording::kFrameRate);
}

// The texts are those of Open-Sora's inference_utils.append_score_to_prompts, 1.2 and 1.3.
TEST(OpenSoraScoresTest, StandBehindThePrompt) {
  const OpenSoraScores all{.aesthetic = 6.5, .motion = 4.0, .camera_motion = "pan right"};
  EXPECT_EQ(numbers("a cat", all),
            "a cat aesthetic score: 6.5. motion score: 4.0. camera motion: pan right.");
  EXPECT_EQ(numbers("a cat", {.aesthetic = 6.0}), "a cat aesthetic score: 6.0.");
  EXPECT_EQ(numbers("a cat", {.fps = 24.0}), "a cat");
  EXPECT_EQ(numbers("a cat aesthetic score: 5.", all),
            "a cat aesthetic score: 5. motion score: 4.0. camera motion: pan right.");
}

TEST(OpenSoraScoresTest, HaveWordsInItsNextVersion) {
  EXPECT_EQ(words("a cat", {.aesthetic = 6.5, .motion = 4.0, .camera_motion = "tilt up"}),
            "a cat The aesthetic score is excellent. The motion strength is fair. camera motion: "
            "tilt up.");
  EXPECT_EQ(words("", {.aesthetic = 3.9, .motion = 20.0}),
            " The aesthetic score is terrible. The motion strength is extremely high.");
  EXPECT_EQ(words("The motion strength is low.", {.motion = 9.0}), "The motion strength is low.");
}

// 2.0's add_fps_info_to_text and add_motion_score_to_text.
TEST(OpenSoraScoresTest, AreMotionBehindFramesASecondInTheSecond) {
  EXPECT_EQ(rate("a cat", {.motion = 4.0, .fps = 24.0}), "a cat. 24 FPS. 4 motion score.");
  EXPECT_EQ(rate(" a cat. ", {.motion = 4.5, .fps = 23.976}), "a cat. 24 FPS. 4.5 motion score.");
  EXPECT_EQ(rate("a cat. 16 FPS.", {.motion = 7.0, .fps = 24.0}), "a cat. 16 FPS. 7 motion score.");
  EXPECT_EQ(rate("about FPS.", {.fps = 24.0}), "about FPS. 24 FPS.");
  EXPECT_EQ(rate("a cat. 2 motion score.", {.motion = 4.0}), "a cat. 2 motion score.");
  EXPECT_EQ(rate("", {.fps = 8.0}), ". 8 FPS.");
  for (const OpenSoraScores& others :
       {OpenSoraScores{.aesthetic = 6.0}, OpenSoraScores{.camera_motion = "pan left"}}) {
    EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return rate("a", others); }),
                testing::HasSubstr("a score of motion alone"));
  }
}

TEST(OpenSoraScoresTest, AreNumbers) {
  const OpenSoraScores odd{.motion = std::numeric_limits<double>::quiet_NaN()};
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return numbers("a", odd); }),
              testing::HasSubstr("a score must be a number, got nan"));
}

}  // namespace open_sora_scores_test
}  // namespace kinora::prompts
