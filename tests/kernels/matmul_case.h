#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/kernels/cuda/matmul.h"
#include "kinora/kernels/elements.h"
#include "kinora/kernels/fp8.h"
#include "kinora/kernels/matmul_cache.h"
#include "tests/kernels/device_array.h"

/// What the tests of cuda::Matmul share: random operands, the product on the GPU, and its
/// comparison with sums in double.
namespace kinora::kernels::matmul_test {

/// Numbers of any floating-point type.
struct Array {
  Array(int64_t count, DType element_type)
      : type(element_type), bytes(static_cast<size_t>(count) * size_of(element_type)) {}

  [[nodiscard]] int64_t count() const { return static_cast<int64_t>(bytes.size() / size_of(type)); }
  [[nodiscard]] double at(int64_t i) const {
    return is_fp8(type) ? fp8_to_float(bytes[static_cast<size_t>(i)], type)
                        : load_element(bytes.data(), i, type);
  }
  void set(int64_t i, float value) {
    if (is_fp8(type)) {
      bytes[static_cast<size_t>(i)] = float_to_fp8(value, type);
    } else {
      store_element(bytes.data(), i, type, value);
    }
  }
  void fill(uint32_t seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count(); ++i) {
      set(i, normal(generator));
    }
  }

  DType type;
  std::vector<uint8_t> bytes;
};

inline double gelu_tanh(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

inline double gelu_tanh_grad(double x) {
  const double c = std::sqrt(2.0 / M_PI);
  const double t = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * 0.044715 * x * x);
}

/// One unit of rounding to the type, relative.
inline double rounding(DType type) {
  switch (type) {
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    case DType::kF8E4M3:
      return 0x1p-4;
    default:
      return 0x1p-24;
  }
}

/// Error of a sum of products, beside the sum of the products' magnitudes.
inline double summation(const MatmulProblem& problem) {
  if (is_fp8(problem.a_type)) {
    return problem.fast_accumulation ? 0x1p-9 : 0x1p-10;  // the tensor cores' own short sums
  }
  return 0x1p-18;
}

/// Of a_scale or b_scale: of a matrix [rows, width].
inline int64_t num_factors(Scaling scaling, int64_t rows, int64_t width) {
  return scaling == Scaling::kTensor ? 1
                                     : block_factors(rows, width, scaling == Scaling::kBlock128);
}

/// The factor of element (row, column) of a matrix [rows, width]. Written anew from cuBLAS's
/// documentation, not from what block_quantise() does.
inline double factor_at(const std::vector<float>& factors, Scaling scaling, int64_t rows,
                        int64_t width, int64_t row, int64_t column) {
  const int64_t block = column / 128;
  switch (scaling) {
    case Scaling::kTensor:
      return factors[0];
    case Scaling::kRow128:
      return factors[static_cast<size_t>(block * rows + row)];
    case Scaling::kBlock128: {
      const int64_t num_blocks = ceil_div(width, 128);
      return factors[static_cast<size_t>(row / 128 * round_up(num_blocks, 4) + block)];
    }
  }
  return 0.0;
}

/// What results of 8 bits are multiplied by.
inline constexpr float kDScale = 8.0F;

