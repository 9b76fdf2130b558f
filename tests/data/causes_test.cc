#include "kinora/data/causes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/data/class_folder.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace causes_test {

using testing::AllOf;
using testing::HasSubstr;

TEST(CausesTest, CausesOfOneKindAreAlike) {
  EXPECT_EQ(cause_kind("[png] a/1.png must have 12 rows, got 3. Hint: mend a/1.png", "a/1.png"),
            "[png] must have # rows, got #.");
}

TEST(CausesTest, SuffixesAreCountedWhereTheyAreTheCause) {
  EXPECT_EQ(count_of("not a picture that Kinora reads", {"a/b.txt", "c.d/e", "f.avif", "g.avif"}),
            "not a picture that Kinora reads: 4 (.avif: 2, .txt: 1, no suffix: 1)");
  EXPECT_EQ(count_of("a caption without a picture", {"a.txt"}), "a caption without a picture: 1");
}

TEST(CausesTest, ARunIsToldALineForEachCause) {
  const TemporaryFolder folder;
  folder.write("a/0.png", grey_png(1));
  folder.write("a/1.png", grey_png(1));
  folder.write("a/2.png", "");
  folder.write("a/3.png", "");
  folder.write("a/4.jpg", "no picture");
  folder.write("a/x.avif", "x");
  folder.write("a/y.avif", "x");
  folder.write("a/z.txt", "x");
  folder.write("loose.png", grey_png(1));
  const ClassFolder source(folder.path());
  testing::internal::CaptureStderr();
  announce_unusable(source);
  const std::string told = testing::internal::GetCapturedStderr();
  const std::string set = folder.path().string();
  EXPECT_THAT(told,
              AllOf(HasSubstr("passed over 4 files or rows of the set:"),
                    HasSubstr("not a picture that Kinora reads: 3 (.avif: 2, .txt: 1), such as " +
                              set + "/a/x.avif\n"),
                    HasSubstr("outside of the class folders: 1, such as " + set + "/loose.png\n"),
                    HasSubstr("3 of 5 samples cannot be read and will be replaced:"),
                    HasSubstr("got an empty file: 2, such as " + set + "/a/2.png\n"),
                    HasSubstr("begins like none of them.: 1, such as " + set + "/a/4.jpg")));
}

TEST(CausesTest, AWholeSetIsNothingToTellOf) {
  const TemporaryFolder folder;
  folder.write("a/0.png", grey_png(1));
  folder.write("a/1.png", grey_png(1));
  const ClassFolder source(folder.path());
  testing::internal::CaptureStderr();
  announce_unusable(source);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace causes_test
}  // namespace kinora::data
