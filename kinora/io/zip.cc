#include "kinora/io/zip.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"
#include "kinora/io/inflate.h"

namespace kinora::io {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kCentralHeader = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50;
constexpr uint32_t kEnd64Locator = 0x07064b50;
constexpr size_t kLocalSize = 30;
constexpr size_t kCentralSize = 46;
constexpr size_t kEndSize = 22;
constexpr size_t kEnd64Size = 56;
constexpr size_t kEnd64LocatorSize = 20;
constexpr size_t kMaxComment = 0xffff;
constexpr uint16_t kExtra64 = 0x0001;
constexpr uint16_t kFlagEncrypted = 1;
constexpr uint16_t kMethodStored = 0;
constexpr uint16_t kMethodDeflated = 8;
// A field with all bits set has its value in a 64-bit record.
constexpr uint16_t kElsewhere16 = 0xffff;
constexpr uint32_t kElsewhere32 = 0xffffffff;

template <typename T>
T read_le(std::span<const std::byte> bytes, size_t offset) {
  T value = 0;
  for (size_t i = sizeof(T); i-- > 0;) {
    value = static_cast<T>(static_cast<uint64_t>(value) << 8 |
                           std::to_integer<uint64_t>(bytes[offset + i]));
  }
  return value;
}

/// Where the directory lies.
struct Directory {
  uint64_t num_entries = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t limit = 0;  ///< entries and directory end here or before
};

class ZipReader {
 public:
  ZipReader(std::span<const std::byte> bytes, const std::string& file, ZipMethods methods)
      : bytes_(bytes), file_(file), methods_(methods) {}

  template <typename... Parts>
  void check(bool condition, const Parts&... parts) const {
    KINORA_CHECK(condition, kIo, "[zip] ", file_, ": ", parts...);
  }

  [[nodiscard]] Directory directory() const {
    const size_t end = find_end();
    const auto record = bytes_.subspan(end);
    const auto num_entries = read_le<uint16_t>(record, 10);
    const auto size = read_le<uint32_t>(record, 12);
    const auto offset = read_le<uint32_t>(record, 16);
    check(read_le<uint16_t>(record, 4) == read_le<uint16_t>(record, 6) &&
              read_le<uint16_t>(record, 8) == num_entries,
          "must be an archive of one part, got one of several");
    Directory found{num_entries, offset, size, end};
    if (end >= kEnd64LocatorSize &&
        read_le<uint32_t>(bytes_, end - kEnd64LocatorSize) == kEnd64Locator) {
      found = directory64(end - kEnd64LocatorSize);
      check((num_entries == kElsewhere16 || num_entries == found.num_entries) &&
                (size == kElsewhere32 || size == found.size) &&
                (offset == kElsewhere32 || offset == found.offset),
            "its two end records must agree, got different directories");
    }
    check(found.offset <= found.limit && found.size <= found.limit - found.offset &&
              found.num_entries <= found.size / kCentralSize,
          "the directory must lie within the file, got ", found.num_entries, " entries, ",
          found.size, " bytes at ", found.offset, " of ", bytes_.size(), " bytes");
    return found;
  }

  /// The central header at `*position`, which moves behind it; nothing for a folder. Appends the
  /// range of the whole entry to `ranges`.
  std::optional<ZipEntry> next(const Directory& directory, uint64_t* position,
                               std::vector<std::pair<uint64_t, uint64_t>>* ranges) const {
    const uint64_t directory_end = directory.offset + directory.size;
    check(directory_end - *position >= kCentralSize, "the directory must hold ",
          directory.num_entries, " entries, got a cut off one at ", *position);
    const auto header = bytes_.subspan(*position);
    check(read_le<uint32_t>(header, 0) == kCentralHeader,
          "the directory must hold headers only, got something else at ", *position);
    const auto name_size = read_le<uint16_t>(header, 28);
    const auto extra_size = read_le<uint16_t>(header, 30);
    const size_t total = kCentralSize + name_size + extra_size + read_le<uint16_t>(header, 32);
    check(directory_end - *position >= total, "a directory entry must end in the directory, got ",
          total, " bytes at ", *position);
    ZipEntry entry{.name = std::string(as_text(header.subspan(kCentralSize, name_size))),
                   .data = {},
                   .crc32 = read_le<uint32_t>(header, 16)};
    check_name(entry.name);

    const auto method = read_le<uint16_t>(header, 10);
    check((read_le<uint16_t>(header, 8) & kFlagEncrypted) == 0, in_quotes(entry.name),
          " must not be encrypted");
    entry.is_deflated = method == kMethodDeflated;
    if (methods_ == ZipMethods::kStored) {
      check(method == kMethodStored, in_quotes(entry.name),
            " must be stored, got compression method ", method,
            ". Hint: PyTorch never compresses; save the file again with torch.save.");
    } else {
      check(method == kMethodStored || entry.is_deflated, in_quotes(entry.name),
            " must be stored or deflated, got compression method ", method);
    }
    Sizes sizes{read_le<uint32_t>(header, 24), read_le<uint32_t>(header, 20),
                read_le<uint32_t>(header, 42)};
    read_extra64(header.subspan(kCentralSize + name_size, extra_size), entry.name, &sizes);
    check(entry.is_deflated || sizes.stored == sizes.content, in_quotes(entry.name),
          " must have one size, got ", sizes.stored, " stored and ", sizes.content, " bytes");
    entry.content_size = sizes.content;
    entry.data = data_of(directory, sizes, entry.name, method);
    const auto data_end =
        static_cast<uint64_t>(entry.data.data() - bytes_.data()) + entry.data.size();
    ranges->emplace_back(sizes.offset, data_end);
    *position += total;
    if (entry.name.back() == '/') {
      check(entry.data.empty(), "a folder must be empty, got ", entry.data.size(), " bytes in ",
            in_quotes(entry.name));
      return std::nullopt;
    }
    return entry;
  }

