#include <cmath>
#include <cstdio>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/kernels/cuda/graph_counters.h"
#include "kinora/kernels/cuda/matmul.h"
#include "kinora/kernels/elements.h"
#include "kinora/kernels/matmul_cache.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/graph_nodes.h"
#include "tests/kernels/matmul_case.h"

namespace kinora::kernels::matmul_test {
namespace gpu_matmul_test {

using cuda::Matmul;

std::string name_of(const MatmulProblem& problem) {
  return describe(normalised(problem), MatmulAlignment{});
}

/// The problem in each type that its bias gradient might have; as it is where it has none.
std::vector<MatmulProblem> with_bias_grad_types(const MatmulProblem& problem) {
  if (!has_bias_grad(problem.epilogue)) {
    return {problem};
  }
  std::vector<MatmulProblem> problems{problem, problem};
  problems[0].bias_grad_type = DType::kF32;
  problems[1].bias_grad_type = problem.a_type;
  problems.resize(problem.a_type == DType::kF32 ? 1 : 2);
  return problems;
}

TEST_F(GpuMatmulTest, EveryCombinationEqualsTheCpu) {
  Matmul matmul({.search = false});
  std::set<std::string> missing;
  for (const Types types : kTypes) {
    if (types.in == DType::kBF16 && !has_bf16()) {
      continue;
    }
    for (const auto& [m, n, k] : {Sizes{1, 8, 16}, Sizes{257, 16, 8}, Sizes{8, 257, 33},
                                  Sizes{1, 1, 1}, Sizes{65, 24, 257}, Sizes{136, 72, 128}}) {
      for (const bool transpose_a : {false, true}) {
        for (const bool transpose_b : {false, true}) {
          for (const bool accumulate : {false, true}) {
            for (const Epilogue epilogue : kEpilogues) {
              for (const MatmulProblem& problem : with_bias_grad_types({.m = m,
                                                  .n = n,
                                                  .k = k,
                                                  .transpose_a = transpose_a,
                                                  .transpose_b = transpose_b,
                                                  .a_type = types.in,
                                                  .b_type = types.in,
                                                  .d_type = types.out,
                                                  .aux_type = types.out,
                                                  .epilogue = epilogue,
                                                  .accumulate = accumulate})) {
                if (!run_or_refuse(&matmul, problem)) {
                  missing.insert(name_of(problem));
                  EXPECT_NE(epilogue, Epilogue::kNone) << name_of(problem);
                }
              }
            }
          }
        }
      }
    }
  }
  for (const std::string& name : missing) {
    std::printf("not in this library: %s\n", name.c_str());
  }
}

TEST_F(GpuMatmulTest, TheBlocksEpiloguesExist) {
  if (capability_ < 90) {
    GTEST_SKIP() << "asked of Hopper and newer only";
  }
  Matmul matmul({.search = false});
  const MatmulProblem base{.m = 512, .n = 1152, .k = 4608};
  MatmulProblem forward = base;
  forward.transpose_b = true;
  forward.epilogue = Epilogue::kBias;
  EXPECT_TRUE(matmul.supports(forward));
  forward.epilogue = Epilogue::kBiasGeluAux;
  EXPECT_TRUE(matmul.supports(forward));
  const auto print_bias_grad_types = [&matmul](const MatmulProblem& problem) {
    for (const MatmulProblem& typed : with_bias_grad_types(problem)) {
      std::printf("%s: %s\n", matmul.supports(typed) ? "has" : "lacks", name_of(typed).c_str());
    }
  };
  MatmulProblem backward = base;
  backward.epilogue = Epilogue::kGeluGrad;
  EXPECT_TRUE(matmul.supports(backward));
  backward.epilogue = Epilogue::kGeluGradBias;
  print_bias_grad_types(backward);
  MatmulProblem weight = base;
  weight.transpose_a = true;
  weight.d_type = DType::kF32;
  weight.accumulate = true;
  EXPECT_TRUE(matmul.supports(weight));
  weight.epilogue = Epilogue::kBiasGrad;
  print_bias_grad_types(weight);
}

TEST_F(GpuMatmulTest, BiasGradientsOfManyRowsAddUp) {
  for (const bool search : {false, true}) {
    Matmul matmul({.search = search});
    for (const DType type : {DType::kF16, DType::kBF16}) {
      if (type == DType::kBF16 && !has_bf16()) {
        continue;
      }
      for (const bool accumulate : {false, true}) {
        for (const MatmulProblem& problem : {MatmulProblem{.m = 5001,
                                            .n = 72,
                                            .k = 40,
                                            .a_type = type,
                                            .b_type = type,
                                            .d_type = type,
                                            .aux_type = type,
                                            .epilogue = Epilogue::kGeluGradBias,
                                            .accumulate = accumulate},
                                             MatmulProblem{.m = 72,
                                             .n = 40,
                                             .k = 5001,
                                             .transpose_a = true,
                                             .a_type = type,
                                             .b_type = type,
                                             .d_type = DType::kF32,
                                             .epilogue = Epilogue::kBiasGrad,
                                             .accumulate = accumulate}}) {
          for (const MatmulProblem& typed : with_bias_grad_types(problem)) {
            if (!run_or_refuse(&matmul, typed)) {
              std::printf("not in this library: %s\n", name_of(typed).c_str());
            }
          }
        }
      }
    }
    for (const std::string& line : matmul.report()) {
      std::printf("%s\n", line.c_str());
    }
  }
}

TEST_F(GpuMatmulTest, BiasGradientsMayDifferFromRunToRun) {
  Matmul matmul({.search = false, .deterministic = true});
  for (const Epilogue epilogue : {Epilogue::kGeluGradBias, Epilogue::kBiasGrad}) {
    for (const MatmulProblem& problem :
         with_bias_grad_types({.m = 128, .n = 128, .k = 128, .epilogue = epilogue})) {
      EXPECT_FALSE(matmul.supports(problem)) << name_of(problem);
    }
  }
}

TEST_F(GpuMatmulTest, SearchedAlgorithmsEqualTheCpu) {
  Matmul matmul({});
  for (const Types types : kTypes) {
    if (types.in == DType::kBF16 && !has_bf16()) {
      continue;
    }
    for (const Epilogue epilogue : kEpilogues) {
      for (const bool accumulate : {false, true}) {
        for (const MatmulProblem& problem : with_bias_grad_types({.m = 136,
                                            .n = 72,
                                            .k = 264,
                                            .transpose_a = epilogue == Epilogue::kBiasGrad,
                                            .transpose_b = epilogue != Epilogue::kBiasGrad,
                                            .a_type = types.in,
                                            .b_type = types.in,
                                            .d_type = types.out,
                                            .aux_type = types.out,
                                            .epilogue = epilogue,
                                            .accumulate = accumulate})) {
          run_or_refuse(&matmul, problem);
        }
      }
    }
  }
}

TEST_F(GpuMatmulTest, LongSumsMayBeSplit) {
  const DType type = has_bf16() ? DType::kBF16 : DType::kF16;
  for (const bool deterministic : {false, true}) {
    Matmul matmul({.deterministic = deterministic});
    const MatmulProblem problem{.m = 128,
                                .n = 96,
                                .k = 8192,
                                .transpose_a = true,
                                .a_type = type,
                                .b_type = type,
                                .d_type = DType::kF32,
                                .accumulate = true};
    Case c(problem);
    c.run(&matmul);
    c.check();
    for (const std::string& line : matmul.report()) {
      std::printf("%s\n", line.c_str());
    }
    const std::vector<uint8_t> first = c.result().bytes;
    for (int i = 0; deterministic && i < 5; ++i) {
      c.run(&matmul);
      EXPECT_TRUE(c.result().bytes == first) << "the same bits each time";
    }
  }
}

TEST_F(GpuMatmulTest, RowsMayBeApart) {
  Matmul matmul({.search = false});
  EXPECT_TRUE(run_and_check(&matmul, {.m = 33,
                                      .n = 24,
                                      .k = 16,
                                      .a_type = DType::kF16,
                                      .b_type = DType::kF16,
                                      .d_type = DType::kF16,
                                      .epilogue = Epilogue::kBias,
                                      .lda = 48,
                                      .ldb = 32,
                                      .ldd = 72}));
  EXPECT_TRUE(run_and_check(&matmul, {.m = 5,
                                      .n = 7,
                                      .k = 9,
                                      .transpose_a = true,
                                      .transpose_b = true,
                                      .a_type = DType::kF32,
                                      .b_type = DType::kF32,
                                      .d_type = DType::kF32,
                                      .accumulate = true,
                                      .lda = 6,
                                      .ldb = 11,
                                      .ldd = 8}));
}

TEST_F(GpuMatmulTest, Batches) {
  for (const bool search : {false, true}) {
    Matmul matmul({.search = search});
    for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kBias}) {
      for (const int64_t batch : {2, 257}) {
        const MatmulProblem problem{.m = 3,
                                    .n = 16,
                                    .k = 24,
                                    .transpose_b = true,
                                    .a_type = DType::kF16,
                                    .b_type = DType::kF16,
                                    .d_type = DType::kF16,
                                    .epilogue = epilogue,
                                    .batch = batch,
                                    .a_stride = 80,
                                    .b_stride = epilogue == Epilogue::kBias ? 0 : 16 * 24,
                                    .d_stride = 56};
        EXPECT_TRUE(run_and_check(&matmul, problem));
      }
    }
    MatmulProblem unsupported{
        .m = 8, .n = 8, .k = 8, .epilogue = Epilogue::kBiasGeluAux, .batch = 2};
    EXPECT_FALSE(matmul.supports(unsupported));
  }
}

