#include "kinora/data/file_stamp.h"

#include <sys/stat.h>

#include <span>

#include "kinora/io/file.h"

namespace kinora::data {

uint64_t mix_stamps(std::initializer_list<uint64_t> parts) {
  return io::checksum_value(std::as_bytes(std::span(parts.begin(), parts.size())));
}

uint64_t file_stamp(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return 0;
  }
  return mix_stamps({static_cast<uint64_t>(status.st_size),
                     static_cast<uint64_t>(status.st_mtim.tv_sec),
                     static_cast<uint64_t>(status.st_mtim.tv_nsec)});
}

}  // namespace kinora::data
