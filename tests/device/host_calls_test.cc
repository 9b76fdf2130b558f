#include "kinora/device/host_calls.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <vector>

namespace kinora::device {
namespace host_calls_test {

TEST(HostCallsTest, RunInTurnOnAThreadOfTheirOwnUntilOneThrows) {
  HostCalls calls(c10::DeviceType::CPU);
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  for (int i = 0; i < 3; ++i) {
    calls.enqueue([&, i] {
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
    });
  }
  calls.check();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(threads, std::vector<std::thread::id>(3, threads.front()));
  EXPECT_NE(threads.front(), std::this_thread::get_id());
  calls.enqueue([] { throw std::runtime_error("the disk is gone"); });
  EXPECT_THROW(calls.check(), std::runtime_error);
  calls.enqueue([&] { order.push_back(3); });
  EXPECT_EQ(order.size(), 3U);
  EXPECT_THROW(calls.check(), std::runtime_error);
}

}  // namespace host_calls_test
}  // namespace kinora::device
