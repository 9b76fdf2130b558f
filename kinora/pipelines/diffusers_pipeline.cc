#include "kinora/pipelines/diffusers_pipeline.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/io/file.h"
#include "kinora/models/families.h"
#include "kinora/models/shown_input.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/pipelines/diffusers_config.h"
#include "kinora/pipelines/diffusers_model.h"
#include "kinora/pipelines/diffusers_scheduler.h"
#include "kinora/pipelines/tokenizer_folder.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPipelineFile = "model_index.json";

/// A class of diffusers with the defaults of its __call__.
struct PipelineClass {
  std::string_view name;
  const char* denoiser;           ///< its folder
  std::string_view architecture;  ///< of it
  int64_t text_tokens;            ///< max_sequence_length; 0: it draws classes
  int64_t steps;
  double guidance;
  bool cuts_negative = false;   ///< PipelineText's
  bool of_sdxl = false;         ///< its text encoders are read as one, and zeros for no caption
  double image_guidance = 1.0;  ///< of the picture that it changes
  bool has_controls = false;    ///< controlnet/, and perhaps controlnet_1/, ...
  int64_t clips = 0;            ///< CLIPs beside the main text encoder, read as one with it
  double fps = 0.0;             ///< of clips
  bool shows_frames = false;    ///< beside what is drawn
  bool clips_are_last = false;  ///< the main text encoder is the first one
  bool even_levels = false;     ///< it gives the scheduler noise levels 1, 1 - 1 / N, ..., 1 / N
  /// Of Flux: what it shows the model beside x_t.
  models::ShownInput shows = models::ShownInput::kPlain;
};
// Of Flux without guidance (schnell), which was distilled to so many steps and shorter texts.
constexpr int64_t kFewSteps = 4;
constexpr int64_t kFewTokens = 256;
constexpr std::array<PipelineClass, 30> kPipelines = {{
    {"DiTPipeline", "transformer", "dit", 0, 50, 4.0},
    {"LDMPipeline", "unet", "class_unet", 0, 50, 1.0},
    {"LatentDiffusionUncondPipeline", "unet", "class_unet", 0, 50, 1.0},  // LDMPipeline before
    {"LDMTextToImagePipeline", "unet", "unet", 77, 50, 1.0},
    {"DDIMPipeline", "unet", "class_unet", 0, 50, 1.0},
    {"DDPMPipeline", "unet", "class_unet", 0, 1000, 1.0},
    {"PixArtAlphaPipeline", "transformer", "pixart", 120, 20, 4.5},
    {"PixArtSigmaPipeline", "transformer", "pixart", 300, 20, 4.5},
    {"LattePipeline", "transformer", "latte_t2v", 120, 50, 7.5, true},
    {"StableDiffusionPipeline", "unet", "unet", 77, 50, 7.5},
    {"StableDiffusionImg2ImgPipeline", "unet", "unet", 77, 50, 7.5},
    {"StableDiffusionInpaintPipeline", "unet", "unet", 77, 50, 7.5},
    {"StableDiffusionControlNetPipeline", "unet", "unet", 77, 50, 7.5, false, false, 1.0, true},
    {"StableDiffusionInstructPix2PixPipeline", "unet", "unet", 77, 100, 7.5, false, false, 1.5},
    {"StableDiffusionXLPipeline", "unet", "unet", 77, 50, 5.0, false, true},
    {"StableDiffusionXLControlNetPipeline", "unet", "unet", 77, 50, 5.0, false, true, 1.0, true},
    {"StableDiffusionXLImg2ImgPipeline", "unet", "unet", 77, 50, 5.0, false, true},
    {"FluxPipeline", "transformer", "flux", 512, 28, 1.0, false, false, 1.0, false, 1},
    {.name = "FluxFillPipeline",
     .denoiser = "transformer",
     .architecture = "flux",
     .text_tokens = 512,
     .steps = 50,
     .guidance = 1.0,
     .clips = 1,
     .shows = models::ShownInput::kFill},
    {.name = "FluxKontextPipeline",
     .denoiser = "transformer",
     .architecture = "flux",
     .text_tokens = 512,
     .steps = 28,
     .guidance = 1.0,
     .clips = 1,
     .shows = models::ShownInput::kReference},
    {"StableDiffusion3Pipeline", "transformer", "sd3", 77 + 256, 28, 7.0, false, false, 1.0, false,
     2},
    {"WanPipeline", "transformer", "wan", 512, 50, 5.0, false, false, 1.0, false, 0, 16.0},
    {"WanImageToVideoPipeline", "transformer", "wan", 512, 50, 5.0, false, false, 1.0, false, 0,
     16.0, true},
    {"HunyuanVideoPipeline", "transformer", "hunyuan_video", 256, 50, 1.0, false, false, 1.0, false,
     1, 24.0, false, true, true},
    {.name = "HunyuanVideoImageToVideoPipeline",
     .denoiser = "transformer",
     .architecture = "hunyuan_video",
     .text_tokens = 256,  // and those of a picture: find_diffusers_pipeline()
     .steps = 50,
     .guidance = 1.0,
     .clips = 1,
     .fps = 24.0,
     .shows_frames = true,
     .clips_are_last = true,
     .even_levels = true},
    {"CogVideoXPipeline", "transformer", "cogvideox", 226, 50, 6.0, false, false, 1.0, false, 0,
     8.0},
    {"CogVideoXImageToVideoPipeline", "transformer", "cogvideox", 226, 50, 6.0, false, false, 1.0,
     false, 0, 8.0, true},
    {"LTXPipeline", "transformer", "ltx_video", 128, 50, 3.0, false, false, 1.0, false, 0, 25.0},
    {"LTXImageToVideoPipeline", "transformer", "ltx_video", 128, 50, 3.0, false, false, 1.0, false,
     0, 25.0},
    // Of 0.9.5 and later: from words, or from frames.
    {"LTXConditionPipeline", "transformer", "ltx_video", 256, 50, 3.0, false, false, 1.0, false, 0,
     25.0},
}};
constexpr double kCogFps = 16.0;  // of 1.5

