// The products of DiT-XL/2's blocks (width 1152), forward, input gradient and weight gradient, in
// bf16 and in 8-bit floats, each with cuBLASLt's first choice of algorithm and with the fastest
// that a search finds, beside the ceiling, a product of 8192^3 in the same run. Rows: 65,536
// (training, batch 256 at 256 px), 2,048 (batch 8), 512 (sampling one image with guidance). Small
// products are timed with a cold L2 cache, as a network's weights are. At the end: the algorithms.
//   kinora_matmul_bench [--benchmark_filter=...] ; device: GPU 0, random data
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kinora/core/cuda.h"
#include "kinora/kernels/cuda/matmul.h"
#include "kinora/kernels/elements.h"

namespace kinora::kernels {
namespace {

constexpr int64_t kMaxElements = int64_t{65'536} * 4608;
constexpr int64_t kFlushBytes = int64_t{256} << 20;
constexpr int64_t kSmallRows = 2048;

/// Device memory with random numbers of `type`; lives as long as the program.
class RandomArray {
 public:
  RandomArray(int64_t count, DType type) {
    constexpr int64_t kPattern = 1'048'584;  // no multiple of a row
    std::vector<char> pattern(static_cast<size_t>(kPattern) * size_of(type));
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < kPattern; ++i) {
      if (size_of(type) == 1) {
        pattern[static_cast<size_t>(i)] = static_cast<char>(float_to_fp8(normal(generator), type));
      } else {
        store_element(pattern.data(), i, type, normal(generator));
      }
    }
    const size_t bytes = static_cast<size_t>(count) * size_of(type);
    KINORA_CUDA_CHECK(cudaMalloc(&data_, bytes));
    for (size_t done = 0; done < bytes; done += pattern.size()) {
      KINORA_CUDA_CHECK(cudaMemcpy(static_cast<char*>(data_) + done, pattern.data(),
                                   std::min(pattern.size(), bytes - done), cudaMemcpyHostToDevice));
    }
  }

  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

/// What all benchmarks share. Made after the GPU is known to be there.
struct Shared {
  RandomArray a{kMaxElements, DType::kBF16};
  RandomArray b{kMaxElements, DType::kBF16};
  RandomArray d{kMaxElements, DType::kBF16};
  RandomArray aux{kMaxElements, DType::kBF16};
  RandomArray a_e4m3{kMaxElements, DType::kF8E4M3};
  RandomArray a_e5m2{kMaxElements, DType::kF8E5M2};
  RandomArray b_e4m3{kMaxElements, DType::kF8E4M3};
  RandomArray vector{16'384, DType::kBF16};  // two of them are a finite float too
  RandomArray flush{kFlushBytes / 4, DType::kF32};
  cuda::Matmul first_choice{{.search = false}};
  cuda::Matmul searched{{}};
};

std::unique_ptr<Shared> g_shared;

void run(benchmark::State& state, const MatmulProblem& problem) {
  if (!cuda_available()) {
    state.SkipWithError(cuda_unavailable_reason().c_str());
    return;
  }
  if (!g_shared) {
    g_shared = std::make_unique<Shared>();
  }
  const bool search = state.range(0) != 0;
  cuda::Matmul& matmul = search ? g_shared->searched : g_shared->first_choice;
  if (!matmul.supports(problem)) {
    state.SkipWithError("not in this cuBLASLt");
    return;
  }
  MatmulArguments arguments{.a = g_shared->a.data(),
                            .b = g_shared->b.data(),
                            .d = g_shared->d.data(),
                            .bias = g_shared->vector.data(),
                            .aux = g_shared->aux.data(),
                            .bias_grad = g_shared->vector.data()};
  if (size_of(problem.a_type) == 1) {
    arguments.a =
        problem.a_type == DType::kF8E4M3 ? g_shared->a_e4m3.data() : g_shared->a_e5m2.data();
    arguments.b = g_shared->b_e4m3.data();
  }

  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  KINORA_CUDA_CHECK(cudaEventCreate(&start));
  KINORA_CUDA_CHECK(cudaEventCreate(&stop));
  for (int i = 0; i < 3; ++i) {
    matmul.run(problem, arguments, nullptr);
  }
  const bool is_small = std::min(problem.m, problem.k) <= kSmallRows && problem.n <= 8192 &&
                        problem.m <= 8192 && problem.k <= 8192;
  // Enough work behind one another that the GPU never waits for the host.
  const int repeats = is_small ? 1 : 4;
  for (auto _ : state) {
    if (is_small) {
      KINORA_CUDA_CHECK(cudaMemsetAsync(g_shared->flush.data(), 0, kFlushBytes, nullptr));
    }
    KINORA_CUDA_CHECK(cudaEventRecord(start, nullptr));
    for (int i = 0; i < repeats; ++i) {
      matmul.run(problem, arguments, nullptr);
    }
    KINORA_CUDA_CHECK(cudaEventRecord(stop, nullptr));
    KINORA_CUDA_CHECK(cudaEventSynchronize(stop));
    float milliseconds = 0.0F;
    KINORA_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
    state.SetIterationTime(1e-3 * milliseconds / repeats);
  }
  KINORA_CUDA_CHECK(cudaEventDestroy(start));
  KINORA_CUDA_CHECK(cudaEventDestroy(stop));
  const double flops = 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n) *
                       static_cast<double>(problem.k);
  state.counters["TFLOP/s"] = benchmark::Counter(
      1e-12 * flops * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void add(const std::string& name, const MatmulProblem& problem) {
  const int iterations = problem.m == 512 || problem.m == kSmallRows ? 50 : 10;
  benchmark::RegisterBenchmark(("BM_Matmul/" + name).c_str(),
                               [problem](benchmark::State& state) { run(state, problem); })
      ->ArgName("search")
      ->Arg(0)
      ->Arg(1)
      ->Iterations(iterations)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

struct Linear {
  const char* name;
  int64_t in;
  int64_t out;
  Epilogue forward;
  Epilogue input_grad;  ///< fc2's input gradient also passes through the GELU
};
constexpr Linear kLinears[] = {{"qkv", 1152, 3456, Epilogue::kBias, Epilogue::kNone},
                               {"proj", 1152, 1152, Epilogue::kBias, Epilogue::kNone},
                               {"fc1", 1152, 4608, Epilogue::kBiasGeluAux, Epilogue::kNone},
                               {"fc2", 4608, 1152, Epilogue::kBias, Epilogue::kGeluGrad}};

/// y[rows, out] = x[rows, in] W[out, in]^T and its gradients.
void add_linear(const Linear& linear, int64_t rows, bool fp8) {
  const std::string end =
      std::string("/") + linear.name + (fp8 ? "/fp8" : "/bf16") + "/rows:" + std::to_string(rows);
  MatmulProblem forward{
      .m = rows, .n = linear.out, .k = linear.in, .transpose_b = true, .epilogue = linear.forward};
  // 8-bit floats: from a transposed copy of W, and of dy and x, so that k is adjacent.
  MatmulProblem input_grad{.m = rows,
                           .n = linear.in,
                           .k = linear.out,
                           .transpose_b = fp8,
                           .epilogue = linear.input_grad};
  MatmulProblem weight_grad{.m = linear.out,
                            .n = linear.in,
                            .k = rows,
                            .transpose_a = !fp8,
                            .transpose_b = fp8,
                            .d_type = DType::kF32,
                            .accumulate = true};
  if (fp8) {
    for (MatmulProblem* problem : {&forward, &input_grad, &weight_grad}) {
      problem->a_type = problem == &forward ? DType::kF8E4M3 : DType::kF8E5M2;
      problem->b_type = DType::kF8E4M3;
    }
    forward.fast_accumulation = true;
  }
  add("forward" + end, forward);
  if (fp8 && forward.epilogue == Epilogue::kBiasGeluAux) {
    forward.epilogue = Epilogue::kBias;
    add("forward_without_gelu" + end, forward);
  }
  if (rows == 512) {
    return;
  }
  const auto add_with_bias_grad = [&](const std::string& name, MatmulProblem problem,
                                      Epilogue epilogue) {
    problem.epilogue = epilogue;
    for (const DType type : {DType::kF32, DType::kBF16}) {
      problem.bias_grad_type = type;
      if (!fp8 && rows > kSmallRows) {
        add(name + (type == DType::kF32 ? "_f32" : "_bf16") + end, problem);
      }
    }
  };
  add("input_grad" + end, input_grad);
  if (input_grad.epilogue == Epilogue::kGeluGrad) {
    add_with_bias_grad("input_and_bias_grad", input_grad, Epilogue::kGeluGradBias);
    input_grad.epilogue = Epilogue::kNone;
    add("input_grad_without_gelu" + end, input_grad);
  }
  add("weight_grad" + end, weight_grad);
  add_with_bias_grad("weight_and_bias_grad", weight_grad, Epilogue::kBiasGrad);
}

void add_all() {
  constexpr int64_t kCeiling = 8192;
  MatmulProblem ceiling{.m = kCeiling, .n = kCeiling, .k = kCeiling, .transpose_b = true};
  add("ceiling/bf16", ceiling);
  ceiling.a_type = DType::kF8E4M3;
  ceiling.b_type = DType::kF8E4M3;
  ceiling.fast_accumulation = true;
  add("ceiling/fp8", ceiling);
  for (const int64_t rows : {int64_t{65'536}, kSmallRows, int64_t{512}}) {
    for (const bool fp8 : {false, true}) {
      for (const Linear& linear : kLinears) {
        add_linear(linear, rows, fp8);
      }
    }
  }
}

/// And frees what the benchmarks shared, while the CUDA runtime is there.
void print_algorithms() {
  if (g_shared) {
    for (const std::string& line : g_shared->searched.report()) {
      std::printf("%s\n", line.c_str());
    }
    g_shared.reset();
  }
}

}  // namespace
}  // namespace kinora::kernels

int main(int argc, char** argv) {
  kinora::kernels::add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  kinora::kernels::print_algorithms();
  return 0;
}
