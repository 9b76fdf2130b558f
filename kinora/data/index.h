#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/data/source.h"

namespace kinora::data {

/// What is known of a sample.
struct IndexEntry {
  SampleFacts facts;
  std::string_view cause = {};  ///< why it cannot be used; empty: it can
  uint64_t stamp = 0;           ///< as Source::stamp said it then
  bool is_checked = false;      ///< everything was decoded once

  [[nodiscard]] bool is_usable() const { return cause.empty(); }
};

/// What headers, or a full check, say of the samples of a set, by their names, in a file of our own
/// that is mapped: a header, records of one size, a hash table of the names, and all texts. The
/// file is replaced as a whole, so it is never torn, and it may hold only a part of the set: what
/// was seen when the work was stopped.
///
/// Little endian throughout. Version and checksum are examined when it is opened, and that every
/// number in it leads somewhere inside.
class Index {
 public:
  /// Holds nothing.
  Index();
  Index(Index&&) noexcept;
  Index& operator=(Index&&) noexcept;
  ~Index();

  /// Error (kIo): no such file, no index, one of another version, a damaged one.
  [[nodiscard]] static Index open(const std::filesystem::path& path);

  /// The same; without such a file, or with one of another version or a damaged one, which the log
  /// names, an index that holds nothing.
  [[nodiscard]] static Index open_or_empty(const std::filesystem::path& path);

  [[nodiscard]] int64_t size() const;
  [[nodiscard]] std::string_view name(int64_t place) const;
  [[nodiscard]] IndexEntry entry(int64_t place) const;

  /// Of bytes that IndexWriter made.
  [[nodiscard]] static Index of_bytes(std::vector<std::byte> bytes);

  /// The entry of the sample with that name; nothing without one. Any thread.
  [[nodiscard]] std::optional<IndexEntry> find(std::string_view name) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Collects entries and writes them as a file.
class IndexWriter {
 public:
  IndexWriter();
  ~IndexWriter();

  /// Each name once; of later ones the first counts.
  void add(std::string_view name, const IndexEntry& entry);

  /// The file of the entries so far, and of those of `rest` with other names.
  [[nodiscard]] std::vector<std::byte> bytes(const Index& rest = {}) const;

  /// Makes them the content of `path`; makes the folders above it. Error (kIo).
  void write(const std::filesystem::path& path, const Index& rest = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct IndexOptions {
  bool full = false;        ///< everything is decoded once
  int64_t num_threads = 0;  ///< 0: all cores
  /// Called now and then, by the calling thread, with the number of samples done.
  std::function<void(int64_t done)> on_progress = {};
  /// Whether to stop: what was done till then is kept.
  std::function<bool()> wants_stop = {};
  double save_interval = 20.0;  ///< seconds of work that a kill may lose
};

struct IndexUpdate {
  Index index;              ///< what is known of the samples now
  int64_t num_reused = 0;   ///< entries that were there and whose files did not change
  int64_t num_read = 0;     ///< samples looked at
  bool is_complete = true;  ///< false: it was stopped
  bool is_kept = true;      ///< false: the file could not be written
};

/// Brings the index at `path` up to date: samples that it lacks, whose files have another stamp, or
/// that a full check is still wanted of, are looked at by several threads; samples that are gone
/// leave it. A process that is killed meanwhile loses what it did in the last `save_interval`.
/// Where the file cannot be written, or `path` is empty, the log says so once, and nothing is kept.
IndexUpdate update_index(const Source& source, const std::filesystem::path& path,
                         const IndexOptions& options);

/// Where the index of a set lies that names no place: a file in $XDG_CACHE_HOME/kinora or
/// ~/.cache/kinora, named by `what` (kind and full paths of the set). Empty: neither is known.
[[nodiscard]] std::filesystem::path default_index_path(const std::string& what);

}  // namespace kinora::data
