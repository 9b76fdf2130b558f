#include "kinora/data/subset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "kinora/data/shapes.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace subset_test {

TEST(SubsetTest, ReadsThroughToTheWhole) {
  const ShapeSource whole(1, 100, 16, 16);
  const SubsetSource part(whole, {50, 7, 99});
  EXPECT_EQ(part.size(), 3);
  EXPECT_FALSE(part.latent_shape().has_value());
  EXPECT_EQ(part.class_names(), whole.class_names());
  EXPECT_EQ(part.sample_name(1), whole.sample_name(7));
  Sample expected;
  Sample got;
  whole.read(99, expected);
  part.read(2, got);
  EXPECT_EQ(got.image.pixels, expected.image.pixels);
  EXPECT_EQ(got.label, expected.label);
}

TEST(SubsetTest, RefusesIndicesOutside) {
  const ShapeSource whole(1, 100, 16, 16);
  EXPECT_THAT(error_of([&] { SubsetSource(whole, {0, 100}); }), testing::HasSubstr("got 100"));
}

}  // namespace subset_test
}  // namespace kinora::data
