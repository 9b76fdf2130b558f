#include "kinora/io/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::io {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr size_t kLengthBytes = 8;
constexpr size_t kHeaderAlignment = 8;

/// Nothing when the shape has a negative dim or its bytes do not fit 63 bits.
std::optional<int64_t> size_in_bytes(const std::vector<int64_t>& shape, DType dtype) {
  auto bytes = static_cast<int64_t>(size_of(dtype));
  bool overflow = false;
  bool empty = false;
  for (const int64_t dim : shape) {
    if (dim < 0) {
      return std::nullopt;
    }
    // Zeros are left out of the product, so that [2^62, 2^62, 0] is refused as [2^62, 2^62] is.
    empty = empty || dim == 0;
    overflow = overflow || __builtin_mul_overflow(bytes, std::max<int64_t>(dim, 1), &bytes);
  }
  if (overflow) {
    return std::nullopt;
  }
  return empty ? 0 : bytes;
}

/// A tensor as the header describes it, not yet checked.
struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

/// Reads exactly the header's three levels of JSON, so nothing can nest deeper, and sees double
/// keys, which a parsed tree no longer shows.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(std::string file) : file_(std::move(file)) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool start_object(size_t /*elements*/) override {
    if (level_ == Level::kStart) {
      level_ = Level::kRoot;
    } else if (level_ == Level::kRoot && key_ == kMetadataKey) {
      level_ = Level::kMetadata;
    } else if (level_ == Level::kRoot) {
      level_ = Level::kTensor;
      entries.emplace_back().name = key_;
    } else {
      refuse("an object");
    }
    return true;
  }

  bool end_object() override {
    level_ = level_ == Level::kRoot ? Level::kStart : Level::kRoot;
    return true;
  }

  bool key(std::string& name) override {
    bool is_new = true;
    if (level_ == Level::kRoot) {
      is_new = names_.insert(name).second;
    } else if (level_ == Level::kMetadata) {
      is_new = !metadata.contains(name);
    } else {
      const Entry& entry = entries.back();
      is_new = !(name == "dtype"   ? entry.dtype.has_value()
                 : name == "shape" ? entry.shape.has_value()
                                   : entry.offsets.has_value());
      KINORA_CHECK(name == "dtype" || name == "shape" || name == "data_offsets", kIo,
                   "[safetensors] ", file_, ": tensor ", in_quotes(entry.name),
                   " must have only dtype, shape and data_offsets, got ", in_quotes(name));
    }
    KINORA_CHECK(is_new, kIo, "[safetensors] ", file_, ": names must be unique, got ",
                 in_quotes(name), " twice");
    key_ = name;
    return true;
  }

  bool string(std::string& value) override {
    if (level_ == Level::kMetadata) {
      metadata.emplace(key_, value);
    } else if (level_ == Level::kTensor && key_ == "dtype") {
      entries.back().dtype = value;
    } else {
      refuse("a string");
    }
    return true;
  }

  bool start_array(size_t /*elements*/) override {
    if (level_ == Level::kTensor && key_ == "shape") {
      level_ = Level::kNumbers;
      numbers_ = &entries.back().shape.emplace();
    } else if (level_ == Level::kTensor && key_ == "data_offsets") {
      level_ = Level::kNumbers;
      numbers_ = &entries.back().offsets.emplace();
    } else {
      refuse("an array");
    }
    return true;
  }

  bool end_array() override {
    level_ = Level::kTensor;
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (level_ != Level::kNumbers) {
      refuse("a number");
    }
    numbers_->push_back(value);
    return true;
  }

  bool null() override { refuse("null"); }
  bool boolean(bool /*value*/) override { refuse("true or false"); }
  bool number_integer(int64_t /*value*/) override { refuse("a negative number"); }
  bool number_float(double /*value*/, const std::string& /*text*/) override {
    refuse("a fraction or a number above 2^64");
  }
  bool binary(nlohmann::json::binary_t& /*value*/) override { refuse("binary data"); }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    throw_error(ErrorKind::kIo, "[safetensors] ", file_,
                ": the header must be valid JSON, got an error at its byte ", position);
  }

 private:
  enum class Level { kStart, kRoot, kMetadata, kTensor, kNumbers };

  [[noreturn]] void refuse(const char* what) const {
    const char* where = level_ == Level::kStart      ? "the header must be an object"
                        : level_ == Level::kRoot     ? "tensors and __metadata__ must be objects"
                        : level_ == Level::kMetadata ? "metadata must be strings"
                        : level_ == Level::kTensor
                            ? "dtype must be a string, shape and data_offsets arrays"
                            : "shape and data_offsets must be integers from 0 on";
    throw_error(ErrorKind::kIo, "[safetensors] ", file_, ": ", where, ", got ", what, " at ",
                in_quotes(level_ == Level::kNumbers ? entries.back().name : key_));
  }

  std::string file_;
  Level level_ = Level::kStart;
  std::string key_;
  std::set<std::string> names_;
  std::vector<uint64_t>* numbers_ = nullptr;
};

