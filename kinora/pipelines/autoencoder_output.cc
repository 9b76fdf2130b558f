#include "kinora/pipelines/autoencoder_output.h"

#include <utility>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/error.h"
#include "kinora/io/file.h"
#include "kinora/models/autoencoders/autoencoder_names.h"
#include "kinora/nn/naming.h"
#include "kinora/pipelines/autoencoder_config.h"
#include "kinora/pipelines/diffusers_config.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kCompvisGroups = 32;

/// config.json of the folder of diffusers that `path` means, its own or that of a pipeline's
/// autoencoder; empty if it is none.
fs::path config_of(const fs::path& path) {
  const fs::path own = (fs::is_directory(path) ? path : path.parent_path()) / "config.json";
  if (fs::is_regular_file(own)) {
    return own;
  }
  for (const char* part : kAutoencoderParts) {
    fs::path config = path / part / "config.json";
    if (fs::is_regular_file(config)) {
      return config;
    }
  }
  return {};
}

/// Whether it is of an autoencoder.
bool is_config(const fs::path& config) {
  const std::string name =
      autoencoder_class(io::read_text(config, kMaxConfigBytes), config.string());
  return name.starts_with("Autoencoder") || name == kVqClass;
}

/// The tensors of the autoencoder, which are those of `model`, by our paths and in our shapes.
checkpoint::LateTensors tensors_of(const FoundAutoencoder& found, nn::Module& model) {
  check_names(found.weights, model);
  std::vector<checkpoint::LateTensors> files;
  for (const checkpoint::WeightsFile& file : found.weights.files) {
    files.push_back(file.tensors());
  }
  checkpoint::LateTensors tensors;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    const AutoencoderWeights::Source& source = found.weights.sources.at(name);
    tensors.emplace(name, checkpoint::with_shape(files[source.file].at(source.key), shape));
  };
  for (const auto& [name, parameter] : model.named_parameters()) {
    add(name, parameter->shape);
  }
  for (const auto& [name, buffer] : model.named_buffers()) {
    add(name, buffer->sizes().vec());
  }
  return tensors;
}

}  // namespace

bool is_autoencoder(const fs::path& path) {
  if (fs::is_directory(path)) {
    const fs::path config = path / "config.json";
    return fs::is_regular_file(config) && is_config(config);
  }
  const auto file = checkpoint::WeightsFile::open(path, /*averaged=*/false);
  for (const std::string& name : file.names()) {
    if (name.starts_with("first_stage_model.") || name.starts_with("encoder.down") ||
        name.starts_with("decoder.mid")) {
      return true;
    }
  }
  return false;
}

int64_t write_autoencoder(const fs::path& path, const fs::path& folder,
                          const checkpoint::OutputOptions& options) {
  const FoundAutoencoder found = find_autoencoder(path);
  const auto model = make_autoencoder(found.config);
  const checkpoint::LateTensors tensors = tensors_of(found, *model);
  const fs::path config = config_of(path);
  const std::string text = config.empty() || !is_config(config)
                               ? diffusers_config(found.config)
                               : io::read_text(config, kMaxConfigBytes);
  fs::create_directories(folder);
  checkpoint::write_weights(folder / "diffusion_pytorch_model.safetensors", tensors, options);
  io::write_file_atomic(folder / "config.json", text);
  return static_cast<int64_t>(tensors.size());
}

int64_t write_compvis_autoencoder(const fs::path& path, const fs::path& file,
                                  const checkpoint::OutputOptions& options) {
  const FoundAutoencoder found = find_autoencoder(path);
  const models::AutoencoderKlConfig* halves = halves_of(found.config);
  KINORA_CHECK(halves != nullptr, kConfig,
               "[autoencoder] only an AutoencoderKL or VQModel has keys of CompVis, got ", path,
               ". Hint: a folder of diffusers");
  KINORA_CHECK(halves->norm_num_groups == kCompvisGroups, kConfig, "[autoencoder] norms must have ",
               kCompvisGroups, " groups in a file of CompVis, which does not say how many, got ",
               halves->norm_num_groups, ". Hint: a folder of diffusers");
  const auto model = make_autoencoder(found.config);
  nn::Naming naming;
  for (const auto& [name, parameter] : model->named_parameters()) {
    nn::OtherName other{.path = name,
                        .keys = {models::compvis_kl_key(name, halves->block_out_channels.size())}};
    if (models::is_kl_attention_weight(name)) {
      other.shape = parameter->shape;
      other.shape.insert(other.shape.end(), {1, 1});
    }
    naming.push_back(std::move(other));
  }
  checkpoint::LateTensors tensors = tensors_of(found, *model);
  checkpoint::write_weights(file, checkpoint::take_renamed(tensors, naming), options);
  return std::ssize(naming);
}

}  // namespace kinora::pipelines
