#include "kinora/kernels/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "kinora/kernels/block_codes.h"
#include "kinora/kernels/cast.h"
#include "kinora/kernels/code_cells.h"
#include "kinora/kernels/instruction_set.h"
#include "kinora/kernels/sum_squares.h"
#include "tests/kernels/optimizer_arrays.h"

namespace kinora::kernels {
namespace optimizer_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

StepControl prepared(double sum_squares, const UpdatePolicy& policy, float loss_scale = 1.0F) {
  StepControl control;
  control.grad_sum_squares = sum_squares;
  control.loss_scale = loss_scale;
  control.lr = 3e-3;
  prepare_update(&control, policy);
  return control;
}

TEST(SumSquaresTest, IsExactForSmallIntegers) {
  for (const int64_t count : {0, 1, 15, 16, 17, 1000}) {
    std::vector<float> x(static_cast<size_t>(count));
    std::iota(x.begin(), x.end(), 1.0F);
    const int64_t expected = count * (count + 1) * (2 * count + 1) / 6;
    EXPECT_EQ(sum_squares(x.data(), count), static_cast<double>(expected));
  }
}

TEST(SumSquaresTest, FiniteGradientsHaveAFiniteSum) {
  const std::vector<float> huge(100, 3e38F);
  EXPECT_NEAR(sum_squares(huge.data(), 100) / (100 * 9e76), 1.0, 1e-6);
  const std::vector<float> bad = {1.0F, kInfinity};
  EXPECT_EQ(sum_squares(bad.data(), 2), std::numeric_limits<double>::infinity());
}

TEST(PrepareUpdateTest, ClipsToTheNorm) {
  UpdatePolicy policy;
  policy.max_grad_norm = 1.0;
  EXPECT_FLOAT_EQ(prepared(25.0, policy).grad_norm, 5.0F);
  EXPECT_FLOAT_EQ(prepared(25.0, policy).multiplier, 1.0F / (5.0F + 1e-6F));
  EXPECT_EQ(prepared(0.25, policy).multiplier, 1.0F);
  policy.max_grad_norm = 0.0;
  EXPECT_EQ(prepared(25.0, policy).multiplier, 1.0F);
}

TEST(PrepareUpdateTest, UnscalesBeforeItClips) {
  UpdatePolicy policy;
  policy.max_grad_norm = 1.0;
  policy.dynamic_loss_scale = true;
  const StepControl control = prepared(25.0 * 1024.0 * 1024.0, policy, 1024.0F);
  EXPECT_FLOAT_EQ(control.grad_norm, 5.0F);
  EXPECT_FLOAT_EQ(control.multiplier, 1.0F / 1024.0F / (5.0F + 1e-6F));
}

TEST(PrepareUpdateTest, CountsStepsAndCorrectsBias) {
  UpdatePolicy policy;
  policy.beta1 = 0.5;
  policy.beta2 = 0.75;
  StepControl control;
  prepare_update(&control, policy);
  EXPECT_EQ(control.applied_steps, 1);
  EXPECT_DOUBLE_EQ(control.bias_correction1, 0.5);
  EXPECT_DOUBLE_EQ(control.bias_correction2_sqrt, 0.5);
  prepare_update(&control, policy);
  EXPECT_EQ(control.applied_steps, 2);
  EXPECT_DOUBLE_EQ(control.bias_correction1, 0.75);
  EXPECT_DOUBLE_EQ(control.bias_correction2_sqrt, std::sqrt(7.0 / 16.0));
  EXPECT_EQ(control.grad_sum_squares, 0.0);
}

TEST(PrepareUpdateTest, SkipsWhatIsNotFinite) {
  for (const double sum :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const StepControl control = prepared(sum, {});
    EXPECT_EQ(control.skip, 1);
    EXPECT_EQ(control.applied_steps, 0);
    EXPECT_EQ(control.skipped_steps, 1);
    EXPECT_EQ(control.loss_scale, 1.0F) << "not dynamic";
    EXPECT_EQ(control.grad_sum_squares, 0.0) << "the next step starts afresh";
  }
}

TEST(PrepareUpdateTest, LossScaleGrowsAfterTheIntervalAndNeverToInfinity) {
  UpdatePolicy policy;
  policy.dynamic_loss_scale = true;
  StepControl control;
  control.loss_scale = kInitialLossScale;
  for (int step = 1; step < 2000; ++step) {
    prepare_update(&control, policy);
  }
  EXPECT_EQ(control.loss_scale, 65536.0F);
  prepare_update(&control, policy);
  EXPECT_EQ(control.loss_scale, 131072.0F);
  control.loss_scale = 0x1p127F;
  control.good_steps = 1999;
  prepare_update(&control, policy);
  EXPECT_EQ(control.loss_scale, 0x1p127F);
  control.grad_sum_squares = std::numeric_limits<double>::infinity();
  prepare_update(&control, policy);
  EXPECT_EQ(control.loss_scale, 0x1p126F);
}

TEST(StepExchangeTest, LearningRatesComeInAndReportsGoOutInTurn) {
  StepExchange exchange;
  StepControl control;
  const float loss = 1.5F;
  for (int64_t step = 1; step <= 2 * kStepRing; ++step) {
    exchange.lr[step % kStepRing] = static_cast<double>(step);
    control.grad_sum_squares = step == 3 ? NAN : 4.0;
    prepare_update(&control, {}, &exchange);
    EXPECT_EQ(control.steps, step);
    EXPECT_EQ(control.lr, static_cast<double>(step));
    volatile StepReport* report = write_report(control, step == 5 ? nullptr : &loss, &exchange);
    EXPECT_EQ(report, &exchange.reports[step % kStepRing]);
    EXPECT_EQ(report->skipped, step == 3 ? 1 : 0);
    EXPECT_EQ(report->applied_steps, step < 3 ? step : step - 1);
    EXPECT_EQ(std::isnan(report->loss), step == 5);
    EXPECT_EQ(report->grad_norm == 2.0F, step != 3);
  }
}

TEST(BucketTest, ChunksAreNumberedThrough) {
  alignas(16) float array[8] = {};
  std::vector<UpdateBucket> buckets(4);
  const int64_t counts[] = {kBucketChunk, 0, kBucketChunk + 1, 7};
  for (size_t i = 0; i < 4; ++i) {
    buckets[i].count = counts[i];
    buckets[i].buffers.grad = array + (i == 3 ? 1 : 0);
  }
  EXPECT_EQ(number_chunks(buckets), 4);
  EXPECT_EQ(buckets[1].first_chunk, 1);
  EXPECT_EQ(buckets[2].first_chunk, 1);
  EXPECT_EQ(buckets[3].first_chunk, 3);
  EXPECT_EQ(buckets[0].aligned, 1);
  EXPECT_EQ(buckets[3].aligned, 0);
}

TEST(UpdateWeightsTest, FirstStepMovesByTheLearningRate) {
  // m / (1 - beta1) = g and sqrt(v / (1 - beta2)) = |g|, whatever g: Kingma and Ba 2015,
  // section 2.1.
  OptimizerArrays arrays(1, 0, DType::kF32);
  arrays.master[0] = 2.0F;
  arrays.exp_avg[0] = 0.0F;
  arrays.exp_avg_sq[0] = 0.0F;
  arrays.grad[0] = -1e-3F;
  UpdateParameters parameters;
  parameters.weight_decay = 0.1;
  StepControl control = prepared(1e-6, {});
  control.lr = 0.01;
  update_weights(arrays.buffers(), parameters, control, 0, 1);
  EXPECT_NEAR(arrays.master[0], 2.0 * (1.0 - 0.01 * 0.1) + 0.01, 1e-6);
  EXPECT_EQ(arrays.grad[0], 0.0F);
}

TEST(UpdateWeightsTest, SplitsOfTheRangeGiveTheSameBits) {
  const int64_t count = 2'500;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    OptimizerArrays whole(count, 3, type);
    const UpdateParameters parameters = whole.parameters();
    UpdatePolicy policy;
    policy.max_grad_norm = 1.0;
    const StepControl control = prepared(10.0, policy);
    OptimizerArrays split = whole;
    update_weights(whole.buffers(), parameters, control, 0, count);
    int64_t begin = 0;
    for (const int64_t size : {1, 7, 1024, 33, 500, 935}) {
      update_weights(split.buffers(), parameters, control, begin, begin + size);
      begin += size;
    }
    ASSERT_EQ(begin, count);
    EXPECT_EQ(whole, split);
  }
}

