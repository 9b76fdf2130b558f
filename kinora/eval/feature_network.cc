#include "kinora/eval/feature_network.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/eval/cifar_resnet.h"
#include "kinora/eval/inception.h"
#include "kinora/eval/script_network.h"
#include "kinora/io/file.h"

namespace kinora::eval {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxDescriptionBytes = 1 << 20;
constexpr const char* kInceptionName = "inception-v3-fid";
constexpr const char* kResnetName = "resnet20-cifar";

/// Which weights of which architecture.
struct Description {
  std::string architecture;
  fs::path weights;
  PixelNorm norm;
};

std::array<double, 3> three_numbers(const nlohmann::json& value, const std::string& key) {
  const auto is_number = [](const nlohmann::json& each) { return each.is_number(); };
  KINORA_CHECK(
      value.is_array() && value.size() == 3 && std::all_of(value.begin(), value.end(), is_number),
      kIo, "[features] ", quote(key), " must be three numbers, got ", value.dump());
  return {value[0].get<double>(), value[1].get<double>(), value[2].get<double>()};
}

Description read_description(const fs::path& path) {
  const nlohmann::json json =
      nlohmann::json::parse(io::read_text(path, kMaxDescriptionBytes), nullptr, false);
  KINORA_CHECK(json.is_object(), kIo, "[features] ", path.string(), " must be a JSON object");
  Description description;
  for (const auto& [key, value] : json.items()) {
    const bool is_text = key == "architecture" || key == "weights";
    KINORA_CHECK(is_text || key == "mean" || key == "std", kIo, "[features] ", path.string(),
                 " has the unknown key ", quote(key));
    KINORA_CHECK(!is_text || value.is_string(), kIo, "[features] ", quote(key),
                 " must be text, got ", value.dump());
    if (key == "architecture") {
      description.architecture = value.get<std::string>();
    } else if (key == "weights") {
      description.weights = path.parent_path() / value.get<std::string>();
    } else {
      (key == "mean" ? description.norm.mean : description.norm.std) = three_numbers(value, key);
    }
  }
  KINORA_CHECK(!description.weights.empty(), kIo, "[features] ", path.string(),
               " must name its weights");
  return description;
}

/// Of bare weights, by their names.
Description recognise(const fs::path& path, const checkpoint::WeightsFile& file) {
  if (file.contains("Mixed_7c.branch_pool.conv.weight")) {
    return {.architecture = kInceptionName, .weights = path, .norm = {}};
  }
  const bool is_resnet =
      file.contains("layer3.2.conv2.weight") || file.contains("module.layer3.2.conv2.weight");
  KINORA_CHECK(is_resnet, kIo, "[features] ", path.string(), " must hold the weights of ",
               kInceptionName, " or ", kResnetName,
               ", got other names. Hint: other networks come as TorchScript (--torchscript)");
  return {.architecture = kResnetName, .weights = path, .norm = {}};
}

}  // namespace

std::string named_by_content(const std::string& kind, const fs::path& path) {
  return kind + " " + io::checksum(io::MappedFile(path).bytes());
}

std::unique_ptr<FeatureNetwork> open_network(const NetworkChoice& choice, at::Device device) {
  KINORA_CHECK(choice.weights.empty() != choice.script.empty(), kConfig,
               "[features] give one of weights and TorchScript");
  if (!choice.script.empty()) {
    return std::make_unique<ScriptNetwork>(choice, named_by_content("torchscript", choice.script),
                                           device);
  }
  const bool is_described = choice.weights.extension() == ".json";
  const Description described = is_described ? read_description(choice.weights) : Description{};
  const fs::path& path = is_described ? described.weights : choice.weights;
  const auto file = checkpoint::WeightsFile::open(path);
  const Description description = is_described ? described : recognise(path, file);
  if (description.architecture == kInceptionName) {
    return std::make_unique<Inception>(file, choice.resize, device);
  }
  KINORA_CHECK(description.architecture == kResnetName, kIo, "[features] architecture must be ",
               kInceptionName, " or ", kResnetName, ", got ", quote(description.architecture));
  std::string name = named_by_content(kResnetName, path);
  if (is_described) {
    name = named_by_content(name, choice.weights);  // mean and std are part of it
  }
  return std::make_unique<CifarResnet>(file, std::move(name), description.norm, device);
}

}  // namespace kinora::eval
