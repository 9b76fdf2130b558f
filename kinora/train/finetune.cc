#include "kinora/train/finetune.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <ATen/ops/upsample_linear1d.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/model_weights.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/glob.h"
#include "kinora/core/text.h"
#include "kinora/inference/setup.h"
#include "kinora/inference/trained_model.h"
#include "kinora/inference/updates.h"
#include "kinora/kernels/weight_product.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/diffusers_names.h"
#include "kinora/nn/weight_layer.h"
#include "kinora/optim/held_weights.h"
#include "kinora/pipelines/diffusers_model.h"
#include "kinora/pipelines/diffusers_unet.h"
#include "kinora/pipelines/widened_input.h"
#include "kinora/train/own_text_encoder.h"

namespace kinora::train {
namespace {

constexpr size_t kNamesInMessage = 4;

/// What checkpoint.init_from names, under our names: of a run or a checkpoint the weights as
/// `kinora convert` takes them, averaged where there are averages, low-rank updates merged.
struct StartingWeights {
  explicit StartingWeights(const std::filesystem::path& path) : origin(path) {
    if (const auto found = inference::find_checkpoint(path)) {
      origin = *found;
      auto recipe =
          parse_config<inference::ModelRecipe>({.text = checkpoint::load_state(origin).config,
                                                .origin = "configuration in " + origin.string()});
      recipe.model = inference::resolved_model(recipe, recipe.model.num_classes);
      model = models::make_model(recipe.model);
      tensors = checkpoint::checkpoint_weights(
          origin, *model,
          checkpoint::has_averages(origin) ? optim::Role::average(0) : optim::Role::master());
      (void)inference::merge_updates(recipe, tensors);
    } else {
      file = pipelines::open_weights(path);
      tensors = file->tensors();
      origin = file->path();
    }
  }