SafetensorsTensor checked_tensor(Entry&& entry, std::span<const std::byte> data,
                                 const std::string& file) {
  const std::string where = "[safetensors] " + file + ": tensor " + in_quotes(entry.name);
  KINORA_CHECK(entry.dtype && entry.shape && entry.offsets, kIo, where,
               " must have dtype, shape and data_offsets, got not all of them");
  const std::optional<DType> dtype = parse_dtype(*entry.dtype);
  KINORA_CHECK(dtype, kIo, where, " must have a known dtype, got ", in_quotes(*entry.dtype));

  SafetensorsTensor tensor;
  for (const uint64_t dim : *entry.shape) {
    KINORA_CHECK(std::in_range<int64_t>(dim), kIo, where, " must have dims below 2^63, got ", dim);
    tensor.shape.push_back(static_cast<int64_t>(dim));
  }
  KINORA_CHECK(entry.offsets->size() == 2, kIo, where, " must have 2 data_offsets, got ",
               entry.offsets->size());
  const uint64_t begin = entry.offsets->at(0);
  const uint64_t end = entry.offsets->at(1);
  KINORA_CHECK(begin <= end && end <= data.size(), kIo, where, " must lie within the ", data.size(),
               " bytes of data, got offsets ", begin, " to ", end,
               ". Hint: the file may be cut off.");
  const std::optional<int64_t> bytes = size_in_bytes(tensor.shape, *dtype);
  KINORA_CHECK(bytes && std::cmp_equal(*bytes, end - begin), kIo, where, " must have ",
               bytes ? std::to_string(*bytes) : "fewer than 2^63",
               " bytes by its shape and dtype, got ", end - begin);
  tensor.name = std::move(entry.name);
  tensor.dtype = *dtype;
  tensor.data = data.subspan(begin, end - begin);
  return tensor;
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile result{MappedFile(path)};
  const std::span<const std::byte> bytes = result.file_.bytes();
  const std::string file = path.string();
  KINORA_CHECK(bytes.size() >= kLengthBytes, kIo, "[safetensors] ", file,
               " must begin with 8 bytes of header length, got a file of ", bytes.size(), " bytes");
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | std::to_integer<uint64_t>(bytes[i]);
  }
  KINORA_CHECK(
      std::cmp_less_equal(length, kMaxSafetensorsHeader) && length <= bytes.size() - kLengthBytes,
      kIo, "[safetensors] ", file, " must have a header of at most ", kMaxSafetensorsHeader,
      " bytes within the file of ", bytes.size(), " bytes, got length ", length,
      ". Hint: this is no safetensors file, or cut off.");
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  KINORA_CHECK(length > 0 && text[0] == '{', kIo, "[safetensors] ", file,
               ": the header must begin with '{', got ",
               in_quotes(std::string_view(text, std::min<uint64_t>(length, 1))));

  HeaderReader header(file);
  nlohmann::json::sax_parse(text, text + length, &header);

  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + length);
  result.metadata_ = std::move(header.metadata);
  result.tensors_.reserve(header.entries.size());
  for (Entry& entry : header.entries) {
    result.tensors_.push_back(checked_tensor(std::move(entry), data, file));
  }
  std::ranges::stable_sort(result.tensors_, {}, [](const SafetensorsTensor& tensor) {
    return std::pair(tensor.data.data(), tensor.data.size());
  });

  // Every byte belongs to exactly one tensor: otherwise one file could hide another.
  size_t expected = 0;
  for (size_t i = 0; i < result.tensors_.size(); ++i) {
    const SafetensorsTensor& tensor = result.tensors_[i];
    const auto begin = static_cast<size_t>(tensor.data.data() - data.data());
    KINORA_CHECK(begin == expected, kIo, "[safetensors] ", file, ": tensor ",
                 in_quotes(tensor.name),
                 begin < expected ? " overlaps another" : " must follow the one before it",
                 ": must begin at data offset ", expected, ", got ", begin);
    expected += tensor.data.size();
    result.index_.emplace(tensor.name, i);
  }
  KINORA_CHECK(expected == data.size(), kIo, "[safetensors] ", file,
               ": the tensors must fill the file, got ", data.size() - expected,
               " bytes after the last one");
  return result;
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::string safetensors_header(const std::vector<SafetensorsSpec>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  std::set<std::string_view> names{kMetadataKey};
  std::string text = "{";
  int64_t end = 0;
  try {
    if (!metadata.empty()) {
      text += nlohmann::json(kMetadataKey).dump() + ":" + nlohmann::json(metadata).dump();
    }
    for (const SafetensorsSpec& spec : tensors) {
      const std::optional<int64_t> bytes = size_in_bytes(spec.shape, spec.dtype);
      const int64_t begin = end;
      KINORA_CHECK(names.insert(spec.name).second, kInternal,
                   "[safetensors] names must be unique, got ", in_quotes(spec.name), " twice");
      KINORA_CHECK(bytes && !__builtin_add_overflow(begin, *bytes, &end), kInternal,
                   "[safetensors] shapes must not be negative or above 2^63 bytes, got such for ",
                   in_quotes(spec.name));
      text += (text.size() > 1 ? "," : "") + nlohmann::json(spec.name).dump() + R"(:{"dtype":")" +
              std::string(to_string(spec.dtype)) + R"(","shape":)" +
              nlohmann::json(spec.shape).dump() + R"(,"data_offsets":[)" + std::to_string(begin) +
              "," + std::to_string(end) + "]}";
    }
  } catch (const nlohmann::json::exception&) {
    throw_error(ErrorKind::kInternal, "[safetensors] names and metadata must be UTF-8, got other ",
                "bytes");
  }
  text += "}";
  text.resize(round_up(text.size(), kHeaderAlignment), ' ');
  KINORA_CHECK(std::cmp_less_equal(text.size(), kMaxSafetensorsHeader), kInternal,
               "[safetensors] the header must have at most ", kMaxSafetensorsHeader, " bytes, got ",
               text.size());
  std::string length;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length += static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  return length + text;
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path,
                                     std::vector<SafetensorsSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)), temporary_(temporary_name(path_)), tensors_(std::move(tensors)) {
  std::ranges::stable_sort(tensors_, std::ranges::greater{},
                           [](const SafetensorsSpec& spec) { return size_of(spec.dtype); });
  const std::string text = safetensors_header(tensors_, metadata);
  for (const SafetensorsSpec& spec : tensors_) {
    sizes_.push_back(*size_in_bytes(spec.shape, spec.dtype));
  }

  writer_ = std::make_unique<FileWriter>(temporary_, FileWriter::Create::kNew);
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  checksum_.update(bytes);
  try {
    writer_->append(bytes);
  } catch (...) {
    ::unlink(temporary_.c_str());
    throw;
  }
  skip_complete();
}

