#include "kinora/io/npz.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::io {
namespace {

constexpr std::string_view kSuffix = ".npy";
constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kPrefix = 10;          // magic, version, 16-bit length of the text
constexpr size_t kLongPrefix = 12;      // the same with a 32-bit length, versions 2 and 3
constexpr size_t kMaxHeader = 1 << 16;  // NumPy itself reads 10,000 characters
constexpr size_t kMaxDims = 64;         // as NumPy 2
constexpr size_t kHeaderMultiple = 64;  // NumPy aligns the data by it
constexpr size_t kMaxNamesInMessage = 8;

struct TypeName {
  std::string_view name;
  DType dtype;
};
constexpr TypeName kTypes[] = {{"b1", DType::kBool}, {"u1", DType::kU8},  {"i1", DType::kI8},
                               {"i2", DType::kI16},  {"i4", DType::kI32}, {"i8", DType::kI64},
                               {"f2", DType::kF16},  {"f4", DType::kF32}, {"f8", DType::kF64}};

/// What stands before the data of an array.
struct Header {
  DType dtype = DType::kF32;
  bool is_big_endian = false;
  bool is_fortran = false;  ///< the first dim varies fastest
  std::vector<int64_t> shape;
  size_t size = 0;  ///< bytes, with the magic
};

/// Reads the text of a header: a dict of Python with three known keys.
class HeaderText {
 public:
  HeaderText(std::string_view text, const std::string& name) : rest_(text), name_(name) {}

  Header read() {
    Header header;
    bool has_type = false;
    bool has_order = false;
    bool has_shape = false;
    expect('{');
    while (!take('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr" && !has_type) {
        has_type = true;
        read_type(header);
      } else if (key == "fortran_order" && !has_order) {
        has_order = true;
        header.is_fortran = boolean();
      } else if (key == "shape" && !has_shape) {
        has_shape = true;
        header.shape = tuple();
      } else {
        fail("an unknown or double key");
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!rest_.empty() || !has_type || !has_order || !has_shape) {
      fail("a dict that lacks a key, or text behind it");
    }
    return header;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw_error(ErrorKind::kIo, "[npz] ", name_,
                " must begin with a dict of descr, fortran_order and shape, got ", what);
  }
  void skip_space() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n')) {
      rest_.remove_prefix(1);
    }
  }
  bool take(char c) {
    skip_space();
    const bool found = !rest_.empty() && rest_.front() == c;
    rest_.remove_prefix(found ? 1 : 0);
    return found;
  }
  void expect(char c) {
    if (!take(c)) {
      fail("something else than " + std::string(1, c));
    }
  }
  bool take_word(std::string_view word) {
    skip_space();
    const bool found = rest_.starts_with(word);
    rest_.remove_prefix(found ? word.size() : 0);
    return found;
  }
  std::string_view quoted() {
    skip_space();
    const char quote = rest_.empty() ? '\0' : rest_.front();
    const size_t end =
        quote == '\'' || quote == '"' ? rest_.find(quote, 1) : std::string_view::npos;
    if (end == std::string_view::npos) {
      fail("no text in quotes where one belongs");
    }
    const std::string_view text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return text;
  }
  bool boolean() {
    const bool value = take_word("True");
    if (!value && !take_word("False")) {
      fail("neither True nor False");
    }
    return value;
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> values;
    expect('(');
    while (!take(')')) {
      skip_space();
      int64_t value = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
      if (error != std::errc() || value < 0 || values.size() == kMaxDims) {
        fail("a shape of other than up to 64 sizes");
      }
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      (void)take('L');  // a long of Python 2
      values.push_back(value);
      if (!take(',')) {
        expect(')');
        break;
      }
    }
    return values;
  }
  void read_type(Header& header) {
    skip_space();
    if (rest_.starts_with('[')) {
      throw_error(ErrorKind::kIo, "[npz] ", name_, " must hold numbers, got records");
    }
    const std::string_view type = quoted();
    KINORA_CHECK(!type.ends_with('O'), kIo, "[npz] ", name_,
                 " must hold numbers, got Python objects: a pickle, which is never read");
    const auto* const known = std::find_if(
        std::begin(kTypes), std::end(kTypes),
        [&](const TypeName& each) { return !type.empty() && type.substr(1) == each.name; });
    KINORA_CHECK(known != std::end(kTypes) &&
                     std::string_view("<>|=").find(type.front()) != std::string_view::npos,
                 kIo, "[npz] ", name_,
                 " must be of type b1, u1, i1, i2, i4, i8, f2, f4 or f8, got ", in_quotes(type));
    header.dtype = known->dtype;
    header.is_big_endian = type.front() == '>';
  }

