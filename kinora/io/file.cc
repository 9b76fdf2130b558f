#include "kinora/io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <limits>
#include <system_error>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kinora/core/error.h"

namespace kinora::io {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
// Linux transfers at most 0x7ffff000 bytes a call.
constexpr size_t kMaxTransfer = size_t{1} << 30;

std::string reason(int error) {
  return std::generic_category().message(error);
}

[[noreturn]] void fail(const char* what, const std::filesystem::path& path, int error) {
  throw_error(ErrorKind::kIo, "[file] cannot ", what, " ", path.string(), ": ", reason(error));
}

/// Closes on every way out.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) {
      ::close(value_);
    }
  }
  [[nodiscard]] int get() const { return value_; }
  [[nodiscard]] int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

int open_retrying(const std::filesystem::path& path, int flags, mode_t mode = 0) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

struct RegularFile {
  Descriptor descriptor;
  size_t size;
};

RegularFile open_regular(const std::filesystem::path& path) {
  // Without O_NONBLOCK the open of a named pipe waits for a writer; regular files do not care.
  const int descriptor = open_retrying(path, O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) {
    fail("open", path, errno);
  }
  RegularFile file{Descriptor(descriptor), 0};
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    fail("read the size of", path, errno);
  }
  KINORA_CHECK(S_ISREG(status.st_mode), kIo, "[file] must be a regular file, got ",
               S_ISDIR(status.st_mode) ? "a folder: " : "something else: ", path.string());
  file.size = static_cast<size_t>(status.st_size);
  return file;
}

template <typename Container>
Container read_whole(const std::filesystem::path& path, int64_t max_bytes) {
  const RegularFile file = open_regular(path);
  KINORA_CHECK(std::cmp_less_equal(file.size, max_bytes), kIo, "[file] ", path.string(),
               " must have at most ", max_bytes, " bytes, got ", file.size);
  Container content(file.size, {});
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t count = ::read(file.descriptor.get(), content.data() + done,
                                 std::min(content.size() - done, kMaxTransfer));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      fail("read", path, errno);
    }
    KINORA_CHECK(count > 0, kIo, "[file] ", path.string(), " must have ", file.size,
                 " bytes, got only ", done, ": it was shortened while being read");
    done += static_cast<size_t>(count);
  }
  return content;
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const RegularFile file = open_regular(path_);
  if (file.size == 0) {
    return;  // mmap refuses a length of zero
  }
  void* address = ::mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, file.descriptor.get(), 0);
  if (address == MAP_FAILED) {
    fail("map", path_, errno);
  }
  bytes_ = {static_cast<const std::byte*>(address), file.size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

std::vector<std::byte> read_file(const std::filesystem::path& path, int64_t max_bytes) {
  return read_whole<std::vector<std::byte>>(path, max_bytes);
}

std::string read_text(const std::filesystem::path& path, int64_t max_bytes) {
  return read_whole<std::string>(path, max_bytes);
}

FileReader::FileReader(std::filesystem::path path) : path_(std::move(path)) {
  RegularFile file = open_regular(path_);
  size_ = static_cast<int64_t>(file.size);
  descriptor_ = file.descriptor.release();
}

FileReader::~FileReader() {
  ::close(descriptor_);
}

void FileReader::read_at(int64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t count =
        ::pread(descriptor_, out.data() + done, std::min(out.size() - done, kMaxTransfer),
                static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      fail("read", path_, errno);
    }
    KINORA_CHECK(count > 0, kIo, "[file] ", path_.string(), " must have ", out.size(),
                 " bytes from ", offset, " on, got ", done);
    done += static_cast<size_t>(count);
  }
}

void FileReader::start_reading(int64_t offset, int64_t count) const {
  // Where a file system cannot, read_at() does it.
  (void)::posix_fadvise(descriptor_, offset, count, POSIX_FADV_WILLNEED);
}

FileWriter::FileWriter(std::filesystem::path path, Create create) : path_(std::move(path)) {
  int how = O_TRUNC;
  if (create != Create::kReplace) {
    how = create == Create::kNew ? O_EXCL : 0;
  }
  // O_NONBLOCK as in open_regular().
  descriptor_ = open_retrying(path_, O_WRONLY | O_CREAT | O_NONBLOCK | how, 0666);
  if (descriptor_ < 0) {
    fail("create", path_, errno);
  }
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void FileWriter::write_all(int64_t offset, std::span<const std::byte> bytes) {
  KINORA_CHECK(descriptor_ >= 0, kInternal, "[file] write after close of ", path_.string());
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count =
        ::pwrite(descriptor_, bytes.data() + done, std::min(bytes.size() - done, kMaxTransfer),
                 static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      throw_error(ErrorKind::kIo, "[file] cannot write ", bytes.size(), " bytes at offset ", offset,
                  " of ", path_.string(), ", got ", done,
                  " bytes written: ", reason(count < 0 ? errno : ENOSPC));
    }
    done += static_cast<size_t>(count);
  }
}

void FileWriter::flush() {
  if (!buffer_.empty()) {
    write_all(size_ - static_cast<int64_t>(buffer_.size()), buffer_);
    buffer_.clear();
  }
}

