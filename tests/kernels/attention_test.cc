#include "kinora/kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace attention_test {

/// All tensors of a call in fp32, heads contiguous in a row.
struct Problem {
  explicit Problem(const AttentionShape& s, int64_t key_rows = -1) : shape(s) {
    shape.type = DType::kF32;
    const int64_t width = shape.heads * shape.head_dim;
    const int64_t query_count = shape.batch * shape.query_length * width;
    const int64_t key_count = (key_rows < 0 ? shape.batch * shape.key_length : key_rows) * width;
    q = random_values(query_count, 1);
    k = random_values(key_count, 2);
    v = random_values(key_count, 3);
    dout = random_values(query_count, 4);
    out.assign(q.size(), 77.0F);
    dq.assign(q.size(), 77.0F);
    dk.assign(k.size(), 77.0F);
    dv.assign(v.size(), 77.0F);
    lse.assign(static_cast<size_t>(shape.batch * shape.heads * shape.query_length), 77.0F);
  }

  [[nodiscard]] HeadsView view(std::vector<float>& values, int64_t length) const {
    const int64_t width = shape.heads * shape.head_dim;
    return {values.data(), length * width, width, shape.head_dim};
  }
  void forward() {
    attention_forward({shape, view(q, shape.query_length), view(k, shape.key_length),
                       view(v, shape.key_length), view(out, shape.query_length), lse.data()});
  }
  void backward() {
    attention_backward({shape, view(q, shape.query_length), view(k, shape.key_length),
                        view(v, shape.key_length), view(out, shape.query_length),
                        view(dout, shape.query_length), lse.data(), view(dq, shape.query_length),
                        view(dk, shape.key_length), view(dv, shape.key_length)});
  }
  /// The number whose gradients backward() gives.
  double loss() {
    forward();
    double sum = 0.0;
    for (size_t i = 0; i < out.size(); ++i) {
      sum += static_cast<double>(out[i]) * static_cast<double>(dout[i]);
    }
    return sum;
  }

  AttentionShape shape;
  std::vector<float> q, k, v, dout, out, dq, dk, dv, lse;
};

AttentionShape shape_of(int64_t batch, int64_t heads, int64_t queries, int64_t keys,
                        int64_t head_dim) {
  return {batch, heads, queries, keys, head_dim, DType::kF32, 0.75F, nullptr};
}

template <typename Function>
std::vector<float> values_of(size_t count, const Function& function) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(function(static_cast<double>(i)));
  }
  return values;
}

TEST(AttentionTest, EqualsTorch) {
  // torch.nn.functional.scaled_dot_product_attention in float64, with autograd.
  const std::vector<float> out = {-0.3810016F, 0.4670583F, -0.5437668F, 0.6095919F,
                                  -0.4366035F, 0.4601182F, -0.4744236F, 0.4792334F,
                                  -0.2261706F, 0.2913751F, -0.3507478F, 0.4031002F,
                                  -0.6353143F, 0.6487178F, -0.6491373F, 0.6365643F};
  const std::vector<float> lse = {1.0609616F, 1.3317569F, 1.5594207F, 1.0800150F};
  const std::vector<float> dq = {0.1755551F,  -0.0671424F, -0.1196729F, 0.1667454F,
                                 -0.0062652F, 0.0523616F,  -0.0373150F, -0.0213045F,
                                 0.0456333F,  0.0139942F,  -0.0572806F, 0.0336801F,
                                 -0.0093411F, 0.0059803F,  0.0043637F,  -0.0096122F};
  const std::vector<float> dk = {0.1564620F,  0.0784074F,  -0.0717345F, -0.1559241F, 0.0529029F,
                                 0.0016050F,  -0.0511685F, -0.0568979F, -0.0784611F, -0.0679778F,
                                 0.0050040F,  0.0733851F,  -0.0233729F, -0.0076433F, 0.0151135F,
                                 0.0239750F,  -0.0780009F, -0.0104297F, 0.0667305F,  0.0825390F,
                                 -0.0295300F, 0.0060383F,  0.0360549F,  0.0329229F};
  const std::vector<float> dv = {0.6317512F,  0.6754720F,  0.4015077F,  -0.0612919F, -0.5722285F,
                                 -0.6787072F, -0.4659792F, -0.0340940F, 0.6745765F,  0.5831119F,
                                 0.2174006F,  -0.2505575F, -0.2861218F, -0.4482331F, -0.3995333F,
                                 -0.1629268F, 0.4692382F,  0.5061170F,  0.3049610F,  -0.0396229F,
                                 -0.6031607F, -0.7572380F, -0.5551745F, -0.0920037F};
  Problem problem(shape_of(1, 2, 2, 3, 4));
  problem.q = values_of(16, [](double i) { return std::sin(i + 1.0); });
  problem.k = values_of(24, [](double i) { return std::cos(2.0 * i); });
  problem.v = values_of(24, [](double i) { return std::sin(3.0 * i + 0.5); });
  problem.dout = values_of(16, [](double i) { return std::cos(0.7 * i); });
  problem.forward();
  problem.backward();
  expect_close(problem.out, out, DType::kF32, 1.0, "out");
  expect_close(problem.lse, lse, DType::kF32, 1.0, "lse");
  expect_close(problem.dq, dq, DType::kF32, 1.0, "dq");
  expect_close(problem.dk, dk, DType::kF32, 1.0, "dk");
  expect_close(problem.dv, dv, DType::kF32, 1.0, "dv");
}

