#include <cmath>

#include "kinora/kernels/cuda/qk_norm_rotary.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gpu_qk_norm_rotary_test {

using GpuQkNormRotaryTest = GpuTest;

struct Shape {
  int64_t rows;
  int64_t heads;
  int64_t head_dim;
};

// One pair, a part of a lane's pairs, DiT-XL's 72, the usual 64 and 128 with a row and with several
// rows in a warp, a whole warp a head, many rows.
constexpr Shape kShapes[] = {{1, 1, 2},     {3, 5, 6},    {257, 16, 72}, {19, 13, 64},
                             {33, 11, 128}, {65, 3, 128}, {17, 2, 256},  {9, 7, 40},
                             {2, 33, 10},   {8201, 2, 8}, {131, 4, 32},  {30, 6, 64}};

struct Case {
  RotaryPairs pairs = RotaryPairs::kInterleaved;
  bool normalise = true;
  bool turn = true;
  bool by_index = false;
  bool centres = false;  // the norm is LayerNorm
};

constexpr Case kCases[] = {{RotaryPairs::kInterleaved, true, true, false},
                           {RotaryPairs::kHalfSplit, true, true, true},
                           {RotaryPairs::kInterleaved, true, false, false},
                           {RotaryPairs::kInterleaved, true, true, false, true},
                           {RotaryPairs::kHalfSplit, true, false, false, true},
                           {RotaryPairs::kHalfSplit, false, true, false}};

constexpr int64_t kPositions = 11;

struct Results {
  std::vector<float> out, din, dq_weight, dk_weight, dq_bias, dk_bias;
};

/// Rows are packed q, k, v.
struct Inputs {
  Inputs(const Shape& shape, DType type)
      : shape(shape),
        type(type),
        stride(3 * shape.heads * shape.head_dim),
        rows(encode(random_values(shape.rows * stride, 1, 2.0F), type)),
        dout(encode(random_values(shape.rows * stride, 2), type)),
        q_weight(random_values(shape.head_dim, 3)),
        k_weight(random_values(shape.head_dim, 4)),
        q_bias(random_values(shape.head_dim, 6)),
        k_bias(random_values(shape.head_dim, 7)) {
    for (const float angle : random_values(kPositions * shape.head_dim / 2, 5, 3.0F)) {
      cosine.push_back(std::cos(angle));
      sine.push_back(std::sin(angle));
    }
    for (int64_t row = 0; row < shape.rows; ++row) {
      position.push_back(row * row % kPositions);
    }
  }

  [[nodiscard]] QkNormRotary rule(const Case& one) const {
    QkNormRotary rule;
    rule.rows = shape.rows;
    rule.heads = shape.heads;
    rule.head_dim = shape.head_dim;
    rule.type = type;
    rule.normalise = one.normalise;
    rule.epsilon = 1e-4F;
    rule.pairs = one.pairs;
    rule.num_positions = kPositions;
    return rule;
  }

  [[nodiscard]] Results on_cpu(const Case& one) const {
    std::vector<uint8_t> out = rows;
    std::vector<uint8_t> din = dout;
    Results results;
    results.dq_weight.assign(q_weight.size(), 1.0F);
    results.dk_weight.assign(q_weight.size(), 1.0F);
    results.dq_bias.assign(q_weight.size(), 1.0F);
    results.dk_bias.assign(q_weight.size(), 1.0F);
    QkNormRotary host = rule(one);
    host.q_weight = q_weight.data();
    host.k_weight = k_weight.data();
    host.q_bias = one.centres ? q_bias.data() : nullptr;
    host.k_bias = one.centres ? k_bias.data() : nullptr;
    host.cosine = one.turn ? cosine.data() : nullptr;
    host.sine = one.turn ? sine.data() : nullptr;
    host.position = one.by_index ? position.data() : nullptr;
    qk_norm_rotary_forward({host, rows.data(), stride, out.data(), stride});
    qk_norm_rotary_backward({.rule = host,
                             .dout = dout.data(),
                             .dout_stride = stride,
                             .in = rows.data(),
                             .in_stride = stride,
                             .din = din.data(),
                             .din_stride = stride,
                             .dq_weight = results.dq_weight.data(),
                             .dk_weight = results.dk_weight.data(),
                             .dq_bias = one.centres ? results.dq_bias.data() : nullptr,
                             .dk_bias = one.centres ? results.dk_bias.data() : nullptr});
    results.out = decode(out, type);
    results.din = decode(din, type);
    return results;
  }

