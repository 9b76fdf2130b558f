// Our own attention kernels and cuDNN's at the shapes of real models, on packed bf16 projections
// [B, N, 3, H, D], with a cold L2 cache; "flops" are the matrix products' (forward 4 B H N^2 D,
// backward 2.5 times that), "bytes_per_second" counts every tensor once. Beside them the bandwidth
// of a copy.
//   kinora_attention_bench [--benchmark_filter=...] ; device: GPU
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/gpu_timing.h"
#include "kinora/core/rounding.h"
#include "kinora/kernels/attention.h"
#include "kinora/kernels/cuda/attention.h"
#include "kinora/kernels/cuda/cudnn_attention.h"

namespace kinora::kernels {
namespace {

constexpr size_t kFlushBytes = size_t{256} << 20;  // more than any L2

/// Times one launch an iteration, after the L2 cache has been overwritten.
template <typename Launch>
void time_cold(benchmark::State& state, const Launch& launch) {
  const DeviceMemory flush(kFlushBytes);
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  KINORA_CUDA_CHECK(cudaEventCreate(&start));
  KINORA_CUDA_CHECK(cudaEventCreate(&stop));
  KINORA_CUDA_CHECK(launch());
  for (auto _ : state) {
    KINORA_CUDA_CHECK(cudaMemsetAsync(flush.get(), 0, kFlushBytes, nullptr));
    KINORA_CUDA_CHECK(cudaEventRecord(start, nullptr));
    KINORA_CUDA_CHECK(launch());
    KINORA_CUDA_CHECK(cudaEventRecord(stop, nullptr));
    KINORA_CUDA_CHECK(cudaEventSynchronize(stop));
    float milliseconds = 0.0F;
    KINORA_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
    state.SetIterationTime(milliseconds / 1e3);
  }
  KINORA_CUDA_CHECK(cudaEventDestroy(start));
  KINORA_CUDA_CHECK(cudaEventDestroy(stop));
}

/// range: B, H, Nq, Nk, D, temporal. Self-attention where Nq is Nk; temporal: rows of all samples
/// interleaved.
struct Problem {
  explicit Problem(const benchmark::State& state)
      : Problem(state.range(0), state.range(1), state.range(2), state.range(3), state.range(4),
                state.range(5) != 0) {}
  Problem(int64_t num_samples, int64_t num_heads, int64_t num_queries, int64_t num_keys,
          int64_t head_dims, bool is_temporal)
      : batch(num_samples),
        heads(num_heads),
        queries(num_queries),
        keys(num_keys),
        head_dim(head_dims),
        temporal(is_temporal),
        query_count(static_cast<size_t>(batch * heads * queries * head_dim)),
        key_count(static_cast<size_t>(batch * heads * keys * head_dim)),
        q(query_count * 2),
        kv(2 * key_count * 2),
        out(query_count * 2),
        dout(query_count * 2),
        dq(query_count * 2),
        dkv(2 * key_count * 2),
        lse(static_cast<size_t>(batch * heads * queries) * 4) {
    q.fill_normal(query_count, DType::kBF16);
    kv.fill_normal(2 * key_count, DType::kBF16);
    dout.fill_normal(query_count, DType::kBF16);
  }

  [[nodiscard]] AttentionShape shape() const {
    return {batch,
            heads,
            queries,
            keys,
            head_dim,
            DType::kBF16,
            1.0F / std::sqrt(static_cast<float>(head_dim)),
            nullptr};
  }
  [[nodiscard]] HeadsView view(const DeviceMemory& memory, int64_t length, int64_t parts,
                               int64_t part) const {
    const int64_t width = heads * head_dim;
    uint16_t* data = memory.get<uint16_t>() + part * width;
    return temporal ? HeadsView{data, parts * width, batch * parts * width, head_dim}
                    : HeadsView{data, length * parts * width, parts * width, head_dim};
  }
  [[nodiscard]] AttentionForward forward() const {
    return {shape(),
            view(q, queries, 1, 0),
            view(kv, keys, 2, 0),
            view(kv, keys, 2, 1),
            view(out, queries, 1, 0),
            lse.get<float>()};
  }
  [[nodiscard]] AttentionBackward backward() const {
    return {shape(),
            view(q, queries, 1, 0),
            view(kv, keys, 2, 0),
            view(kv, keys, 2, 1),
            view(out, queries, 1, 0),
            view(dout, queries, 1, 0),
            lse.get<float>(),
            view(dq, queries, 1, 0),
            view(dkv, keys, 2, 0),
            view(dkv, keys, 2, 1)};
  }
  void report(benchmark::State& state, double products, size_t query_tensors, size_t key_tensors,
              size_t workspace) const {
    state.counters["flops"] =
        benchmark::Counter(products * 2.0 * static_cast<double>(batch * heads) *
                               static_cast<double>(queries * keys * head_dim),
                           benchmark::Counter::kIsIterationInvariantRate);
    state.SetBytesProcessed(
        state.iterations() *
        static_cast<int64_t>(2 * (query_tensors * query_count + key_tensors * key_count)));
    state.counters["workspace_MiB"] = static_cast<double>(workspace) / (1 << 20);
  }

