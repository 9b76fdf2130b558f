// Feature networks against published ones with the same weights (tools/make_eval_fixtures.py).

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "kinora/device/host_bytes.h"
#include "kinora/eval/feature_network.h"
#include "kinora/io/file.h"
#include "kinora/io/safetensors.h"
#include "tests/error_of.h"
#include "tests/eval/network_files.h"
#include "tests/places.h"

namespace kinora::eval {
namespace networks_test {

using testing::HasSubstr;

namespace fs = std::filesystem;

constexpr double kTolerance = 1e-3;  // of the largest value; what is agreed with others

class NetworksTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = fs::temp_directory_path() / ("kinora-networks-" + std::to_string(::getpid()));
    fs::create_directories(folder);
    write_weights(folder / "resnet.safetensors", resnet_shapes());
  }
  static void TearDownTestSuite() { fs::remove_all(folder); }

  [[nodiscard]] at::Tensor expected(const std::string& name) const {
    const io::SafetensorsTensor* const found = file_.find(name);
    EXPECT_NE(found, nullptr) << name;
    return device::tensor_from_bytes(found->dtype, found->shape, found->data);
  }
  void expect_near(const at::Tensor& actual, const std::string& name) const {
    const at::Tensor want = expected(name);
    ASSERT_EQ(actual.sizes(), want.sizes()) << name;
    const double largest = want.abs().max().item<double>();
    EXPECT_LT((actual - want).abs().max().item<double>(), kTolerance * largest) << name;
  }
  [[nodiscard]] static NetworkOutput output_of(const FeatureNetwork& network,
                                               const std::vector<at::Tensor>& samples) {
    std::vector<at::Tensor> inputs;
    inputs.reserve(samples.size());
    for (const at::Tensor& sample : samples) {
      inputs.push_back(network.prepare(sample));
    }
    return network.forward(at::stack(inputs));
  }

  static fs::path folder;
  io::SafetensorsFile file_ =
      io::SafetensorsFile::open(source_path("tests/eval/data/networks.safetensors"));
};

fs::path NetworksTest::folder;

TEST_F(NetworksTest, InceptionEqualsThePublishedOnes) {
  const std::map<std::string, InputResize> ways = {{"tensorflow", InputResize::kTensorflow},
                                                   {"pytorch", InputResize::kPytorch},
                                                   {"clean", InputResize::kClean}};
  const std::vector<at::Tensor> images = {formula_pixels("image.0", {3, 40, 52}),
                                          formula_pixels("image.1", {3, 40, 52})};
  write_weights(folder / "inception.safetensors", inception_shapes());
  for (const auto& [name, resize] : ways) {
    const auto network =
        open_network({.weights = folder / "inception.safetensors", .resize = resize}, at::kCPU);
    EXPECT_TRUE(network->is_fid());
    EXPECT_EQ(network->name(), "inception-v3-fid, resize " + name);
    const NetworkOutput output = output_of(*network, images);
    expect_near(output.features, name + ".features");
    if (name == "tensorflow") {
      expect_near(output.logits, "tensorflow.logits");
    }
  }
}

TEST_F(NetworksTest, ResizingEqualsThePublishedOnes) {
  const at::Tensor large = formula_pixels("large", {3, 400, 350});
  const auto every = [&](InputResize resize) {
    return resized(large, 299, resize).slice(1, 0, std::nullopt, 23).slice(2, 0, std::nullopt, 23);
  };
  expect_near(every(InputResize::kTensorflow), "tensorflow.resized");
  expect_near(every(InputResize::kPytorch), "pytorch.resized");
  expect_near(every(InputResize::kClean), "clean.resized");
}

TEST_F(NetworksTest, ResnetEqualsTheJudges) {
  std::vector<at::Tensor> images;
  images.reserve(3);
  for (int i = 0; i < 3; ++i) {
    images.push_back(formula_pixels("small." + std::to_string(i), {3, 32, 32}));
  }
  const auto network = open_network({.weights = folder / "resnet.safetensors"}, at::kCPU);
  EXPECT_FALSE(network->is_fid());
  EXPECT_THAT(network->name(), testing::StartsWith("resnet20-cifar "));
  const NetworkOutput output = output_of(*network, images);
  expect_near(output.features, "resnet.features");
  expect_near(output.logits, "resnet.logits");
  EXPECT_THAT(error_of(ErrorKind::kShape,
                       [&] {
                         return network->prepare(formula_pixels("x", {3, 40, 40}));
                       }),
              HasSubstr("[3, 32, 32], got a sample of shape [3, 40, 40]"));
}