TEST_F(GpuMatmulTest, AnyAlignment) {
  for (const bool search : {false, true}) {
    Matmul matmul({.search = search});
    for (const Types types : kTypes) {
      if (types.in == DType::kBF16 && !has_bf16()) {
        continue;
      }
      for (const size_t misalignment : {1, 2, 4}) {
        Case c(MatmulProblem{.m = 40,
                             .n = 24,
                             .k = 64,
                             .transpose_a = true,
                             .a_type = types.in,
                             .b_type = types.in,
                             .d_type = types.out,
                             .accumulate = true});
        c.run(&matmul, nullptr, misalignment);
        c.check();
      }
    }
  }
}

TEST_F(GpuMatmulTest, NothingToDo) {
  Matmul matmul({});
  matmul.run({.m = 0, .n = 8, .k = 8}, {}, nullptr);
  matmul.run({.m = 8, .n = 0, .k = 8}, {}, nullptr);
  EXPECT_TRUE(matmul.report().empty());
}

TEST_F(GpuMatmulTest, NanAndInfinityStayInTheirRow) {
  Matmul matmul({.search = false});
  for (const DType type : {DType::kF32, DType::kF16}) {
    const MatmulProblem problem{.m = 16,
                                .n = 16,
                                .k = 16,
                                .transpose_b = true,
                                .a_type = type,
                                .b_type = type,
                                .d_type = type};
    Case c(problem);
    c.a().set(3 * 16 + 5, std::numeric_limits<float>::quiet_NaN());
    c.a().set(7 * 16 + 5, std::numeric_limits<float>::infinity());
    c.run(&matmul);
    for (int64_t i = 0; i < 16; ++i) {
      for (int64_t j = 0; j < 16; ++j) {
        const double value = c.result().at(i * 16 + j);
        EXPECT_EQ(std::isnan(value), i == 3) << i;
        EXPECT_EQ(std::isinf(value), i == 7) << i;
      }
    }
  }
}

