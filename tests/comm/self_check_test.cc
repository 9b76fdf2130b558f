#include "kinora/comm/self_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace kinora::comm {
namespace self_check_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

TEST(SelfCheckTest, PassesWhereAllIsAlike) {
  run_on_ranks(4, [](const Group& world) {
    std::vector<Fact> facts = program_facts();
    facts.push_back({"configuration", "a: 1\nb: 2\n"});
    const SelfCheck found = self_check(world, facts);
    EXPECT_EQ(found.num_hosts, 1);
    EXPECT_EQ(found.clock_offset, 0.0) << "one clock, read by rank 0 before and after the others";
  });
}

TEST(SelfCheckTest, AGroupOfOneIsAlikeToItself) {
  EXPECT_EQ(self_check(Group(), program_facts()).num_hosts, 1);
}

TEST(SelfCheckTest, NamesTheRankAndTheLineThatDiffer) {
  run_on_ranks(4, [](const Group& world) {
    const std::string lr = world.rank() == 2 ? "2e-4" : "1e-4";
    const std::vector<Fact> facts = {{"program", "the same"},
                                     {"configuration", "seed: 1\nlr:\n  value: " + lr + "\nx: 1"}};
    const ErrorKind kind = world.rank() == 2 ? ErrorKind::kConfig : ErrorKind::kComm;
    EXPECT_THAT(error_of(kind, [&] { return self_check(world, facts); }),
                AllOf(HasSubstr("rank 2 on "), HasSubstr(" has another configuration than rank 0"),
                      HasSubstr("in line 3 it has \"value: 2e-4\", rank 0 \"value: 1e-4\"")));
  });
}

TEST(SelfCheckTest, ASecondCheckReadsNothingOfTheFirst) {
  run_on_ranks(2, [](const Group& world) {
    (void)self_check(world, {{"configuration", "lr: 1e-4"}});
    if (world.rank() == 1) {
      // Late, so that rank 0 would find what was put up for the first check.
      std::this_thread::sleep_for(milliseconds(200));
    }
    EXPECT_EQ(self_check(world, {{"configuration", "lr: 2e-4"}}).num_hosts, 1);
    const std::string lr = world.rank() == 1 ? "3e-4" : "2e-4";
    const ErrorKind kind = world.rank() == 1 ? ErrorKind::kConfig : ErrorKind::kComm;
    EXPECT_THAT(error_of(kind,
                         [&] {
                           return self_check(world, {{"configuration", lr}});
                         }),
                HasSubstr("it has \"3e-4\", rank 0 \"2e-4\""));
  });
}

TEST(SelfCheckTest, ADifferenceThatMayBeIsNoError) {
  run_on_ranks(2, [](const Group& world) {
    const std::vector<Fact> facts = {{"GPU driver", std::to_string(world.rank()), false}};
    testing::internal::CaptureStderr();
    (void)self_check(world, facts);
    const std::string said = testing::internal::GetCapturedStderr();
    if (world.rank() == 0) {
      EXPECT_THAT(said, HasSubstr("another GPU driver than rank 0"));
      EXPECT_THAT(said, HasSubstr("it has \"1\", rank 0 \"0\""));
    }
  });
}

TEST(SelfCheckTest, NamesTheRanksThatDoNotCome) {
  run_on_ranks(4, [](const Group& world) {
    world.barrier();
    if (world.rank() == 1 || world.rank() == 3) {
      world.barrier();
      return;
    }
    const std::string error = error_of(ErrorKind::kComm, [&] {
      return self_check(world, {{"a", "1"}}, seconds(2));
    });
    EXPECT_THAT(error, HasSubstr("from ranks 1, 3"));
    world.barrier();  // the others and the store stay until all have looked
  });
}

}  // namespace self_check_test
}  // namespace kinora::comm
