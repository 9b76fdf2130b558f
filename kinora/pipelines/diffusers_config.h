#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kinora::pipelines {

/// A larger configuration file is none.
inline constexpr int64_t kMaxConfigBytes = 1 << 20;

/// Of HunyuanVideo's image_condition_type: the first frame stands in the clip without noise.
inline constexpr const char* kTokenReplace = "token_replace";

/// A configuration of diffusers or transformers, a JSON object. What lies deeper in it than any has
/// is left out. Errors kIo for what is no object and for values of another kind. T: bool, int64_t,
/// double, std::string; of get() also lists of the last three and of lists of int64_t, and a map of
/// strings to strings.
class DiffusersConfig {
 public:
  explicit DiffusersConfig(const std::filesystem::path& path);
  /// Of a text that was read before. Errors begin with "[room] where".
  DiffusersConfig(const std::string& text, std::string room, std::string where);
  /// The same; nothing for what is no object.
  [[nodiscard]] static std::optional<DiffusersConfig> find(const std::string& text,
                                                           std::string room, std::string where);

  /// `otherwise`, the class' default, where the key is left out.
  template <typename T>
  [[nodiscard]] T get(const char* key, const T& otherwise) const;

  /// Whether the key is there and not null.
  [[nodiscard]] bool has(const char* key) const;

  /// Whether the key is there and null, which is no default then.
  [[nodiscard]] bool is_null(const char* key) const;

  /// Error kConfig for another value than `must`.
  template <typename T>
  void require(const char* key, const T& must, const T& otherwise) const;

  /// From 1 to `most`; kIo for what is no whole number, kConfig for another.
  [[nodiscard]] int64_t size(const char* key, int64_t otherwise, int64_t most) const;

  /// Whether the value is an object.
  [[nodiscard]] bool is_object(const char* key) const;
  /// Whether the value is a list.
  [[nodiscard]] bool is_list(const char* key) const;
  /// Whether the value is this text.
  [[nodiscard]] bool is(const char* key, std::string_view text) const;
  /// The value as JSON, for messages.
  [[nodiscard]] std::string written(const char* key) const;
  /// The object under `key`; kIo where there is none.
  [[nodiscard]] DiffusersConfig within(const char* key) const;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// What it is, for messages: "[room] where: ".
  [[nodiscard]] std::string message() const { return "[" + room_ + "] " + where_ + ": "; }

 private:
  struct Values;
  DiffusersConfig(std::shared_ptr<const Values> values, std::string room, std::string where);

  std::filesystem::path path_;
  std::string room_;
  std::string where_;
  std::shared_ptr<const Values> values_;
};

}  // namespace kinora::pipelines
