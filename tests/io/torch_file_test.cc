#include "kinora/io/torch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>

#include "kinora/io/safetensors.h"
#include "tests/io/io_testing.h"
#include "tests/io/zip_builder.h"
#include "tests/places.h"

namespace kinora::io {
namespace torch_file_test {

using test::error_message;
using test::le;
using test::make_zip;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::filesystem::path kData = source_path("tests/io/data");

using Entries = std::vector<std::pair<std::string, std::string>>;

/// Opcodes by hand.
std::string text(const std::string& value) {
  return "X" + le(4, value.size()) + value;
}
std::string integer(int64_t value) {
  return "\x8a\x08" + le(8, static_cast<uint64_t>(value));
}
std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
std::string integers(const std::vector<int64_t>& values) {
  std::string code = "(";
  for (const int64_t value : values) {
    code += integer(value);
  }
  return code + "t";
}
std::string storage(int64_t num_elements, const std::string& key = "0",
                    const std::string& type = "FloatStorage") {
  return "(" + text("storage") + global("torch", type) + text(key) + text("cpu") +
         integer(num_elements) + "tQ";
}
std::string tensor(int64_t offset, const std::vector<int64_t>& shape,
                   const std::vector<int64_t>& strides, const std::string& from = storage(6)) {
  return global("torch._utils", "_rebuild_tensor_v2") + "(" + from + integer(offset) +
         integers(shape) + integers(strides) + "\x89" + global("collections", "OrderedDict") +
         ")RtR";
}
std::string times(size_t count, const std::string& code) {
  std::string all;
  for (size_t i = 0; i < count; ++i) {
    all += code;
  }
  return all;
}

/// The floats 0, 1, 2, ... as bytes.
std::string floats(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0F);
  return {reinterpret_cast<const char*>(values.data()), count * sizeof(float)};
}

std::vector<float> float_values(const TorchTensor& tensor) {
  const std::vector<std::byte> bytes = contiguous(tensor);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void overwrite(const std::filesystem::path& path, const std::string& content) {
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << content;
}

/// Files made in the test, of one pickle and storage "0" with six floats.
class MadeTorchFileTest : public ::testing::Test {
 protected:
  TorchFile open(const Entries& entries) {
    std::ofstream(path_, std::ios::binary) << make_zip(entries);
    return TorchFile::open(path_);
  }
  TorchFile open_pickle(const std::string& code) {
    return open({{"archive/data.pkl", "\x80\x02" + code + "."}, {"archive/data/0", floats(6)}});
  }
  std::string refusal(const std::string& code) {
    std::string message = error_message(ErrorKind::kIo, [&] { (void)open_pickle(code); });
    EXPECT_THAT(message, HasSubstr(path_.string()));
    return message;
  }
  std::string raw_refusal(const std::string& content) {
    std::ofstream(path_, std::ios::binary) << content;
    std::string message = error_message(ErrorKind::kIo, [&] { (void)TorchFile::open(path_); });
    EXPECT_THAT(message, HasSubstr(path_.string()));
    return message;
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "made.pt";
};

class WrittenByTorchTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Formats, WrittenByTorchTest,
                         ::testing::Values("torch_zip.pt", "torch_zip_protocol4.pt",
                                           "torch_legacy.pt"),
                         [](const auto& param) {
                           const std::string name = param.param;
                           return name.substr(0, name.find('.'));
                         });

TEST_P(WrittenByTorchTest, TensorsEqualThoseThatPythonExports) {
  const TorchFile file = TorchFile::open(kData / GetParam());
  file.verify();
  const SafetensorsFile expected = SafetensorsFile::open(kData / "torch_expected.safetensors");
  const std::vector<NamedTorchTensor> tensors = file.tensors();
  EXPECT_EQ(tensors.size(), expected.tensors().size());
  for (const auto& [name, tensor] : tensors) {
    const SafetensorsTensor* reference = expected.find(name);
    ASSERT_NE(reference, nullptr) << name;
    EXPECT_EQ(tensor->dtype, reference->dtype) << name;
    EXPECT_EQ(tensor->shape, reference->shape) << name;
    EXPECT_TRUE(std::ranges::equal(contiguous(*tensor), reference->data)) << name;
  }
}

TEST_P(WrittenByTorchTest, PathsLeadIntoDicts) {
  const TorchFile file = TorchFile::open(kData / GetParam());
  const std::vector<NamedTorchTensor> ema = file.tensors("ema");
  ASSERT_EQ(ema.size(), 1U);
  EXPECT_EQ(ema[0].name, "weight");
  EXPECT_THAT(ema[0].tensor->shape, ElementsAre(2, 3));
  EXPECT_EQ(file.tensors("model").at(0).name, "plain.weight");
  EXPECT_EQ(file.tensors("opt/state").at(0).name, "0.step");
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)file.tensors("emo"); }),
              AllOf(HasSubstr(GetParam()), HasSubstr("\"emo\""), HasSubstr("\"model\", \"ema\"")));
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)file.tensors("ema/weight"); }),
              HasSubstr("must be a dict or list, got a tensor"));
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)file.tensors("ema/weight/x"); }),
              HasSubstr("a tensor instead of a dict"));
}

