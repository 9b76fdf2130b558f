#include "kinora/pipelines/diffusers_model.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "kinora/checkpoint/weights_paths.h"
#include "kinora/core/error.h"
#include "kinora/io/file.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/diffusers_names.h"
#include "kinora/models/transformers/original_names.h"
#include "kinora/models/unconditional.h"
#include "kinora/models/unets/unet_names.h"
#include "kinora/pipelines/compvis_pipeline.h"
#include "kinora/pipelines/diffusers_config.h"
#include "kinora/pipelines/diffusers_plain_unet.h"
#include "kinora/pipelines/diffusers_scheduler.h"
#include "kinora/pipelines/diffusers_transformer.h"
#include "kinora/pipelines/diffusers_unet.h"
#include "kinora/pipelines/pipeline.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;
using models::ModelConfig;
using nlohmann::json;

constexpr const char* kWeightsFile = "diffusion_pytorch_model.safetensors";
constexpr const char* kSchedulerFile = "scheduler/scheduler_config.json";
constexpr const char* kVae = "vae";
constexpr const char* kLatentPipeline = "LDMPipeline";
constexpr const char* kPixelPipeline = "DDIMPipeline";
/// The first version that has these classes.
constexpr const char* kVersion = "0.30.0";
/// The transformer that config.json is of.
const models::Family& family_in(const DiffusersConfig& config) {
  std::string known = std::string(kUnetClass) + " or " + kPlainUnetClass;
  for (const models::Family& family : models::families()) {
    if (family.diffusers && family.diffusers->class_name != kUnetClass) {
      if (is_transformer_of(config, family)) {
        return family;
      }
      known += " or " + family.diffusers->class_name;
    }
  }
  throw_error(ErrorKind::kConfig, config.message(), "_class_name must be ", known, ", got ",
              config.written("_class_name"),
              config.has("norm_type") ? " of norm_type " + config.written("norm_type") : "");
}

bool is_unet(const DiffusersConfig& config) {
  return config.is("_class_name", kUnetClass) || config.is("_class_name", kPlainUnetClass);
}

std::string model_keys(const DiffusersConfig& config) {
  if (config.is("_class_name", kPlainUnetClass)) {
    return plain_unet_keys(config);
  }
  return is_unet(config) ? unet_keys(config) : transformer_keys(config, family_in(config));
}

json recipe_of(const DiffusersConfig& config) {
  // A recipe names a run; nothing was averaged here.
  return {{"run", {{"dir", "runs/diffusers"}}},
          {"model", json::parse(model_keys(config))},
          {"ema", {{"decays", json::array()}}}};
}

/// Whether what config.json is of predicts the velocity of a flow.
bool learns_flow(const DiffusersConfig& config) {
  return !is_unet(config) && family_in(config).diffusers->is_flow;
}

/// The text of config.json. kConfig for models that diffusers cannot describe.
json describe(const ModelConfig& model) {
  const models::Family& family = models::family_of(model);
  const auto has = [](const models::Family& other) { return other.diffusers.has_value(); };
  KINORA_CHECK(has(family), kConfig, "[diffusers] the model must be one of ",
               models::families_that(has), " for diffusers, got ", models::name_of(model),
               ". Hint: write a .safetensors file, which has our names");
  const double time_scale = family.diffusers->is_flow ? 1000.0 : 1.0;
  KINORA_CHECK(model.time_scale == time_scale, kConfig, "[diffusers] times of ",
               family.diffusers->class_name, " must be multiplied by ", time_scale,
               " (objective.kind=", family.diffusers->is_flow ? "flow" : "iddpm", "), got ",
               model.time_scale, ". Hint: write a .safetensors file, which has our names");
  json config = {{"_class_name", family.diffusers->class_name}, {"_diffusers_version", kVersion}};
  if (is_plain_unet(model)) {
    config["_class_name"] = kPlainUnetClass;
    config.update(json::parse(describe_plain_unet(model)));
    return config;
  }
  config.update(json::parse(family.diffusers->class_name == kUnetClass
                                ? describe_unet(model)
                                : describe_transformer(model, family)));
  return config;
}

void write_text(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  io::write_file_atomic(path, text);
}

void write_json(const fs::path& path, const json& values) {
  write_text(path, values.dump(2) + "\n");
}

/// A folder for each ControlNet, as MultiControlNetModel names them. Takes their tensors out.
void write_controls(const fs::path& folder, checkpoint::LateTensors& tensors,
                    const ModelConfig& model, const checkpoint::OutputOptions& options) {
  for (int64_t i = 0; i < models::shape_of(model).controls; ++i) {
    const fs::path own = folder / ("controlnet" + (i == 0 ? "" : "_" + std::to_string(i)));
    fs::create_directories(own);
    checkpoint::write_weights(own / kWeightsFile,
                              checkpoint::take_renamed(tensors, models::control_naming(model, i)),
                              options);
    json config = json::parse(describe_control(model));
    config["_class_name"] = kControlClass;
    config["_diffusers_version"] = kVersion;
    write_json(own / "config.json", config);
  }
}