TEST(AttentionTest, GradientsEqualFiniteDifferences) {
  Problem problem(shape_of(2, 2, 3, 5, 8));
  problem.forward();
  problem.backward();
  const struct {
    std::vector<float>* input;
    const std::vector<float>* gradient;
  } pairs[] = {{&problem.q, &problem.dq}, {&problem.k, &problem.dk}, {&problem.v, &problem.dv}};
  for (const auto& pair : pairs) {
    for (size_t i = 0; i < pair.input->size(); i += 3) {
      float& value = (*pair.input)[i];
      const float saved = value;
      value = saved + 0x1p-8F;
      const double above = problem.loss();
      const double width = static_cast<double>(value) - (static_cast<double>(saved) - 0x1p-8);
      value = saved - 0x1p-8F;
      const double below = problem.loss();
      value = saved;
      EXPECT_NEAR((above - below) / width, (*pair.gradient)[i], 5e-4) << i;
    }
  }
}

TEST(AttentionTest, OneKeyGivesItsValueAndNoGradientOfScores) {
  Problem problem(shape_of(1, 1, 3, 1, 8));
  problem.forward();
  problem.backward();
  for (size_t n = 0; n < 3; ++n) {
    for (size_t d = 0; d < 8; ++d) {
      EXPECT_EQ(problem.out[n * 8 + d], problem.v[d]);
      EXPECT_NEAR(problem.dq[n * 8 + d], 0.0, 1e-6);
    }
  }
  for (size_t d = 0; d < 8; ++d) {
    EXPECT_NEAR(problem.dv[d], problem.dout[d] + problem.dout[8 + d] + problem.dout[16 + d], 1e-6);
  }
}

TEST(AttentionTest, LargeScoresDoNotOverflow) {
  AttentionShape shape = shape_of(1, 1, 4, 6, 8);
  shape.scale = 1e4F;
  Problem problem(shape);
  problem.forward();
  problem.backward();
  for (const std::vector<float>* values : {&problem.out, &problem.lse, &problem.dq, &problem.dk}) {
    for (const float value : *values) {
      EXPECT_TRUE(std::isfinite(value));
    }
  }
}

