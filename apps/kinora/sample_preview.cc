#include "apps/kinora/sample_preview.h"

#include <algorithm>
#include <system_error>

#include "kinora/core/error.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/io/image.h"
#include "kinora/io/image_grid.h"
#include "kinora/pipelines/decode.h"

namespace kinora::apps {
namespace {

constexpr int64_t kMostShown = 4;
constexpr const char* kFile = "preview.png";

}  // namespace

Previews::Previews(const SampleArguments& arguments, const inference::ModelRecipe& recipe,
                   models::Autoencoder* decoder, at::Device device)
    : path_(std::filesystem::path(arguments.out) / kFile),
      every_(arguments.preview),
      decoder_(decoder),
      device_(device) {
  if (!arguments.preview_decoder.empty()) {
    own_ = inference::open_decoder(recipe, {.path = arguments.preview_decoder}, device);
    decoder_ = own_.get();
  }
  const int64_t channels = recipe.model.in_channels;
  KINORA_CHECK(decoder_ != nullptr || channels == 3 || channels == 1, kConfig,
               "[sample] --preview shows pictures, and nothing makes them of this model's latents. "
               "Hint: --preview-decoder FOLDER, or --autoencoder PATH");
}

Previews::~Previews() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void Previews::show(const pipelines::DrawPreview& preview) {
  if (preview.step % every_ != 0) {
    return;
  }
  at::Tensor x0 = preview.x0.narrow(0, 0, std::min(preview.x0.size(0), kMostShown));
  if (decoder_ != nullptr) {
    x0 = pipelines::decode_latents(*decoder_, x0, device_, /*one_by_one=*/false);
  }
  const std::vector<io::Image> images = inference::shown_images(x0.to(at::kCPU, at::kFloat));
  const bool is_clip = preview.x0.dim() == 5;
  io::write_png(path_, io::make_grid(images, {.columns = is_clip ? 1 : 0}));
}

}  // namespace kinora::apps
