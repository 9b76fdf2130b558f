#include "kinora/pipelines/autoencoder_file.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/file.h"
#include "kinora/models/autoencoders/autoencoder_names.h"
#include "kinora/pipelines/autoencoder_config.h"
#include "kinora/pipelines/diffusers_config.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;

constexpr size_t kMaxNamesInMessage = 8;
/// Diffusers', Open-Sora 1.2's, HunyuanVideo's.
constexpr const char* kWeightsNames[] = {"diffusion_pytorch_model", "model", "pytorch_model"};
constexpr std::string_view kCheckpointPrefix = "first_stage_model.";

using Found = FoundAutoencoder;

/// What it computes in where `type` is asked for.
at::ScalarType used_type(const AutoencoderConfig& config, at::ScalarType type) {
  return config.force_upcast && type == at::kHalf ? at::kFloat : type;
}

using Rename = std::function<std::string(std::string_view key)>;

/// Adds a file's tensors under their paths; those that `rename` calls "" are other parts.
void add_file(AutoencoderWeights& weights, WeightsFile file, const Rename& rename) {
  for (const std::string& key : file.names()) {
    const std::string path = rename(key);
    if (path.empty()) {
      continue;
    }
    const bool is_new =
        weights.sources.emplace(path, AutoencoderWeights::Source{weights.files.size(), key}).second;
    KINORA_CHECK(is_new, kIo, "[autoencoder] ", file.path(), " has ", io::in_quotes(path),
                 " twice, at last as ", io::in_quotes(key));
  }
  weights.files.push_back(std::move(file));
}

/// Levels of an AutoencoderKL or VQModel with any of the known keys.
size_t num_levels(const WeightsFile& file, std::string_view prefix) {
  size_t count = 0;
  const auto has = [&](const char* words) {
    return file.contains(std::string(prefix) + words + std::to_string(count) +
                         (std::string_view(words).ends_with("down.") ? ".block.0.conv1.weight"
                                                                     : ".resnets.0.conv1.weight"));
  };
  while (has("encoder.down.") || has("encoder.down_blocks.")) {
    ++count;
  }
  return count;
}

void add_kl_file(AutoencoderWeights& weights, WeightsFile file, std::string_view prefix) {
  const size_t levels = num_levels(file, prefix);
  add_file(weights, std::move(file), [&](std::string_view key) -> std::string {
    if (!key.starts_with(prefix)) {
      return "";
    }
    key.remove_prefix(prefix.size());
    // What autoencoders were trained with lies beside them in some files.
    const bool is_training = key.starts_with("loss.") || key.starts_with("model_ema.");
    return is_training ? "" : models::kl_path(key, levels);
  });
}

/// The folder of diffusers that `path` means; empty if it is none.
fs::path diffusers_folder(const fs::path& path) {
  const fs::path folder = fs::is_directory(path) ? path : path.parent_path();
  for (const char* part : kAutoencoderParts) {
    if (fs::is_directory(path) && fs::exists(folder / part / "config.json")) {
      return folder / part;
    }
  }
  const bool is_weights =
      fs::is_directory(path) || std::find(std::begin(kWeightsNames), std::end(kWeightsNames),
                                          path.stem()) != std::end(kWeightsNames);
  return is_weights && fs::exists(folder / "config.json") ? folder : fs::path();
}

fs::path weights_in(const fs::path& folder) {
  for (const char* name : kWeightsNames) {
    for (const char* extension : {".safetensors", ".safetensors.index.json", ".bin", ".pt"}) {
      fs::path path = folder / (std::string(name) + extension);
      if (fs::exists(path)) {
        return path;
      }
    }
  }
  throw_error(ErrorKind::kIo, "[autoencoder] ", folder, " has no ", kWeightsNames[0],
              ".safetensors or .bin. Hint: a file of a variant (.fp16) must be given that name");
}