/// Whose autoencoder and text encoder lie in folders of other names.
bool is_latent_diffusion(const PipelineClass& its) {
  return its.name.starts_with("LDM") || its.name == "LatentDiffusionUncondPipeline";
}

bool is_flux(const PipelineClass& its) {
  return its.name == "FluxPipeline";
}

bool is_hunyuan_pipeline(const PipelineClass& its) {
  return its.name.starts_with("HunyuanVideo");
}

/// Lets the recipe's model of Flux be shown what the pipeline shows.
void add_flux(const PipelineClass& its, const fs::path& denoiser, json& model) {
  const bool fills = model["input"] == to_string(models::ShownInput::kFill);
  KINORA_CHECK(fills == (its.shows == models::ShownInput::kFill), kConfig, "[pipeline] ", denoiser,
               " is a transformer that ", fills ? "fills in" : "does not fill in",
               " a part of a picture, but a ", its.name, fills ? " does not" : " does",
               ". Hint: take both from one pipeline");
  model["input"] = to_string(its.shows);
}

bool is_wan_pipeline(const PipelineClass& its) {
  return its.name.starts_with("Wan");
}

bool is_ltx_pipeline(const PipelineClass& its) {
  return its.name.starts_with("LTX");
}

const PipelineClass* find_class(std::string_view name) {
  const auto* const found = std::ranges::find(kPipelines, name, &PipelineClass::name);
  return found == kPipelines.end() ? nullptr : found;
}

/// id2label by number, "" for classes that it leaves out.
std::vector<std::string> class_names(const DiffusersConfig& index, int64_t num_classes) {
  std::vector<std::string> names;
  for (const auto& [key, name] : index.get<std::map<std::string, std::string>>("id2label", {})) {
    int64_t number = -1;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), number);
    KINORA_CHECK(read.ec == std::errc() && read.ptr == key.data() + key.size() && number >= 0 &&
                     number < num_classes,
                 kConfig, "[pipeline] ", index.path(), ": id2label must number classes from 0 to ",
                 num_classes - 1, " (num_embeds_ada_norm of the transformer), got ",
                 io::in_quotes(key));
    names.resize(std::max(names.size(), static_cast<size_t>(number) + 1));
    names[static_cast<size_t>(number)] = name;
  }
  return names;
}

// What the pipelines draw by themselves, in frames and pixels.
constexpr int64_t kWanRows = 480;
constexpr int64_t kWanColumns = 832;
constexpr int64_t kLtxClipFrames = 161;
constexpr int64_t kLtxRows = 512;
constexpr int64_t kLtxColumns = 704;