TEST_P(WrittenByTorchTest, ViewsKeepTheirStorage) {
  const TorchFile file = TorchFile::open(kData / GetParam());
  const TorchTensor* plain = nullptr;
  const TorchTensor* tied = nullptr;
  const TorchTensor* transposed = nullptr;
  for (const auto& [name, tensor] : file.tensors("model")) {
    plain = name == "plain.weight" ? tensor : plain;
    tied = name == "tied.weight" ? tensor : tied;
    transposed = name == "transposed" ? tensor : transposed;
  }
  EXPECT_EQ(plain->storage.data(), tied->storage.data());
  EXPECT_EQ(plain->storage.data(), transposed->storage.data());
  EXPECT_THAT(transposed->strides, ElementsAre(1, 6));
}

TEST_P(WrittenByTorchTest, OtherValuesArePlain) {
  const TorchFile file = TorchFile::open(kData / GetParam());
  const PickleRef args_value = find(*file.root().get_if<PickleDict>(), "args");
  const PickleDict& args = *args_value->get_if<PickleDict>();
  EXPECT_EQ(args.kind, PickleDict::Kind::kNamespace);
  EXPECT_EQ(*find(args, "model")->get_if<std::string_view>(), "DiT-XL/2");
  EXPECT_EQ(*find(args, "image_size")->get_if<int64_t>(), 256);
  EXPECT_EQ(*find(args, "big")->get_if<int64_t>(), int64_t{1} << 40);
  EXPECT_EQ(find(args, "huge")->get_if<PickleBigInt>()->bytes.size(), 11U);
  EXPECT_EQ(*find(args, "negative")->get_if<int64_t>(), -3);
  EXPECT_EQ(*find(args, "lr")->get_if<double>(), 1e-4);
  EXPECT_NE(find(args, "resume")->get_if<PickleNone>(), nullptr);
  EXPECT_EQ(*find(args, "amp")->get_if<bool>(), false);
  EXPECT_EQ(*find(args, "betas")->get_if<PickleTuple>()->items.at(1)->get_if<double>(), 0.999);
  EXPECT_EQ(*find(args, "layers")->get_if<PickleList>()->items.at(1)->get_if<int64_t>(), 2);
  EXPECT_EQ((*find(args, "dtype")->get_if<const PickleGlobal*>())->dtype, DType::kBF16);
  EXPECT_EQ(find(args, "device")->get_if<PickleOpaque>()->name, "device");
  EXPECT_EQ(*find(args, "size")->get_if<PickleTuple>()->items.at(0)->get_if<int64_t>(), 2);
  EXPECT_EQ(find(args, "none"), nullptr);
}

TEST_P(WrittenByTorchTest, StaysValidWhenMoved) {
  TorchFile first = TorchFile::open(kData / GetParam());
  const TorchFile second = std::move(first);
  EXPECT_THAT(float_values(*second.tensors("ema").at(0).tensor), ElementsAre(0, 1, 2, 3, 4, 5));
  second.verify();
}

TEST_P(WrittenByTorchTest, EveryCutIsRefused) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "cut.pt";
  std::filesystem::copy_file(kData / GetParam(), path);
  for (size_t size = std::filesystem::file_size(path); size-- > 0;) {
    std::filesystem::resize_file(path, size);
    EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)TorchFile::open(path); }),
                HasSubstr("cut.pt"));
  }
}

