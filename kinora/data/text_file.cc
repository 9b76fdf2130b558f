#include "kinora/data/text_file.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/data/float_values.h"

namespace kinora::data {

TextFile::TextFile(const std::filesystem::path& path) : mapped_(io::SafetensorsFile::open(path)) {
  embeddings_ = values_of("embeddings", 3);
  const std::vector<int64_t>& shape = mapped_.find("embeddings")->shape;
  num_texts_ = shape[0];
  shape_ = {shape[1], shape[2], 0};
  lengths_ = integers_of("lengths", 1, shape_.length);
  KINORA_CHECK(std::ssize(lengths_) == num_texts_, kIo, "[text] ", path.string(),
               ": lengths must have shape [", num_texts_,
               "], one for each of the embeddings, got [", lengths_.size(), "]");
  if (mapped_.find("pooled") != nullptr) {
    pooled_ = values_of("pooled", 2);
    const std::vector<int64_t>& pooled = mapped_.find("pooled")->shape;
    KINORA_CHECK(pooled[0] == num_texts_, kIo, "[text] ", path.string(),
                 ": pooled must have shape [", num_texts_,
                 ", D2], one vector for each of the embeddings, got ", shape_text(pooled));
    shape_.pooled_channels = pooled[1];
  }
  if (mapped_.find("sample_to_text") != nullptr) {
    sample_to_text_ = integers_of("sample_to_text", 0, num_texts_ - 1);
  }
}

TextFile::Values TextFile::values_of(const char* name, size_t num_dims) const {
  const io::SafetensorsTensor* tensor = mapped_.find(name);
  const std::string file = mapped_.path().string();
  KINORA_CHECK(tensor != nullptr, kIo, "[text] ", file,
               " must hold the tensors embeddings [K, L, D] and lengths [K]; there is no ", name);
  KINORA_CHECK(is_float(tensor->dtype), kIo, "[text] ", file, ": ", name,
               " must be of type F32, F16 or BF16, got ", to_string(tensor->dtype));
  const auto is_empty = [](int64_t size) { return size == 0; };
  KINORA_CHECK(tensor->shape.size() == num_dims && std::ranges::none_of(tensor->shape, is_empty),
               kIo, "[text] ", file, ": ", name, " must have ", num_dims,
               " dims of at least 1, got ", shape_text(tensor->shape));
  return {tensor->dtype, tensor->data};
}

std::vector<int64_t> TextFile::integers_of(const char* name, int64_t min, int64_t max) const {
  const io::SafetensorsTensor* tensor = mapped_.find(name);
  const std::string file = mapped_.path().string();
  KINORA_CHECK(tensor != nullptr, kIo, "[text] ", file,
               " must hold the tensors embeddings [K, L, D] and lengths [K]; there is no ", name);
  KINORA_CHECK(tensor->dtype == DType::kI64 && tensor->shape.size() == 1, kIo, "[text] ", file,
               ": ", name, " must be of type I64 with 1 dim, got ", to_string(tensor->dtype), " ",
               shape_text(tensor->shape));
  std::vector<int64_t> values;
  for (int64_t i = 0; i < tensor->shape[0]; ++i) {
    values.push_back(value_at<int64_t>(tensor->data.data(), i));
    KINORA_CHECK(values.back() >= min && values.back() <= max, kIo, "[text] ", file, ": ", name,
                 " must be from ", min, " to ", max, ", got ", values.back(), " at ", i);
  }
  return values;
}

void TextFile::read_finite(const Values& values, int64_t first, std::span<float> out,
                           int64_t number) const {
  read_floats(values.bytes.data(), values.dtype, first, out);
  for (const float value : out) {
    KINORA_CHECK(std::isfinite(value), kIo, "[text] text ", number, " of ", path().string(),
                 " must be finite, got ", value);
  }
}

void TextFile::read(int64_t number, Text& out) const {
  const int64_t room = shape_.length * shape_.channels;
  out.length = lengths_[static_cast<size_t>(number)];
  out.tokens.assign(static_cast<size_t>(room), 0.0F);
  const auto used = static_cast<size_t>(out.length * shape_.channels);
  read_finite(embeddings_, number * room, std::span(out.tokens).first(used), number);
  out.pooled.resize(static_cast<size_t>(shape_.pooled_channels));
  if (!out.pooled.empty()) {
    read_finite(pooled_, number * shape_.pooled_channels, out.pooled, number);
  }
}

TextFileSource::TextFileSource(std::unique_ptr<Source> inner, const std::filesystem::path& path)
    : WrappedSource(std::move(inner)), texts_(path) {
  const auto num_mapped = std::ssize(texts_.sample_to_text());
  KINORA_CHECK(num_mapped == 0 || num_mapped == size(), kConfig, "[text] ", path.string(),
               ": sample_to_text must have one entry for each of the ", size(), " samples, got ",
               num_mapped);
  by_class_ = num_mapped == 0 && texts_.num_texts() == num_classes();
  KINORA_CHECK(num_mapped > 0 || by_class_ || texts_.num_texts() == size(), kConfig, "[text] ",
               path.string(), " must hold a text for each of the ", num_classes(),
               " classes or for each of the ", size(), " samples, got ", texts_.num_texts(),
               ". Hint: to share texts otherwise, add the tensor sample_to_text.");
}

void TextFileSource::read(int64_t index, Sample& out) const {
  WrappedSource::read(index, out);
  int64_t number = by_class_ ? out.label : index;
  if (!texts_.sample_to_text().empty()) {
    number = texts_.sample_to_text()[static_cast<size_t>(index)];
  }
  texts_.read(number, out.text);
}

}  // namespace kinora::data
