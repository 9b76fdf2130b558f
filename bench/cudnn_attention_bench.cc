// cuDNN's attention at the shapes of real models, on packed bf16 projections [B, N, 3, H, D], with
// a cold L2 cache; "flops" are the matrix products' (forward 4 B H N^2 D, backward 2.5 times that).
// Beside it the bandwidth of a copy.
//   kinora_cudnn_attention_bench [--benchmark_filter=...] ; device: GPU
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kinora/core/cuda.h"
#include "kinora/kernels/attention.h"
#include "kinora/kernels/cuda/cudnn_attention.h"

namespace kinora::kernels {
namespace {

constexpr size_t kFlushBytes = size_t{256} << 20;  // more than any L2
constexpr size_t kCopyBytes = size_t{2} << 30;

class Memory {
 public:
  explicit Memory(size_t bytes) {
    KINORA_CUDA_CHECK(cudaMalloc(&data_, std::max(bytes, size_t{1})));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { cudaFree(data_); }
  [[nodiscard]] void* get() const { return data_; }

 private:
  void* data_ = nullptr;
};

/// Runs the launch once per iteration, after the L2 cache has been overwritten.
template <typename Launch>
void time_launches(benchmark::State& state, const Launch& launch) {
  const Memory flush(kFlushBytes);
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  KINORA_CUDA_CHECK(cudaEventCreate(&start));
  KINORA_CUDA_CHECK(cudaEventCreate(&stop));
  launch();
  for (auto _ : state) {
    KINORA_CUDA_CHECK(cudaMemsetAsync(flush.get(), 0, kFlushBytes, nullptr));
    KINORA_CUDA_CHECK(cudaEventRecord(start, nullptr));
    launch();
    KINORA_CUDA_CHECK(cudaEventRecord(stop, nullptr));
    KINORA_CUDA_CHECK(cudaEventSynchronize(stop));
    float milliseconds = 0.0F;
    KINORA_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
    state.SetIterationTime(milliseconds / 1e3);
  }
  KINORA_CUDA_CHECK(cudaEventDestroy(start));
  KINORA_CUDA_CHECK(cudaEventDestroy(stop));
}

bool skip(benchmark::State& state) {
  if (!cuda_available()) {
    state.SkipWithError(("no GPU: " + cuda_unavailable_reason()).c_str());
    return true;
  }
  return false;
}

void BM_DeviceCopy(benchmark::State& state) {
  if (skip(state)) {
    return;
  }
  const Memory from(kCopyBytes);
  const Memory to(kCopyBytes);
  time_launches(state, [&] {
    KINORA_CUDA_CHECK(
        cudaMemcpyAsync(to.get(), from.get(), kCopyBytes, cudaMemcpyDeviceToDevice, nullptr));
  });
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(2 * kCopyBytes));
}

/// Normal bf16 numbers: a million, again and again.
void fill(void* data, size_t count) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> chunk(std::min(count, size_t{1} << 20));
  for (uint16_t& value : chunk) {
    value = float_to_bf16(normal(engine));
  }
  KINORA_CUDA_CHECK(cudaMemcpy(data, chunk.data(), chunk.size() * 2, cudaMemcpyHostToDevice));
  for (size_t done = chunk.size(); done < count;) {
    const size_t now = std::min(done, count - done);
    KINORA_CUDA_CHECK(
        cudaMemcpy(static_cast<uint16_t*>(data) + done, data, now * 2, cudaMemcpyDeviceToDevice));
    done += now;
  }
}

struct Problem {
  explicit Problem(const benchmark::State& state)
      : batch(state.range(0)),
        heads(state.range(1)),
        length(state.range(2)),
        head_dim(state.range(3)),
        count(static_cast<size_t>(batch * heads * length * head_dim)),
        qkv(3 * count * 2),
        out(count * 2),
        dout(count * 2),
        dqkv(3 * count * 2),
        lse(static_cast<size_t>(batch * heads * length) * 4) {
    fill(qkv.get(), 3 * count);
    fill(dout.get(), count);
  }

