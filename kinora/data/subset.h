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
  [[nodiscard]] std::optional<LatentShape> latent_shape_at(const PixelSize& size) const override {
    return whole_.latent_shape_at(size);
  }
  [[nodiscard]] bool has_latent_at(int64_t index, const PixelSize& size) const override {
    return whole_.has_latent_at(whole_index(index), size);
  }
  [[nodiscard]] LatentParts latent_parts() const override { return whole_.latent_parts(); }
  [[nodiscard]] bool is_video() const override { return whole_.is_video(); }
  [[nodiscard]] PicturesBeside beside() const override { return whole_.beside(); }
  [[nodiscard]] std::optional<TextShape> text_shape() const override { return whole_.text_shape(); }
  [[nodiscard]] std::string sample_name(int64_t index) const override;
  void read(int64_t index, Sample& out) const override;
  [[nodiscard]] SampleFacts facts(int64_t index) const override {
    return whole_.facts(whole_index(index));
  }
  [[nodiscard]] SampleFacts check(int64_t index, Sample& scratch) const override {
    return whole_.check(whole_index(index), scratch);
  }
  [[nodiscard]] uint64_t stamp(int64_t index) const override {
    return whole_.stamp(whole_index(index));
  }
  [[nodiscard]] const std::vector<PassedOver>& passed_over() const override {
    return whole_.passed_over();
  }

 private:
  [[nodiscard]] int64_t whole_index(int64_t index) const {
    return indices_[static_cast<size_t>(index)];
  }

  const Source& whole_;
  std::vector<int64_t> indices_;
};

}  // namespace kinora::data