/// Whether frames are given to Wan as they are, each token with a time of its own (2.2's TI2V).
bool takes_given_frames(const Pipeline& pipeline) {
  return DiffusersConfig(pipeline.folder / kPipelineFile).get<bool>("expand_timesteps", false);
}

/// What model_index.json of Wan says beside its parts.
void add_wan(const Pipeline& pipeline, json& recipe) {
  const DiffusersConfig index(pipeline.folder / kPipelineFile);
  if (takes_given_frames(pipeline)) {
    recipe["frame_masks"]["image_head"] = 1.0;  // as it was trained
  }
  const auto boundary = index.get<double>("boundary_ratio", 0.0);
  KINORA_CHECK(boundary >= 0.0 && boundary <= 1.0, kConfig, "[pipeline] ", index.path(),
               ": boundary_ratio must lie in 0 to 1, got ", boundary);
  if (boundary > 0.0) {
    recipe["sample"]["low_noise"] = boundary;
    recipe["sample"]["low_noise_model"] = pipeline.part("transformer_2").string();
  }
}

}  // namespace

std::optional<Pipeline> find_diffusers_pipeline(const fs::path& path) {
  const fs::path index = path / kPipelineFile;
  if (!fs::is_regular_file(index)) {
    return std::nullopt;
  }
  const DiffusersConfig config(index);
  const auto name = config.get<std::string>("_class_name", "");
  const PipelineClass* const its = find_class(name);
  if (its == nullptr) {
    return std::nullopt;
  }
  Pipeline pipeline{.folder = path, .class_name = name, .recipe = diffusers_pipeline_recipe};
  if (its->text_tokens > 0) {
    pipeline.text = PipelineText{.tokenizer = "tokenizer",
                                 .encoder = is_latent_diffusion(*its) ? "bert" : "text_encoder",
                                 .max_tokens = its->text_tokens,
                                 .cuts_negative = its->cuts_negative};
    if (its->clips > 0) {
      pipeline.text->tokenizer =
          its->clips_are_last ? "tokenizer" : "tokenizer_" + std::to_string(its->clips + 1);
      pipeline.text->encoder = "";  // the folder, which has several
      const fs::path denoiser = path / its->denoiser / "config.json";
      if (is_flux(*its) && fs::is_regular_file(denoiser) &&
          !DiffusersConfig(denoiser).get<bool>("guidance_embeds", false)) {
        pipeline.text->max_tokens = kFewTokens;
      }
      if (is_hunyuan_pipeline(*its) && its->shows_frames && fs::is_regular_file(denoiser)) {
        pipeline.text->max_tokens = models::text_tokens_with_picture(
            DiffusersConfig(denoiser).is("image_condition_type", kTokenReplace));
      }
    }
    if (its->of_sdxl) {
      pipeline.text->tokenizer = has_tokenizer(path / "tokenizer") ? "tokenizer" : "tokenizer_2";
      pipeline.text->encoder = "";  // the folder, which has several
      pipeline.text->has_own_null = config.get<bool>("force_zeros_for_empty_prompt", true);
    }
  }
  for (fs::path control = "controlnet"; its->has_controls && fs::exists(path / control);
       control = "controlnet_" + std::to_string(pipeline.controlnets.size())) {
    pipeline.controlnets.push_back(path / control);
  }
  return pipeline;
}

