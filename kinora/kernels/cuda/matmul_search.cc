#include "kinora/kernels/cuda/matmul_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "kinora/core/cuda.h"
#include "kinora/core/rounding.h"
#include "kinora/kernels/elements.h"
#include "kinora/kernels/fp8.h"

namespace kinora::kernels::cuda {
namespace {

constexpr int kNumProposals = 32;
constexpr int kQuickRuns = 3;  // of every candidate, after one that is not counted
// Small products run back to back too, with one of several copies of b each time: in a network the
// kernels before are just ending, a was just computed, and weights come from memory.
constexpr float kSmallBurstUs = 150.0F;
constexpr int64_t kMostCopies = 64;
constexpr size_t kMaxFinalists = 8;  // then timed in turns, so that the GPU's clock hits all alike
constexpr int kFinalRuns = 15;
// A large product in a network runs at the clock that the GPU's power limit allows, and what draws
// less gets a higher one, for which the GPU takes about 60 ms (seen on an H200). Such finalists run
// that long before they are timed: one of each kind of tile, since those with other options differ
// little. What is fastest at once is up to a tenth slower then.
constexpr float kLargeUs = 100.0F;
constexpr size_t kMaxLargeFinalists = 5;
constexpr float kSettlingUs = 60e3F;
constexpr float kSettledUs = 40e3F;
constexpr float kHeatingUs = 100e3F;  // a GPU that was not busy
constexpr float kFinalistRatio = 1.1F;
constexpr float kRestorableRatio = 1.05F;  // what it may cost that the next run need not search
constexpr int64_t kMinSplitDepth = 2048;
constexpr size_t kMaxSplitBases = 8;
constexpr int32_t kSplits[] = {2, 3, 4, 5, 6, 8, 10, 12, 16};
// What the library proposes is not always its best: with another tile, cluster or option the same
// algorithm is up to a tenth faster (seen on an H100). These were the fastest for some product of
// many rows there, of several hundred combinations.
constexpr uint32_t kTiles[] = {
    CUBLASLT_MATMUL_TILE_96x128,  CUBLASLT_MATMUL_TILE_96x192,  CUBLASLT_MATMUL_TILE_128x128,
    CUBLASLT_MATMUL_TILE_128x152, CUBLASLT_MATMUL_TILE_128x160, CUBLASLT_MATMUL_TILE_128x192,
    CUBLASLT_MATMUL_TILE_128x256, CUBLASLT_MATMUL_TILE_144x128, CUBLASLT_MATMUL_TILE_192x96,
    CUBLASLT_MATMUL_TILE_192x128, CUBLASLT_MATMUL_TILE_192x192, CUBLASLT_MATMUL_TILE_256x128};
constexpr uint32_t kClusters[] = {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1,
                                  CUBLASLT_CLUSTER_SHAPE_1x2x1};
constexpr uint32_t kUsualOptions[] = {0, 1};  // tried with every tile and cluster
constexpr size_t kMostShapes = 8;             // the fastest ones, tried with all options
// Products of fewer rows gained nothing, nor would the shortest.
constexpr int64_t kManyRows = 256;
constexpr int64_t kManyMacs = int64_t{1} << 30;
constexpr float kVariantRatio = 1.25F;  // slower after its first run: no more
constexpr float kAloneUs = 4.0F;        // that a run by itself takes more than one among others
// Of a large result one row in so many is compared: every tile has one.
constexpr int64_t kComparedWhole = 1 << 22;
constexpr int64_t kRowStep = 13;

/// Device memory; data() is null where there was not enough.
class ScratchMemory {
 public:
  explicit ScratchMemory(size_t bytes) : bytes_(bytes) {
    if (bytes > 0 && cudaMalloc(&data_, bytes) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      data_ = nullptr;
    }
  }
  ~ScratchMemory() { cudaFree(data_); }
  ScratchMemory(const ScratchMemory&) = delete;
  ScratchMemory& operator=(const ScratchMemory&) = delete;

  [[nodiscard]] void* data() const { return data_; }
  void zero(cudaStream_t stream) const {
    if (data_ != nullptr) {
      KINORA_CUDA_CHECK(cudaMemsetAsync(data_, 0, bytes_, stream));
    }
  }