/// A product's arrays on the host, filled with random numbers, and what comes out.
class Case {
 public:
  explicit Case(const MatmulProblem& problem)
      : p_(normalised(problem)),
        a_(extent(p_.a_stride, p_.transpose_a ? p_.k : p_.m, p_.transpose_a ? p_.m : p_.k, p_.lda),
           p_.a_type),
        b_(extent(p_.b_stride, p_.transpose_b ? p_.n : p_.k, p_.transpose_b ? p_.k : p_.n, p_.ldb),
           p_.b_type),
        d_(extent(p_.d_stride, p_.m, p_.n, p_.ldd), p_.d_type),
        aux_(has_aux(p_.epilogue) ? p_.m * p_.n : 0, p_.aux_type),
        vector_(vector_size(p_), vector_type(p_)),
        a_factors_(static_cast<size_t>(num_factors(p_.a_scaling, p_.m, p_.k)), 1.0F),
        b_factors_(static_cast<size_t>(num_factors(p_.b_scaling, p_.n, p_.k)), 1.0F) {
    fill(p_.a_scaling, p_.m, 1, &a_, &a_factors_);
    fill(p_.b_scaling, p_.n, 2, &b_, &b_factors_);
    if (!is_fp8(p_.d_type)) {
      d_.fill(3);
    }
    aux_.fill(4);
    vector_.fill(5);
    if (is_fp8(p_.a_type) && p_.a_scaling == Scaling::kTensor) {
      a_factors_[0] = 0.5F;
      b_factors_[0] = 0.25F;
    }
    expand();
  }

  [[nodiscard]] Array& a() { return a_; }
  [[nodiscard]] const Array& result() const { return got_d_; }
  [[nodiscard]] const Array& aux_result() const { return got_aux_; }

  /// The product on the GPU, `misalignment` elements behind aligned addresses.
  void run(cuda::Matmul* matmul, cudaStream_t stream = nullptr, size_t misalignment = 0) {
    const Device device(*this, misalignment);
    matmul->run(p_, device.arguments(), stream);
    KINORA_CUDA_CHECK(cudaStreamSynchronize(stream));
    take(device);
  }

  /// The product in a captured graph, launched once.
  void run_captured(cuda::Matmul* matmul, cudaStream_t stream) {
    const Device device(*this, 0);
    KINORA_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    matmul->run(p_, device.arguments(), stream);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    KINORA_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    KINORA_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    KINORA_CUDA_CHECK(cudaGraphLaunch(executable, stream));
    KINORA_CUDA_CHECK(cudaStreamSynchronize(stream));
    KINORA_CUDA_CHECK(cudaGraphExecDestroy(executable));
    KINORA_CUDA_CHECK(cudaGraphDestroy(graph));
    take(device);
  }

