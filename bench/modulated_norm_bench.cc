// Gate + residual + LayerNorm + modulate, forward and backward, and the 8-bit copies, beside a
// copy: at the shapes of DiT-XL/2 (65,536 rows: batch 256 at 256 px, 64 at 512 px; 2,048 and 512
// rows: batch 8 and 2), bf16 throughout. bytes_per_second counts every array once. Launches are
// timed as nodes of a CUDA graph, as the program runs them, on arrays that together exceed every
// cache.
//   kinora_modulated_norm_bench [--benchmark_filter=...] ; device: GPU
#include <functional>

#include "bench/gpu_timing.h"
#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/fp8.h"
#include "kinora/kernels/cuda/modulated_norm.h"

namespace kinora::kernels {
namespace {

constexpr int64_t kCacheBytes = int64_t{512} << 20;
constexpr int64_t kMinLaunches = 8;

/// Times `launch(set, stream)`, set = 0 ... sets - 1 and again, in a graph of at least
/// kMinLaunches.
/// @param bytes  that a launch has to move at least
template <typename Launch>
void time_in_graph(benchmark::State& state, int64_t bytes, int64_t sets, const Launch& launch) {
  const int64_t launches = std::max(sets, kMinLaunches);
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  KINORA_CUDA_CHECK(cudaStreamCreate(&stream));
  KINORA_CUDA_CHECK(cudaEventCreate(&start));
  KINORA_CUDA_CHECK(cudaEventCreate(&stop));
  KINORA_CUDA_CHECK(launch(0, stream));  // loads the kernel
  KINORA_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int64_t i = 0; i < launches; ++i) {
    KINORA_CUDA_CHECK(launch(i % sets, stream));
  }
  KINORA_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  KINORA_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  KINORA_CUDA_CHECK(cudaGraphLaunch(executable, stream));
  for (auto _ : state) {
    KINORA_CUDA_CHECK(cudaEventRecord(start, stream));
    KINORA_CUDA_CHECK(cudaGraphLaunch(executable, stream));
    KINORA_CUDA_CHECK(cudaEventRecord(stop, stream));
    KINORA_CUDA_CHECK(cudaEventSynchronize(stop));
    float milliseconds = 0.0F;
    KINORA_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
    state.SetIterationTime(milliseconds / 1e3 / static_cast<double>(launches));
  }
  state.SetBytesProcessed(state.iterations() * bytes);
  KINORA_CUDA_CHECK(cudaGraphExecDestroy(executable));
  KINORA_CUDA_CHECK(cudaGraphDestroy(graph));
  KINORA_CUDA_CHECK(cudaEventDestroy(start));
  KINORA_CUDA_CHECK(cudaEventDestroy(stop));
  KINORA_CUDA_CHECK(cudaStreamDestroy(stream));
}

int64_t num_sets(int64_t bytes) {
  return std::max(int64_t{1}, kCacheBytes / bytes);
}

/// `sets` arrays of `count` elements.
class Arrays {
 public:
  Arrays(int64_t sets, int64_t count, DType type, bool random)
      : bytes_(count * static_cast<int64_t>(size_of(type))),
        memory_(static_cast<size_t>(sets * bytes_)) {
    if (random) {
      memory_.fill_normal(static_cast<size_t>(sets * count), type);
    }
  }
  [[nodiscard]] void* at(int64_t set) const { return memory_.get<uint8_t>() + set * bytes_; }

 private:
  int64_t bytes_;
  DeviceMemory memory_;
};

struct Shape {
  int64_t rows, width, rows_per_vector;

