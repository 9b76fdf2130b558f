#include "tests/apps/rank_process.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace kinora::apps {
namespace {

/// The strings of a file in /proc that end with a zero byte each.
std::vector<std::string> strings_of(const std::filesystem::path& path) {
  std::vector<std::string> strings;
  std::ifstream file(path, std::ios::binary);
  for (std::string text; std::getline(file, text, '\0');) {
    strings.push_back(text);
  }
  return strings;
}

bool has(const std::vector<std::string>& strings, const std::string& wanted) {
  return std::find(strings.begin(), strings.end(), wanted) != strings.end();
}

}  // namespace

pid_t rank_process(const std::filesystem::path& run, int64_t rank, int64_t restart) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos ||
        !has(strings_of(entry.path() / "cmdline"), "run.dir=" + run.string())) {
      continue;
    }
    const std::vector<std::string> variables = strings_of(entry.path() / "environ");
    if (has(variables, "RANK=" + std::to_string(rank)) &&
        has(variables, "KINORA_RESTART=" + std::to_string(restart))) {
      return std::stoi(name);
    }
  }
  return 0;
}

}  // namespace kinora::apps
