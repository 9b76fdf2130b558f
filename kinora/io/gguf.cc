#include "kinora/io/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "kinora/core/dtype.h"
#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::io {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::string_view kAlignmentKey = "general.alignment";
constexpr std::string_view kShapeKey = "comfy.gguf.orig_shape.";
constexpr size_t kMostDims = 8;
constexpr uint64_t kMostAlignment = 1 << 20;

/// How values of a type lie in blocks.
struct Layout {
  GgufType type;
  std::string_view name;
  int64_t elements;  ///< of a block
  int64_t bytes;
};

constexpr Layout kLayouts[] = {
    {GgufType::kF32, "F32", 1, 4},       {GgufType::kF16, "F16", 1, 2},
    {GgufType::kQ4_0, "Q4_0", 32, 18},   {GgufType::kQ8_0, "Q8_0", 32, 34},
    {GgufType::kQ4_K, "Q4_K", 256, 144}, {GgufType::kQ5_K, "Q5_K", 256, 176},
    {GgufType::kQ6_K, "Q6_K", 256, 210}, {GgufType::kBF16, "BF16", 1, 2},
};

const Layout* layout_of(uint32_t type) {
  const auto* const found = std::ranges::find(kLayouts, static_cast<GgufType>(type), &Layout::type);
  return found == std::end(kLayouts) ? nullptr : found;
}

/// Types of values, by their numbers.
enum class ValueType : uint32_t { kBool = 7, kString = 8, kArray = 9 };

/// Bytes of a number or bool; nothing for others.
std::optional<size_t> size_of_value(uint32_t type) {
  constexpr size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kSizes) && kSizes[type] > 0 ? std::optional(kSizes[type]) : std::nullopt;
}

/// Reads what lies before the data.
class Header {
 public:
  Header(std::span<const std::byte> bytes, std::string file)
      : bytes_(bytes), file_(std::move(file)) {}

  [[nodiscard]] size_t position() const { return position_; }
  [[nodiscard]] std::string where() const { return "[gguf] " + file_ + ": "; }

  std::span<const std::byte> take(uint64_t count, const char* what) {
    KINORA_CHECK(count <= bytes_.size() - position_, kIo, where(), what, " of ", count,
                 " bytes must lie within the file, of which ", bytes_.size() - position_,
                 " are left. Hint: the file may be cut off.");
    const auto part = bytes_.subspan(position_, count);
    position_ += count;
    return part;
  }

  template <typename T>
  T number(const char* what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string text(const char* what) {
    const auto part = take(number<uint64_t>(what), what);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }

  /// Passes over `count` values of a type; nested arrays are none of the format's.
  void skip(uint32_t type, uint64_t count) {
    if (type == static_cast<uint32_t>(ValueType::kString)) {
      for (uint64_t i = 0; i < count; ++i) {
        take(number<uint64_t>("a text"), "a text");
      }
      return;
    }
    const auto size = size_of_value(type);
    KINORA_CHECK(size, kIo, where(), "values must be numbers, texts or arrays of these, got type ",
                 type);
    KINORA_CHECK(count <= bytes_.size() / *size, kIo, where(), "an array of ", count,
                 " values must lie within the file's ", bytes_.size(), " bytes");
    take(count * *size, "an array");
  }

 private:
  std::span<const std::byte> bytes_;
  std::string file_;
  size_t position_ = 0;
};

/// What the keys say that matters here.
struct Values {
  std::map<std::string, std::string> texts;
  std::map<std::string, std::vector<int64_t>> shapes;  // by tensor
  uint64_t alignment = 32;
};

/// An array of whole numbers of 32 bits.
std::vector<int64_t> read_shape(Header& header, uint64_t count, const std::string& key) {
  KINORA_CHECK(count >= 1 && count <= kMostDims, kIo, header.where(), in_quotes(key),
               " must have 1 to ", kMostDims, " dims, got ", count);
  std::vector<int64_t> shape;
  for (uint64_t i = 0; i < count; ++i) {
    shape.push_back(header.number<int32_t>("a shape"));
  }
  return shape;
}

void read_value(Header& header, Values& values, std::set<std::string>& keys) {
  const std::string key = header.text("a key");
  KINORA_CHECK(keys.insert(key).second, kIo, header.where(), "keys must be unique, got ",
               in_quotes(key), " twice");
  const auto type = header.number<uint32_t>("a value's type");
  if (type == static_cast<uint32_t>(ValueType::kString)) {
    values.texts.emplace(key, header.text("a text"));
  } else if (type == static_cast<uint32_t>(ValueType::kArray)) {
    constexpr uint32_t kInt32 = 5;
    const auto element = header.number<uint32_t>("an array's type");
    const auto count = header.number<uint64_t>("an array's length");
    if (key.starts_with(kShapeKey) && element == kInt32) {
      values.shapes.emplace(key.substr(kShapeKey.size()), read_shape(header, count, key));
    } else {
      header.skip(element, count);
    }
  } else if (key == kAlignmentKey) {
    constexpr uint32_t kUint32 = 4;
    KINORA_CHECK(type == kUint32, kIo, header.where(), kAlignmentKey,
                 " must be a number of 32 bits, got type ", type);
    values.alignment = header.number<uint32_t>("the alignment");
    KINORA_CHECK(values.alignment >= 1 && values.alignment <= kMostAlignment, kIo, header.where(),
                 kAlignmentKey, " must be 1 to ", kMostAlignment, ", got ", values.alignment);
  } else {
    header.skip(type, 1);
  }
}

/// A tensor as it is described, and where its data begin behind the header.
struct Entry {
  GgufTensor tensor;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

int64_t product(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(count, dim, &count)) {
      return -1;
    }
  }
  return count;
}

