#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kinora/data/latent_cache.h"
#include "kinora/data/row_file.h"
#include "kinora/io/append_file.h"

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
  std::vector<std::byte> beside;      ///< [n, Q, C, h, w], where there are pictures beside
  std::vector<std::byte> masks;       ///< [n, 1, H, W], where there are such
  std::vector<std::byte> control;     ///< [n, 3, H, W], likewise
  std::vector<CachedSample> samples;  ///< the n
  std::vector<LeftOut> left_out;
};

/// What is known of a part without its moments.
struct CachePartRecord {
  std::vector<CachedSample> samples;
  std::vector<LeftOut> left_out;
};

/// A line of a part's journal.
struct CachePartLine {
  int64_t first = 0;
  int64_t end = 0;
  std::map<std::string, std::string> checksums;  ///< of the rows of each file, by a name of it
  CachePartRecord record;
};

/// The latents of the samples [first, end) of a set: a file of moments, ones of the pictures
/// beside, of masks and of control pictures where there are such, and a journal with a line for
/// each block that is on the disk. Killed at any moment, a part keeps the blocks of its journal.
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

  /// Once next() is end(): makes the files ones that anybody can read. Nothing to do if they are.
  void finish();

  /// "part-00000.safetensors".
  [[nodiscard]] static std::string file_name(int64_t number);
  /// The journal's. kIo.
  [[nodiscard]] static CachePartRecord read(const std::filesystem::path& folder, int64_t number);

 private:
  struct File {
    RowFile rows;
    std::vector<std::byte> CacheBlock::*of_block;
    std::string checksum;  // its name in the journal
  };
  void recover();
  /// Whether the next rows of `file` are those of that line, by its checksum of them.
  [[nodiscard]] bool is_there(const File& file, const CachePartLine& line) const;

  std::vector<File> files_;
  std::filesystem::path journal_path_;
  int64_t end_;
  int64_t next_;
  int64_t num_samples_ = 0;
  std::unique_ptr<io::AppendFile> journal_;
};

}  // namespace kinora::data