TEST(AttentionTest, RaggedKeysEqualSeparateSamples) {
  const std::vector<int32_t> offsets = {1, 4, 4, 9};
  AttentionShape shape = shape_of(3, 2, 4, 5, 8);
  shape.key_offsets = offsets.data();
  Problem ragged(shape, 10);
  ragged.forward();
  ragged.backward();
  const size_t row = 16;
  for (size_t b = 0; b < 3; ++b) {
    const auto begin = static_cast<size_t>(offsets[b]);
    const auto end = static_cast<size_t>(offsets[b + 1]);
    if (begin == end) {
      for (size_t i = b * 4 * row; i < (b + 1) * 4 * row; ++i) {
        EXPECT_EQ(ragged.out[i], 0.0F);
        EXPECT_EQ(ragged.dq[i], 0.0F);
      }
      continue;
    }
    Problem one(shape_of(1, 2, 4, static_cast<int64_t>(end - begin), 8));
    const auto slice = [&](const std::vector<float>& values, size_t first, size_t last) {
      return std::vector<float>(values.begin() + static_cast<int64_t>(first * row),
                                values.begin() + static_cast<int64_t>(last * row));
    };
    one.q = slice(ragged.q, b * 4, b * 4 + 4);
    one.dout = slice(ragged.dout, b * 4, b * 4 + 4);
    one.k = slice(ragged.k, begin, end);
    one.v = slice(ragged.v, begin, end);
    one.forward();
    one.backward();
    EXPECT_EQ(slice(ragged.out, b * 4, b * 4 + 4), one.out);
    EXPECT_EQ(slice(ragged.dq, b * 4, b * 4 + 4), one.dq);
    EXPECT_EQ(slice(ragged.dk, begin, end), one.dk);
    EXPECT_EQ(slice(ragged.dv, begin, end), one.dv);
  }
  EXPECT_EQ(ragged.dk[0], 77.0F) << "no sample's row";
}

TEST(AttentionTest, PaddedKeysEqualRaggedOnes) {
  constexpr int64_t kKeys = 5;
  const std::vector<int32_t> lengths = {3, 0, 5};
  AttentionShape shape = shape_of(3, 2, 4, kKeys, 8);
  shape.key_lengths = lengths.data();
  Problem padded(shape);
  padded.forward();
  padded.backward();
  const size_t row = 16;
  std::vector<int32_t> offsets = {0};
  const auto packed = [&](const std::vector<float>& values) {
    std::vector<float> rows;
    for (size_t b = 0; b < lengths.size(); ++b) {
      const auto first = values.begin() + static_cast<int64_t>(b * kKeys * row);
      rows.insert(rows.end(), first, first + static_cast<int64_t>(lengths[b] * row));
    }
    return rows;
  };
  for (const int32_t length : lengths) {
    offsets.push_back(offsets.back() + length);
  }
  shape.key_lengths = nullptr;
  shape.key_offsets = offsets.data();
  Problem ragged(shape);
  ragged.q = padded.q;
  ragged.dout = padded.dout;
  ragged.k = packed(padded.k);
  ragged.v = packed(padded.v);
  ragged.dk = ragged.k;
  ragged.dv = ragged.v;
  ragged.forward();
  ragged.backward();
  EXPECT_EQ(padded.out, ragged.out);
  EXPECT_EQ(padded.dq, ragged.dq);
  EXPECT_EQ(packed(padded.dk), ragged.dk);
  EXPECT_EQ(packed(padded.dv), ragged.dv);
  EXPECT_EQ(padded.dk[3 * row], 77.0F) << "behind the first sample's keys";
}

TEST(AttentionTest, MasksOfBlocksEqualAttentionToTheirKeysAlone) {
  constexpr auto kRows = static_cast<int64_t>(BlockMask::kRows);
  constexpr int64_t kLength = 2 * kRows + 3;  // of queries and keys: three blocks
  const std::vector<int32_t> offsets = {0, 2, 3, 5};
  const std::vector<int32_t> blocks = {0, 2, 1, 0, 1};
  AttentionShape shape = shape_of(1, 1, kLength, kLength, 4);
  shape.mask = {offsets.data(), blocks.data()};
  Problem masked(shape);
  masked.forward();
  masked.backward();
  std::vector<double> dk(masked.dk.size());
  std::vector<double> dv(masked.dv.size());
  const auto rows_of = [](const std::vector<float>& values, int64_t begin, int64_t end) {
    return std::vector<float>(values.begin() + begin * 4, values.begin() + end * 4);
  };
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t begin = i * kRows;
    const int64_t end = std::min(begin + kRows, kLength);
    std::vector<int64_t> keys;
    for (int32_t k = offsets[static_cast<size_t>(i)]; k < offsets[static_cast<size_t>(i) + 1];
         ++k) {
      for (int64_t key = blocks[static_cast<size_t>(k)] * kRows;
           key < std::min((blocks[static_cast<size_t>(k)] + 1) * kRows, kLength); ++key) {
        keys.push_back(key);
      }
    }
    Problem alone(shape_of(1, 1, end - begin, static_cast<int64_t>(keys.size()), 4));
    alone.q = rows_of(masked.q, begin, end);
    alone.dout = rows_of(masked.dout, begin, end);
    for (size_t k = 0; k < keys.size() * 4; ++k) {
      const auto place = static_cast<size_t>(keys[k / 4]) * 4 + k % 4;
      alone.k[k] = masked.k[place];
      alone.v[k] = masked.v[place];
    }
    alone.forward();
    alone.backward();
    expect_close(rows_of(masked.out, begin, end), alone.out, DType::kF32, 1.0, "out");
    expect_close(rows_of(masked.dq, begin, end), alone.dq, DType::kF32, 1.0, "dq");
    for (size_t k = 0; k < keys.size() * 4; ++k) {
      const auto place = static_cast<size_t>(keys[k / 4]) * 4 + k % 4;
      dk[place] += static_cast<double>(alone.dk[k]);
      dv[place] += static_cast<double>(alone.dv[k]);
    }
  }
  expect_close(masked.dk, std::vector<float>(dk.begin(), dk.end()), DType::kF32, 1.0, "dk");
  expect_close(masked.dv, std::vector<float>(dv.begin(), dv.end()), DType::kF32, 1.0, "dv");
}

