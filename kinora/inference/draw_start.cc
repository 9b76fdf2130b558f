#include "kinora/inference/draw_start.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>

#include "kinora/core/error.h"
#include "kinora/device/host_bytes.h"
#include "kinora/inference/given_frames.h"
#include "kinora/io/safetensors.h"

namespace kinora::inference {
namespace {

/// Of what the model draws, decoded.
FrameReading reading_of(const models::ModelConfig& model, const models::Autoencoder* encoder) {
  const int64_t unit = encoder == nullptr ? 1 : encoder->space().compression;
  return {.count = encoder == nullptr || !model.is_video()
                       ? model.frames
                       : models::pixel_frames(encoder->space(), model.frames),
          .height = model.height * unit,
          .width = model.width * unit};
}

}  // namespace

at::Tensor read_samples(const std::filesystem::path& path, const std::string& name,
                        const models::ModelConfig& model) {
  const auto file = io::SafetensorsFile::open(path);
  const io::SafetensorsTensor* const found = file.find(name);
  KINORA_CHECK(found != nullptr, kIo, "[sample] ", path, " has no tensor ", name);
  at::Tensor samples =
      device::tensor_from_bytes(found->dtype, found->shape, found->data).to(at::kFloat);
  const std::vector<int64_t> shape = model.sample_shape();
  if (samples.sizes() == at::IntArrayRef(shape)) {
    samples = samples.unsqueeze(0);
  }
  KINORA_CHECK(samples.dim() == std::ssize(shape) + 1 && samples.size(0) > 0 &&
                   samples.sizes().slice(1) == at::IntArrayRef(shape),
               kIo, "[sample] ", name, " of ", path, " must have shape [N, ",
               at::IntArrayRef(shape), "], which this model draws, got ", samples.sizes());
  KINORA_CHECK(at::isfinite(samples).all().item<bool>(), kIo, "[sample] ", name, " of ", path,
               " must be finite");
  return samples;
}

at::Tensor read_initial(const std::vector<std::string>& paths, const models::ModelConfig& model,
                        models::Autoencoder* encoder, at::Device device) {
  KINORA_CHECK(encoder != nullptr || model.in_channels == models::kPixelChannels, kConfig,
               "[sample] --init wants an autoencoder for this model, which draws latents of ",
               model.in_channels, " channels. Hint: --autoencoder PATH, or --latents FILE");
  const FrameReading reading = reading_of(model, encoder);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  for (const std::string& path : paths) {
    at::Tensor pixels = read_pixels(path, reading);  // [3, K, H, W]
    KINORA_CHECK(pixels.size(1) == reading.count, kConfig, "[sample] --init ", path, " must have ",
                 reading.count, " frames, as what is drawn, got ", pixels.size(1));
    pixels = model.is_video() ? pixels : pixels.squeeze(1);
    rows.push_back(
        encoder == nullptr
            ? pixels
            : encoder->encode(pixels.unsqueeze(0).to(device)).mean.to(at::kCPU).squeeze(0));
  }
  return at::stack(rows);
}

}  // namespace kinora::inference