TEST(UpdateWeightsTest, AveragesAndCopiesFollowTheNewWeights) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    OptimizerArrays arrays(77, kMaxEmas, type);
    const OptimizerArrays before = arrays;
    const UpdateParameters parameters = arrays.parameters();
    update_weights(arrays.buffers(), parameters, prepared(1.0, {}), 0, 77);
    for (size_t i = 0; i < 77; ++i) {
      EXPECT_NE(arrays.master[i], before.master[i]);
      for (size_t k = 0; k < kMaxEmas; ++k) {
        const double decay = parameters.ema_decay[k];
        const double expected =
            before.ema[k][i] * decay + static_cast<double>(arrays.master[i]) * (1.0 - decay);
        EXPECT_NEAR(arrays.ema[k][i], expected, 1e-6 * std::abs(expected) + 1e-7);
      }
      EXPECT_EQ(arrays.compute[i], type == DType::kBF16 ? float_to_bf16(arrays.master[i])
                                                        : float_to_f16(arrays.master[i]));
    }
  }
}

TEST(UpdateWeightsTest, ASkippedStepOnlyZerosTheGradient) {
  OptimizerArrays arrays(100, 2, DType::kBF16);
  OptimizerArrays expected = arrays;
  expected.grad.assign(100, 0.0F);
  const StepControl control = prepared(std::numeric_limits<double>::quiet_NaN(), {});
  update_weights(arrays.buffers(), arrays.parameters(), control, 0, 100);
  EXPECT_EQ(arrays, expected);
}