  std::filesystem::path origin;
  std::unique_ptr<models::Model> model;         // whose buffers tensors may be
  std::optional<checkpoint::WeightsFile> file;  // that tensors lie in
  checkpoint::LateTensors tensors;
};

std::vector<std::string> paths_of(const std::vector<nn::NamedParameter>& all) {
  std::vector<std::string> paths;
  paths.reserve(all.size());
  for (const nn::NamedParameter& named : all) {
    paths.push_back(named.path);
  }
  return paths;
}

/// As BEiT numbers layers (Bao et al. 2021; get_layer_id_for_vit): embedders 0, blocks 1 to depth,
/// what is behind them depth + 1, whose factor is 1.
void set_layer_decay(double decay, const std::vector<nn::NamedParameter>& parameters) {
  int64_t last = 0;
  for (const nn::NamedParameter& named : parameters) {
    last = std::max(last, named.parameter->layer);
  }
  for (const nn::NamedParameter& named : parameters) {
    named.parameter->lr_factor =
        std::pow(decay, static_cast<double>(last - named.parameter->layer));
  }
}

void set_lr_factors(const LrFactors& factors, nn::Module& model) {
  const std::vector<nn::NamedParameter> parameters = model.named_parameters();
  const std::vector<std::string> paths = paths_of(parameters);
  set_layer_decay(factors.layer_decay, parameters);
  std::vector<bool> done(parameters.size(), false);
  for (const std::string& text : factors.patterns) {
    const LrFactor factor = parse_lr_factor(text);
    const std::vector<bool> matched = match_globs({factor.pattern}, paths, "lr.factors");
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (matched[i] && !done[i]) {
        parameters[i].parameter->lr_factor *= factor.factor;
        done[i] = true;
      }
    }
  }
}

/// Rows and columns of `count` places in the proportions of `height` x `width`.
std::pair<int64_t, int64_t> grid_of(const std::string& name, int64_t count, int64_t height,
                                    int64_t width) {
  const double scale = std::sqrt(static_cast<double>(count) / static_cast<double>(height * width));
  const auto rows = std::llround(static_cast<double>(height) * scale);
  KINORA_CHECK(rows > 0 && count % rows == 0 &&
                   std::llround(static_cast<double>(width) * scale) == count / rows,
               kIo, "[finetune] ", name, " of the file has ", count,
               " places, which are no grid in the proportions of the model's ", height, " x ",
               width, ". Hint: finetune.positions=made");
  return {rows, count / rows};
}

/// Positions [1, S, C] for as many places as `own` has.
at::Tensor interpolated(const std::string& name, const at::Tensor& file, const at::Tensor& own,
                        const models::ModelConfig& model) {
  KINORA_CHECK(file.dim() == 3 && file.size(0) == 1 && file.size(2) == own.size(2), kIo,
               "[finetune] ", name, " must be [1, places, ", own.size(2), "], got ", file.sizes());
  const at::Tensor channels = file.to(at::kFloat).transpose(1, 2);  // [1, C, S]
  if (name.find("temporal") != std::string::npos) {
    return at::upsample_linear1d(channels, {own.size(1)}, /*align_corners=*/false)
        .transpose(1, 2)
        .contiguous();
  }
  const models::ModelShape shape = models::shape_of(model);
  const int64_t height = shape.rows;
  const int64_t width = shape.columns;
  const auto [rows, columns] = grid_of(name, file.size(1), height, width);
  return at::upsample_bicubic2d(channels.unflatten(2, {rows, columns}), {height, width},
                                /*align_corners=*/false)
      .flatten(2)
      .transpose(1, 2)
      .contiguous();
}

/// Lets positions of another size go, or turns them into the model's. Returns what was done.
std::string choose_positions(inference::PositionChoice choice, const models::ModelConfig& config,
                             nn::Module& model, checkpoint::LateTensors& tensors) {
  std::vector<std::string> changed;
  for (const auto& [name, buffer] : model.named_buffers()) {
    const auto found = tensors.find(name);
    if (choice == inference::PositionChoice::kSame || !name.starts_with("pos_embed") ||
        found == tensors.end() || found->second.shape == buffer->sizes().vec()) {
      continue;
    }
    if (choice == inference::PositionChoice::kMade) {
      tensors.erase(found);
    } else {
      found->second =
          checkpoint::late_tensor(interpolated(name, found->second.read_all(), *buffer, config));
    }
    changed.push_back(name);
  }
  if (changed.empty()) {
    return "";
  }
  return (choice == inference::PositionChoice::kMade ? "made for this size: " : "interpolated: ") +
         list_names(changed, kNamesInMessage);
}

/// Lets a model begin as one that is shown less. Returns what was done.
std::string widen_input(const models::ModelConfig& config, nn::Module& model,
                        checkpoint::LateTensors& tensors) {
  const auto widened = pipelines::widen_input(config, tensors);
  if (!widened) {
    return "";
  }
  const std::string layer = widened->weight.substr(0, widened->weight.rfind('.'));
  for (const nn::NamedParameter& named : model.named_parameters()) {
    KINORA_CHECK(named.path != widened->weight || !named.parameter->frozen, kConfig, "[finetune] ",
                 named.path, " has weights of zero for ", widened->channels,
                 " channels that the file's model is not shown, but is frozen, so that they would "
                 "never learn. Hint: name ",
                 layer, ".* in finetune.train");
  }
  return widened->weight + " has weights of zero for " + std::to_string(widened->channels) +
         " channels that the file's model is not shown";
}

/// "; LoRA of rank 8 on 56 linears, of rank 4 on 12 convolutions".
std::string describe_updates(const inference::LoraConfig& lora, nn::Module& model) {
  struct Counted {
    int64_t rank = 0;
    int64_t count = 0;
  };
  Counted linears;
  Counted convolutions;
  for (const auto& [path, layer] : model.named_weight_layers()) {
    if (layer->update() != nullptr) {
      Counted& counted = layer->weight.shape.size() == 2 ? linears : convolutions;
      counted = {.rank = layer->update()->options().rank, .count = counted.count + 1};
    }
  }
  std::ostringstream text;
  text << "; "
       << (lora.dora                            ? "DoRA"
           : lora.kind == nn::UpdateKind::kLora ? "LoRA"
           : lora.kind == nn::UpdateKind::kLoha ? "LoHa"
                                                : "LoKr");
  const char* before = "";
  for (const auto& [counted, what] :
       {std::pair{linears, "linears"}, std::pair{convolutions, "convolutions"}}) {
    if (counted.count > 0) {
      text << before << " of rank " << counted.rank << " on " << counted.count << " " << what;
      before = ",";
    }
  }
  return text.str();
}

/// DoRA starts with the norms of the rows.
void set_magnitudes(nn::Module& model, optim::Arena& arena) {
  for (const auto& [path, layer] : model.named_weight_layers()) {
    if (layer->update() != nullptr && layer->update()->options().dora) {
      const at::Tensor weight = arena.export_parameter(path + ".weight", optim::Role::master());
      arena.load_parameter(path + ".lora_magnitude_vector",
                           at::linalg_vector_norm(weight.flatten(1), 2, at::IntArrayRef{1}));
    }
  }
}

}  // namespace

void prepare_finetuning(const RunConfig& config, nn::Module& model) {
  const inference::FinetuneConfig& finetune = config.finetune;
  const std::vector<nn::NamedParameter> parameters = model.named_parameters();
  inference::add_updates(finetune, model);
  const std::vector<bool> fresh =
      match_globs(finetune.fresh, paths_of(parameters), "finetune.fresh");
  for (size_t i = 0; i < parameters.size(); ++i) {
    KINORA_CHECK(!fresh[i] || !parameters[i].parameter->frozen, kConfig, "[finetune] ",
                 parameters[i].path,
                 " starts anew (finetune.fresh), but is frozen, so that it would never learn. "
                 "Hint: name it in finetune.train");
  }
  if (config.lr_factors.layer_decay != 1.0 || !config.lr_factors.patterns.empty()) {
    set_lr_factors(config.lr_factors, model);
  }
}

