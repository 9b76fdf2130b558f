#include "kinora/inference/draw_start.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/upsample_nearest2d.h>

#include <array>
#include <cmath>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/data/normalise.h"
#include "kinora/device/host_bytes.h"
#include "kinora/inference/given_frames.h"
#include "kinora/inference/shown_beside.h"
#include "kinora/io/image_resize.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/latent_encoder.h"

namespace kinora::inference {
namespace {

constexpr int kHalfOfWhite = 128;

/// Those of Flux Kontext that are at least as wide as high; it was trained on these turned, too.
constexpr std::array<io::ImageSize, 9> kReferenceSizes = {{{.height = 1024, .width = 1024},
                                                           {.height = 944, .width = 1104},
                                                           {.height = 880, .width = 1184},
                                                           {.height = 832, .width = 1248},
                                                           {.height = 800, .width = 1328},
                                                           {.height = 752, .width = 1392},
                                                           {.height = 720, .width = 1456},
                                                           {.height = 688, .width = 1504},
                                                           {.height = 672, .width = 1568}}};

/// The one whose ratio of sides is nearest; of two the narrower one.
io::ImageSize reference_size(io::ImageSize own) {
  const auto ratio = [](io::ImageSize size) {
    return static_cast<double>(size.width) / static_cast<double>(size.height);
  };
  io::ImageSize best;
  for (const io::ImageSize wide : kReferenceSizes) {
    for (const io::ImageSize size : {wide, {.height = wide.width, .width = wide.height}}) {
      const auto rank = [&](io::ImageSize it) {
        return std::pair(std::abs(ratio(own) - ratio(it)), it.width);
      };
      if (best.height == 0 || rank(size) < rank(best)) {
        best = size;
      }
    }
  }
  return best;
}

/// Of what the model draws, decoded.
FrameReading reading_of(const models::ModelConfig& model,
                        const std::optional<models::LatentSpace>& space) {
  const int64_t unit = space ? space->compression : 1;
  return {.count = !space || !model.is_video() ? model.frames
                                               : models::pixel_frames(*space, model.frames),
          .height = model.height * unit,
          .width = model.width * unit};
}

void check_pixels(const models::ModelConfig& model, const std::optional<models::LatentSpace>& space,
                  const char* option) {
  KINORA_CHECK(space || model.in_channels == models::kPixelChannels, kConfig, "[sample] ", option,
               " wants an autoencoder for this model, which draws latents of ", model.in_channels,
               " channels. Hint: --autoencoder PATH, or --latents FILE");
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
                        const std::optional<models::LatentSpace>& space) {
  check_pixels(model, space, "--init");
  const FrameReading reading = reading_of(model, space);
  std::vector<at::Tensor> rows;
  for (const std::string& path : paths) {
    const at::Tensor pixels = read_pixels(path, reading);  // [3, K, H, W]
    KINORA_CHECK(pixels.size(1) == reading.count, kConfig, "[sample] --init ", path, " must have ",
                 reading.count, " frames, as what is drawn, got ", pixels.size(1));
    rows.push_back(model.is_video() ? pixels : pixels.squeeze(1));
  }
  return at::stack(rows);
}

at::Tensor read_references(const std::vector<std::string>& paths, const models::ModelConfig& model,
                           const std::optional<models::LatentSpace>& space, bool keeps_size) {
  check_pixels(model, space, "--init");
  const int64_t unit = (space ? space->compression : 1) * models::shape_of(model).patch;
  std::vector<at::Tensor> rows;
  for (const std::string& path : paths) {
    const io::Image picture = read_picture(path);
    const auto whole = [&](io::ImageSize size) {
      return io::ImageSize{.height = size.height / unit * unit, .width = size.width / unit * unit};
    };
    const io::ImageSize own = whole({.height = picture.height, .width = picture.width});
    KINORA_CHECK(own.height > 0 && own.width > 0, kConfig, "[sample] picture ", path,
                 " must have at least ", unit, " x ", unit, " pixels, got ", picture.width, " x ",
                 picture.height);
    const io::ImageSize size = keeps_size ? own : whole(reference_size(own));
    const at::Tensor row =
        data::to_float(pixels_of(io::resize(picture, size.height, size.width, io::Filter::kLanczos))
                           .permute({2, 0, 1}),
                       at::kCPU);
    KINORA_CHECK(rows.empty() || rows.front().sizes() == row.sizes(), kConfig,
                 "[sample] pictures that are changed together must have one size, got ",
                 rows.empty() ? 0 : rows.front().size(2), " x ",
                 rows.empty() ? 0 : rows.front().size(1), " of ", paths.front(), " and ",
                 size.width, " x ", size.height, " of ", path,
                 ". Hint: draw them one after the other");
    rows.push_back(row);
  }
  return at::stack(rows);
}

at::Tensor read_subjects(const std::vector<std::string>& paths, const models::ModelConfig& model,
                         const std::optional<models::LatentSpace>& space) {
  const int64_t most = models::shape_of(model).references;
  KINORA_CHECK(
      std::ssize(paths) <= most, kConfig, "[sample] this model is shown up to ", most,
      " references (model.references), got ", paths.size(),
      most == 0 ? ". Hint: --image gives frames of clips and pictures that are changed" : "");
  check_pixels(model, space, "--reference");
  const FrameReading reading = reading_of(model, space);
  std::vector<at::Tensor> planes;
  for (const std::string& path : paths) {
    const io::Image picture = io::center_crop(read_picture(path), reading.height, reading.width);
    planes.push_back(data::to_float(pixels_of(picture).permute({2, 0, 1}), at::kCPU));
  }
  return at::stack(planes, 1).unsqueeze(0);
}

at::Tensor read_masks(const std::vector<std::string>& paths,
                      const std::vector<std::string>& pictures, const models::ModelConfig& model,
                      const std::optional<models::LatentSpace>& space) {
  KINORA_CHECK(!model.is_video(), kConfig, "[sample] masks are of pictures, and this model draws ",
               "clips");
  KINORA_CHECK(paths.size() == 1 || paths.size() == pictures.size(), kConfig,
               "[sample] there must be one mask, or one for each of ", pictures.size(),
               " pictures, got ", paths.size());
  const FrameReading reading = reading_of(model, space);
  std::vector<at::Tensor> rows;
  for (size_t i = 0; i < pictures.size(); ++i) {
    const std::string& path = paths[paths.size() == 1 ? 0 : i];
    const io::Image mask = read_picture(path);
    const io::Image picture = read_picture(pictures[i]);
    KINORA_CHECK(mask.width == picture.width && mask.height == picture.height, kConfig,
                 "[sample] mask ", path, " must have the size of ", pictures[i], ", ",
                 picture.width, " x ", picture.height, ", got ", mask.width, " x ", mask.height);
    const at::Tensor cropped = pixels_of(io::center_crop(mask, reading.height, reading.width));
    KINORA_CHECK(cropped.select(2, 0).equal(cropped.select(2, 1)) &&
                     cropped.select(2, 0).equal(cropped.select(2, 2)),
                 kConfig, "[sample] mask ", path,
                 " must be grey, white where the picture is drawn, got colours");
    rows.push_back((cropped.select(2, 0) >= kHalfOfWhite).to(at::kFloat).unsqueeze(0));
  }
  return at::stack(rows);
}

at::Tensor as_drawn(const at::Tensor& pixels, models::Autoencoder* encoder, at::Device device) {
  if (encoder == nullptr) {
    return pixels;
  }
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  for (const at::Tensor& picture : pixels.split(1)) {
    rows.push_back(encoder->encode(picture.to(device)).mean.to(at::kCPU, at::kFloat));
  }
  return at::cat(rows);
}

at::Tensor shown_beside(const at::Tensor& pixels, const at::Tensor& masks,
                        const models::ModelConfig& model, models::Autoencoder* encoder,
                        at::Device device) {
  const models::ShownInput input = models::shape_of(model).input;
  KINORA_CHECK(!models::fills_in(input) || masks.defined(), kConfig,
               "[sample] this model fills in a part of a picture. Hint: --mask FILE");
  std::optional<pipelines::LatentEncoder> latents;
  if (encoder != nullptr) {
    latents.emplace(*encoder, device, /*micro_batch=*/1);
  }
  const at::Tensor shown = shown_beside(pixels, masks, input, latents ? &*latents : nullptr);
  return shown.defined() ? shown.to(at::kCPU) : shown;
}

at::Tensor shown_subjects(const at::Tensor& pixels, const models::ModelConfig& model,
                          models::Autoencoder* encoder, at::Device device) {
  const int64_t count = pixels.size(2);
  std::optional<pipelines::LatentEncoder> latents;
  if (encoder != nullptr) {
    latents.emplace(*encoder, device, /*micro_batch=*/1);
  }
  const at::NoGradGuard no_grad;
  return shown_references(at::constant_pad_nd(
                              pixels, {0, 0, 0, 0, 0, models::shape_of(model).references - count}),
                          at::full({pixels.size(0)}, count, at::kLong),
                          latents ? &*latents : nullptr)
      .cpu();
}

at::Tensor read_controls(const std::vector<std::string>& paths, const models::ModelConfig& model) {
  const int64_t controls = models::shape_of(model).controls;
  const auto count = std::ssize(paths);
  KINORA_CHECK(controls > 0, kConfig,
               "[sample] this model has no ControlNet that could be shown --control. Hint: "
               "--controlnet FOLDER");
  KINORA_CHECK(count > 0 && count % controls == 0, kConfig,
               "[sample] there must be --control pictures for each of ", controls,
               " ControlNets, got ", count);
  const int64_t height = model.height * model.compression;
  const int64_t width = model.width * model.compression;
  std::vector<at::Tensor> planes;
  for (const std::string& path : paths) {
    const io::Image picture = read_picture(path);
    KINORA_CHECK(picture.width == width && picture.height == height, kConfig,
                 "[sample] control picture ", path, " must have the size of what is drawn, ", width,
                 " x ", height, ", got ", picture.width, " x ", picture.height,
                 ". Hint: --width and --height");
    planes.push_back(pixels_of(picture).permute({2, 0, 1}));
  }
  return at::cat(planes).view({count / controls, 3 * controls, height, width});
}

std::vector<io::Image> read_image_prompts(const std::vector<std::string>& paths,
                                          const models::ModelConfig& model) {
  const bool reads = models::shape_of(model).reads_image_prompt;
  KINORA_CHECK(reads || paths.empty(), kConfig,
               "[sample] this model has no IP-Adapter that could be shown --ip-image. Hint: "
               "--ip-adapter FILE");
  KINORA_CHECK(!reads || !paths.empty(), kConfig,
               "[sample] this model's IP-Adapter wants a picture. Hint: --ip-image FILE");
  std::vector<io::Image> pictures;
  for (const std::string& path : paths) {
    pictures.push_back(read_picture(path));
  }
  return pictures;
}

at::Tensor mask_of_drawn(const at::Tensor& masks, const models::ModelConfig& model) {
  return at::upsample_nearest2d(masks, {model.height, model.width});
}

}  // namespace kinora::inference