TEST(CodeCellsTest, FindTheNearestCodeOfAnyFloat) {
  const std::tuple<const CodeMap*, const CodeCells*> maps[] = {{&kSignedCodes, &kSignedCells},
                                                               {&kUnsignedCodes, &kUnsignedCells}};
  for (const auto& [map, cells] : maps) {
    std::vector<float> values;
    for (const float bound : map->bound) {
      values.insert(values.end(),
                    {bound, std::nextafter(bound, kInfinity), std::nextafter(bound, -kInfinity)});
    }
    for (uint32_t upper = 0; upper <= 0xffffU; ++upper) {  // infinities and NaN among them
      for (const uint32_t lower : {0x0U, 0x1U, 0x8000U, 0xffffU}) {
        values.push_back(std::bit_cast<float>(upper << 16 | lower));
      }
    }
    values.resize((values.size() / kCodeBlock + 1) * kCodeBlock);
    std::vector<uint8_t> codes(values.size());
    for (size_t i = 0; i < values.size(); i += kCodeBlock) {
      cells->codes_of(values.data() + i, 1.0F, codes.data() + i);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(codes[i], nearest_code(map->bound, values[i])) << values[i];
    }
  }
}

/// What update_weights is for one element after another, in the simplest form.
void update_plainly(const UpdateBuffers& buffers, const UpdateParameters& parameters,
                    const StepControl& control, int64_t begin, int64_t end) {
  const UpdateScalars scalars = update_scalars(parameters, control, buffers.lr_factor);
  const RandomStream rounding = rounding_stream(parameters, control, buffers.rounding);
  auto* compute = static_cast<uint16_t*>(buffers.compute);
  const auto value_of = [](const CodedMoment& coded, const CodeMap& map, const float* plain,
                           int64_t i) {
    if (coded.codes != nullptr) {
      return map.value[coded.codes[i]] * coded.scales[i / kCodeBlock];
    }
    return plain == nullptr ? 0.0F : plain[i];
  };
  const auto keep = [](const CodedMoment& coded, const CodeMap& map, const float* values,
                       int64_t first) {
    float scale = 0.0F;
    for (int64_t k = 0; k < kCodeBlock; ++k) {
      scale = std::max(scale, std::fabs(values[k]));
    }
    coded.scales[first / kCodeBlock] = scale;
    for (int64_t k = 0; k < kCodeBlock; ++k) {
      coded.codes[first + k] = nearest_code(map.bound, values[k] * code_multiplier(scale));
    }
  };
  float moments[kCodeBlock];
  float squares[kCodeBlock];
  for (int64_t i = begin; i < end; ++i) {
    const int64_t k = (i - begin) % kCodeBlock;
    float weight = buffers.master != nullptr ? buffers.master[i] : widen_bf16(compute[i]);
    moments[k] = value_of(buffers.coded_avg, kSignedCodes, buffers.exp_avg, i);
    squares[k] = value_of(buffers.coded_avg_sq, kUnsignedCodes, buffers.exp_avg_sq, i);
    const auto update = [&]<UpdateRule kRule> {
      update_element<kRule>(scalars, buffers.grad[i], &weight, &moments[k], &squares[k],
                            buffers.base == nullptr ? nullptr : buffers.base + i,
                            first_ema(kRule) == 0 ? nullptr : buffers.ema[0] + i);
    };
    switch (parameters.rule) {
      case UpdateRule::kAdamW:
        update.template operator()<UpdateRule::kAdamW>();
        break;
      case UpdateRule::kLion:
        update.template operator()<UpdateRule::kLion>();
        break;
      case UpdateRule::kSgd:
        update.template operator()<UpdateRule::kSgd>();
        break;
      case UpdateRule::kProdigy:
        update.template operator()<UpdateRule::kProdigy>();
        break;
      case UpdateRule::kScheduleFree:
        update.template operator()<UpdateRule::kScheduleFree>();
        break;
      default:
        update.template operator()<UpdateRule::kMuon>();
    }
    if (buffers.exp_avg != nullptr) {
      buffers.exp_avg[i] = moments[k];
    }
    if (buffers.exp_avg_sq != nullptr) {
      buffers.exp_avg_sq[i] = squares[k];
    }
    if (k == kCodeBlock - 1 && buffers.coded_avg.codes != nullptr) {
      keep(buffers.coded_avg, kSignedCodes, moments, i - k);
    }
    if (k == kCodeBlock - 1 && buffers.coded_avg_sq.codes != nullptr) {
      keep(buffers.coded_avg_sq, kUnsignedCodes, squares, i - k);
    }
    if (buffers.master != nullptr) {
      buffers.master[i] = weight;
      if (compute != nullptr) {
        compute[i] =
            buffers.compute_type == DType::kBF16 ? float_to_bf16(weight) : float_to_f16(weight);
      }
    } else {
      const auto place = static_cast<uint32_t>(buffers.place + i);
      compute[i] = round_stochastically(weight, philox(rounding, place / 4).word[place % 4]);
      weight = widen_bf16(compute[i]);
    }
    for (int e = first_ema(parameters.rule); e < parameters.num_emas; ++e) {
      buffers.ema[e][i] = buffers.ema[e][i] * scalars.ema_keep[e] + weight * scalars.ema_take[e];
    }
    if (!buffers.leaves_grad) {
      buffers.grad[i] = 0.0F;
    }
  }
}

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets = {InstructionSet::kBase};
  for (const InstructionSet set : {InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (set <= best_instruction_set()) {
      sets.push_back(set);
    }
  }
  return sets;
}