/// Takes text_encoder.* and null captions out of `tensors`, into a folder of transformers'
/// CLIPTextModel.
void write_clip(const fs::path& folder, checkpoint::LateTensors& tensors,
                const models::TextEncoderSize& size, const checkpoint::OutputOptions& options) {
  constexpr std::string_view kPrefix = "text_encoder.";
  checkpoint::LateTensors own;
  for (auto next = tensors.begin(); next != tensors.end();) {
    const auto current = next++;
    if (current->first.starts_with(kPrefix)) {
      own.emplace(current->first.substr(kPrefix.size()), std::move(current->second));
      tensors.erase(current);
    }
  }
  // What a pipeline encodes itself, and what a file of embeddings has (textual inversion).
  for (const char* name : {"null_text", "null_tokens"}) {
    tensors.erase(name);
  }
  own.erase("new_tokens");
  fs::create_directories(folder);
  checkpoint::OutputOptions output = options;
  output.metadata["format"] = "pt";
  checkpoint::write_weights(folder / "model.safetensors", own, output);
  write_json(folder / "config.json",
             {{"architectures", json::array({"CLIPTextModel"})},
              {"model_type", "clip_text_model"},
              {"vocab_size", size.vocab},
              {"hidden_size", size.width},
              {"intermediate_size", size.mlp},
              {"num_hidden_layers", size.layers},
              {"num_attention_heads", size.heads},
              {"max_position_embeddings", size.positions},
              {"hidden_act", size.activation == models::Activation::kGelu ? "gelu" : "quick_gelu"},
              {"layer_norm_eps", 1e-5},
              // Of the pooled vector, which Stable Diffusion does not read: the old rule, by which
              // the largest id of the vocabulary ends a text.
              {"eos_token_id", 2}});
}

}  // namespace

checkpoint::WeightsFile open_weights(const fs::path& path, bool averaged) {
  checkpoint::WeightsFile file = checkpoint::WeightsFile::open(path, averaged);
  if (const auto naming = models::find_diffusers_naming(file.names())) {
    file.rename(*naming);
  }
  const auto shape_of = [&file](const std::string& name) { return file.shape(name); };
  if (const auto naming = models::find_original_naming(file.names(), shape_of)) {
    const bool has_prefix = naming->front().keys.front().starts_with(models::kModelPrefix);
    file.drop([has_prefix](const std::string& name) {  // an autoencoder, text encoders
      return has_prefix && !name.starts_with(models::kModelPrefix);
    });
    file.rename(*naming);
  }
  take_compvis_unet(file, averaged);
  return file;
}

std::string diffusers_recipe(const fs::path& path) {
  const fs::path folder = checkpoint::diffusers_folder(path);
  if (folder.empty()) {
    return "";
  }
  const DiffusersConfig config(folder / "config.json");
  json recipe = recipe_of(config);
  if (const auto pipeline = find_pipeline(path); pipeline && pipeline->text) {
    recipe["model"]["text_tokens"] = pipeline->text->max_tokens;
  }
  if (const fs::path scheduler = scheduler_of(folder); fs::exists(scheduler)) {
    recipe["objective"] = json::parse(objective_recipe(scheduler));
    const bool is_flow = recipe["objective"]["kind"] == "flow";
    KINORA_CHECK(is_flow == learns_flow(config), kConfig, "[diffusers] ", scheduler, " is of a ",
                 is_flow ? "flow" : "discrete chain", " (",
                 DiffusersConfig(scheduler).get<std::string>("_class_name", ""), "), but a ",
                 config.get<std::string>("_class_name", ""), " of diffusers learns ",
                 is_flow ? "discrete chains" : "flows", ". Hint: give a recipe with --config");
  }
  return recipe.dump(2);
}

void write_diffusers(const fs::path& folder, checkpoint::LateTensors tensors,
                     const ModelConfig& model, const diffusion::ObjectiveConfig& objective,
                     const checkpoint::OutputOptions& options) {
  const json config = describe(model);
  const checkpoint::LateTensors renamed =
      checkpoint::take_renamed(tensors, models::diffusers_naming(model));
  const models::DiffusersFamily& family = *models::family_of(model).diffusers;
  const fs::path own = folder / (family.class_name == kUnetClass ? "unet" : "transformer");
  fs::create_directories(own);
  checkpoint::write_weights(own / kWeightsFile, renamed, options);
  write_controls(folder, tensors, model, options);
  if (model.text_encoder.kind == models::TextEncoderSize::Kind::kClip) {
    write_clip(folder / "text_encoder", tensors, model.text_encoder, options);
  }
  if (!tensors.empty()) {
    checkpoint::OutputOptions beside = options;
    beside.max_shard_bytes = 0;
    checkpoint::write_weights(own / checkpoint::kBesideDiffusers, tensors, beside);
  }
  write_json(own / "config.json", config);
  const std::string pipeline = pipeline_of(model);
  if (pipeline.empty()) {
    return;
  }
  write_text(folder / kSchedulerFile, describe_scheduler(objective, kVersion));
  json index = {{"_class_name", pipeline},
                {"_diffusers_version", kVersion},
                {"scheduler", {"diffusers", "DDIMScheduler"}},
                {own.filename().string(), {"diffusers", config["_class_name"]}}};
  if (pipeline == kLatentPipeline) {
    index[autoencoder_folder(model)] = {"diffusers", "VQModel"};
  } else if (pipeline != kPixelPipeline) {
    index[kVae] = {"diffusers", "AutoencoderKL"};
  }
  write_json(folder / "model_index.json", index);
}

std::string pipeline_of(const ModelConfig& model) {
  if (!models::is_unconditional(model)) {
    return models::family_of(model).diffusers->pipeline;
  }
  return model.compression > 1 ? kLatentPipeline : kPixelPipeline;
}

std::string autoencoder_folder(const ModelConfig& model) {
  return pipeline_of(model) == kLatentPipeline ? "vqvae" : kVae;
}

fs::path scheduler_of(const fs::path& folder) {
  const fs::path beside = folder / fs::path(kSchedulerFile).filename();
  return fs::exists(beside) ? beside : (folder / ".." / kSchedulerFile).lexically_normal();
}

}  // namespace kinora::pipelines
