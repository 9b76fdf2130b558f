#include <cmath>
#include <limits>
#include <memory>

#include "kinora/kernels/cuda/modulated_norm.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gpu_modulated_norm_test {

using GpuModulatedNormTest = GpuTest;
using Bytes = std::vector<uint8_t>;
using Floats = std::vector<float>;

constexpr float kFp8Scale = 16.0F;

/// What a call looks like, forward and backward.
struct Case {
  int64_t rows;
  int64_t width;
  int64_t rows_per_vector;  // of even vectors
  DType type = DType::kBF16;
  int64_t odd_rows = 0;  // of odd vectors; 0: as many
  bool float_h = false;  // h and dh are fp32
  bool has_branch = true;
  bool has_dx_out = true;
  bool has_norm = true;  // else the residual alone
  bool centres = true;   // else it is an RMSNorm
  bool has_table = false;
  bool one_vector = false;  // stride 0
  bool in_place = false;    // x_out is x, dx is dx_out
  bool quantised = false;
  bool transposed = false;  // of the quantised copies
  size_t offset = 0;        // elements by which arrays are misaligned

  [[nodiscard]] VectorRows vector_rows() const {
    return {rows_per_vector, odd_rows > 0 ? odd_rows : rows_per_vector};
  }
  [[nodiscard]] int64_t vectors() const { return vector_rows().count(rows); }
  [[nodiscard]] DType h_type() const { return float_h ? DType::kF32 : type; }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << to_string(c.type) << " " << c.rows << " x " << c.width << ", " << c.rows_per_vector
             << " and " << c.vector_rows().odd << " rows a vector" << (c.float_h ? ", float h" : "")
             << (c.has_branch ? "" : ", no branch") << (c.has_dx_out ? "" : ", no dx_out")
             << (c.has_norm ? "" : ", no norm") << (c.centres ? "" : ", not centred")
             << (c.has_table ? ", table" : "") << (c.one_vector ? ", one vector" : "")
             << (c.in_place ? ", in place" : "") << (c.quantised ? ", quantised" : "")
             << (c.transposed ? ", transposed" : "") << ", offset " << c.offset;
}

/// The inputs, on the host. Vectors lie side by side, as modulation's linear gives them.
struct Inputs {
  Case c;
  Bytes x, branch, dh, dx_out;
  Floats vectors, table, mean, rstd;

  explicit Inputs(const Case& c)
      : c(c),
        x(encode(random_values(c.rows * c.width, 1, 2.0F), c.type)),
        branch(encode(random_values(c.rows * c.width, 2), c.type)),
        dh(encode(random_values(c.rows * c.width, 3), c.h_type())),
        dx_out(encode(random_values(c.rows * c.width, 4), c.type)),
        vectors(random_values(c.vectors() * 3 * c.width, 5)),
        table(random_values(c.width, 6)),
        mean(random_values(c.rows, 7, 0.1F)),
        rstd(static_cast<size_t>(c.rows)) {
    for (size_t i = 0; i < rstd.size(); ++i) {
      rstd[i] = 0.5F + 0.25F * static_cast<float>(i % 3);
    }
  }

  /// shift, scale, gate
  [[nodiscard]] VectorView view(const float* data, const float* table_data, int which) const {
    return {data + which * c.width, c.one_vector ? 0 : 3 * c.width,
            c.has_table ? table_data : nullptr};
  }
};

/// Outputs of both directions, decoded.
struct Outputs {
  Floats out, h, mean, rstd;          // forward: x_out, h
  Floats dx, dbranch, dvectors, sum;  // backward
  Floats quantised, transposed;
  float amax = 0.0F;
};

void fill(const Inputs& inputs, ResidualNormForward* call) {
  const Case& c = inputs.c;
  call->rows = c.rows;
  call->width = c.width;
  call->rows_of_vectors = c.vector_rows();
  call->type = c.type;
  call->h_type = c.h_type();
}