TEST_P(WrittenByTorchTest, DamageIsRefusedOrHarmless) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "damaged.pt";
  const std::string sound = read_text(kData / GetParam(), 1 << 20);
  std::ofstream(path, std::ios::binary) << sound;
  std::mt19937 random(11);
  int num_refused = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string damaged = sound;
    for (size_t flips = 1 + random() % 3; flips > 0; --flips) {
      damaged[random() % sound.size()] = static_cast<char>(random());
    }
    // In a zip file a checksum protects the pickle; without one the machine itself must hold.
    if (sound[0] == 'P' && i % 2 == 0) {
      const size_t central = damaged.find("PK\x01\x02");
      for (size_t at = central; at < damaged.size(); at = damaged.find("PK\x01\x02", at + 1)) {
        damaged.replace(at + 16, 4, 4, '\0');
      }
    }
    overwrite(path, damaged);
    try {
      const TorchFile file = TorchFile::open(path);
      for (const auto& [name, tensor] : file.tensors()) {
        (void)checksum(contiguous(*tensor));  // touches every byte
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo) << error.what();
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 1000);
  EXPECT_LT(num_refused, 4000);  // damage in data is not seen here
}

TEST(TorchFileTest, ReadsFilesWithoutChecksums) {
  const TorchFile file = TorchFile::open(kData / "torch_zip_no_crc.pt");
  file.verify();
  EXPECT_THAT(float_values(*file.tensors().at(0).tensor), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(TorchFileTest, VerifyFindsDamagedData) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a.pt";
  std::string content = read_text(kData / "torch_zip.pt", 1 << 20);
  const TorchFile sound = TorchFile::open(kData / "torch_zip.pt");
  const auto* data = sound.tensors("ema").at(0).tensor->storage.data();
  const MappedFile whole(kData / "torch_zip.pt");
  const size_t at = content.find(std::string(reinterpret_cast<const char*>(data), 24));
  content[at + 5] = 'x';
  std::ofstream(path, std::ios::binary) << content;
  const TorchFile damaged = TorchFile::open(path);
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { damaged.verify(); }), HasSubstr("CRC-32"));
}

std::filesystem::path real_data(const std::string& name) {
  const char* variable = std::getenv("KINORA_DATA");
  return (variable != nullptr ? std::filesystem::path(variable) : source_path("../shared/data")) /
         name;
}

/// CRC-32 of all tensors, one after the other. The expected values are zlib.crc32 of what
/// torch.load gives.
uint32_t sum_of(const std::vector<NamedTorchTensor>& tensors) {
  std::vector<std::byte> all;
  for (const auto& [name, tensor] : tensors) {
    const std::vector<std::byte> bytes = contiguous(*tensor);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return crc32(all);
}

TEST(TorchFileTest, ReadsRealZipFiles) {
  const auto path = real_data("weights/taef2/taef2_decoder.pth");
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << "no " << path << "; set KINORA_DATA";
  }
  const TorchFile file = TorchFile::open(path);
  file.verify();
  EXPECT_EQ(file.tensors().size(), 79U);
  EXPECT_EQ(sum_of(file.tensors()), 0x2ed59ff3U);
}

TEST(TorchFileTest, ReadsRealLegacyFiles) {
  const auto path = real_data("weights/cifar_resnet20/resnet20-12fca82f.th");
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << "no " << path << "; set KINORA_DATA";
  }
  const TorchFile file = TorchFile::open(path);
  EXPECT_NEAR(*find(*file.root().get_if<PickleDict>(), "best_prec1")->get_if<double>(), 91.78,
              1e-5);
  EXPECT_EQ(file.tensors("state_dict").size(), 97U);
  EXPECT_EQ(sum_of(file.tensors("state_dict")), 0x1d128e52U);
  // ResNet-20 has 0.27 million parameters (He et al. 2015, table 6).
  int64_t num_parameters = 0;
  for (const auto& [name, tensor] : file.tensors("state_dict")) {
    num_parameters += name.find("running_") == std::string::npos ? tensor->num_elements : 0;
  }
  EXPECT_EQ((num_parameters + 5000) / 10000, 27);
  EXPECT_THAT(file.tensors("state_dict").at(0).tensor->shape, ElementsAre(16, 3, 3, 3));
}

