// The way to this machine itself. What leads to others is tested between hosts
// (apps/hosts_test.py).
#include "kinora/core/way_to.h"

#include <gtest/gtest.h>

namespace kinora {
namespace way_to_test {

constexpr int64_t kPort = 29500;

TEST(WayToTest, ThisMachineIsReachedByTheLoopback) {
  const std::optional<WayTo> way = way_to("127.0.1.1", kPort);
  ASSERT_TRUE(way.has_value());
  EXPECT_EQ(way->there, "127.0.1.1");
  EXPECT_EQ(way->here, "127.0.0.1");
  EXPECT_TRUE(way->is_loopback);
}

TEST(WayToTest, NoWayLeadsToWhatIsNoName) {
  EXPECT_FALSE(way_to("no such host", kPort).has_value());
}

}  // namespace way_to_test
}  // namespace kinora
