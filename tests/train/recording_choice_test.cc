#include "kinora/train/recording_choice.h"

#include <gmock/gmock.h>

namespace kinora::train {
namespace recording_choice_test {

using Action = RecordingChoice::Action;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr RecordingChoice::Room kEmpty = {.taken = 0, .free = 100 * kGiB};

RecordingChoice::Shape shape_of(RecordingChoice& choice, int64_t needs) {
  RecordingChoice::Shape shape;
  choice.measured(shape, needs);
  return shape;
}

TEST(RecordingChoiceTest, AShapeIsRecordedInItsThirdStep) {
  const RecordingChoice choice(std::nullopt);
  RecordingChoice::Shape shape;
  EXPECT_EQ(choice.next(shape, 4), Action::kCompute);
  EXPECT_EQ(choice.next(shape, 4), Action::kCompute);  // another micro-batch of that step
  EXPECT_EQ(choice.next(shape, 9), Action::kCompute);
  EXPECT_EQ(choice.next(shape, 11), Action::kTryToRecord);
  shape.state = RecordingChoice::Shape::State::kRecorded;
  EXPECT_EQ(choice.next(shape, 11), Action::kReplay);
  EXPECT_EQ(choice.next(shape, 12), Action::kReplay);
  EXPECT_THAT(choice.refusal(shape, 1, {.taken = 0, .free = 0}), IsEmpty());
}

TEST(RecordingChoiceTest, OfManyShapesTheSecondStepMeasuresOnce) {
  const RecordingChoice choice(0);
  RecordingChoice::Shape shape;
  EXPECT_EQ(choice.next(shape, 0), Action::kCompute);
  EXPECT_EQ(choice.next(shape, 1), Action::kMeasure);
  EXPECT_EQ(choice.next(shape, 1), Action::kCompute);
  EXPECT_EQ(choice.next(shape, 2), Action::kTryToRecord);
  shape.state = RecordingChoice::Shape::State::kRefused;
  EXPECT_EQ(choice.next(shape, 3), Action::kCompute);
}

TEST(RecordingChoiceTest, GraphsStayWithinTheLimit) {
  RecordingChoice choice(4 * kGiB);
  const auto shape = shape_of(choice, 3 * kGiB);
  EXPECT_THAT(choice.refusal(shape, kGiB, kEmpty), IsEmpty());
  EXPECT_THAT(choice.refusal(shape, 2 * kGiB, kEmpty),
              HasSubstr("might take 5 GiB, and train.graph_memory_gib allows 4 GiB"));
  auto room = kEmpty;
  room.taken = kGiB;
  EXPECT_THAT(choice.refusal(shape, 0, room), IsEmpty());
  EXPECT_THAT(choice.refusal(shape, kGiB, room), HasSubstr("might take 5 GiB"));
}

TEST(RecordingChoiceTest, RoomIsLeftForTheLargestWithoutAGraph) {
  RecordingChoice choice(0);
  const auto large = shape_of(choice, 10 * kGiB);
  const auto small = shape_of(choice, 2 * kGiB);
  auto room = kEmpty;
  room.free = 21 * kGiB;  // 10 for its pass, 10 without a graph, 1 beside
  EXPECT_THAT(choice.refusal(large, 0, room), IsEmpty());
  EXPECT_THAT(choice.refusal(large, 1, room),
              HasSubstr("might take 10 GiB of the 21 GiB that are free"));
  room.free = 13 * kGiB;
  EXPECT_THAT(choice.refusal(small, 0, room), IsEmpty());
  room.free = 12 * kGiB;
  EXPECT_THAT(choice.refusal(small, 0, room), HasSubstr("sizes without a graph need 10 GiB"));
}

}  // namespace recording_choice_test
}  // namespace kinora::train
