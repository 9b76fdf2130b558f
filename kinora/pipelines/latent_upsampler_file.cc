#include "kinora/pipelines/latent_upsampler_file.h"

#include <string>

#include "kinora/checkpoint/model_weights.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/error.h"
#include "kinora/pipelines/diffusers_config.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostUpsamplerChannels = 1 << 16;
constexpr int64_t kMostUpsamplerBlocks = 1024;

fs::path upsampler_folder(const fs::path& path) {
  const fs::path part = path / "latent_upsampler";
  return fs::exists(part) ? part : path;
}

}  // namespace

models::LatentUpsamplerConfig latent_upsampler_config(const fs::path& path) {
  const fs::path file = upsampler_folder(path) / "config.json";
  KINORA_CHECK(fs::is_regular_file(file), kIo, "[upsampler] ", path,
               " must be a folder of LTXLatentUpsamplePipeline, or its latent_upsampler/ with "
               "config.json");
  const DiffusersConfig reader(file);
  reader.require<std::string>("_class_name", "LTXLatentUpsamplerModel", "");
  reader.require("spatial_upsample", true, true);
  reader.require("temporal_upsample", false, false);
  const models::LatentUpsamplerConfig start;
  return {
      .in_channels = reader.size("in_channels", start.in_channels, kMostUpsamplerChannels),
      .mid_channels = reader.size("mid_channels", start.mid_channels, kMostUpsamplerChannels),
      .num_blocks_per_stage =
          reader.size("num_blocks_per_stage", start.num_blocks_per_stage, kMostUpsamplerBlocks),
      .dims = reader.size("dims", start.dims, 3),
  };
}

std::unique_ptr<models::LatentUpsampler> open_latent_upsampler(const fs::path& path,
                                                               at::Device device) {
  auto upsampler = std::make_unique<models::LatentUpsampler>(latent_upsampler_config(path));
  const fs::path folder = upsampler_folder(path);
  const auto file = checkpoint::WeightsFile::open(folder, /*averaged=*/false);
  checkpoint::LateTensors tensors;
  for (auto& [name, tensor] : file.tensors()) {
    tensors.emplace(name, tensor);
  }
  const checkpoint::WeightsFit fit = checkpoint::compare(tensors, *upsampler);
  KINORA_CHECK(fit.is_whole(), kIo, "[upsampler] the weights in ", folder,
               " do not fit config.json: ", checkpoint::describe(fit));
  for (const auto& [name, parameter] : upsampler->named_parameters()) {
    const checkpoint::LateTensor& tensor = tensors.at(name);
    KINORA_CHECK(at::isFloatingType(tensor.type), kIo, "[upsampler] ", folder, ": ", name,
                 " must be of floating type, got ", tensor.type);
    parameter->frozen = true;
    parameter->value = tensor.read_all().to(device, at::kFloat, /*non_blocking=*/false,
                                            /*copy=*/true);
  }
  return upsampler;
}

}  // namespace kinora::pipelines
