#include "kinora/models/transformers/latte.h"

#include <gtest/gtest.h>

#include "tests/models/transformers/video_fixture.h"

namespace kinora::models {
namespace latte_test {

TEST(LatteTest, OutputsMatchReference) {
  const VideoFixture fixture("latte");
  Latte model(fixture.config("latte"));
  set_weights(model, fixture, false);
  expect_outputs(model, fixture);
}

TEST(LatteTest, EveryGradientMatchesReferenceForEveryRecomputation) {
  const VideoFixture fixture("latte");
  const ModelConfig config = fixture.config("latte");
  for (int64_t recompute = 0; recompute <= config.transformer.depth; ++recompute) {
    SCOPED_TRACE(std::to_string(recompute) + " blocks recomputed");
    Latte model(config);
    set_weights(model, fixture, true);
    model.set_recompute(recompute);
    expect_gradients(model, fixture);
  }
}

// Same parameters as VDiT, by the same names; other numbers.
TEST(LatteTest, BlocksAttendWithinFramesAndThroughTimeByTurns) {
  const VideoFixture fixture("latte");
  Latte latte(fixture.config("latte"));
  set_weights(latte, fixture, false);
  VDiT vdit(fixture.config("vdit"));
  set_weights(vdit, fixture, false);
  const at::NoGradGuard no_grad;
  EXPECT_GT(relative_error(fixture.run(vdit, "forward"), fixture.run(latte, "forward")), 1e-2);
}

}  // namespace latte_test
}  // namespace kinora::models
