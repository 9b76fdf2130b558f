#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/models/autoencoders/autoencoder_kl.h"
#include "kinora/models/autoencoders/autoencoder_tiny.h"
#include "kinora/models/autoencoders/autoencoder_vq.h"
#include "kinora/models/autoencoders/dc_ae.h"
#include "kinora/pipelines/clip_autoencoder_config.h"

namespace kinora::pipelines {

/// diffusers' class of models::DcAe.
inline constexpr std::string_view kDcClass = "AutoencoderDC";
/// Of models::AutoencoderVq.
inline constexpr std::string_view kVqClass = "VQModel";
/// Its codebook in files of anybody.
inline constexpr const char* kCodebook = "quantize.embedding.weight";

/// Where pipelines of diffusers have theirs.
inline constexpr const char* kAutoencoderParts[] = {"vae", "vqvae"};

/// How an autoencoder is built.
struct AutoencoderConfig {
  std::variant<models::AutoencoderKlConfig, models::AutoencoderTinyConfig, models::DcAeConfig,
               ClipAutoencoderConfig, models::AutoencoderVqConfig>
      model;
  bool force_upcast = false;  ///< fp16 does not hold its values
};

/// From diffusers' config.json. `where` names it in errors: kIo for what is no such file, kConfig
/// for what is not known.
[[nodiscard]] AutoencoderConfig parse_autoencoder_config(const std::string& json,
                                                         const std::string& where);

/// What diffusers' config.json calls itself; "" where it does not. kIo for what is no such file.
[[nodiscard]] std::string autoencoder_class(const std::string& json, const std::string& where);

/// Where the weights of an autoencoder lie: our paths, and what they are called in which file.
struct AutoencoderWeights {
  struct Source {
    size_t file = 0;
    std::string key;
  };
  std::vector<checkpoint::WeightsFile> files;
  std::map<std::string, Source> sources;

  [[nodiscard]] bool contains(const std::string& path) const { return sources.contains(path); }
  [[nodiscard]] std::vector<int64_t> shape(const std::string& path) const;
  [[nodiscard]] at::Tensor read(const std::string& path) const;
};

/// What lies at a path, see open_autoencoder().
struct FoundAutoencoder {
  AutoencoderConfig config;
  AutoencoderWeights weights;
};
[[nodiscard]] FoundAutoencoder find_autoencoder(const std::filesystem::path& path);

/// kIo, listing what is not so, unless the weights are all those of `model` and no others, in their
/// shapes but for sizes of one.
void check_names(const AutoencoderWeights& weights, nn::Module& model);

/// From the shapes of an AutoencoderKL's weights. Their scaling lies beside them in the file
/// (scale_factor), else it is that of Stable Diffusion 1 and 2 for 4 channels (of SDXL if
/// `of_sdxl`), that of Flux for 16. kConfig for others.
[[nodiscard]] AutoencoderConfig kl_config_of(const AutoencoderWeights& weights, bool of_sdxl);

/// From the shapes of a VQModel's weights, which nobody scales. kIo, with both numbers, where the
/// codes are of other numbers than quant_conv makes.
[[nodiscard]] AutoencoderConfig vq_config_of(const AutoencoderWeights& weights);

/// From the shapes of both of TAESD's files.
[[nodiscard]] AutoencoderConfig tiny_config_of(const AutoencoderWeights& weights);

[[nodiscard]] std::unique_ptr<models::Autoencoder> make_autoencoder(
    const AutoencoderConfig& config);

/// diffusers' config.json of an AutoencoderKL or a VQModel. kConfig for others, and where channels
/// are scaled apart.
[[nodiscard]] std::string diffusers_config(const AutoencoderConfig& config);

/// What encoder and decoder of an AutoencoderKL or a VQModel are; null for others.
[[nodiscard]] const models::AutoencoderKlConfig* halves_of(const AutoencoderConfig& config);

/// All that decides what it computes, on one line.
[[nodiscard]] std::string describe(const AutoencoderConfig& config);

}  // namespace kinora::pipelines
