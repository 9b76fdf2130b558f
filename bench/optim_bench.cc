// The optimizer's pass over memory (AdamW, one EMA, bf16 copy, gradient zeroed), the norm and the
// random fills, beside a plain memcpy: all but the normals should run at the speed of memory.
//   kinora_optim_bench [--benchmark_filter=...] ; device: cpu
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "kinora/kernels/block_codes.h"
#include "kinora/kernels/optimizer.h"
#include "kinora/kernels/random.h"
#include "kinora/kernels/sum_squares.h"

namespace kinora::kernels {
namespace {

constexpr int64_t kCount = 16 << 20;  // 64 MiB an array: out of every cache

void report_bytes(benchmark::State& state, int64_t bytes_per_element) {
  state.SetBytesProcessed(state.iterations() * kCount * bytes_per_element);
}

void BM_Memcpy(benchmark::State& state) {
  const std::vector<float> in(kCount, 1.0F);
  std::vector<float> out(kCount);
  for (auto _ : state) {
    std::memcpy(out.data(), in.data(), kCount * sizeof(float));
    benchmark::ClobberMemory();
  }
  report_bytes(state, 8);
}

void BM_SumSquares(benchmark::State& state) {
  const std::vector<float> x(kCount, 1.0F);
  for (auto _ : state) {
    double sum = 0.0;
    for (int64_t i = 0; i < kCount; i += kSumSquaresChunk) {
      sum += sum_squares(x.data() + i, kSumSquaresChunk);
    }
    benchmark::DoNotOptimize(sum);
  }
  report_bytes(state, 4);
}

void time_updates(benchmark::State& state, const UpdateBuffers& buffers,
                  const UpdateParameters& parameters) {
  StepControl control;
  control.lr = 1e-4;
  for (auto _ : state) {
    control.grad_sum_squares = 1.0;
    prepare_update(&control, {});
    update_weights(buffers, parameters, control, 0, kCount);
    benchmark::ClobberMemory();
  }
}

void BM_UpdateWeights(benchmark::State& state) {
  std::vector<float> master(kCount, 1.0F), grad(kCount, 0.1F), exp_avg(kCount), exp_avg_sq(kCount);
  std::vector<float> ema(kCount, 1.0F);
  std::vector<uint16_t> compute(kCount);
  UpdateBuffers buffers;
  buffers.master = master.data();
  buffers.grad = grad.data();
  buffers.exp_avg = exp_avg.data();
  buffers.exp_avg_sq = exp_avg_sq.data();
  buffers.ema[0] = ema.data();
  buffers.compute = compute.data();
  buffers.compute_type = DType::kBF16;
  UpdateParameters parameters;
  parameters.num_emas = 1;
  parameters.ema_decay[0] = 0.9999;
  time_updates(state, buffers, parameters);
  report_bytes(state, 5 * 8 + 2);  // five fp32 arrays read and written, one copy written
}

/// 8-bit moments beside weights in bf16 alone.
void BM_UpdateSmallStates(benchmark::State& state) {
  std::vector<float> grad(kCount);
  std::vector<uint8_t> codes(kCount, 127), square_codes(kCount);
  std::vector<float> scales(kCount / kCodeBlock), square_scales(kCount / kCodeBlock);
  std::vector<uint16_t> compute(kCount, 0x3f80);
  random_fill(grad.data(), kCount, {}, 0, Distribution::kNormal, 0.1F);
  UpdateBuffers buffers;
  buffers.grad = grad.data();
  buffers.leaves_grad = true;
  buffers.coded_avg = {codes.data(), scales.data()};
  buffers.coded_avg_sq = {square_codes.data(), square_scales.data()};
  buffers.compute = compute.data();
  buffers.compute_type = DType::kBF16;
  UpdateParameters parameters;
  parameters.moments = MomentFormat::k8Bit;
  parameters.masters = MasterFormat::kBF16;
  time_updates(state, buffers, parameters);
  report_bytes(state, 4 + 2 * 4);  // gradients read, two moments and the weights read and written
}

void BM_RandomFill(benchmark::State& state) {
  std::vector<float> out(kCount);
  const auto distribution = static_cast<Distribution>(state.range(0));
  for (auto _ : state) {
    random_fill(out.data(), kCount, {}, 0, distribution, 1.0F);
    benchmark::ClobberMemory();
  }
  report_bytes(state, 4);
}

BENCHMARK(BM_Memcpy)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_SumSquares)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_UpdateWeights)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_UpdateSmallStates)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_RandomFill)
    ->ArgName("uniform")
    ->Arg(static_cast<int64_t>(Distribution::kNormal))
    ->Arg(static_cast<int64_t>(Distribution::kUniform))
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kinora::kernels
