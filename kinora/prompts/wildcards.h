#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kinora::prompts {

/// Lists of words that prompts choose from: __animal__ in a prompt becomes a line of animal.txt,
/// __places/city__ one of places/city.txt. Lines that are empty or begin with # are left out; a
/// line may have wildcards of its own.
class Wildcards {
 public:
  /// Lists of a folder, which are read when they are first needed. kIo unless it is a folder.
  explicit Wildcards(std::filesystem::path folder);

  /// `prompt` with a line in the place of each wildcard. It is chosen by (seed, sample, how many
  /// wildcards came before it) alone: purpose kGenerate, sample, step, of which word 0 times the
  /// number of lines is divided by 2^32. kConfig for a list that is not there, with the names that
  /// are, for lists that name each other in a circle, and for what becomes too long; kIo for a list
  /// that cannot be read or lies outside of the folder.
  [[nodiscard]] std::string expanded(std::string_view prompt, uint64_t seed, uint64_t sample);

 private:
  struct Expansion;

  void expand(std::string_view prompt, int depth, Expansion& expansion);
  [[nodiscard]] const std::vector<std::string>& lines_of(const std::string& name);

  std::filesystem::path folder_;
  std::map<std::string, std::vector<std::string>, std::less<>> lists_;
};

}  // namespace kinora::prompts
