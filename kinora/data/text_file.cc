#include "kinora/data/text_file.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/data/float_values.h"

namespace kinora::data {

TextFile::TextFile(const std::filesystem::path& path) : mapped_(io::SafetensorsFile::open(path)) {
  embeddings_ = values_of("embeddings", 2, 3);
  read_shape();
  if (mapped_.find("pooled") != nullptr) {
    pooled_ = values_of("pooled", 2, 2);
    const std::vector<int64_t>& pooled = mapped_.find("pooled")->shape;
    KINORA_CHECK(pooled[0] == num_texts_, kIo, "[text] ", path.string(),
                 ": pooled must have shape [", num_texts_,
                 ", D2], one vector for each of the embeddings, got ", shape_text(pooled));
    shape_.pooled_channels = pooled[1];
  }
  if (mapped_.find("sample_to_text") != nullptr) {
    sample_to_text_ = integers_of("sample_to_text", 0, num_texts_ - 1);
  }
  if (mapped_.find("keys") != nullptr) {
    read_keys();
  }
}

void TextFile::read_shape() {
  const std::vector<int64_t>& shape = mapped_.find("embeddings")->shape;
  const std::string file = path().string();
  if (shape.size() == 3) {  // every text has the same room
    num_texts_ = shape[0];
    shape_ = {shape[1], shape[2], 0};
    lengths_ = integers_of("lengths", 1, shape_.length);
    KINORA_CHECK(std::ssize(lengths_) == num_texts_, kIo, "[text] ", file,
                 ": lengths must have shape [", num_texts_,
                 "], one for each of the embeddings, got [", lengths_.size(), "]");
    for (int64_t i = 0; i < num_texts_; ++i) {
      first_token_.push_back(i * shape_.length);
    }
    return;
  }
  lengths_ = integers_of("lengths", 1, shape[0]);
  num_texts_ = std::ssize(lengths_);
  int64_t tokens = 0;
  int64_t longest = 0;
  for (const int64_t length : lengths_) {
    first_token_.push_back(tokens);
    tokens += length;  // each is at most shape[0], and there are fewer than the file has bytes
    longest = std::max(longest, length);
    KINORA_CHECK(tokens <= shape[0], kIo, "[text] ", file, ": lengths must add up to the ",
                 shape[0], " embeddings, got more");
  }
  KINORA_CHECK(tokens == shape[0], kIo, "[text] ", file, ": lengths must add up to the ", shape[0],
               " embeddings, got ", tokens);
  shape_ = {longest, shape[1], 0};
}

void TextFile::read_keys() {
  const auto keyed_by = mapped_.metadata().find("keyed_by");
  const std::string by = keyed_by == mapped_.metadata().end() ? "name" : keyed_by->second;
  KINORA_CHECK(by == "name" || by == "caption", kIo, "[text] ", path().string(),
               ": the metadata keyed_by must be name or caption, got ", io::in_quotes(by));
  keyed_by_caption_ = by == "caption";
  keys_ = MappedStrings(mapped_, "key");
  KINORA_CHECK(keys_.size() == num_texts_, kIo, "[text] ", path().string(), " must have ",
               num_texts_, " keys, one for each of the embeddings, got ", keys_.size());
  for (int64_t i = 0; i < num_texts_; ++i) {
    KINORA_CHECK(by_key_.emplace(keys_.at(i), i).second, kIo, "[text] ", path().string(),
                 ": keys must be unique, got twice ", io::in_quotes(keys_.at(i)));
  }
}

std::optional<int64_t> TextFile::find_key(std::string_view key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<int64_t> TextFile::find_name(std::string_view name) const {
  if (name.ends_with('"')) {
    name.remove_suffix(1);
  }
  while (true) {
    if (const auto found = find_key(name)) {
      return found;
    }
    const size_t separator = name.find_first_of("/:\"");
    if (separator == std::string_view::npos) {
      return std::nullopt;
    }
    name.remove_prefix(separator + 1);
  }
}

TextFile::Values TextFile::values_of(const char* name, size_t min_dims, size_t max_dims) const {
  const io::SafetensorsTensor* tensor = mapped_.find(name);
  const std::string file = mapped_.path().string();
  KINORA_CHECK(
      tensor != nullptr, kIo, "[text] ", file,
      " must hold the tensors embeddings [S, D] or [K, L, D] and lengths [K]; there is no ", name);
  KINORA_CHECK(is_float(tensor->dtype), kIo, "[text] ", file, ": ", name,
               " must be of type F32, F16 or BF16, got ", to_string(tensor->dtype));
  const auto is_empty = [](int64_t size) { return size == 0; };
  const size_t dims = tensor->shape.size();
  KINORA_CHECK(
      dims >= min_dims && dims <= max_dims && std::ranges::none_of(tensor->shape, is_empty), kIo,
      "[text] ", file, ": ", name, " must have ", min_dims,
      max_dims > min_dims ? " or " + std::to_string(max_dims) : std::string(),
      " dims of at least 1, got ", shape_text(tensor->shape));
  return {tensor->dtype, tensor->data};
}

std::vector<int64_t> TextFile::integers_of(const char* name, int64_t min, int64_t max) const {
  const io::SafetensorsTensor* tensor = mapped_.find(name);
  const std::string file = mapped_.path().string();
  KINORA_CHECK(
      tensor != nullptr, kIo, "[text] ", file,
      " must hold the tensors embeddings [S, D] or [K, L, D] and lengths [K]; there is no ", name);
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
  out.length = lengths_[static_cast<size_t>(number)];
  out.tokens.assign(static_cast<size_t>(shape_.length * shape_.channels), 0.0F);
  const auto used = static_cast<size_t>(out.length * shape_.channels);
  read_finite(embeddings_, first_token_[static_cast<size_t>(number)] * shape_.channels,
              std::span(out.tokens).first(used), number);
  out.pooled.resize(static_cast<size_t>(shape_.pooled_channels));
  if (!out.pooled.empty()) {
    read_finite(pooled_, number * shape_.pooled_channels, out.pooled, number);
  }
}

TextFileSource::TextFileSource(std::unique_ptr<Source> inner, const std::filesystem::path& path,
                               bool several_captions)
    : WrappedSource(std::move(inner)), texts_(path), by_index_(texts_.sample_to_text()) {
  KINORA_CHECK(!several_captions || texts_.keyed_by_caption(), kConfig, "[text] ", path.string(),
               " must be keyed by caption where data.captions is random. Hint: kinora data encode "
               "or encode-texts makes such a file");
  if (!texts_.has_keys()) {
    check_count();
  } else if (!texts_.keyed_by_caption()) {
    find_names();
  }
}

void TextFileSource::find_names() {
  constexpr size_t kNumNamed = 4;
  std::vector<std::string> missing;
  by_index_.assign(static_cast<size_t>(size()), 0);
  for (int64_t i = 0; i < size(); ++i) {
    const std::string name = sample_name(i);
    const std::optional<int64_t> text = texts_.find_name(name);
    if (!text) {
      missing.push_back(name);
    }
    by_index_[static_cast<size_t>(i)] = text.value_or(0);
  }
  KINORA_CHECK(missing.empty(), kConfig, "[text] ", texts_.path().string(),
               " must hold a text for each of the ", size(), " samples, got none for ",
               missing.size(), " of them: ", list_names(missing, kNumNamed),
               ". Hint: keys are names as these are, or their last parts");
}

void TextFileSource::check_count() {
  const auto num_mapped = std::ssize(by_index_);
  KINORA_CHECK(num_mapped == 0 || num_mapped == size(), kConfig, "[text] ", texts_.path().string(),
               ": sample_to_text must have one entry for each of the ", size(), " samples, got ",
               num_mapped);
  by_class_ = num_mapped == 0 && texts_.num_texts() == num_classes();
  KINORA_CHECK(num_mapped > 0 || by_class_ || texts_.num_texts() == size(), kConfig, "[text] ",
               texts_.path().string(), " must hold a text for each of the ", num_classes(),
               " classes or for each of the ", size(), " samples, got ", texts_.num_texts(),
               ". Hint: to share texts otherwise, add the tensors keys and key_ends");
}

void TextFileSource::read(int64_t index, Sample& out) const {
  WrappedSource::read(index, out);
  int64_t number = by_class_ ? out.label : index;
  if (!by_index_.empty()) {
    number = by_index_[static_cast<size_t>(index)];
  } else if (texts_.has_keys()) {
    const std::string& caption =
        out.caption.empty() ? class_names()[static_cast<size_t>(out.label)] : out.caption;
    const std::optional<int64_t> found = texts_.find_key(caption);
    KINORA_CHECK(found, kIo, "[text] ", texts_.path().string(), " has no text for the caption ",
                 io::in_quotes(caption), " of ", sample_name(index));
    number = *found;
  }
  texts_.read(number, out.text);
}

}  // namespace kinora::data
