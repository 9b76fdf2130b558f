#include "tests/apps/memory_watch.h"

#include <vector>

namespace kinora::apps {

std::string MemoryWatch::fault_of(const std::filesystem::path& run) const {
  const std::vector<LogLine> log = read_log(run);
  if (std::ssize(log) < steps) {
    return "only " + std::to_string(log.size()) + " of " + std::to_string(steps) + " steps";
  }
  int64_t before = 0;
  for (const LogLine& line : log) {
    const auto step = line.at("step").get<int64_t>();
    const auto peak = line.at("peak_memory").get<int64_t>();
    if (cap > 0 && peak > cap) {
      return "step " + std::to_string(step) + " took " + std::to_string(peak) + " bytes of " +
             std::to_string(cap);
    }
    before = step == settled ? peak : before;
  }
  const int64_t rise = log.back().at("peak_memory").get<int64_t>() - before;
  return rise > slack ? "the peak rose by " + std::to_string(rise) + " bytes after step " +
                            std::to_string(settled)
                      : "";
}

}  // namespace kinora::apps
