#include "kinora/pipelines/compvis_pipeline.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <vector>

#include "kinora/checkpoint/model_weights.h"
#include "kinora/models/unets/unet_names.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/pipelines/tokenizer_folder.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;
using checkpoint::WeightsFile;
using models::ModelConfig;
using nlohmann::json;

constexpr std::string_view kAutoencoder = "first_stage_model.";
constexpr const char* kTokenizer = "tokenizer";
constexpr const char* kClasses = "classes.txt";
constexpr int64_t kTokens = 77;
/// Whose places text encoders of latent diffusion have.
constexpr const char* kPositions = "cond_stage_model.transformer.pos_emb.emb.weight";

/// What names and shapes do not tell of the published models.
struct Published {
  const char* name;
  const char* prediction;
  int64_t side;  ///< of latents
  const char* method;
  double guidance;
  int64_t steps = 50;
  int64_t compression = 8;  ///< pixels along a side of one value of latents
  double beta_start = 0.00085;
  double beta_end = 0.012;
};
constexpr Published kFirst = {"Stable Diffusion 1", "eps", 64, "plms", 7.5};
constexpr Published kSecond = {"Stable Diffusion 2", "v", 96, "ddim", 7.5};
constexpr Published kSecondInpaint = {"Stable Diffusion 2 for inpainting", "eps", 64, "ddim", 7.5};
constexpr Published kXl = {"SDXL", "eps", 128, "euler", 5.0};
/// cin256-v2 of Rombach et al. 2022, as its notebook draws.
constexpr Published kOfClasses = {
    "latent diffusion of classes", "eps", 64, "ddim", 3.0, 20, 4, 0.0015, 0.0195};

/// cin256, its first form.
constexpr Published kOfFirstClasses = {
    "latent diffusion of classes", "eps", 32, "ddim", 1.0, 200, 8, 0.0015, 0.0195};

/// celeba256, ffhq256 and lsun_beds256, which are told nothing, as diffusers draws them.
constexpr Published kOfPlaces = {"latent diffusion", "eps", 64, "ddim", 1.0, 50, 4, 0.0015, 0.0195};
/// lsun_churches256, which is told nothing either.
constexpr Published kOfBlocks = {"latent diffusion", "eps", 32, "ddim", 1.0, 50, 8, 0.0015, 0.0155};

/// text2img-large, as its script draws, and text2img256.
constexpr Published kOfCaptions = {"latent diffusion of captions", "eps", 32, "ddim", 5.0};
constexpr Published kOfFewCaptions = {
    "latent diffusion of captions", "eps", 64, "ddim", 5.0, 50, 4, 0.0015, 0.0195};

/// layout2img-openimages256.
constexpr Published kOfLayouts = {
    "latent diffusion of layouts", "eps", 64, "ddim", 1.0, 200, 4, 0.0015, 0.0205};

bool has_bert(const WeightsFile& file) {
  return file.contains(models::kCompvisWords);
}

/// Tokens of a caption.
int64_t tokens_of(const WeightsFile& file) {
  return has_bert(file) ? file.shape(kPositions).front() : kTokens;
}

/// Captions have as many tokens as Stable Diffusion's, layouts three an object and two.
bool reads_boxes(const WeightsFile& file) {
  return has_bert(file) && tokens_of(file) != kTokens;
}

const Published& published(const ModelConfig& model, const WeightsFile& file) {
  if (reads_boxes(file)) {
    return kOfLayouts;
  }
  if (has_bert(file)) {
    return model.in_channels == 3 ? kOfFewCaptions : kOfCaptions;
  }
  if (model.unet.attends == models::UnetAttends::kPlaces) {
    return model.unet.resizes_in_blocks ? kOfBlocks : kOfPlaces;
  }
  if (!model.takes_text()) {
    return models::is_without_null_class(model) ? kOfFirstClasses : kOfClasses;
  }
  if (model.pooled_channels > 0) {
    return kXl;
  }
  if (!model.unet.linear_projection) {
    return kFirst;
  }
  return model.unet.input == models::ShownInput::kInpaint ? kSecondInpaint : kSecond;
}

/// The U-Net of a file.
std::optional<ModelConfig> find_unet(const WeightsFile& file) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, tensor] : file.tensors()) {
    shapes.emplace(name, tensor.shape);
  }
  return models::find_compvis_unet(shapes, file.path().string());
}

json recipe_of(const ModelConfig& model, const WeightsFile& file) {
  const models::UnetConfig& own = model.unet;
  const Published& its = published(model, file);
  return {{"run", {{"dir", "runs/compvis"}}},
          {"model",
           {{"architecture", model.architecture},
            {"in_channels", model.in_channels},
            {"learn_sigma", model.learn_sigma},
            {"height", its.side},
            {"width", its.side},
            {"compression", its.compression},
            {"num_classes", model.num_classes},
            {"text_channels", model.text_channels},
            {"text_tokens", tokens_of(file)},
            {"pooled_channels", model.pooled_channels},
            {"unet",
             {{"input", to_string(own.input)},
              {"classes", to_string(own.classes)},
              {"attends", to_string(own.attends)},
              {"channels", own.channels},
              {"resnets", own.resnets},
              {"depths", own.depths},
              {"middle_depth", own.middle_depth},
              {"heads", own.heads},
              {"scales_by_time", own.scales_by_time},
              {"resizes_in_blocks", own.resizes_in_blocks},
              {"linear_projection", own.linear_projection},
              {"size_channels", own.size_channels},
              {"reads_score", own.reads_score}}}}},
          {"objective",
           {{"kind", "iddpm"},
            {"timesteps", 1000},
            {"prediction", its.prediction},
            {"betas", "scaled_linear"},
            {"beta_start", its.beta_start},
            {"beta_end", its.beta_end}}},
          {"ema", {{"decays", json::array()}}}};
}