TEST_F(MadeTorchFileTest, TheHandMadeBaseIsSound) {
  const TorchFile file = open_pickle("]" + tensor(1, {2, 2}, {3, 1}) + "a");
  ASSERT_EQ(file.tensors().size(), 1U);
  EXPECT_EQ(file.tensors()[0].name, "0");
  EXPECT_THAT(float_values(*file.tensors()[0].tensor), ElementsAre(1, 2, 4, 5));
  // Dims of one element may have any stride.
  EXPECT_THAT(float_values(*open_pickle("(" + tensor(4, {1, 2}, {int64_t{1} << 62, 1}) + "t")
                                .tensors()
                                .at(0)
                                .tensor),
              ElementsAre(4, 5));
  // A typed tensor of an untyped storage, as PyTorch 2 writes dtypes without a storage class.
  const std::string typed = global("torch._utils", "_rebuild_tensor_v3") + "((" + text("storage") +
                            global("torch.storage", "UntypedStorage") + text("0") + text("cpu") +
                            integer(24) + "tQ" + integer(2) + integers({2}) + integers({1}) +
                            "\x89N" + global("torch", "float32") + "tR";
  EXPECT_THAT(float_values(*open_pickle("(" + typed + "t").tensors().at(0).tensor),
              ElementsAre(2, 3));
}

TEST_F(MadeTorchFileTest, ViewsOfLegacyStoragesStayWithinThem) {
  const auto view = [](int64_t offset, int64_t size) {
    return "(" + text("storage") + global("torch", "FloatStorage") + text("0") + text("cpu") +
           integer(6) + "(" + text("view") + integer(offset) + integer(size) + "ttQ";
  };
  const TorchFile file = open_pickle("(" + tensor(1, {2}, {1}, view(2, 4)) + "t");
  EXPECT_THAT(float_values(*file.tensors().at(0).tensor), ElementsAre(3, 4));
  EXPECT_THAT(refusal(tensor(3, {2}, {1}, view(2, 4))), HasSubstr("4 elements"));
  EXPECT_THAT(refusal(tensor(0, {1}, {1}, view(5, 2))), HasSubstr("views within"));
  EXPECT_THAT(refusal(tensor(0, {1}, {1}, view(-1, 2))), HasSubstr("views within"));
}

TEST_F(MadeTorchFileTest, CodeIsNamedAndNeverRun) {
  const std::string trace = (folder_.path() / "trace").string();
  const std::string command = text("touch " + trace);
  EXPECT_THAT(refusal(global("os", "system") + command + "\x85R"),
              AllOf(HasSubstr("\"os.system\""), HasSubstr("None of its code was run")));
  EXPECT_THAT(refusal(global("posix", "system") + command + "\x85R"), HasSubstr("posix.system"));
  EXPECT_THAT(refusal(global("builtins", "eval") + text("1") + "\x85R"),
              HasSubstr("builtins.eval"));
  EXPECT_THAT(refusal(global("__builtin__", "eval") + text("1") + "\x85R"), HasSubstr("eval"));
  EXPECT_THAT(refusal(text("os") + text("system") + "\x93" + command + "\x85R"),
              HasSubstr("os.system"));
  EXPECT_THAT(refusal(integer(1) + text("system") + "\x93"), HasSubstr("a module's name"));
  EXPECT_THAT(refusal(global("torch.nn.modules.linear", "Linear") + ")\x81"), HasSubstr("Linear"));
  EXPECT_THAT(refusal("(" + text("storage") + global("torch", "ComplexFloatStorage") + text("0") +
                      text("cpu") + "K\x01tQ"),
              HasSubstr("ComplexFloatStorage"));
  EXPECT_THAT(refusal(global("torch.storage", "_load_from_bytes") + command + "\x85R"),
              HasSubstr("_load_from_bytes"));
  EXPECT_THAT(refusal("cno end of line" + std::string(300, 'x')), HasSubstr("end a line"));
  for (const char* opcode : {"\x82\x01", "\x83\x01\x02", "\x84\x01\x02\x03\x04",  // EXT
                             "i", "o", "P0\n", "\x92", "\x8f", "I1\n", "\x96"}) {
    EXPECT_THAT(refusal(opcode), HasSubstr("opcode"));
  }
  EXPECT_FALSE(std::filesystem::exists(trace));
}