  /// In place, or into rows of q and k alone; the results are of packed rows.
  [[nodiscard]] Results on_gpu(const Case& one, bool in_place, size_t offset) const {
    const size_t bytes = offset * size_of(type);
    const int64_t out_stride = in_place ? stride : stride / 3 * 2;
    const auto size = static_cast<size_t>(shape.rows * out_stride) * size_of(type);
    const DeviceArray<uint8_t> device_rows(rows, bytes);
    const DeviceArray<uint8_t> out(in_place ? rows : std::vector<uint8_t>(size), bytes);
    const DeviceArray<uint8_t> device_dout(dout, bytes);
    const DeviceArray<uint8_t> din(std::vector<uint8_t>(size), bytes);
    const DeviceArray<float> device_q_weight(q_weight, offset);
    const DeviceArray<float> device_k_weight(k_weight, offset);
    const DeviceArray<float> device_q_bias(q_bias, offset);
    const DeviceArray<float> device_k_bias(k_bias, offset);
    const DeviceArray<float> device_cosine(cosine, offset);
    const DeviceArray<float> device_sine(sine, offset);
    const DeviceArray<int64_t> device_position(position);
    const std::vector<float> ones(q_weight.size(), 1.0F);
    const DeviceArray<float> dq_weight(ones, offset);
    const DeviceArray<float> dk_weight(ones, offset);
    const DeviceArray<float> dq_bias(ones, offset);
    const DeviceArray<float> dk_bias(ones, offset);
    const DeviceArray<uint8_t> workspace(std::vector<uint8_t>(
        cuda::qk_norm_rotary_backward_workspace_bytes(shape.rows, shape.head_dim, true)));
    QkNormRotary device = rule(one);
    device.q_weight = device_q_weight.data();
    device.k_weight = device_k_weight.data();
    device.q_bias = one.centres ? device_q_bias.data() : nullptr;
    device.k_bias = one.centres ? device_k_bias.data() : nullptr;
    device.cosine = one.turn ? device_cosine.data() : nullptr;
    device.sine = one.turn ? device_sine.data() : nullptr;
    device.position = one.by_index ? device_position.data() : nullptr;
    EXPECT_EQ(cuda::qk_norm_rotary_forward({device, in_place ? out.data() : device_rows.data(),
                                            stride, out.data(), out_stride},
                                           nullptr),
              cudaSuccess);
    EXPECT_EQ(cuda::qk_norm_rotary_backward({.rule = device,
                                             .dout = device_dout.data(),
                                             .dout_stride = stride,
                                             .in = device_rows.data(),
                                             .in_stride = stride,
                                             .din = in_place ? device_dout.data() : din.data(),
                                             .din_stride = out_stride,
                                             .dq_weight = dq_weight.data(),
                                             .dk_weight = dk_weight.data(),
                                             .dq_bias = one.centres ? dq_bias.data() : nullptr,
                                             .dk_bias = one.centres ? dk_bias.data() : nullptr},
                                            workspace.data(), nullptr),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return {packed(decode(out.host(), type), decode(rows, type)),
            packed(decode((in_place ? device_dout : din).host(), type), decode(dout, type)),
            dq_weight.host(),
            dk_weight.host(),
            dq_bias.host(),
            dk_bias.host()};
  }

  /// Rows of q and k with the v of others behind them.
  [[nodiscard]] std::vector<float> packed(const std::vector<float>& compact,
                                          std::vector<float> others) const {
    if (compact.size() == others.size()) {
      return compact;
    }
    const int64_t used = stride / 3 * 2;
    for (int64_t row = 0; row < shape.rows; ++row) {
      std::copy_n(compact.begin() + row * used, used, others.begin() + row * stride);
    }
    return others;
  }

  Shape shape;
  DType type;
  int64_t stride;
  std::vector<uint8_t> rows, dout;
  std::vector<float> q_weight, k_weight, q_bias, k_bias, cosine, sine;
  std::vector<int64_t> position;
};

TEST_F(GpuQkNormRotaryTest, EqualsTheCpu) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape& shape : kShapes) {
      const Inputs inputs(shape, type);
      for (const Case& one : kCases) {
        const Results want = inputs.on_cpu(one);
        for (const bool in_place : {false, true}) {
          for (const size_t offset : {0, 1}) {
            SCOPED_TRACE(testing::Message()
                         << to_string(type) << " " << shape.rows << " x " << shape.heads << " x "
                         << shape.head_dim
                         << (one.pairs == RotaryPairs::kHalfSplit ? " half" : " interleaved")
                         << (one.centres ? ", LayerNorm" : (one.normalise ? ", norm" : ""))
                         << (one.turn ? ", rotary" : "") << (in_place ? ", in place" : "")
                         << ", offset " << offset);
            const Results got = inputs.on_gpu(one, in_place, offset);
            // fp32: both are differences of terms of about one.
            const double usual = type == DType::kF32 ? 1.0 : 1e-2;
            expect_close(got.out, want.out, type, usual, "out");
            expect_close(got.din, want.din, type, type == DType::kF32 ? 10.0 : 1e-1, "din");
            const double sums = 10.0 * std::sqrt(static_cast<double>(shape.rows * shape.heads));
            expect_close(got.dq_weight, want.dq_weight, DType::kF32, sums, "dq_weight");
            expect_close(got.dk_weight, want.dk_weight, DType::kF32, sums, "dk_weight");
            expect_close(got.dq_bias, want.dq_bias, DType::kF32, sums, "dq_bias");
            expect_close(got.dk_bias, want.dk_bias, DType::kF32, sums, "dk_bias");
          }
        }
      }
    }
  }
}

