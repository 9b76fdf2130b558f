#include "kinora/pipelines/shared_blocks.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "tests/comm/ranks.h"
#include "tests/places.h"

namespace kinora::pipelines {
namespace shared_blocks_test {

using testing::HasSubstr;

const std::string& t5_folder() {
  static const std::string folder = source_path("tests/pipelines/data/t5_bin").string();
  return folder;
}

class SharedBlocksTest : public testing::TestWithParam<int64_t> {};

TEST_P(SharedBlocksTest, GiveTheStatesOfAnEncoderThatARankHoldsAlone) {
  comm::run_on_ranks(GetParam(), [](const comm::Group& world) {
    const at::NoGradGuard no_grad;
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto alone = open_text_encoder(t5_folder(), {.type = type});
      const auto shared = open_text_encoder(t5_folder(), {.type = type, .ranks = world});
      // Each rank has texts of its own. Twice, and once not to the end.
      const models::TextTokens tokens = {.ids = {3, 1, 2, 5 + world.rank(), 4, 1},
                                         .lengths = {4, 2}};
      for (const int64_t before_last : {0, 1, 0}) {
        const models::TextLayer layer{.before_last = before_last};
        EXPECT_TRUE(shared->encode(tokens, layer).states.equal(alone->encode(tokens, layer).states))
            << type << " " << before_last;
      }
    }
  });
}

TEST_P(SharedBlocksTest, ARankHoldsItsPartAndTwoRooms) {
  const auto encoder = outlined_text_encoder(t5_folder());
  const BlockLayout layout(*encoder);
  const int64_t ranks = GetParam();
  int64_t whole = 0;
  for (int64_t i = 0; i < layout.num_blocks(); ++i) {
    whole += layout.room_of(i);
  }
  const int64_t held = SharedBlocks::elements_held(layout, ranks);
  EXPECT_GE(held, whole / ranks + 2 * layout.largest_room());
  EXPECT_LE(held, whole / ranks + 2 * layout.largest_room() + layout.num_blocks() + 2 * ranks);
}

INSTANTIATE_TEST_SUITE_P(Ranks, SharedBlocksTest, testing::Values(2, 3, 4));

TEST(SharedBlocksErrorTest, NeitherStreamedNorInEightBits) {
  comm::run_on_ranks(2, [](const comm::Group& world) {
    try {
      (void)open_text_encoder(t5_folder(), {.streamed = true, .ranks = world});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      EXPECT_THAT(error.what(), HasSubstr("got streamed"));
    }
  });
}

}  // namespace shared_blocks_test
}  // namespace kinora::pipelines
