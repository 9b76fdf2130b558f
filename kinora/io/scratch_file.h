#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace kinora::io {

/// A file for what memory has no room for, while this process lives: it has no name, so that
/// nothing is left of it however the process ends, and all of its bytes are allocated, so that no
/// write finds the disk full. Bytes that were never written are zeros. The system's cache is passed
/// by where the file system can (O_DIRECT), and many requests are under way at once: by io_uring,
/// or by threads where the system refuses that.
class ScratchFile {
 public:
  /// What offsets, sizes and addresses are multiples of.
  static constexpr int64_t kAlignment = 4096;

  /// Bytes of the file and their place in memory.
  struct Piece {
    int64_t offset;
    std::byte* memory;
    int64_t bytes;
  };

  /// How requests are given to the system.
  enum class Way { kBest, kThreads };

  /// Of `bytes`, in a folder that is there. kIo, with both numbers where there is no room.
  ScratchFile(std::filesystem::path folder, int64_t bytes, Way way = Way::kBest);
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile();

  /// Returns when all are read (written). One call at a time is served. kIo: what memory (the file)
  /// then holds there is not known.
  void read(std::span<const Piece> pieces);
  void write(std::span<const Piece> pieces);

  [[nodiscard]] int64_t size() const;
  [[nodiscard]] const std::filesystem::path& folder() const;
  /// Whether the system's cache is passed by.
  [[nodiscard]] bool is_direct() const;
  /// "O_DIRECT, io_uring", or what there is in place of these, and why.
  [[nodiscard]] std::string describe() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kinora::io
