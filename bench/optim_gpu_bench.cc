// The optimizer's passes over memory on a GPU at DiT-XL/2's buckets (675 M parameters in 37
// buckets; models/transformers/dit_plan.cc): the norm, and AdamW with one EMA, bf16 copy and
// gradient zeroed, beside a copy; the target is 92 % of the copy's bandwidth. The same with 8-bit
// moments, and with weights in bf16 alone; counter state_B: bytes that a weight and its moments
// take. And what makes directions of gradients before Adafactor's and CAME's updates, of the same
// matrices and vectors.
//   kinora_optim_gpu_bench [--benchmark_filter=...] ; device: GPU
#include <algorithm>
#include <memory>
#include <vector>

#include "bench/gpu_timing.h"
#include "kinora/core/rounding.h"
#include "kinora/kernels/block_codes.h"
#include "kinora/kernels/cuda/factored.h"
#include "kinora/kernels/cuda/optimizer.h"

namespace kinora::kernels {
namespace {

/// Elements of DiT-XL/2's buckets, rounded up to 4096 as the arena does.
std::vector<int64_t> bucket_sizes() {
  constexpr int64_t kHidden = 1152;
  const auto whole_pages = [](int64_t count) { return round_up(count, 4096); };
  // Patch and time embedders (16 and 256 inputs) and 1001 classes.
  std::vector<int64_t> sizes = {whole_pages((16 + 1 + 256 + 1 + kHidden + 1 + 1001) * kHidden)};
  for (int i = 0; i < 7; ++i) {  // four blocks' modulation each
    sizes.push_back(whole_pages(4 * (kHidden + 1) * 6 * kHidden));
  }
  for (int i = 0; i < 28; ++i) {  // qkv, proj, fc1, fc2 with biases
    sizes.push_back(whole_pages(12 * kHidden * kHidden + 9 * kHidden));
  }
  sizes.push_back(whole_pages((kHidden + 1) * (2 * kHidden + 32)));
  return sizes;
}

/// All buckets' arrays and the control block.
class Optimizer {
 public:
  Optimizer(MomentFormat moments, MasterFormat masters)
      : sizes_(bucket_sizes()),
        control_(sizeof(StepControl)),
        table_memory_(sizes_.size() * sizeof(UpdateBucket)) {
    for (const int64_t size : sizes_) {
      UpdateBucket bucket;
      bucket.count = size;
      bucket.buffers.grad = array(size, 0.01F);
      if (masters == MasterFormat::kF32) {
        bucket.buffers.master = array(size, 1.0F);
      }
      if (moments == MomentFormat::kF32) {
        bucket.buffers.exp_avg = array(size, 0.0F);
        bucket.buffers.exp_avg_sq = array(size, 0.0F);
      } else {
        bucket.buffers.coded_avg = coded(size);
        bucket.buffers.coded_avg_sq = coded(size);
      }
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
    parameters_.moments = moments;
    parameters_.masters = masters;
    parameters_.num_emas = 1;
    parameters_.ema_decay[0] = 0.9999;
  }

  [[nodiscard]] int64_t count() const { return count_; }
  /// Of a weight and its moments, without gradient and average.
  [[nodiscard]] double state_bytes() const {
    const double moments =
        parameters_.moments == MomentFormat::kF32 ? 8.0 : 2.0 + 8.0 / double{kCodeBlock};
    return moments + (parameters_.masters == MasterFormat::kF32 ? 4.0 + 2.0 : 2.0);
  }
  /// That an update reads and writes of a weight at least: all twice, but the copy of a master.
  [[nodiscard]] int64_t update_bytes() const {
    const double copy = parameters_.masters == MasterFormat::kF32 ? 2.0 : 0.0;
    const double twice = state_bytes() - copy + 4.0 + 4.0;  // and gradient, average
    return static_cast<int64_t>(static_cast<double>(count_) * (2.0 * twice + copy));
  }

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

  CodedMoment coded(int64_t size) {
    memory_.push_back(std::make_unique<DeviceMemory>(static_cast<size_t>(size)));
    auto* codes = memory_.back()->get<uint8_t>();
    return {codes, array(size / kCodeBlock, 1.0F)};
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

/// The parameters of DiT-XL/2 as they lie behind each other in one array.
class Factored {
 public:
  Factored() : control_(sizeof(StepControl)) {
    constexpr int64_t kHidden = 1152;
    add_linear(kHidden, 16);
    add_linear(kHidden, 256);
    add_linear(kHidden, kHidden);
    add(1001, kHidden);
    for (int i = 0; i < 28; ++i) {
      add_linear(6 * kHidden, kHidden);
      add_linear(3 * kHidden, kHidden);
      add_linear(kHidden, kHidden);
      add_linear(4 * kHidden, kHidden);
      add_linear(kHidden, 4 * kHidden);
    }
    add_linear(2 * kHidden, kHidden);
    add_linear(32, kHidden);
    const FactoredCounts counts = number_factored(pieces_, parameters_);
    float* grads = array(count_, 0.01F);
    float* means = array(count_, 0.0F);
    float* factors = array(counts.means, 0.0F);
    float* instabilities = array(counts.means, 0.0F);
    for (size_t i = 0; i < pieces_.size(); ++i) {
      pieces_[i].grad = grads + first_[i];
      pieces_[i].mean = means + first_[i];
      parameters_[i].factors = factors + parameters_[i].first_mean;
      if (parameters_[i].is_matrix) {
        parameters_[i].instability = instabilities + parameters_[i].first_mean;
      }
    }
    table_.pieces = on_device(pieces_);
    table_.num_pieces = static_cast<int64_t>(pieces_.size());
    table_.parameters = on_device(parameters_);
    table_.num_parameters = static_cast<int64_t>(parameters_.size());
    table_.counts = counts;
    table_.row_sums = array(counts.row_sums, 0.0F);
    table_.column_sums = array(counts.column_sums, 0.0F);
    table_.tile_sums = array(counts.tiles, 0.0F);
    table_.means = array(counts.means, 0.0F);
    table_.mean_squares = array(table_.num_parameters, 0.0F);
    StepControl control;
    control.applied_steps = 1;
    KINORA_CUDA_CHECK(
        cudaMemcpy(control_.get(), &control, sizeof(control), cudaMemcpyHostToDevice));
  }

  [[nodiscard]] int64_t count() const { return count_; }

  cudaError_t make_directions(UpdateRule rule) {
    for (const FactoredPass pass : passes_of(rule)) {
      const cudaError_t error =
          cuda::run_pass(pass, table_, {.rule = rule}, control_.get<StepControl>(), nullptr);
      if (error != cudaSuccess) {
        return error;
      }
    }
    return cudaSuccess;
  }

 private:
  void add_linear(int64_t rows, int64_t columns) {
    add(rows, columns);
    add(0, rows);
  }

  /// rows: 0 of a vector.
  void add(int64_t rows, int64_t columns) {
    const int64_t numel = std::max<int64_t>(rows, 1) * columns;
    FactoredPiece piece = cut_pieces(0, numel, columns).front();
    piece.parameter = static_cast<int64_t>(parameters_.size());
    pieces_.push_back(piece);
    parameters_.push_back(
        {.rows = std::max<int64_t>(rows, 1), .columns = columns, .is_matrix = rows > 0});
    first_.push_back(count_);
    count_ += round_up(numel, kCodeBlock);
  }

  float* array(int64_t size, float scale) {
    memory_.push_back(std::make_unique<DeviceMemory>(static_cast<size_t>(size) * 4));
    if (scale != 0.0F) {
      memory_.back()->fill_normal(static_cast<size_t>(size), DType::kF32, scale);
    }
    return memory_.back()->get<float>();
  }

  template <typename Item>
  const Item* on_device(const std::vector<Item>& items) {
    const size_t bytes = items.size() * sizeof(Item);
    memory_.push_back(std::make_unique<DeviceMemory>(bytes));
    KINORA_CUDA_CHECK(
        cudaMemcpy(memory_.back()->get(), items.data(), bytes, cudaMemcpyHostToDevice));
    return memory_.back()->get<Item>();
  }

  std::vector<FactoredPiece> pieces_;
  std::vector<FactoredParameter> parameters_;
  std::vector<int64_t> first_;  // element of each piece
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  DeviceMemory control_;
  FactoredTable table_;
  int64_t count_ = 0;
};

enum Formats : int64_t { kAllFp32, k8BitMoments, k8BitMomentsBf16Weights };

/// The one of these formats, made once: 17 GB of it in fp32 take a while to fill.
Optimizer& shared_optimizer(int64_t formats) {
  static std::unique_ptr<Optimizer> optimizer;
  static int64_t made = -1;
  if (formats != made) {
    optimizer.reset();
    optimizer = std::make_unique<Optimizer>(
        formats == kAllFp32 ? MomentFormat::kF32 : MomentFormat::k8Bit,
        formats == k8BitMomentsBf16Weights ? MasterFormat::kBF16 : MasterFormat::kF32);
    made = formats;
  }
  return *optimizer;
}

void BM_SumSquares(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  Optimizer& optimizer = shared_optimizer(kAllFp32);
  time_launches(state, optimizer.count() * 4,
                [&](int64_t /*i*/) { return optimizer.sum_squares(); });
}

void BM_UpdateWeights(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  Optimizer& optimizer = shared_optimizer(state.range(0));
  time_launches(state, optimizer.update_bytes(), [&](int64_t /*i*/) { return optimizer.update(); });
  state.counters["state_B"] = optimizer.state_bytes();
}

void BM_Step(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  Optimizer& optimizer = shared_optimizer(state.range(0));
  time_launches(state, optimizer.update_bytes() + optimizer.count() * 4,
                [&](int64_t /*i*/) { return optimizer.step(); });
}

void BM_FactoredDirections(benchmark::State& state) {
  if (skip_without_gpu(state)) {
    return;
  }
  static Factored factored;
  const bool is_came = state.range(0) != 0;
  // Gradients are read three times and written once; the mean of directions is read twice and
  // written once.
  time_launches(state, factored.count() * (is_came ? 28 : 16), [&](int64_t /*i*/) {
    return factored.make_directions(is_came ? UpdateRule::kCame : UpdateRule::kAdafactor);
  });
}

BENCHMARK(BM_DeviceCopy)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_SumSquares)->UseManualTime()->Unit(benchmark::kMicrosecond);
// formats: 0 all fp32, 1 moments of 8 bits, 2 and weights in bf16 alone.
BENCHMARK(BM_UpdateWeights)
    ->ArgName("formats")
    ->DenseRange(kAllFp32, k8BitMomentsBf16Weights)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Step)
    ->ArgName("formats")
    ->DenseRange(kAllFp32, k8BitMomentsBf16Weights)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_FactoredDirections)
    ->ArgName("came")
    ->DenseRange(0, 1)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kinora::kernels
