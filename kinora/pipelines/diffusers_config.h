#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kinora::pipelines {

/// A larger configuration file is none.
inline constexpr int64_t kMaxConfigBytes = 1 << 20;

/// A configuration of diffusers, a JSON object. Errors kIo for what is none and for values of
/// another kind. T: bool, int64_t, double, std::string, and of get() a list of int64_t
/// and a map of strings to strings.
class DiffusersConfig {
 public:
  explicit DiffusersConfig(const std::filesystem::path& path);
  ~DiffusersConfig();

  /// `otherwise`, the class' default, where the key is left out.
  template <typename T>
  [[nodiscard]] T get(const char* key, const T& otherwise) const;

  /// Whether the key is there and not null.
  [[nodiscard]] bool has(const char* key) const;

  /// Error kConfig for another value than `must`.
  template <typename T>
  void require(const char* key, const T& must, const T& otherwise) const;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  struct Values;
  std::filesystem::path path_;
  std::unique_ptr<Values> values_;
};

}  // namespace kinora::pipelines
