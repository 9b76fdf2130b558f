#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kinora/kernels/matmul.h"

/// Matrix products through cuBLASLt, with algorithms that were timed on the shapes at hand.
namespace kinora::kernels::cuda {

struct MatmulOptions {
  /// Where found algorithms are kept; empty: only in memory. Keyed by GPU, cuBLAS version, problem.
  std::string cache_file{};
  /// false: the library's first choice (no timing, the same every time).
  bool search = true;
  /// Only algorithms whose sums have a fixed order; no bias gradients, of whose order the library
  /// says nothing.
  bool deterministic = false;
};

/// Runs products on the GPU that is current where it is made. Not safe for two threads at once.
/// Holds 64 MiB of that GPU's memory as workspace, so one stream at a time: products on two streams
/// must not overlap.
class Matmul {
 public:
  explicit Matmul(const MatmulOptions& options);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  /// Whether the library has this problem with this epilogue and these types, and the options allow
  /// it. Asked once a problem,
  /// then remembered. What the library proposes it may still refuse to run (seen on an H200 of an
  /// 8-bit product of 16 x 16 x 16): then run() throws, and from then on the answer is no.
  [[nodiscard]] bool supports(const MatmulProblem& problem);

  /// Enqueues the product. The first call of a problem chooses its algorithm: pinned, from the
  /// cache file, or by timing candidates on random arrays of the same sizes (waits for the stream;
  /// without memory for the arrays: the library's first choice), which the cache file then keeps.
  /// While `stream` is being captured an unknown problem takes the library's first choice, until it
  /// is run outside of a capture. An algorithm that the library then refuses to run gives way to
  /// its next proposal. Throws kInternal for unsupported problems and failures of the library.
  void run(const MatmulProblem& problem, const MatmulArguments& arguments, cudaStream_t stream);

  /// The algorithms of all problems run so far, timed or not, and of the pinned ones not run yet, a
  /// line each: what pin() takes.
  [[nodiscard]] std::string choices() const;

  /// From now on the problems named in `choices` use the algorithms named there, without search;
  /// the same algorithm on the same GPU gives the same bits. Lines of another GPU or cuBLASLt and
  /// damaged lines are passed over. What the library rejects when the problem comes is named in a
  /// warning, and the problem treated as if it were not pinned.
  /// @return  lines of this GPU and cuBLASLt.
  size_t pin(const std::string& choices);

  /// cuBLASLt's version number.
  [[nodiscard]] static size_t library_version();

  /// One line a problem used so far: shape, types, epilogue, algorithm, TFLOP/s when timed.
  [[nodiscard]] std::vector<std::string> report() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kinora::kernels::cuda
