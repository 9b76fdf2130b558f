#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/kernels/cuda/matmul.h"
#include "tests/kernels/matmul_case.h"

namespace kinora::kernels::matmul_test {
namespace gpu_fp8_matmul_test {

using cuda::Matmul;

constexpr DType kE4 = DType::kF8E4M3;
constexpr DType kE5 = DType::kF8E5M2;
constexpr std::pair<DType, DType> kOperands[] = {{kE4, kE4}, {kE4, kE5}, {kE5, kE4}};

std::string name_of(const MatmulProblem& problem) {
  return describe(normalised(problem), MatmulAlignment{});
}

void print(const char* what, const std::set<std::string>& names) {
  for (const std::string& name : names) {
    std::printf("%s: %s\n", what, name.c_str());
  }
}

/// Products of 8-bit floats, and which of them the library lacks.
class GpuFp8MatmulTest : public GpuMatmulTest {
 protected:
  void SetUp() override {
    GpuMatmulTest::SetUp();
    if (!IsSkipped() && !has_fp8()) {
      GTEST_SKIP() << "no 8-bit floats before compute capability 8.9";
    }
  }

  /// Computes and compares where the library has the product.
  void run_or_note(Matmul* matmul, const MatmulProblem& problem) {
    try {
      if (!run_and_check(matmul, problem)) {
        missing_.insert(name_of(problem));
      }
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("CUBLAS_STATUS_NOT_SUPPORTED"), std::string::npos)
          << error.what();
      EXPECT_FALSE(matmul->supports(problem)) << "what it has refused";
      // Nobody takes bias gradients from 8-bit products: they may be missing in any way.
      (has_bias_grad(problem.epilogue) ? missing_ : refused_)
          .insert(name_of(problem) + ": " + error.what());
    }
  }

  std::set<std::string> missing_;  ///< not proposed
  std::set<std::string> refused_;  ///< proposed, not run
};

TEST_F(GpuFp8MatmulTest, EveryCombinationEqualsTheCpu) {
  // The library proposes algorithms for tiny products and may then refuse to run them.
  std::set<std::string> tiny;
  for (const auto& [m, n, k] : {Sizes{16, 16, 16}, Sizes{64, 64, 64}, Sizes{144, 32, 272}}) {
    const bool is_tiny = std::min({m, n, k}) < 32;
    Matmul matmul({.search = false});
    for (const auto& [a_type, b_type] : kOperands) {
      for (const DType d_type : {DType::kBF16, DType::kF16, DType::kF32}) {
        for (const bool accumulate : {false, true}) {
          for (const bool fast : {false, true}) {
            for (const Epilogue epilogue : kEpilogues) {
              const MatmulProblem problem{.m = m,
                                          .n = n,
                                          .k = k,
                                          .transpose_b = true,
                                          .a_type = a_type,
                                          .b_type = b_type,
                                          .d_type = d_type,
                                          .aux_type = d_type,
                                          .epilogue = epilogue,
                                          .accumulate = accumulate,
                                          .fast_accumulation = fast};
              run_or_note(&matmul, problem);
              if (epilogue == Epilogue::kNone && !is_tiny) {
                EXPECT_FALSE(missing_.contains(name_of(problem))) << name_of(problem);
              }
            }
          }
        }
      }
    }
    for (const std::string& line : matmul.report()) {
      if (line.find("that it runs") != std::string::npos) {
        std::printf("%s\n", line.c_str());
      }
    }
    if (is_tiny) {
      tiny = std::move(refused_);
      refused_.clear();
      missing_.clear();
    }
  }
  std::printf("tiny products proposed, but refused: %zu\n", tiny.size());
  if (!tiny.empty()) {
    std::printf("  such as %s\n", tiny.begin()->c_str());
  }
  print("not in this library", missing_);
  print("proposed, but refused", refused_);
  EXPECT_TRUE(refused_.empty());
}

TEST_F(GpuFp8MatmulTest, SearchedAlgorithmsEqualTheCpu) {
  Matmul matmul({});
  for (const auto& [a_type, b_type] : kOperands) {
    for (const Epilogue epilogue : kEpilogues) {
      for (const bool accumulate : {false, true}) {
        run_or_note(&matmul, {.m = 144,
                              .n = 48,
                              .k = 272,
                              .transpose_b = true,
                              .a_type = a_type,
                              .b_type = b_type,
                              .epilogue = epilogue,
                              .accumulate = accumulate});
      }
    }
  }
  print("proposed, but refused", refused_);
  EXPECT_TRUE(refused_.empty());
}

TEST_F(GpuFp8MatmulTest, LargeProductsEqualTheCpu) {
  for (const bool search : {false, true}) {
    Matmul matmul({.search = search});
    for (const auto& [m, n, k] : {Sizes{128, 128, 128}, Sizes{256, 256, 256}, Sizes{64, 1152, 1152},
                                  Sizes{256, 1152, 256}}) {
      for (const bool fast : {false, true}) {
        run_or_note(&matmul, {.m = m,
                              .n = n,
                              .k = k,
                              .transpose_b = true,
                              .a_type = kE4,
                              .b_type = kE4,
                              .fast_accumulation = fast});
      }
    }
    for (const std::string& line : matmul.report()) {
      std::printf("%s\n", line.c_str());
    }
  }
  print("not in this library", missing_);
  print("proposed, but refused", refused_);
  EXPECT_TRUE(missing_.empty() && refused_.empty());
}

TEST_F(GpuFp8MatmulTest, EightBitResultsEqualTheCpu) {
  for (const bool search : {false, true}) {
    Matmul matmul({.search = search});
    for (const auto& [m, n, k] : {Sizes{64, 64, 64}, Sizes{144, 48, 272}, Sizes{256, 1152, 256}}) {
      for (const bool fast : {false, true}) {
        for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kBias, Epilogue::kBiasGelu}) {
          run_or_note(&matmul, {.m = m,
                                .n = n,
                                .k = k,
                                .transpose_b = true,
                                .a_type = kE4,
                                .b_type = kE4,
                                .d_type = kE4,
                                .epilogue = epilogue,
                                .fast_accumulation = fast});
        }
      }
    }
  }
  print("not in this library", missing_);
  print("proposed, but refused", refused_);
  EXPECT_TRUE(missing_.empty() && refused_.empty());
}