 private:
  struct Sizes {
    uint64_t content = 0;
    uint64_t stored = 0;
    uint64_t offset = 0;  ///< of the local header
  };

  [[nodiscard]] size_t find_end() const {
    check(bytes_.size() >= kEndSize, "must be a zip archive, got ", bytes_.size(), " bytes");
    const size_t last = bytes_.size() - kEndSize;
    const size_t first = last - std::min(last, kMaxComment);
    for (size_t at = last + 1; at-- > first;) {
      // The comment reaches to the file's end, or this is no end record but part of a comment.
      if (read_le<uint32_t>(bytes_, at) == kEnd &&
          read_le<uint16_t>(bytes_, at + 20) == last - at) {
        return at;
      }
    }
    check(false, "must end with a zip directory, got none. Hint: the file may be cut off.");
    KINORA_UNREACHABLE("[zip] checked above");
  }

  [[nodiscard]] Directory directory64(size_t locator) const {
    const auto at = read_le<uint64_t>(bytes_, locator + 8);
    check(locator >= kEnd64Size && at <= locator - kEnd64Size &&
              read_le<uint32_t>(bytes_, at) == kEnd64,
          "the 64-bit end record must lie before its locator, got offset ", at);
    const auto record = bytes_.subspan(at);
    Directory found{read_le<uint64_t>(record, 32), read_le<uint64_t>(record, 48),
                    read_le<uint64_t>(record, 40), at};
    check(read_le<uint32_t>(record, 16) == read_le<uint32_t>(record, 20) &&
              read_le<uint64_t>(record, 24) == found.num_entries,
          "must be an archive of one part, got one of several");
    return found;
  }

  void check_name(const std::string& name) const {
    bool sound = !name.empty() && name.front() != '/' && name.find('\\') == std::string::npos &&
                 name.find('\0') == std::string::npos;
    for (size_t begin = 0; begin < name.size();) {
      const size_t end = std::min(name.find('/', begin), name.size());
      const std::string_view part = std::string_view(name).substr(begin, end - begin);
      sound = sound && !part.empty() && part != "." && part != "..";
      begin = end + 1;
    }
    check(sound, "names must be plain relative paths, got ", in_quotes(name));
  }

  void read_extra64(std::span<const std::byte> extra, const std::string& name, Sizes* sizes) const {
    while (extra.size() >= 4) {
      const auto id = read_le<uint16_t>(extra, 0);
      const auto size = read_le<uint16_t>(extra, 2);
      extra = extra.subspan(4);
      check(size <= extra.size(), in_quotes(name), " must have whole extra fields, got ", size,
            " bytes where ", extra.size(), " are left");
      if (id == kExtra64) {
        size_t used = 0;
        for (uint64_t* value : {&sizes->content, &sizes->stored, &sizes->offset}) {
          if (*value == kElsewhere32) {
            check(size - used >= 8, in_quotes(name), " must have its 64-bit sizes, got ", size,
                  " bytes of them");
            *value = read_le<uint64_t>(extra, used);
            used += 8;
          }
        }
        return;
      }
      extra = extra.subspan(size);
    }
  }

