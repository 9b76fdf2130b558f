#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kinora/data/source.h"

namespace kinora::data {

/// A part of another source, which must outlive it; the classes stay those of the whole.
class SubsetSource : public Source {
 public:
  SubsetSource(const Source& whole, std::vector<int64_t> indices);

  [[nodiscard]] int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override {
    return whole_.class_names();
  }
  [[nodiscard]] std::optional<SampleShape> latent_shape() const override {
    return whole_.latent_shape();
  }
  [[nodiscard]] bool is_video() const override { return whole_.is_video(); }
  [[nodiscard]] std::optional<TextShape> text_shape() const override { return whole_.text_shape(); }
  [[nodiscard]] std::string sample_name(int64_t index) const override;
  void read(int64_t index, Sample& out) const override;

 private:
  const Source& whole_;
  std::vector<int64_t> indices_;
};

}  // namespace kinora::data
