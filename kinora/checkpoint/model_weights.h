#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/nn/module.h"
#include "kinora/optim/arena.h"

/// Between files of weights and models.
namespace kinora::checkpoint {

/// How named tensors fit a model: names, of `misshapen` with both shapes.
struct WeightsFit {
  std::vector<std::string> matched;
  std::vector<std::string> missing;  ///< parameters; buffers may be left out
  std::vector<std::string> unexpected;
  std::vector<std::string> misshapen;

  [[nodiscard]] bool is_whole() const;
};

[[nodiscard]] WeightsFit compare(const LateTensors& tensors, nn::Module& model);

/// "1 missing [a], 0 unexpected [], 0 of another shape []", with the first names of each.
[[nodiscard]] std::string describe(const WeightsFit& fit);

/// Whether a tensor of shape `given` can stand for one of `wanted`: they are the same but for dims
/// of 1. So the patch projection of an image model fits that of a model of clips whose patches are
/// one frame deep, and a convolution of one place fits a linear.
[[nodiscard]] bool fits_shape(const std::vector<int64_t>& given,
                              const std::vector<int64_t>& wanted);

/// Copies every parameter of `model` from the file into the arena's master weights (and averages,
/// where there are any) and every buffer that the file has. Strict: missing and unexpected names
/// and wrong shapes (fits_shape()) are an error (kIo) that lists them, and then nothing is changed.
void load_weights(const WeightsFile& file, nn::Module& model, optim::Arena& arena);
/// The same of tensors that come from `origin`.
void load_weights(const LateTensors& tensors, const std::filesystem::path& origin,
                  nn::Module& model, optim::Arena& arena);

/// Copies the parameters and buffers of `model` that `tensors` has, which are of their shapes, and
/// leaves the others and the averages. kIo for values that are not finite.
void copy_weights(const LateTensors& tensors, const std::filesystem::path& origin,
                  nn::Module& model, optim::Arena& arena);

/// Texts in the header of a file of weights.
using WeightsMetadata = std::map<std::string, std::string>;

/// The key under which the run's configuration lies there.
inline constexpr const char* kConfigMetadata = "kinora.config";

/// Those that say what the weights are of; config: "" for none.
[[nodiscard]] WeightsMetadata weights_metadata(const std::string& config);

/// The weights in `role` (the master, an average) and the buffers, by the model's key names. Where
/// state is divided every rank must read each tensor, in the same order.
[[nodiscard]] LateTensors arena_weights(nn::Module& model, const optim::Arena& arena,
                                        optim::Role role);

/// Writes such tensors as one safetensors file in `type` (fp32, bf16, fp16). Atomic. Where state is
/// divided every rank calls it, and the first of those who divide it writes.
void write_arena_weights(const std::filesystem::path& path, const LateTensors& tensors,
                         const optim::Arena& arena, at::ScalarType type,
                         const WeightsMetadata& metadata);

/// Both.
void save_weights(const std::filesystem::path& path, nn::Module& model, const optim::Arena& arena,
                  optim::Role role, at::ScalarType type, const WeightsMetadata& metadata);

/// The same tensors of a checkpoint, with what it keeps frozen. Of `model` the buffers are
/// used, after the checkpoint's have been read into them, and the shapes of what lies in few bits.
/// Checksums are compared first. kIo.
[[nodiscard]] LateTensors checkpoint_weights(const std::filesystem::path& checkpoint,
                                             nn::Module& model, optim::Role role);

}  // namespace kinora::checkpoint
