#include "kinora/inference/updates.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "kinora/checkpoint/low_rank_file.h"
#include "kinora/core/error.h"
#include "kinora/core/glob.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "kinora/models/transformers/diffusers_names.h"
#include "kinora/models/unets/unet_names.h"
#include "kinora/nn/weight_layer.h"

namespace kinora::inference {
namespace {

constexpr size_t kNamesInMessage = 2;

template <typename Named>
std::vector<std::string> paths_of(const std::vector<Named>& all) {
  std::vector<std::string> paths;
  paths.reserve(all.size());
  for (const Named& named : all) {
    paths.push_back(named.path);
  }
  return paths;
}

/// Whether a weight is a convolution's over more than one place: [out, in, kernel...].
bool has_places(const nn::WeightLayer& layer) {
  const std::vector<int64_t>& shape = layer.weight.shape;
  return std::any_of(shape.begin() + 2, shape.end(), [](int64_t size) { return size > 1; });
}

double alpha_of(const LoraConfig& lora, const nn::WeightLayer& layer) {
  return lora.conv_alpha > 0.0 && has_places(layer) ? lora.conv_alpha : lora.alpha;
}

nn::LowRankOptions options_of(const LoraConfig& lora, const nn::WeightLayer& layer) {
  const int64_t rank = lora.conv_rank > 0 && has_places(layer) ? lora.conv_rank : lora.rank;
  return {.kind = lora.kind,
          .rank = rank,
          .scale = checkpoint::update_scale(alpha_of(lora, layer), rank, lora.rslora),
          .dora = lora.dora,
          .factor = lora.factor};
}

/// Adds the updates, with which all else starts frozen.
void adapt(const LoraConfig& lora, nn::Module& model) {
  for (const auto& [path, parameter] : model.named_parameters()) {
    parameter->frozen = true;
  }
  const std::vector<nn::NamedWeightLayer> layers = model.named_weight_layers();
  const std::vector<bool> is_target =
      match_globs(lora.targets, paths_of(layers), "finetune.lora.targets");
  for (size_t i = 0; i < layers.size(); ++i) {
    if (is_target[i]) {
      layers[i].layer->adapt(options_of(lora, *layers[i].layer));
    }
  }
}

void freeze(const FinetuneConfig& config, const std::vector<nn::NamedParameter>& parameters,
            nn::Module& model) {
  const std::vector<std::string> paths = paths_of(parameters);
  const std::vector<bool> trained = match_globs(config.train, paths, "finetune.train");
  const std::vector<bool> frozen = match_globs(config.freeze, paths, "finetune.freeze");
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool may_train = trained[i] || (config.train.empty() && !config.lora.any());
    parameters[i].parameter->frozen = !may_train || frozen[i];
  }
  for (const auto& [path, layer] : model.named_weight_layers()) {
    KINORA_CHECK(layer->update() == nullptr || layer->weight.frozen, kConfig,
                 "[finetune] finetune.train names ", path,
                 ".weight, which has a low-rank update and is frozen. Hint: leave it out of one of "
                 "finetune.train and finetune.lora.targets");
  }
}

/// What an adapter of the run says of `model`'s updates.
checkpoint::AdapterSettings adapter_settings(const LoraConfig& lora, nn::Module& model) {
  checkpoint::AdapterSettings settings{
      .alpha = lora.alpha, .rank = lora.rank, .rslora = lora.rslora, .factor = lora.factor};
  for (const auto& [path, layer] : model.named_weight_layers()) {
    if (layer->update() == nullptr) {
      continue;
    }
    if (const double alpha = alpha_of(lora, *layer); alpha != lora.alpha) {
      settings.alphas.emplace_back(path, alpha);
    }
    if (const int64_t rank = layer->update()->options().rank; rank != lora.rank) {
      settings.ranks.emplace_back(path, rank);
    }
  }
  return settings;
}

/// The other names that adapters of such a model may have: those of diffusers, where it has it, and
/// of SDXL, Flux and Stable Diffusion 3 also those of single files, which kohya makes its names of.
nn::Naming adapter_naming(const models::ModelConfig& model) {
  const models::Family& family = models::family_of(model);
  nn::Naming naming = family.diffusers ? models::diffusers_naming(model) : nn::Naming();
  if (family.compvis_naming != nullptr && model.pooled_channels > 0) {
    for (nn::OtherName& name : family.compvis_naming(model)) {
      for (std::string& key : name.keys) {
        key = key.substr(std::string_view(models::kCompvisUnet).size());
      }
      naming.push_back(std::move(name));
    }
  }
  if (family.original_naming != nullptr) {
    for (nn::OtherName& name : family.original_naming(model)) {
      naming.push_back(std::move(name));
    }
  }
  return naming;
}

}  // namespace

