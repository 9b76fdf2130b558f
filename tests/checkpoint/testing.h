#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/nn/linear.h"
#include "kinora/nn/module.h"
#include "kinora/optim/arena.h"

namespace kinora::checkpoint {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = testing::TempDir() + "kinora-checkpoint-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// The message of the Error of `kind` that `call` throws; the test fails if it throws none.
template <typename Call>
std::string refusal(ErrorKind kind, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

/// Two linears and a table that is no parameter.
class SmallModel : public nn::Module {
 public:
  explicit SmallModel(int64_t width = 6)
      : first(4, width, nn::Init::normal(0.5)),
        second(width, 2, nn::Init::normal(0.5), {.fp32_island = true}) {
    add_child("first", first);
    add_child("second", second);
    add_buffer("table", table);
  }

  [[nodiscard]] static std::vector<nn::BucketSpec> buckets() {
    return {{.name = "body", .parameters = {"first.weight", "first.bias"}, .fp32_island = false},
            {.name = "head", .parameters = {"second.weight", "second.bias"}, .fp32_island = true}};
  }

  nn::Linear first;
  nn::Linear second;
  at::Tensor table;  // [1, 3]
};

}  // namespace kinora::checkpoint