TEST_F(GpuQkNormRotaryTest, RowsOfSamplesComeAmongOthers) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const Shape& shape : {Shape{12, 3, 128}, Shape{15, 5, 72}, Shape{6, 2, 10}}) {
      const Inputs inputs(shape, type);
      const std::vector<float> cpu = inputs.on_cpu({}).out;
      // Samples of three rows, each with two rows of others behind it.
      const int64_t samples = shape.rows / 3;
      QkNormRotary rule = inputs.rule({});
      rule.copies_values = true;
      rule.rows_per_sample = 3;
      const DeviceArray<uint8_t> rows(inputs.rows);
      const auto bytes = static_cast<size_t>(samples * 5 * inputs.stride) * size_of(type);
      const DeviceArray<uint8_t> out((std::vector<uint8_t>(bytes)));
      const DeviceArray<uint8_t> back((std::vector<uint8_t>(inputs.rows.size())));
      const DeviceArray<float> q_weight(inputs.q_weight);
      const DeviceArray<float> k_weight(inputs.k_weight);
      const DeviceArray<float> cosine(inputs.cosine);
      const DeviceArray<float> sine(inputs.sine);
      rule.q_weight = q_weight.data();
      rule.k_weight = k_weight.data();
      rule.cosine = cosine.data();
      rule.sine = sine.data();
      ASSERT_EQ(cuda::qk_norm_rotary_forward({.rule = rule,
                                              .in = rows.data(),
                                              .in_stride = inputs.stride,
                                              .out = out.data(),
                                              .out_stride = inputs.stride,
                                              .out_sample_stride = 5 * inputs.stride},
                                             nullptr),
                cudaSuccess);
      // Backward of no rule at all takes them back to where they were.
      QkNormRotary none = rule;
      none.normalise = false;
      none.cosine = nullptr;
      ASSERT_EQ(cuda::qk_norm_rotary_backward({.rule = none,
                                               .dout = out.data(),
                                               .dout_stride = inputs.stride,
                                               .in = rows.data(),
                                               .in_stride = inputs.stride,
                                               .din = back.data(),
                                               .din_stride = inputs.stride,
                                               .dout_sample_stride = 5 * inputs.stride},
                                              nullptr, nullptr),
                cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      expect_close(decode(back.host(), type), cpu, type, type == DType::kF32 ? 1.0 : 1e-2,
                   "there and back");
      const std::vector<float> placed = decode(out.host(), type);
      for (int64_t row = 0; row < samples * 5; ++row) {
        const float first = placed[static_cast<size_t>(row * inputs.stride)];
        EXPECT_EQ(first == 0.0F, row % 5 >= 3) << row;
      }
    }
  }
}

