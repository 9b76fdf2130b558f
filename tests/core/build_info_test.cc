#include "kinora/core/build_info.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

namespace kinora {
namespace build_info_test {

TEST(BuildInfoTest, NamesVersionCompilerAndLibtorch) {
  const BuildInfo& info = build_info();
  EXPECT_EQ(std::count(info.version.begin(), info.version.end(), '.'), 2);
  EXPECT_EQ(info.libtorch, "2.11.0");
  EXPECT_NE(info.compiler.find(' '), std::string_view::npos);
  EXPECT_FALSE(info.build_type.empty());
  EXPECT_EQ(info.has_own_kernels, !info.cuda_architectures.empty());
}

TEST(BuildInfoTest, CommitIsAHashOrUnknown) {
  std::string_view commit = build_info().commit;
  if (commit == "unknown") {
    GTEST_SKIP() << "built without git";
  }
  if (commit.size() > 6 && commit.substr(commit.size() - 6) == "-dirty") {
    commit.remove_suffix(6);
  }
  EXPECT_GE(commit.size(), 12U);
  EXPECT_EQ(commit.find_first_not_of("0123456789abcdef"), std::string_view::npos) << commit;
}

}  // namespace build_info_test
}  // namespace kinora