  explicit Shape(const benchmark::State& state)
      : rows(state.range(0)), width(state.range(1)), rows_per_vector(state.range(2)) {}
  [[nodiscard]] int64_t numel() const { return rows * width; }
  [[nodiscard]] int64_t vectors() const { return ceil_div(rows, rows_per_vector); }
};

/// Arguments: rows, width, rows a vector, h as two 8-bit copies (0, 1), whether the cache has all.
void BM_NormForward(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  const Shape shape(state);
  const bool fp8 = state.range(3) != 0;
  const int64_t bytes = shape.numel() * 8 + shape.rows * 8 + shape.vectors() * shape.width * 3 * 4;
  const int64_t sets = state.range(4) != 0 ? 1 : num_sets(bytes);
  const Arrays x(sets, shape.numel(), DType::kBF16, true);
  const Arrays branch(sets, shape.numel(), DType::kBF16, true);
  const Arrays x_out(sets, shape.numel(), DType::kBF16, false);
  const Arrays h(sets, shape.numel(), DType::kBF16, false);
  const Arrays vectors(sets, shape.vectors() * 3 * shape.width, DType::kF32, true);
  const Arrays statistics(sets, 2 * shape.rows, DType::kF32, false);
  const Arrays amax(1, 1, DType::kF32, false);
  const auto call_of = [&](int64_t set) {
    const auto* vector = static_cast<const float*>(vectors.at(set));
    auto* mean = static_cast<float*>(statistics.at(set));
    ResidualNormForward call;
    call.rows = shape.rows;
    call.width = shape.width;
    call.rows_of_vectors = {shape.rows_per_vector, shape.rows_per_vector};
    call.x = x.at(set);
    call.branch = branch.at(set);
    call.shift = {vector, 3 * shape.width, nullptr};
    call.scale = {vector + shape.width, 3 * shape.width, nullptr};
    call.gate = {vector + 2 * shape.width, 3 * shape.width, nullptr};
    call.x_out = x_out.at(set);
    call.mean = mean;
    call.rstd = mean + shape.rows;
    if (fp8) {
      call.h_fp8.data = h.at(set);
      call.h_fp8.transposed = static_cast<uint8_t*>(h.at(set)) + shape.numel();
      call.h_fp8.amax = static_cast<float*>(amax.at(0));
    } else {
      call.h = h.at(set);
    }
    return call;
  };
  time_in_graph(state, bytes, sets, [&](int64_t set, cudaStream_t stream) {
    return cuda::residual_norm_forward(call_of(set), stream);
  });
}

/// Arguments: rows, width, rows a vector, dbranch as two 8-bit copies (0, 1).
void BM_NormBackward(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  const Shape shape(state);
  const bool fp8 = state.range(3) != 0;
  const int64_t bytes = shape.numel() * 12 + shape.rows * 8 + shape.vectors() * shape.width * 6 * 4;
  const int64_t sets = num_sets(bytes);
  const Arrays dh(sets, shape.numel(), DType::kBF16, true);
  const Arrays dx_out(sets, shape.numel(), DType::kBF16, true);
  const Arrays x_out(sets, shape.numel(), DType::kBF16, true);
  const Arrays branch(sets, shape.numel(), DType::kBF16, true);
  const Arrays dx(sets, shape.numel(), DType::kBF16, false);
  const Arrays dbranch(sets, shape.numel(), DType::kBF16, false);
  const Arrays vectors(sets, shape.vectors() * 3 * shape.width, DType::kF32, true);
  const Arrays dvectors(sets, shape.vectors() * 4 * shape.width, DType::kF32, false);
  const Arrays statistics(1, 2 * shape.rows, DType::kF32, true);
  const Arrays amax(1, 1, DType::kF32, false);
  const DeviceMemory workspace(
      cuda::residual_norm_backward_workspace_bytes(shape.rows, shape.width));
  time_in_graph(state, bytes, sets, [&](int64_t set, cudaStream_t stream) {
    const auto* vector = static_cast<const float*>(vectors.at(set));
    auto* dvector = static_cast<float*>(dvectors.at(set));
    const auto* mean = static_cast<const float*>(statistics.at(0));
    ResidualNormBackward call;
    call.rows = shape.rows;
    call.width = shape.width;
    call.rows_of_vectors = {shape.rows_per_vector, shape.rows_per_vector};
    call.dh = dh.at(set);
    call.dx_out = dx_out.at(set);
    call.x_out = x_out.at(set);
    call.mean = mean;
    call.rstd = mean + shape.rows;
    call.branch = branch.at(set);
    call.scale = {vector + shape.width, 3 * shape.width, nullptr};
    call.gate = {vector + 2 * shape.width, 3 * shape.width, nullptr};
    call.dx = dx.at(set);
    if (fp8) {
      call.dbranch_fp8.type = DType::kF8E5M2;
      call.dbranch_fp8.data = dbranch.at(set);
      call.dbranch_fp8.transposed = static_cast<uint8_t*>(dbranch.at(set)) + shape.numel();
      call.dbranch_fp8.amax = static_cast<float*>(amax.at(0));
    } else {
      call.dbranch = dbranch.at(set);
    }
    call.dshift = dvector;
    call.dscale = dvector + shape.width;
    call.dgate = dvector + 2 * shape.width;
    call.dvector_stride = 3 * shape.width;
    call.dbranch_sum = dvector + shape.vectors() * 3 * shape.width;
    return cuda::residual_norm_backward(call, workspace.get(), stream);
  });
}

/// Of a matrix of bf16 in, one or two 8-bit copies out: a pass and its bytes an element.
void time_copies(benchmark::State& state, int64_t element_bytes,
                 const std::function<cudaError_t(const void* in, uint8_t* data, uint8_t* transposed,
                                                 float* floats, cudaStream_t stream)>& pass) {
  if (skip_without_gpu(state)) {
    return;
  }
  const int64_t numel = state.range(0) * state.range(1);
  const int64_t sets = num_sets(numel * element_bytes);
  const Arrays in(sets, numel, DType::kBF16, true);
  const Arrays data(sets, numel, DType::kU8, false);
  const Arrays transposed(sets, numel, DType::kU8, false);
  const Arrays floats(1, numel / 32 + 2, DType::kF32, false);
  time_in_graph(state, numel * element_bytes, sets, [&](int64_t set, cudaStream_t stream) {
    return pass(in.at(set), static_cast<uint8_t*>(data.at(set)),
                static_cast<uint8_t*>(transposed.at(set)), static_cast<float*>(floats.at(0)),
                stream);
  });
}

void BM_Quantise(benchmark::State& state) {
  time_copies(state, 3, [&](const void* in, uint8_t* data, uint8_t*, float* amax, cudaStream_t s) {
    return cuda::quantise({state.range(0),
                           state.range(1),
                           DType::kBF16,
                           in,
                           {DType::kF8E4M3, data, nullptr, nullptr, amax}},
                          nullptr, s);
  });
}

void BM_QuantiseBoth(benchmark::State& state) {
  time_copies(state, 4,
              [&](const void* in, uint8_t* data, uint8_t* transposed, float* amax, cudaStream_t s) {
                return cuda::quantise({state.range(0),
                                       state.range(1),
                                       DType::kBF16,
                                       in,
                                       {DType::kF8E4M3, data, transposed, nullptr, amax}},
                                      nullptr, s);
              });
}

void BM_TransposeBytes(benchmark::State& state) {
  time_copies(state, 2, [&](const void* in, uint8_t* data, uint8_t*, float*, cudaStream_t s) {
    return cuda::transpose_bytes(in, state.range(0), state.range(1), data, s);
  });
}

void BM_LargestMagnitude(benchmark::State& state) {
  time_copies(state, 2, [&](const void* in, uint8_t*, uint8_t*, float* amax, cudaStream_t s) {
    return cuda::quantise({state.range(0), state.range(1), DType::kBF16, in, {.amax = amax}},
                          nullptr, s);
  });
}

void BM_BlockQuantiseBoth(benchmark::State& state) {
  time_copies(
      state, 4,
      [&](const void* in, uint8_t* data, uint8_t* transposed, float* factors, cudaStream_t s) {
        BlockQuantise call;
        call.rows = state.range(0);
        call.width = state.range(1);
        call.in = in;
        call.is_square = state.range(2) != 0;
        call.data = data;
        call.factors = factors;
        call.transposed = transposed;
        call.transposed_factors = factors + block_factors(call.rows, call.width, call.is_square);
        return cuda::block_quantise(call, s);
      });
}

/// Argument: window. As many tensors as DiT-XL/2 has 8-bit ones, about.
void BM_UpdateScales(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  constexpr int64_t kCount = 336;  // four linears with three operands in 28 blocks
  const int64_t window = state.range(0);
  const Arrays history(1, kCount * window, DType::kF32, true);
  const Arrays amax(1, kCount, DType::kF32, true);
  const Arrays rest(1, 3 * kCount, DType::kF32, true);
  time_in_graph(state, kCount * (2 * window + 5) * 4, 1, [&](int64_t, cudaStream_t stream) {
    auto* largest = static_cast<float*>(rest.at(0));
    return cuda::update_scales(
        {kCount, static_cast<float*>(amax.at(0)), static_cast<float*>(history.at(0)), window,
         largest, 0, largest + kCount, largest + 2 * kCount},
        stream);
  });
}

void forward_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "width", "per_vector", "fp8", "cached"})->UseManualTime();
  bench->Unit(benchmark::kMicrosecond)->MinTime(0.25);
  for (const int64_t fp8 : {0, 1}) {
    for (const int64_t rows_per_vector : {256, 1024}) {
      bench->Args({65536, 1152, rows_per_vector, fp8, 0});
    }
    for (const int64_t rows : {2048, 512}) {
      bench->Args({rows, 1152, 256, fp8, 0});
    }
  }
  for (const int64_t width : {384, 768, 3072}) {
    bench->Args({65536, width, 256, 0, 0});
  }
  // Of drawing, where the kernel before has just written the row.
  for (const int64_t rows : {512, 1024, 2048, 4096, 8192}) {
    bench->Args({rows, 1152, rows / 2, 0, 1});
  }
  for (const int64_t rows : {4608, 4096}) {
    bench->Args({rows, 3072, rows, 0, 1});
  }
  bench->Args({8192, 320, 4096, 0, 1})->Args({2048, 640, 1024, 0, 1});
}