TEST_F(GpuQkNormRotaryTest, WeightsMayHaveSixteenBits) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    Inputs inputs({33, 11, 128}, DType::kBF16);
    const std::vector<uint8_t> q_weight = encode(inputs.q_weight, type);
    const std::vector<uint8_t> k_weight = encode(inputs.k_weight, type);
    inputs.q_weight = decode(q_weight, type);
    inputs.k_weight = decode(k_weight, type);
    const std::vector<float> want = inputs.on_gpu({}, true, 0).out;
    const DeviceArray<uint8_t> rows(inputs.rows);
    const DeviceArray<uint8_t> device_q_weight(q_weight);
    const DeviceArray<uint8_t> device_k_weight(k_weight);
    const DeviceArray<float> cosine(inputs.cosine);
    const DeviceArray<float> sine(inputs.sine);
    QkNormRotary rule = inputs.rule({});
    rule.weight_type = type;
    rule.q_weight = device_q_weight.data();
    rule.k_weight = device_k_weight.data();
    rule.cosine = cosine.data();
    rule.sine = sine.data();
    ASSERT_EQ(cuda::qk_norm_rotary_forward(
                  {rule, rows.data(), inputs.stride, rows.data(), inputs.stride}, nullptr),
              cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(decode(rows.host(), DType::kBF16), want);
  }
}

TEST_F(GpuQkNormRotaryTest, TheSameBitsTwice) {
  const Inputs inputs({8201, 4, 72}, DType::kBF16);
  const Results first = inputs.on_gpu({}, false, 0);
  const Results second = inputs.on_gpu({}, false, 0);
  EXPECT_EQ(first.dq_weight, second.dq_weight);
  EXPECT_EQ(first.dk_weight, second.dk_weight);
  EXPECT_EQ(first.din, second.din);
}

TEST_F(GpuQkNormRotaryTest, NanStaysInItsHead) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    Inputs inputs({3, 4, 72}, type);
    std::vector<float> rows = decode(inputs.rows, type);
    rows[72 + 5] = NAN;                                         // of q, head 1
    rows[static_cast<size_t>(inputs.stride) + 360] = INFINITY;  // of k, head 1
    inputs.rows = encode(rows, type);
    const Results got = inputs.on_gpu({}, true, 0);
    for (size_t i = 0; i < got.out.size(); ++i) {
      const size_t head = i / 72;
      const bool may_be = head == 1 || (head == 12 + 5 && i % 72 < 2);
      EXPECT_EQ(std::isnan(got.out[i]), may_be) << i;
    }
    EXPECT_TRUE(std::isnan(got.dq_weight[7]));
    EXPECT_TRUE(std::isnan(got.dk_weight[0]));
    EXPECT_FALSE(std::isnan(got.dk_weight[7]));
  }
}

TEST_F(GpuQkNormRotaryTest, RefusesHeadsThatNoWarpHolds) {
  QkNormRotaryForward call;
  call.rule.rows = 1;
  call.rule.heads = 1;
  for (const int64_t head_dim : {7, 258}) {
    call.rule.head_dim = head_dim;
    EXPECT_EQ(cuda::qk_norm_rotary_forward(call, nullptr), cudaErrorInvalidValue);
  }
}

}  // namespace gpu_qk_norm_rotary_test
}  // namespace kinora::kernels
