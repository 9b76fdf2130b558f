#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

/// Zip archives as PyTorch writes them, of stored (not compressed) entries, and as NumPy does,
/// whose entries may be deflated (PKWARE APPNOTE.TXT 6.3.9, with the 64-bit records of
/// section 4.3.14).
namespace kinora::io {

/// A file within an archive.
struct ZipEntry {
  std::string name;
  std::span<const std::byte> data;  ///< borrowed from the archive; as it lies there
  uint32_t crc32 = 0;               ///< of the content, as the directory says
  uint64_t content_size = 0;        ///< bytes, as the directory says; if stored those of `data`
  bool is_deflated = false;         ///< `data` is a raw stream of inflate.h
};

/// How entries may lie in an archive.
enum class ZipMethods : uint8_t { kStored, kStoredOrDeflated };

/// The directory of an archive in memory. Checks it completely; nothing is unpacked but by
/// unpack().
class ZipArchive {
 public:
  /// `file` names the archive in messages; `bytes` must outlive this. Throws kIo for what is not a
  /// sound archive: entries compressed in other ways than `methods`, encrypted, doubled,
  /// overlapping, or outside the file; names with "..", a leading "/", backslashes or NUL;
  /// directories that disagree with the entries' own headers.
  ZipArchive(std::span<const std::byte> bytes, std::string file,
             ZipMethods methods = ZipMethods::kStored);
  ZipArchive(ZipArchive&&) = default;
  ZipArchive& operator=(ZipArchive&&) = default;

  /// In the directory's order, without folders.
  [[nodiscard]] const std::vector<ZipEntry>& entries() const { return entries_; }

  /// Null when there is no such entry.
  [[nodiscard]] const ZipEntry* find(std::string_view name) const;

  /// Throws kIo unless the data of a stored entry have the directory's CRC-32. Does nothing in an
  /// archive whose CRCs are all 0: torch.serialization.set_crc32_options(False) writes such.
  void verify(const ZipEntry& entry) const;

  /// The content of a deflated entry. Throws kIo unless it is of the directory's size and CRC-32.
  [[nodiscard]] std::vector<std::byte> unpack(const ZipEntry& entry) const;

 private:
  std::string file_;
  std::vector<ZipEntry> entries_;
  std::unordered_map<std::string_view, size_t> index_;  // views of names in entries_
  bool has_checksums_ = false;
};

/// CRC-32 as in zip and PNG (ISO 3309, polynomial 0x04c11db7 reflected).
[[nodiscard]] uint32_t crc32(std::span<const std::byte> bytes);

}  // namespace kinora::io
