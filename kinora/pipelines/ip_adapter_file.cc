#include "kinora/pipelines/ip_adapter_file.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "kinora/core/error.h"
#include "kinora/io/file.h"
#include "kinora/models/unets/ip_adapter.h"
#include "kinora/pipelines/diffusers_config.h"
#include "kinora/pipelines/image_encoder_file.h"
#include "kinora/pipelines/text_encoder_config.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;
using checkpoint::LateTensors;
using checkpoint::WeightsFile;

constexpr std::string_view kProjection = "image_proj.";

constexpr const char* kLatents = "image_proj.latents";

bool is_plus(const WeightsFile& file) {
  return file.contains(kLatents);
}

models::ClipImageConfig encoder_config(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  KINORA_CHECK(fs::is_regular_file(path), kIo, "[ip-adapter] ", folder,
               " has no config.json. Hint: --ip-encoder takes the folder of an image encoder of "
               "transformers (CLIPVisionModelWithProjection)");
  return parse_image_encoder_config(io::read_text(path, kMaxConfigBytes), path.string());
}

/// kConfig for the kinds of adapters that Kinora lacks, told by their keys.
void check_kind(const WeightsFile& file) {
  const auto lacks = [&](const char* kind, const std::string& key) {
    throw_error(ErrorKind::kConfig, "[ip-adapter] ", file.path(), " is a ", kind,
                " adapter, as its key ", key,
                " says, which Kinora lacks. Hint: plain and plus ones are "
                "there, such as ip-adapter_sd15.safetensors");
  };
  for (const std::string& name : file.names()) {
    if (name.starts_with("image_proj.perceiver_resampler.") ||
        name.find(".to_k_lora.") != std::string::npos || name == "image_proj.proj.0.weight") {
      const bool is_full_face = file.contains("image_proj.proj.3.weight");
      lacks(is_full_face ? "full face" : "FaceID", name);
    }
  }
  KINORA_CHECK(is_plus(file) || file.contains("image_proj.proj.weight"), kConfig, "[ip-adapter] ",
               file.path(), " is no IP-Adapter: it has neither image_proj.proj.weight nor ",
               kLatents);
}

/// The shape of a tensor that must be there and have so many dims.
std::vector<int64_t> shape_of(const WeightsFile& file, const std::string& key, size_t dims) {
  KINORA_CHECK(file.contains(key), kConfig, "[ip-adapter] ", file.path(), " has no ", key);
  std::vector<int64_t> shape = file.shape(key);
  KINORA_CHECK(shape.size() == dims && std::ranges::min(shape) > 0, kConfig, "[ip-adapter] ",
               file.path(), ": ", key, " must have ", dims, " dims, got shape ",
               at::IntArrayRef(shape));
  return shape;
}

/// kConfig unless the file has `key` in this shape.
void check_shape(const WeightsFile& file, const std::string& key,
                 const std::vector<int64_t>& shape) {
  KINORA_CHECK(file.contains(key), kConfig, "[ip-adapter] ", file.path(), " has no ", key,
               ", which an adapter of this U-Net has");
  const std::vector<int64_t> got = file.shape(key);
  KINORA_CHECK(got == shape, kConfig, "[ip-adapter] ", file.path(), ": ", key, " must have shape ",
               at::IntArrayRef(shape), " for this U-Net, got ", at::IntArrayRef(got),
               ". Hint: an adapter is made for U-Nets of one kind");
}

std::string key_of(const std::string& path) {
  return path.starts_with(kProjection) ? path : models::kIpAdapterPrefix + path;
}

/// What the shapes of a file say; the others follow from these.
models::IpAdapterConfig sizes_of(const WeightsFile& file, int64_t text_channels) {
  if (!is_plus(file)) {
    const std::vector<int64_t> projection = shape_of(file, "image_proj.proj.weight", 2);
    return {.tokens = std::max<int64_t>(projection[0] / text_channels, 1),
            .channels = projection[1]};
  }
  const auto layer = [](int64_t number) {
    return std::string(kProjection) + "layers." + std::to_string(number) + ".";
  };
  const std::vector<int64_t> latents = shape_of(file, kLatents, 3);
  models::IpAdapterConfig sizes{.tokens = latents[1], .width = latents[2]};
  sizes.channels = shape_of(file, "image_proj.proj_in.weight", 2)[1];
  sizes.mlp = shape_of(file, layer(0) + "1.1.weight", 2)[0];
  const int64_t inner = shape_of(file, layer(0) + "0.to_q.weight", 2)[0];
  sizes.heads = std::max<int64_t>(inner / models::kResamplerHeadChannels, 1);
  while (file.contains(layer(sizes.depth) + "0.to_q.weight")) {
    ++sizes.depth;
  }
  return sizes;
}

}  // namespace