void FileWriter::append(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) {
    flush();
  }
  if (bytes.size() >= kBufferBytes) {
    write_all(size_, bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
  size_ += static_cast<int64_t>(bytes.size());
}

void FileWriter::append(std::string_view text) {
  append(std::as_bytes(std::span(text.data(), text.size())));
}

void FileWriter::write_at(int64_t offset, std::span<const std::byte> bytes) {
  KINORA_CHECK(offset >= 0, kInternal, "[file] offset must not be negative, got ", offset);
  flush();
  write_all(offset, bytes);
}

void FileWriter::start_sync(int64_t offset, int64_t count) {
  // Where a file system cannot, sync() does it.
  (void)::sync_file_range(descriptor_, offset, count, SYNC_FILE_RANGE_WRITE);
}

void FileWriter::sync() {
  flush();
  if (::fsync(descriptor_) != 0) {
    fail("sync", path_, errno);
  }
}

void FileWriter::close() {
  flush();
  // Linux frees the descriptor also when close fails, so there is no second try.
  if (::close(std::exchange(descriptor_, -1)) != 0) {
    fail("close", path_, errno);
  }
}

void write_file_atomic(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const std::filesystem::path temporary = temporary_name(path);
  try {
    FileWriter writer(temporary, FileWriter::Create::kNew);
    writer.append(bytes);
    writer.sync();
    writer.close();
    rename_durably(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void write_file_atomic(const std::filesystem::path& path, std::string_view text) {
  write_file_atomic(path, std::as_bytes(std::span(text.data(), text.size())));
}

std::filesystem::path temporary_name(const std::filesystem::path& path) {
  static std::atomic<uint64_t> counter{0};
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);  // process ids repeat among machines that share a folder
  std::filesystem::path name = path;
  name += "." + std::to_string(::getpid()) + "-" + std::to_string(now.tv_nsec) + "-" +
          std::to_string(counter.fetch_add(1)) + ".tmp";
  return name;
}

std::filesystem::path damaged_name(const std::filesystem::path& path) {
  const std::filesystem::path first = folder_of(path) / ("damaged-" + path.filename().string());
  std::filesystem::path name = first;
  std::error_code ignored;
  for (int number = 2; std::filesystem::exists(name, ignored); ++number) {
    name = first;
    name += "-" + std::to_string(number);
  }
  return name;
}

void check_can_write(const std::filesystem::path& folder) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  KINORA_CHECK(!failure, kIo, "[file] cannot make the folder ", folder.string(), ": ",
               failure.message(), ". Hint: another place to write to");
  const std::filesystem::path probe = temporary_name(folder / "probe");
  FileWriter(probe, FileWriter::Create::kNew).close();
  ::unlink(probe.c_str());
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  // rename(2) would put a file in place of /dev/null, and who is root may do that.
  struct stat status {};
  const bool is_taken = ::lstat(to.c_str(), &status) == 0;
  KINORA_CHECK(
      !is_taken || S_ISREG(status.st_mode) || S_ISLNK(status.st_mode) || S_ISDIR(status.st_mode),
      kIo, "[file] must be a regular file, got a pipe or a device: ", to.string());
  if (::rename(from.c_str(), to.c_str()) != 0) {
    fail(("rename " + from.string() + " to").c_str(), to, errno);
  }
  sync_folder(folder_of(to));
}

void sync_folder(const std::filesystem::path& folder) {
  const Descriptor descriptor(open_retrying(folder, O_RDONLY | O_DIRECTORY));
  if (descriptor.get() < 0) {
    fail("open the folder", folder, errno);
  }
  if (::fsync(descriptor.get()) != 0) {
    fail("sync the folder", folder, errno);
  }
}

int64_t free_space(const std::filesystem::path& path) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) {
    fail("read the free space of", path, errno);
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(status.f_bavail, status.f_frsize, &bytes)) {
    return std::numeric_limits<int64_t>::max();  // network file systems may claim "no limit"
  }
  return bytes;
}

struct Checksum::State {
  XXH3_state_t xxh3;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->xxh3);
  XXH3_64bits_reset(&state_->xxh3);
}
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;
Checksum::~Checksum() = default;

void Checksum::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

std::string Checksum::hex() const {
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx",
                static_cast<unsigned long long>(XXH3_64bits_digest(&state_->xxh3)));
  return digits;
}

std::string checksum(std::span<const std::byte> bytes) {
  Checksum sum;
  sum.update(bytes);
  return sum.hex();
}

uint64_t checksum_value(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kMaxShown = 120;
  std::string shown = "\"";
  for (const char letter : text.substr(0, kMaxShown)) {
    const auto code = static_cast<unsigned char>(letter);
    if (code >= 0x20 && code < 0x7f) {
      shown += letter;
    } else {
      char escape[5];
      std::snprintf(escape, sizeof(escape), "\\x%02x", code);
      shown += escape;
    }
  }
  return shown + (text.size() > kMaxShown ? "\"..." : "\"");
}

}  // namespace kinora::io