  std::string_view rest_;
  const std::string& name_;
};

Header read_header(std::span<const std::byte> bytes, const std::string& name) {
  const std::string_view text = as_text(bytes);
  KINORA_CHECK(text.size() >= kPrefix && text.starts_with(kMagic), kIo, "[npz] ", name,
               " must be an array of NumPy, got something else");
  const int version = static_cast<unsigned char>(text[6]);
  KINORA_CHECK(version >= 1 && version <= 3, kIo, "[npz] ", name,
               " must be of NumPy's format 1 to 3, got ", version);
  const size_t prefix = version == 1 ? kPrefix : kLongPrefix;
  size_t length = 0;
  for (size_t i = std::min(prefix, text.size()); i-- > kPrefix - 2;) {
    length = length << 8 | static_cast<unsigned char>(text[i]);
  }
  KINORA_CHECK(prefix <= text.size() && length <= std::min(kMaxHeader, text.size() - prefix), kIo,
               "[npz] ", name, " must have a header of at most ", kMaxHeader,
               " bytes that lies within it, got ", length, " of ", text.size());
  Header header = HeaderText(text.substr(prefix, length), name).read();
  header.size = prefix + length;
  return header;
}

/// Elements of `shape`; nothing where their bytes are beyond all memory.
std::optional<size_t> count_elements(const std::vector<int64_t>& shape, size_t element_size) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    return 0;
  }
  size_t count = 1;
  for (const int64_t size : shape) {
    if (static_cast<uint64_t>(size) > std::numeric_limits<int64_t>::max() / element_size / count) {
      return std::nullopt;
    }
    count *= static_cast<size_t>(size);
  }
  return count;
}

/// From the order where the first dim varies fastest to the one where the last does.
std::vector<std::byte> from_fortran(std::span<const std::byte> data,
                                    const std::vector<int64_t>& shape, size_t element_size) {
  std::vector<std::byte> result(data.size());
  std::vector<size_t> strides;
  size_t stride = element_size;
  for (const int64_t size : shape) {
    strides.push_back(stride);
    stride *= static_cast<size_t>(size);
  }
  std::vector<int64_t> place(shape.size());
  size_t from = 0;
  for (size_t to = 0; to < result.size(); to += element_size) {
    std::memcpy(result.data() + to, data.data() + from, element_size);
    for (size_t dim = shape.size(); dim-- > 0;) {
      from += strides[dim];
      if (++place[dim] < shape[dim]) {
        break;
      }
      from -= strides[dim] * static_cast<size_t>(shape[dim]);
      place[dim] = 0;
    }
  }
  return result;
}

void append_le(std::string& out, size_t size, uint64_t value) {
  for (size_t i = 0; i < size; ++i) {
    out += static_cast<char>(value >> (8 * i) & 0xff);
  }
}

/// The header that NumPy writes, format 1.
std::string header_text(const NpzMember& member) {
  const auto* const type =
      std::find_if(std::begin(kTypes), std::end(kTypes),
                   [&](const TypeName& each) { return each.dtype == member.dtype; });
  KINORA_CHECK(type != std::end(kTypes), kInternal, "[npz] NumPy has no type ",
               to_string(member.dtype));
  std::string text = "{'descr': '";
  text += size_of(member.dtype) == 1 ? '|' : '<';
  text.append(type->name).append("', 'fortran_order': False, 'shape': (");
  for (size_t i = 0; i < member.shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(member.shape[i]);
  }
  text += member.shape.size() == 1 ? ",), }" : "), }";
  const size_t size = kPrefix + text.size() + 1;
  text.append((kHeaderMultiple - size % kHeaderMultiple) % kHeaderMultiple, ' ') += '\n';
  std::string header(kMagic);
  header.append("\x01", 1).append("\0", 1);
  append_le(header, 2, text.size());
  return header + text;
}

}  // namespace

NpzFile::NpzFile(const std::filesystem::path& path)
    : file_(path), archive_(file_.bytes(), path.string(), ZipMethods::kStoredOrDeflated) {}

NpzFile NpzFile::open(const std::filesystem::path& path) {
  return NpzFile(path);
}

