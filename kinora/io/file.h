#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Files as bytes: mapped, read whole, replaced atomically, written in order. Every failure is an
/// Error of kind kIo with the path and the system's reason.
namespace kinora::io {

/// A regular file mapped read-only. Pages are read when touched, so opening a large file is cheap.
/// If another process shortens the file while it is mapped, touching the lost part raises SIGBUS.
class MappedFile {
 public:
  /// Throws unless `path` is a readable regular file. An empty one has no bytes.
  explicit MappedFile(std::filesystem::path path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

/// The whole content of `path`; throws when it is longer than `max_bytes`.
[[nodiscard]] std::vector<std::byte> read_file(const std::filesystem::path& path,
                                               int64_t max_bytes);

/// The same, as text.
[[nodiscard]] std::string read_text(const std::filesystem::path& path, int64_t max_bytes);

/// Makes `bytes` the content of `path`: at every moment, also after a loss of power, the path holds
/// the old content or the new one (temporary name in the same folder, fsync, rename, fsync of the
/// folder). On failure the old content stays and the temporary file is removed.
void write_file_atomic(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file_atomic(const std::filesystem::path& path, std::string_view text);

/// A regular file to read from anywhere in it, by several threads at once.
class FileReader {
 public:
  explicit FileReader(std::filesystem::path path);
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;
  ~FileReader();

  /// Fills `out` with the bytes from `offset` on; all of them must be there.
  void read_at(int64_t offset, std::span<std::byte> out) const;

  /// Lets the system fetch these bytes from the device now, all at once.
  void start_reading(int64_t offset, int64_t count) const;

  /// Bytes of the file when it was opened.
  [[nodiscard]] int64_t size() const { return size_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

/// Writes a file in order through a buffer of 1 MiB; large pieces pass it by. The position of
/// `append` is the end of what was appended so far. Not safe to use from two threads at once.
class FileWriter {
 public:
  enum class Create {
    kReplace,  ///< an existing file is emptied
    kNew,      ///< an existing file (or symbolic link) is an error
    kKeep,     ///< an existing file keeps its bytes; for write_at() alone
  };

  explicit FileWriter(std::filesystem::path path, Create create = Create::kReplace);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  /// Closes without reporting errors: what was not closed by `close` may be incomplete.
  ~FileWriter();

  void append(std::span<const std::byte> bytes);
  void append(std::string_view text);

  /// Writes at `offset` from the file's start; does not move the position of `append`. Where
  /// nothing is appended, threads may write different parts at once.
  void write_at(int64_t offset, std::span<const std::byte> bytes);

  /// Lets the system write these bytes to the device now, instead of all of them at sync().
  void start_sync(int64_t offset, int64_t count);

  /// Returns when all data written so far are on the device (fsync).
  void sync();

  /// Writes the rest of the buffer and closes; reports what the system reports only then.
  void close();

  /// Bytes appended so far.
  [[nodiscard]] int64_t size() const { return size_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  void flush();
  void write_all(int64_t offset, std::span<const std::byte> bytes);

  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  std::vector<std::byte> buffer_;  ///< the last bytes appended, not yet written
};

/// A name beside `path` ending in ".tmp" that no other call in this process returns, and that
/// another process is most unlikely to use: create the file with Create::kNew.
[[nodiscard]] std::filesystem::path temporary_name(const std::filesystem::path& path);

/// "damaged-NAME" beside `path`, or "damaged-NAME-2" and so on, the first that is not taken: where
/// what cannot be read goes, so that nothing is lost.
[[nodiscard]] std::filesystem::path damaged_name(const std::filesystem::path& path);

/// Renames `from` to `to`, replacing it, and makes the new name durable (fsync of the folder). A
/// pipe or a device is not replaced.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// Makes the names in a folder durable: after creating, renaming or removing entries.
void sync_folder(const std::filesystem::path& folder);

/// Makes the folder where it is missing, and finds out whether files can be made in it: before long
/// work whose result belongs there.
void check_can_write(const std::filesystem::path& folder);

/// Bytes that this user may still write to the file system of `path`, which must exist.
[[nodiscard]] int64_t free_space(const std::filesystem::path& path);

/// XXH3-64 with seed 0 of data given piece by piece (Y. Collet, xxHash 0.8: the algorithm is
/// frozen since 0.8.0). Finds accidents, not attackers. Checkpoint manifests hold these values.
class Checksum {
 public:
  Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;
  ~Checksum();

  void update(std::span<const std::byte> bytes);

  /// 16 hexadecimal digits of what came so far, most significant first.
  [[nodiscard]] std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The checksum of `bytes`.
[[nodiscard]] std::string checksum(std::span<const std::byte> bytes);

/// The same as a number.
[[nodiscard]] uint64_t checksum_value(std::span<const std::byte> bytes);

/// A string for messages: in quotes, at most 120 characters, others than printable ASCII as \xNN.
/// For names that come from untrusted files.
[[nodiscard]] std::string in_quotes(std::string_view text);

}  // namespace kinora::io
