#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/nn/naming.h"

/// Adapters (nn::LowRankUpdate) apart from a model: in files as PEFT writes them, and merged into
/// weights.
namespace kinora::checkpoint {

/// A change of neighbouring rows of a weight W [out, in], fp32 on the CPU.
struct LowRankChange {
  std::string name;  ///< of the linear, as where it comes from has it
  int64_t first_row = 0;
  at::Tensor a;          ///< [rank, in]
  at::Tensor b;          ///< [rows, rank]
  at::Tensor magnitude;  ///< [rows], of DoRA; undefined: LoRA
  double scale = 1.0;    ///< of b a
};

struct Adapter {
  std::string origin;
  std::map<std::string, std::vector<LowRankChange>> changes;  ///< by the weight's path
  /// What was trained whole: these take the place of weights.
  LateTensors whole;
};

/// How alpha and rank make a scale, where a file does not say it: keys of adapter_config.json.
struct AdapterSettings {
  double alpha = 0.0;  ///< 0: the rank, so that the scale is 1
  bool rslora = false;

  [[nodiscard]] double scale(int64_t rank) const;
};

/// Takes the tensors of low-rank updates out of `tensors`: LINEAR.lora_A.weight, .lora_B.weight,
/// .lora_magnitude_vector. kIo where they do not belong together.
[[nodiscard]] Adapter take_adapter(LateTensors& tensors, const AdapterSettings& settings,
                                   const std::string& origin);

/// Reads an adapter: a safetensors file, or a folder with adapter_model.safetensors or
/// pytorch_lora_weights.safetensors. Keys start with base_model.model., transformer., unet. or
/// nothing; alpha comes from adapter_config.json beside it, the header's lora_adapter_metadata, or
/// keys LINEAR.alpha. Linears are named as ours or by `other`, whose parts become rows of ours.
/// `weights`: of the model that it is for. kIo for what is no such file; for keys that the model
/// lacks, with the names most like them; and for other shapes.
[[nodiscard]] Adapter read_adapter(const std::filesystem::path& path, const nn::Naming& other,
                                   const LateTensors& weights);

/// Merges: W + weight * scale * B A for each adapter, in double, rounded once to fp32; of DoRA
/// m (W + weight * scale * B A) / |.| by rows. weight: 1 for what an adapter was trained to be. The
/// bits do not depend on threads or on how rows are read. kConfig where DoRA meets another adapter
/// of the same rows.
struct WeightedAdapter {
  Adapter adapter;
  double weight = 1.0;
};
void merge(LateTensors& weights, const std::vector<WeightedAdapter>& adapters);

/// "FILE" or "FILE:0.8". kConfig for a weight that is not finite.
struct AdapterChoice {
  std::filesystem::path path;
  double weight = 1.0;
};
[[nodiscard]] AdapterChoice parse_adapter_choice(const std::string& text);

/// Writes adapter_model.safetensors and adapter_config.json into `folder`, as PEFT does, fp32.
/// other: the names to use for linears and whole weights, where they shall not be ours. kConfig
/// where those do not have one.
void write_adapter(const std::filesystem::path& folder, const Adapter& adapter,
                   const AdapterSettings& settings, const nn::Naming& other);

}  // namespace kinora::checkpoint