std::vector<std::string> NpzFile::names() const {
  std::vector<std::string> names;
  for (const ZipEntry& entry : archive_.entries()) {
    if (entry.name.ends_with(kSuffix)) {
      names.push_back(entry.name.substr(0, entry.name.size() - kSuffix.size()));
    }
  }
  return names;
}

bool NpzFile::contains(std::string_view name) const {
  return archive_.find(std::string(name).append(kSuffix)) != nullptr;
}

NpyArray NpzFile::read(std::string_view name) const {
  const ZipEntry* const entry = archive_.find(std::string(name).append(kSuffix));
  KINORA_CHECK(entry != nullptr, kIo, "[npz] ", path().string(), " must hold the array ",
               quote(name), ", got ", list_names(names(), kMaxNamesInMessage));
  const std::string full_name = path().string() + ": " + in_quotes(entry->name);
  std::vector<std::byte> unpacked;
  std::span<const std::byte> bytes = entry->data;
  if (entry->is_deflated) {
    unpacked = archive_.unpack(*entry);
    bytes = unpacked;
  } else {
    archive_.verify(*entry);
  }
  Header header = read_header(bytes, full_name);
  const size_t element_size = size_of(header.dtype);
  const std::span<const std::byte> data = bytes.subspan(header.size);
  const std::optional<size_t> count = count_elements(header.shape, element_size);
  KINORA_CHECK(count && *count * element_size == data.size(), kIo, "[npz] ", full_name,
               " must hold the elements of its shape, got ", data.size(), " bytes of them");
  const bool is_c_order = !header.is_fortran || header.shape.size() < 2;
  if (is_c_order && !header.is_big_endian && !entry->is_deflated) {
    return {header.dtype, std::move(header.shape), data};
  }
  std::vector<std::byte> owned = is_c_order ? std::vector<std::byte>(data.begin(), data.end())
                                            : from_fortran(data, header.shape, element_size);
  if (header.is_big_endian) {
    for (size_t i = 0; i < owned.size(); i += element_size) {
      std::reverse(owned.begin() + static_cast<int64_t>(i),
                   owned.begin() + static_cast<int64_t>(i + element_size));
    }
  }
  return {header.dtype, std::move(header.shape), std::move(owned)};
}

void write_npz(const std::filesystem::path& path, std::span<const NpzMember> members) {
  constexpr uint16_t kVersion = 20;       // needed to read it: deflate or less
  constexpr uint32_t kDate = 0x00210000;  // 1 January 1980, as NumPy writes
  std::string body;
  std::string directory;
  for (const NpzMember& member : members) {
    const std::optional<size_t> count = count_elements(member.shape, size_of(member.dtype));
    KINORA_CHECK(count && *count * size_of(member.dtype) == member.data.size(), kInternal, "[npz] ",
                 member.name, " must have the bytes of its shape, got ", member.data.size());
    const std::string name = member.name + std::string(kSuffix);
    const size_t offset = body.size();
    const std::string header = header_text(member);
    const size_t size = header.size() + member.data.size();
    KINORA_CHECK(offset + size < std::numeric_limits<uint32_t>::max() - kMaxHeader, kIo, "[npz] ",
                 path.string(), " must be of at most 4 GiB, got more");
    std::string content = header;
    content.append(as_text(member.data));
    std::string facts;  // what both headers of an entry say
    append_le(facts, 2, kVersion);
    append_le(facts, 2, 0);  // flags
    append_le(facts, 2, 0);  // stored
    append_le(facts, 4, kDate);
    append_le(facts, 4, crc32(std::as_bytes(std::span(content))));
    append_le(facts, 4, size);
    append_le(facts, 4, size);
    append_le(facts, 2, name.size());
    append_le(facts, 2, 0);  // extra fields
    body.append("PK\x03\x04").append(facts).append(name).append(content);
    directory.append("PK\x01\x02");
    append_le(directory, 2, kVersion);
    directory.append(facts);
    directory.append(10, '\0');  // comment, part, attributes
    append_le(directory, 4, offset);
    directory.append(name);
  }
  std::string end("PK\x05\x06");
  append_le(end, 4, 0);
  append_le(end, 2, members.size());
  append_le(end, 2, members.size());
  append_le(end, 4, directory.size());
  append_le(end, 4, body.size());
  append_le(end, 2, 0);
  write_file_atomic(path, std::string_view(body.append(directory).append(end)));
}

}  // namespace kinora::io
