#include "kinora/io/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::io {

AppendFile::AppendFile(std::filesystem::path path, Create create) : path_(std::move(path)) {
  const int extra = create == Create::kNew ? O_EXCL : 0;
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | extra, 0666);
  KINORA_CHECK(descriptor_ >= 0, kIo, "[file] cannot write ", path_.string(), ": ",
               std::strerror(errno));
}

AppendFile::~AppendFile() {
  ::close(descriptor_);
}

void AppendFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    KINORA_CHECK(written >= 0, kIo, "[file] cannot write ", path_.string(), ": ",
                 std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace kinora::io
