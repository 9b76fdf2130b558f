#include "kinora/pipelines/autoencoder_output.h"

#include <utility>

#include "kinora/checkpoint/late_tensor.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/error.h"
#include "kinora/io/file.h"
#include "kinora/pipelines/autoencoder_config.h"
#include "kinora/pipelines/diffusers_config.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;

/// config.json of the folder of diffusers that `path` means, its own or that of vae/; empty if it
/// is none.
fs::path config_of(const fs::path& path) {
  const fs::path folder = fs::is_directory(path) ? path : path.parent_path();
  for (fs::path config : {folder / "config.json", folder / "vae" / "config.json"}) {
    const bool is_its_own = fs::is_directory(path) || config.parent_path() == path.parent_path();
    if (is_its_own && fs::is_regular_file(config)) {
      return config;
    }
  }
  return {};
}

std::string class_in(const fs::path& config) {
  return autoencoder_class(io::read_text(config, kMaxConfigBytes), config.string());
}

}  // namespace

bool is_autoencoder(const fs::path& path) {
  if (fs::is_directory(path)) {
    const fs::path config = path / "config.json";
    return fs::is_regular_file(config) && class_in(config).starts_with("Autoencoder");
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
  check_names(found.weights, *model);
  const fs::path config = config_of(path);
  const std::string text = config.empty() || !class_in(config).starts_with("Autoencoder")
                               ? diffusers_config(found.config)
                               : io::read_text(config, kMaxConfigBytes);
  std::vector<checkpoint::LateTensors> files;
  for (const checkpoint::WeightsFile& file : found.weights.files) {
    files.push_back(file.tensors());
  }
  checkpoint::LateTensors tensors;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    const AutoencoderWeights::Source& source = found.weights.sources.at(name);
    tensors.emplace(name, checkpoint::with_shape(files[source.file].at(source.key), shape));
  };
  for (const auto& [name, parameter] : model->named_parameters()) {
    add(name, parameter->shape);
  }
  for (const auto& [name, buffer] : model->named_buffers()) {
    add(name, buffer->sizes().vec());
  }
  fs::create_directories(folder);
  checkpoint::write_weights(folder / "diffusion_pytorch_model.safetensors", tensors, options);
  io::write_file_atomic(folder / "config.json", text);
  return static_cast<int64_t>(tensors.size());
}

}  // namespace kinora::pipelines
