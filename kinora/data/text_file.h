#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kinora/core/dtype.h"
#include "kinora/data/mapped_strings.h"
#include "kinora/data/wrapped_source.h"
#include "kinora/io/safetensors.h"

namespace kinora::data {

/// Texts that a language model embedded before, in a safetensors file:
///
///     embeddings      F32, F16 or BF16 [S, D], the tokens of all texts one behind the other, or
///                     [K, L, D]
///     lengths         I64 [K], from 1: tokens that count; their sum is S
///     pooled          F32, F16 or BF16 [K, D2], may be missing
///     sample_to_text  I64 [N], from 0 to K - 1, may be missing
///     keys            U8, K texts one behind the other, and key_ends I64 [K], where each ends; may
///                     be missing: whose texts they are
///
/// The metadata keyed_by says what keys are: "name" (the default; names of samples, or their last
/// parts: "cat/7.jpg") or "caption". The file stays mapped and is read text by text.
class TextFile {
 public:
  /// Throws Error (kIo) for a file that cannot be read, lacks a tensor or holds one of another type
  /// or shape, and for values out of their range.
  explicit TextFile(const std::filesystem::path& path);

  [[nodiscard]] const TextShape& shape() const { return shape_; }
  [[nodiscard]] int64_t num_texts() const { return num_texts_; }

  /// sample_to_text; empty if the file has none.
  [[nodiscard]] const std::vector<int64_t>& sample_to_text() const { return sample_to_text_; }

  [[nodiscard]] bool has_keys() const { return !by_key_.empty(); }
  [[nodiscard]] bool keyed_by_caption() const { return keyed_by_caption_; }

  /// The text of a key, or of a sample's name: of the longest part behind a "/" or ":" that is a
  /// key, quotes left out.
  [[nodiscard]] std::optional<int64_t> find_key(std::string_view key) const;
  [[nodiscard]] std::optional<int64_t> find_name(std::string_view name) const;

  [[nodiscard]] const std::filesystem::path& path() const { return mapped_.path(); }

  /// Text `number` in [0, num_texts()). What lies behind its length becomes zero. Throws Error
  /// (kIo) for values that are NaN or infinite.
  void read(int64_t number, Text& out) const;

 private:
  struct Values {
    DType dtype = DType::kF32;
    std::span<const std::byte> bytes;
  };

  void read_keys();
  void read_shape();
  [[nodiscard]] Values values_of(const char* name, size_t min_dims, size_t max_dims) const;
  [[nodiscard]] std::vector<int64_t> integers_of(const char* name, int64_t min, int64_t max) const;
  void read_finite(const Values& values, int64_t first, std::span<float> out, int64_t number) const;

  io::SafetensorsFile mapped_;
  TextShape shape_;
  int64_t num_texts_ = 0;
  Values embeddings_;
  Values pooled_;
  std::vector<int64_t> lengths_;
  std::vector<int64_t> first_token_;  // of each text, in `embeddings`
  std::vector<int64_t> sample_to_text_;
  MappedStrings keys_;
  std::unordered_map<std::string_view, int64_t> by_key_;
  bool keyed_by_caption_ = false;
};

/// Gives the samples of another source their texts from a file: by key where it has keys (where a
/// sample has no caption its class name stands for one), else text sample_to_text[index] where the
/// file says so (N is then the number of samples), else the text of their class (K classes), else
/// one text a sample (K samples).
class TextFileSource : public WrappedSource {
 public:
  /// several_captions: samples have one or another caption each time. Throws Error as TextFile, and
  /// (kConfig) for a file of another number of texts or without those of some names, or that is not
  /// keyed by several captions. A sample without a text of its caption counts as unreadable.
  TextFileSource(std::unique_ptr<Source> inner, const std::filesystem::path& path,
                 bool several_captions = false);

  [[nodiscard]] std::optional<TextShape> text_shape() const override { return texts_.shape(); }
  void read(int64_t index, Sample& out) const override;

 private:
  void find_names();
  void check_count();

  TextFile texts_;
  std::vector<int64_t> by_index_;  // the text of each sample, where it is known before it is read
  bool by_class_ = false;
};

}  // namespace kinora::data