/// What a bucket has, besides fp32 weights and moments.
struct States {
  bool coded = false;
  bool has_master = true;
  bool leaves_grad = false;
  int num_emas = 1;
  DType type = DType::kBF16;
};

TEST(UpdateWeightsTest, EveryInstructionSetGivesTheBitsOfThePlainLoop) {
  constexpr int64_t kCount = 10 * kCodeBlock;
  std::vector<States> all;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (int num_emas = 0; num_emas <= kMaxEmas; ++num_emas) {
      all.push_back({.leaves_grad = num_emas == 2, .num_emas = num_emas, .type = type});
    }
    all.push_back({.coded = true, .type = type});
  }
  all.push_back({.has_master = false});
  all.push_back({.coded = true, .has_master = false, .leaves_grad = true, .num_emas = 2});
  for (const UpdateRule rule :
       {UpdateRule::kAdamW, UpdateRule::kLion, UpdateRule::kSgd, UpdateRule::kAdafactor,
        UpdateRule::kLamb, UpdateRule::kProdigy, UpdateRule::kScheduleFree}) {
    for (const States& states : all) {
      const bool has_8_bit =
          rule == UpdateRule::kAdamW || rule == UpdateRule::kLion || rule == UpdateRule::kSgd;
      if ((states.coded && !has_8_bit) || states.num_emas < first_ema(rule)) {
        continue;
      }
      OptimizerArrays start(kCount, states.num_emas, states.type);
      for (size_t i = 0; i < start.compute.size(); ++i) {
        start.compute[i] = float_to_bf16(start.master[i]);
      }
      start.grad[7] = 0.0F;
      start.exp_avg[700] = 1e-41F;  // not a normal number
      start.exp_avg_sq[701] = 0.0F;
      start.master[702] = 70000.0F;
      // Any range of plain states, whole blocks of others; compute not on 16 bytes in one of them.
      const bool blocks = states.coded || !states.has_master;
      const int64_t begin = blocks ? 0 : 3;
      for (const int64_t end : {kCount, blocks ? 5 * kCodeBlock : kCount - 61}) {
        const auto updated = [&](const auto& update) {
          OptimizerArrays arrays = start;
          std::vector<uint8_t> codes(2 * kCount, 200);
          std::vector<float> scales(2 * kCount / kCodeBlock, 0.3F);
          std::vector<float> base = start.exp_avg;
          UpdateBuffers buffers = arrays.buffers();
          buffers.leaves_grad = states.leaves_grad;
          buffers.lr_factor = 0.5;
          buffers.place = 512;
          buffers.base = rule == UpdateRule::kScheduleFree ? base.data() : nullptr;
          if (!reads_first_moment(rule) || states.coded) {
            buffers.exp_avg = nullptr;
          }
          if (!has_second_moment(rule) || states.coded) {
            buffers.exp_avg_sq = nullptr;
          }
          if (states.coded) {
            buffers.coded_avg = {codes.data(), scales.data()};
            if (has_second_moment(rule)) {
              buffers.coded_avg_sq = {codes.data() + kCount, scales.data() + kCount / kCodeBlock};
            }
          }
          if (!states.has_master) {
            buffers.master = nullptr;
          }
          UpdatePolicy policy;
          policy.max_grad_norm = 1.0;
          StepControl control = prepared(10.0, policy);
          control.step_distance = 1e-3;
          update(buffers, arrays.parameters(rule), control);
          return std::tuple(arrays, codes, scales, base);
        };
        const auto expected =
            updated([&](const auto&... args) { update_plainly(args..., begin, end); });
        for (const InstructionSet set : instruction_sets()) {
          EXPECT_EQ(updated([&](const auto&... args) {
                      update_weights(args..., begin, end, set);
                    }) == expected,
                    true)
              << "set " << static_cast<int>(set) << ", rule " << static_cast<int>(rule)
              << ", coded " << states.coded << ", master " << states.has_master << ", type "
              << static_cast<int>(states.type) << ", averages " << states.num_emas << ", end "
              << end;
        }
      }
    }
  }
}