  [[nodiscard]] std::span<const std::byte> data_of(const Directory& directory, const Sizes& sizes,
                                                   const std::string& name, uint16_t method) const {
    check(sizes.offset <= directory.offset && directory.offset - sizes.offset >= kLocalSize &&
              read_le<uint32_t>(bytes_, sizes.offset) == kLocalHeader,
          in_quotes(name), " must have a header before the directory, got offset ", sizes.offset);
    const auto header = bytes_.subspan(sizes.offset, directory.offset - sizes.offset);
    const auto name_size = read_le<uint16_t>(header, 26);
    const size_t begin = kLocalSize + name_size + read_le<uint16_t>(header, 28);
    check(begin <= header.size() && sizes.stored <= header.size() - begin, in_quotes(name),
          " must lie before the directory, got ", sizes.stored, " bytes at ", sizes.offset + begin,
          " of ", bytes_.size(), " bytes");
    check(as_text(header.subspan(kLocalSize, name_size)) == name &&
              read_le<uint16_t>(header, 8) == method,
          in_quotes(name), " must have the same name and method in its own header, got others");
    return header.subspan(begin, sizes.stored);
  }

  std::span<const std::byte> bytes_;
  const std::string& file_;
  ZipMethods methods_;
};

constexpr std::array<std::array<uint32_t, 256>, 8> make_crc_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320U : 0U);
    }
    tables[0][i] = value;
  }
  for (size_t table = 1; table < 8; ++table) {
    for (size_t i = 0; i < 256; ++i) {
      const uint32_t before = tables[table - 1][i];
      tables[table][i] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr std::array<std::array<uint32_t, 256>, 8> kCrcTables = make_crc_tables();

}  // namespace

ZipArchive::ZipArchive(std::span<const std::byte> bytes, std::string file, ZipMethods methods)
    : file_(std::move(file)) {
  const ZipReader reader(bytes, file_, methods);
  const Directory directory = reader.directory();
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  uint64_t position = directory.offset;
  for (uint64_t i = 0; i < directory.num_entries; ++i) {
    std::optional<ZipEntry> entry = reader.next(directory, &position, &ranges);
    if (entry) {
      has_checksums_ = has_checksums_ || entry->crc32 != 0;
      entries_.push_back(std::move(*entry));
    }
  }
  reader.check(position == directory.offset + directory.size, "the directory must hold only its ",
               directory.num_entries, " entries, got more bytes at ", position);
  for (size_t i = 0; i < entries_.size(); ++i) {
    reader.check(index_.emplace(entries_[i].name, i).second, "names must be unique, got ",
                 in_quotes(entries_[i].name), " twice");
  }
  std::ranges::sort(ranges);
  for (size_t i = 1; i < ranges.size(); ++i) {
    reader.check(ranges[i - 1].second <= ranges[i].first, "entries must not overlap, got one from ",
                 ranges[i].first, " within one that ends at ", ranges[i - 1].second);
  }
}

const ZipEntry* ZipArchive::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

void ZipArchive::verify(const ZipEntry& entry) const {
  if (has_checksums_) {
    const uint32_t actual = crc32(entry.data);
    KINORA_CHECK(actual == entry.crc32, kIo, "[zip] ", file_, ": ", in_quotes(entry.name),
                 " must have CRC-32 ", entry.crc32, ", got ", actual, ": the file is damaged");
  }
}

std::vector<std::byte> ZipArchive::unpack(const ZipEntry& entry) const {
  std::vector<std::byte> content =
      inflate(entry.data, entry.content_size, file_ + ": " + in_quotes(entry.name));
  const uint32_t actual = crc32(content);
  KINORA_CHECK(actual == entry.crc32, kIo, "[zip] ", file_, ": ", in_quotes(entry.name),
               " must have CRC-32 ", entry.crc32, ", got ", actual, ": the file is damaged");
  return content;
}

uint32_t crc32(std::span<const std::byte> bytes) {
  // Eight bytes a step (Kounavis and Berry, "Novel table lookup-based algorithms for
  // high-performance CRC generation", 2008): weights are gigabytes.
  uint32_t crc = 0xffffffffU;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    const uint64_t word = read_le<uint64_t>(bytes, i) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) {
      crc ^= kCrcTables[7 - k][word >> (8 * k) & 0xff];
    }
  }
  for (; i < bytes.size(); ++i) {
    crc = (crc >> 8) ^ kCrcTables[0][(crc ^ std::to_integer<uint32_t>(bytes[i])) & 0xff];
  }
  return ~crc;
}

}  // namespace kinora::io
