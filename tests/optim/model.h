#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kinora/nn/module.h"
#include "kinora/nn/plan.h"

namespace kinora::optim {

/// Parameters without a model around them.
class TestParameters {
 public:
  nn::Parameter& add(const std::string& path, std::vector<int64_t> shape,
                     nn::Init init = nn::Init::normal(0.5), bool fp32_island = false) {
    owned_.push_back(std::make_unique<nn::Parameter>());
    nn::Parameter& parameter = *owned_.back();
    parameter.shape = std::move(shape);
    parameter.init = init;
    parameter.fp32_island = fp32_island;
    named_.push_back({path, &parameter});
    return parameter;
  }

  [[nodiscard]] const std::vector<nn::NamedParameter>& named() const { return named_; }

  /// One bucket of everything.
  [[nodiscard]] std::vector<nn::BucketSpec> one_bucket() const {
    nn::BucketSpec spec{"all", {}, false};
    for (const nn::NamedParameter& named : named_) {
      spec.parameters.push_back(named.path);
    }
    return {spec};
  }

 private:
  std::vector<std::unique_ptr<nn::Parameter>> owned_;
  std::vector<nn::NamedParameter> named_;
};

}  // namespace kinora::optim