TEST_F(GpuMatmulTest, GeluIsTheTanhApproximation) {
  // Products of 0 and a bias x in (-4, 0], where GELU is small, so rounded finely, and its two
  // forms differ by up to 4.7e-4.
  constexpr int64_t kCount = 4096;
  Matmul matmul({.search = false});
  const MatmulProblem problem{.m = 16,
                              .n = kCount,
                              .k = 16,
                              .transpose_b = true,
                              .a_type = DType::kF16,
                              .b_type = DType::kF16,
                              .d_type = DType::kF16,
                              .aux_type = DType::kF16,
                              .epilogue = Epilogue::kBiasGeluAux};
  if (!matmul.supports(problem)) {
    GTEST_SKIP() << "not in this library";
  }
  Array a(16 * 16, DType::kF16);
  Array x(kCount, DType::kF16);
  for (int64_t j = 0; j < kCount; ++j) {
    x.set(j, static_cast<float>(-j) / 1024.0F);
  }
  const DeviceArray<uint8_t> zeros(a.bytes);
  const DeviceArray<uint8_t> weights(std::vector<uint8_t>(kCount * 16 * 2));
  const DeviceArray<uint8_t> bias(x.bytes);
  const DeviceArray<uint8_t> out(std::vector<uint8_t>(16 * kCount * 2));
  const DeviceArray<uint8_t> aux(std::vector<uint8_t>(16 * kCount * 2));
  matmul.run(problem,
             {.a = zeros.data(),
              .b = weights.data(),
              .d = out.data(),
              .bias = bias.data(),
              .aux = aux.data()},
             nullptr);
  Array got(16 * kCount, DType::kF16);
  got.bytes = out.host();
  Array pre(16 * kCount, DType::kF16);
  pre.bytes = aux.host();
  double along = 0.0;
  double total = 0.0;
  for (int64_t j = 0; j < kCount; ++j) {
    const double value = x.at(j);
    EXPECT_EQ(pre.at(j), value);
    const double erf_form = 0.5 * value * std::erfc(-value * M_SQRT1_2);
    const double difference = gelu_tanh(value) - erf_form;
    along += (got.at(j) - erf_form) * difference;
    total += difference * difference;
  }
  EXPECT_NEAR(along / total, 1.0, 0.5) << "0 would be the form with erf";
}

