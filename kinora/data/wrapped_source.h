#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kinora/data/source.h"

namespace kinora::data {

/// What adds something to the samples of another source, and is that source in all else.
class WrappedSource : public Source {
 public:
  [[nodiscard]] int64_t size() const override { return inner_->size(); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override {
    return inner_->class_names();
  }
  [[nodiscard]] std::optional<SampleShape> latent_shape() const override {
    return inner_->latent_shape();
  }
  [[nodiscard]] bool is_video() const override { return inner_->is_video(); }
  [[nodiscard]] std::optional<TextShape> text_shape() const override {
    return inner_->text_shape();
  }
  [[nodiscard]] std::string sample_name(int64_t index) const override {
    return inner_->sample_name(index);
  }
  void read(int64_t index, Sample& out) const override { inner_->read(index, out); }

 protected:
  explicit WrappedSource(std::unique_ptr<Source> inner) : inner_(std::move(inner)) {}

 private:
  std::unique_ptr<Source> inner_;
};

}  // namespace kinora::data