void backward_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "width", "per_vector", "fp8"})->UseManualTime();
  bench->Unit(benchmark::kMicrosecond)->MinTime(0.25);
  for (const int64_t fp8 : {0, 1}) {
    for (const int64_t rows_per_vector : {256, 1024}) {
      bench->Args({65536, 1152, rows_per_vector, fp8});
    }
    for (const int64_t rows : {2048, 512}) {
      bench->Args({rows, 1152, 256, fp8});
    }
  }
  for (const int64_t width : {384, 768, 3072}) {
    bench->Args({65536, width, 256, 0});
  }
}

void matrix_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "width"})->UseManualTime()->Unit(benchmark::kMicrosecond);
  bench->MinTime(0.25);
  bench->Args({65536, 1152})->Args({65536, 3456})->Args({4608, 1152})->Args({2048, 1152});
}

BENCHMARK(BM_DeviceCopy)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_NormForward)->Apply(forward_shapes);
BENCHMARK(BM_NormBackward)->Apply(backward_shapes);
BENCHMARK(BM_Quantise)->Apply(matrix_shapes);
BENCHMARK(BM_QuantiseBoth)->Apply(matrix_shapes);
BENCHMARK(BM_TransposeBytes)->Apply(matrix_shapes);
BENCHMARK(BM_LargestMagnitude)->Apply(matrix_shapes);
BENCHMARK(BM_BlockQuantiseBoth)
    ->ArgNames({"rows", "width", "square"})
    ->ArgsProduct({{65536}, {1152}, {0, 1}})
    ->Args({4608, 1152, 1})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_UpdateScales)
    ->ArgName("window")
    ->Arg(16)
    ->Arg(1024)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kinora::kernels