  [[nodiscard]] AttentionShape shape() const {
    return {batch,
            heads,
            length,
            length,
            head_dim,
            DType::kBF16,
            1.0F / std::sqrt(static_cast<float>(head_dim)),
            nullptr};
  }
  [[nodiscard]] HeadsView packed(const Memory& memory, int64_t part) const {
    const int64_t width = heads * head_dim;
    return {static_cast<uint16_t*>(memory.get()) + part * width, length * 3 * width, 3 * width,
            head_dim};
  }
  [[nodiscard]] HeadsView plain(const Memory& memory) const {
    const int64_t width = heads * head_dim;
    return {memory.get(), length * width, width, head_dim};
  }
  [[nodiscard]] AttentionForward forward() const {
    return {shape(),        packed(qkv, 0), packed(qkv, 1),
            packed(qkv, 2), plain(out),     static_cast<float*>(lse.get())};
  }
  [[nodiscard]] AttentionBackward backward() const {
    return {shape(),
            packed(qkv, 0),
            packed(qkv, 1),
            packed(qkv, 2),
            plain(out),
            plain(dout),
            static_cast<const float*>(lse.get()),
            packed(dqkv, 0),
            packed(dqkv, 1),
            packed(dqkv, 2)};
  }

  int64_t batch, heads, length, head_dim;
  size_t count;
  Memory qkv, out, dout, dqkv, lse;
};

void report(benchmark::State& state, const Problem& problem, double products, size_t workspace) {
  const double flops = products * 2.0 * static_cast<double>(problem.batch * problem.heads) *
                       static_cast<double>(problem.length * problem.length * problem.head_dim);
  state.counters["flops"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["workspace_MiB"] = static_cast<double>(workspace) / (1 << 20);
}

void BM_CudnnAttentionForward(benchmark::State& state) {
  if (skip(state)) {
    return;
  }
  const Problem problem(state);
  cuda::CudnnAttention attention(state.range(4) != 0);
  const AttentionForward call = problem.forward();
  const std::string reason = attention.unsupported_reason(call);
  if (!reason.empty()) {
    state.SkipWithError(reason.c_str());
    return;
  }
  const Memory workspace(attention.workspace_bytes(call));
  time_launches(state, [&] { attention.forward(call, workspace.get(), nullptr); });
  report(state, problem, 2.0, attention.workspace_bytes(call));
}

void BM_CudnnAttentionBackward(benchmark::State& state) {
  if (skip(state)) {
    return;
  }
  const Problem problem(state);
  cuda::CudnnAttention attention(state.range(4) != 0);
  const AttentionForward forward = problem.forward();
  const AttentionBackward call = problem.backward();
  const std::string reason =
      attention.unsupported_reason(forward) + attention.unsupported_reason(call);
  if (!reason.empty()) {
    state.SkipWithError(reason.c_str());
    return;
  }
  const Memory workspace(
      std::max(attention.workspace_bytes(forward), attention.workspace_bytes(call)));
  attention.forward(forward, workspace.get(), nullptr);
  time_launches(state, [&] { attention.backward(call, workspace.get(), nullptr); });
  report(state, problem, 5.0, attention.workspace_bytes(call));
}

void shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"B", "H", "N", "D", "deterministic"});
  for (const int64_t deterministic : {0, 1}) {
    benchmark->Args({256, 16, 256, 72, deterministic});
    benchmark->Args({64, 16, 1024, 72, deterministic});
    benchmark->Args({8, 16, 256, 72, deterministic});
    benchmark->Args({2, 16, 256, 72, deterministic});
    benchmark->Args({8, 16, 4096, 72, deterministic});
    benchmark->Args({4, 24, 4608, 128, deterministic});
  }
  benchmark->UseManualTime()->Unit(benchmark::kMillisecond)->MinTime(0.2);
}

BENCHMARK(BM_DeviceCopy)->UseManualTime()->Unit(benchmark::kMillisecond)->MinTime(0.2);
BENCHMARK(BM_CudnnAttentionForward)->Apply(shapes);
BENCHMARK(BM_CudnnAttentionBackward)->Apply(shapes);

}  // namespace
}  // namespace kinora::kernels
