#include "kinora/train/records/run_directory.h"

#include <chrono>
#include <thread>

#include "kinora/core/error.h"

namespace kinora::train {
namespace {

// Who asks whether a run is alive (run_state.h) holds the lock for a moment.
constexpr int kLockTries = 5;
constexpr std::chrono::milliseconds kBetweenTries{50};

std::optional<io::FileLock> take_patiently(const std::filesystem::path& file) {
  std::optional<io::FileLock> lock = io::FileLock::take(file);
  for (int i = 1; i < kLockTries && !lock; ++i) {
    std::this_thread::sleep_for(kBetweenTries);
    lock = io::FileLock::take(file);
  }
  return lock;
}

/// The first that lies in the folder, if anything does. Empty folders do not count: a start that
/// was refused leaves those of the run.
std::optional<std::filesystem::path> first_content(const RunDirectory& run) {
  for (const auto& entry : std::filesystem::directory_iterator(run.path())) {
    const bool empty_folder = entry.is_directory() && std::filesystem::is_empty(entry.path());
    if (entry.path() != run.lock_file() && !empty_folder) {
      return entry.path();
    }
  }
  return std::nullopt;
}

/// Whether a run was begun in the folder, or copied there.
bool is_of_a_run(const RunDirectory& run) {
  const auto exists = [](const std::filesystem::path& path) {
    return std::filesystem::exists(path);
  };
  return exists(run.lock_file()) ||
         (exists(run.config_file()) && (exists(run.log_file()) || exists(run.checkpoints())));
}

}  // namespace

Resume Resume::parse(const std::string& text) {
  if (text == "never") {
    return {.mode = Mode::kNever, .checkpoint = {}};
  }
  if (text == "auto") {
    return {.mode = Mode::kAuto, .checkpoint = {}};
  }
  KINORA_CHECK(std::filesystem::is_directory(text), kConfig,
               "[run] --resume must be auto, never or a checkpoint's folder, got ", text);
  return {.mode = Mode::kPath, .checkpoint = text};
}

RunDirectory::RunDirectory(std::filesystem::path path, const Resume& resume)
    : path_(std::move(path)) {
  std::error_code failure;
  std::filesystem::create_directories(path_, failure);
  KINORA_CHECK(!failure && std::filesystem::is_directory(path_), kIo,
               "[run] cannot create the run directory ", path_, ": ", failure.message());
  const auto content = first_content(*this);
  KINORA_CHECK(!content || is_of_a_run(*this), kConfig,
               "[run] run.dir must be new, empty, or of a run, but ", path_,
               " holds other files, such as ", content->filename(), ". Hint: give another run.dir");
  lock_ = take_patiently(lock_file());
  KINORA_CHECK(lock_, kIo, "[run] another process trains in ", path_,
               ". Hint: stop it, or give another run.dir");
  KINORA_CHECK(resume.mode != Resume::Mode::kNever || !content, kConfig,
               "[run] run.dir must be new or empty, but ", path_,
               " holds a run. Hint: --resume auto goes on with it; another run.dir starts anew");
  std::filesystem::create_directories(samples());
  std::filesystem::create_directories(checkpoints());
}

}  // namespace kinora::train
