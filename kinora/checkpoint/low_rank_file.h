#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kinora/checkpoint/adapter.h"
#include "kinora/checkpoint/late_tensor.h"
#include "kinora/nn/naming.h"

/// Adapters in files as PEFT, diffusers and kohya write them.
namespace kinora::checkpoint {

/// What adapter_config.json says of layers. Patterns are PEFT's: regular expressions of a layer's
/// name or its end behind a dot, of which the first that fits counts.
struct AdapterSettings {
  double alpha = 0.0;  ///< 0: the rank, so that the scale is 1
  int64_t rank = 0;    ///< where the factors do not show it
  bool rslora = false;
  int64_t factor = -1;  ///< of LoKr
  std::vector<std::pair<std::string, double>> alphas = {};
  std::vector<std::pair<std::string, int64_t>> ranks = {};

  [[nodiscard]] double alpha_of(const std::string& name) const;
  [[nodiscard]] int64_t rank_of(const std::string& name) const;
};

/// alpha / rank, or alpha / sqrt(rank); 1 where one of them is 0.
[[nodiscard]] double update_scale(double alpha, int64_t rank, bool rslora);

/// Takes the tensors of low-rank updates out of `tensors`: LAYER.lora_A.weight, .lora_B.weight,
/// .lora_magnitude_vector, .hada_w1_a, .lokr_w1 and the like. kIo where they do not belong
/// together.
[[nodiscard]] Adapter take_adapter(LateTensors& tensors, const AdapterSettings& settings,
                                   const std::string& origin);

/// Reads an adapter: a safetensors file, or a folder with adapter_model.safetensors or
/// pytorch_lora_weights.safetensors. Keys start with base_model.model., transformer., unet. or
/// nothing; alpha comes from adapter_config.json beside it, the header's lora_adapter_metadata, or
/// keys LAYER.alpha. Layers are named as ours or by `other`, whose parts become rows of ours, or
/// as kohya makes names of those: lora_unet_ and the name with _ for dots. Factors of a convolution
/// of one place are taken for a linear.
///
/// `weights`: of what it is for: a model, its text encoders, whose paths begin with text_encoder.
/// and of SDXL's second text_encoder_2., or all. Those are text_encoder.LAYER in diffusers' files,
/// lora_te_, lora_te1_ and lora_te2_ in kohya's, and text_model.LAYER in PEFT's of one CLIP; of
/// transformers' CLIPs a name may lack its text_model. Keys of parts that `weights` have nothing of
/// are left out. kIo for what is no such file; for keys that such a part lacks, the first of them
/// before all, with the names most like them; and for other shapes.
[[nodiscard]] Adapter read_adapter(const std::filesystem::path& path, const nn::Naming& other,
                                   const LateTensors& weights);

/// Writes adapter_model.safetensors and adapter_config.json into `folder`, as PEFT does, in the
/// type of each update. What differs from layer to layer is in alpha_pattern and rank_pattern.
/// other: the names to use for layers and whole weights, where they shall not be ours. kConfig
/// where those do not have one, and for updates of several kinds.
void write_adapter(const std::filesystem::path& folder, const Adapter& adapter,
                   const nn::Naming& other, std::optional<at::ScalarType> type = {});

/// Writes pytorch_lora_weights.safetensors into `folder`, as diffusers' pipelines of U-Nets read
/// and save it: unet.LAYER and text_encoder.LAYER, with what PEFT must know in the header. kConfig
/// for what that has no place for, LoHa, LoKr and weights that were trained whole.
void write_diffusers_adapter(const std::filesystem::path& folder, const Adapter& adapter,
                             const nn::Naming& other, std::optional<at::ScalarType> type = {});

/// The same as a file of kohya's layout: lora_unet_LAYER.lora_down.weight, .lora_up.weight and
/// .alpha, of text encoders lora_te_ or, where a pipeline has two, lora_te1_ and lora_te2_, of LoHa
/// and LoKr LyCORIS' .hada_w1_a, .lokr_w1 and so on. kConfig for what that has no place for, DoRA
/// and weights that were trained whole.
void write_kohya_adapter(const std::filesystem::path& file, const Adapter& adapter,
                         const nn::Naming& other, bool has_two_encoders = false,
                         std::optional<at::ScalarType> type = {});

/// Whether an adapter changes a text encoder.
[[nodiscard]] bool has_text_parts(const Adapter& adapter);

}  // namespace kinora::checkpoint