// As pytorch_lightning's callbacks are keys of a .ckpt.
TEST_F(MadeTorchFileTest, NamesThatMakeNothingStayUnread) {
  const std::string callback = global("lightning.callbacks", "ModelCheckpoint");
  const auto made = open_pickle("}(" + callback + "}" + text("best") + callback + "su");
  const auto* root = made.root().get_if<PickleDict>();
  ASSERT_NE(root, nullptr);
  ASSERT_EQ(root->items.size(), 1U);
  const auto* name = root->items.front().first->get_if<PickleName>();
  ASSERT_NE(name, nullptr);
  EXPECT_EQ(name->module, "lightning.callbacks");
  EXPECT_EQ(name->name, "ModelCheckpoint");
  EXPECT_TRUE(made.tensors("").empty());
  EXPECT_THAT(refusal(callback + ")\x81"), HasSubstr("\"lightning.callbacks.ModelCheckpoint\""));
}

TEST_F(MadeTorchFileTest, ListedNamesOnlyDoTheirOwnWork) {
  const std::string ordered = global("collections", "OrderedDict");
  EXPECT_THAT(refusal(ordered + "]\x85R"), HasSubstr("OrderedDict empty"));
  EXPECT_THAT(refusal(ordered + "N\x85\x81"), HasSubstr("plain containers"));
  EXPECT_THAT(refusal(global("torch", "FloatStorage") + ")R"), HasSubstr("known functions"));
  EXPECT_THAT(refusal(global("torch", "FloatStorage") + ")\x81"), HasSubstr("plain containers"));
  EXPECT_THAT(refusal("])R"), HasSubstr("a function here, got a list"));
  EXPECT_THAT(refusal(global("torch", "Size") + ")R"), HasSubstr("1 tuple"));
  EXPECT_THAT(refusal(global("torch._utils", "_rebuild_parameter") + ")R"), HasSubstr("nothing"));
  EXPECT_THAT(refusal("}}b"), HasSubstr("OrderedDict and Namespace only, got a dict"));
  EXPECT_THAT(refusal("]}b"), HasSubstr("got a list"));
  EXPECT_THAT(refusal(tensor(0, {1}, {1}) + "}b"), HasSubstr("got a tensor"));
  EXPECT_THAT(refusal(ordered + ")RNb"), HasSubstr("a dict of attributes here, got None"));
  // A namespace that takes its own attributes must not read what it changes.
  (void)open_pickle(global("argparse", "Namespace") + ")\x81q\x01(" + text("a") + "Nuh\x01" + "b");
}

TEST_F(MadeTorchFileTest, BrokenStacksAndMemosAreRefused) {
  for (const char* code : {"0", "1", "2", "\x85", "\x87", "t", "a", "e", "s", "u", "R", "Q", "b",
                           "q\x01", "\x94", "\x81", "\x93", "(00"}) {
    EXPECT_THAT(refusal(code), HasSubstr("the pickle must have")) << code;
  }
  EXPECT_THAT(refusal(""), HasSubstr("end with one value, got 0"));
  EXPECT_THAT(refusal("NN"), HasSubstr("end with one value, got 2"));
  EXPECT_THAT(refusal("N("), HasSubstr("1 marks"));
  EXPECT_THAT(refusal("](a"), HasSubstr("a value here"));  // not below the mark
  EXPECT_THAT(refusal("NNa"), HasSubstr("a list to append to here, got None"));
  EXPECT_THAT(refusal("]NNs"), HasSubstr("a dict to set items of"));
  EXPECT_THAT(refusal("}(Nu"), HasSubstr("pairs"));
  EXPECT_THAT(refusal("h\x07"), HasSubstr("known memo numbers, got 7"));
  EXPECT_THAT(refusal("j" + le(4, 0xffffffff)), HasSubstr("4294967295"));
  EXPECT_THAT(refusal("\x80\x01N"), HasSubstr("protocol 2 to 5, got 1"));
  EXPECT_THAT(refusal("\x80\x06N"), HasSubstr("got 6"));
  EXPECT_NE(open_pickle("(0N").root().get_if<PickleNone>(), nullptr);  // a mark can be popped
}

TEST_F(MadeTorchFileTest, HugeSizesAreRefused) {
  EXPECT_THAT(refusal("\x8e" + le(8, ~uint64_t{0})), HasSubstr("18446744073709551615 bytes"));
  EXPECT_THAT(refusal("\x8d" + le(8, uint64_t{1} << 62)), HasSubstr("bytes"));
  EXPECT_THAT(refusal("B" + le(4, 0xffffffff)), HasSubstr("4294967295 bytes"));
  EXPECT_THAT(refusal("T" + le(4, 0xffffffff)), HasSubstr("4294967295 bytes"));
  EXPECT_THAT(refusal("\x95" + le(8, uint64_t{1} << 62) + "N"), HasSubstr("frame"));
  EXPECT_THAT(refusal("\x8b" + le(4, 0xffffffff)), HasSubstr("from 0 on, got -1"));
  EXPECT_THAT(refusal("\x8b" + le(4, 0x7fffffff)), HasSubstr("2147483647 bytes"));
  EXPECT_EQ(*open_pickle("\x8b" + le(4, 0)).root().get_if<int64_t>(), 0);
}