  /// Compares what run() gave with sums in double.
  void check() const {
    const std::string name = describe(p_, MatmulAlignment{});
    int num_wrong = 0;
    const auto expect_near = [&](double got, double expected, double tolerance, const char* what,
                                 int64_t row, int64_t column) {
      if (!(std::abs(got - expected) <= tolerance) && ++num_wrong <= 3) {
        ADD_FAILURE() << name << ": " << what << '[' << row << ", " << column << "] = " << got
                      << ", expected " << expected << " +- " << tolerance;
      }
    };
    const double unit = rounding(p_.d_type);
    const double scale = is_fp8(p_.d_type) ? kDScale : 1.0;
    double largest = 0.0;
    double largest_tolerance = 0.0;
    std::vector<Sum> column_sums(static_cast<size_t>(p_.n));
    for (int64_t batch = 0; batch < p_.batch; ++batch) {
      for (int64_t i = 0; i < p_.m; ++i) {
        for (int64_t j = 0; j < p_.n; ++j) {
          double magnitude = 0.0;
          double value = product(batch, i, j, &magnitude);
          double tolerance = summation(p_) * magnitude;
          const int64_t at = batch * p_.d_stride + i * p_.ldd + j;
          if (p_.accumulate || (p_.epilogue != Epilogue::kNone && !is_fp8(p_.d_type))) {
            // Some of the library's algorithms round the product to D's type before they add D or
            // the bias, and again after each (seen on an H200 with fp16 and bf16).
            tolerance += 1.01 * unit * std::abs(value);
          }
          if (p_.accumulate) {
            value += d_.at(at);
            // Split products also round their parts to it: errors of up to 1.3 units were seen.
            tolerance += 1.01 * unit * (std::abs(value) + 2.0 * std::abs(d_.at(at))) +
                         (unit > 0x1p-20 ? 0.05 * unit * magnitude : 0.0);
          }
          const bool gelu =
              p_.epilogue == Epilogue::kBiasGelu || p_.epilogue == Epilogue::kBiasGeluAux;
          if (p_.epilogue == Epilogue::kBias || gelu) {
            if (p_.accumulate) {
              // Whether D or the bias is added, and the sum rounded, first, is the library's
              // choice.
              tolerance += 1.01 * unit * std::abs(value - d_.at(at) + vector_.at(j));
            }
            value += vector_.at(j);
          }
          if (p_.epilogue == Epilogue::kBiasGeluAux) {
            expect_near(got_aux_.at(i * p_.n + j), value,
                        tolerance + 1.01 * rounding(p_.aux_type) * std::abs(value), "aux", i, j);
          }
          if (gelu) {
            value = gelu_tanh(value);
            tolerance = 1.13 * tolerance + 2e-3;  // tanh by the GPU's own instruction
          }
          if (p_.epilogue == Epilogue::kGeluGrad || p_.epilogue == Epilogue::kGeluGradBias) {
            const double x = aux_.at(i * p_.n + j);
            tolerance = 1.13 * tolerance + 4e-3 * std::abs(value);
            value *= gelu_tanh_grad(x);
          }
          if (std::abs(value) > largest) {
            largest = std::abs(value);
            largest_tolerance = tolerance;
          }
          tolerance += 1.01 * unit * std::abs(value) + 1e-7;
          if (is_fp8(p_.d_type)) {
            tolerance += 0x1p-10 / scale;  // half of the smallest number
          }
          expect_near(got_d_.at(at) / scale, value, tolerance, "d", i, j);
          column_sums[static_cast<size_t>(j)].add(value, tolerance);
        }
      }
    }
    if (is_fp8(p_.d_type)) {
      expect_near(got_amax_, largest, largest_tolerance + 1e-6, "amax", 0, 0);
    }
    const auto expect_bias_grad = [&](int64_t i, const Sum& sum) {
      // The terms' errors are as often up as down.
      expect_near(got_vector_.at(i), sum.value,
                  summation(p_) * sum.magnitude + 4.0 * std::sqrt(sum.squared_tolerances) +
                      1.01 * rounding(vector_.type) * std::abs(sum.value),
                  "bias_grad", i, 0);
    };
    for (int64_t j = 0; p_.epilogue == Epilogue::kGeluGradBias && j < p_.n; ++j) {
      expect_bias_grad(j, column_sums[static_cast<size_t>(j)]);
    }
    for (int64_t i = 0; p_.epilogue == Epilogue::kBiasGrad && i < p_.m; ++i) {
      Sum sum;
      for (int64_t l = 0; l < p_.k; ++l) {
        sum.add(a_values_[static_cast<size_t>(i * p_.k + l)], 0.0);
      }
      expect_bias_grad(i, sum);
    }
    check_gaps(name);
  }

 private:
  /// Of a bias gradient.
  struct Sum {
    void add(double term, double tolerance) {
      value += term;
      magnitude += std::abs(term);
      squared_tolerances += tolerance * tolerance;
    }
    double value = 0.0;
    double magnitude = 0.0;
    double squared_tolerances = 0.0;
  };

  /// Copies of the arrays on the GPU.
  class Device {
   public:
    Device(const Case& c, size_t misalignment)
        : a(c.a_.bytes, misalignment * size_of(c.a_.type)),
          b(c.b_.bytes, misalignment * size_of(c.b_.type)),
          d(c.d_.bytes, misalignment * size_of(c.d_.type)),
          aux(c.aux_.bytes),
          vector(c.vector_.bytes),
          a_factors(c.a_factors_),
          // One factor may lie in an array of them, on 16 bytes.
          b_factors(c.b_factors_, c.p_.b_scaling == Scaling::kTensor ? 4 : 0),
          d_scale(std::vector<float>{kDScale}),
          d_amax(std::vector<float>{0.0F}),
          is_fp8_(is_fp8(c.p_.a_type)),
          epilogue_(c.p_.epilogue) {}

