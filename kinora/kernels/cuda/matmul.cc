#include "kinora/kernels/cuda/matmul.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <sstream>
#include <unordered_map>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/kernels/cuda/graph_counters.h"
#include "kinora/kernels/cuda/matmul_plan.h"
#include "kinora/kernels/cuda/matmul_search.h"
#include "kinora/kernels/matmul_cache.h"

namespace kinora::kernels::cuda {
namespace {

constexpr size_t kWorkspaceBytes = 64 << 20;
constexpr int kNumFallbacks = 32;

struct Key {
  MatmulProblem problem;
  MatmulAlignment alignment;

  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0;
    const auto mix = [&hash](int64_t value) {
      hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15ULL;
      hash ^= hash >> 32;
    };
    const MatmulProblem& problem = key.problem;
    mix(problem.m);
    mix(problem.n);
    mix(problem.k);
    mix(problem.transpose_a ? 1 : 0);
    mix(problem.transpose_b ? 1 : 0);
    mix(static_cast<int64_t>(problem.a_type));
    mix(static_cast<int64_t>(problem.b_type));
    mix(static_cast<int64_t>(problem.d_type));
    mix(static_cast<int64_t>(problem.epilogue));
    mix(problem.accumulate ? 1 : 0);
    mix(problem.batch);
    mix(static_cast<int64_t>(problem.a_scaling));
    mix(static_cast<int64_t>(problem.b_scaling));
    return hash;  // the rest seldom differs
  }
};

/// The largest power of two up to 16 that divides the address; 16 for null.
uint8_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer) | 16U;
  return static_cast<uint8_t>(address & (~address + 1));
}

MatmulAlignment alignment_of(const MatmulArguments& arguments) {
  return {alignment_of(arguments.a), alignment_of(arguments.b), alignment_of(arguments.d),
          std::min({alignment_of(arguments.bias), alignment_of(arguments.bias_grad),
                    alignment_of(arguments.aux)})};
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  KINORA_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

int device_attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  KINORA_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

void check_status(cublasStatus_t status, const char* what, const std::string& problem) {
  KINORA_CHECK(status == CUBLAS_STATUS_SUCCESS, kInternal, "[matmul] ", what,
               " failed: ", cublasLtGetStatusName(status), " (", cublasLtGetStatusString(status),
               ") for ", problem);
}

/// A library handle and the workspace.
class Library {
 public:
  explicit Library(bool deterministic) {
    int device = 0;
    KINORA_CUDA_CHECK(cudaGetDevice(&device));
    gpu_ = cuda_device(device).name;
    context_.deterministic = deterministic;
    context_.num_multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount, device);
    context_.l2_bytes = static_cast<size_t>(device_attribute(cudaDevAttrL2CacheSize, device));
    KINORA_CUDA_CHECK(cudaMalloc(&context_.workspace, kWorkspaceBytes));
    context_.workspace_bytes = kWorkspaceBytes;
    const cublasStatus_t status = cublasLtCreate(&context_.handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
      cudaFree(context_.workspace);
      check_status(status, "cublasLtCreate", "GPU " + gpu_);
    }
  }
  ~Library() {
    cublasLtDestroy(context_.handle);
    cudaFree(context_.workspace);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  [[nodiscard]] const MatmulContext& context() const { return context_; }
  [[nodiscard]] const std::string& gpu() const { return gpu_; }

 private:
  MatmulContext context_;
  std::string gpu_;
};

enum class Source : uint8_t {
  kUnsupported,
  kFirstProposal,
  kLaterProposal,
  kFile,
  kPinned,
  kTimed
};

const char* name_of(Source source) {
  switch (source) {
    case Source::kUnsupported:
      return "unsupported";
    case Source::kFirstProposal:
      return "the library's first choice";
    case Source::kLaterProposal:
      return "the library's first choice that it runs";
    case Source::kFile:
      return "from the cache file";
    case Source::kPinned:
      return "pinned";
    case Source::kTimed:
      return "timed now";
  }
  KINORA_UNREACHABLE("[matmul] source ", static_cast<int>(source));
}

struct Entry {
  Source source = Source::kUnsupported;
  MatmulPlan plan;
  MatmulAlgorithm algorithm;
  bool was_run = false;
  bool was_searched = false;  ///< or need not be
};

}  // namespace

