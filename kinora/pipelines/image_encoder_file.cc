#include "kinora/pipelines/image_encoder_file.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kinora/checkpoint/model_weights.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/error.h"
#include "kinora/io/file.h"
#include "kinora/io/image_resize.h"
#include "kinora/pipelines/diffusers_config.h"
#include "kinora/pipelines/text_encoder_config.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPreprocessor = "preprocessor_config.json";
constexpr const char* kTowerProjection = "visual_projection.weight";
constexpr int64_t kMostSide = 4096;
constexpr int64_t kMostRatio = 64;  // of a picture's sides: it grows by it
constexpr int64_t kBicubic = 3;     // of Pillow

/// A number, or an object with it under all of `keys`.
int64_t side_of(const DiffusersConfig& reader, const char* key, int64_t otherwise,
                std::initializer_list<const char*> keys) {
  if (!reader.is_object(key)) {
    return reader.size(key, otherwise, kMostSide);
  }
  const DiffusersConfig sides = reader.within(key);
  std::vector<int64_t> all;
  for (const char* side : keys) {
    KINORA_CHECK(sides.has(side), kConfig, sides.message(), "must say ", side, ", as CLIP's does");
    all.push_back(sides.size(side, otherwise, kMostSide));
  }
  KINORA_CHECK(all.front() == all.back(), kConfig, sides.message(), "must be a square, got ",
               all.front(), " x ", all.back());
  return all.front();
}

std::array<double, 3> by_channel(const DiffusersConfig& reader, const char* key,
                                 const std::array<double, 3>& otherwise) {
  const std::vector<double> values =
      reader.get<std::vector<double>>(key, {otherwise.begin(), otherwise.end()});
  KINORA_CHECK(values.size() == 3, kIo, reader.message(), key, " must be three numbers, got ",
               values.size());
  return {values[0], values[1], values[2]};
}

/// As transformers rounds: the longer side down.
std::pair<int64_t, int64_t> resized_sides(const io::Image& image, int64_t shortest_edge) {
  const int64_t shorter = std::min(image.height, image.width);
  const int64_t longer = shortest_edge * std::max(image.height, image.width) / shorter;
  KINORA_CHECK(longer <= kMostRatio * shortest_edge, kIo,
               "[clip] a side of a picture must be at most ", kMostRatio, " times the other, got ",
               image.height, " x ", image.width);
  return image.height <= image.width ? std::pair(shortest_edge, longer)
                                     : std::pair(longer, shortest_edge);
}

constexpr const char* kTower = "vision_model.";

/// As CLIPModel names them; a CLIPVisionModel alone may be written without the tower's name.
checkpoint::LateTensors image_tensors(const checkpoint::WeightsFile& file) {
  const bool is_bare = file.contains("embeddings.class_embedding");
  checkpoint::LateTensors tensors;
  for (auto& [own, tensor] : file.tensors()) {
    const std::string name = is_bare && own != kTowerProjection ? kTower + own : own;
    const bool is_own = name.starts_with(kTower) || name == kTowerProjection;
    if (is_own && name != "vision_model.embeddings.position_ids") {  // old files: 0, 1, 2, ...
      tensors.emplace(name, tensor);
    }
  }
  return tensors;
}

}  // namespace

ImagePreprocessing read_image_preprocessing(const fs::path& folder) {
  const fs::path path = folder / kPreprocessor;
  const DiffusersConfig reader(io::read_text(path, kMaxConfigBytes), "clip", path.string());
  for (const char* step : {"do_resize", "do_center_crop", "do_rescale", "do_normalize"}) {
    KINORA_CHECK(reader.get<bool>(step, true), kConfig, reader.message(), step,
                 " must be true, as of CLIP, got false");
  }
  KINORA_CHECK(reader.get<int64_t>("resample", kBicubic) == kBicubic, kConfig, reader.message(),
               "resample must be ", kBicubic, " (bicubic), got ",
               reader.get<int64_t>("resample", kBicubic));
  const auto factor = reader.get<double>("rescale_factor", 1.0 / 255.0);
  KINORA_CHECK(std::abs(factor * 255.0 - 1.0) < 1e-6, kConfig, reader.message(),
               "rescale_factor must be 1 / 255, got ", factor);
  ImagePreprocessing how;
  how.shortest_edge = side_of(reader, "size", how.shortest_edge, {"shortest_edge"});
  how.crop = side_of(reader, "crop_size", how.crop, {"height", "width"});
  how.mean = by_channel(reader, "image_mean", how.mean);
  how.std = by_channel(reader, "image_std", how.std);
  KINORA_CHECK(std::ranges::all_of(how.std, [](double each) { return each > 0.0; }), kConfig,
               reader.message(), "image_std must be above 0, got another");
  KINORA_CHECK(how.crop <= how.shortest_edge, kConfig, reader.message(),
               "crop_size must be at most the shortest edge, ", how.shortest_edge, ", got ",
               how.crop);
  return how;
}