/// FNV-1a of the bytes, from `hash` on.
template <typename T>
uint64_t hash_of(const std::vector<T>& values, uint64_t hash) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(T); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
  }
  return hash;
}

// The numbers are of x86-64; scripts/arm.sh asks the same of an Arm processor.
TEST(UpdateWeightsTest, GivesTheSameBitsOnEveryMachine) {
  constexpr int64_t kCount = 1'003;
  const auto hash_after = [](UpdateRule rule) {
    OptimizerArrays arrays(kCount, 2, DType::kBF16);
    UpdateBuffers buffers = arrays.buffers();
    buffers.leaves_grad = true;
    for (int step = 0; step < 3; ++step) {
      const StepControl control = prepared(0.04, {.max_grad_norm = 0.1});
      make_directions(buffers, arrays.parameters(rule), control, 0, kCount);
      update_weights(buffers, arrays.parameters(rule), control, 0, kCount);
    }
    uint64_t hash = 0xcbf29ce484222325ULL;
    for (const std::vector<float>* array :
         {&arrays.master, &arrays.exp_avg, &arrays.exp_avg_sq, &arrays.ema[0], &arrays.ema[1]}) {
      hash = hash_of(*array, hash);
    }
    return hash_of(arrays.compute, hash);
  };
  EXPECT_EQ(hash_after(UpdateRule::kAdamW), 0x9b0cf205f7cc4541ULL);
  EXPECT_EQ(hash_after(UpdateRule::kLion), 0xbeb62f0aae88cb3cULL);
  EXPECT_EQ(hash_after(UpdateRule::kSgd), 0xebbd022fb7563c6cULL);
  EXPECT_EQ(hash_after(UpdateRule::kLamb), 0xa6443d1519c52d26ULL);
  EXPECT_EQ(hash_after(UpdateRule::kScheduleFree), 0x6c10a51b302c391cULL);
}

TEST(MakeDirectionsTest, EveryInstructionSetGivesTheBitsOfThePlainLoop) {
  const OptimizerArrays start(1000, 0, DType::kF32);
  const UpdateParameters parameters = start.parameters(UpdateRule::kMuon);
  const StepControl control = prepared(10.0, {});
  OptimizerArrays expected = start;
  for (size_t i = 3; i < 990; ++i) {
    direct_element<UpdateRule::kMuon>(update_scalars(parameters, control, 1.0), 0.0F, 0.0F,
                                      &expected.grad[i], &expected.exp_avg[i], nullptr, nullptr);
  }
  for (const InstructionSet set : instruction_sets()) {
    OptimizerArrays arrays = start;
    make_directions(arrays.buffers(), parameters, control, 3, 990, set);
    EXPECT_EQ(arrays, expected);
  }
}

}  // namespace optimizer_test
}  // namespace kinora::kernels
