#include <bit>
#include <cmath>
#include <limits>
#include <memory>

#include "kinora/kernels/block_codes.h"
#include "kinora/kernels/cuda/optimizer.h"
#include "kinora/kernels/sum_squares.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/optimizer_arrays.h"

namespace kinora::kernels {
namespace gpu_optimizer_test {

using GpuOptimizerTest = GpuTest;

constexpr int64_t kSizes[] = {1, 2, 3, 4, 5, 31, 1023, 4096, 1'000'003};

StepControl read(const StepControl* device) {
  StepControl control;
  EXPECT_EQ(cudaMemcpy(&control, device, sizeof(control), cudaMemcpyDeviceToHost), cudaSuccess);
  return control;
}

/// A control block in the GPU's memory.
class DeviceControl {
 public:
  explicit DeviceControl(const StepControl& start) {
    KINORA_CUDA_CHECK(cudaMalloc(&memory_, sizeof(start)));
    KINORA_CUDA_CHECK(cudaMemcpy(memory_, &start, sizeof(start), cudaMemcpyHostToDevice));
  }
  DeviceControl(const DeviceControl&) = delete;
  DeviceControl& operator=(const DeviceControl&) = delete;
  ~DeviceControl() { cudaFree(memory_); }

  [[nodiscard]] StepControl* get() const { return static_cast<StepControl*>(memory_); }
  [[nodiscard]] StepControl host() const { return read(get()); }

 private:
  void* memory_ = nullptr;
};

/// The table of buckets in the GPU's memory.
class DeviceTable {
 public:
  explicit DeviceTable(std::vector<UpdateBucket> buckets) {
    table_.num_buckets = static_cast<int32_t>(buckets.size());
    table_.num_chunks = number_chunks(buckets);
    const size_t bytes = buckets.size() * sizeof(UpdateBucket);
    KINORA_CUDA_CHECK(cudaMalloc(&memory_, bytes));
    KINORA_CUDA_CHECK(cudaMemcpy(memory_, buckets.data(), bytes, cudaMemcpyHostToDevice));
    table_.buckets = static_cast<const UpdateBucket*>(memory_);
  }
  DeviceTable(const DeviceTable&) = delete;
  DeviceTable& operator=(const DeviceTable&) = delete;
  ~DeviceTable() { cudaFree(memory_); }

  [[nodiscard]] const cuda::BucketTable& get() const { return table_; }