    [[nodiscard]] MatmulArguments arguments() const {
      MatmulArguments arguments{.a = a.data(), .b = b.data(), .d = d.data()};
      switch (epilogue_) {
        case Epilogue::kNone:
          break;
        case Epilogue::kBiasGeluAux:
          arguments.aux = aux.data();
          [[fallthrough]];
        case Epilogue::kBiasGelu:
        case Epilogue::kBias:
          arguments.bias = vector.data();
          break;
        case Epilogue::kGeluGrad:
          arguments.aux = aux.data();
          break;
        case Epilogue::kGeluGradBias:
          arguments.aux = aux.data();
          [[fallthrough]];
        case Epilogue::kBiasGrad:
          arguments.bias_grad = vector.data();
          break;
      }
      if (is_fp8_) {
        arguments.a_scale = a_factors.data();
        arguments.b_scale = b_factors.data();
        arguments.d_scale = d_scale.data();
        arguments.d_amax = d_amax.data();
      }
      return arguments;
    }

    DeviceArray<uint8_t> a, b, d, aux, vector;
    DeviceArray<float> a_factors, b_factors, d_scale, d_amax;

   private:
    bool is_fp8_;
    Epilogue epilogue_;
  };

  [[nodiscard]] int64_t extent(int64_t stride, int64_t rows, int64_t columns, int64_t ld) const {
    return (p_.batch - 1) * stride + (rows - 1) * ld + columns;
  }
  /// Random numbers; where blocks have factors, of magnitudes that differ from block to block, so
  /// that no factor can stand for another.
  void fill(Scaling scaling, int64_t rows, uint32_t seed, Array* array,
            std::vector<float>* factors) const {
    if (scaling == Scaling::kTensor) {
      array->fill(seed);
      return;
    }
    Array source(rows * p_.k, DType::kF32);
    source.fill(seed);
    const int64_t block_rows = scaling == Scaling::kBlock128 ? 128 : 1;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < p_.k; ++column) {
        const int64_t block = row / block_rows * 5 + column / 128 * 3;
        const int64_t i = row * p_.k + column;
        source.set(i, std::ldexp(static_cast<float>(source.at(i)), static_cast<int>(block % 7)));
      }
    }
    block_quantise({.rows = rows,
                    .width = p_.k,
                    .type = DType::kF32,
                    .in = source.bytes.data(),
                    .is_square = scaling == Scaling::kBlock128,
                    .out_type = array->type,
                    .data = array->bytes.data(),
                    .factors = factors->data()});
  }
  /// The values that are multiplied: op(A)[m, k] and op(B)^T[n, k], of each product.
  void expand() {
    for (int64_t batch = 0; batch < p_.batch; ++batch) {
      for (int64_t i = 0; i < p_.m; ++i) {
        for (int64_t l = 0; l < p_.k; ++l) {
          const int64_t at = p_.transpose_a ? l * p_.lda + i : i * p_.lda + l;
          a_values_.push_back(factor_at(a_factors_, p_.a_scaling, p_.m, p_.k, i, l) *
                              a_.at(batch * p_.a_stride + at));
        }
      }
      for (int64_t j = 0; j < p_.n; ++j) {
        for (int64_t l = 0; l < p_.k; ++l) {
          const int64_t at = p_.transpose_b ? j * p_.ldb + l : l * p_.ldb + j;
          b_values_.push_back(factor_at(b_factors_, p_.b_scaling, p_.n, p_.k, j, l) *
                              b_.at(batch * p_.b_stride + at));
        }
      }
    }
  }
  double product(int64_t batch, int64_t i, int64_t j, double* magnitude) const {
    const double* const a = a_values_.data() + (batch * p_.m + i) * p_.k;
    const double* const b = b_values_.data() + (batch * p_.n + j) * p_.k;
    double sum = 0.0;
    for (int64_t l = 0; l < p_.k; ++l) {
      const double term = a[l] * b[l];
      sum += term;
      *magnitude += std::abs(term);
    }
    return sum;
  }
  void take(const Device& device) {
    got_d_ = d_;
    got_aux_ = aux_;
    got_vector_ = vector_;
    got_d_.bytes = device.d.host();
    got_aux_.bytes = device.aux.host();
    got_vector_.bytes = device.vector.host();
    got_amax_ = device.d_amax.host().front();
  }
  /// Between the rows nothing is written.
  void check_gaps(const std::string& name) const {
    std::vector<bool> is_output(static_cast<size_t>(d_.count()));
    for (int64_t batch = 0; batch < p_.batch; ++batch) {
      for (int64_t i = 0; i < p_.m; ++i) {
        for (int64_t j = 0; j < p_.n; ++j) {
          is_output[static_cast<size_t>(batch * p_.d_stride + i * p_.ldd + j)] = true;
        }
      }
    }
    for (int64_t i = 0; i < d_.count(); ++i) {
      if (!is_output[static_cast<size_t>(i)]) {
        ASSERT_EQ(got_d_.at(i), d_.at(i)) << name << ": written between rows, at " << i;
      }
    }
  }

  MatmulProblem p_;
  Array a_, b_, d_, aux_, vector_;
  std::vector<float> a_factors_, b_factors_;
  std::vector<double> a_values_, b_values_;
  Array got_d_{0, DType::kF32}, got_aux_{0, DType::kF32}, got_vector_{0, DType::kF32};
  float got_amax_ = 0.0F;
};