TEST(AttentionTest, StridesDoNotChangeResults) {
  Problem plain(shape_of(2, 2, 3, 3, 8));
  plain.forward();
  // [B, N, 3, H, D] with samples interleaved: row n of sample b is row 2 n + b.
  const int64_t width = 16;
  std::vector<float> packed(static_cast<size_t>(2 * 3 * 3 * width));
  std::vector<float> out(static_cast<size_t>(2 * 3 * width));
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t n = 0; n < 3; ++n) {
      for (int64_t c = 0; c < width; ++c) {
        const auto from = static_cast<size_t>((b * 3 + n) * width + c);
        const auto to = static_cast<size_t>((n * 2 + b) * 3 * width + c);
        packed[to] = plain.q[from];
        packed[to + 16] = plain.k[from];
        packed[to + 32] = plain.v[from];
      }
    }
  }
  const auto view = [&](int64_t part) {
    return HeadsView{packed.data() + part * width, 3 * width, 6 * width, 8};
  };
  attention_forward(
      {plain.shape, view(0), view(1), view(2), {out.data(), width, 2 * width, 8}, nullptr});
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t n = 0; n < 3; ++n) {
      for (int64_t c = 0; c < width; ++c) {
        EXPECT_EQ(out[static_cast<size_t>((n * 2 + b) * width + c)],
                  plain.out[static_cast<size_t>((b * 3 + n) * width + c)]);
      }
    }
  }
}

TEST(AttentionTest, SixteenBitTypesAreFp32RoundedAtTheEnd) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    Problem wide(shape_of(1, 2, 4, 6, 8));
    for (std::vector<float>* values : {&wide.q, &wide.k, &wide.v}) {
      *values = decode(encode(*values, type), type);
    }
    wide.forward();
    std::vector<uint8_t> q = encode(wide.q, type), k = encode(wide.k, type),
                         v = encode(wide.v, type), out(q.size());
    AttentionShape shape = wide.shape;
    shape.type = type;
    const auto view = [](std::vector<uint8_t>& bytes) { return HeadsView{bytes.data(), 0, 16, 8}; };
    attention_forward({shape, view(q), view(k), view(v), view(out), nullptr});
    EXPECT_EQ(decode(out, type), decode(encode(wide.out, type), type));
  }
}

TEST(AttentionTest, NotANumberSpreadsToItsRowOnly) {
  Problem problem(shape_of(1, 1, 3, 4, 8));
  problem.q[8] = std::numeric_limits<float>::quiet_NaN();
  problem.forward();
  problem.backward();
  for (size_t i = 0; i < 24; ++i) {
    EXPECT_EQ(std::isnan(problem.out[i]), i / 8 == 1);
    EXPECT_EQ(std::isnan(problem.dq[i]), i / 8 == 1);
  }
  EXPECT_TRUE(std::isnan(problem.dk[0]));
  EXPECT_TRUE(std::isnan(problem.dv[31]));
}

}  // namespace attention_test
}  // namespace kinora::kernels