void fill(const Inputs& inputs, ResidualNormBackward* call) {
  const Case& c = inputs.c;
  call->rows = c.rows;
  call->width = c.width;
  call->rows_of_vectors = c.vector_rows();
  call->type = c.type;
  call->dh_type = c.h_type();
  call->dvector_stride = 3 * c.width;
}

/// Arrays of a call in one kind of memory: Array has data() and host().
template <template <typename> typename Array>
class Calls {
 public:
  explicit Calls(const Inputs& inputs)
      : inputs_(inputs),
        c_(inputs.c),
        x_(inputs.x, bytes(c_.type)),
        branch_(inputs.branch, bytes(c_.type)),
        dh_(inputs.dh, bytes(c_.h_type())),
        dx_out_(inputs.dx_out, bytes(c_.type)),
        out_(Bytes(inputs.x.size()), bytes(c_.type)),
        h_(Bytes(inputs.dh.size()), bytes(c_.h_type())),
        dbranch_(Bytes(inputs.x.size()), bytes(c_.type)),
        quantised_(Bytes(numel()), c_.offset),
        transposed_(Bytes(static_cast<size_t>(transposed_pitch(c_.rows) * c_.width), 1), c_.offset),
        vectors_(inputs.vectors, c_.offset),
        table_(inputs.table, c_.offset),
        mean_(inputs.mean, c_.offset),
        rstd_(inputs.rstd, c_.offset),
        dvectors_(Floats(inputs.vectors.size()), c_.offset),
        sum_(Floats(static_cast<size_t>(c_.vectors() * c_.width)), c_.offset),
        scale_({kFp8Scale}, 0),
        amax_({0.0F}, 0) {}

  template <typename Run>
  Outputs forward(const Run& run) {
    ResidualNormForward call;
    fill(inputs_, &call);
    call.x = x_.data();
    if (c_.has_branch) {
      call.branch = branch_.data();
      call.gate = inputs_.view(vectors_.data(), table_.data(), 2);
    }
    call.x_out = c_.in_place ? x_.data() : out_.data();
    call.has_norm = c_.has_norm;
    call.centres = c_.centres;
    call.h_fp8 = fp8();
    if (c_.has_norm) {
      call.shift = inputs_.view(vectors_.data(), table_.data(), 0);
      call.scale = inputs_.view(vectors_.data(), table_.data(), 1);
      call.h = h_.data();
      call.mean = mean_.data();
      call.rstd = rstd_.data();
    }
    run(call);
    Outputs outputs;
    outputs.out = decode((c_.in_place ? x_ : out_).host(), c_.type);
    outputs.h = decode(h_.host(), c_.h_type());
    outputs.mean = mean_.host();
    outputs.rstd = rstd_.host();
    read_fp8(&outputs);
    return outputs;
  }

  template <typename Run>
  Outputs backward(const Run& run) {
    ResidualNormBackward call;
    fill(inputs_, &call);
    call.dx_out = c_.has_dx_out ? dx_out_.data() : nullptr;
    call.dx = c_.in_place ? dx_out_.data() : out_.data();
    call.centres = c_.centres;
    if (c_.has_norm) {
      call.dh = dh_.data();
      call.x_out = x_.data();
      call.mean = mean_.data();
      call.rstd = rstd_.data();
      call.scale = inputs_.view(vectors_.data(), table_.data(), 1);
      call.dshift = dvectors_.data();
      call.dscale = dvectors_.data() + c_.width;
    }
    if (c_.has_branch) {
      call.branch = branch_.data();
      call.gate = inputs_.view(vectors_.data(), table_.data(), 2);
      call.dbranch = dbranch_.data();
      call.dbranch_fp8 = fp8();
      call.dgate = dvectors_.data() + 2 * c_.width;
      call.dbranch_sum = sum_.data();
    }
    run(call);
    Outputs outputs;
    outputs.dx = decode((c_.in_place ? dx_out_ : out_).host(), c_.type);
    outputs.dbranch = decode(dbranch_.host(), c_.type);
    outputs.dvectors = dvectors_.host();
    outputs.sum = sum_.host();
    read_fp8(&outputs);
    return outputs;
  }

