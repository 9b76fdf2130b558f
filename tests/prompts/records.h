#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/places.h"

namespace kinora::prompts {

/// Of tools/reference/make_prompt_fixtures.py.
inline nlohmann::json records(const std::string& name) {
  std::ifstream file(source_path("tests/prompts/data/prompts.json"));
  EXPECT_TRUE(file.is_open());
  return nlohmann::json::parse(file).at(name);
}

}  // namespace kinora::prompts
