#include "kinora/kernels/qk_norm_rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numeric>

#include "tests/kernels/typed_values.h"

namespace kinora::kernels {
namespace qk_norm_rotary_test {

TEST(QkNormRotaryTest, EqualsTorchAndComplexNumbers) {
  // torch.nn.functional.rms_norm(x, (4,), weight, 1e-3), then (a + i b) * exp(i angle) in numpy,
  // both in float64. Two rows of one head.
  const double interleaved[] = {
      0.5245094080651362, -0.35580698788430365, -0.6428209346753501, 3.226967842419163,
      1.1771673291347575, 0.6719221267230775,   1.6556351077297577,  0.6364599509341888,
      0.2623737841138103, -0.8338408327835891,  1.012953715016651,   -2.5490530785280394,
      0.5648549371621471, 1.3802733947543129,   -1.4810717616627838, 0.1750490819974397};
  const double half_split[] = {
      1.31430490555998,   0.5694419370598165, -2.9090011204554185, 0.8451626580535099,
      1.2097523098603884, 1.7056500323971986, 0.5665837424672631,  0.5381926446872707,
      1.149684182627566,  1.759301836080491,  -0.4277565258413331, -1.9204127283755152,
      0.5030217148837499, -1.533081869223908, 1.3519749534681655,  0.1312415727320697};
  const float v = 9.0F;  // stays
  std::vector<float> rows = {0.5F,  -1.25F, 2.0F, 0.75F, 3.0F,  -0.5F, 0.25F,  1.5F, v, v, v, v,
                             -1.0F, 0.25F,  0.5F, -2.0F, 1.25F, 1.0F,  -0.75F, 0.5F, v, v, v, v};
  const std::vector<float> q_weight = {1.0F, 0.5F, -2.0F, 1.5F};
  const std::vector<float> k_weight = {0.75F, -1.0F, 1.25F, 2.0F};
  std::vector<float> cosine;
  std::vector<float> sine;
  for (const double angle : {2.0, 0.7, 0.3, -1.1}) {  // positions 1, 0
    cosine.push_back(static_cast<float>(std::cos(angle)));
    sine.push_back(static_cast<float>(std::sin(angle)));
  }
  const std::vector<int64_t> position = {1, 0};
  QkNormRotaryForward call;
  call.rule.rows = 2;
  call.rule.heads = 1;
  call.rule.head_dim = 4;
  call.rule.type = DType::kF32;
  call.rule.epsilon = 1e-3F;
  call.rule.q_weight = q_weight.data();
  call.rule.k_weight = k_weight.data();
  call.rule.cosine = cosine.data();
  call.rule.sine = sine.data();
  call.rule.num_positions = 2;
  call.rule.position = position.data();
  call.in = rows.data();
  call.in_stride = 12;
  std::vector<float> compact(16);
  call.out = compact.data();
  call.out_stride = 8;
  qk_norm_rotary_forward(call);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_NEAR(compact[i], interleaved[i], 1e-6);
  }
  // They are exact in 16 bits.
  const std::vector<uint8_t> q_weight16 = encode(q_weight, DType::kBF16);
  const std::vector<uint8_t> k_weight16 = encode(k_weight, DType::kBF16);
  call.rule.weight_type = DType::kBF16;
  call.rule.q_weight = q_weight16.data();
  call.rule.k_weight = k_weight16.data();
  const std::vector<float> of_fp32 = compact;
  qk_norm_rotary_forward(call);
  EXPECT_EQ(compact, of_fp32);
  call.rule.pairs = RotaryPairs::kHalfSplit;
  call.out = rows.data();
  call.out_stride = 12;
  qk_norm_rotary_forward(call);
  for (size_t i = 0; i < 24; ++i) {
    EXPECT_NEAR(rows[i], i % 12 < 8 ? half_split[i / 12 * 8 + i % 12] : v, 1e-6);
  }
}

/// Arguments of a small case: three rows of two heads of six, v behind them.
struct Example {
  static constexpr int64_t kRows = 3;
  static constexpr int64_t kHeads = 2;
  static constexpr int64_t kDim = 6;
  static constexpr int64_t kStride = 3 * kHeads * kDim;