SafetensorsWriter::~SafetensorsWriter() {
  if (writer_ != nullptr) {
    ::unlink(temporary_.c_str());
  }
}

void SafetensorsWriter::skip_complete() {
  while (current_ < tensors_.size() && written_ == sizes_[current_]) {
    ++current_;
    written_ = 0;
  }
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> data) {
  if (data.empty()) {
    return;
  }
  KINORA_CHECK(writer_ != nullptr, kInternal, "[safetensors] write after finish of ",
               path_.string());
  KINORA_CHECK(current_ < tensors_.size() && tensors_[current_].name == name, kInternal,
               "[safetensors] ", path_.string(), ": the next data must be of ",
               current_ < tensors_.size() ? in_quotes(tensors_[current_].name) : "no tensor",
               ", got ", in_quotes(name));
  KINORA_CHECK(std::cmp_less_equal(data.size(), sizes_[current_] - written_), kInternal,
               "[safetensors] ", path_.string(), ": tensor ", in_quotes(name), " must have ",
               sizes_[current_], " bytes, got ", static_cast<size_t>(written_) + data.size());
  writer_->append(data);
  checksum_.update(data);
  written_ += static_cast<int64_t>(data.size());
  skip_complete();
}

SafetensorsSummary SafetensorsWriter::finish() {
  KINORA_CHECK(writer_ != nullptr, kInternal, "[safetensors] finish called twice for ",
               path_.string());
  KINORA_CHECK(current_ == tensors_.size(), kInternal, "[safetensors] ", path_.string(),
               " must have all data before finish, got none or not all of ",
               in_quotes(tensors_[current_].name));
  writer_->sync();
  writer_->close();
  SafetensorsSummary summary{writer_->size(), checksum_.hex()};
  rename_durably(temporary_, path_);
  writer_.reset();
  return summary;
}

SafetensorsSummary write_safetensors(const std::filesystem::path& path,
                                     std::span<const SafetensorsTensor> tensors,
                                     const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsSpec> specs;
  std::unordered_map<std::string_view, std::span<const std::byte>> data;
  for (const SafetensorsTensor& tensor : tensors) {
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
    data.emplace(tensor.name, tensor.data);
  }
  SafetensorsWriter writer(path, std::move(specs), metadata);
  for (const SafetensorsSpec& spec : writer.tensors()) {
    writer.write(spec.name, data.at(spec.name));
  }
  return writer.finish();
}

}  // namespace kinora::io