TEST_F(GpuMatmulTest, CapturesWithoutSearch) {
  Matmul matmul({});
  const MatmulProblem problem{.m = 32,
                              .n = 48,
                              .k = 64,
                              .a_type = DType::kF16,
                              .b_type = DType::kF16,
                              .d_type = DType::kF16,
                              .accumulate = true};
  Case c(problem);
  c.run_captured(&matmul, stream_);
  c.check();
  ASSERT_EQ(matmul.report().size(), 1U);
  EXPECT_NE(matmul.report()[0].find("first choice"), std::string::npos) << matmul.report()[0];

  c.run(&matmul, stream_);
  c.check();
  EXPECT_NE(matmul.report()[0].find("timed now"), std::string::npos) << matmul.report()[0];
  c.run_captured(&matmul, stream_);
  c.check();
}

TEST_F(GpuMatmulTest, RecordedProductsShareAMemset) {
  constexpr int kProducts = 70;  // of two memsets of all
  const MatmulProblem problem{.m = 4096,
                              .n = 3072,
                              .k = 64,
                              .transpose_b = true,
                              .a_type = DType::kF16,
                              .b_type = DType::kF16,
                              .d_type = DType::kF16};
  const auto random = [](int64_t count, uint32_t seed) {
    Array array(count, DType::kF16);
    array.fill(seed);
    return array.bytes;
  };
  const DeviceArray<uint8_t> a(random(problem.m * problem.k, 1));
  const DeviceArray<uint8_t> b(random(problem.n * problem.k, 2));
  const DeviceArray<uint8_t> d(std::vector<uint8_t>(2 * problem.m * problem.n));
  const MatmulArguments arguments{.a = a.data(), .b = b.data(), .d = d.data()};
  Matmul matmul({});
  matmul.run(problem, arguments, stream_);
  KINORA_CUDA_CHECK(cudaStreamSynchronize(stream_));
  const std::vector<uint8_t> expected = d.host();

  KINORA_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kProducts; ++i) {
    KINORA_CUDA_CHECK(cudaMemsetAsync(d.data(), i, 2 * problem.m * problem.n, stream_));
    matmul.run(problem, arguments, stream_);
  }
  cudaGraph_t graph = nullptr;
  KINORA_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
  const int64_t before = std::ssize(memsets_of(graph));
  EXPECT_EQ(cuda::drop_repeated_clears(graph), cudaSuccess);
  const int64_t after = std::ssize(memsets_of(graph));
  std::printf("%s: %lld memsets, then %lld\n", matmul.report().front().c_str(),
              static_cast<long long>(before), static_cast<long long>(after));
  if (before > kProducts + 2) {
    EXPECT_EQ(after, kProducts + 2);
  } else {
    EXPECT_EQ(after, kProducts) << "the library clears nothing";
  }
  cudaGraphExec_t executable = nullptr;
  KINORA_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int run = 0; run < 3; ++run) {
    KINORA_CUDA_CHECK(cudaGraphLaunch(executable, stream_));
    KINORA_CUDA_CHECK(cudaStreamSynchronize(stream_));
    EXPECT_TRUE(d.host() == expected) << "the same algorithm, so the same bits";
  }
  KINORA_CUDA_CHECK(cudaGraphExecDestroy(executable));
  KINORA_CUDA_CHECK(cudaGraphDestroy(graph));
}

