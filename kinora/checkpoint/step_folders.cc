#include "kinora/checkpoint/step_folders.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"

namespace kinora::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kUnfinishedPrefix = ".unfinished-";

}  // namespace

fs::path step_folder(const fs::path& folder, int64_t step) {
  return folder / (std::string(kStepPrefix) + std::to_string(step));
}

std::optional<int64_t> step_of(const fs::path& checkpoint) {
  const std::string name = checkpoint.filename().string();
  if (!name.starts_with(kStepPrefix)) {
    return std::nullopt;
  }
  int64_t step = 0;
  const char* first = name.data() + kStepPrefix.size();
  const char* last = name.data() + name.size();
  const auto parsed = std::from_chars(first, last, step);
  if (parsed.ec != std::errc() || parsed.ptr != last || step < 0) {
    return std::nullopt;
  }
  return step;
}

std::vector<fs::path> list_checkpoints(const fs::path& folder) {
  std::vector<fs::path> found;
  if (fs::is_directory(folder)) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.is_directory() && step_of(entry.path())) {
        found.push_back(entry.path());
      }
    }
  }
  std::sort(found.begin(), found.end(),
            [](const fs::path& a, const fs::path& b) { return *step_of(a) < *step_of(b); });
  return found;
}

void check_space(const fs::path& folder, int64_t bytes) {
  constexpr int64_t kRest = 16 << 20;  // headers and manifest, generously
  const int64_t needed = bytes + kRest;
  const int64_t available = io::free_space(folder);
  KINORA_CHECK(available >= needed, kIo, "[checkpoint] ", folder, " has ", human_bytes(available),
               " free, but a checkpoint needs ", human_bytes(needed), ": ",
               human_bytes(needed - available),
               " are missing. Hint: free some, or lower checkpoint.keep_last");
}

std::string unfinished_name(int64_t step) {
  return std::string(kUnfinishedPrefix) + std::to_string(step) + "-" + std::to_string(::getpid());
}

void remove_unfinished(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kUnfinishedPrefix)) {
      log_info("[checkpoint] removing ", entry.path(), ", which was never finished");
      fs::remove_all(entry.path());
    }
  }
}

void prune(const fs::path& folder, int64_t keep_last, int64_t keep_every) {
  if (keep_last <= 0) {
    return;
  }
  const std::vector<fs::path> checkpoints = list_checkpoints(folder);
  const auto num_old = static_cast<int64_t>(checkpoints.size()) - keep_last;
  for (int64_t i = 0; i < num_old; ++i) {
    const fs::path& checkpoint = checkpoints[static_cast<size_t>(i)];
    if (keep_every > 0 && *step_of(checkpoint) % keep_every == 0) {
      continue;
    }
    // Renamed first, so that a run that ends here leaves no half of a step-N behind.
    const fs::path doomed =
        folder / (std::string(kUnfinishedPrefix) + checkpoint.filename().string());
    io::rename_durably(checkpoint, doomed);
    fs::remove_all(doomed);
  }
}

}  // namespace kinora::checkpoint
