#include "kinora/prompts/wildcards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <set>

#include "tests/error_of.h"

namespace kinora::prompts {
namespace wildcards_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class WildcardsTest : public testing::Test {
 protected:
  WildcardsTest()
      : folder_(fs::path(testing::TempDir()) / ("wildcards-" + std::to_string(::getpid()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "lists/places");
    write("lists/animal.txt", "# of the house\ncat\r\n\n  dog \nmouse");
    write("lists/places/city.txt", "Oslo\nLima\n");
    write("lists/scene.txt", "a __animal__ in __places/city__\n");
    write("secret.txt", "secret\n");
  }
  ~WildcardsTest() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  [[nodiscard]] Wildcards wildcards() const { return Wildcards(folder_ / "lists"); }
  [[nodiscard]] std::string refusal(const std::string& prompt,
                                    ErrorKind kind = ErrorKind::kConfig) const {
    return error_of(kind, [&] { return wildcards().expanded(prompt, 1, 0); });
  }

  fs::path folder_;
};

TEST_F(WildcardsTest, BecomeLinesOfTheirLists) {
  Wildcards lists = wildcards();
  std::map<std::string, int> seen;
  for (uint64_t sample = 0; sample < 3000; ++sample) {
    ++seen[lists.expanded("my __animal__.", 7, sample)];
  }
  ASSERT_EQ(seen.size(), 3U);
  for (const std::string name : {"cat", "dog", "mouse"}) {
    EXPECT_NEAR(seen["my " + name + "."], 1000, 130) << name;  // 5 deviations
  }
  EXPECT_EQ(lists.expanded("nothing_here __ and _ __", 7, 0), "nothing_here __ and _ __");
}

TEST_F(WildcardsTest, FollowSeedSampleAndPlaceAlone) {
  Wildcards lists = wildcards();
  std::set<std::string> by_seed;
  std::set<std::string> by_sample;
  for (uint64_t i = 0; i < 20; ++i) {
    by_seed.insert(lists.expanded("__scene__", i, 0));
    by_sample.insert(lists.expanded("__scene__", 0, i));
    EXPECT_EQ(lists.expanded("__scene__", 0, i), wildcards().expanded("__scene__", 0, i));
  }
  EXPECT_GT(by_seed.size(), 3U);
  EXPECT_GT(by_sample.size(), 3U);
  // The same list twice in a prompt is two choices.
  std::set<std::string> pairs;
  for (uint64_t i = 0; i < 50; ++i) {
    pairs.insert(lists.expanded("__animal__ __animal__", 0, i));
  }
  EXPECT_EQ(pairs.size(), 9U);
  EXPECT_EQ(lists.expanded("__animal__ __animal__ __places/city__ __scene__", 5, 2),
            "mouse dog Oslo a dog in Oslo")
      << "these choices stay the same for ever";
}

TEST_F(WildcardsTest, NothingOutsideOfTheFolderIsRead) {
  for (const std::string prompt : {"__../secret__", "__/etc/passwd__", "__places/../animal__",
                                   "__places//city__", "__.hidden__"}) {
    EXPECT_EQ(wildcards().expanded(prompt, 1, 0), prompt) << "is text";
  }
  fs::create_symlink(folder_ / "secret.txt", folder_ / "lists/link.txt");
  EXPECT_THAT(refusal("__link__", ErrorKind::kIo), HasSubstr("must lie in its folder"));
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return Wildcards(folder_ / "none"); }),
              HasSubstr("must be a folder"));
}

TEST_F(WildcardsTest, WhatIsWrongWithListsIsSaid) {
  EXPECT_THAT(refusal("__anmial__"),
              AllOf(HasSubstr("no list for the wildcard \"anmial\""), HasSubstr("mean animal?")));
  EXPECT_THAT(refusal("__xylophones__"), HasSubstr("there are animal, places/city, scene"));
  write("lists/empty.txt", "# nothing\n");
  EXPECT_THAT(refusal("__empty__"), HasSubstr("at least one line"));
  write("lists/a.txt", "__b__");
  write("lists/b.txt", "__a__");
  EXPECT_THAT(refusal("__a__"), HasSubstr("name each other in a circle"));
  write("lists/twice.txt", "__twice2__ __twice2__ __twice2__ __twice2__ __twice2__ __twice2__");
  for (int i = 2; i < 9; ++i) {
    const std::string next = "__twice" + std::to_string(i + 1) + "__ ";
    write("lists/twice" + std::to_string(i) + ".txt", next + next + next + next + next + next);
  }
  write("lists/twice9.txt", "x");
  EXPECT_THAT(refusal("__twice__"), HasSubstr("at most 10000 wildcards"));
  write("lists/broken.txt", "\xff\n");
  EXPECT_THAT(refusal("__broken__"), HasSubstr("must be UTF-8"));
}

}  // namespace wildcards_test
}  // namespace kinora::prompts