class Matmul::Impl {
 public:
  explicit Impl(const MatmulOptions& options) : options_(options), library_(options.deterministic) {
    if (options_.search && !options_.cache_file.empty()) {
      found_ = read_choices(options_.cache_file);
    }
  }

  /// The entry of a normalised problem, made where it is new, with an algorithm unless unsupported.
  Entry& entry(const MatmulProblem& problem, const MatmulAlignment& alignment) {
    const auto [position, is_new] = entries_.try_emplace(Key{problem, alignment});
    Entry& entry = position->second;
    if (is_new) {
      fill(problem, alignment, &entry);
    }
    return entry;
  }

  void run(const MatmulProblem& problem, const MatmulArguments& arguments, cudaStream_t stream) {
    Entry& entry = this->entry(problem, alignment_of(arguments));
    KINORA_CHECK(entry.source != Source::kUnsupported, kInternal,
                 "[matmul] cuBLASLt must have the product, got ",
                 describe(problem, alignment_of(arguments)));
    if (!entry.was_searched && !is_capturing(stream)) {
      entry.was_searched = true;
      if (const auto algorithm = search(library_.context(), &entry.plan, stream)) {
        entry.algorithm = *algorithm;
        entry.source = Source::kTimed;
        if (algorithm->restorable) {
          found_.insert_or_assign(key(entry), algorithm->choice);
          mine_.insert_or_assign(key(entry), algorithm->choice);
          keep();
        }
      }
    }
    const cublasStatus_t status = enqueue_any(&entry, arguments, stream);
    if (status != CUBLAS_STATUS_SUCCESS) {
      if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
        entry.source = Source::kUnsupported;  // what supports() says from now on
      }
      check_status(status, "cublasLtMatmul",
                   describe(problem, entry.plan.alignment) + " with " +
                       describe(entry.algorithm.choice) + " and all other proposals");
    }
    entry.was_run = true;
  }

  [[nodiscard]] std::string choices() const {
    MatmulChoices choices;
    for (const auto& [_, entry] : entries_) {
      if (entry.was_run && entry.algorithm.restorable) {
        choices.emplace(key(entry), entry.algorithm.choice);
      }
    }
    choices.insert(pinned_.begin(), pinned_.end());
    return format_choices(choices);
  }

  size_t pin(const std::string& text) {
    const std::string prefix = choice_key_prefix(library_.gpu(), cublasLtGetVersion());
    pinned_ = parse_choices(text);
    std::erase_if(pinned_, [&prefix](const auto& item) { return !item.first.starts_with(prefix); });
    entries_.clear();
    return pinned_.size();
  }

  [[nodiscard]] std::vector<std::string> report() const {
    std::vector<std::string> lines;
    for (const auto& [_, entry] : entries_) {
      if (entry.was_run) {
        lines.push_back(line(entry));
      }
    }
    std::sort(lines.begin(), lines.end());
    return lines;
  }

 private:
  /// Writes what was found to the cache file: at once, since runs are killed. What another process
  /// writes at the same moment may be lost, until it finds the next.
  void keep() {
    if (options_.cache_file.empty()) {
      return;
    }
    try {
      write_choices(options_.cache_file, mine_);
    } catch (const Error& error) {
      log_warn(error.what(), "; the next run will search for fast products again");
      options_.cache_file.clear();
    }
  }

  /// Enqueues with the entry's algorithm; if the library refuses that, with the first of its
  /// proposals that it does not refuse, which is the entry's from then on. If it refuses all: the
  /// first refusal.
  cublasStatus_t enqueue_any(Entry* entry, const MatmulArguments& arguments, cudaStream_t stream) {
    const MatmulContext& context = library_.context();
    MatmulContext own = context;
    if (entry->algorithm.workspace_bytes <= GraphCounters::kWorkspaceBytes) {
      if (void* workspace = counters_.next(stream)) {
        own.workspace = workspace;
        own.workspace_bytes = GraphCounters::kWorkspaceBytes;
      }
    }
    const cublasStatus_t first = enqueue(own, &entry->plan, entry->algorithm, arguments, stream);
    if (!is_refusal(first)) {
      return first;
    }
    if (entry->source == Source::kPinned) {
      warn_of_refused_pin(*entry, entry->algorithm.choice);
    }
    for (const MatmulAlgorithm& other : proposals(context, entry->plan, kNumFallbacks)) {
      if (std::memcmp(&other.algo, &entry->algorithm.algo, sizeof(other.algo)) == 0) {
        continue;
      }
      const cublasStatus_t status = enqueue(context, &entry->plan, other, arguments, stream);
      if (is_refusal(status)) {
        continue;
      }
      entry->algorithm = other;
      entry->source = Source::kLaterProposal;
      return status;
    }
    return first;
  }

  /// Makes the entry usable, unless the library lacks the product.
  void fill(const MatmulProblem& problem, const MatmulAlignment& alignment, Entry* entry) {
    if (options_.deterministic && has_bias_grad(problem.epilogue)) {
      return;
    }
    const auto plan = make_plan(problem, alignment);
    if (!plan) {
      return;
    }
    entry->plan = *plan;
    for (const auto& [choices, source] :
         {std::pair(&pinned_, Source::kPinned), std::pair(&found_, Source::kFile)}) {
      const auto position = choices->find(key(*entry));
      if (position == choices->end()) {
        continue;
      }
      if (const auto algorithm = restore(library_.context(), *plan, position->second)) {
        entry->algorithm = *algorithm;
        entry->source = source;
        entry->was_searched = true;
        return;
      }
      if (source == Source::kPinned) {
        warn_of_refused_pin(*entry, position->second);
      }
    }
    const std::vector<MatmulAlgorithm> first = proposals(library_.context(), *plan, 1);
    if (first.empty()) {
      return;
    }
    entry->algorithm = first.front();
    entry->source = Source::kFirstProposal;
    entry->was_searched = !options_.search;
  }

  static void warn_of_refused_pin(const Entry& entry, const MatmulChoice& choice) {
    log_warn("[matmul] cuBLASLt refuses the pinned algorithm ", describe(choice), " of ",
             describe(entry.plan.problem, entry.plan.alignment),
             "; another is taken, which may round differently");
  }

  [[nodiscard]] std::string key(const Entry& entry) const {
    return choice_key(library_.gpu(), cublasLtGetVersion(), entry.plan.problem,
                      entry.plan.alignment);
  }

  static std::string line(const Entry& entry) {
    const MatmulProblem& problem = entry.plan.problem;
    std::ostringstream out;
    out << describe(problem, entry.plan.alignment) << ": " << describe(entry.algorithm.choice)
        << " (" << name_of(entry.source) << (entry.algorithm.restorable ? "" : ", not restorable")
        << ')';
    if (const int64_t nanoseconds = entry.algorithm.choice.nanoseconds; nanoseconds > 0) {
      const double flops = 2.0 * static_cast<double>(problem.batch) *
                           static_cast<double>(problem.m) * static_cast<double>(problem.n) *
                           static_cast<double>(problem.k);
      char speed[64];
      std::snprintf(speed, sizeof(speed), " %.1f us, %.0f TFLOP/s",
                    static_cast<double>(nanoseconds) * 1e-3,
                    flops / static_cast<double>(nanoseconds) * 1e-3);
      out << speed;
    }
    return out.str();
  }

  MatmulOptions options_;
  Library library_;
  GraphCounters counters_;
  std::unordered_map<Key, Entry, KeyHash> entries_;
  MatmulChoices found_;   // by this object or, by the cache file, before
  MatmulChoices mine_;    // found by this object
  MatmulChoices pinned_;  // stronger than found_
};

Matmul::Matmul(const MatmulOptions& options) : impl_(std::make_unique<Impl>(options)) {}

Matmul::~Matmul() = default;

bool Matmul::supports(const MatmulProblem& problem) {
  return impl_->entry(normalised(problem), {}).source != Source::kUnsupported;
}

void Matmul::run(const MatmulProblem& problem, const MatmulArguments& arguments,
                 cudaStream_t stream) {
  if (problem.m == 0 || problem.n == 0 || problem.batch == 0) {
    return;
  }
  impl_->run(normalised(problem), arguments, stream);
}

std::string Matmul::choices() const {
  return impl_->choices();
}

size_t Matmul::pin(const std::string& choices) {
  return impl_->pin(choices);
}

size_t Matmul::library_version() {
  return cublasLtGetVersion();
}

std::vector<std::string> Matmul::report() const {
  return impl_->report();
}

}  // namespace kinora::kernels::cuda