std::string diffusers_pipeline_recipe(const Pipeline& pipeline) {
  const PipelineClass& its = *find_class(pipeline.class_name);
  // The parts of a small pipeline may lie in its folder itself, as diffusers reads them, too.
  const bool is_flat =
      !fs::exists(pipeline.folder / its.denoiser) && fs::exists(pipeline.folder / "config.json");
  const fs::path denoiser =
      pipeline.part(is_flat ? "config.json" : fs::path(its.denoiser) / "config.json");
  if (its.has_controls) {
    (void)pipeline.part("controlnet/config.json");
  }
  const fs::path scheduler =
      is_flat ? scheduler_of(pipeline.folder) : pipeline.part("scheduler/scheduler_config.json");
  json recipe = json::parse(diffusers_recipe(pipeline.folder));
  json& model = recipe["model"];
  KINORA_CHECK(model["architecture"] == its.architecture, kConfig, "[pipeline] ", denoiser,
               " is a model of architecture ", model["architecture"].get<std::string>(),
               ", but that of a ", pipeline.class_name, " is ", its.architecture,
               ". Hint: take both from one pipeline");
  const bool is_told_classes =
      model.contains("unet") && model["unet"].value("classes", "none") != "none";
  KINORA_CHECK(!is_told_classes, kConfig, "[pipeline] ", denoiser,
               " is a U-Net that is told classes, but a ", pipeline.class_name,
               " tells it none. Hint: take its folder alone");
  recipe["sample"] = json::parse(sampling_recipe(scheduler));
  if (its.even_levels) {
    recipe["sample"]["spacing"] = "dit";
  }
  if (its.name == "LTXConditionPipeline") {
    recipe["sample"]["sigmas"] = "linear_quadratic";
    recipe["sample"]["given_noise"] = 0.15;  // its default
    model["single_first_frame"] = true;
  }
  if (model.contains("input")) {
    add_flux(its, denoiser, model);
  }
  const bool is_turbo = is_flux(its) && model["guidance"] == 0.0;
  recipe["sample"]["steps"] = is_turbo ? kFewSteps : its.steps;
  recipe["sample"]["guidance"] = its.guidance;
  const bool edits = model.contains("unet") && model["unet"]["input"] == "edit";
  KINORA_CHECK(edits == (its.image_guidance > 1.0), kConfig, "[pipeline] ", denoiser,
               " is a U-Net that is shown ", edits ? "a" : "no", " picture to change, but a ",
               pipeline.class_name, edits ? " shows none" : " shows one",
               ". Hint: take both from one pipeline");
  recipe["sample"]["given_guidance"] = its.image_guidance;
  if (its.fps > 0.0) {
    recipe["data"]["fps"] = its.fps;
  }
  if (is_wan_pipeline(its)) {
    add_wan(pipeline, recipe);
  }
  if (its.name.starts_with("CogVideoX") && model["patch_frames"] > 1) {
    recipe["data"]["fps"] = kCogFps;
  }
  if (!pipeline.text) {
    model["class_names"] = class_names(DiffusersConfig(pipeline.folder / kPipelineFile),
                                       model["num_classes"].get<int64_t>());
  }
  const bool is_clean = model.value("clean_first_frame", false);
  const bool is_shown = model.value("given_embedders", false) || is_clean;
  if (is_clean) {
    recipe["frame_masks"]["image_head"] = 1.0;  // as it was trained
  }
  KINORA_CHECK(is_shown == (its.shows_frames && !takes_given_frames(pipeline)), kConfig,
               "[pipeline] ", denoiser, " is a model that ", is_shown ? "is" : "is not",
               " shown given frames, but a ", pipeline.class_name,
               its.shows_frames ? " shows them" : " shows none",
               ". Hint: take both from one pipeline");
  if (model.value("image_channels", 0) > 0) {
    recipe["image"]["encoder"] = pipeline.part("image_encoder").string();
  }
  const fs::path vae = pipeline.folder / (is_latent_diffusion(its) ? "vqvae" : "vae");
  // A model of pixels has none, nor has what `kinora convert` wrote of one of latents.
  if (pipeline.text || is_latent_diffusion(its) || fs::exists(vae)) {
    recipe["autoencoder"]["path"] = vae.string();
  }
  if (fs::exists(vae)) {
    const models::LatentSpace space = latent_space(vae);
    model["compression"] = space.compression;
    if (is_ltx_pipeline(its)) {
      model["frame_compression"] = space.frame_compression;
    }
  }
  if (is_ltx_pipeline(its)) {
    recipe["frame_masks"]["image_head"] = 1.0;  // as it was trained
    model["frames"] = (kLtxClipFrames - 1) / model["frame_compression"].get<int64_t>() + 1;
    model["height"] = kLtxRows / model["compression"].get<int64_t>();
    model["width"] = kLtxColumns / model["compression"].get<int64_t>();
  }
  if (is_wan_pipeline(its)) {
    const auto side = model["compression"].get<int64_t>();
    model["height"] = kWanRows / side;
    model["width"] = kWanColumns / side;
  }
  return recipe.dump(2);
}

}  // namespace kinora::pipelines
