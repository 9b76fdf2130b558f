#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/nn/naming.h"

/// Adapters (nn::LowRankUpdate) apart from a model: in files as PEFT, diffusers and kohya write
/// them, and merged into weights.
namespace kinora::checkpoint {

/// A change of neighbouring rows of a weight W [out, in], fp32 on the CPU. Of a convolution `in` is
/// channels and places of its kernel together.
struct LowRankChange {
  std::string name;  ///< of the linear, as where it comes from has it
  int64_t first_row = 0;
  at::Tensor a;                        ///< [rank, in]
  at::Tensor b;                        ///< [rows, rank]
  at::Tensor magnitude;                ///< [rows], of DoRA; undefined: LoRA
  double scale = 1.0;                  ///< of b a
  double alpha = 0.0;                  ///< scale * rank, as the file says it
  std::vector<int64_t> kernel = {};    ///< dims of the weight behind the first two
  at::ScalarType stored = at::kFloat;  ///< type in the file
};

struct Adapter {
  std::string origin;
  std::map<std::string, std::vector<LowRankChange>> changes;  ///< by the weight's path
  /// What was trained whole: these take the place of weights.
  LateTensors whole;
  std::vector<std::string> left_out = {};  ///< keys of text encoders, which take no updates here
};

/// How alpha and rank make a scale, where a file does not say it: keys of adapter_config.json.
struct AdapterSettings {
  double alpha = 0.0;  ///< 0: the rank, so that the scale is 1
  bool rslora = false;
  /// Of linears whose names are these or end in a dot and these.
  std::map<std::string, double> alphas = {};

  [[nodiscard]] double scale(int64_t rank) const;
};

/// Takes the tensors of low-rank updates out of `tensors`: LINEAR.lora_A.weight, .lora_B.weight,
/// .lora_magnitude_vector and .alpha, or kohya's and diffusers' other names of the first two. kIo
/// where they do not belong together.
[[nodiscard]] Adapter take_adapter(LateTensors& tensors, const AdapterSettings& settings,
                                   const std::string& origin);

/// Reads an adapter: a safetensors file, or a folder with adapter_model.safetensors or
/// pytorch_lora_weights.safetensors. Keys start with base_model.model., transformer., unet. or
/// nothing; alpha comes from adapter_config.json beside it, the header's lora_adapter_metadata, or
/// keys LINEAR.alpha. Linears are named as ours or by `other`, whose parts become rows of ours, or
/// as kohya makes names of those: lora_unet_ and the name with _ for dots. Factors of a convolution
/// of one place are taken for a linear. `weights`: of the model that it is for. kIo for what is no
/// such file; for keys that the model lacks, the first of them before all, with the names most like
/// them; and for other shapes. Keys of text encoders are left out, unless the model has one.
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

/// Writes adapter_model.safetensors and adapter_config.json into `folder`, as PEFT does, in the
/// type of each update. What differs from linear to linear is in alpha_pattern and rank_pattern.
/// other: the names to use for linears and whole weights, where they shall not be ours. kConfig
/// where those do not have one.
void write_adapter(const std::filesystem::path& folder, const Adapter& adapter,
                   const AdapterSettings& settings, const nn::Naming& other,
                   std::optional<at::ScalarType> type = {});

/// The same as a file of kohya's layout: lora_unet_LINEAR.lora_down.weight, .lora_up.weight and
/// .alpha. kConfig for what that has no place for, DoRA and weights that were trained whole.
void write_kohya_adapter(const std::filesystem::path& file, const Adapter& adapter,
                         const nn::Naming& other, std::optional<at::ScalarType> type = {});

}  // namespace kinora::checkpoint