void add_updates(const FinetuneConfig& finetune, nn::Module& model) {
  const std::vector<nn::NamedParameter> parameters = model.named_parameters();  // without updates
  if (finetune.lora.any()) {
    adapt(finetune.lora, model);
  }
  if (finetune.freezes()) {
    freeze(finetune, parameters, model);
  }
}

std::vector<nn::NamedParameter> trained_parameters(nn::Module& model) {
  std::vector<nn::NamedParameter> trained = model.named_parameters();
  std::erase_if(trained, [](const nn::NamedParameter& named) {
    return named.parameter->frozen || !named.parameter->is_here;
  });
  return trained;
}

checkpoint::Adapter merge_updates(const ModelRecipe& recipe, checkpoint::LateTensors& weights) {
  if (!recipe.finetune.lora.any()) {
    return {};
  }
  const auto model = models::make_model(recipe.model);
  add_updates(recipe.finetune, *model);
  checkpoint::Adapter adapter =
      checkpoint::take_adapter(weights, adapter_settings(recipe.finetune.lora, *model), "the run");
  for (auto& [path, changes] : adapter.changes) {
    const checkpoint::LateTensor& weight = weights.at(path);
    for (checkpoint::LowRankChange& change : changes) {
      change.places = weight.numel() / (weight.shape.at(0) * weight.shape.at(1));
    }
  }
  checkpoint::merge(weights, {{adapter, 1.0}});
  for (const auto& [path, parameter] : trained_parameters(*model)) {
    if (const auto found = weights.find(path); found != weights.end()) {
      found->second = checkpoint::late_tensor(found->second.read_all());
      adapter.whole.emplace(path, found->second);
    }
  }
  return adapter;
}

std::vector<checkpoint::WeightedAdapter> read_adapters(const std::vector<std::string>& choices,
                                                       const models::ModelConfig& model,
                                                       const checkpoint::LateTensors& weights) {
  std::vector<checkpoint::WeightedAdapter> adapters;
  for (const std::string& text : choices) {
    const checkpoint::AdapterChoice choice = checkpoint::parse_adapter_choice(text);
    adapters.push_back(
        {checkpoint::read_adapter(choice.path, adapter_naming(model), weights), choice.weight});
  }
  return adapters;
}

void merge_adapters(const std::vector<std::string>& choices, const models::ModelConfig& model,
                    checkpoint::LateTensors& weights, bool says, bool has_encoder) {
  const std::vector<checkpoint::WeightedAdapter> adapters = read_adapters(choices, model, weights);
  checkpoint::merge(weights, adapters);
  for (const checkpoint::WeightedAdapter& each : adapters) {
    if (!says) {
      continue;
    }
    if (!each.adapter.changes.empty() || !each.adapter.whole.empty()) {
      log_info("[lora] adapter ", each.adapter.origin, " merged with weight ", each.weight);
    }
    if (const auto& left_out = each.adapter.left_out; !left_out.empty() && !has_encoder) {
      log_warn("[lora] ", left_out.size(), " keys of ", each.adapter.origin,
               " are of text encoders and are left out: ", list_names(left_out, kNamesInMessage));
    }
  }
}

}  // namespace kinora::inference
