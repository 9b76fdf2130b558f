#include "apps/kinora/verdicts.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "kinora/inference/sample_folder.h"

namespace kinora::apps {
namespace {

constexpr const char* kSample = "sample";
constexpr const char* kRight = "right";

}  // namespace

VerdictLog::VerdictLog(const std::filesystem::path& folder, int64_t rank)
    : file_(inference::scratch_of(folder) / ("judged-" + std::to_string(rank) + ".jsonl")) {}

void VerdictLog::add(int64_t sample, bool is_right) {
  file_.write(io::JsonObject().add(kSample, sample).add(kRight, is_right));
}

std::map<int64_t, bool> read_verdicts(const std::filesystem::path& folder) {
  std::map<int64_t, bool> verdicts;
  for (const auto& entry : std::filesystem::directory_iterator(inference::scratch_of(folder))) {
    if (!entry.path().filename().string().starts_with("judged-")) {
      continue;
    }
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      // The last line of a process that was killed may be torn: its sample is not there either.
      if (const auto json = nlohmann::json::parse(line, nullptr, false); json.is_object()) {
        verdicts[json.at(kSample).get<int64_t>()] = json.at(kRight).get<bool>();
      }
    }
  }
  return verdicts;
}

}  // namespace kinora::apps