bool has_autoencoder(const WeightsFile& file) {
  return std::ranges::any_of(
      file.names(), [](const std::string& name) { return name.starts_with(kAutoencoder); });
}

/// What Kinora chose for it.
std::string note_of(const Published& its) {
  if (&its == &kOfFirstClasses) {
    return "this form of cin256 was trained without a null class: class 999 stands for it, is not "
           "drawn, and guidance would lead away from it";
  }
  if (&its != &kSecond) {
    return "";
  }
  return "nothing in such a file says what a U-Net of Stable Diffusion 2 predicts, nor at which "
         "size: taken is v at 768 x 768 pixels. Of the base models, which predict noise at 512 x "
         "512, say --set objective.prediction=eps --set model.height=64 --set model.width=64";
}

/// As the base of SDXL was trained, but not the refiner.
bool reads_zeros(const ModelConfig& model) {
  return model.pooled_channels > 0 && !model.unet.reads_score;
}

/// The list of an object's classes beside the file; "" where there is none.
fs::path classes_of(const fs::path& file) {
  const fs::path path = fs::absolute(file).parent_path() / kClasses;
  return fs::is_regular_file(path) ? path : fs::path();
}

fs::path tokenizer_of(const fs::path& file) {
  const std::vector<fs::path> places = tokenizer_places(file);
  const auto found = std::ranges::find_if(places, has_tokenizer);
  return found == places.end() ? fs::absolute(file).parent_path() / kTokenizer : *found;
}

}  // namespace

std::optional<Pipeline> find_compvis_pipeline(const fs::path& path) {
  if (!fs::is_regular_file(path)) {
    return std::nullopt;
  }
  const WeightsFile file = WeightsFile::open(path);
  const std::optional<ModelConfig> model = find_unet(file);
  if (!model || !file.metadata(checkpoint::kConfigMetadata).empty()) {
    return std::nullopt;
  }
  const Published& its = published(*model, file);
  Pipeline pipeline{.folder = path,
                    .class_name = std::string("file of ") + its.name,
                    .recipe = compvis_pipeline_recipe,
                    .note = note_of(its)};
  if (model->takes_text()) {
    const bool of_boxes = reads_boxes(file);
    pipeline.text = PipelineText{.tokenizer = of_boxes ? classes_of(path) : tokenizer_of(path),
                                 .encoder = fs::absolute(path),
                                 .max_tokens = tokens_of(file),
                                 .has_own_null = reads_zeros(*model),
                                 .reads_boxes = of_boxes};
  }
  return pipeline;
}

std::string compvis_recipe(const fs::path& path) {
  if (!fs::is_regular_file(path)) {
    return "";
  }
  const WeightsFile file = WeightsFile::open(path);
  const std::optional<ModelConfig> model = find_unet(file);
  return model ? recipe_of(*model, file).dump(2) : "";
}

std::string compvis_pipeline_recipe(const Pipeline& pipeline) {
  const WeightsFile file = WeightsFile::open(pipeline.folder);
  const ModelConfig model = find_unet(file).value();
  json recipe = recipe_of(model, file);
  // As in the folders of diffusers.
  const Published& its = published(model, file);
  recipe["sample"] = {{"method", its.method}, {"clip_denoised", false}, {"spacing", "leading"},
                      {"steps_offset", 1},    {"steps", its.steps},     {"guidance", its.guidance}};
  if (&its != &kXl) {
    recipe["sample"]["end_clean"] = false;
  }
  if (model.unet.input == models::ShownInput::kEdit) {
    recipe["sample"]["steps"] = 100;
    recipe["sample"]["given_guidance"] = 1.5;
  }
  if (has_autoencoder(file)) {
    recipe["autoencoder"]["path"] = pipeline.folder.string();
  }
  if (has_autoencoder(file) && (!model.takes_text() || has_bert(file))) {
    // Whose autoencoders are of several sizes; as many pixels are drawn with all of them.
    const int64_t compression = latent_space(pipeline.folder).compression;
    recipe["model"]["compression"] = compression;
    for (const char* side : {"height", "width"}) {
      recipe["model"][side] = its.side * its.compression / compression;
    }
  }
  return recipe.dump(2);
}

void take_compvis_unet(WeightsFile& file, bool averaged) {
  const auto naming = models::find_compvis_unet_naming(
      file.names(), [&file](const std::string& name) { return file.shape(name); }, averaged);
  if (!naming) {
    return;
  }
  std::set<std::string> used;
  for (const nn::OtherName& name : *naming) {
    used.insert(name.keys.front());
  }
  file.drop([&used](const std::string& name) { return !used.contains(name); });
  file.rename(*naming);
}

}  // namespace kinora::pipelines
