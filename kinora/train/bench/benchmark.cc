#include "kinora/train/bench/benchmark.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <exception>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/seconds.h"
#include "kinora/device/device.h"
#include "kinora/device/gpu_trace.h"
#include "kinora/device/out_of_memory.h"
#include "kinora/ops/random.h"

namespace kinora::train {
namespace {

at::Tensor random_matrix(int64_t index, int64_t size, at::Device device) {
  return ops::random_normal({1, size, size}, at::arange(index, index + 1, at::kLong),
                            kBenchmarkSeed, 0, RandomPurpose::kTest, device)
      .squeeze(0);
}

/// TFLOP/s of `product`, a product of square matrices.
double product_tflops(int64_t size, at::Device device, const std::function<void()>& product) {
  const int64_t repeats = device.is_cuda() ? 50 : 10;
  product();
  const double seconds = median_call_seconds(device, repeats, [&](int64_t) { product(); });
  const double flops =
      2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
  return flops / seconds / 1e12;
}

double gemm_tflops(at::ScalarType type, at::Device device) {
  const int64_t size = device.is_cuda() ? 8192 : 512;
  const at::Tensor a = random_matrix(0, size, device).to(type);
  const at::Tensor b = random_matrix(1, size, device).to(type);
  at::Tensor out = at::empty({size, size}, a.options());
  return product_tflops(size, device, [&] { at::matmul_out(out, a, b); });
}

double fp8_gemm_tflops(at::Device device) {
  if (!device.is_cuda()) {
    return 0.0;
  }
  const CudaDevice info = cuda_device(device.index());
  if (info.major * 10 + info.minor < 89) {  // Ada is the first with 8-bit floats
    return 0.0;
  }
  constexpr int64_t kSize = 8192;
  const at::Tensor a = random_matrix(0, kSize, device).to(at::kFloat8_e4m3fn);
  const at::Tensor b = random_matrix(1, kSize, device).to(at::kFloat8_e4m3fn);
  const at::Tensor scale = at::ones({}, at::device(device).dtype(at::kFloat));
  return product_tflops(kSize, device, [&] {
    (void)at::_scaled_mm(a, b.t(), scale, scale, /*bias=*/{}, /*scale_result=*/{}, at::kBFloat16,
                         /*use_fast_accum=*/true);
  });
}

double copy_bytes_per_s(at::Device device) {
  const int64_t bytes = int64_t{1} << (device.is_cuda() ? 30 : 26);
  constexpr int64_t kRepeats = 20;
  const at::Tensor from = at::full({bytes}, 1, at::device(device).dtype(at::kByte));
  const at::Tensor to = at::full({bytes}, 2, at::device(device).dtype(at::kByte));
  const double seconds =
      median_call_seconds(device, kRepeats, [&](int64_t) { to.copy_(from, true); });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

}  // namespace

DeviceCeilings measure_ceilings(at::ScalarType type, at::Device device) {
  return {.gemm_tflops = gemm_tflops(type, device),
          .fp8_gemm_tflops = fp8_gemm_tflops(device),
          .copy_bytes_per_s = copy_bytes_per_s(device)};
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size()) / 2,
                   values.end());
  return values[values.size() / 2];
}

double median_call_seconds(at::Device device, int64_t calls,
                           const std::function<void(int64_t)>& enqueue) {
  const int64_t blocks = std::min<int64_t>(5, calls);
  std::vector<double> seconds;
  int64_t call = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t end = calls * (block + 1) / blocks;
    const auto in_block = static_cast<double>(end - call);
    device::synchronize(device);
    const double started = steady_seconds();
    for (; call < end; ++call) {
      enqueue(call);
    }
    device::synchronize(device);
    seconds.push_back((steady_seconds() - started) / in_block);
  }
  return median(std::move(seconds));
}

void check_can_trace(at::Device device) {
  KINORA_CHECK(device.is_cuda(), kConfig, "[bench] --profile traces a GPU, but this computes on ",
               device::describe(device));
}

device::GpuRecords trace_calls(at::Device device, int64_t calls,
                               const std::function<void(int64_t)>& enqueue) {
  check_can_trace(device);
  device::GpuTrace trace;
  trace.start();  // the first call under a trace pays for what CUPTI sets up
  enqueue(0);
  (void)trace.stop();
  trace.start();
  for (int64_t call = 0; call < calls; ++call) {
    enqueue(call);
  }
  return trace.stop();
}

void randomise_zeros(const std::vector<nn::NamedParameter>& parameters, optim::Arena& arena) {
  constexpr double kStd = 0.02;
  for (const nn::NamedParameter& named : parameters) {
    const nn::Parameter& parameter = *named.parameter;
    if (parameter.init.kind == nn::Init::Kind::kZero) {
      const at::Tensor values = at::empty(parameter.whole_shape(), at::kFloat);
      ops::random_fill(values,
                       {.seed = kBenchmarkSeed,
                        .sample = random_name(named.path.c_str()),
                        .step = 0,
                        .purpose = RandomPurpose::kTest},
                       kernels::Distribution::kNormal, kStd);
      arena.load_parameter(named.path, values);
    }
  }
}

bool caught_out_of_memory() {
  try {
    throw;
  } catch (const std::exception& error) {
    return device::out_of_memory_text(error).has_value();
  } catch (...) {
    return false;
  }
}

void start_memory_anew(at::Device device) {
  if (device.is_cuda()) {
    (void)at::empty({1}, at::device(device));  // the allocator exists from its first tensor on
    device::synchronize(device);
    at::accelerator::emptyCache();
    at::accelerator::resetPeakStats(device.index());
  }
}

}  // namespace kinora::train