  std::vector<float> rows = random_values(kRows * kStride, 1);
  std::vector<float> dout = random_values(kRows * kStride, 2);
  std::vector<float> q_weight = random_values(kDim, 3);
  std::vector<float> k_weight = random_values(kDim, 4);
  std::vector<float> q_bias = random_values(kDim, 6);
  std::vector<float> k_bias = random_values(kDim, 7);
  std::vector<float> angles = random_values(2 * kDim / 2, 5);
  std::vector<float> cosine, sine;

  Example() {
    for (const float angle : angles) {
      cosine.push_back(std::cos(angle));
      sine.push_back(std::sin(angle));
    }
  }

  [[nodiscard]] QkNormRotary rule(RotaryPairs pairs, bool normalise, bool turn,
                                  bool centres = false) const {
    QkNormRotary rule;
    rule.rows = kRows;
    rule.heads = kHeads;
    rule.head_dim = kDim;
    rule.type = DType::kF32;
    rule.normalise = normalise;
    rule.q_weight = q_weight.data();
    rule.k_weight = k_weight.data();
    rule.q_bias = centres ? q_bias.data() : nullptr;
    rule.k_bias = centres ? k_bias.data() : nullptr;
    rule.pairs = pairs;
    rule.cosine = turn ? cosine.data() : nullptr;
    rule.sine = turn ? sine.data() : nullptr;
    rule.num_positions = 2;  // of row % 2
    return rule;
  }

  /// Of queries and keys, then the biases of either.
  [[nodiscard]] std::vector<double> weights() const {
    std::vector<double> all;
    for (const std::vector<float>* some : {&q_weight, &k_weight, &q_bias, &k_bias}) {
      all.insert(all.end(), some->begin(), some->end());
    }
    return all;
  }

  /// Sum of dout * y over q and k in double, by complex numbers. weights: as weights() has them.
  [[nodiscard]] double loss(const QkNormRotary& rule, const std::vector<double>& x,
                            const std::vector<double>& weights) const {
    double sum = 0.0;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t h = 0; h < 2 * kHeads; ++h) {
        const auto first = static_cast<size_t>(row * kStride + h * kDim);
        const size_t weight = h < kHeads ? 0 : kDim;
        const auto begin = x.begin() + static_cast<int64_t>(first);
        const bool centres = rule.q_bias != nullptr;
        const double mean = centres ? std::accumulate(begin, begin + kDim, 0.0) / kDim : 0.0;
        double squares = 0.0;
        for (size_t d = 0; d < kDim; ++d) {
          squares += (x[first + d] - mean) * (x[first + d] - mean);
        }
        const double rstd = 1.0 / std::sqrt(squares / kDim + static_cast<double>(rule.epsilon));
        const auto normed = [&](size_t d) {
          const double bias = centres ? weights[2 * kDim + weight + d] : 0.0;
          return (x[first + d] - mean) * rstd * weights[weight + d] + bias;
        };
        for (size_t i = 0; i < kDim / 2; ++i) {
          const bool interleaved = rule.pairs == RotaryPairs::kInterleaved;
          const size_t a = interleaved ? 2 * i : i;
          const size_t b = interleaved ? 2 * i + 1 : i + kDim / 2;
          std::complex<double> z(x[first + a], x[first + b]);
          if (rule.normalise) {
            z = {normed(a), normed(b)};
          }
          if (rule.cosine != nullptr) {
            const size_t place = static_cast<size_t>(row % 2) * (kDim / 2) + i;
            z *= std::complex<double>(cosine[place], sine[place]);
          }
          sum += dout[first + a] * z.real() + dout[first + b] * z.imag();
        }
      }
    }
    return sum;
  }
};

