#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/data/latent_cache.h"
#include "kinora/io/append_file.h"
#include "kinora/io/file.h"

/// How a cache of latents grows: in parts, each of them in blocks.
namespace kinora::data {

/// A sample that cannot be read.
struct LeftOut {
  std::string name;
  std::string reason;
};

/// Latents of the samples [first, end) of a set without those that cannot be read.
struct CacheBlock {
  int64_t first = 0;
  int64_t end = 0;
  std::vector<std::byte> moments;     ///< [n, P, C, h, w] or [n, P, C, T, h, w]
  std::vector<CachedSample> samples;  ///< the n
  std::vector<LeftOut> left_out;
};

/// What is known of a part without its moments.
struct CachePartRecord {
  std::vector<CachedSample> samples;
  std::vector<LeftOut> left_out;
};

/// The latents of the samples [first, end) of a set: one file, and a journal with a line for each
/// block that is on the disk. Killed at any moment, a part keeps the blocks of its journal.
class CachePart {
 public:
  /// Goes on with what `folder` holds of part `number`. Every block is read and compared with its
  /// checksum; those from the first on that is damaged or torn are dropped, and named in the log.
  /// kIo.
  CachePart(const std::filesystem::path& folder, int64_t number, int64_t first, int64_t end,
            const LatentLayout& layout);

  /// The first sample that has no block yet.
  [[nodiscard]] int64_t next() const { return next_; }
  [[nodiscard]] int64_t end() const { return end_; }

  /// Appends a block that begins at next(). Once this returns it outlasts this process and a loss
  /// of power. kIo, as when the disk is full: then the part stays as it was.
  void add(const CacheBlock& block);

  /// Once next() is end(): makes the file one that anybody can read. Nothing to do if it is.
  void finish();

  /// "part-00000.safetensors".
  [[nodiscard]] static std::string file_name(int64_t number);
  /// The journal's. kIo.
  [[nodiscard]] static CachePartRecord read(const std::filesystem::path& folder, int64_t number);

 private:
  void recover();

  std::filesystem::path path_;
  std::filesystem::path journal_path_;
  int64_t end_;
  LatentLayout layout_;
  int64_t next_;
  int64_t num_samples_ = 0;
  std::unique_ptr<io::FileWriter> writer_;
  std::unique_ptr<io::AppendFile> journal_;
};

}  // namespace kinora::data