 private:
  [[nodiscard]] size_t numel() const { return static_cast<size_t>(c_.rows * c_.width); }
  [[nodiscard]] size_t bytes(DType type) const { return c_.offset * size_of(type); }

  [[nodiscard]] Fp8Output fp8() {
    if (!c_.quantised) {
      return {};
    }
    return {DType::kF8E4M3, quantised_.data(), c_.transposed ? transposed_.data() : nullptr,
            scale_.data(), amax_.data()};
  }

  void read_fp8(Outputs* outputs) {
    outputs->quantised = decode(quantised_.host(), DType::kF8E4M3);
    outputs->transposed = decode(transposed_.host(), DType::kF8E4M3);
    outputs->amax = amax_.host()[0];
  }

  const Inputs& inputs_;
  Case c_;
  Array<uint8_t> x_, branch_, dh_, dx_out_, out_, h_, dbranch_, quantised_, transposed_;
  Array<float> vectors_, table_, mean_, rstd_, dvectors_, sum_, scale_, amax_;
};

/// DeviceArray's counterpart.
template <typename T>
class HostArray {
 public:
  HostArray(const std::vector<T>& values, size_t /*offset*/) : values_(values) {}
  [[nodiscard]] T* data() { return values_.data(); }
  [[nodiscard]] const std::vector<T>& host() const { return values_; }

 private:
  std::vector<T> values_;
};

