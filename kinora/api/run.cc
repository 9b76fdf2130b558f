// Training a recipe, and loading what was trained.

#include <utility>

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/trained_model.h"
#include "kinora/kinora.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/train/trainer.h"

namespace kinora {
namespace {

DeviceChoice device_of(const std::string& device) {
  if (device == "auto") {
    return DeviceChoice::kAuto;
  }
  KINORA_CHECK(device == "cpu" || device == "cuda", kConfig,
               "[load] device must be auto, cpu or cuda, got ", quote(device));
  return device == "cpu" ? DeviceChoice::kCpu : DeviceChoice::kCuda;
}

}  // namespace

FinishedRun train_recipe(const std::filesystem::path& recipe,
                         const std::vector<std::string>& overrides, const std::string& resume) {
  const auto config = load_config<train::RunConfig>(recipe.string(), overrides);
  const train::TrainResult result = train::Trainer(config, train::Resume::parse(resume)).run();
  return {.folder = config.run_dir, .steps = result.step, .last_loss = result.last_loss};
}

Model::Model(std::unique_ptr<inference::TrainedModel> trained,
             std::unique_ptr<models::Autoencoder> decoder)
    : trained_(std::move(trained)), decoder_(std::move(decoder)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model load(const std::filesystem::path& path, const LoadOptions& options) {
  auto trained = std::make_unique<inference::TrainedModel>(
      inference::load_trained(path, {.ema = options.averaged,
                                     .device = device_of(options.device),
                                     .exchange_experts = options.exchange_experts,
                                     .overrides = options.overrides,
                                     .config_file = options.recipe,
                                     .adapters = options.adapters}));
  auto decoder = inference::open_decoder(trained->recipe, {}, trained->device);
  return {std::move(trained), std::move(decoder)};
}

}  // namespace kinora