ImagePreprocessing image_preprocessing_of(const fs::path& folder, int64_t image_size) {
  const fs::path beside = fs::absolute(folder).lexically_normal().parent_path() / "image_processor";
  for (const fs::path& place : {folder, beside}) {
    if (fs::exists(place / kPreprocessor)) {
      const ImagePreprocessing how = read_image_preprocessing(place);
      KINORA_CHECK(how.crop == image_size, kConfig, "[clip] ", folder, " takes pictures of ",
                   image_size, " pixels a side, but its ", kPreprocessor, " crops ", how.crop);
      return how;
    }
  }
  return {.shortest_edge = image_size, .crop = image_size};
}

at::Tensor preprocessed(const io::Image& image, const ImagePreprocessing& how) {
  const auto [height, width] = resized_sides(image, how.shortest_edge);
  io::Image resized = io::resize(image, height, width, io::Filter::kBicubic);
  const at::Tensor square = at::from_blob(resized.pixels.data(), {height, width, 3}, at::kByte)
                                .narrow(0, (height - how.crop) / 2, how.crop)
                                .narrow(1, (width - how.crop) / 2, how.crop)
                                .permute({2, 0, 1})
                                .to(at::kDouble);  // [3, crop, crop]
  const auto channels = [](const std::array<double, 3>& values) {
    return at::tensor(values, at::kDouble).view({3, 1, 1});
  };
  return ((square / 255.0 - channels(how.mean)) / channels(how.std)).to(at::kFloat).contiguous();
}

std::unique_ptr<models::ClipImageEncoder> open_image_encoder(const fs::path& folder,
                                                             at::Device device) {
  const fs::path config = folder / "config.json";
  models::ClipImageConfig values =
      parse_image_encoder_config(io::read_text(config, kMaxConfigBytes), config.string());
  const auto file = checkpoint::WeightsFile::open(folder, /*averaged=*/false);
  const checkpoint::LateTensors tensors = image_tensors(file);
  if (!tensors.contains(kTowerProjection)) {
    values.projection_dim = 0;
  }
  auto encoder = std::make_unique<models::ClipImageEncoder>(values);
  const checkpoint::WeightsFit fit = checkpoint::compare(tensors, *encoder);
  KINORA_CHECK(fit.is_whole(), kIo, "[clip] the image tower in ", folder.string(),
               " does not fit its config: ", checkpoint::describe(fit));
  for (const auto& [path, parameter] : encoder->named_parameters()) {
    const checkpoint::LateTensor& tensor = tensors.at(path);
    KINORA_CHECK(at::isFloatingType(tensor.type), kIo, "[clip] ", folder.string(), ": ", path,
                 " must be of floating type, got ", tensor.type);
    parameter->frozen = true;
    parameter->value = tensor.read_all().to(device, at::kFloat, /*non_blocking=*/false,
                                            /*copy=*/true);
  }
  return encoder;
}

int64_t image_encoder_bytes(const fs::path& folder) {
  const fs::path config = folder / "config.json";
  models::ClipImageEncoder encoder(
      parse_image_encoder_config(io::read_text(config, kMaxConfigBytes), config.string()));
  int64_t elements = 0;
  for (const auto& [path, parameter] : encoder.named_parameters()) {
    elements += parameter->numel();
  }
  return elements * static_cast<int64_t>(sizeof(float));
}

PictureEncoder::PictureEncoder(const fs::path& folder, at::Device device)
    : encoder_(open_image_encoder(folder, device)),
      how_(image_preprocessing_of(folder, encoder_->config().image_size)),
      device_(device) {}

at::Tensor PictureEncoder::pixels_of(const io::Image& picture) const {
  return preprocessed(picture, how_).unsqueeze(0).to(device_);
}

at::Tensor PictureEncoder::vectors(const std::vector<io::Image>& pictures) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  for (const io::Image& picture : pictures) {
    rows.push_back(encoder_->forward(pixels_of(picture)));
  }
  return at::cat(rows);
}

at::Tensor PictureEncoder::states(const std::vector<io::Image>& pictures) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  for (const io::Image& picture : pictures) {
    rows.push_back(encoder_->states(pixels_of(picture)));
  }
  return at::cat(rows);
}

at::Tensor PictureEncoder::states_of_grey() const {
  const at::NoGradGuard no_grad;
  return encoder_->states(at::zeros({1, 3, how_.crop, how_.crop}, at::kFloat).to(device_));
}

}  // namespace kinora::pipelines
