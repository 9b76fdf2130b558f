#include "kinora/data/latent_files.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "kinora/data/epoch_order.h"
#include "kinora/data/loader.h"
#include "kinora/data/subset.h"
#include "tests/data/files.h"

namespace kinora::data {
namespace latent_files_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

namespace fs = std::filesystem;

template <typename Value>
io::SafetensorsTensor tensor(const std::string& name, DType dtype, std::vector<int64_t> shape,
                             const std::vector<Value>& values) {
  return {name, dtype, std::move(shape), std::as_bytes(std::span(values))};
}

// Values that are all different and tell where they belong.
std::vector<float> counted(int64_t count, float first = 0.0F) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

// A file of F32 latents [n, 2, 2, 3] that count from `first`.
fs::path write_counted(const fs::path& path, const std::vector<int64_t>& labels, float first = 0.0F,
                       const std::map<std::string, std::string>& metadata = {}) {
  const auto n = static_cast<int64_t>(labels.size());
  const std::vector<float> values = counted(n * 12, first);
  io::write_safetensors(path,
                        std::vector{tensor("latents", DType::kF32, {n, 2, 2, 3}, values),
                                    tensor("labels", DType::kI64, {n}, labels)},
                        metadata);
  return path;
}

template <typename Value>
bool same_bits(const at::Tensor& values, const std::vector<Value>& expected) {
  return values.nbytes() == expected.size() * sizeof(Value) &&
         std::memcmp(values.const_data_ptr(), expected.data(), values.nbytes()) == 0;
}

std::vector<int64_t> all_of(const Source& source) {
  std::vector<int64_t> indices(static_cast<size_t>(source.size()));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

// What a 16-bit float of so many exponent bits means, by the definition of IEEE 754, 3.4.
float float_of(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  const double value = std::ldexp(whole, std::max(exponent, 1) - bias - mantissa_bits);
  return static_cast<float>((bits & 0x8000) != 0 ? -value : value);
}

// Every finite 16-bit float, as [2, 8, 62, 64] (F16) or [2, 8, 60, 68] (BF16).
void expect_all_halves(DType dtype, int exponent_bits, std::vector<int64_t> shape) {
  std::vector<uint16_t> bits;
  std::vector<float> expected;
  const int largest = (1 << exponent_bits) - 1;
  for (int i = 0; i < 65536; ++i) {
    if (((i & 0x7fff) >> (15 - exponent_bits)) != largest) {
      bits.push_back(static_cast<uint16_t>(i));
      expected.push_back(float_of(static_cast<uint16_t>(i), exponent_bits));
    }
  }
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "halves.safetensors";
  const std::vector<int64_t> labels = {1, 0};
  io::write_safetensors(path, std::vector{tensor("latents", dtype, shape, bits),
                                          tensor("labels", DType::kI64, {2}, labels)});
  const LatentFiles source({path});
  EXPECT_EQ(source.latent_shape(), (SampleShape{shape[1], shape[2], shape[3]}));
  const Batch batch = load_samples(source, all_of(source), 0, 0);
  EXPECT_EQ(batch.images.scalar_type(), at::kFloat);
  EXPECT_EQ(batch.images.sizes(), at::IntArrayRef(shape));
  EXPECT_TRUE(same_bits(batch.images, expected));
  EXPECT_TRUE(same_bits(batch.labels, labels));
}

TEST(LatentFilesTest, ReadsEveryHalf) {
  expect_all_halves(DType::kF16, 5, {2, 8, 62, 64});
}

TEST(LatentFilesTest, ReadsEveryBfloat) {
  expect_all_halves(DType::kBF16, 8, {2, 8, 60, 68});
}

TEST(LatentFilesTest, ReadsFloatsAsTheyAre) {
  const TemporaryFolder folder;
  // Neither a whole number, nor normal, nor representable in 16 bits.
  const std::vector<float> values = {1.0F / 3.0F, -0.0F, 1e-42F, -3.4e38F};
  const std::vector<int64_t> labels = {0, 3};
  const fs::path path = folder.path() / "a.safetensors";
  io::write_safetensors(path, std::vector{tensor("latents", DType::kF32, {2, 1, 1, 2}, values),
                                          tensor("labels", DType::kI64, {2}, labels)});
  const LatentFiles source({path});
  EXPECT_THAT(source.class_names(), ElementsAre("0", "1", "2", "3"));
  EXPECT_TRUE(same_bits(load_samples(source, all_of(source), 0, 0).images, values));
}

// As another program may write it: labels first, so that the F32 latents start at no multiple of 4.
TEST(LatentFilesTest, ReadsUnalignedFiles) {
  const TemporaryFolder folder;
  std::string header = R"({"pad":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("labels":{"dtype":"I64","shape":[2],"data_offsets":[1,17]},)"
                       R"("latents":{"dtype":"F32","shape":[2,1,1,1],"data_offsets":[17,25]}})";
  const uint64_t length = header.size();
  const std::vector<int64_t> labels = {2, 1};
  const std::vector<float> values = {0.1F, -0.2F};
  std::string content(8, '\0');
  std::memcpy(content.data(), &length, 8);
  content += header + 'x';
  content.append(reinterpret_cast<const char*>(labels.data()), 16);
  content.append(reinterpret_cast<const char*>(values.data()), 8);
  const LatentFiles source({folder.write("a.safetensors", content)});
  const Batch batch = load_samples(source, all_of(source), 0, 0);
  EXPECT_TRUE(same_bits(batch.images, values));
  EXPECT_TRUE(same_bits(batch.labels, labels));
}

TEST(LatentFilesTest, SeveralFilesAreOneSet) {
  const TemporaryFolder folder;
  const fs::path a = write_counted(folder.path() / "a.safetensors", {0, 2, 0});
  const fs::path b = write_counted(folder.path() / "b.safetensors", {4, 1}, 36.0F);
  const std::vector<int64_t> c_labels = {3};
  const std::vector<uint16_t> c_values(12, 0x3c00);  // 1 as F16
  const fs::path c = folder.path() / "c.safetensors";
  io::write_safetensors(c, std::vector{tensor("latents", DType::kF16, {1, 2, 2, 3}, c_values),
                                       tensor("labels", DType::kI64, {1}, c_labels)});
  const LatentFiles source({a, b, c});
  ASSERT_EQ(source.size(), 6);
  EXPECT_EQ(source.num_classes(), 5);
  const Batch batch = load_samples(source, all_of(source), 0, 0);
  EXPECT_TRUE(same_bits(batch.images.narrow(0, 0, 5), counted(60)));
  EXPECT_TRUE(same_bits(batch.images.narrow(0, 5, 1), std::vector<float>(12, 1.0F)));
  EXPECT_TRUE(same_bits(batch.labels, std::vector<int64_t>{0, 2, 0, 4, 1, 3}));
  EXPECT_EQ(source.sample_name(2), "latent 2 of " + a.string());
  EXPECT_EQ(source.sample_name(3), "latent 0 of " + b.string());
  EXPECT_EQ(source.sample_name(5), "latent 0 of " + c.string());
}

TEST(LatentFilesTest, LoaderGivesTheFilesContent) {
  const TemporaryFolder folder;
  const LatentFiles source({write_counted(folder.path() / "a.safetensors", {0, 1, 2, 3, 4, 5, 6}),
                            write_counted(folder.path() / "b.safetensors", {7, 8, 9, 10}, 84.0F)});
  LoaderOptions options;
  options.micro_batch = 4;
  options.global_batch = 4;
  options.seed = 21;
  options.num_threads = 3;
  EpochOrder order(11, 21);
  // From the start, and resumed within an epoch and in a later one.
  for (const int64_t first : {0, 5, 38}) {
    options.first_position = first;
    Loader loader(source, options);
    for (int64_t number = 0; number < 6; ++number) {
      const Batch batch = loader.next();
      ASSERT_EQ(batch.images.sizes(), at::IntArrayRef({4, 2, 2, 3}));
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t position = first + number * 4 + i;
        const int64_t index = order.at(position);
        EXPECT_EQ(batch.sample_index.const_data_ptr<int64_t>()[i], position);
        EXPECT_EQ(batch.labels.const_data_ptr<int64_t>()[i], index);
        EXPECT_TRUE(same_bits(batch.images[i], counted(12, static_cast<float>(index * 12))));
      }
    }
    constexpr int64_t kTensors = 4;  // latents, labels, positions, sizes
    EXPECT_LE(loader.stats().num_buffers, kTensors * (options.queue_depth + 1));
  }
}

TEST(LatentFilesTest, PartsAreLatentsToo) {
  const TemporaryFolder folder;
  const LatentFiles whole(
      {write_counted(folder.path() / "a.safetensors", std::vector<int64_t>(20, 0))});
  const Split parts = split(whole.size(), 5, 3);
  const SubsetSource validation(whole, parts.validation);
  EXPECT_EQ(validation.latent_shape(), (SampleShape{2, 2, 3}));
  const Batch batch = load_samples(validation, all_of(validation), 0, 0);
  ASSERT_EQ(batch.images.size(0), 5);
  for (int64_t i = 0; i < 5; ++i) {
    const auto first = static_cast<float>(parts.validation[static_cast<size_t>(i)] * 12);
    EXPECT_TRUE(same_bits(batch.images[i], counted(12, first)));
  }
}

TEST(LatentFilesTest, ValuesThatAreNotFiniteMakeABadSample) {
  const TemporaryFolder folder;
  std::vector<float> values = counted(12);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  values[10] = -std::numeric_limits<float>::infinity();
  const std::vector<int64_t> labels = {0, 1, 2};
  const fs::path path = folder.path() / "a.safetensors";
  io::write_safetensors(path, std::vector{tensor("latents", DType::kF32, {3, 1, 2, 2}, values),
                                          tensor("labels", DType::kI64, {3}, labels)});
  const LatentFiles source({path});
  const std::vector<int64_t> indices = all_of(source);
  const Batch batch = load_samples(source, indices, 0, 0);
  EXPECT_TRUE(same_bits(batch.labels, std::vector<int64_t>{1}));
  EXPECT_TRUE(same_bits(batch.images, counted(4, 4.0F)));
  EXPECT_THAT(error_of([&] { (void)load_samples(source, indices, 0, 0, 1); }),
              AllOf(HasSubstr("latent 0 of " + path.string() + " must be finite, got nan"),
                    HasSubstr("latent 2 of " + path.string() + " must be finite, got -inf"),
                    HasSubstr("data.max_bad")));
}

TEST(LatentFilesTest, MetadataNamesClasses) {
  const TemporaryFolder folder;
  const auto open = [&folder](const std::string& a_names, const std::string& b_names) {
    std::vector<fs::path> paths;
    for (const std::string& names : {a_names, b_names}) {
      std::map<std::string, std::string> metadata = {{"encoder", "some"}};
      if (!names.empty()) {
        metadata["class_names"] = names;
      }
      const std::string name = paths.empty() ? "a" : "b";
      paths.push_back(
          write_counted(folder.path() / (name + ".safetensors"), {0, 2}, 0.0F, metadata));
    }
    return LatentFiles(paths).class_names();
  };
  const std::string names = R"(["tench", "gold \"fish\"", "caf\u00e9"])";
  const auto expected = ElementsAre("tench", "gold \"fish\"", "caf\xc3\xa9");
  EXPECT_THAT(open(names, names), expected);
  EXPECT_THAT(open(names, ""), expected);
  EXPECT_THAT(open("", names), expected);
  // More names than labels: of the other classes there is no sample here.
  EXPECT_THAT(open(R"(["a","b","c","d"])", ""), ElementsAre("a", "b", "c", "d"));

  const auto error = [&open](const std::string& a_names, const std::string& b_names) {
    return error_of([&] { (void)open(a_names, b_names); });
  };
  EXPECT_THAT(error(R"(["a","b"])", ""),
              AllOf(HasSubstr("the greatest label is 2"), HasSubstr("got 2 names")));
  EXPECT_THAT(error(R"(["a","b","c"])", R"(["a","b","C"])"),
              AllOf(HasSubstr("b.safetensors"), HasSubstr("the same in all files")));
  for (const char* wrong : {"a, b, c", "{}", R"(["a", "b", 3])", R"(["a", ["b"], "c"])",
                            R"([{"a": 1}])", "[\"a\"", "null", R"("abc")"}) {
    EXPECT_THAT(error(wrong, ""),
                AllOf(HasSubstr("a.safetensors"), HasSubstr("JSON list of strings")))
        << wrong;
  }
  EXPECT_THAT(error(std::string(1 << 20, '['), ""), HasSubstr("JSON list of strings"));
}