std::vector<nn::BucketSpec> with_updates(std::vector<nn::BucketSpec> buckets, nn::Module& model) {
  std::unordered_map<std::string, nn::BucketSpec*> bucket_of;
  for (nn::BucketSpec& bucket : buckets) {
    for (const std::string& path : bucket.parameters) {
      bucket_of[path] = &bucket;
    }
  }
  for (const auto& [path, parameter] : model.named_parameters()) {
    if (const auto owner = nn::owner_of_update(path)) {
      bucket_of.at(*owner + ".weight")->parameters.push_back(path);
    }
  }
  return buckets;
}

bool trains_modulation(models::Model& model) {
  std::unordered_set<std::string> in_blocks;
  for (const nn::BucketSpec& bucket : with_updates(model.buckets(), model)) {
    if (!bucket.ring.empty()) {
      in_blocks.insert(bucket.parameters.begin(), bucket.parameters.end());
    }
  }
  return std::ranges::any_of(model.named_parameters(), [&](const nn::NamedParameter& named) {
    return !named.parameter->frozen &&
           (!in_blocks.contains(named.path) || optim::is_modulation(named.path));
  });
}

bool has_host_products(const RunConfig& config, int64_t data_ranks) {
  // Each costs the cores as much again; the device, which takes as much longer a pass, has them for
  // nothing.
  constexpr int64_t kMostVectors = 8;
  const std::optional<kernels::WeightFormat> format =
      inference::format_of(config.finetune.frozen_weights);
  return !config.deterministic && config.micro_batch(data_ranks) <= kMostVectors &&
         !models::family_of(config.model).modulates_itself &&
         (!format || kernels::has_product(*format));
}

std::string describe_finetuning(const RunConfig& config, nn::Module& model,
                                const optim::Arena& arena) {
  if (arena.num_frozen() == 0) {
    return "";
  }
  std::ostringstream text;
  text << human_count(arena.num_trained()) << " of " << human_count(arena.num_elements())
       << " parameters are trained";
  if (config.finetune.lora.any()) {
    text << describe_updates(config.finetune.lora, model);
  }
  if (const optim::HeldWeights* held = arena.held()) {
    if (held->format()) {
      text << "; " << human_count(held->num_elements()) << " frozen ones in "
           << kernels::name_of(*held->format());
    }
    if (held->host_bytes() > 0) {
      text << "; " << human_bytes(held->host_bytes()) << " of frozen ones in the host's memory";
    }
  }
  if (config.finetune.lora.needs_modules()) {
    text << "; on the plain path, since kernels compute LoRA alone";
  }
  return text.str();
}

std::string initialise_from(const RunConfig& config, nn::Module& model, optim::Arena& arena) {
  const StartingWeights start(config.checkpoint.init_from);
  checkpoint::LateTensors tensors = start.tensors;
  pipelines::start_controls(config.model, tensors);
  const std::string widened = widen_input(config.model, model, tensors);
  add_text_encoder(config, tensors);
  std::vector<std::string> own;  // but for updates, which no file has
  for (const auto& [path, parameter] : model.named_parameters()) {
    if (!nn::owner_of_update(path)) {
      own.push_back(path);
    }
  }
  const std::vector<bool> is_fresh = match_globs(config.finetune.fresh, own, "finetune.fresh");
  std::set<std::string> expected;
  std::vector<std::string> fresh;
  for (size_t i = 0; i < own.size(); ++i) {
    if (is_fresh[i]) {
      tensors.erase(own[i]);
      fresh.push_back(own[i]);
    } else {
      expected.insert(own[i]);
    }
  }
  const std::string positions =
      choose_positions(config.finetune.positions, config.model, model, tensors);
  checkpoint::WeightsFit fit = checkpoint::compare(tensors, model);
  std::erase_if(fit.missing, [&](const std::string& path) { return !expected.contains(path); });
  KINORA_CHECK(fit.is_whole(), kIo, "[weights] ", start.origin,
               " does not fit the model: ", checkpoint::describe(fit),
               ". Hint: compare model.* with how the file was trained; "
               "finetune.fresh=[PATTERN] starts parameters anew, as [y_embedder.*] for other "
               "classes, and finetune.positions=made or interpolated takes positions of another "
               "size");
  checkpoint::copy_weights(tensors, start.origin, model, arena);
  set_magnitudes(model, arena);
  arena.reset_averages();
  std::string text =
      fresh.empty() ? "" : "as in a new model: " + list_names(fresh, kNamesInMessage);
  for (const std::string& more : {positions, widened}) {
    text += (!text.empty() && !more.empty() ? "; " : "") + more;
  }
  return text;
}

}  // namespace kinora::train
