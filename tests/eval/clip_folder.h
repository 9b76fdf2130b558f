#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

#include "kinora/io/file.h"
#include "kinora/models/text_encoders/clip_image_encoder.h"
#include "kinora/models/text_encoders/text_encoder.h"
#include "kinora/pipelines/text_encoder_config.h"
#include "tests/models/formula_file.h"
#include "tests/places.h"

/// The CLIP of tools/reference/make_clip_fixtures.py as a folder with its weights.
namespace kinora::eval {

inline std::filesystem::path clip_fixture() {
  return source_path("tests/eval/data/clip");
}

/// 0 to 255, as the script has it: the pixels of picture `number`, [H, W, 3].
inline at::Tensor clip_picture(int64_t number, int64_t height, int64_t width) {
  const at::Tensor values =
      models::formula_values("picture." + std::to_string(number), {height, width, 3});
  return ((values + 1.0) * 128.0).floor().clamp(0, 255).to(at::kByte);
}

/// Writes it, and returns its folder.
inline std::filesystem::path write_clip_folder(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  fs::create_directories(folder);
  for (const char* name : {"config.json", "preprocessor_config.json"}) {
    fs::copy_file(clip_fixture() / name, folder / name);
  }
  for (const auto& entry : fs::directory_iterator(source_path("tests/tokenizers/data/clip"))) {
    fs::copy_file(entry.path(), folder / entry.path().filename());
  }
  constexpr int64_t kMostBytes = 1 << 20;
  const std::string config = io::read_text(folder / "config.json", kMostBytes);
  models::ClipImageEncoder images(pipelines::parse_image_encoder_config(config, "config.json"));
  const auto text =
      pipelines::make_text_encoder(pipelines::parse_text_encoder_config(config, "config.json"));
  models::NamedTensors values = models::formula_weights(images);
  values.merge(models::formula_weights(*text));
  values["logit_scale"] = models::formula_weight("logit_scale", {});
  models::write_tensors(folder / "model.safetensors", values);
  return folder;
}

}  // namespace kinora::eval
