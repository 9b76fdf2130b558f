#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace kinora::pipelines {

/// Name and content of the files that hold a cache's samples, and its manifest: all but journals.
inline std::map<std::string, std::string> content_of(const std::filesystem::path& cache) {
  std::map<std::string, std::string> content;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cache)) {
    if (entry.path().extension() == ".safetensors" || entry.path().filename() == "manifest.json") {
      std::ostringstream text;
      text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      content[std::filesystem::relative(entry.path(), cache).string()] = text.str();
    }
  }
  return content;
}

}  // namespace kinora::pipelines
