#include "kinora/prompts/open_sora_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/error_of.h"

namespace kinora::prompts {
namespace open_sora_scores_test {

// The texts are those of Open-Sora's inference_utils.append_score_to_prompts, 1.2 and 1.3.
TEST(OpenSoraScoresTest, StandBehindThePrompt) {
  const OpenSoraScores all{.aesthetic = 6.5, .motion = 4.0, .camera_motion = "pan right"};
  EXPECT_EQ(with_scores("a cat", all),
            "a cat aesthetic score: 6.5. motion score: 4.0. camera motion: pan right.");
  EXPECT_EQ(with_scores("a cat", {.aesthetic = 6.0}), "a cat aesthetic score: 6.0.");
  EXPECT_EQ(with_scores("a cat", {}), "a cat");
  EXPECT_EQ(with_scores("a cat aesthetic score: 5.", all),
            "a cat aesthetic score: 5. motion score: 4.0. camera motion: pan right.");
}

TEST(OpenSoraScoresTest, HaveWordsInItsNextVersion) {
  EXPECT_EQ(
      with_worded_scores("a cat", {.aesthetic = 6.5, .motion = 4.0, .camera_motion = "tilt up"}),
      "a cat The aesthetic score is excellent. The motion strength is fair. camera motion: "
      "tilt up.");
  EXPECT_EQ(with_worded_scores("", {.aesthetic = 3.9, .motion = 20.0}),
            " The aesthetic score is terrible. The motion strength is extremely high.");
  EXPECT_EQ(with_worded_scores("The motion strength is low.", {.motion = 9.0}),
            "The motion strength is low.");
}

TEST(OpenSoraScoresTest, AreNumbers) {
  const OpenSoraScores odd{.motion = std::numeric_limits<double>::quiet_NaN()};
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return with_scores("a", odd); }),
              testing::HasSubstr("a score must be a number, got nan"));
}

}  // namespace open_sora_scores_test
}  // namespace kinora::prompts
