#include "kinora/io/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::io {

AppendFile::AppendFile(std::filesystem::path path, Create create) : path_(std::move(path)) {
  const int extra = create == Create::kNew ? O_EXCL : 0;
  // Without O_NONBLOCK the open of a named pipe waits for a reader; regular files do not care.
  descriptor_ =
      ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | extra, 0666);
  struct stat status {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    throw_error(ErrorKind::kIo, "[file] cannot write ", path_.string(), ": ", std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw_error(ErrorKind::kIo,
                "[file] must be a regular file, got something else: ", path_.string());
  }
}

/// What is appended next must not follow on half of something.
void AppendFile::take_back(size_t count) const {
  const off_t end = ::lseek(descriptor_, 0, SEEK_END);
  if (count > 0 && end >= static_cast<off_t>(count)) {
    (void)!::ftruncate(descriptor_, end - static_cast<off_t>(count));
  }
}

AppendFile::~AppendFile() {
  ::close(descriptor_);
}

void AppendFile::append(std::string_view bytes) {
  const size_t total = bytes.size();
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      const int reason = errno;
      take_back(total - bytes.size());
      throw_error(ErrorKind::kIo, "[file] cannot write ", path_.string(), ": ",
                  std::strerror(reason));
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace kinora::io