Entry read_entry(Header& header, const Values& values) {
  Entry entry;
  entry.tensor.name = header.text("a name");
  const std::string where = header.where() + "tensor " + in_quotes(entry.tensor.name);
  const auto dims = header.number<uint32_t>("a number of dims");
  KINORA_CHECK(dims >= 1 && dims <= kMostDims, kIo, where, " must have 1 to ", kMostDims,
               " dims, got ", dims);
  for (uint32_t i = 0; i < dims; ++i) {
    const auto dim = header.number<uint64_t>("a dim");
    KINORA_CHECK(std::in_range<int64_t>(dim), kIo, where, " must have dims below 2^63, got ", dim);
    entry.tensor.shape.insert(entry.tensor.shape.begin(), static_cast<int64_t>(dim));
  }
  const auto type = header.number<uint32_t>("a tensor's type");
  const Layout* const layout = layout_of(type);
  KINORA_CHECK(
      layout != nullptr, kIo, where,
      " must be of type F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K or Q6_K, got ggml's number ", type,
      ". Hint: take a file of another quantisation");
  entry.tensor.type = layout->type;
  const int64_t row = entry.tensor.shape.back();
  KINORA_CHECK(row % layout->elements == 0, kIo, where, " must have rows of whole blocks of ",
               layout->elements, " elements, got ", row);
  const int64_t count = product(entry.tensor.shape);
  int64_t bytes = 0;
  KINORA_CHECK(
      count >= 0 && !__builtin_mul_overflow(count / layout->elements, layout->bytes, &bytes), kIo,
      where, " must have fewer than 2^63 bytes");
  entry.bytes = static_cast<uint64_t>(bytes);
  entry.offset = header.number<uint64_t>("an offset");
  if (const auto found = values.shapes.find(entry.tensor.name); found != values.shapes.end()) {
    KINORA_CHECK(product(found->second) == count, kIo, where, " has ", count,
                 " elements, but another number by ", kShapeKey);
    entry.tensor.shape = found->second;
  }
  return entry;
}

// ---- values ----

float half(const std::byte* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  const uint32_t sign = static_cast<uint32_t>(bits >> 15) << 31;
  const uint32_t rest = static_cast<uint32_t>(bits & 0x7fffU) << 13;
  constexpr uint32_t kNotFinite = 0x1fU << 23;
  if ((rest & kNotFinite) == kNotFinite) {
    return std::bit_cast<float>(sign | 0x7f800000U | (rest & 0x7fffffU));
  }
  // Exponents begin 112 later; what has none becomes normal by the product, too.
  const float magnitude = std::bit_cast<float>(rest) * 0x1p112F;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

uint32_t byte_at(const std::byte* bytes, int64_t index) {
  return std::to_integer<uint32_t>(bytes[index]);
}

/// The scale and the minimum, of six bits each, of part `j` of eight of a block of Q4_K or Q5_K.
struct ScaleAndLeast {
  float scale;
  float least;
};
ScaleAndLeast scale_of(const std::byte* scales, int64_t j) {
  if (j < 4) {
    return {static_cast<float>(byte_at(scales, j) & 63U),
            static_cast<float>(byte_at(scales, j + 4) & 63U)};
  }
  const uint32_t low = byte_at(scales, j + 4);
  return {static_cast<float>((low & 15U) | (byte_at(scales, j - 4) >> 6 << 4)),
          static_cast<float>((low >> 4) | (byte_at(scales, j) >> 6 << 4))};
}

/// Nibble `i` of 64 that lie in 32 bytes, all lower ones first.
uint32_t nibble(const std::byte* bytes, int64_t i) {
  return (byte_at(bytes, i % 32) >> (i / 32 * 4)) & 15U;
}

/// Of Q4_K, and with `fifth` bits of Q5_K.
void read_k(const std::byte* block, const std::byte* fifth, const std::byte* nibbles, float* out) {
  constexpr int64_t kPart = 32;
  const float d = half(block);
  const float d_least = half(block + 2);
  for (int64_t j = 0; j < 8; ++j) {
    const auto [scale, least] = scale_of(block + 4, j);
    const float step = d * scale;
    const float offset = d_least * least;
    for (int64_t i = 0; i < kPart; ++i) {
      uint32_t code = nibble(nibbles + j / 2 * kPart, j % 2 * kPart + i);
      if (fifth != nullptr) {
        code |= ((byte_at(fifth, i) >> j) & 1U) << 4;
      }
      out[j * kPart + i] = step * static_cast<float>(code) - offset;
    }
  }
}

void read_q6_k(const std::byte* block, float* out) {
  const std::byte* const low = block;
  const std::byte* const high = block + 128;
  const std::byte* const scales = block + 192;
  const float d = half(block + 208);
  for (int64_t i = 0; i < 256; ++i) {
    const int64_t part = i / 128;
    const int64_t within = i % 128;
    const uint32_t four = (byte_at(low, part * 64 + within % 64) >> (within / 64 * 4)) & 15U;
    const uint32_t two = (byte_at(high, part * 32 + within % 32) >> (within / 32 * 2)) & 3U;
    const float step = d * static_cast<float>(static_cast<int8_t>(byte_at(scales, i / 16)));
    out[i] = step * static_cast<float>(static_cast<int32_t>(four | (two << 4)) - 32);
  }
}

void read_block(GgufType type, const std::byte* block, float* out) {
  switch (type) {
    case GgufType::kF32:
      std::memcpy(out, block, sizeof(float));
      return;
    case GgufType::kF16:
      *out = half(block);
      return;
    case GgufType::kBF16: {
      uint16_t bits;
      std::memcpy(&bits, block, sizeof(bits));
      *out = bf16_to_float(bits);
      return;
    }
    case GgufType::kQ8_0:
      for (int64_t i = 0; i < 32; ++i) {
        out[i] = half(block) * static_cast<float>(static_cast<int8_t>(byte_at(block + 2, i)));
      }
      return;
    case GgufType::kQ4_0:
      for (int64_t i = 0; i < 32; ++i) {
        const uint32_t code = (byte_at(block + 2, i % 16) >> (i / 16 * 4)) & 15U;
        out[i] = half(block) * static_cast<float>(static_cast<int32_t>(code) - 8);
      }
      return;
    case GgufType::kQ4_K:
      return read_k(block, nullptr, block + 16, out);
    case GgufType::kQ5_K:
      return read_k(block, block + 16, block + 48, out);
    case GgufType::kQ6_K:
      return read_q6_k(block, out);
  }
}

}  // namespace