/// Adds what the file has where it is of an autoencoder of clips; config: the text of config.json.
bool find_clips(Found& found, WeightsFile& file, const std::string& config) {
  auto of_clips = clip_autoencoder_config(config, file.names());
  if (!of_clips) {
    return false;
  }
  for (const auto& [name, values] : statistics_of(*of_clips)) {
    KINORA_CHECK(file.contains(name), kIo, "[autoencoder] ", file.path(), " has no ", name);
    const at::Tensor tensor = file.read(name).to(at::kCPU, at::kDouble).contiguous().view({-1});
    values->assign(tensor.const_data_ptr<double>(),
                   tensor.const_data_ptr<double>() + tensor.numel());
  }
  found.config = {.model = *of_clips, .force_upcast = true};
  add_file(found.weights, std::move(file),
           [](std::string_view key) { return clip_autoencoder_path(std::string(key)); });
  return true;
}

Found find_in_folder(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const std::string config = io::read_text(path, kMaxConfigBytes);
  WeightsFile file = WeightsFile::open(weights_in(folder), /*averaged=*/false);
  Found found;
  if (autoencoder_class(config, path.string()) == kDcClass) {  // some keys are those of clips
    found.config = parse_autoencoder_config(config, path.string());
    add_file(found.weights, std::move(file), [](std::string_view key) {
      // Of how many batches statistics are is not needed.
      return key.ends_with(".num_batches_tracked") ? "" : std::string(key);
    });
    return found;
  }
  if (find_clips(found, file, config)) {
    return found;
  }
  found.config = parse_autoencoder_config(config, path.string());
  add_kl_file(found.weights, std::move(file), "");
  return found;
}

/// The other half's file of X_encoder.Y or X_decoder.Y; empty if `path` is not such a file.
fs::path other_half(const fs::path& path) {
  const std::string name = path.filename().string();
  for (const auto& [one, other] :
       {std::pair{"encoder", "decoder"}, std::pair{"decoder", "encoder"}}) {
    const size_t at = name.rfind(one);
    if (at != std::string::npos) {
      return path.parent_path() / (name.substr(0, at) + other + name.substr(at + 7));
    }
  }
  return {};
}

Found find_halves(const fs::path& path, const fs::path& other) {
  KINORA_CHECK(fs::exists(other), kIo, "[autoencoder] ", path,
               " is one half, and the other is not beside it: ", other);
  Found found;
  for (const fs::path& file : {path, other}) {
    const bool is_decoder = file.filename().string().rfind("decoder") != std::string::npos;
    add_file(found.weights, WeightsFile::open(file),
             [is_decoder](std::string_view key) { return models::tiny_path(key, is_decoder); });
  }
  found.config = tiny_config_of(found.weights);
  return found;
}

Found find_in_file(const fs::path& path) {
  WeightsFile file = WeightsFile::open(path, /*averaged=*/false);
  bool is_checkpoint = false;
  bool of_sdxl = false;
  for (const std::string& name : file.names()) {
    is_checkpoint = is_checkpoint || name.starts_with(kCheckpointPrefix);
    of_sdxl = of_sdxl || name.starts_with("conditioner.embedders.");
  }
  Found found;
  if (find_clips(found, file, "")) {
    return found;
  }
  add_kl_file(found.weights, std::move(file), is_checkpoint ? kCheckpointPrefix : "");
  found.config = found.weights.contains(kCodebook) ? vq_config_of(found.weights)
                                                   : kl_config_of(found.weights, of_sdxl);
  return found;
}

int64_t numel(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    count *= size;
  }
  return count;
}

/// Whether the sizes are the same but for those of one: 1 x 1 convolutions are linear layers.
bool fits(const std::vector<int64_t>& given, const std::vector<int64_t>& wanted) {
  std::vector<int64_t> shorter = given;
  std::vector<int64_t> other = wanted;
  std::erase(shorter, 1);
  std::erase(other, 1);
  return shorter == other && numel(given) == numel(wanted);
}

}  // namespace

FoundAutoencoder find_autoencoder(const fs::path& path) {
  KINORA_CHECK(fs::exists(path), kIo, "[autoencoder] ", path, " does not exist");
  if (const fs::path folder = diffusers_folder(path); !folder.empty()) {
    return find_in_folder(folder);
  }
  if (fs::is_directory(path)) {
    for (const auto& entry : fs::directory_iterator(path)) {
      const fs::path other = other_half(entry.path());
      if (!other.empty() && fs::exists(other) && entry.is_regular_file()) {
        return find_halves(entry.path(), other);
      }
    }
    throw_error(
        ErrorKind::kIo, "[autoencoder] ", path,
        " has neither config.json, nor one in vae/ or vqvae/, nor files of an encoder and a "
        "decoder");
  }
  const fs::path other = other_half(path);
  return other.empty() ? find_in_file(path) : find_halves(path, other);
}

