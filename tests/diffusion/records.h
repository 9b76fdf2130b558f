#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/places.h"

namespace kinora::diffusion {

/// A named array of a fixture.
struct Record {
  std::vector<int64_t> shape;
  std::vector<double> values;
};

/// A text file of tools/make_diffusion_fixtures.py: a record a line, its name, number of dims, dims
/// and values.
class Records {
 public:
  explicit Records(const std::string& name) {
    std::ifstream file(source_path("tests/diffusion/data/").string() + name);
    EXPECT_TRUE(file.is_open()) << name;
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string key;
      size_t dims = 0;
      words >> key >> dims;
      Record record;
      record.shape.resize(dims);
      size_t count = 1;
      for (int64_t& size : record.shape) {
        words >> size;
        count *= static_cast<size_t>(size);
      }
      for (std::string word; words >> word;) {
        record.values.push_back(std::strtod(word.c_str(), nullptr));
      }
      EXPECT_EQ(record.values.size(), count) << key;
      records_[key] = record;
    }
  }

  [[nodiscard]] const Record& at(const std::string& name) const { return records_.at(name); }
  [[nodiscard]] const std::vector<double>& values(const std::string& name) const {
    return at(name).values;
  }

 private:
  std::map<std::string, Record> records_;
};

}  // namespace kinora::diffusion
