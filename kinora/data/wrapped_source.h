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
  [[nodiscard]] std::optional<LatentShape> latent_shape_at(const PixelSize& size) const override {
    return inner_->latent_shape_at(size);
  }
  [[nodiscard]] bool has_latent_at(int64_t index, const PixelSize& size) const override {
    return inner_->has_latent_at(index, size);
  }
  [[nodiscard]] LatentParts latent_parts() const override { return inner_->latent_parts(); }
  [[nodiscard]] bool is_video() const override { return inner_->is_video(); }
  [[nodiscard]] PicturesBeside beside() const override { return inner_->beside(); }
  [[nodiscard]] std::optional<TextShape> text_shape() const override {
    return inner_->text_shape();
  }
  [[nodiscard]] std::string sample_name(int64_t index) const override {
    return inner_->sample_name(index);
  }
  void read(int64_t index, Sample& out) const override { inner_->read(index, out); }
  [[nodiscard]] SampleFacts facts(int64_t index) const override { return inner_->facts(index); }
  [[nodiscard]] SampleFacts check(int64_t index, Sample& scratch) const override {
    return inner_->check(index, scratch);
  }
  [[nodiscard]] uint64_t stamp(int64_t index) const override { return inner_->stamp(index); }
  [[nodiscard]] const std::vector<PassedOver>& passed_over() const override {
    return inner_->passed_over();
  }

 protected:
  explicit WrappedSource(std::unique_ptr<Source> inner) : inner_(std::move(inner)) {}

 private:
  std::unique_ptr<Source> inner_;
};

}  // namespace kinora::data