void check_names(const AutoencoderWeights& weights, nn::Module& model) {
  std::vector<std::string> missing;
  std::vector<std::string> misshapen;
  std::set<std::string> known;
  const auto check = [&](const std::string& path, const std::vector<int64_t>& shape) {
    known.insert(path);
    if (!weights.contains(path)) {
      missing.push_back(path);
    } else if (!fits(weights.shape(path), shape)) {
      std::ostringstream text;
      text << path << " (must be " << at::IntArrayRef(shape) << ", is "
           << at::IntArrayRef(weights.shape(path)) << ")";
      misshapen.push_back(text.str());
    }
  };
  for (const auto& [path, parameter] : model.named_parameters()) {
    check(path, parameter->shape);
  }
  for (const auto& [path, buffer] : model.named_buffers()) {
    check(path, buffer->sizes().vec());
  }
  std::vector<std::string> unexpected;
  for (const auto& [path, source] : weights.sources) {
    if (!known.contains(path)) {
      unexpected.push_back(source.key);
    }
  }
  KINORA_CHECK(missing.empty() && unexpected.empty() && misshapen.empty(), kIo, "[autoencoder] ",
               weights.files.front().path(), " does not fit: ", missing.size(), " missing [",
               list_names(missing, kMaxNamesInMessage), "], ", unexpected.size(), " unexpected [",
               list_names(unexpected, kMaxNamesInMessage), "], ", misshapen.size(),
               " of another shape [", list_names(misshapen, kMaxNamesInMessage), "]");
}

std::unique_ptr<models::Autoencoder> open_autoencoder(const fs::path& path, at::Device device,
                                                      at::ScalarType type) {
  const Found found = find_autoencoder(path);
  std::unique_ptr<models::Autoencoder> model = make_autoencoder(found.config);
  check_names(found.weights, *model);
  const at::ScalarType used = used_type(found.config, type);
  for (const auto& [name, parameter] : model->named_parameters()) {
    const at::Tensor value = found.weights.read(name).view(parameter->shape).to(device, used);
    // the layout that activations have, so that no call has to change it
    parameter->value = value.dim() == 4 ? value.contiguous(at::MemoryFormat::ChannelsLast) : value;
  }
  for (const auto& [name, buffer] : model->named_buffers()) {  // statistics, which stay fp32
    *buffer = found.weights.read(name).view(buffer->sizes()).to(device, at::kFloat);
  }
  return model;
}

int64_t autoencoder_bytes(const fs::path& path, at::ScalarType type) {
  const Found found = find_autoencoder(path);
  const std::unique_ptr<models::Autoencoder> model = make_autoencoder(found.config);
  const auto element = static_cast<int64_t>(c10::elementSize(used_type(found.config, type)));
  int64_t bytes = 0;
  for (const auto& [name, parameter] : model->named_parameters()) {
    bytes += parameter->numel() * element;
  }
  for (const auto& [name, buffer] : model->named_buffers()) {
    bytes += buffer->numel() * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

models::LatentSpace latent_space(const fs::path& path) {
  return make_autoencoder(find_autoencoder(path).config)->space();
}

std::string fingerprint(const fs::path& path) {
  const Found found = find_autoencoder(path);
  io::Checksum checksum;
  const auto add = [&](const std::string& text) {
    checksum.update(std::as_bytes(std::span(text)));
    checksum.update(std::as_bytes(std::span("\n", 1)));
  };
  add(describe(found.config));
  for (const auto& [name, source] : found.weights.sources) {
    const at::Tensor value = found.weights.read(name);
    std::ostringstream text;
    text << name << ' ' << at::IntArrayRef(value.sizes()) << ' ' << value.scalar_type();
    add(text.str());
    checksum.update(device::bytes_of(value));
  }
  return checksum.hex();
}

}  // namespace kinora::pipelines