TEST_F(MadeTorchFileTest, BombsAreRefused) {
  constexpr size_t kMany = 200'000;
  EXPECT_THAT(refusal(times(kMany, "]") + times(kMany - 1, "a")), HasSubstr("100 levels"));
  EXPECT_THAT(refusal(")" + times(kMany, "\x85")), HasSubstr("100 levels"));
  EXPECT_THAT(refusal(times(kMany, "(") + "N" + times(kMany, "t")), HasSubstr("100 levels"));
  EXPECT_THAT(refusal("Nq\x01" + times(101, "\x85")), HasSubstr("100 levels"));
  (void)open_pickle("N" + times(99, "\x85"));
  // Every level holds the one below twice, so 2^60 values from 240 bytes.
  EXPECT_THAT(refusal("N" + times(60, "2\x86")), HasSubstr("10000000"));
  EXPECT_THAT(refusal("]q\x01h\x01"
                      "a"),
              HasSubstr("contains itself"));
  EXPECT_THAT(refusal("]q\x01}q\x02(Nh\x01uah\x02"
                      "0h\x01"
                      "0"),
              HasSubstr("contains itself"));
}

TEST_F(MadeTorchFileTest, ValuesAreLimited) {
  EXPECT_THAT(refusal(times(10'000'001, "N") + times(10'000'000, "0")), HasSubstr("values"));
}

TEST_F(MadeTorchFileTest, TensorsStayWithinTheirStorage) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_THAT(refusal(tensor(0, {7}, {1})), HasSubstr("6 elements, got one that reaches index 6"));
  EXPECT_THAT(refusal(tensor(6, {1}, {1})), HasSubstr("index 6"));
  EXPECT_THAT(refusal(tensor(0, {2, 2}, {5, 1})), HasSubstr("index 6"));
  EXPECT_THAT(refusal(tensor(-1, {1}, {1})), HasSubstr("offset from 0 on"));
  EXPECT_THAT(refusal(tensor(0, {-1}, {1})), HasSubstr("from 0 on, got -1"));
  EXPECT_THAT(refusal(tensor(5, {2}, {-1})), HasSubstr("from 0 on, got -1"));
  EXPECT_THAT(refusal(tensor(0, {2}, {1, 1})), HasSubstr("as many strides"));
  EXPECT_THAT(refusal(tensor(0, {3}, {kHuge})), HasSubstr("beyond 2^63"));
  EXPECT_THAT(refusal(tensor(0, {4, kHuge}, {0, 0})), HasSubstr("beyond 2^63"));
  EXPECT_THAT(refusal(tensor(0, {4, kHuge, 0}, {0, 0, 0})), HasSubstr("beyond 2^63"));
  EXPECT_THAT(refusal(tensor(kHuge, {2}, {kHuge})), HasSubstr("beyond 2^63"));
  EXPECT_THAT(refusal(tensor(0, {kHuge / 4}, {0})), HasSubstr("repeated elements"));
  EXPECT_THAT(refusal(tensor(0, {1}, {1}, storage(kHuge))), HasSubstr("0 to 2^63 bytes"));
  EXPECT_THAT(refusal(tensor(0, {1}, {1}, storage(-1))), HasSubstr("got -1 elements"));
  EXPECT_THAT(refusal(tensor(0, {1}, {1}, storage(7))), HasSubstr("28 bytes, got 24"));
  EXPECT_THAT(refusal(tensor(0, {1}, {1}, storage(6, "../0"))), HasSubstr("\"../0\", got none"));
  EXPECT_THAT(refusal(tensor(0, {1}, {1}) + tensor(0, {1}, {1}, storage(5)) + "\x86"),
              HasSubstr("one size, got 24 and 20"));
  EXPECT_THAT(refusal(tensor(0, std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1))),
              HasSubstr("64 dims"));
  EXPECT_THAT(refusal(tensor(0, {1}, {1}, text("0"))), HasSubstr("a storage here, got text"));
  EXPECT_THAT(refusal("(" + text("module") + "NNNNtQ"), HasSubstr("storages only, got \"module\""));
}