TEST(QkNormRotaryTest, GradientsEqualFiniteDifferences) {
  const Example example;
  const std::vector<double> x(example.rows.begin(), example.rows.end());
  const std::vector<double> weights = example.weights();
  struct Norm {
    bool normalise;
    bool centres;
  };
  for (const RotaryPairs pairs : {RotaryPairs::kInterleaved, RotaryPairs::kHalfSplit}) {
    for (const auto& [normalise, centres] : {Norm{false, false}, {true, false}, {true, true}}) {
      for (const bool turn : {false, true}) {
        const QkNormRotary rule = example.rule(pairs, normalise, turn, centres);
        std::vector<float> din = example.dout;  // in place
        std::vector<float> dq_weight(Example::kDim);
        std::vector<float> dk_weight(Example::kDim);
        std::vector<float> dq_bias(Example::kDim);
        std::vector<float> dk_bias(Example::kDim);
        qk_norm_rotary_backward({.rule = rule,
                                 .dout = din.data(),
                                 .dout_stride = Example::kStride,
                                 .in = example.rows.data(),
                                 .in_stride = Example::kStride,
                                 .din = din.data(),
                                 .din_stride = Example::kStride,
                                 .dq_weight = dq_weight.data(),
                                 .dk_weight = dk_weight.data(),
                                 .dq_bias = centres ? dq_bias.data() : nullptr,
                                 .dk_bias = centres ? dk_bias.data() : nullptr});
        constexpr double kStep = 1e-6;
        for (size_t i = 0; i < x.size(); ++i) {
          if (static_cast<int64_t>(i) % Example::kStride >= 2 * Example::kHeads * Example::kDim) {
            EXPECT_EQ(din[i], example.dout[i]) << "v";
            continue;
          }
          std::vector<double> above = x;
          std::vector<double> below = x;
          above[i] += kStep;
          below[i] -= kStep;
          const double difference =
              example.loss(rule, above, weights) - example.loss(rule, below, weights);
          EXPECT_NEAR(din[i], difference / (2.0 * kStep), 2e-6) << i;
        }
        for (size_t i = 0; i < weights.size(); ++i) {
          std::vector<double> above = weights;
          std::vector<double> below = weights;
          above[i] += kStep;
          below[i] -= kStep;
          const double difference = example.loss(rule, x, above) - example.loss(rule, x, below);
          const std::vector<float>* const got[] = {&dq_weight, &dk_weight, &dq_bias, &dk_bias};
          EXPECT_NEAR((*got[i / Example::kDim])[i % Example::kDim], difference / (2.0 * kStep),
                      2e-6)
              << i;
        }
      }
    }
  }
}

TEST(QkNormRotaryTest, RowsOfSamplesComeAmongOthers) {
  const Example example;
  QkNormRotary rule = example.rule(RotaryPairs::kInterleaved, true, true);
  rule.num_positions = 1;
  constexpr int64_t kStride = Example::kStride;
  const auto size = static_cast<size_t>(Example::kRows * kStride);
  std::vector<float> together = example.rows;  // in place: v stays
  std::vector<float> dtogether = example.dout;
  std::vector<float> dq_weight(Example::kDim);
  std::vector<float> dk_weight(Example::kDim);
  qk_norm_rotary_forward({rule, together.data(), kStride, together.data(), kStride});
  qk_norm_rotary_backward({rule, dtogether.data(), kStride, example.rows.data(), kStride,
                           dtogether.data(), kStride, dq_weight.data(), dk_weight.data()});
  // Each row is a sample, with another's row behind it.
  rule.copies_values = true;
  rule.rows_per_sample = 1;
  std::vector<float> apart(2 * size, -7.0F);
  qk_norm_rotary_forward({.rule = rule,
                          .in = example.rows.data(),
                          .in_stride = kStride,
                          .out = apart.data(),
                          .out_stride = kStride,
                          .out_sample_stride = 2 * kStride});
  std::vector<float> dapart(2 * size, -7.0F);
  for (size_t i = 0; i < size; ++i) {
    dapart[i / kStride * 2 * kStride + i % kStride] = example.dout[i];
  }
  std::vector<float> din(size);
  std::vector<float> dq_apart(Example::kDim);
  std::vector<float> dk_apart(Example::kDim);
  qk_norm_rotary_backward({.rule = rule,
                           .dout = dapart.data(),
                           .dout_stride = kStride,
                           .in = example.rows.data(),
                           .in_stride = kStride,
                           .din = din.data(),
                           .din_stride = kStride,
                           .dq_weight = dq_apart.data(),
                           .dk_weight = dk_apart.data(),
                           .dout_sample_stride = 2 * kStride});
  for (size_t i = 0; i < size; ++i) {
    const size_t place = i / kStride * 2 * kStride + i % kStride;
    EXPECT_EQ(apart[place], together[i]) << i;
    EXPECT_EQ(apart[place + kStride], -7.0F) << "of another";
    EXPECT_EQ(din[i], dtogether[i]) << i;
  }
  EXPECT_EQ(dq_apart, dq_weight);
  EXPECT_EQ(dk_apart, dk_weight);
}

}  // namespace qk_norm_rotary_test
}  // namespace kinora::kernels
