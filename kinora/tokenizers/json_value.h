#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kinora/core/error.h"
#include "kinora/tokenizers/tokenizer_files.h"

namespace kinora::tokenizers {

class JsonFile;

/// A place in a JSON file, which names itself in errors (kIo): "[tokenizer] FILE: model.vocab must
/// be an object, got a number". Lives as long as its file.
class JsonValue {
 public:
  [[nodiscard]] bool is_text() const;
  [[nodiscard]] bool is_object() const;
  [[nodiscard]] bool is_array() const;

  [[nodiscard]] std::string_view text() const;
  [[nodiscard]] bool flag() const;
  [[nodiscard]] int64_t integer() const;
  [[nodiscard]] double number() const;
  [[nodiscard]] size_t size() const;  ///< of an array or an object

  /// A member that must be there, and not null.
  [[nodiscard]] JsonValue at(std::string_view name) const;
  /// One that may be missing or null.
  [[nodiscard]] std::optional<JsonValue> find(std::string_view name) const;
  [[nodiscard]] std::string text_or(std::string_view name, std::string_view otherwise) const;
  [[nodiscard]] bool flag_or(std::string_view name, bool otherwise) const;

  /// An element of an array, which must be there.
  [[nodiscard]] JsonValue element(size_t index) const;
  void each(const std::function<void(const JsonValue&)>& use) const;
  void each_member(const std::function<void(std::string_view, const JsonValue&)>& use) const;

  /// "[tokenizer] FILE: model.vocab".
  [[nodiscard]] std::string where() const;

  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    throw_error(ErrorKind::kIo, where(), " ", parts...);
  }

 private:
  friend class JsonFile;
  JsonValue(const void* value, std::shared_ptr<const std::string> file, std::string path)
      : value_(value), file_(std::move(file)), path_(std::move(path)) {}

  const void* value_;  // an nlohmann::json
  std::shared_ptr<const std::string> file_;
  std::string path_;  // empty: the whole file
};

/// A parsed file of at most 32 levels.
class JsonFile {
 public:
  /// Error (kIo): it is no JSON.
  explicit JsonFile(const TokenizerFiles::File& file) : JsonFile(file.bytes, file.shown) {}
  /// `text` as if it were the file `name`.
  JsonFile(std::string_view text, const std::string& name);
  ~JsonFile();
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;

  [[nodiscard]] JsonValue root() const;

 private:
  struct Tree;
  std::unique_ptr<Tree> tree_;
  std::shared_ptr<const std::string> name_;
};

}  // namespace kinora::tokenizers