TEST(LatentFilesTest, RefusesFilesThatDoNotFit) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a.safetensors";
  const auto message = [&path](const std::vector<io::SafetensorsTensor>& tensors) {
    io::write_safetensors(path, tensors);
    std::string text = error_of([&] { LatentFiles source({path}); });
    EXPECT_THAT(text, HasSubstr(path.string()));
    return text;
  };
  const std::vector<float> values = counted(24);
  const std::vector<double> doubles(24);
  const std::vector<int64_t> labels = {0, 1};
  const std::vector<int32_t> short_labels = {0, 1};
  const auto latents = tensor("latents", DType::kF32, {2, 2, 2, 3}, values);
  const auto classes = tensor("labels", DType::kI64, {2}, labels);

  EXPECT_THAT(message({latents}),
              AllOf(HasSubstr("there is no labels"), HasSubstr("1 tensors: \"latents\"")));
  EXPECT_THAT(message({classes, tensor("latent", DType::kF32, {24}, values)}),
              AllOf(HasSubstr("there is no latents"), HasSubstr("\"latent\"")));
  EXPECT_THAT(message({tensor("latents", DType::kF64, {2, 2, 2, 3}, doubles), classes}),
              HasSubstr("F32, F16 or BF16, got F64"));
  EXPECT_THAT(message({tensor("latents", DType::kF32, {2, 12}, values), classes}),
              HasSubstr("got [2, 12]"));
  EXPECT_THAT(
      message({tensor("latents", DType::kF32, {2, 0, 2, 3}, std::vector<float>()), classes}),
      HasSubstr("got [2, 0, 2, 3]"));
  EXPECT_THAT(message({tensor("latents", DType::kF32, {0, 2, 2, 3}, std::vector<float>()),
                       tensor("labels", DType::kI64, {0}, std::vector<int64_t>())}),
              HasSubstr("got [0, 2, 2, 3]"));
  EXPECT_THAT(message({latents, tensor("labels", DType::kI32, {2}, short_labels)}),
              HasSubstr("type I64, got I32"));
  EXPECT_THAT(message({latents, tensor("labels", DType::kI64, {3}, std::vector<int64_t>(3))}),
              HasSubstr("shape [2], one for each of the latents, got [3]"));
  EXPECT_THAT(message({latents, tensor("labels", DType::kI64, {2, 1}, labels)}),
              HasSubstr("got [2, 1]"));
  EXPECT_THAT(message({latents, tensor("labels", DType::kI64, {2}, std::vector<int64_t>{0, -1})}),
              HasSubstr("from 0 to 999999, got -1 for latent 1"));
  EXPECT_THAT(
      message({latents, tensor("labels", DType::kI64, {2}, std::vector<int64_t>{1'000'000, 0})}),
      HasSubstr("got 1000000 for latent 0"));
  EXPECT_THAT(message({tensor("latents", DType::kF32, {1, 2, 4, 3}, values),
                       tensor("labels", DType::kI64, {1}, std::vector<int64_t>{0})}),
              HasSubstr("got 1 in"));
}

