#include "kinora/inference/updates.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/glob.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "kinora/models/transformers/diffusers_names.h"
#include "kinora/models/unets/unet_names.h"
#include "kinora/nn/linear.h"

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

/// Adds the updates, with which all else starts frozen.
void adapt(const LoraConfig& lora, nn::Module& model) {
  for (const auto& [path, parameter] : model.named_parameters()) {
    parameter->frozen = true;
  }
  const nn::LowRankOptions options{
      .rank = lora.rank, .scale = adapter_settings(lora).scale(lora.rank), .dora = lora.dora};
  const std::vector<nn::NamedLinear> linears = model.named_linears();
  const std::vector<bool> is_target =
      match_globs(lora.targets, paths_of(linears), "finetune.lora.targets");
  for (size_t i = 0; i < linears.size(); ++i) {
    if (is_target[i]) {
      linears[i].linear->adapt(options);
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
  for (const auto& [path, linear] : model.named_linears()) {
    KINORA_CHECK(linear->update() == nullptr || linear->weight.frozen, kConfig,
                 "[finetune] finetune.train names ", path,
                 ".weight, which has a low-rank update and is frozen. Hint: leave it out of one of "
                 "finetune.train and finetune.lora.targets");
  }
}

/// The other names that adapters of such a model may have: those of diffusers, where it has it, and
/// of SDXL also those of its single files, which kohya makes its names of.
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
  std::erase_if(trained, [](const nn::NamedParameter& named) { return named.parameter->frozen; });
  return trained;
}

checkpoint::Adapter merge_updates(const ModelRecipe& recipe, checkpoint::LateTensors& weights) {
  if (!recipe.finetune.lora.any()) {
    return {};
  }
  checkpoint::Adapter adapter =
      checkpoint::take_adapter(weights, adapter_settings(recipe.finetune.lora), "the run");
  checkpoint::merge(weights, {{adapter, 1.0}});
  const auto model = models::make_model(recipe.model);
  add_updates(recipe.finetune, *model);
  for (const auto& [path, parameter] : trained_parameters(*model)) {
    if (const auto found = weights.find(path); found != weights.end()) {
      found->second = checkpoint::late_tensor(found->second.read_all());
      adapter.whole.emplace(path, found->second);
    }
  }
  return adapter;
}

checkpoint::AdapterSettings adapter_settings(const LoraConfig& lora) {
  return {.alpha = lora.alpha, .rslora = lora.rslora};
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
                    checkpoint::LateTensors& weights, bool says) {
  const std::vector<checkpoint::WeightedAdapter> adapters = read_adapters(choices, model, weights);
  checkpoint::merge(weights, adapters);
  for (const checkpoint::WeightedAdapter& each : adapters) {
    if (!says) {
      continue;
    }
    log_info("[lora] adapter ", each.adapter.origin, " merged with weight ", each.weight);
    if (const auto& left_out = each.adapter.left_out; !left_out.empty()) {
      log_warn("[lora] ", left_out.size(), " keys of ", each.adapter.origin,
               " are of text encoders, which take no updates yet, and are left out: ",
               list_names(left_out, kNamesInMessage));
    }
  }
}

}  // namespace kinora::inference