TEST_F(MadeTorchFileTest, EqualNamesAreRefused) {
  const TorchFile file = open_pickle("}(" + text("a.b") + tensor(0, {1}, {1}) + text("a") + "}(" +
                                     text("b") + tensor(0, {1}, {1}) + "uu");
  EXPECT_THAT(error_message(ErrorKind::kIo, [&] { (void)file.tensors(); }),
              AllOf(HasSubstr("\"a.b\" twice"), HasSubstr(path_.string())));
}

TEST_F(MadeTorchFileTest, OtherFilesAreNamed) {
  const std::string pickle = "\x80\x02N.";
  const auto refused = [&](const Entries& entries) { return raw_refusal(make_zip(entries)); };
  EXPECT_THAT(refused({{"a/b", ""}}), HasSubstr("without data.pkl"));
  EXPECT_THAT(refused({{"data.pkl", pickle}}), HasSubstr("without data.pkl"));
  EXPECT_THAT(refused({{"a/data.pkl", pickle}, {"b/data.pkl", pickle}}), HasSubstr("several"));
  EXPECT_THAT(refused({{"a/data.pkl", pickle}, {"a/code/x.py", ""}}), HasSubstr("TorchScript"));
  EXPECT_THAT(refused({{"a/data.pkl", pickle}, {"a/byteorder", "big"}}),
              HasSubstr("little-endian, got byte order \"big\""));
  EXPECT_THAT(refused({{"a/data.pkl", pickle + "x"}}), HasSubstr("1 bytes more"));
  EXPECT_THAT(raw_refusal("version https://git-lfs.github.com/spec/v1\n"),
              HasSubstr("git lfs pull"));
  EXPECT_THAT(raw_refusal("<html>"), HasSubstr("web page"));
  EXPECT_THAT(raw_refusal("hello"), HasSubstr("\"hello\""));
  EXPECT_THAT(raw_refusal(""), HasSubstr("must be a file of torch.save"));
  EXPECT_THAT(raw_refusal(std::string(257, '\0') + "ustar" + std::string(250, '\0')),
              HasSubstr("tar file"));
  EXPECT_THAT(raw_refusal("\x80\x02N."), HasSubstr("another pickle"));
}

TEST_F(MadeTorchFileTest, LegacyHeadersAreChecked) {
  const std::string magic =
      std::string("\x80\x02\x8a\x0a", 4) + "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19" + ".";
  const auto order = [](const std::string& value) {
    return "\x80\x02}" + text("little_endian") + value + "s.";
  };
  const std::string version = "\x80\x02M\xe9\x03.";
  const std::string object = "\x80\x02" + tensor(0, {2}, {1}, storage(2)) + ".";
  const std::string sound =
      magic + version + order("\x88") + object + "\x80\x02]" + text("0") + "a." + le(8, 2);
  std::ofstream(path_, std::ios::binary) << sound + floats(2);
  (void)TorchFile::open(path_);
  EXPECT_THAT(raw_refusal(sound + floats(2) + "x"), HasSubstr("1 bytes more"));
  EXPECT_THAT(raw_refusal(sound + floats(1)), HasSubstr("cut off"));
  const std::string start = magic + version + order("\x88") + object;
  EXPECT_THAT(raw_refusal(start + "\x80\x02]" + text("0") + "a." + le(8, 3) + floats(2)),
              HasSubstr("2 elements, got 3"));
  EXPECT_THAT(raw_refusal(start + "\x80\x02]." + le(8, 2) + floats(2)),
              HasSubstr("1 storages, got 0"));
  EXPECT_THAT(raw_refusal(start + "\x80\x02]" + text("1") + "a." + le(8, 2) + floats(2)),
              HasSubstr("got \"1\""));
  EXPECT_THAT(raw_refusal(start + "\x80\x02N."), HasSubstr("list of storages, got None"));
  EXPECT_THAT(raw_refusal(magic + version + order("\x89")), HasSubstr("big-endian"));
  EXPECT_THAT(raw_refusal(magic + version + "\x80\x02N."), HasSubstr("no byte order"));
  EXPECT_THAT(raw_refusal(magic + "\x80\x02M\xea\x03."), HasSubstr("1001, got 1002"));
}

}  // namespace torch_file_test
}  // namespace kinora::io
