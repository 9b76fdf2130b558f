#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace kinora::prompts {

/// Of tools/reference/make_prompt_fixtures.py.
inline nlohmann::json records(const std::string& name) {
  std::ifstream file(std::string(KINORA_TEST_DATA) + "/prompts.json");
  EXPECT_TRUE(file.is_open());
  return nlohmann::json::parse(file).at(name);
}

}  // namespace kinora::prompts
