#include "kinora/inference/convert_weights.h"

#include <memory>
#include <utility>

#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/low_rank_file.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/inference/kept_tokenizer.h"
#include "kinora/inference/recipe.h"
#include "kinora/inference/trained_model.h"
#include "kinora/inference/updates.h"
#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "kinora/models/transformers/diffusers_names.h"
#include "kinora/pipelines/autoencoder_output.h"
#include "kinora/pipelines/compvis_pipeline.h"
#include "kinora/pipelines/diffusers_model.h"
#include "kinora/pipelines/pipeline.h"
#include "kinora/pipelines/text_encoder_file.h"

namespace kinora::inference {
namespace {

namespace fs = std::filesystem;
using checkpoint::LateTensors;

/// Tensors under our names, and the model that they are of.
struct Source {
  std::string what;
  std::optional<checkpoint::WeightsFile> file;  // that the tensors lie in
  LateTensors tensors;
  std::string config_text;  // "" where nothing says what model it is
  ModelRecipe recipe;
  std::unique_ptr<models::Model> model;  // null likewise
  checkpoint::Adapter updates;           // of a run that has some; merged in `tensors`
};

void set_model(Source& source, const ConvertOptions& options) {
  if (!options.config_file.empty()) {
    source.recipe = load_config<ModelRecipe>(options.config_file, {});
    source.config_text = dump_config(source.recipe);
  } else if (!source.config_text.empty()) {
    source.recipe = parse_config<ModelRecipe>(
        {.text = source.config_text, .origin = "configuration in " + options.from.string()});
  } else {
    return;
  }
  models::ModelConfig& model = source.recipe.model;
  model = resolved_model(source.recipe, model.num_classes);
  source.model = models::make_model(model);
}

Source from_checkpoint(const fs::path& checkpoint, const ConvertOptions& options) {
  Source source;
  source.config_text = checkpoint::load_state(checkpoint).config;
  set_model(source, options);
  if (options.config_file.empty()) {
    take_kept_tokenizer(checkpoint, nullptr, source.recipe);
  }
  KINORA_CHECK(source.model != nullptr, kIo, "[convert] ", checkpoint,
               " does not say what model it is of");
  const bool raw = options.raw || !checkpoint::has_averages(checkpoint);
  source.what = (raw ? "raw weights of " : "averaged weights of ") + checkpoint.string();
  source.tensors = checkpoint::checkpoint_weights(
      checkpoint, *source.model, raw ? optim::Role::master() : optim::Role::average(options.ema));
  source.updates = merge_updates(source.recipe, source.tensors);
  return source;
}

Source from_file(const ConvertOptions& options) {
  KINORA_CHECK(options.ema == 0, kConfig, "[convert] ", options.from,
               " is no checkpoint of ours, so there is no average number ", options.ema);
  Source source;
  source.what = "weights of " + options.from.string();
  source.file = pipelines::open_weights(options.from, !options.raw);
  source.tensors = source.file->tensors();
  source.config_text = source.file->metadata(checkpoint::kConfigMetadata);
  if (source.config_text.empty()) {
    source.config_text = pipelines::model_recipe(options.from);
  }
  set_model(source, options);
  if (options.config_file.empty()) {
    take_kept_tokenizer(options.from, &*source.file, source.recipe);
  }
  return source;
}

/// Whether there is nothing but an autoencoder at `path`.
bool is_autoencoder_alone(const fs::path& path) {
  return pipelines::is_autoencoder(path) && pipelines::compvis_recipe(path).empty();
}

/// Lets what is not the model's go, or refuses it; adds the model's buffers.
void fit_to_model(Source& source, const ConvertOptions& options, Converted& converted) {
  converted.has_model = true;
  converted.fit = checkpoint::compare(source.tensors, *source.model);
  const checkpoint::WeightsFit& fit = converted.fit;
  KINORA_CHECK(fit.misshapen.empty() && (fit.missing.empty() || options.allow_missing) &&
                   (fit.unexpected.empty() || options.allow_unexpected),
               kIo, "[convert] ", options.from, " does not fit the model: ", fit.matched.size(),
               " matched, ", checkpoint::describe(fit),
               ". Hint: --allow-missing, --allow-unexpected, or another --config");
  for (const std::string& name : fit.unexpected) {
    source.tensors.erase(name);
  }
  for (const auto& [path, parameter] : source.model->named_parameters()) {
    if (const auto found = source.tensors.find(path); found != source.tensors.end()) {
      found->second = checkpoint::with_shape(std::move(found->second), parameter->shape);
    }
  }
  for (const auto& [path, buffer] : source.model->named_buffers()) {
    if (!source.tensors.contains(path)) {
      source.tensors.emplace(path, checkpoint::late_tensor(*buffer));
      converted.made.push_back(path);
    }
  }
}

void check_empty(const fs::path& folder) {
  KINORA_CHECK(!fs::exists(folder) || (fs::is_directory(folder) && fs::is_empty(folder)), kIo,
               "[convert] ", folder, " must be an empty folder or not be there");
}

void write_folder(Source& source, const ConvertOptions& options,
                  const checkpoint::OutputOptions& output, Converted& converted) {
  KINORA_CHECK(source.model != nullptr, kConfig, "[convert] ", options.from,
               " does not say what model it is, which a folder of diffusers needs. Hint: give its "
               "recipe with --config");
  pipelines::write_diffusers(options.to, std::move(source.tensors), source.model->config(),
                             source.recipe.objective, output);
  const std::string pipeline = pipelines::pipeline_of(source.model->config());
  const std::string autoencoder = pipelines::autoencoder_folder(source.model->config());
  if (!options.autoencoder.empty()) {
    pipelines::write_autoencoder(options.autoencoder, options.to / autoencoder, output);
  } else if (!pipeline.empty() && pipeline != "DDIMPipeline") {  // which draws pixels
    converted.notes.push_back("there is no " + autoencoder + "/, so " + pipeline +
                              ".from_pretrained needs " + autoencoder +
                              "=... (or --autoencoder here)");
  }
}

/// Tensors of a file under the names that options.layout says.
LateTensors with_names(Source& source, const ConvertOptions& options) {
  using Layout = ConvertOptions::Layout;
  if (options.layout == Layout::kOwn) {
    return source.tensors;
  }
  const bool is_compvis = options.layout == Layout::kCompvis;
  const char* const whose = is_compvis ? "compvis" : "authors";
  KINORA_CHECK(source.model != nullptr, kConfig, "[convert] ", options.from,
               " does not say what model it is, which --layout ", whose,
               " needs. Hint: give its recipe with --config");
  const models::ModelConfig& model = source.model->config();
  const auto naming =
      is_compvis ? &models::Family::compvis_naming : &models::Family::original_naming;
  const auto has = [naming](const models::Family& other) { return other.*naming != nullptr; };
  const models::Family& family = models::family_of(model);
  KINORA_CHECK(has(family), kConfig, "[convert] the model must be one of ",
               models::families_that(has), " for --layout ", whose, ", got ",
               models::name_of(model));
  LateTensors renamed = checkpoint::take_renamed(source.tensors, (family.*naming)(model));
  for (const auto& [path, buffer] : source.model->named_buffers()) {  // those they do not have
    renamed.insert(source.tensors.extract(path));
  }
  KINORA_CHECK(source.tensors.empty(), kConfig, "[convert] layout ", whose, " has no name for ",
               source.tensors.begin()->first, " and ", source.tensors.size() - 1,
               " others. Hint: leave --layout out for a file of our names");
  return renamed;
}

/// What the only adapter changes in the text encoders of a pipeline.
void add_text_parts(checkpoint::Adapter& adapter, const ConvertOptions& options) {
  const auto pipeline = pipelines::find_pipeline(options.from);
  if (adapter.left_out.empty() || !pipeline || !pipeline->text) {
    return;
  }
  for (auto& [own, weight] :
       pipelines::read_text_adapters(options.adapters, pipeline->part(pipeline->text->encoder))) {
    KINORA_CHECK(adapter.changes.empty() || adapter.rslora == own.rslora, kConfig, "[convert] ",
                 own.origin, ": use_rslora must be the same for the model and its text encoders");
    adapter.rslora = own.rslora;
    adapter.left_out.clear();
    for (auto& [path, changes] : own.changes) {
      const bool has_name = path.starts_with("text_encoder");
      adapter.changes.emplace(has_name ? path : "text_encoder." + path, std::move(changes));
    }
  }
}

/// The updates of a run, or a given adapter, without the weights that they change.
Converted convert_updates(const Source& source, const ConvertOptions& options) {
  using Updates = ConvertOptions::Updates;
  const bool is_file = options.updates == Updates::kKohya;
  KINORA_CHECK(is_file == (options.to.extension() == ".safetensors"), kConfig,
               "[convert] --to must be ", is_file ? "FILE.safetensors" : "a folder",
               " for such an adapter, got ", options.to);
  KINORA_CHECK(
      source.model != nullptr, kConfig, "[convert] ", options.from,
      " does not say what model it is, which names of adapters need. Hint: give its recipe "
      "with --config");
  checkpoint::Adapter adapter = source.updates;
  if (!options.adapters.empty()) {
    auto given = read_adapters(options.adapters, source.model->config(), source.tensors);
    KINORA_CHECK(given.size() == 1 && given.front().weight == 1.0, kConfig,
                 "[convert] --adapter writes one --lora of weight 1, got ", given.size(),
                 ", the first of weight ", given.front().weight);
    adapter = std::move(given.front().adapter);
    add_text_parts(adapter, options);
  }
  KINORA_CHECK(!adapter.changes.empty(), kConfig, "[convert] ", options.from,
               " is no run with finetune.lora, so it has no adapter. Hint: name a file of one with "
               "--lora");
  const models::ModelConfig& model = source.model->config();
  const auto original = models::family_of(model).original_naming;
  // kohya's programs make their names of the authors', of U-Nets of diffusers'.
  const nn::Naming naming = options.updates == Updates::kOwn ? nn::Naming()
                            : is_file && original != nullptr ? original(model)
                                                             : models::diffusers_naming(model);
  if (is_file) {
    checkpoint::write_kohya_adapter(options.to, adapter, naming, model.pooled_channels > 0,
                                    options.type);
  } else {
    check_empty(options.to);
    const bool is_of_pipeline = options.updates == Updates::kDiffusers &&
                                models::pads_captions(model) && checkpoint::has_text_parts(adapter);
    (is_of_pipeline ? checkpoint::write_diffusers_adapter : checkpoint::write_adapter)(
        options.to, adapter, naming, options.type);
  }
  Converted converted;
  converted.what =
      "adapter " + (options.adapters.empty() ? "of the " + source.what : options.adapters.front());
  converted.num_tensors = static_cast<int64_t>(adapter.changes.size() + adapter.whole.size());
  if (!adapter.left_out.empty()) {
    converted.notes.push_back(std::to_string(adapter.left_out.size()) +
                              " keys of text encoders are left out, such as " +
                              adapter.left_out.front());
  }
  return converted;
}

/// An autoencoder alone, in a folder for diffusers or a file with CompVis' names.
Converted convert_autoencoder(const ConvertOptions& options,
                              const checkpoint::OutputOptions& output) {
  Converted converted;
  converted.what = "autoencoder of " + options.from.string();
  if (options.layout == ConvertOptions::Layout::kCompvis) {
    converted.num_tensors = pipelines::write_compvis_autoencoder(options.from, options.to, output);
    converted.notes.emplace_back("such a file does not say how latents are scaled");
  } else {
    converted.num_tensors = pipelines::write_autoencoder(options.from, options.to, output);
  }
  return converted;
}

}  // namespace

Converted convert_weights(const ConvertOptions& options) {
  KINORA_CHECK(fs::exists(options.from), kIo, "[convert] ", options.from, " does not exist");
  const bool to_file = options.to.extension() == ".safetensors";
  KINORA_CHECK(to_file || options.to.extension().empty() || fs::is_directory(options.to), kConfig,
               "[convert] --to must be FILE.safetensors or a folder, got ", options.to);
  KINORA_CHECK(to_file || options.layout == ConvertOptions::Layout::kOwn, kConfig,
               "[convert] --layout is of files, --to must be FILE.safetensors, got ", options.to);
  const std::optional<fs::path> checkpoint = find_checkpoint(options.from);
  checkpoint::OutputOptions output{.type = options.type,
                                   .metadata = checkpoint::weights_metadata(""),
                                   .max_shard_bytes = options.max_shard_bytes};
  if (!to_file) {
    check_empty(options.to);
  }
  const bool has_place = !to_file || options.layout == ConvertOptions::Layout::kCompvis;
  if (has_place && !checkpoint && is_autoencoder_alone(options.from)) {
    return convert_autoencoder(options, output);
  }
  Source source = checkpoint ? from_checkpoint(*checkpoint, options) : from_file(options);
  if (options.updates != ConvertOptions::Updates::kMerged) {
    return convert_updates(source, options);
  }
  if (!options.adapters.empty()) {
    KINORA_CHECK(source.model != nullptr, kConfig, "[convert] ", options.from,
                 " does not say what model it is, which merging adapters needs. Hint: give its "
                 "recipe with --config");
    merge_adapters(options.adapters, source.model->config(), source.tensors, /*says=*/true);
  }
  Converted converted;
  converted.what = source.what;
  if (const auto pipeline = checkpoint ? std::nullopt : pipelines::find_pipeline(options.from);
      pipeline && options.config_file.empty() && !pipeline->note.empty()) {
    converted.notes.push_back(pipeline->note);
  }
  if (source.model != nullptr) {
    fit_to_model(source, options, converted);
  } else {
    converted.notes.emplace_back("nothing says what model it is, so names are as they were");
  }
  converted.num_tensors = static_cast<int64_t>(source.tensors.size());
  output.metadata = checkpoint::weights_metadata(source.config_text);
  if (to_file) {
    output.metadata.merge(tokenizer_metadata(source.recipe));
    checkpoint::write_weights(options.to, with_names(source, options), output);
  } else {
    write_folder(source, options, output, converted);
  }
  return converted;
}

}  // namespace kinora::inference