/// Matmul needs no kernels of our own, so these tests also run without nvcc.
class GpuMatmulTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_available()) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable_reason();
    }
    const CudaDevice device = cuda_device(0);
    capability_ = 10 * device.major + device.minor;
    KINORA_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override {
    if (stream_ != nullptr) {
      cudaStreamDestroy(stream_);
    }
    std::filesystem::remove(cache_file());
  }
  static std::string cache_file() {
    return (std::filesystem::temp_directory_path() /
            ("kinora_gpu_matmul_" + std::to_string(getpid()) + ".txt"))
        .string();
  }
  /// Computes and compares; false where the library lacks the product.
  static bool run_and_check(cuda::Matmul* matmul, const MatmulProblem& problem) {
    if (!matmul->supports(problem)) {
      return false;
    }
    Case c(problem);
    c.run(matmul);
    c.check();
    return true;
  }
  /// The same, but also false where the library proposes a product with a bias gradient and then
  /// refuses to run it.
  static bool run_or_refuse(cuda::Matmul* matmul, const MatmulProblem& problem) {
    try {
      return run_and_check(matmul, problem);
    } catch (const Error& error) {
      if (!has_bias_grad(problem.epilogue) || matmul->supports(problem)) {
        throw;
      }
      std::printf("proposed, but refused: %s\n", error.what());
      return false;
    }
  }
  [[nodiscard]] bool has_bf16() const { return capability_ >= 80; }
  [[nodiscard]] bool has_fp8() const { return capability_ >= 89; }

  cudaStream_t stream_ = nullptr;
  int capability_ = 0;
};

struct Types {
  DType in;
  DType out;
};
inline constexpr Types kTypes[] = {{DType::kF32, DType::kF32},
                                   {DType::kF16, DType::kF16},
                                   {DType::kF16, DType::kF32},
                                   {DType::kBF16, DType::kBF16},
                                   {DType::kBF16, DType::kF32}};
inline constexpr Epilogue kEpilogues[] = {
    Epilogue::kNone,     Epilogue::kBias,         Epilogue::kBiasGelu, Epilogue::kBiasGeluAux,
    Epilogue::kGeluGrad, Epilogue::kGeluGradBias, Epilogue::kBiasGrad};
struct Sizes {
  int64_t m, n, k;
};

}  // namespace kinora::kernels::matmul_test
