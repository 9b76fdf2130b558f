#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kinora/core/compute_choice.h"
#include "kinora/kernels/weight_codes.h"
#include "kinora/ops/kernel_options.h"
#include "kinora/optim/optimizer.h"
#include "kinora/parallel/mesh.h"
#include "kinora/parallel/pipeline.h"
#include "kinora/parallel/sequence_plan.h"
#include "kinora/train/boost/divided_layer.h"

namespace kinora::train {

/// Where plugin gemini keeps the optimizer's state, weights and gradients.
enum class Placement : uint8_t {
  kStatic,  ///< the shares that offload_optim_frac and offload_param_frac say at the host
  kCpu,     ///< all of them at the host
  kAuto,    ///< on the device what fits in kAutoShare of its free memory, the rest at the host
};

/// The rest is for activations.
inline constexpr double kAutoShare = 0.6;

/// How ranks share the work; in a recipe the keys parallel.*.
struct PluginConfig {
  /// What the ranks along `shard` divide: 0: nothing; 1: master weights, moments and averages; 2:
  /// and gradients; 3: and what forward reads. -1: as the plugin says, else 0.
  int64_t zero_stage = -1;
  int64_t replicate = 1;  ///< groups of ranks that each divide the whole state
  int64_t shard = 0;      ///< ranks that divide it; 0: those that remain
  int64_t sp_size = 1;    ///< ranks that divide a sequence; of Kinora's own models alone
  int64_t tp_size = 1;    ///< ranks that divide a model's layers
  /// Each of tp_size ranks has a part of the tokens between branches of blocks, too, of Kinora's
  /// own models alone.
  bool divided_norms = false;
  int64_t pp_size = 1;    ///< ranks that divide a model's blocks into stages
  int64_t pp_chunks = 1;  ///< stages of each of these
  parallel::PipelineSchedule pp_schedule = parallel::PipelineSchedule::k1F1B;
  parallel::SequenceScheme sequence_scheme = parallel::SequenceScheme::kAuto;
  /// Gradients travel and are summed in this type: fp32, or bf16 for half the bytes.
  Precision reduce_type = Precision::kFp32;
  bool fp8_across = false;  ///< what crosses hosts travels in 8 bits (comm/quantised.h)
  /// Stages 2 and 3: false reduces once a step, with the memory of whole gradients.
  bool reduce_each_micro_batch = true;
  /// At least so many MiB of fp32 gradients are exchanged at once, where the model has smaller
  /// buckets (parallel/bucket_groups.h). 0: the model's own.
  int64_t bucket_mib = 0;

  // Of plugin gemini.
  Placement placement = Placement::kStatic;
  double shard_param_frac = 1.0;    ///< 1: ranks divide the weights, too; 0: all but these
  double offload_optim_frac = 0.0;  ///< optim::OptimizerConfig::offload
  double offload_param_frac = 0.0;  ///< optim::OptimizerConfig::offload_weights

  [[nodiscard]] parallel::MeshShape mesh() const;
};

/// What a Booster does to models.
struct BoosterOptions {
  /// ddp, zero1, zero2, zero3 or gemini; empty or hybrid: as plugin_config says.
  std::string plugin = {};
  PluginConfig plugin_config = {};
  /// Of the copies of the weights that forward reads; master, moments and averages are fp32.
  Precision precision = Precision::kBf16;
  double grad_clip = 0.0;  ///< clip gradients to this global norm; 0: as OptimizerConfig says
  bool use_fp8 = false;    ///< 8-bit matrix products, of Kinora's own models alone
  /// What frozen weights of blocks lie in, of Kinora's own models alone; nothing: `precision`.
  std::optional<kernels::WeightFormat> frozen_weights = {};
  double frozen_offload = 0.0;  ///< optim::HeldOptions::offload, of Kinora's own models alone
  optim::ModulationUse modulation = optim::ModulationUse::kBothWays;  ///< likewise
  /// Of a torch::nn::Module, which layers the ranks of tp_size divide.
  std::vector<LayerRule> tensor_rules = {};
  /// Of a torch::nn::Module, the name of the torch::nn::Sequential in it whose children the ranks
  /// of pp_size divide; empty: the module is one itself.
  std::string stages = {};
  std::vector<double> ema_decays = {};  ///< of averaged weights, at most 4
  DeviceChoice device = DeviceChoice::kAuto;
  uint64_t seed = 0;  ///< of the initial values of Kinora's own models
  ops::Switch optimizer_kernel = ops::Switch::kAuto;  ///< off: the update as libtorch's calls
};

/// The stage of ZeRO that plugin and plugin_config ask for. kConfig where they contradict each
/// other, or ask for what is not there.
[[nodiscard]] int zero_stage(const std::string& plugin, const PluginConfig& config);

/// `optimizer` with the shares at the host that plugin gemini asks for, unless it names its own.
/// @param num_parameters  that are trained, of which `ranks` divide the state.
/// @param free_bytes      of the device.
/// kConfig for shares that contradict each other, and for those of another plugin.
[[nodiscard]] optim::OptimizerConfig placed(const BoosterOptions& options,
                                            optim::OptimizerConfig optimizer,
                                            int64_t num_parameters, int64_t ranks,
                                            int64_t free_bytes);

}  // namespace kinora::train
