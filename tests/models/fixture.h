#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "kinora/io/safetensors.h"
#include "kinora/ops/host_bytes.h"

namespace kinora::models {

/// A committed file of tools/reference, whose README lists the tensors.
class Fixture {
 public:
  explicit Fixture(const std::string& name)
      : file_(io::SafetensorsFile::open(std::string(KINORA_TEST_DATA) + "/" + name)) {}

  [[nodiscard]] at::Tensor tensor(const std::string& name) const {
    const io::SafetensorsTensor* found = file_.find(name);
    EXPECT_NE(found, nullptr) << "no tensor " << name;
    return ops::tensor_from_bytes(found->dtype, found->shape, found->data);
  }

  [[nodiscard]] bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  [[nodiscard]] const std::string& metadata(const std::string& key) const {
    return file_.metadata().at(key);
  }

 private:
  io::SafetensorsFile file_;
};

}  // namespace kinora::models
