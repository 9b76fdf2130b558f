#include "kinora/kernels/matmul_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "kinora/core/error.h"

namespace kinora::kernels {
namespace matmul_cache_test {

namespace fs = std::filesystem;

MatmulProblem weight_gradient() {
  return normalised({.m = 4608,
                     .n = 1152,
                     .k = 65536,
                     .transpose_a = true,
                     .d_type = DType::kF32,
                     .accumulate = true});
}

MatmulChoice some_choice() {
  MatmulChoice choice;
  choice.id = 66;
  choice.tile = 23;
  choice.split_k = 3;
  choice.reduction = 2;
  choice.swizzle = 1;
  choice.custom = 4'000'000'000U;
  choice.stages = 36;
  choice.inner_shape = 7;
  choice.cluster_shape = 65'535;
  choice.nanoseconds = 712'345;
  return choice;
}

std::string some_line() {
  return format_choice(choice_key("NVIDIA H200", 130100, weight_gradient(), {}), some_choice());
}

/// A folder of this test's own, removed at the end.
class MatmulCacheTest : public testing::Test {
 protected:
  MatmulCacheTest()
      : folder_(fs::temp_directory_path() / ("kinora_matmul_cache_" + std::to_string(getpid()))) {}
  ~MatmulCacheTest() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(MatmulCacheTest, ALineComesBack) {
  const auto parsed = parse_choice(some_line());
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->first, choice_key("NVIDIA H200", 130100, weight_gradient(), {}));
  EXPECT_TRUE(same_algorithm(parsed->second, some_choice()));
  EXPECT_EQ(parsed->second.nanoseconds, 712'345);
}

TEST_F(MatmulCacheTest, ALineSaysWhatItIsAbout) {
  EXPECT_EQ(some_line(),
            "NVIDIA H200|130100.3|m=4608 n=1152 k=65536 a=BF16^T b=BF16 d=F32+ ld=4608,1152,1152|"
            "id=66 tile=23 split_k=3 reduction=2 swizzle=1 custom=4000000000 stages=36 "
            "inner_shape=7 cluster_shape=65535|ns=712345|");
}

TEST_F(MatmulCacheTest, BiasGradientsSayTheirType) {
  MatmulProblem problem{.m = 16,
                        .n = 32,
                        .k = 48,
                        .bias_grad_type = DType::kBF16,
                        .epilogue = Epilogue::kGeluGradBias};
  EXPECT_EQ(describe(normalised(problem), {}),
            "m=16 n=32 k=48 a=BF16 b=BF16 d=BF16 epilogue=gelu_grad_bias aux=BF16 bias_grad=BF16 "
            "ld=48,32,32");
  EXPECT_EQ(vector_size(problem), 32);
  problem.epilogue = Epilogue::kBiasGrad;
  problem.bias_grad_type = DType::kF32;
  EXPECT_EQ(describe(normalised(problem), {}),
            "m=16 n=32 k=48 a=BF16 b=BF16 d=BF16 epilogue=bias_grad bias_grad=F32 ld=48,32,32");
  EXPECT_EQ(vector_size(problem), 16);
  EXPECT_EQ(vector_type(problem), DType::kF32);

  problem.epilogue = Epilogue::kNone;
  MatmulProblem other = problem;
  other.bias_grad_type = DType::kBF16;  // of nothing
  EXPECT_EQ(normalised(problem), normalised(other));
}

TEST_F(MatmulCacheTest, EveryTruncationIsRefused) {
  const std::string line = some_line();
  for (size_t size = 0; size < line.size(); ++size) {
    EXPECT_FALSE(parse_choice(line.substr(0, size))) << line.substr(0, size);
  }
  EXPECT_FALSE(parse_choice(line + "x"));
  EXPECT_FALSE(parse_choice(line + line));
}

TEST_F(MatmulCacheTest, NumbersOutOfRangeAreRefused) {
  for (const auto& [from, to] :
       {std::pair("id=66", "id=-1"), std::pair("id=66", "id=66666666666"),
        std::pair("id=66", "id="), std::pair("id=66", "id=0x42"), std::pair("tile=23", "tile=-23"),
        std::pair("tile=23", "tile=99999999999"),
        std::pair("cluster_shape=65535", "cluster_shape=65536"),
        std::pair("inner_shape=7", "inner_shape=70000"), std::pair("ns=712345", "ns=-1"),
        std::pair("ns=712345", "ns=99999999999999999999"), std::pair("split_k", "splitk")}) {
    std::string line = some_line();
    line.replace(line.find(from), std::string(from).size(), to);
    EXPECT_FALSE(parse_choice(line)) << line;
  }
}

TEST_F(MatmulCacheTest, NoiseIsPassedOver) {
  std::mt19937 generator(1);
  const std::string good = some_line();
  for (int round = 0; round < 2'000; ++round) {
    std::string text = good;
    for (int i = 0; i < 4; ++i) {
      text[generator() % text.size()] = static_cast<char>(generator());
    }
    // Whatever it makes of the damaged copy, the good line is read.
    const MatmulChoices choices = parse_choices(text + '\n' + good + "\n\n|||||\n");
    const auto found = choices.find(choice_key("NVIDIA H200", 130100, weight_gradient(), {}));
    ASSERT_NE(found, choices.end());
    EXPECT_TRUE(same_algorithm(found->second, some_choice()));
  }
}

TEST_F(MatmulCacheTest, EqualProblemsHaveEqualKeys) {
  MatmulProblem x{.m = 3, .n = 8, .k = 16, .aux_type = DType::kF32};
  MatmulProblem y{.m = 3, .n = 8, .k = 16, .fast_accumulation = true, .d_stride = 5, .lda = 16};
  EXPECT_EQ(normalised(x), normalised(y));
  x.a_scaling = Scaling::kRow128;  // 8-bit floats only
  EXPECT_EQ(normalised(x), normalised(y));
  x.transpose_a = true;  // stored [16, 3]
  y = x;
  y.lda = 3;
  EXPECT_EQ(normalised(x), normalised(y));
  y.lda = 4;
  EXPECT_NE(choice_key("G", 1, normalised(x), {}), choice_key("G", 1, normalised(y), {}));
  EXPECT_NE(choice_key("G", 1, normalised(x), {}),
            choice_key("G", 1, normalised(x), {.a = 2, .b = 16, .d = 16, .vectors = 16}));
}

TEST_F(MatmulCacheTest, EveryFieldOfAProblemIsInItsKey) {
  const MatmulProblem base{.m = 16,
                           .n = 32,
                           .k = 48,
                           .a_type = DType::kF8E4M3,
                           .b_type = DType::kF8E4M3,
                           .epilogue = Epilogue::kBias,
                           .batch = 2};
  std::vector<MatmulProblem> others(20, base);
  others[0].m = 17;
  others[1].n = 33;
  others[2].k = 49;
  others[3].transpose_a = true;
  others[4].transpose_b = true;
  others[5].a_type = DType::kF8E5M2;
  others[6].b_type = DType::kF8E5M2;
  others[7].d_type = DType::kF32;
  others[8].epilogue = Epilogue::kNone;
  others[9].accumulate = true;
  others[10].fast_accumulation = true;
  others[11].batch = 3;
  others[12].a_stride = 1;
  others[13].b_stride = 1;
  others[14].d_stride = 1;
  others[15].lda = 50;
  others[16].ldb = 50;
  others[17].ldd = 50;
  others[18].a_scaling = Scaling::kRow128;
  others[19].b_scaling = Scaling::kBlock128;
  std::vector<std::string> keys{choice_key("G", 1, normalised(base), {})};
  for (const MatmulProblem& problem : others) {
    keys.push_back(choice_key("G", 1, normalised(problem), {}));
  }
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::adjacent_find(keys.begin(), keys.end()), keys.end());
}

TEST_F(MatmulCacheTest, AGpusNameCannotBreakTheLine) {
  const std::string key = choice_key("A|B\nC", 1, weight_gradient(), {});
  EXPECT_TRUE(key.starts_with(choice_key_prefix("A|B\nC", 1)));
  const auto parsed = parse_choice(format_choice(key, some_choice()));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->first, key);
}

TEST_F(MatmulCacheTest, FilesAddUp) {
  const std::string path = folder_ / "deep" / "matmul.txt";
  EXPECT_TRUE(read_choices(path).empty());

  MatmulChoice choice = some_choice();
  write_choices(path, {{"G|1|first|", choice}, {"G|1|second|", choice}});
  choice.id = 67;
  write_choices(path, {{"G|1|second|", choice}, {"G|1|third|", choice}});
  const MatmulChoices all = read_choices(path);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all.at("G|1|first|").id, 66);
  EXPECT_EQ(all.at("G|1|second|").id, 67) << "the new one counts";
  EXPECT_EQ(all.at("G|1|third|").id, 67);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "deep"), fs::directory_iterator{}), 1)
      << "nothing temporary stays";
}

TEST_F(MatmulCacheTest, ADamagedFileIsNotAnError) {
  fs::create_directories(folder_);
  const fs::path path = folder_ / "matmul.txt";
  std::ofstream(path, std::ios::binary) << std::string("\0\xff\n|", 4) << some_line() << "\n"
                                        << some_line().substr(0, 60);
  EXPECT_EQ(read_choices(path).size(), 0U);
  std::ofstream(path, std::ios::binary) << "?\n"
                                        << some_line() << "\n"
                                        << some_line().substr(0, 60);
  EXPECT_EQ(read_choices(path).size(), 1U);
  EXPECT_TRUE(read_choices(folder_).empty()) << "a folder";
}

TEST_F(MatmulCacheTest, AFileThatCannotBeWrittenIsAnIoError) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "file") << "x";
  try {
    write_choices(folder_ / "file" / "matmul.txt", {{"G|1|first|", some_choice()}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_THAT(error.what(), testing::HasSubstr("matmul.txt"));
  }
}

}  // namespace matmul_cache_test
}  // namespace kinora::kernels
