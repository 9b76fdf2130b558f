#include "kinora/io/tar.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "kinora/core/error.h"

// POSIX.1-2017, "pax", and the GNU tar manual, "Basic Tar Format".

namespace kinora::io {
namespace {

constexpr size_t kBlock = 512;
// A name or the records of one member; real ones have a few hundred bytes.
constexpr size_t kMaxMetadata = 1 << 20;

// Reads the blocks of an archive one after the other. All of it is untrusted.
class Parser {
 public:
  Parser(std::string_view archive, std::string path) : archive_(archive), path_(std::move(path)) {}

  [[nodiscard]] std::vector<TarEntry> parse() {
    check_format();
    for (;;) {
      header_ = take(kBlock);
      if (header_.find_first_not_of('\0') == std::string_view::npos) {
        break;  // the archive's end
      }
      check_sum();
      read_member();
    }
    KINORA_CHECK(!next_name_ && !next_size_, kIo, where(), "a long name without its file");
    return std::move(entries_);
  }

 private:
  // The start of a message about the header in hand.
  [[nodiscard]] std::string where() const {
    return "[tar] " + path_ + " must be a whole, valid tar archive, got at byte " +
           std::to_string(header_offset_) + ": ";
  }

  void check_format() const {
    using namespace std::string_view_literals;
    struct Compression {
      std::string_view magic;
      const char* tool;
    };
    for (const Compression& known :
         {Compression{"\x1f\x8b"sv, "gunzip"}, Compression{"BZh"sv, "bunzip2"},
          Compression{"\xfd"
                      "7zXZ\0"sv,
                      "unxz"},
          Compression{"\x28\xb5\x2f\xfd"sv, "unzstd"}}) {
      KINORA_CHECK(!archive_.starts_with(known.magic), kIo, "[tar] ", path_,
                   " must be a plain tar archive, got a compressed one. Hint: unpack it with ",
                   known.tool, " first");
    }
  }

  std::string_view take(size_t count) {
    header_offset_ = offset_;
    KINORA_CHECK(count <= archive_.size() - offset_, kIo, "[tar] ", path_,
                 " must be a whole tar archive, got one that ends after ", archive_.size(),
                 " bytes without the block of zeros that marks the end. Hint: it was cut off while "
                 "being copied or written, or is no tar archive");
    const std::string_view bytes = archive_.substr(offset_, count);
    offset_ += count;
    return bytes;
  }

  // The content of the member in hand, `size` bytes, and its padding.
  std::string_view take_content(uint64_t size) {
    KINORA_CHECK(size <= archive_.size() - offset_, kIo, where(), "a member of ", size,
                 " bytes where only ", archive_.size() - offset_, " follow");
    const std::string_view content = archive_.substr(offset_, size);
    const size_t padding = (kBlock - size % kBlock) % kBlock;
    offset_ += size;
    offset_ += std::min(padding, archive_.size() - offset_);
    return content;
  }

  [[nodiscard]] std::string_view text_field(size_t begin, size_t size) const {
    const std::string_view field = header_.substr(begin, size);
    return field.substr(0, field.find('\0'));
  }

  // Octal digits between spaces and zeros, or GNU's binary form (first bit set).
  [[nodiscard]] uint64_t number_field(size_t begin, size_t size, const char* what) const {
    std::string_view field = header_.substr(begin, size);
    uint64_t value = 0;
    if ((static_cast<uint8_t>(field[0]) & 0x80U) != 0) {
      KINORA_CHECK(static_cast<uint8_t>(field[0]) == 0x80U, kIo, where(), "a negative or huge ",
                   what);
      for (const char c : field.substr(1)) {
        KINORA_CHECK(value <= (uint64_t{INT64_MAX} >> 8), kIo, where(), "a huge ", what);
        value = (value << 8) | static_cast<uint8_t>(c);
      }
      return value;
    }
    field.remove_prefix(std::min(field.find_first_not_of(' '), field.size()));
    if (field.empty() || field[0] == '\0') {
      return 0;  // left blank by some programs where it means nothing
    }
    const auto result = std::from_chars(field.data(), field.data() + field.size(), value, 8);
    const auto used = static_cast<size_t>(result.ptr - field.data());
    KINORA_CHECK(result.ec == std::errc() &&
                     (used == field.size() || field[used] == ' ' || field[used] == '\0'),
                 kIo, where(), "a ", what, " that is not an octal number, ", quoted(field));
    return value;
  }

  // The sum of the header's bytes with its own field taken as spaces; old programs added signed
  // bytes.
  void check_sum() const {
    constexpr size_t kSumBegin = 148;
    constexpr size_t kSumSize = 8;
    int64_t sum = 0;
    int64_t signed_sum = 0;
    for (size_t i = 0; i < kBlock; ++i) {
      const bool own = i >= kSumBegin && i < kSumBegin + kSumSize;
      sum += own ? ' ' : static_cast<uint8_t>(header_[i]);
      signed_sum += own ? ' ' : static_cast<signed char>(header_[i]);
    }
    const auto stored = static_cast<int64_t>(number_field(kSumBegin, kSumSize, "checksum"));
    KINORA_CHECK(stored == sum || stored == signed_sum, kIo, where(), "a header with checksum ",
                 stored, " whose bytes sum up to ", sum);
  }