 private:
  size_t bytes_;
  void* data_ = nullptr;
};

class Event {
 public:
  Event() { KINORA_CUDA_CHECK(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  [[nodiscard]] cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

struct Candidate {
  MatmulAlgorithm algorithm;
  bool is_variant = false;  ///< ours, not proposed by the library
  float time_us = std::numeric_limits<float>::infinity();
  bool was_timed = false;
};

bool is_faster(const Candidate& x, const Candidate& y) {
  return x.time_us < y.time_us;
}

/// Device memory with random numbers, uniform in [-1, 1): zeros would need less power and would
/// make every algorithm right.
class RandomArray {
 public:
  RandomArray(int64_t count, DType type, cudaStream_t stream)
      : bytes_(static_cast<size_t>(count) * size_of(type)), memory_(bytes_) {
    if (memory_.data() == nullptr || bytes_ == 0) {
      return;
    }
    const std::vector<char> pattern = random_pattern(type);
    size_t done = std::min(bytes_, pattern.size());
    auto* data = static_cast<char*>(memory_.data());
    KINORA_CUDA_CHECK(cudaMemcpyAsync(data, pattern.data(), done, cudaMemcpyHostToDevice, stream));
    while (done < bytes_) {
      const size_t more = std::min(done, bytes_ - done);
      KINORA_CUDA_CHECK(cudaMemcpyAsync(data + done, data, more, cudaMemcpyDeviceToDevice, stream));
      done += more;
    }
    KINORA_CUDA_CHECK(cudaStreamSynchronize(stream));  // the pattern dies here
  }

  [[nodiscard]] void* data() const { return memory_.data(); }
  /// Whether there was memory for it.
  [[nodiscard]] bool is_there() const { return bytes_ == 0 || memory_.data() != nullptr; }

 private:
  static std::vector<char> random_pattern(DType type) {
    constexpr int64_t kCount = 65'544;  // no multiple of usual row lengths, but of 16 bytes
    std::vector<char> pattern(static_cast<size_t>(kCount) * size_of(type));
    std::minstd_rand generator(1);
    for (int64_t i = 0; i < kCount; ++i) {
      const float value = static_cast<float>(generator()) / 1'073'741'824.0F - 1.0F;
      if (size_of(type) == 1) {
        pattern[static_cast<size_t>(i)] = static_cast<char>(float_to_fp8(value, type));
      } else {
        store_element(pattern.data(), i, type, value);
      }
    }
    return pattern;
  }

  size_t bytes_;
  ScratchMemory memory_;
};

int64_t extent(int64_t batch, int64_t stride, int64_t rows, int64_t columns, int64_t row_stride) {
  return (batch - 1) * stride + (rows - 1) * row_stride + columns;
}

/// Numbers of a_scale or b_scale: of a matrix [rows, width] of this type.
int64_t num_factors(DType type, Scaling scaling, int64_t rows, int64_t width) {
  if (size_of(type) != 1) {
    return 0;
  }
  return scaling == Scaling::kTensor ? 1
                                     : block_factors(rows, width, scaling == Scaling::kBlock128);
}

/// Arrays like those of the problem, on which algorithms are timed: the caller's stay as they are.
class Bench {
 public:
  Bench(const MatmulContext& context, MatmulPlan* plan, cudaStream_t stream)
      : context_(context),
        plan_(plan),
        stream_(stream),
        a_(a_extent(plan->problem), plan->problem.a_type, stream),
        num_copies_(copies_of(context, plan->problem)),
        b_stride_(round_up(b_extent(plan->problem), kCopyAlignment)),
        b_((num_copies_ - 1) * b_stride_ + b_extent(plan->problem), plan->problem.b_type, stream),
        d_(d_extent(plan->problem), plan->problem.d_type, stream),
        aux_(aux_extent(plan->problem), plan->problem.aux_type, stream),
        vector_(vector_size(plan->problem), vector_type(plan->problem), stream),
        a_scale_(num_factors(plan->problem.a_type, plan->problem.a_scaling, plan->problem.m,
                             plan->problem.k),
                 DType::kF32, stream),
        b_scale_(num_factors(plan->problem.b_type, plan->problem.b_scaling, plan->problem.n,
                             plan->problem.k),
                 DType::kF32, stream),
        d_scale_(is_fp8(plan->problem.d_type) ? 1 : 0, DType::kF32, stream),
        d_amax_(is_fp8(plan->problem.d_type) ? 1 : 0, DType::kF32, stream),
        flush_(flush_bytes(context, plan->problem)) {
    arguments_.a = a_.data();
    arguments_.b = b_.data();
    arguments_.d = d_.data();
    arguments_.aux = aux_.data();
    arguments_.bias = vector_.data();
    arguments_.bias_grad = vector_.data();
    arguments_.a_scale = static_cast<const float*>(a_scale_.data());
    arguments_.b_scale = static_cast<const float*>(b_scale_.data());
    arguments_.d_scale = static_cast<const float*>(d_scale_.data());
    arguments_.d_amax = static_cast<float*>(d_amax_.data());
  }

  /// Whether there was memory for all.
  [[nodiscard]] bool is_ready() const {
    return a_.is_there() && b_.is_there() && d_.is_there() && aux_.is_there() &&
           vector_.is_there() && a_scale_.is_there() && b_scale_.is_there() &&
           d_scale_.is_there() && d_amax_.is_there();
  }

  /// Microseconds of one run, of `runs` back to back; infinite where the library refuses.
  [[nodiscard]] float time_us(const MatmulAlgorithm& algorithm, int runs = 1) {
    // Keeps the GPU busy while the products are enqueued.
    flush_.zero(stream_);
    KINORA_CUDA_CHECK(cudaEventRecord(start_.get(), stream_));
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (int run = 0; run < runs && status == CUBLAS_STATUS_SUCCESS; ++run) {
      MatmulArguments arguments = arguments_;
      copy_ = (copy_ + 1) % num_copies_;
      arguments.b = static_cast<const char*>(b_.data()) +
                    static_cast<size_t>(copy_ * b_stride_) * size_of(plan_->problem.b_type);
      status = enqueue(context_, plan_, algorithm, arguments, stream_);
    }
    KINORA_CUDA_CHECK(cudaEventRecord(stop_.get(), stream_));
    KINORA_CUDA_CHECK(cudaEventSynchronize(stop_.get()));
    float milliseconds = 0.0F;
    KINORA_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start_.get(), stop_.get()));
    return status == CUBLAS_STATUS_SUCCESS ? milliseconds * 1e3F / static_cast<float>(runs)
                                           : std::numeric_limits<float>::infinity();
  }

  /// What a product leaves, in the bytes of its arrays: of large ones some rows. Empty is what it
  /// does not have.
  struct Result {
    std::vector<char> d;
    std::vector<char> aux;
    std::vector<char> bias_grad;
    std::vector<char> amax;
  };
  /// D after the product with D = 0 before; empty where the library refuses.
  [[nodiscard]] Result result_of(const MatmulAlgorithm& algorithm) {
    const MatmulProblem& problem = plan_->problem;
    Result result;
    const auto clear = [&](void* data, int64_t count, DType type, int value) {
      KINORA_CUDA_CHECK(
          cudaMemsetAsync(data, value, static_cast<size_t>(count) * size_of(type), stream_));
    };
    clear(d_.data(), d_extent(problem), problem.d_type, 0);
    const bool writes_aux = problem.epilogue == Epilogue::kBiasGeluAux;
    if (writes_aux) {
      clear(aux_.data(), aux_extent(problem), problem.aux_type, 0);
    }
    if (has_bias_grad(problem.epilogue)) {
      // NaN in every type, so that what is not written, or added to, shows.
      clear(vector_.data(), vector_size(problem), vector_type(problem), 0xff);
    }
    if (d_amax_.data() != nullptr) {
      clear(d_amax_.data(), 1, DType::kF32, 0);
    }
    if (enqueue(context_, plan_, algorithm, arguments_, stream_) != CUBLAS_STATUS_SUCCESS) {
      return {};
    }
    if (problem.batch > 1) {
      result.d = rows_of(d_, problem.d_type, 1, d_extent(problem), d_extent(problem));
    } else {
      result.d = rows_of(d_, problem.d_type, problem.m, problem.n, problem.ldd);
    }
    if (writes_aux) {
      result.aux = rows_of(aux_, problem.aux_type, problem.m, problem.n, problem.n);
    }
    if (has_bias_grad(problem.epilogue)) {
      result.bias_grad =
          rows_of(vector_, vector_type(problem), 1, vector_size(problem), vector_size(problem));
    }
    if (d_amax_.data() != nullptr) {
      result.amax = rows_of(d_amax_, DType::kF32, 1, 1, 1);
    }
    KINORA_CUDA_CHECK(cudaStreamSynchronize(stream_));
    return result;
  }

 private:
  static int64_t a_extent(const MatmulProblem& problem) {
    const bool t = problem.transpose_a;
    return extent(problem.batch, problem.a_stride, t ? problem.k : problem.m,
                  t ? problem.m : problem.k, problem.lda);
  }
  static int64_t b_extent(const MatmulProblem& problem) {
    const bool t = problem.transpose_b;
    return extent(problem.batch, problem.b_stride, t ? problem.n : problem.k,
                  t ? problem.k : problem.n, problem.ldb);
  }
  static int64_t d_extent(const MatmulProblem& problem) {
    return extent(problem.batch, problem.d_stride, problem.m, problem.n, problem.ldd);
  }
  static int64_t aux_extent(const MatmulProblem& problem) {
    return has_aux(problem.epilogue) ? problem.m * problem.n : 0;
  }
  /// Enqueues their copy to the host.
  std::vector<char> rows_of(const RandomArray& array, DType type, int64_t rows, int64_t width,
                            int64_t row_stride) {
    const int64_t step = rows * width > kComparedWhole ? kRowStep : 1;
    const auto count = static_cast<size_t>(ceil_div(rows, step));
    const size_t row_bytes = static_cast<size_t>(width) * size_of(type);
    std::vector<char> values(count * row_bytes);
    KINORA_CUDA_CHECK(cudaMemcpy2DAsync(values.data(), row_bytes, array.data(),
                                        static_cast<size_t>(step * row_stride) * size_of(type),
                                        row_bytes, count, cudaMemcpyDeviceToHost, stream_));
    return values;
  }
  /// Of b, so many that none is in the L2 cache when its turn comes.
  static int64_t copies_of(const MatmulContext& context, const MatmulProblem& problem) {
    if (flush_bytes(context, problem) == 0) {
      return 1;
    }
    const int64_t bytes = b_extent(problem) * static_cast<int64_t>(size_of(problem.b_type));
    return std::clamp<int64_t>(2 * static_cast<int64_t>(context.l2_bytes) / bytes, 1, kMostCopies);
  }
  static size_t flush_bytes(const MatmulContext& context, const MatmulProblem& problem) {
    const size_t operands = static_cast<size_t>(a_extent(problem)) * size_of(problem.a_type) +
                            static_cast<size_t>(b_extent(problem)) * size_of(problem.b_type);
    return operands < 2 * context.l2_bytes ? 2 * context.l2_bytes : 0;
  }

  const MatmulContext& context_;
  MatmulPlan* plan_;
  cudaStream_t stream_;
  static constexpr int64_t kCopyAlignment = 256;  // elements
  RandomArray a_;
  int64_t num_copies_;
  int64_t b_stride_;  // from copy to copy
  int64_t copy_ = 0;
  RandomArray b_;
  RandomArray d_;
  RandomArray aux_;
  RandomArray vector_;
  RandomArray a_scale_;
  RandomArray b_scale_;
  RandomArray d_scale_;
  RandomArray d_amax_;
  ScratchMemory flush_;  // without memory for it small products' times are a little off
  Event start_;
  Event stop_;
  MatmulArguments arguments_;
};

/// GELU and 8-bit results are of whole sums.
bool sums_can_be_split(const MatmulProblem& problem) {
  return !is_fp8(problem.d_type) &&
         (problem.epilogue == Epilogue::kNone || problem.epilogue == Epilogue::kBias ||
          problem.epilogue == Epilogue::kBiasGrad);
}

/// Whether the output gives the GPU's multiprocessors so few tiles that the last round of them is
/// mostly idle, and each is so long that halves are worth their addition.
bool fills_poorly(const MatmulContext& context, const MatmulProblem& problem) {
  constexpr int64_t kTile = 128;
  const int64_t num_tiles = problem.batch * ceil_div(problem.m, kTile) * ceil_div(problem.n, kTile);
  return sums_can_be_split(problem) && problem.k >= kMinSplitDepth &&
         num_tiles <= int64_t{4} * context.num_multiprocessors;
}

bool is_known(const std::vector<Candidate>& candidates, const MatmulChoice& choice) {
  return std::any_of(candidates.begin(), candidates.end(), [&choice](const Candidate& candidate) {
    return candidate.algorithm.restorable && same_algorithm(candidate.algorithm.choice, choice);
  });
}

void add_variant(const MatmulContext& context, const MatmulPlan& plan, const MatmulChoice& choice,
                 std::vector<Candidate>* candidates) {
  if (is_known(*candidates, choice)) {
    return;
  }
  if (const auto variant = restore(context, plan, choice)) {
    candidates->push_back({*variant, true});
  }
}

void add_split_variants(const MatmulContext& context, const MatmulPlan& plan,
                        std::vector<Candidate>* candidates) {
  const size_t num_bases = std::min(candidates->size(), kMaxSplitBases);
  for (size_t base = 0; base < num_bases; ++base) {
    const MatmulAlgorithm algorithm = (*candidates)[base].algorithm;
    if (!algorithm.restorable || !can_split_k(algorithm)) {
      continue;
    }
    for (const int32_t split : kSplits) {
      MatmulChoice choice = algorithm.choice;
      choice.split_k = split;
      choice.reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
      add_variant(context, plan, choice, candidates);
    }
  }
}

/// An algorithm with other tiles and clusters, and its usual options.
void add_shapes(const MatmulContext& context, const MatmulPlan& plan,
                const MatmulAlgorithm& algorithm, std::vector<Candidate>* candidates) {
  for (const uint32_t tile : kTiles) {
    for (const uint32_t cluster : kClusters) {
      MatmulChoice choice = algorithm.choice;
      choice.tile = tile;
      choice.cluster_shape = cluster;
      for (const uint32_t option : kUsualOptions) {
        choice.custom = option;
        add_variant(context, plan, choice, candidates);
      }
    }
  }
}

/// The fastest candidates of the algorithm's kind, the fastest first, with its other options.
void add_options(const MatmulContext& context, const MatmulPlan& plan,
                 const MatmulAlgorithm& algorithm, std::vector<Candidate>* candidates) {
  const uint32_t num_options = max_custom_option(algorithm) + 1;
  const float slowest = kFinalistRatio * candidates->front().time_us;
  std::vector<MatmulChoice> shapes;
  for (const Candidate& candidate : *candidates) {
    MatmulChoice choice = candidate.algorithm.choice;
    choice.custom = algorithm.choice.custom;
    MatmulChoice same = algorithm.choice;
    same.tile = choice.tile;
    same.cluster_shape = choice.cluster_shape;
    const bool is_new = std::none_of(shapes.begin(), shapes.end(), [&](const MatmulChoice& shape) {
      return same_algorithm(shape, same);
    });
    if (is_new && candidate.algorithm.restorable && same_algorithm(choice, same) &&
        candidate.time_us < slowest && shapes.size() < kMostShapes) {
      shapes.push_back(same);
    }
  }
  for (MatmulChoice& choice : shapes) {
    for (choice.custom = 0; choice.custom < num_options; ++choice.custom) {
      add_variant(context, plan, choice, candidates);
    }
  }
}

float median(std::vector<float> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Runs back to back that take about so long.
int runs_of(float duration_us, float time_us) {
  return static_cast<int>(duration_us / time_us) + 1;
}

/// Lets a GPU that will be busy with a large product find its clock before anything is compared.
void heat(Bench* bench, const std::vector<Candidate>& candidates) {
  (void)bench->time_us(candidates[0].algorithm);  // loads the kernel
  const float time_us = bench->time_us(candidates[0].algorithm);
  if (std::isfinite(time_us) && time_us > kLargeUs) {
    (void)bench->time_us(candidates[0].algorithm, runs_of(kHeatingUs, time_us));
  }
}

/// Runs back to back of a quick measurement.
int burst_of(float time_us) {
  return time_us <= kLargeUs ? runs_of(kSmallBurstUs, time_us) : 1;
}

/// Roughly the time of each candidate that has none yet, the fastest first.
void time_quickly(Bench* bench, std::vector<Candidate>* candidates) {
  float best = std::numeric_limits<float>::infinity();
  for (const Candidate& candidate : *candidates) {
    best = std::min(best, candidate.time_us);
  }
  for (Candidate& candidate : *candidates) {
    if (candidate.was_timed) {
      continue;
    }
    candidate.was_timed = true;
    (void)bench->time_us(candidate.algorithm);  // loads the kernel
    candidate.time_us = bench->time_us(candidate.algorithm);
    if (!std::isfinite(candidate.time_us)) {
      continue;
    }
    const float limit = (candidate.is_variant ? kVariantRatio : 2.0F) * best + kAloneUs;
    const bool is_small = candidate.time_us <= kLargeUs;
    const int burst = burst_of(candidate.time_us);
    for (int i = is_small ? 0 : 1; i < kQuickRuns && candidate.time_us < limit; ++i) {
      candidate.time_us = std::min(candidate.time_us, bench->time_us(candidate.algorithm, burst));
    }
    best = std::min(best, candidate.time_us);
  }
  std::stable_sort(candidates->begin(), candidates->end(), is_faster);
}

/// The times of the fastest candidates, in turns; the fastest first.
void time_finalists(Bench* bench, std::vector<Candidate>* candidates) {
  const float best = candidates->front().time_us;
  size_t num_finalists = 0;
  while (num_finalists < std::min(candidates->size(), kMaxFinalists) &&
         (*candidates)[num_finalists].time_us < kFinalistRatio * best) {
    ++num_finalists;
  }
  std::vector<std::vector<float>> times(num_finalists);
  for (int round = 0; round < kFinalRuns; ++round) {
    for (size_t i = 0; i < num_finalists; ++i) {
      times[i].push_back(bench->time_us((*candidates)[i].algorithm, burst_of(best)));
    }
  }
  for (size_t i = 0; i < num_finalists; ++i) {
    (*candidates)[i].time_us = median(times[i]);
  }
  std::stable_sort(candidates->begin(), candidates->begin() + static_cast<int64_t>(num_finalists),
                   is_faster);
}

bool has_same_tile(const Candidate& x, const Candidate& y) {
  MatmulChoice choice = x.algorithm.choice;
  choice.custom = y.algorithm.choice.custom;
  return same_algorithm(choice, y.algorithm.choice);
}

/// The times of the fastest candidates of a large product, each at the clock that it settles at;
/// the fastest first.
void time_large_finalists(Bench* bench, std::vector<Candidate>* candidates) {
  const float best = candidates->front().time_us;
  std::vector<Candidate> finalists;
  std::vector<Candidate> others;
  for (const Candidate& candidate : *candidates) {
    const bool is_finalist =
        finalists.size() < kMaxLargeFinalists && candidate.time_us < kFinalistRatio * best &&
        std::none_of(finalists.begin(), finalists.end(), [&candidate](const Candidate& finalist) {
          return has_same_tile(finalist, candidate);
        });
    (is_finalist ? finalists : others).push_back(candidate);
  }
  heat(bench, finalists);
  for (Candidate& finalist : finalists) {
    (void)bench->time_us(finalist.algorithm, runs_of(kSettlingUs, best));
    finalist.time_us = bench->time_us(finalist.algorithm, runs_of(kSettledUs, best));
  }
  std::stable_sort(finalists.begin(), finalists.end(), is_faster);
  finalists.insert(finalists.end(), others.begin(), others.end());
  *candidates = std::move(finalists);
}

/// Whether |x - y| is small beside |x| (Euclidean norms); no where one is not finite.
bool nearly_equal(const std::vector<char>& x, const std::vector<char>& y, DType type) {
  constexpr double kTolerance = 0.01;  // sums in another order, bf16 outputs: below 0.005
  if (x.size() != y.size()) {
    return false;
  }
  if (x.empty()) {
    return true;
  }
  const auto element = [type](const std::vector<char>& values, int64_t i) -> double {
    return is_fp8(type) ? fp8_to_float(static_cast<uint8_t>(values[static_cast<size_t>(i)]), type)
                        : load_element(values.data(), i, type);
  };
  double difference = 0.0;
  double total = 0.0;
  const auto count = static_cast<int64_t>(x.size() / size_of(type));
  for (int64_t i = 0; i < count; ++i) {
    const double value = element(x, i);
    const double error = element(y, i) - value;
    difference += error * error;
    total += value * value;
  }
  return total > 0.0 && difference <= kTolerance * kTolerance * total;
}

}  // namespace

std::optional<MatmulAlgorithm> search(const MatmulContext& context, MatmulPlan* plan,
                                      cudaStream_t stream) {
  const MatmulProblem& problem = plan->problem;
  std::vector<Candidate> candidates;
  for (const MatmulAlgorithm& algorithm : proposals(context, *plan, kNumProposals)) {
    if (!algorithm.restorable || !is_known(candidates, algorithm.choice)) {
      candidates.push_back({algorithm, false});
    }
  }
  if (candidates.empty()) {
    return std::nullopt;
  }
  if (fills_poorly(context, problem)) {
    add_split_variants(context, *plan, &candidates);
  }
  Bench bench(context, plan, stream);
  if (!bench.is_ready()) {
    return std::nullopt;
  }
  heat(&bench, candidates);
  const MatmulAlgorithm first = candidates.front().algorithm;
  const bool has_variants = first.restorable && problem.m > kManyRows &&
                            problem.batch * problem.m * problem.n * problem.k >= kManyMacs;
  if (has_variants) {
    add_shapes(context, *plan, first, &candidates);
  }
  time_quickly(&bench, &candidates);
  if (has_variants) {
    add_options(context, *plan, first, &candidates);
    time_quickly(&bench, &candidates);
  }
  const float best_us = candidates.front().time_us;
  if (std::isfinite(best_us) && best_us > kLargeUs) {
    time_large_finalists(&bench, &candidates);
  } else if (std::isfinite(best_us)) {
    time_finalists(&bench, &candidates);
  }
  std::erase_if(candidates, [](const Candidate& candidate) {
    return !std::isfinite(candidate.time_us);  // proposed, and refused when it was to run
  });

  Bench::Result expected;
  const auto is_right = [&](const Candidate& candidate) {
    // The library answers for its proposals; variants must show that they compute the same.
    if (!candidate.is_variant) {
      return true;
    }
    const auto proposal = std::find_if(candidates.begin(), candidates.end(),
                                       [](const Candidate& c) { return !c.is_variant; });
    if (proposal == candidates.end()) {
      return false;
    }
    if (expected.d.empty()) {
      expected = bench.result_of(proposal->algorithm);
    }
    const Bench::Result got = bench.result_of(candidate.algorithm);
    return !got.d.empty() && nearly_equal(expected.d, got.d, problem.d_type) &&
           nearly_equal(expected.aux, got.aux, problem.aux_type) &&
           nearly_equal(expected.bias_grad, got.bias_grad, vector_type(problem)) &&
           nearly_equal(expected.amax, got.amax, DType::kF32);
  };
  std::optional<Candidate> best;
  for (const Candidate& candidate : candidates) {
    if (best && candidate.time_us > kRestorableRatio * best->time_us) {
      break;
    }
    if ((!best || candidate.algorithm.restorable) && is_right(candidate)) {
      best = candidate;
      if (candidate.algorithm.restorable) {
        break;
      }
    }
  }
  if (!best) {
    return std::nullopt;
  }
  best->algorithm.choice.nanoseconds = std::llround(double{best->time_us} * 1e3);
  return best->algorithm;
}

}  // namespace kinora::kernels::cuda