TEST_F(GpuMatmulTest, TheCacheFileSavesTheSearch) {
  const MatmulProblem problems[] = {{.m = 256,
                                     .n = 128,
                                     .k = 512,
                                     .transpose_b = true,
                                     .a_type = DType::kF16,
                                     .b_type = DType::kF16,
                                     .d_type = DType::kF16,
                                     .epilogue = Epilogue::kBias},
                                    {.m = 128,
                                     .n = 64,
                                     .k = 4096,
                                     .transpose_a = true,
                                     .a_type = DType::kF16,
                                     .b_type = DType::kF16,
                                     .d_type = DType::kF32,
                                     .accumulate = true}};
  std::vector<std::vector<uint8_t>> results;
  Matmul first({.cache_file = cache_file()});
  for (const MatmulProblem& problem : problems) {
    Case c(problem);
    c.run(&first);
    results.push_back(c.result().bytes);
  }
  for (const std::string& line : first.report()) {
    EXPECT_EQ(line.find("not restorable"), std::string::npos) << line;
  }
  // The file is there before the first one ends: its run may be killed.
  Matmul second({.cache_file = cache_file()});
  for (size_t i = 0; i < results.size(); ++i) {
    Case c(problems[i]);
    c.run(&second);
    EXPECT_TRUE(c.result().bytes == results[i]) << "the same algorithm, so the same bits";
  }
  EXPECT_EQ(second.choices(), first.choices());
  for (const std::string& line : second.report()) {
    EXPECT_NE(line.find("from the cache file"), std::string::npos) << line;
  }
}

TEST_F(GpuMatmulTest, PinnedChoicesAreTaken) {
  const MatmulProblem problem{.m = 64,
                              .n = 64,
                              .k = 4096,
                              .transpose_a = true,
                              .a_type = DType::kF16,
                              .b_type = DType::kF16,
                              .d_type = DType::kF32};
  Matmul first({.search = false, .deterministic = true});
  Case c(problem);
  c.run(&first);
  const std::vector<uint8_t> expected = c.result().bytes;
  const std::string choices = first.choices();
  ASSERT_FALSE(choices.empty());

  Matmul second({.deterministic = true});
  c.run(&second);  // whatever a search finds
  EXPECT_EQ(second.pin("?\nOther GPU|1|m=1|id=1|ns=1|\n" + choices), 1U) << choices;
  c.run(&second);
  EXPECT_TRUE(c.result().bytes == expected);
  EXPECT_EQ(second.choices(), choices);
  EXPECT_NE(second.report()[0].find("pinned"), std::string::npos) << second.report()[0];

  // What is pinned and not run yet stays in the list.
  Matmul third({.search = false, .deterministic = true});
  EXPECT_EQ(third.pin(choices), 1U);
  EXPECT_EQ(third.choices(), choices);

  // An algorithm that the library does not know is not run.
  MatmulChoices damaged = parse_choices(choices);
  damaged.begin()->second.id = 12'345;
  EXPECT_EQ(second.pin(format_choices(damaged)), 1U);
  c.run(&second);
  c.check();
}

}  // namespace gpu_matmul_test
}  // namespace kinora::kernels::matmul_test