  // Records "LENGTH KEY=VALUE\n", where LENGTH counts the whole record.
  void read_pax(std::string_view records) {
    while (!records.empty()) {
      size_t length = 0;
      const auto result =
          std::from_chars(records.data(), records.data() + records.size(), length, 10);
      const auto digits = static_cast<size_t>(result.ptr - records.data());
      KINORA_CHECK(result.ec == std::errc() && length <= records.size() && length > digits + 2 &&
                       records[digits] == ' ' && records[length - 1] == '\n',
                   kIo, where(), "a broken pax record");
      const std::string_view record = records.substr(digits + 1, length - digits - 2);
      records.remove_prefix(length);
      const size_t equals = record.find('=');
      KINORA_CHECK(equals != std::string_view::npos, kIo, where(), "a broken pax record");
      const std::string_view key = record.substr(0, equals);
      const std::string_view value = record.substr(equals + 1);
      KINORA_CHECK(!key.starts_with("GNU.sparse."), kIo, where(),
                   "a sparse member. Hint: pack without --sparse");
      if (key == "path") {
        KINORA_CHECK(!value.empty() && value.find('\0') == std::string_view::npos, kIo, where(),
                     "an empty name or one with a zero byte");
        next_name_ = std::string(value);
      } else if (key == "size") {
        uint64_t size = 0;
        const auto parsed = std::from_chars(value.data(), value.data() + value.size(), size, 10);
        KINORA_CHECK(parsed.ec == std::errc() && parsed.ptr == value.data() + value.size(), kIo,
                     where(), "a pax size that is not a number, ", quoted(value));
        next_size_ = size;
      }
    }
  }

  std::string_view take_metadata(uint64_t size) {
    KINORA_CHECK(size <= kMaxMetadata, kIo, where(), "a name or pax header of ", size, " bytes");
    return take_content(size);
  }

  void read_member() {
    using namespace std::string_view_literals;
    const uint64_t header_size = number_field(124, 12, "size");
    switch (header_[156]) {
      case 'x':
        return read_pax(take_metadata(header_size));
      case 'L': {
        const std::string_view name = take_metadata(header_size);
        KINORA_CHECK(!next_name_, kIo, where(), "two long names in a row");
        next_name_ = std::string(name.substr(0, name.find('\0')));
        return;
      }
      case 'K':  // a link's long target
      case 'g':  // pax records for all members: neither paths nor sizes
        take_metadata(header_size);
        return;
      default:
        break;
    }

    const uint64_t size = std::exchange(next_size_, std::nullopt).value_or(header_size);
    std::string name;
    if (next_name_) {
      name = *std::exchange(next_name_, std::nullopt);
    } else {
      if (header_.substr(257, 6) == "ustar\0"sv && header_[345] != '\0') {
        name = std::string(text_field(345, 155)) + "/";
      }
      name += text_field(0, 100);
    }
    switch (header_[156]) {
      case '\0':
      case '0':
      case '7': {
        const uint64_t begin = offset_;
        take_content(size);
        add_file(std::move(name), begin, size);
        return;
      }
      case '1':  // links, devices, folders and pipes have no content
      case '2':
      case '3':
      case '4':
      case '5':
      case '6':
        return;
      case 'S':
      case 'M':
        throw_error(ErrorKind::kIo, where(),
                    "a sparse or multi-volume member. Hint: pack without --sparse and "
                    "--multi-volume");
      default:
        take_content(size);
    }
  }

  void add_file(std::string name, uint64_t begin, uint64_t size) {
    if (header_[156] == '\0' && name.ends_with('/')) {
      return;  // a folder, before there were types
    }
    size_t skip = 0;
    while (name.compare(skip, 2, "./") == 0) {
      skip += 2;
    }
    name.erase(0, skip);
    KINORA_CHECK(!name.empty(), kIo, where(), "a file without a name");
    entries_.push_back({std::move(name), static_cast<int64_t>(begin), static_cast<int64_t>(size)});
  }

  std::string_view archive_;
  std::string path_;
  size_t offset_ = 0;
  std::string_view header_;
  size_t header_offset_ = 0;
  std::optional<std::string> next_name_;  // from a long name or pax header
  std::optional<uint64_t> next_size_;
  std::vector<TarEntry> entries_;
};

}  // namespace

TarFile TarFile::open(const std::filesystem::path& path) {
  TarFile tar{MappedFile(path)};
  const std::span<const std::byte> bytes = tar.file_.bytes();
  tar.entries_ =
      Parser({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string()).parse();
  return tar;
}

}  // namespace kinora::io