models::ModelConfig with_ip_adapter(models::ModelConfig model, const fs::path& path, double scale) {
  KINORA_CHECK(!model.unet.channels.empty(), kConfig,
               "[ip-adapter] IP-Adapters are for U-Nets of Stable Diffusion, and this model is "
               "none");
  KINORA_CHECK(model.takes_text(), kConfig,
               "[ip-adapter] IP-Adapters are for U-Nets that are told captions, and this model is "
               "told classes");
  KINORA_CHECK(fs::exists(path), kIo, "[ip-adapter] ", path, " does not exist");
  KINORA_CHECK(!fs::is_directory(path), kConfig, "[ip-adapter] ", path,
               " is a folder. Hint: name the file in it, such as ip-adapter_sd15.safetensors");
  const WeightsFile file = WeightsFile::open(path, /*averaged=*/false);
  check_kind(file);
  check_shape(file, is_plus(file) ? "image_proj.norm_out.weight" : "image_proj.norm.weight",
              {model.text_channels});
  model.unet.ip_adapter = sizes_of(file, model.text_channels);
  model.unet.ip_adapter.scale = scale;

  LateTensors tensors = ip_adapter_tensors(file);
  models::IpAdapter adapter(model);  // without values
  for (const auto& [name, parameter] : adapter.named_parameters()) {
    check_shape(file, key_of(name), parameter->shape);
    tensors.erase(models::kIpAdapterPrefix + name);
  }
  KINORA_CHECK(
      tensors.empty(), kConfig, "[ip-adapter] ", path, " has ",
      key_of(tensors.begin()->first.substr(std::string_view(models::kIpAdapterPrefix).size())),
      ", which this U-Net has no place for");
  return model;
}

LateTensors ip_adapter_tensors(const WeightsFile& file) {
  LateTensors tensors;
  for (auto& [name, tensor] : file.tensors()) {
    tensors.emplace(name.starts_with(kProjection) ? models::kIpAdapterPrefix + name : name,
                    std::move(tensor));
  }
  return tensors;
}

fs::path find_image_encoder(const fs::path& adapter) {
  const fs::path folder = fs::absolute(adapter).parent_path() / "image_encoder";
  KINORA_CHECK(fs::is_directory(folder), kIo, "[ip-adapter] the image encoder of ", adapter,
               " is not in ", folder, ". Hint: --ip-encoder FOLDER");
  return folder;
}

void check_image_encoder(const fs::path& folder, const models::ModelConfig& model) {
  const int64_t channels = model.unet.ip_adapter.channels;
  const models::ClipImageConfig config = encoder_config(folder);
  const bool reads_places = model.unet.ip_adapter.reads_places();
  const int64_t got = reads_places ? config.hidden_size : config.projection_dim;
  KINORA_CHECK(got == channels, kConfig, "[ip-adapter] ", folder / "config.json", ": ",
               reads_places ? "hidden_size" : "projection_dim", " must be ", channels,
               ", which the adapter reads, got ", got,
               ". Hint: --ip-encoder takes the folder of the image encoder "
               "that it was trained with");
}

ImagePrompts encode_image_prompts(const std::vector<io::Image>& pictures, const fs::path& folder,
                                  const models::ModelConfig& model, at::Device device) {
  check_image_encoder(folder, model);
  const PictureEncoder encoder(folder, device);
  if (!model.unet.ip_adapter.reads_places()) {
    const at::Tensor vectors = encoder.vectors(pictures).cpu();
    return {.given = vectors, .none = at::zeros_like(vectors.narrow(0, 0, 1))};
  }
  // Of places a grey picture stands for none, and not zeros in the place of its states.
  return {.given = encoder.states(pictures).cpu(), .none = encoder.states_of_grey().cpu()};
}

}  // namespace kinora::pipelines
