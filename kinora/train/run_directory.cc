#include "kinora/train/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kinora/core/error.h"

namespace kinora::train {
namespace {

constexpr const char* kLockName = ".lock";

/// Empty folders do not count: a start that was refused leaves those of the run.
bool holds_a_run(const std::filesystem::path& path) {
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const bool empty_folder = entry.is_directory() && std::filesystem::is_empty(entry.path());
    if (entry.path().filename() != kLockName && !empty_folder) {
      return true;
    }
  }
  return false;
}

int lock(const std::filesystem::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  KINORA_CHECK(descriptor >= 0, kIo, "[run] cannot create ", file, ": ", std::strerror(errno));
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    ::close(descriptor);
    KINORA_CHECK(reason != EWOULDBLOCK, kIo, "[run] another process trains in ", file.parent_path(),
                 ". Hint: stop it, or give another run.dir");
    throw_error(ErrorKind::kIo, "[run] cannot lock ", file, ": ", std::strerror(reason));
  }
  return descriptor;
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
  lock_ = lock(path_ / kLockName);
  if (resume.mode == Resume::Mode::kNever && holds_a_run(path_)) {
    ::close(lock_);
    throw_error(ErrorKind::kConfig, "[run] run.dir must be new or empty, but ", path_,
                " holds a run. Hint: --resume auto goes on with it; another run.dir starts anew");
  }
  std::filesystem::create_directories(samples());
  std::filesystem::create_directories(checkpoints());
}

RunDirectory::~RunDirectory() {
  if (lock_ >= 0) {
    ::close(lock_);
  }
}

}  // namespace kinora::train
