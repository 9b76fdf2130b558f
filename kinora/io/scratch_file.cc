#include "kinora/io/scratch_file.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"

namespace kinora::io {
namespace {

// A request is large enough for the full rate of a disk, and so many are under way at once.
constexpr int64_t kRequestBytes = int64_t{1} << 20;
constexpr unsigned kRequests = 32;
constexpr size_t kThreads = 8;

std::string reason(int error) {
  return std::generic_category().message(error);
}

/// Creates the file and takes its name away. is_direct: out.
int open_without_name(const std::filesystem::path& folder, bool* is_direct) {
  const std::filesystem::path name = temporary_name(folder / "kinora-state");
  int error = 0;
  for (const int direct : {O_DIRECT, 0}) {
    const int descriptor =
        ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | direct, S_IRUSR | S_IWUSR);
    error = errno;
    ::unlink(name.c_str());  // also of an open that failed after it had created the file
    if (descriptor >= 0) {
      *is_direct = direct != 0;
      return descriptor;
    }
    if (error != EINVAL) {
      break;
    }
  }
  throw_error(ErrorKind::kIo, "[disk] cannot create a file in ", folder.string(), ": ",
              reason(error));
}

/// Memory from the system on kAlignment.
struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte[], Free>;

}  // namespace

class ScratchFile::Impl {
 public:
  Impl(std::filesystem::path where, int64_t bytes, Way way)
      : folder(std::move(where)), size(bytes) {
    check_room();
    descriptor = open_without_name(folder, &is_direct);
    try {
      allocate();
      start_ring(way);
    } catch (...) {
      ::close(descriptor);
      throw;
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (has_ring) {
      ::io_uring_queue_exit(&ring);
    }
    ::close(descriptor);
  }

  void transfer(std::span<const Piece> pieces, bool writes) {
    std::vector<Piece> requests;
    for (const Piece& piece : pieces) {
      KINORA_CHECK(piece.offset % kAlignment == 0 && piece.bytes % kAlignment == 0 &&
                       reinterpret_cast<uintptr_t>(piece.memory) % kAlignment == 0 &&
                       piece.offset >= 0 && piece.bytes <= size - piece.offset,
                   kInternal, "[disk] bytes ", piece.offset, " to ", piece.offset + piece.bytes,
                   " of ", size, " must begin and end on ", kAlignment);
      for (int64_t done = 0; done < piece.bytes; done += kRequestBytes) {
        requests.push_back({piece.offset + done, piece.memory + done,
                            std::min(kRequestBytes, piece.bytes - done)});
      }
    }
    const std::scoped_lock lock(mutex);
    if (has_ring) {
      by_ring(requests, writes);
    } else {
      by_threads(requests, writes);
    }
  }

  const std::filesystem::path folder;
  const int64_t size;
  bool is_direct = false;
  bool has_ring = false;
  std::string no_ring;  // why

 private:
  void check_room() const {
    const int64_t room = free_space(folder);
    KINORA_CHECK(size <= room, kIo, "[disk] ", folder.string(), " must have room for ",
                 human_bytes(size), " (", size, " bytes) of the optimizer's state, has ",
                 human_bytes(room), " (", room, " bytes)");
    rlimit limit{};
    // Beyond it the system ends the process.
    KINORA_CHECK(::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
                     static_cast<uint64_t>(size) <= limit.rlim_cur,
                 kIo, "[disk] a file in ", folder.string(), " must have ", size,
                 " bytes, and the limit of this process is ", limit.rlim_cur,
                 ". Hint: ulimit -f unlimited");
  }

  void allocate() {
    if (::fallocate(descriptor, 0, 0, size) == 0) {
      return;
    }
    const int error = errno;
    KINORA_CHECK(error == EOPNOTSUPP, kIo, "[disk] cannot allocate ", human_bytes(size), " (", size,
                 " bytes) in ", folder.string(), ": ", reason(error), "; it has ",
                 human_bytes(free_space(folder)));
    // A file system that allocates by writing alone.
    const Memory zeros(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kRequestBytes)));
    std::fill_n(zeros.get(), kRequestBytes, std::byte{0});
    for (int64_t offset = 0; offset < size; offset += kRequestBytes) {
      do_request({offset, zeros.get(), std::min(kRequestBytes, size - offset)}, true);
    }
  }

  void start_ring(Way way) {
    if (way == Way::kThreads) {
      no_ring = "not asked for";
      return;
    }
    if (const int error = ::io_uring_queue_init(kRequests, &ring, 0); error != 0) {
      no_ring = reason(-error);
      return;
    }
    io_uring_probe* probe = ::io_uring_get_probe_ring(&ring);
    has_ring = probe != nullptr && ::io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
               ::io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
    if (probe != nullptr) {
      ::io_uring_free_probe(probe);
    }
    if (!has_ring) {
      ::io_uring_queue_exit(&ring);
      no_ring = "the kernel is too old";
    }
  }

  /// What went on of a request; result: bytes, or a negative errno.
  void advance(Piece* request, int64_t result, bool writes) const {
    if (result == -EINTR || result == -EAGAIN) {
      return;
    }
    KINORA_CHECK(result > 0, kIo, "[disk] cannot ", writes ? "write" : "read",
                 " the optimizer's state at ", request->offset, " of its file in ", folder.string(),
                 ": ", result == 0 ? "the file ends there" : reason(static_cast<int>(-result)),
                 ". Hint: the last checkpoint is whole; continue with another optim.disk");
    request->offset += result;
    request->memory += result;
    request->bytes -= result;
  }

  void do_request(Piece request, bool writes) const {
    while (request.bytes > 0) {
      const auto bytes = static_cast<size_t>(request.bytes);
      const ssize_t result = writes ? ::pwrite(descriptor, request.memory, bytes, request.offset)
                                    : ::pread(descriptor, request.memory, bytes, request.offset);
      advance(&request, result < 0 ? -errno : result, writes);
    }
  }

  void by_threads(const std::vector<Piece>& requests, bool writes) const {
    std::atomic<size_t> next = 0;
    std::mutex of_error;
    std::exception_ptr error;
    const auto work = [&] {
      try {
        for (size_t i = next++; i < requests.size(); i = next++) {
          do_request(requests[i], writes);
        }
      } catch (...) {
        next = requests.size();
        const std::scoped_lock lock(of_error);
        error = std::current_exception();
      }
    };
    std::vector<std::thread> threads;
    for (size_t i = 1; i < std::min(kThreads, requests.size()); ++i) {
      threads.emplace_back(work);
    }
    work();
    for (std::thread& thread : threads) {
      thread.join();
    }
    if (error) {
      std::rethrow_exception(error);
    }
  }

  /// Always waits for all that is under way, since it points to the caller's memory.
  void by_ring(std::vector<Piece>& requests, bool writes) {
    std::vector<Piece*> waiting;
    for (Piece& request : requests) {
      waiting.push_back(&request);
    }
    std::exception_ptr error;
    size_t under_way = 0;
    while (under_way > 0 || (!waiting.empty() && !error)) {
      while (!waiting.empty() && !error && under_way < kRequests) {
        io_uring_sqe* entry = ::io_uring_get_sqe(&ring);
        if (entry == nullptr) {
          break;
        }
        Piece* request = waiting.back();
        waiting.pop_back();
        const auto bytes = static_cast<unsigned>(request->bytes);
        const auto offset = static_cast<uint64_t>(request->offset);
        if (writes) {
          ::io_uring_prep_write(entry, descriptor, request->memory, bytes, offset);
        } else {
          ::io_uring_prep_read(entry, descriptor, request->memory, bytes, offset);
        }
        ::io_uring_sqe_set_data(entry, request);
        ++under_way;
      }
      const int submitted = ::io_uring_submit_and_wait(&ring, 1);
      if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN && submitted != -EBUSY) {
        ::io_uring_queue_exit(&ring);  // what is under way ends with it
        has_ring = false;
        throw_error(ErrorKind::kIo, "[disk] cannot ask for the optimizer's state in ",
                    folder.string(), ": ", reason(-submitted));
      }
      io_uring_cqe* done = nullptr;
      while (::io_uring_peek_cqe(&ring, &done) == 0) {
        auto* request = static_cast<Piece*>(::io_uring_cqe_get_data(done));
        const int result = done->res;
        ::io_uring_cqe_seen(&ring, done);
        --under_way;
        try {
          advance(request, result, writes);
          if (request->bytes > 0) {
            waiting.push_back(request);
          }
        } catch (...) {
          error = std::current_exception();
        }
      }
    }
    if (error) {
      std::rethrow_exception(error);
    }
  }

  int descriptor = -1;
  std::mutex mutex;
  io_uring ring{};
};

ScratchFile::ScratchFile(std::filesystem::path folder, int64_t bytes, Way way)
    : impl_(std::make_unique<Impl>(std::move(folder), bytes, way)) {}

ScratchFile::~ScratchFile() = default;

void ScratchFile::read(std::span<const Piece> pieces) {
  impl_->transfer(pieces, false);
}

void ScratchFile::write(std::span<const Piece> pieces) {
  impl_->transfer(pieces, true);
}

int64_t ScratchFile::size() const {
  return impl_->size;
}

const std::filesystem::path& ScratchFile::folder() const {
  return impl_->folder;
}

bool ScratchFile::is_direct() const {
  return impl_->is_direct;
}

std::string ScratchFile::describe() const {
  return std::string(impl_->is_direct ? "O_DIRECT"
                                      : "through the system's cache, since the file system has "
                                        "no O_DIRECT") +
         (impl_->has_ring ? ", io_uring"
                          : ", threads in place of io_uring (" + impl_->no_ring + ")");
}

}  // namespace kinora::io
