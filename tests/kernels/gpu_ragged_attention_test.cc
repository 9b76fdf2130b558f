#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kinora/kernels/cuda/ragged_attention.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace gpu_ragged_attention_test {

using GpuRaggedAttentionTest = GpuTest;

constexpr int64_t kHeadDim = 64;

/// q, k and v as columns of one matrix, with room behind its rows.
struct Inputs {
  Inputs(const std::vector<int32_t>& lengths, int64_t heads, int64_t reach, DType type)
      : heads(heads), reach(reach), type(type), stride(3 * heads * kHeadDim + 8) {
    for (const int32_t length : lengths) {
      offsets.push_back(offsets.back() + length);
      longest = std::max<int64_t>(longest, length);
    }
    qkv = encode(random_values(offsets.back() * stride, 1), type);
    bias = random_values(heads * (2 * reach - 1), 2, 3.0F);
  }

  [[nodiscard]] int64_t columns() const { return heads * kHeadDim; }
  /// The result in the place of the queries.
  [[nodiscard]] RaggedAttention call(uint8_t* data, const int32_t* starts,
                                     const float* added) const {
    const int64_t bytes = columns() * static_cast<int64_t>(size_of(type));
    return {.texts = static_cast<int64_t>(offsets.size()) - 1,
            .heads = heads,
            .head_dim = kHeadDim,
            .longest = longest,
            .type = type,
            .scale = 0.25F,
            .offsets = starts,
            .q = data,
            .k = data + bytes,
            .v = data + 2 * bytes,
            .out = data,
            .q_stride = stride,
            .k_stride = stride,
            .v_stride = stride,
            .out_stride = stride,
            .bias = added,
            .reach = reach};
  }
  [[nodiscard]] std::vector<float> on_cpu(bool has_bias) const {
    std::vector<uint8_t> data = qkv;
    ragged_attention(call(data.data(), offsets.data(), has_bias ? bias.data() : nullptr));
    return decode(data, type);
  }
  [[nodiscard]] std::vector<float> on_gpu(bool has_bias) const {
    const DeviceArray<uint8_t> data(qkv);
    const DeviceArray<int32_t> starts(offsets);
    const DeviceArray<float> added(bias);
    EXPECT_EQ(cuda::ragged_attention(
                  call(data.data(), starts.data(), has_bias ? added.data() : nullptr), nullptr),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return decode(data.host(), type);
  }

  int64_t heads;
  int64_t reach;
  DType type;
  int64_t stride;
  int64_t longest = 0;
  std::vector<int32_t> offsets = {0};
  std::vector<uint8_t> qkv;
  std::vector<float> bias;
};

// Shorter and longer than steps of 32 keys, tiles of 64 and blocks of 128 queries; a text without
// tokens; a bias that reaches further than the texts.
TEST_F(GpuRaggedAttentionTest, EqualsTheCpu) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const auto& [lengths, reach] :
         {std::pair{std::vector<int32_t>{1, 5, 31, 0, 33, 64, 65}, 65},
          {std::vector<int32_t>{127, 2, 128, 129}, 200},
          {std::vector<int32_t>{300}, 300}}) {
      const Inputs inputs(lengths, 3, reach, type);
      for (const bool has_bias : {false, true}) {
        SCOPED_TRACE(testing::Message() << to_string(type) << " longest " << inputs.longest
                                        << (has_bias ? ", bias" : ""));
        // P is rounded to 16 bits before its product.
        expect_close(inputs.on_gpu(has_bias), inputs.on_cpu(has_bias), type, 2.0, "out");
      }
    }
  }
}

TEST_F(GpuRaggedAttentionTest, TakesTextsOfThousandsOfTokens) {
  const Inputs inputs({3, 2100}, 1, 4096, DType::kBF16);
  expect_close(inputs.on_gpu(true), inputs.on_cpu(true), DType::kBF16, 2.0, "out");
}

TEST_F(GpuRaggedAttentionTest, TheSameBitsTwice) {
  const Inputs inputs({77, 300, 12}, 4, 300, DType::kBF16);
  EXPECT_EQ(inputs.on_gpu(true), inputs.on_gpu(true));
}

TEST_F(GpuRaggedAttentionTest, NanStaysInItsText) {
  Inputs inputs({40, 70}, 1, 70, DType::kBF16);
  std::vector<float> values = decode(inputs.qkv, DType::kBF16);
  values[static_cast<size_t>(kHeadDim)] = std::numeric_limits<float>::quiet_NaN();  // first key
  inputs.qkv = encode(values, DType::kBF16);
  const std::vector<float> got = inputs.on_gpu(true);
  for (int64_t row = 0; row < 110; ++row) {
    EXPECT_EQ(std::isnan(got[static_cast<size_t>(row * inputs.stride)]), row < 40) << row;
  }
}

TEST_F(GpuRaggedAttentionTest, OtherCallsAreRefused) {
  Inputs inputs({4}, 1, 4, DType::kBF16);
  const DeviceArray<uint8_t> data(inputs.qkv);
  const DeviceArray<int32_t> starts(inputs.offsets);
  RaggedAttention call = inputs.call(data.data(), starts.data(), nullptr);
  call.head_dim = 72;
  EXPECT_EQ(cuda::ragged_attention(call, nullptr), cudaErrorNotSupported);
  call = inputs.call(data.data(), starts.data(), nullptr);
  call.k_stride = 65;
  EXPECT_EQ(cuda::ragged_attention(call, nullptr), cudaErrorInvalidValue);
}

}  // namespace gpu_ragged_attention_test
}  // namespace kinora::kernels
