#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <vector>

namespace kinora::pipelines {

/// Copies from host memory, such as a mapped file, to a GPU on a stream of its own. Threads read
/// into pinned buffers, two a thread, so that the GPU copies one while the next is filled. The
/// buffers are small enough to stay in the processor's cache.
class StagedCopies {
 public:
  struct Copy {
    at::Tensor from;  ///< on the CPU, contiguous, any floating type
    at::Tensor to;    ///< on the GPU, contiguous, of as many elements
  };

  explicit StagedCopies(at::Device device);
  /// Waits for the copies.
  ~StagedCopies();
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;

  /// The next copies begin when what the current stream has been given so far is done.
  void wait_for_current_stream();
  /// Returns when all copies have been given to the GPU and nothing of `from` is needed any more.
  /// Any thread may call it, one at a time.
  void run(const std::vector<Copy>& copies);
  /// What the current stream gets from now on begins when the copies are done.
  void let_current_stream_wait();

 private:
  struct Buffer {
    explicit Buffer(at::Device device);
    at::Tensor bytes;  // pinned
    c10::Event read;   // by the GPU
  };
  struct Piece {
    at::Tensor from;  // one dim
    at::Tensor to;
  };
  /// Pieces `first`, `first` + the number of threads, ..., through the buffers of thread `first`.
  void copy_every(const std::vector<Piece>& pieces, size_t first);

  c10::Device device_;
  c10::Stream stream_;
  size_t num_threads_;
  std::vector<Buffer> buffers_;  // two a thread
};

}  // namespace kinora::pipelines