  int64_t batch, heads, queries, keys, head_dim;
  bool temporal;
  size_t query_count, key_count;
  DeviceMemory q, kv, out, dout, dq, dkv, lse;
};

bool skip(benchmark::State& state, const AttentionShape& shape) {
  if (!cuda::attention_supported(shape)) {
    state.SkipWithError("no own kernel for this shape here");
    return true;
  }
  return false;
}

void BM_AttentionForward(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  const Problem problem(state);
  if (skip(state, problem.shape())) {
    return;
  }
  const AttentionForward call = problem.forward();
  time_cold(state, [&] { return cuda::attention_forward(call, nullptr); });
  problem.report(state, 2.0, 2, 2, 0);
}

void BM_AttentionBackward(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  const Problem problem(state);
  if (skip(state, problem.shape())) {
    return;
  }
  const AttentionBackward call = problem.backward();
  const size_t bytes = cuda::attention_backward_workspace_bytes(call.shape);
  const DeviceMemory workspace(bytes);
  KINORA_CUDA_CHECK(cuda::attention_forward(problem.forward(), nullptr));
  time_cold(state, [&] { return cuda::attention_backward(call, workspace.get(), nullptr); });
  problem.report(state, 5.0, 4, 4, bytes);
}

/// deterministic: cuDNN's fastest plan that gives the same bits each time, as ours do.
void BM_CudnnAttentionForward(benchmark::State& state, bool deterministic) {
  if (skip_without_gpu(state)) {
    return;
  }
  const Problem problem(state);
  cuda::CudnnAttention attention(deterministic);
  const AttentionForward call = problem.forward();
  const std::string reason = attention.unsupported_reason(call);
  if (!reason.empty()) {
    state.SkipWithError(reason.c_str());
    return;
  }
  const size_t bytes = attention.workspace_bytes(call);
  const DeviceMemory workspace(bytes);
  time_cold(state, [&] {
    attention.forward(call, workspace.get(), nullptr);
    return cudaSuccess;
  });
  problem.report(state, 2.0, 2, 2, bytes);
}

void BM_CudnnAttentionBackward(benchmark::State& state, bool deterministic) {
  if (skip_without_gpu(state)) {
    return;
  }
  const Problem problem(state);
  cuda::CudnnAttention attention(deterministic);
  const AttentionForward forward = problem.forward();
  const AttentionBackward call = problem.backward();
  const std::string reason =
      attention.unsupported_reason(forward) + attention.unsupported_reason(call);
  if (!reason.empty()) {
    state.SkipWithError(reason.c_str());
    return;
  }
  const size_t bytes =
      std::max(attention.workspace_bytes(forward), attention.workspace_bytes(call));
  const DeviceMemory workspace(bytes);
  attention.forward(forward, workspace.get(), nullptr);
  time_cold(state, [&] {
    attention.backward(call, workspace.get(), nullptr);
    return cudaSuccess;
  });
  problem.report(state, 5.0, 4, 4, bytes);
}

/// A clip's sliding window: block i attends to the `near` blocks around it, and to `shared` at the
/// end, the text's, which all attend to.
struct Mask {
  Mask(int64_t blocks, int64_t near, int64_t shared)
      : offsets(sizeof(int32_t) * static_cast<size_t>(blocks + 1)),
        lists(sizeof(int32_t) * static_cast<size_t>(blocks * blocks)) {
    std::vector<int32_t> ends = {0};
    std::vector<int32_t> all;
    for (int64_t i = 0; i < blocks; ++i) {
      for (int64_t j = 0; j < blocks; ++j) {
        if (std::abs(i - j) <= near / 2 || i >= blocks - shared || j >= blocks - shared) {
          all.push_back(static_cast<int32_t>(j));
        }
      }
      ends.push_back(static_cast<int32_t>(all.size()));
    }
    density = static_cast<double>(all.size()) / static_cast<double>(blocks * blocks);
    const auto put = [](const DeviceMemory& memory, const std::vector<int32_t>& values) {
      KINORA_CUDA_CHECK(cudaMemcpy(memory.get(), values.data(), sizeof(int32_t) * values.size(),
                                   cudaMemcpyHostToDevice));
    };
    put(offsets, ends);
    put(lists, all);
  }
  /// It is symmetric.
  [[nodiscard]] BlockMask view() const {
    return {offsets.get<int32_t>(), lists.get<int32_t>(), offsets.get<int32_t>(),
            lists.get<int32_t>()};
  }
  DeviceMemory offsets, lists;
  double density = 1.0;
};

/// range: B, H, N, D, blocks near each, blocks of text; "share" is that of all pairs of blocks, and
/// flops count these alone.
void masked(benchmark::State& state, bool backward) {
  if (skip_without_gpu(state)) {
    return;
  }
  const Problem problem(state.range(0), state.range(1), state.range(2), state.range(2),
                        state.range(3), false);
  const Mask mask(ceil_div(problem.queries, BlockMask::kRows), state.range(4), state.range(5));
  AttentionForward forward = problem.forward();
  AttentionBackward call = problem.backward();
  forward.shape.mask = call.shape.mask = mask.view();
  if (skip(state, forward.shape)) {
    return;
  }
  const size_t bytes = backward ? cuda::attention_backward_workspace_bytes(call.shape) : 0;
  const DeviceMemory workspace(bytes + 1);
  KINORA_CUDA_CHECK(cuda::attention_forward(forward, nullptr));
  if (backward) {
    time_cold(state, [&] { return cuda::attention_backward(call, workspace.get(), nullptr); });
  } else {
    time_cold(state, [&] { return cuda::attention_forward(forward, nullptr); });
  }
  problem.report(state, mask.density * (backward ? 5.0 : 2.0), backward ? 4 : 2, backward ? 4 : 2,
                 bytes);
  state.counters["share"] = mask.density;
}

void BM_MaskedForward(benchmark::State& state) {
  masked(state, false);
}

void BM_MaskedBackward(benchmark::State& state) {
  masked(state, true);
}

/// All, a half, a quarter, an eighth of the pairs of blocks, about.
void masks(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"B", "H", "N", "D", "near", "text"});
  for (const int64_t head_dim : {64, 72, 128}) {
    for (const int64_t near : {512, 69, 31, 13}) {
      bench->Args({1, 24, 32768, head_dim, near, 2});
    }
  }
  bench->UseManualTime();
  bench->Unit(benchmark::kMillisecond);
  bench->Iterations(5);
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"B", "H", "Nq", "Nk", "D", "temporal"});
  bench->Args({256, 16, 256, 256, 72, 0});
  bench->Args({64, 16, 1024, 1024, 72, 0});
  bench->Args({8, 16, 256, 256, 72, 0});
  bench->Args({2, 16, 256, 256, 72, 0});
  bench->Args({32, 12, 256, 256, 64, 0});
  bench->Args({8, 16, 4096, 4096, 72, 0});
  bench->Args({4, 24, 4608, 4608, 128, 0});
  bench->Args({1, 24, 32768, 32768, 64, 0});
  bench->Args({1, 24, 32768, 32768, 72, 0});
  bench->Args({1, 24, 32768, 32768, 128, 0});
  bench->Args({16, 16, 1024, 120, 72, 0});
  bench->Args({1, 16, 16384, 300, 72, 0});
  bench->Args({64, 16, 256, 120, 72, 0});
  bench->Args({2, 16, 16384, 120, 72, 0});
  bench->Args({1024, 16, 16, 16, 72, 1});
  bench->Args({4096, 16, 16, 16, 72, 1});
  bench->Args({1024, 16, 30, 30, 72, 1});
  bench->Args({1024, 16, 64, 64, 72, 1});
  bench->Args({16, 8, 4096, 77, 40, 0});
  bench->Args({8, 8, 4096, 4096, 40, 0});
  bench->Args({8, 8, 1024, 1024, 80, 0});
  bench->Args({8, 8, 256, 256, 160, 0});
  bench->Args({4, 8, 9216, 9216, 40, 0});
  bench->Args({4, 8, 2304, 2304, 80, 0});
  bench->Args({4, 8, 576, 576, 160, 0});
  bench->UseManualTime();
  bench->Unit(benchmark::kMillisecond);
  bench->Iterations(20);
}

BENCHMARK(BM_DeviceCopy)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(10);
BENCHMARK(BM_AttentionForward)->Apply(shapes);
BENCHMARK(BM_AttentionBackward)->Apply(shapes);
BENCHMARK(BM_MaskedForward)->Apply(masks);
BENCHMARK(BM_MaskedBackward)->Apply(masks);
BENCHMARK_CAPTURE(BM_CudnnAttentionForward, any, false)->Apply(shapes);
BENCHMARK_CAPTURE(BM_CudnnAttentionBackward, any, false)->Apply(shapes);
BENCHMARK_CAPTURE(BM_CudnnAttentionBackward, deterministic, true)->Apply(shapes);

}  // namespace
}  // namespace kinora::kernels