TEST_F(NetworksTest, DescriptionsNameWeightsAndNorms) {
  const auto describe = [&](const std::string& text) {
    io::write_file_atomic(folder / "network.json", text);
    return NetworkChoice{.weights = folder / "network.json"};
  };
  const auto refusal = [&](const std::string& text) {
    return error_of(ErrorKind::kIo, [&] { return open_network(describe(text), at::kCPU); });
  };
  const auto network =
      open_network(describe(R"({"architecture": "resnet20-cifar", "weights": "resnet.safetensors",
                   "mean": [0, 0, 0], "std": [1, 1, 0.5]})"),
                   at::kCPU);
  const at::Tensor pixels = formula_pixels("small.0", {3, 32, 32});
  const at::Tensor inputs = network->prepare(pixels);
  EXPECT_FLOAT_EQ(inputs[1][0][0].item<float>(), pixels[1][0][0].item<float>() / 255.0F);
  EXPECT_FLOAT_EQ(inputs[2][0][0].item<float>(), pixels[2][0][0].item<float>() / 127.5F);
  EXPECT_NE(network->name(),
            open_network({.weights = folder / "resnet.safetensors"}, at::kCPU)->name());
  EXPECT_THAT(refusal("[1]"), HasSubstr("a JSON object"));
  EXPECT_THAT(refusal(R"({"architecture": "resnet20-cifar"})"), HasSubstr("name its weights"));
  EXPECT_THAT(refusal(R"({"weight": "x"})"), HasSubstr("unknown key \"weight\""));
  EXPECT_THAT(refusal(R"({"architecture": "vgg", "weights": "resnet.safetensors"})"),
              HasSubstr("got \"vgg\""));
  EXPECT_THAT(refusal(R"({"weights": "resnet.safetensors", "mean": [0, 0]})"),
              HasSubstr("three numbers"));
  // The Inception's tensors are not in the ResNet's file.
  EXPECT_THAT(refusal(R"({"architecture": "inception-v3-fid", "weights": "resnet.safetensors"})"),
              HasSubstr("has no tensor Conv2d_1a_3x3"));
}

TEST_F(NetworksTest, OtherWeightsAreRefused) {
  write_weights(folder / "other.safetensors", {{"conv.weight", {4, 3, 3, 3}}});
  EXPECT_THAT(
      error_of(ErrorKind::kIo,
               [&] { return open_network({.weights = folder / "other.safetensors"}, at::kCPU); }),
      HasSubstr("must hold the weights of inception-v3-fid or resnet20-cifar"));
  std::map<std::string, std::vector<int64_t>> shapes = resnet_shapes();
  shapes["layer2.1.conv1.weight"] = {32, 16, 3, 3};
  write_weights(folder / "other.safetensors", shapes);
  EXPECT_THAT(
      error_of(ErrorKind::kIo,
               [&] { return open_network({.weights = folder / "other.safetensors"}, at::kCPU); }),
      HasSubstr("layer2.1.conv1.weight must have shape [32, 32, 3, 3], got [32, 16, 3, 3]"));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return open_network({}, at::kCPU); }),
              HasSubstr("one of weights and TorchScript"));
}

TEST_F(NetworksTest, TorchScriptTakesImagesAndClips) {
  const fs::path script = source_path("tests/eval/data/script.pt");
  const auto network = open_network({.script = script}, at::kCPU);
  const at::Tensor image = formula_pixels("image.0", {3, 8, 6});
  // Means, mean squares; return_features was set, or they would be zeros.
  const NetworkOutput output = output_of(*network, {image});
  const at::Tensor values = image.to(at::kFloat).flatten(1);
  const at::Tensor want = at::cat({values.mean(1), values.square().mean(1)});
  EXPECT_TRUE(output.features[0].allclose(want, 1e-4));
  EXPECT_TRUE(output.logits[0].allclose(values.mean(1), 1e-4));

  const auto small = open_network(
      {.script = script, .script_size = 4, .script_range = PixelRange::kSigned}, at::kCPU);
  const at::Tensor clip = at::stack({image, image}, 1);  // [3, 2, 8, 6]
  const at::Tensor inputs = small->prepare(clip);
  EXPECT_EQ(inputs.sizes(), at::IntArrayRef({3, 2, 4, 4}));
  EXPECT_TRUE(inputs.select(1, 1).allclose(small->prepare(image)));
  EXPECT_LE(inputs.abs().max().item<float>(), 1.0F);
  EXPECT_LT(inputs.min().item<float>(), 0.0F);
  EXPECT_EQ(output_of(*small, {clip}).features.sizes(), at::IntArrayRef({1, 9}));
}

TEST_F(NetworksTest, OtherFilesAreNoTorchScript) {
  const fs::path path = folder / "resnet.safetensors";
  EXPECT_THAT(error_of(ErrorKind::kIo, [&] { return open_network({.script = path}, at::kCPU); }),
              HasSubstr("must be a TorchScript module"));
  const auto network = open_network({.script = source_path("tests/eval/data/script.pt")}, at::kCPU);
  EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return network->forward(at::zeros({2})); }),
              HasSubstr("must take [2]"));
}

}  // namespace networks_test
}  // namespace kinora::eval
