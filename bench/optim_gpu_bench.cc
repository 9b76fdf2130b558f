// The optimizer's passes over memory on a GPU at DiT-XL/2's buckets (675 M parameters in 37
// buckets; models/transformers/dit_plan.cc): the norm, and AdamW with one EMA, bf16 copy and
// gradient zeroed, beside a copy; the target is 92 % of the copy's bandwidth.
//   kinora_optim_gpu_bench [--benchmark_filter=...] ; device: GPU
#include <memory>
#include <vector>

#include "bench/gpu_timing.h"
#include "kinora/kernels/cuda/optimizer.h"

namespace kinora::kernels {
namespace {

/// Elements of DiT-XL/2's buckets, rounded up to 4096 as the arena does.
std::vector<int64_t> bucket_sizes() {
  constexpr int64_t kHidden = 1152;
  const auto round_up = [](int64_t count) { return (count + 4095) / 4096 * 4096; };
  // Patch and time embedders (16 and 256 inputs) and 1001 classes.
  std::vector<int64_t> sizes = {round_up((16 + 1 + 256 + 1 + kHidden + 1 + 1001) * kHidden)};
  for (int i = 0; i < 7; ++i) {  // four blocks' modulation each
    sizes.push_back(round_up(4 * (kHidden + 1) * 6 * kHidden));
  }
  for (int i = 0; i < 28; ++i) {  // qkv, proj, fc1, fc2 with biases
    sizes.push_back(round_up(12 * kHidden * kHidden + 9 * kHidden));
  }
  sizes.push_back(round_up((kHidden + 1) * (2 * kHidden + 32)));
  return sizes;
}

/// All buckets' arrays and the control block.
class Optimizer {
 public:
  Optimizer()
      : sizes_(bucket_sizes()),
        control_(sizeof(StepControl)),
        table_memory_(sizes_.size() * sizeof(UpdateBucket)) {
    for (const int64_t size : sizes_) {
      UpdateBucket bucket;
      bucket.count = size;
      bucket.buffers.master = array(size, 1.0F);
      bucket.buffers.grad = array(size, 0.01F);
      bucket.buffers.exp_avg = array(size, 0.0F);
      bucket.buffers.exp_avg_sq = array(size, 0.0F);
      bucket.buffers.ema[0] = array(size, 1.0F);
      memory_.push_back(std::make_unique<DeviceMemory>(static_cast<size_t>(size) * 2));
      bucket.buffers.compute = memory_.back()->get();
      bucket.buffers.compute_type = DType::kBF16;
      buckets_.push_back(bucket);
      count_ += size;
    }
    table_.num_chunks = number_chunks(buckets_);
    table_.num_buckets = static_cast<int32_t>(buckets_.size());
    table_.buckets = table_memory_.get<UpdateBucket>();
    KINORA_CUDA_CHECK(cudaMemcpy(table_memory_.get(), buckets_.data(),
                                 buckets_.size() * sizeof(UpdateBucket), cudaMemcpyHostToDevice));
    StepControl control;
    control.lr = 1e-4;
    KINORA_CUDA_CHECK(
        cudaMemcpy(control_.get(), &control, sizeof(control), cudaMemcpyHostToDevice));
    workspace_ =
        std::make_unique<DeviceMemory>(cuda::sum_squares_workspace_bytes(table_.num_chunks));
    parameters_.num_emas = 1;
    parameters_.ema_decay[0] = 0.9999;
  }

  [[nodiscard]] int64_t count() const { return count_; }

  cudaError_t sum_squares() {
    return cuda::sum_squares(table_, workspace_->get(), control_.get<StepControl>(), nullptr);
  }
  cudaError_t update() {
    return cuda::update_weights(table_, parameters_, control_.get<StepControl>(), nullptr);
  }
  cudaError_t step() {
    for (const cudaError_t error :
         {sum_squares(), cuda::prepare_update(control_.get<StepControl>(), {}, nullptr, nullptr),
          update()}) {
      if (error != cudaSuccess) {
        return error;
      }
    }
    return cudaSuccess;
  }

 private:
  float* array(int64_t size, float scale) {
    memory_.push_back(std::make_unique<DeviceMemory>(static_cast<size_t>(size) * 4));
    if (scale != 0.0F) {
      memory_.back()->fill_normal(static_cast<size_t>(size), DType::kF32, scale);
    }
    return memory_.back()->get<float>();
  }

  std::vector<int64_t> sizes_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  std::vector<UpdateBucket> buckets_;
  DeviceMemory control_;
  DeviceMemory table_memory_;
  std::unique_ptr<DeviceMemory> workspace_;
  cuda::BucketTable table_;
  UpdateParameters parameters_;
  int64_t count_ = 0;
};

/// Made once: 17 GB of it take a while to fill.
Optimizer& shared_optimizer() {
  static Optimizer optimizer;
  return optimizer;
}

constexpr int64_t kUpdateBytes = 5 * 8 + 2;  // five fp32 arrays read and written, one copy written

void BM_SumSquares(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  Optimizer& optimizer = shared_optimizer();
  time_launches(state, optimizer.count() * 4,
                [&](int64_t /*i*/) { return optimizer.sum_squares(); });
}

void BM_UpdateWeights(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  Optimizer& optimizer = shared_optimizer();
  time_launches(state, optimizer.count() * kUpdateBytes,
                [&](int64_t /*i*/) { return optimizer.update(); });
}

void BM_Step(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  Optimizer& optimizer = shared_optimizer();
  time_launches(state, optimizer.count() * (kUpdateBytes + 4),
                [&](int64_t /*i*/) { return optimizer.step(); });
}

BENCHMARK(BM_DeviceCopy)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_SumSquares)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_UpdateWeights)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Step)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kinora::kernels
