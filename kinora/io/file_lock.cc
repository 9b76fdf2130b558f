#include "kinora/io/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kinora/core/error.h"

namespace kinora::io {

std::optional<FileLock> FileLock::take(const std::filesystem::path& file) {
  FileLock lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  KINORA_CHECK(lock.descriptor_ >= 0, kIo, "[file] cannot create ", file.string(), ": ",
               std::strerror(errno));
  if (::flock(lock.descriptor_, LOCK_EX | LOCK_NB) == 0) {
    return lock;
  }
  KINORA_CHECK(errno == EWOULDBLOCK, kIo, "[file] cannot lock ", file.string(), ": ",
               std::strerror(errno));
  return std::nullopt;
}

bool FileLock::is_held(const std::filesystem::path& file) {
  const FileLock lock(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  return lock.descriptor_ >= 0 && ::flock(lock.descriptor_, LOCK_SH | LOCK_NB) != 0 &&
         errno == EWOULDBLOCK;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

}  // namespace kinora::io