TEST(LatentFilesTest, RefusesSetsThatCannotBeMeant) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([] { LatentFiles source({}); }), HasSubstr("at least one .safetensors"));
  EXPECT_THAT(error_of([&] { LatentFiles source({folder.path() / "missing.safetensors"}); }),
              AllOf(HasSubstr("missing.safetensors"), HasSubstr("No such file")));
  const fs::path other = folder.write("other.safetensors", std::string(100, 'x'));
  EXPECT_THAT(error_of([&] { LatentFiles source({other}); }), HasSubstr("other.safetensors"));

  const fs::path a = write_counted(folder.path() / "a.safetensors", {0, 1});
  const fs::path b = folder.path() / "b.safetensors";
  const std::vector<float> values = counted(24);
  const std::vector<int64_t> labels = {0, 1};
  io::write_safetensors(b, std::vector{tensor("latents", DType::kF32, {2, 2, 3, 2}, values),
                                       tensor("labels", DType::kI64, {2}, labels)});
  EXPECT_THAT(error_of([&] {
                LatentFiles source({a, b});
              }),
              AllOf(HasSubstr("a.safetensors are 2 x 2 x 3 of images"),
                    HasSubstr("got 2 x 3 x 2 of images in " + b.string())));
}

TEST(LatentFilesTest, LatentsAreNotFlipped) {
  const TemporaryFolder folder;
  const LatentFiles source({write_counted(folder.path() / "a.safetensors", {0, 1})});
  LoaderOptions options;
  options.random_flip = true;
  EXPECT_THAT(error_of([&] { Loader loader(source, options); }),
              HasSubstr("latents cannot be flipped"));
}

// A source may be anyone's: it must not write beyond its place in the batch.
TEST(LatentFilesTest, LatentOfAnotherSizeIsABadSample) {
  class TooLong : public Source {
   public:
    [[nodiscard]] int64_t size() const override { return 2; }
    [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
    [[nodiscard]] std::optional<SampleShape> latent_shape() const override {
      return SampleShape{1, 2, 2};
    }
    [[nodiscard]] std::string sample_name(int64_t /*index*/) const override { return "long"; }
    void read(int64_t /*index*/, Sample& out) const override {
      out.latent.mean = {DType::kF32, std::as_bytes(std::span(values_))};
    }

   private:
    std::vector<std::string> names_ = {"only"};
    std::array<float, 5> values_ = {};
  };
  const TooLong source;
  EXPECT_THAT(error_of([&] { (void)load_samples(source, all_of(source), 0, 0); }),
              HasSubstr("long must hold 1 x 2 x 2 values in each of 1 frames, got 5"));
}

}  // namespace latent_files_test
}  // namespace kinora::data