Outputs forward_on_gpu(const Inputs& inputs) {
  return Calls<DeviceArray>(inputs).forward([](const ResidualNormForward& call) {
    EXPECT_EQ(cuda::residual_norm_forward(call, nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  });
}

Outputs backward_on_gpu(const Inputs& inputs) {
  return Calls<DeviceArray>(inputs).backward([](const ResidualNormBackward& call) {
    const size_t bytes = cuda::residual_norm_backward_workspace_bytes(call.rows, call.width);
    const DeviceArray<uint8_t> workspace(Bytes(bytes, 0xff));  // NaNs, where nobody writes
    EXPECT_EQ(cuda::residual_norm_backward(call, workspace.data(), nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  });
}

/// Roundings of the arithmetic in fp32, of values of order 1, beside those of the type.
double magnitude_of(DType type) {
  return type == DType::kF32 ? 4.0 : 0.1;
}

void expect_fp8(const Case& c, const Outputs& got, const Outputs& want) {
  if (c.quantised) {
    expect_close(got.quantised, want.quantised, DType::kF8E4M3, 0x1p-6, "8-bit copy");
    expect_close(got.transposed, want.transposed, DType::kF8E4M3, 0x1p-6, "transposed 8-bit copy");
    EXPECT_TRUE(is_close(got.amax, want.amax, DType::kF32)) << got.amax << ", " << want.amax;
  }
}

void expect_equal_to_cpu(const Case& c) {
  SCOPED_TRACE(testing::Message() << c);
  const Inputs inputs(c);
  const double magnitude = magnitude_of(c.type);
  {
    const Outputs want = Calls<HostArray>(inputs).forward(
        [](const ResidualNormForward& call) { residual_norm_forward(call); });
    const Outputs got = forward_on_gpu(inputs);
    expect_close(got.out, want.out, c.type, magnitude, "x_out");
    expect_close(got.h, want.h, c.h_type(), magnitude_of(c.h_type()), "h");
    expect_close(got.mean, want.mean, DType::kF32, 1.0, "mean");
    expect_close(got.rstd, want.rstd, DType::kF32, 1.0, "rstd");
    expect_fp8(c, got, want);
  }
  {
    const Outputs want = Calls<HostArray>(inputs).backward(
        [](const ResidualNormBackward& call) { residual_norm_backward(call); });
    const Outputs got = backward_on_gpu(inputs);
    const double sums = 10.0 + 4.0 * std::sqrt(static_cast<double>(c.rows_per_vector));
    expect_close(got.dx, want.dx, c.type, magnitude, "dx");
    expect_close(got.dbranch, want.dbranch, c.type, magnitude, "dbranch");
    expect_close(got.dvectors, want.dvectors, DType::kF32, sums, "dshift, dscale, dgate");
    expect_close(got.sum, want.sum, DType::kF32, sums, "dbranch_sum");
    expect_fp8(c, got, want);
  }
}

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

TEST_F(GpuModulatedNormTest, EqualsTheCpuAtManyWidths) {
  // One of each kind of kernel: chunks a lane, warps a row, and the one for any width.
  for (const DType type : kTypes) {
    for (const int64_t width : {1, 7, 8, 72, 384, 768, 1152, 1536, 2048, 3072, 4096, 8200, 1153}) {
      Case c = {13, width, 5, type};
      expect_equal_to_cpu(c);
      c.offset = 1;
      expect_equal_to_cpu(c);
    }
  }
}

TEST_F(GpuModulatedNormTest, EqualsTheCpuHoweverRowsShareVectors) {
  // Vectors of one row, of a few, across ranges of rows, one for all; batches of 1 and 257.
  for (const auto& [rows, rows_per_vector] : {std::pair<int64_t, int64_t>{1, 1},
                                              {257, 1},
                                              {2000, 3},
                                              {771, 3},
                                              {1200, 500},
                                              {1028, 4},
                                              {2048, 256},
                                              {512, 1000},
                                              {9001, 31}}) {
    for (const int64_t width : {72, 1152}) {
      expect_equal_to_cpu({rows, width, rows_per_vector});
    }
    expect_equal_to_cpu({rows, 77, rows_per_vector});  // the kernels for any width
  }
}

TEST_F(GpuModulatedNormTest, EqualsTheCpuWhereEachSampleHasTwoParts) {
  struct Parts {
    int64_t samples, first, second;
  };
  // Few rows, many samples, parts across ranges of rows, parts of whole tiles and of half ones.
  for (const auto& [samples, first, second] :
       {Parts{1, 5, 3}, {300, 2, 1}, {2, 1000, 226}, {3, 7, 900}, {2, 256, 64}, {2, 272, 48}}) {
    for (const int64_t width : {72, 1920, 77}) {
      Case c = {samples * (first + second), width, first};
      c.odd_rows = second;
      expect_equal_to_cpu(c);
      c.has_norm = false;
      expect_equal_to_cpu(c);
      if (width % 16 == 0) {
        c.has_norm = true;
        c.quantised = true;
        c.transposed = true;
        expect_equal_to_cpu(c);
      }
    }
  }
}

TEST_F(GpuModulatedNormTest, EqualsTheCpuWithoutOptionalArrays) {
  for (const DType type : kTypes) {
    for (const int64_t width : {1152, 77}) {
      for (const bool has_branch : {false, true}) {
        for (const bool has_dx_out : {false, true}) {
          for (const bool has_norm : {false, true}) {
            Case c = {150, width, 50, type};
            c.has_branch = has_branch;
            c.has_dx_out = has_dx_out;
            c.has_norm = has_norm;
            if (has_branch || has_dx_out || has_norm) {
              expect_equal_to_cpu(c);
            }
            c.centres = false;
            if (has_norm) {
              expect_equal_to_cpu(c);
            }
          }
        }
      }
      Case c = {150, width, 50, type};
      c.float_h = true;
      expect_equal_to_cpu(c);
      c.has_table = true;
      c.in_place = true;
      expect_equal_to_cpu(c);
      c.one_vector = true;
      expect_equal_to_cpu(c);
    }
  }
}

TEST_F(GpuModulatedNormTest, QuantisedCopiesEqualTheCpu) {
  for (const DType type : kTypes) {
    // Tiles in the kernel (the last one half full), a kernel of their own, wide rows, any width.
    for (const auto& [rows, width, rows_per_vector] :
         {std::tuple<int64_t, int64_t, int64_t>{16, 16, 16},
          {48, 1152, 48},
          {1056, 1152, 96},
          {240, 1152, 96},
          {96, 1152, 5},
          {64, 3072, 64},
          {32, 8208, 32},
          {2048, 384, 256},
          {8448, 144, 64},
          {1, 16, 1},
          {50, 1152, 50},
          {1057, 1152, 1057},
          {99, 3072, 33},
          {8457, 144, 8457}}) {
      Case c = {rows, width, rows_per_vector, type};
      c.quantised = true;
      c.transposed = true;
      expect_equal_to_cpu(c);
      c.centres = false;
      expect_equal_to_cpu(c);
      c.has_norm = false;
      expect_equal_to_cpu(c);
    }
    Case c = {13, 77, 5, type};  // without a transposed copy: any size and alignment
    c.quantised = true;
    expect_equal_to_cpu(c);
    c.width = 1152;
    c.offset = 1;
    expect_equal_to_cpu(c);
  }
}

TEST_F(GpuModulatedNormTest, TheSameBitsTwice) {
  for (const int64_t width : {1152, 1153}) {
    const Inputs inputs({2048, width, 300});
    const Outputs first = backward_on_gpu(inputs);
    const Outputs second = backward_on_gpu(inputs);
    EXPECT_EQ(first.dvectors, second.dvectors);
    EXPECT_EQ(first.sum, second.sum);
    EXPECT_EQ(first.dx, second.dx);
  }
}

TEST_F(GpuModulatedNormTest, NanAndInfinityPropagate) {
  for (const int64_t width : {1152, 1153}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Case c = {64, width, 32};
      c.quantised = true;
      Inputs inputs(c);
      const int64_t place = 40 * width + 100;
      store_element(inputs.x.data(), place, c.type, bad);
      store_element(inputs.dh.data(), place, c.type, bad);
      const auto row = static_cast<size_t>(40 * width);
      const Outputs forward = forward_on_gpu(inputs);
      EXPECT_TRUE(std::isnan(forward.h[row + 100]));
      EXPECT_TRUE(std::isnan(forward.h[row]));
      EXPECT_FALSE(std::isnan(forward.h[row - 1]));
      EXPECT_FALSE(std::isfinite(forward.mean[40]));
      EXPECT_FALSE(std::isfinite(forward.amax));
      const Outputs backward = backward_on_gpu(inputs);
      EXPECT_TRUE(std::isnan(backward.dx[row]));
      EXPECT_FALSE(std::isnan(backward.dx[row - 1]));
      const auto vector = static_cast<size_t>(3 * width);  // of row 40: the second
      EXPECT_FALSE(std::isfinite(backward.dvectors[vector + 100]));
      EXPECT_TRUE(std::isfinite(backward.dvectors[vector + 101]));
      EXPECT_TRUE(std::isfinite(backward.dvectors[100]));
      EXPECT_FALSE(std::isfinite(backward.amax));
    }
  }
}

TEST_F(GpuModulatedNormTest, ConditionsOfTheHeaderAreErrors) {
  const Inputs inputs({16, 24, 16});  // the width is no multiple of 16
  Calls<DeviceArray>(inputs).forward([](ResidualNormForward call) {
    call.h_fp8.data = call.h;
    call.h_fp8.transposed = call.h;
    EXPECT_EQ(cuda::residual_norm_forward(call, nullptr), cudaErrorInvalidValue);
  });
  Calls<DeviceArray>(inputs).backward([](ResidualNormBackward call) {
    call.branch = nullptr;
    EXPECT_EQ(cuda::residual_norm_backward(call, nullptr, nullptr), cudaErrorInvalidValue);
  });
}

}  // namespace gpu_modulated_norm_test
}  // namespace kinora::kernels
