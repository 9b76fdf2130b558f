#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/diffusion/objective.h"
#include "kinora/inference/recipe.h"
#include "kinora/kernels/weight_codes.h"
#include "kinora/models/model.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/optim/arena.h"
#include "kinora/optim/weight_exchange.h"
#include "kinora/parallel/mesh.h"
#include "kinora/parallel/pipeline.h"
#include "kinora/parallel/sequence_plan.h"
#include "kinora/pipelines/sampling_ranks.h"

namespace kinora::inference {

/// A model with its weights, ready to sample from.
struct TrainedModel {
  ModelRecipe recipe;  ///< model resolved
  std::unique_ptr<models::Model> model;
  std::unique_ptr<optim::Arena> arena;
  diffusion::Objective objective;
  at::Device device = at::kCPU;
  std::shared_ptr<ops::BlockKernels> kernels;  ///< of the fast path; null: the plain one
  /// Between the ranks that share its blocks; null: all are here.
  std::shared_ptr<parallel::PipelineLinks> links = nullptr;
  bool graphs = false;  ///< whether sampling can be recorded
  /// The second expert, which predicts at low noise (sample.low_noise_model); null: there is none.
  std::unique_ptr<TrainedModel> low_noise = nullptr;
  /// Instead of it: `arena` has one expert's weights, the first or the second, and the other's wait
  /// (LoadOptions::exchange_experts); null: they are not exchanged.
  std::unique_ptr<optim::WeightExchange> experts = nullptr;
};

/// Ranks that have the parts of one model.
struct ModelGroups {
  comm::Group tensor = {};    ///< of each of its blocks (parallel/tensor.h)
  comm::Group pipeline = {};  ///< some of its blocks each (parallel/pipeline.h)

  /// All ranks of `world` call it. kConfig.
  [[nodiscard]] static ModelGroups of(const comm::Group& world,
                                      const pipelines::SamplingRanks& ranks);
  [[nodiscard]] bool divide() const { return tensor.size() > 1 || pipeline.size() > 1; }
};

struct LoadOptions {
  bool ema = true;  ///< the first average, if the run has one; else the raw weights
  DeviceChoice device = DeviceChoice::kAuto;
  /// Nothing: the run's; of a pipeline on a GPU stored_precision(), on the CPU fp32.
  std::optional<Precision> precision = {};
  optim::HeldOptions held = {};  ///< of the weights of blocks, without its buckets
  /// Of two experts one is on the device, and the other waits in the host's memory. kConfig for a
  /// model of one.
  bool exchange_experts = false;
  std::vector<std::string> overrides = {};  ///< key=value on the run's recipe
  std::string config_file = {};  ///< a recipe for files without a configuration of their own
  /// Adapters to merge, each "FILE" or "FILE:WEIGHT" (checkpoint::read_adapter).
  std::vector<std::string> adapters = {};
  std::vector<std::string> low_noise_adapters = {};  ///< the same of the second expert
  bool has_encoder = false;  ///< what adapters change in text encoders is merged there
  /// ControlNets beside a U-Net: folders of diffusers. Empty: those of the pipeline.
  std::vector<std::string> controlnets = {};
  /// What the residuals of each are multiplied by, also of those of a run; empty: as it says, 1.
  std::vector<double> control_scales = {};
  std::string ip_adapter = {};  ///< a file (pipelines/ip_adapter_file.h) beside a U-Net; "": none
  double ip_scale = 1.0;        ///< of attention to the picture that it is shown
  ModelGroups groups = {};      ///< ranks that have the parts of one model
  bool says = true;             ///< logs which weights these are
};

/// What weights are stored in: the type of the largest tensor, fp32 of types that are none of the
/// three.
[[nodiscard]] Precision stored_precision(const checkpoint::WeightsFile& file);

/// A model with initial weights; those that are held otherwise than they are read (`held`, without
/// its buckets) are zeros until they are loaded. recipe.model is resolved. kConfig.
[[nodiscard]] TrainedModel initial_model(const ModelRecipe& recipe, at::Device device,
                                         uint64_t seed, optim::HeldOptions held = {},
                                         const ModelGroups& groups = {});

/// The checkpoint that a folder stands for: itself, or the newest of a run; nothing where it is
/// neither.
[[nodiscard]] std::optional<std::filesystem::path> find_checkpoint(
    const std::filesystem::path& path);

/// Loads a run directory (its newest checkpoint), a checkpoint's folder, or weights
/// (pipelines::open_weights) with the configuration in their header, from diffusers' config.json or
/// from `config_file`. Of a pipeline (pipelines::find_pipeline) also how it samples and its
/// autoencoder's path; its text encoder is that of pipeline_prompts.h. kIo,
/// kConfig.
[[nodiscard]] TrainedModel load_trained(const std::filesystem::path& path,
                                        const LoadOptions& options);

/// The recipe alone, as load_trained() takes it: the model resolved, no weights read. Adapters that
/// do not fit weights of a file are refused as there.
[[nodiscard]] ModelRecipe read_recipe(const std::filesystem::path& path,
                                      const LoadOptions& options);

/// `trained` as the ranks along the mesh's guidance, sequence and pipeline axes compute it
/// together, each with one of its own. It is borrowed. model: the sizes of what is drawn. rows:
/// samples and, with guidance, unconditional ones that a sequence computes at once. kConfig where
/// `scheme` is not possible. All ranks call it.
[[nodiscard]] std::unique_ptr<diffusion::Denoiser> share(TrainedModel& trained,
                                                         const models::ModelConfig& model,
                                                         const parallel::Mesh& mesh,
                                                         parallel::SequenceScheme scheme,
                                                         int64_t rows);

}  // namespace kinora::inference
