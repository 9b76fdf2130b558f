#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "kinora/io/append_file.h"

/// Metrics as JSON Lines: one object a line.
namespace kinora::io {

/// Builds one flat JSON object; keys keep the order of the calls.
class JsonObject {
 public:
  /// Each key once. Text that is not UTF-8 gets U+FFFD where it is broken.
  JsonObject& add(std::string_view key, std::string_view value);
  JsonObject& add(std::string_view key, const char* value) {
    return add(key, std::string_view(value));
  }
  JsonObject& add(std::string_view key, bool value);
  template <std::integral T>
  JsonObject& add(std::string_view key, T value) {
    return add_integer(key, static_cast<int64_t>(value));
  }
  /// The shortest digits that read back as the same double (of a float: the same float), always
  /// with a point or an exponent. JSON has no numbers that are not finite: they become the strings
  /// "nan", "inf" and "-inf".
  JsonObject& add(std::string_view key, double value);
  JsonObject& add(std::string_view key, float value);

  /// {"key": value, ...} in one line without its end.
  [[nodiscard]] std::string text() const { return "{" + members_ + "}"; }

 private:
  JsonObject& add_integer(std::string_view key, int64_t value);
  JsonObject& add_raw(std::string_view key, std::string_view value);

  std::string members_;
};

/// Appends lines to a file, each handed to the system at once. After a crash the last line may be
/// torn: call truncate_jsonl before going on with the file.
class JsonlWriter {
 public:
  /// Continues `path` or creates it. Error (kIo): it cannot be opened for writing.
  explicit JsonlWriter(const std::filesystem::path& path)
      : file_(path, AppendFile::Create::kIfMissing) {}

  /// Error (kIo): it cannot be written.
  void write(const JsonObject& object) { file_.append(object.text() + "\n"); }

 private:
  AppendFile file_;
};

/// What truncate_jsonl did.
struct Truncated {
  int64_t num_removed = 0;          ///< lines of later steps, and a torn last one
  int64_t num_damaged = 0;          ///< lines that are no JSON objects
  int64_t first_damaged = 0;        ///< its number, from 1 on
  std::filesystem::path set_aside;  ///< the file as it was, where lines are damaged; else empty
};

/// Removes from `path` every line whose integer member "step" is above `last_step`, a torn last
/// line, and damaged lines; with damaged ones the file as it was stays beside it as
/// "damaged-NAME". Other lines stay as they are. Atomic. A missing file counts as empty.
/// Errors (kIo): it is no regular file, or cannot be written.
Truncated truncate_jsonl(const std::filesystem::path& path, int64_t last_step);

}  // namespace kinora::io