 private:
  void* memory_ = nullptr;
  cuda::BucketTable table_;
};

double gpu_sum_squares(const std::vector<std::vector<float>>& buckets, size_t misalignment) {
  std::vector<std::unique_ptr<DeviceArray<float>>> arrays;
  std::vector<UpdateBucket> entries;
  for (const std::vector<float>& bucket : buckets) {
    arrays.push_back(std::make_unique<DeviceArray<float>>(bucket, misalignment));
    UpdateBucket entry;
    entry.buffers.grad = arrays.back()->data();
    entry.count = static_cast<int64_t>(bucket.size());
    entries.push_back(entry);
  }
  const DeviceTable table(entries);
  const DeviceArray<uint8_t> workspace{
      std::vector<uint8_t>(cuda::sum_squares_workspace_bytes(table.get().num_chunks))};
  const DeviceControl control({});
  EXPECT_EQ(cuda::sum_squares(table.get(), workspace.data(), control.get(), nullptr), cudaSuccess);
  return control.host().grad_sum_squares;
}

TEST_F(GpuOptimizerTest, SumOfSquaresEqualsTheCpu) {
  for (const int64_t count : kSizes) {
    const OptimizerArrays arrays(count, 0, DType::kF32);
    const double expected = sum_squares(arrays.grad.data(), count);
    const double got = gpu_sum_squares({arrays.grad}, 0);
    EXPECT_NEAR(got, expected, 1e-13 * expected) << count;
    EXPECT_EQ(got, gpu_sum_squares({arrays.grad}, 0)) << "the order must be fixed";
    EXPECT_EQ(got, gpu_sum_squares({arrays.grad}, 1)) << "whatever the alignment";
  }
}

TEST_F(GpuOptimizerTest, SumsAddUpOverBuckets) {
  const std::vector<float> large(100'000, 1.0F);
  EXPECT_EQ(gpu_sum_squares({{3.0F, 4.0F}, {}, large, {2.0F}}, 0), 100'029.0);
}

TEST_F(GpuOptimizerTest, DecisionsEqualTheCpu) {
  UpdatePolicy policy;
  policy.max_grad_norm = 1.0;
  policy.dynamic_loss_scale = true;
  policy.growth_interval = 3;
  StepControl expected;
  expected.loss_scale = 1024.0F;
  const DeviceControl control(expected);
  const double sums[] = {1e6, 1e8, 1e9, std::numeric_limits<double>::infinity(), 4e3, 2.0};
  for (const double sum : sums) {
    expected.grad_sum_squares = sum;
    StepControl start = control.host();
    start.grad_sum_squares = sum;
    ASSERT_EQ(cudaMemcpy(control.get(), &start, sizeof(start), cudaMemcpyHostToDevice),
              cudaSuccess);
    prepare_update(&expected, policy);
    ASSERT_EQ(cuda::prepare_update(control.get(), policy, nullptr, nullptr), cudaSuccess);
    const StepControl got = control.host();
    EXPECT_EQ(got.skip, expected.skip);
    EXPECT_EQ(got.applied_steps, expected.applied_steps);
    EXPECT_EQ(got.skipped_steps, expected.skipped_steps);
    EXPECT_EQ(got.loss_scale, expected.loss_scale);
    EXPECT_EQ(got.good_steps, expected.good_steps);
    EXPECT_EQ(got.grad_norm, expected.grad_norm);
    EXPECT_EQ(got.multiplier, expected.multiplier);
    EXPECT_EQ(got.grad_sum_squares, 0.0);
    EXPECT_NEAR(got.bias_correction1, expected.bias_correction1, 1e-14);
    EXPECT_NEAR(got.bias_correction2_sqrt, expected.bias_correction2_sqrt, 1e-14);
  }
}

class GpuUpdateRuleTest : public GpuTest, public testing::WithParamInterface<UpdateRule> {};

TEST_P(GpuUpdateRuleTest, EqualsTheCpuAtOddSizesAndAlignments) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t count : kSizes) {
      for (const size_t misalignment : {0, 1}) {
        for (const int num_emas : {0, 1, kMaxEmas}) {
          if (num_emas < first_ema(GetParam())) {
            continue;
          }
          OptimizerArrays host(count, num_emas, type);
          StepControl start;
          start.share = 0.25;
          start.grad_sum_squares = 10.0;
          start.lr = 3e-3;
          start.distance = 0.5;
          UpdatePolicy policy;
          policy.max_grad_norm = 1.0;
          prepare_update(&start, policy);

          const DeviceControl control(start);
          const DeviceArray<float> master(host.master, misalignment);
          const DeviceArray<float> grad(host.grad, misalignment);
          const DeviceArray<float> exp_avg(host.exp_avg, misalignment);
          const DeviceArray<float> exp_avg_sq(host.exp_avg_sq, misalignment);
          std::vector<std::unique_ptr<DeviceArray<float>>> ema;
          for (const std::vector<float>& average : host.ema) {
            ema.push_back(std::make_unique<DeviceArray<float>>(average, misalignment));
          }
          const DeviceArray<uint16_t> compute(host.compute, misalignment);
          const DeviceArray<float> base(host.base, misalignment);
          UpdateBuffers buffers;
          buffers.master = master.data();
          buffers.grad = grad.data();
          buffers.exp_avg = exp_avg.data();
          buffers.exp_avg_sq = exp_avg_sq.data();
          buffers.base = base.data();
          for (size_t k = 0; k < ema.size(); ++k) {
            buffers.ema[k] = ema[k]->data();
          }
          buffers.compute = type == DType::kF32 ? nullptr : compute.data();
          buffers.compute_type = type;

          update_weights(host.buffers(), host.parameters(GetParam()), start, 0, count);
          const DeviceTable table({{.buffers = buffers, .count = count}});
          ASSERT_EQ(cuda::update_weights(table.get(), host.parameters(GetParam()), control.get(),
                                         nullptr),
                    cudaSuccess);
          // Neither side fuses multiply-adds, and both round square roots and divisions correctly.
          EXPECT_TRUE(master.host() == host.master) << count;
          EXPECT_TRUE(exp_avg.host() == host.exp_avg) << count;
          EXPECT_TRUE(exp_avg_sq.host() == host.exp_avg_sq) << count;
          EXPECT_TRUE(base.host() == host.base) << count;
          EXPECT_TRUE(grad.host() == host.grad) << count;
          for (size_t k = 0; k < ema.size(); ++k) {
            EXPECT_TRUE(ema[k]->host() == host.ema[k]) << count << ", EMA " << k;
          }
          EXPECT_TRUE(compute.host() == host.compute) << count;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, GpuUpdateRuleTest,
                         testing::Values(UpdateRule::kAdamW, UpdateRule::kLion, UpdateRule::kSgd,
                                         UpdateRule::kMuon, UpdateRule::kProdigy,
                                         UpdateRule::kScheduleFree));

class GpuDirectionsTest : public GpuTest, public testing::WithParamInterface<UpdateRule> {};

TEST_P(GpuDirectionsTest, EqualTheCpuAtOddSizesAndAlignments) {
  for (const int64_t count : kSizes) {
    for (const size_t misalignment : {0, 1}) {
      for (const int32_t skip : {0, 1}) {
        OptimizerArrays host(count, 0, DType::kF32);
        StepControl start;
        start.multiplier = 0.3F;
        start.step_distance = 0.5;
        start.skip = skip;
        const DeviceControl control(start);
        const DeviceArray<float> grad(host.grad, misalignment);
        const DeviceArray<float> master(host.master, misalignment);
        const DeviceArray<float> exp_avg(host.exp_avg, misalignment);
        const DeviceArray<float> exp_avg_sq(host.exp_avg_sq, misalignment);
        const DeviceArray<float> base(host.base, misalignment);
        const DeviceArray<float> grad_sum(host.grad_sum, misalignment);
        UpdateBuffers buffers;
        buffers.master = master.data();
        buffers.grad = grad.data();
        buffers.exp_avg = exp_avg.data();
        buffers.exp_avg_sq = exp_avg_sq.data();
        buffers.base = base.data();
        buffers.grad_sum = grad_sum.data();
        buffers.lr_factor = 0.25;
        const UpdateParameters parameters = host.parameters(GetParam());
        UpdateBuffers on_host = host.buffers();
        on_host.lr_factor = buffers.lr_factor;
        make_directions(on_host, parameters, start, 0, count);
        const DeviceTable table({{.buffers = buffers, .count = count}});
        ASSERT_EQ(cuda::make_directions(table.get(), parameters, control.get(), nullptr),
                  cudaSuccess);
        EXPECT_TRUE(grad.host() == host.grad) << count;
        EXPECT_TRUE(exp_avg.host() == host.exp_avg) << count;
        EXPECT_TRUE(exp_avg_sq.host() == host.exp_avg_sq) << count;
        EXPECT_TRUE(grad_sum.host() == host.grad_sum) << count;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, GpuDirectionsTest,
                         testing::Values(UpdateRule::kMuon, UpdateRule::kLamb,
                                         UpdateRule::kProdigy));

TEST_F(GpuOptimizerTest, DistancesEqualTheCpus) {
  UpdatePolicy policy;
  policy.first_distance = 0.01;
  for (const double terms : {-1.0, 3.0}) {
    for (const int32_t skip : {0, 1}) {
      StepControl want;
      want.skip = skip;
      want.lr = 1.0;
      want.distance = want.step_distance = 0.02;
      want.distance_sum = 0.5;
      want.distance_terms = terms;
      want.grad_sum_norm = 4.0;
      const DeviceControl control(want);
      adapt_distance(&want, policy);
      ASSERT_EQ(cuda::adapt_distance(control.get(), policy, nullptr), cudaSuccess);
      EXPECT_NEAR(control.host().distance, want.distance, 1e-14);
      EXPECT_NEAR(control.host().distance_sum, want.distance_sum, 1e-14);
    }
  }
}

/// A bucket with moments in codes, or weights in bf16 alone, on the host and on the GPU.
class FormatsRun {
 public:
  FormatsRun(int64_t count, bool coded, bool has_master)
      : coded_(coded), has_master_(has_master), host_(count, 2, DType::kBF16) {
    for (std::vector<uint8_t>* codes : {&codes_[0], &codes_[1]}) {
      for (int64_t i = 0; i < count; ++i) {
        codes->push_back(static_cast<uint8_t>(i * 7 + i / 256));
      }
    }
    scales_[0].assign(static_cast<size_t>(count / kCodeBlock), 0.25F);
    scales_[1].assign(static_cast<size_t>(count / kCodeBlock), 0.01F);
    for (size_t i = 0; i < host_.compute.size(); ++i) {
      host_.compute[i] = float_to_bf16(host_.master[i]);
    }
    for (const std::vector<float>* values :
         {&host_.master, &host_.grad, &host_.exp_avg, &host_.exp_avg_sq, &host_.ema[0],
          &host_.ema[1], &scales_[0], &scales_[1], &host_.base}) {
      arrays_.push_back(std::make_unique<DeviceArray<float>>(*values));
    }
    for (const std::vector<uint8_t>& codes : codes_) {
      device_codes_.push_back(std::make_unique<DeviceArray<uint8_t>>(codes));
    }
    compute_ = std::make_unique<DeviceArray<uint16_t>>(host_.compute);
  }

  [[nodiscard]] UpdateBuffers on_host() {
    UpdateBuffers buffers = host_.buffers();
    buffers.coded_avg = {codes_[0].data(), scales_[0].data()};
    buffers.coded_avg_sq = {codes_[1].data(), scales_[1].data()};
    return chosen(buffers);
  }

  [[nodiscard]] UpdateBuffers on_device() const {
    UpdateBuffers buffers;
    buffers.master = arrays_[0]->data();
    buffers.grad = arrays_[1]->data();
    buffers.exp_avg = arrays_[2]->data();
    buffers.exp_avg_sq = arrays_[3]->data();
    buffers.ema[0] = arrays_[4]->data();
    buffers.ema[1] = arrays_[5]->data();
    buffers.compute = compute_->data();
    buffers.compute_type = DType::kBF16;
    buffers.base = arrays_[8]->data();
    buffers.coded_avg = {device_codes_[0]->data(), arrays_[6]->data()};
    buffers.coded_avg_sq = {device_codes_[1]->data(), arrays_[7]->data()};
    return chosen(buffers);
  }

  [[nodiscard]] UpdateParameters parameters(UpdateRule rule) const {
    UpdateParameters parameters = host_.parameters(rule);
    parameters.moments = coded_ ? MomentFormat::k8Bit : MomentFormat::kF32;
    parameters.masters = MasterFormat::kBF16;
    parameters.seed = 3;
    return parameters;
  }

  void expect_same() const {
    const std::vector<float>* values[] = {&host_.master,     &host_.grad,   &host_.exp_avg,
                                          &host_.exp_avg_sq, &host_.ema[0], &host_.ema[1],
                                          &scales_[0],       &scales_[1],   &host_.base};
    for (size_t i = 0; i < arrays_.size(); ++i) {
      EXPECT_TRUE(arrays_[i]->host() == *values[i]) << "array " << i;
    }
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(device_codes_[i]->host() == codes_[i]) << "codes " << i;
    }
    EXPECT_TRUE(compute_->host() == host_.compute);
  }

  [[nodiscard]] int64_t count() const { return static_cast<int64_t>(host_.master.size()); }

 private:
  [[nodiscard]] UpdateBuffers chosen(UpdateBuffers buffers) const {
    if (coded_) {
      buffers.exp_avg = buffers.exp_avg_sq = nullptr;
    } else {
      buffers.coded_avg = buffers.coded_avg_sq = {};
    }
    if (!has_master_) {
      buffers.master = nullptr;
    }
    buffers.rounding = 12345;
    buffers.place = 4 * 256;
    buffers.lr_factor = has_master_ ? 1.0 : 0.5;
    return buffers;
  }

  bool coded_;
  bool has_master_;
  OptimizerArrays host_;
  std::vector<uint8_t> codes_[2];
  std::vector<float> scales_[2];
  std::vector<std::unique_ptr<DeviceArray<float>>> arrays_;
  std::vector<std::unique_ptr<DeviceArray<uint8_t>>> device_codes_;
  std::unique_ptr<DeviceArray<uint16_t>> compute_;
};

TEST_P(GpuUpdateRuleTest, CodesAndStochasticRoundingEqualTheCpu) {
  const bool has_codes =
      GetParam() != UpdateRule::kProdigy && GetParam() != UpdateRule::kScheduleFree;
  for (const bool coded : {true, false}) {
    if (coded && !has_codes) {
      continue;  // a run refuses it
    }
    std::vector<std::unique_ptr<FormatsRun>> runs;
    std::vector<UpdateBucket> entries;
    for (const int64_t count : {256, 512, 12'288, 16'640, 1'000'192}) {
      for (const bool has_master : {true, false}) {
        runs.push_back(std::make_unique<FormatsRun>(count, coded, has_master));
        entries.push_back({.buffers = runs.back()->on_device(), .count = count});
      }
    }
    const DeviceTable table(entries);
    const UpdateParameters parameters = runs[0]->parameters(GetParam());
    for (int64_t step = 1; step < 4; ++step) {
      StepControl start;
      start.applied_steps = step;
      start.skip = step == 2 ? 1 : 0;
      start.multiplier = 0.5F;
      start.lr = 3e-3;
      start.bias_correction1 = 0.1;
      start.bias_correction2_sqrt = 0.03;
      start.distance = 0.02;
      start.step_distance = 0.01;
      start.share = 0.3;
      const DeviceControl control(start);
      for (const auto& run : runs) {
        update_weights(run->on_host(), parameters, start, 0, run->count());
      }
      ASSERT_EQ(cuda::update_weights(table.get(), parameters, control.get(), nullptr), cudaSuccess);
      for (const auto& run : runs) {
        run->expect_same();
      }
    }
  }
}

TEST_F(GpuOptimizerTest, ASkippedStepOnlyZerosTheGradient) {
  OptimizerArrays host(1001, 1, DType::kBF16);
  StepControl start;
  start.skip = 1;
  const DeviceControl control(start);
  const DeviceArray<float> master(host.master);
  const DeviceArray<float> grad(host.grad);
  const DeviceArray<float> exp_avg(host.exp_avg);
  const DeviceArray<float> exp_avg_sq(host.exp_avg_sq);
  const DeviceArray<float> ema(host.ema[0]);
  const DeviceArray<uint16_t> compute(host.compute);
  const UpdateBuffers buffers = {.master = master.data(),
                                 .grad = grad.data(),
                                 .exp_avg = exp_avg.data(),
                                 .exp_avg_sq = exp_avg_sq.data(),
                                 .ema = {ema.data()},
                                 .compute = compute.data(),
                                 .compute_type = DType::kBF16};
  const DeviceTable table({{.buffers = buffers, .count = 1001}});
  ASSERT_EQ(cuda::update_weights(table.get(), host.parameters(), control.get(), nullptr),
            cudaSuccess);
  EXPECT_EQ(grad.host(), std::vector<float>(1001, 0.0F));
  EXPECT_EQ(master.host(), host.master);
  EXPECT_EQ(exp_avg.host(), host.exp_avg);
  EXPECT_EQ(exp_avg_sq.host(), host.exp_avg_sq);
  EXPECT_EQ(ema.host(), host.ema[0]);
  EXPECT_EQ(compute.host(), host.compute);
}

/// Of many buckets in one launch; with squares: the sum of those of the gradients, by the same
/// pass.
void expect_updated_together(bool with_squares) {
  const int64_t counts[] = {4096, 3 * kBucketChunk, 12'288, 5, 600'000};
  std::vector<OptimizerArrays> host;
  std::vector<std::unique_ptr<DeviceArray<float>>> arrays;
  std::vector<std::unique_ptr<DeviceArray<uint16_t>>> copies;
  std::vector<UpdateBucket> entries;
  const auto on_device = [&](const std::vector<float>& values) {
    arrays.push_back(std::make_unique<DeviceArray<float>>(values));
    return arrays.back()->data();
  };
  for (const int64_t count : counts) {
    const OptimizerArrays& bucket = host.emplace_back(count, 1, DType::kBF16);
    UpdateBucket entry;
    entry.buffers.master = on_device(bucket.master);
    entry.buffers.grad = on_device(bucket.grad);
    entry.buffers.exp_avg = on_device(bucket.exp_avg);
    entry.buffers.exp_avg_sq = on_device(bucket.exp_avg_sq);
    entry.buffers.ema[0] = on_device(bucket.ema[0]);
    copies.push_back(std::make_unique<DeviceArray<uint16_t>>(bucket.compute));
    entry.buffers.compute = copies.back()->data();
    entry.buffers.compute_type = DType::kBF16;
    entry.count = count;
    entries.push_back(entry);
  }
  StepControl start;
  start.grad_sum_squares = 10.0;
  start.lr = 3e-3;
  prepare_update(&start, {});
  const DeviceControl control(start);
  const DeviceTable table(entries);
  if (with_squares) {
    const DeviceArray<double> workspace(
        std::vector<double>(static_cast<size_t>(table.get().num_chunks)));
    const DeviceControl apart(start);
    ASSERT_EQ(cuda::sum_squares(table.get(), workspace.data(), apart.get(), nullptr), cudaSuccess);
    ASSERT_EQ(cuda::update_and_add_squares(table.get(), host[0].parameters(), workspace.data(),
                                           control.get(), nullptr),
              cudaSuccess);
    EXPECT_GT(control.host().grad_sum_squares, 0.0);
    EXPECT_EQ(control.host().grad_sum_squares, apart.host().grad_sum_squares);
  } else {
    ASSERT_EQ(cuda::update_weights(table.get(), host[0].parameters(), control.get(), nullptr),
              cudaSuccess);
  }
  for (size_t i = 0; i < host.size(); ++i) {
    update_weights(host[i].buffers(), host[i].parameters(), start, 0, counts[i]);
    EXPECT_TRUE(arrays[5 * i]->host() == host[i].master) << i;
    EXPECT_TRUE(arrays[5 * i + 1]->host() == host[i].grad) << i;
    EXPECT_TRUE(arrays[5 * i + 4]->host() == host[i].ema[0]) << i;
    EXPECT_TRUE(copies[i]->host() == host[i].compute) << i;
  }
}

TEST_F(GpuOptimizerTest, ManyBucketsAreUpdatedInOneLaunch) {
  expect_updated_together(/*with_squares=*/false);
}

TEST_F(GpuOptimizerTest, UpdatesAddTheSquaresOfGradientsToTheBit) {
  expect_updated_together(/*with_squares=*/true);
}

TEST_F(GpuOptimizerTest, TheHostIsToldWithoutACopy) {
  StepExchange* exchange = nullptr;
  ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&exchange), sizeof(StepExchange),
                          cudaHostAllocDefault),
            cudaSuccess);
  *exchange = StepExchange{};
  const DeviceControl control({});
  const DeviceArray<float> loss(std::vector<float>{2.5F});
  for (int64_t step = 1; step <= kStepRing + 2; ++step) {
    exchange->lr[step % kStepRing] = 0.5 * static_cast<double>(step);
    ASSERT_EQ(cuda::prepare_update(control.get(), {}, exchange, nullptr), cudaSuccess);
    ASSERT_EQ(cuda::publish_report(control.get(), loss.data(), exchange, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const StepReport& report = exchange->reports[step % kStepRing];
    EXPECT_EQ(report.step, step);
    EXPECT_EQ(report.applied_steps, step);
    EXPECT_EQ(report.loss, 2.5F);
    EXPECT_EQ(control.host().lr, 0.5 * static_cast<double>(step));
  }
  cudaFreeHost(exchange);
}

TEST_F(GpuOptimizerTest, CastsEqualTheCpu) {
  std::vector<float> in;
  for (uint64_t bits = 0; bits < 0x100000000ULL; bits += 9'973) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    in.push_back(std::isnan(value) ? 1.0F : value);  // the bits of NaNs are free
  }
  const auto count = static_cast<int64_t>(in.size());
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const size_t misalignment : {0, 1}) {
      std::vector<uint16_t> expected(in.size());
      cast(in.data(), count, type, expected.data());
      const DeviceArray<float> device_in(in, misalignment);
      const DeviceArray<uint16_t> out(std::vector<uint16_t>(in.size()), misalignment);
      ASSERT_EQ(cuda::cast(device_in.data(), count, type, out.data(), nullptr), cudaSuccess);
      EXPECT_TRUE(out.host() == expected);
    }
  }
}

}  // namespace gpu_optimizer_test
}  // namespace kinora::kernels
