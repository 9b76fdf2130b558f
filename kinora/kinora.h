#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/io/image.h"
#include "kinora/io/image_grid.h"

namespace at {
class Tensor;
}
namespace kinora::models {
class Autoencoder;
}
namespace kinora::inference {
struct TrainedModel;
}

/// Kinora in a few functions, for programs of one process that use it: train a recipe, load what
/// was trained, draw from it. kinora/boost.h has the fourth, which trains a model of your own. They
/// compile in a second, since libtorch's headers stay out; what they do not offer is in the rooms
/// below (docs/architecture.md).
///
///   auto run = kinora::train_recipe("configs/demo.yaml", {"run.dir=runs/demo"});
///   auto model = kinora::load(run.folder);
///   auto images = kinora::draw(model, {.classes = {0, 1}, .count = 8});
///   kinora::io::write_png("grid.png", kinora::io::make_grid(images));
///
/// Errors are kinora::Error (kinora/core/error.h).
namespace kinora {

/// What train_recipe() has done.
struct FinishedRun {
  std::filesystem::path folder;  ///< run.dir, with checkpoints, log and samples
  int64_t steps = 0;             ///< optimizer updates in all
  double last_loss = 0.0;        ///< 0 if no step was left to take
};

/// Trains as the recipe, a YAML file, and the overrides over it ("train.steps=100") say, until
/// train.steps are done. resume: "never" (run.dir must be new or empty), "auto" (go on from its
/// newest checkpoint, if there is one), or the folder of a checkpoint. kConfig, kIo, kCuda.
FinishedRun train_recipe(const std::filesystem::path& recipe,
                         const std::vector<std::string>& overrides = {},
                         const std::string& resume = "never");

struct LoadOptions {
  std::vector<std::string> overrides = {};  ///< over the recipe of the run: "sample.steps=20"
  std::string device = "auto";              ///< auto (a GPU if there is one), cpu or cuda
  bool averaged = true;                    ///< the first average of the weights, if the run has one
  std::string recipe = {};                 ///< for files that do not say what model they hold
  std::vector<std::string> adapters = {};  ///< to merge, each "FILE" or "FILE:WEIGHT"
  /// Of two experts by noise level (Wan 2.2) one is on the device, and the other waits in the
  /// host's memory: half of the device's memory.
  bool exchange_experts = false;
};

/// A trained model on its device, and what makes pixels of its latents.
class Model {
 public:
  Model(std::unique_ptr<inference::TrainedModel> trained,
        std::unique_ptr<models::Autoencoder> decoder);
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  /// All of it (kinora/inference/trained_model.h).
  [[nodiscard]] inference::TrainedModel& trained() const { return *trained_; }
  /// Null: the model draws pixels, or its run names no autoencoder.
  [[nodiscard]] models::Autoencoder* decoder() const { return decoder_.get(); }

 private:
  std::unique_ptr<inference::TrainedModel> trained_;
  std::unique_ptr<models::Autoencoder> decoder_;
};

/// What was trained: the folder of a run (its newest checkpoint), that of a checkpoint, a file of
/// weights or a folder of diffusers. A model of latents comes with the autoencoder that
/// autoencoder.path names. kConfig, kIo, kCuda.
[[nodiscard]] Model load(const std::filesystem::path& path, const LoadOptions& options = {});

/// What to draw. Sample i has the noise of (seed, i), and so looks the same in any batch or count.
struct DrawOptions {
  /// Classes in turn, each in [0, model.num_classes); empty: all. Of models of classes.
  std::vector<int64_t> classes = {};
  /// Captions in turn, of models with a text encoder.
  std::vector<std::string> captions = {};
  /// A file of embedded texts (data.text_embeddings), in turn, of models of texts. Without these
  /// and captions: the texts of the run's data.
  std::string text_embeddings = {};
  /// Files of pictures of what is to be seen in all samples, of models with model.references.
  std::vector<std::string> references = {};
  int64_t count = 0;  ///< samples; 0: one of each class, caption or text
  uint64_t seed = 0;
  int64_t batch = 64;                   ///< computed at once
  int64_t steps = 0;                    ///< of the sampler; 0: the run's
  std::optional<double> guidance = {};  ///< scale; nothing: the run's
};

/// Draws images, each of a clip a strip of its frames. kConfig for what the model does not take,
/// and for latents that no autoencoder makes pixels of.
[[nodiscard]] std::vector<io::Image> draw(Model& model, const DrawOptions& options = {});

/// The same as numbers: float32 on the CPU, images [count, C, H, W] or clips [count, C, T, H, W]; C
/// is 3 or 1 with values in about [-1, 1], or the channels of latents without an autoencoder.
/// Include <ATen/core/Tensor.h>.
[[nodiscard]] at::Tensor draw_tensor(Model& model, const DrawOptions& options = {});

}  // namespace kinora