std::string_view to_string(GgufType type) {
  return layout_of(static_cast<uint32_t>(type))->name;
}

int64_t num_elements(const GgufTensor& tensor) {
  return product(tensor.shape);
}

void read_floats(const GgufTensor& tensor, int64_t begin, int64_t end, std::span<float> out) {
  const Layout& layout = *layout_of(static_cast<uint32_t>(tensor.type));
  KINORA_CHECK(begin >= 0 && begin <= end && end <= num_elements(tensor) &&
                   begin % layout.elements == 0 && end % layout.elements == 0 &&
                   std::cmp_equal(out.size(), end - begin),
               kInternal, "[gguf] elements ", begin, " to ", end, " of ", tensor.name,
               " must be whole blocks of ", layout.elements, ", and out must have room for them");
  for (int64_t first = begin; first < end; first += layout.elements) {
    read_block(tensor.type, tensor.data.data() + first / layout.elements * layout.bytes,
               out.data() + (first - begin));
  }
}

GgufFile GgufFile::open(const std::filesystem::path& path) {
  GgufFile file{MappedFile(path)};
  const std::span<const std::byte> bytes = file.file_.bytes();
  Header header(bytes, path.string());
  const auto magic = header.take(kMagic.size(), "the magic number");
  KINORA_CHECK(std::memcmp(magic.data(), kMagic.data(), kMagic.size()) == 0, kIo, header.where(),
               "a GGUF file must begin with ", kMagic);
  const auto version = header.number<uint32_t>("the version");
  KINORA_CHECK(version == 2 || version == 3, kIo, header.where(),
               "the version must be 2 or 3, got ", version);
  const auto num_tensors = header.number<uint64_t>("a count");
  const auto num_values = header.number<uint64_t>("a count");
  Values values;
  std::set<std::string> keys;
  for (uint64_t i = 0; i < num_values; ++i) {
    read_value(header, values, keys);
  }
  std::vector<Entry> entries;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    entries.push_back(read_entry(header, values));
  }
  const uint64_t begin = round_up(header.position(), values.alignment);
  const uint64_t size = begin <= bytes.size() ? bytes.size() - begin : 0;
  for (Entry& entry : entries) {
    GgufTensor& tensor = entry.tensor;
    KINORA_CHECK(entry.offset <= size && entry.bytes <= size - entry.offset, kIo, header.where(),
                 "tensor ", in_quotes(tensor.name), " must lie within the ", size,
                 " bytes of data, got ", entry.bytes, " from ", entry.offset,
                 " on. Hint: the file may be cut off.");
    if (entry.bytes > 0) {
      tensor.data = bytes.subspan(begin + entry.offset, entry.bytes);
    }
    file.tensors_.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < file.tensors_.size(); ++i) {
    KINORA_CHECK(file.index_.emplace(file.tensors_[i].name, i).second, kIo, header.where(),
                 "names must be unique, got ", in_quotes(file.tensors_[i].name), " twice");
  }
  file.metadata_ = std::move(values.texts);
  return file;
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace kinora::io