TEST_F(GpuFp8MatmulTest, OneOperandAtLeastMustBeE4M3) {
  Matmul matmul({.search = false});
  const MatmulProblem problem{
      .m = 64, .n = 64, .k = 64, .transpose_b = true, .a_type = kE5, .b_type = kE5};
  EXPECT_FALSE(matmul.supports(problem));
  Case c(problem);
  try {
    c.run(&matmul);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    EXPECT_NE(std::string(error.what()).find("a=F8_E5M2 b=F8_E5M2^T"), std::string::npos)
        << error.what();
  }
}

TEST_F(GpuFp8MatmulTest, BlockScalingEqualsTheCpu) {
  constexpr std::pair<Scaling, Scaling> kScalings[] = {{Scaling::kRow128, Scaling::kBlock128},
                                                       {Scaling::kRow128, Scaling::kRow128},
                                                       {Scaling::kBlock128, Scaling::kRow128}};
  bool any = false;
  for (const bool search : {false, true}) {
    Matmul matmul({.search = search});
    const auto run = [&](MatmulProblem problem) {
      problem.transpose_b = true;
      run_or_note(&matmul, problem);
      any = any || matmul.supports(problem);
    };
    for (const auto& [a_scaling, b_scaling] : kScalings) {
      for (const auto& [a_type, b_type] : kOperands) {
        const MatmulProblem base{.m = 128,
                                 .n = 256,
                                 .k = 384,
                                 .a_type = a_type,
                                 .b_type = b_type,
                                 .a_scaling = a_scaling,
                                 .b_scaling = b_scaling};
        run(base);
        for (const DType d_type : {DType::kBF16, DType::kF32}) {
          MatmulProblem other = base;
          other.d_type = d_type;
          other.accumulate = true;
          run(other);
          other.accumulate = false;
          other.epilogue = Epilogue::kBias;
          run(other);
        }
        // Rows that fill no block of 128, padded rows of factors (9 of 12), and, last, a k that
        // fills no block.
        for (const auto& [m, n, k] :
             {Sizes{64, 144, 1152}, Sizes{272, 128, 128}, Sizes{128, 128, 400}}) {
          MatmulProblem other = base;
          other.m = m;
          other.n = n;
          other.k = k;
          run(other);
        }
      }
    }
  }
  print("not in this library", missing_);
  print("proposed, but refused", refused_);
  if (!any) {
    GTEST_SKIP() << "this library has no products with block scaling on this GPU";
  }
}

TEST_F(GpuFp8MatmulTest, BlockScalingIsAlongK) {
  Matmul matmul({.search = false});
  const MatmulProblem base{.m = 128,
                           .n = 128,
                           .k = 128,
                           .transpose_b = true,
                           .a_type = kE4,
                           .b_type = kE4,
                           .a_scaling = Scaling::kRow128,
                           .b_scaling = Scaling::kRow128};
  MatmulProblem other = base;
  other.transpose_a = true;
  EXPECT_FALSE(matmul.supports(other));
  other = base;
  other.transpose_b = false;
  EXPECT_FALSE(matmul.supports(other));
  other = base;
  other.batch = 2;
  EXPECT_FALSE(matmul.supports(other));
}

}  // namespace gpu_fp8_matmul_test
}  // namespace kinora::kernels::matmul_test
