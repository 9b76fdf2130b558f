#include "kinora/checkpoint/frozen.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/optim/held_weights.h"

namespace kinora::checkpoint {
namespace {

constexpr const char* kScales = ".scales";

std::string codes_name(const std::string& path, kernels::WeightFormat format) {
  return path + "." + std::string(kernels::name_of(format));
}

/// The parameter whose codes have this name, and what they are.
std::optional<std::pair<std::string, kernels::WeightFormat>> owner_of_codes(
    const std::string& name) {
  for (const auto format :
       {kernels::WeightFormat::kInt8, kernels::WeightFormat::kFp8, kernels::WeightFormat::kNf4}) {
    const std::string ending = codes_name("", format);
    if (name.ends_with(ending)) {
      return std::pair(name.substr(0, name.size() - ending.size()), format);
    }
  }
  return std::nullopt;
}

/// An array of this shape. kIo for another, or none.
const at::Tensor& found_in(const Arrays& frozen, const std::string& name, at::IntArrayRef shape,
                           const std::filesystem::path& checkpoint) {
  const auto found = frozen.find(name);
  KINORA_CHECK(found != frozen.end() && found->second.sizes() == shape, kIo, "[checkpoint] ",
               checkpoint, " is of another run: the frozen ", name,
               found == frozen.end() ? " is not in it" : " has another shape",
               ". Hint: model.* and finetune.* must be as when it was saved");
  return found->second;
}

/// The codes and scales of a weight of this format and shape.
std::pair<at::Tensor, at::Tensor> codes_in(const Arrays& frozen, const std::string& path,
                                           const ops::QuantisedWeight& like,
                                           const std::filesystem::path& checkpoint) {
  const std::string name = codes_name(path, like.format);
  const at::Tensor codes = found_in(frozen, name, like.codes.sizes(), checkpoint);
  const at::Tensor scales = found_in(frozen, path + kScales, like.scales.sizes(), checkpoint);
  KINORA_CHECK(codes.scalar_type() == at::kByte && scales.scalar_type() == at::kFloat, kIo,
               "[checkpoint] ", checkpoint, ": ", name,
               " and its scales must be bytes and fp32, got ", codes.scalar_type(), " and ",
               scales.scalar_type());
  return {codes, scales};
}

}  // namespace

Arrays frozen_of(const optim::Arena& arena) {
  Arrays frozen;
  for (const std::string& path : arena.frozen_paths()) {
    frozen[path] = arena.export_parameter(path, optim::Role::compute()).cpu().contiguous();
  }
  if (const optim::HeldWeights* held = arena.held()) {
    for (const optim::HeldWeights::Weight& weight : held->weights()) {
      const std::string& path = weight.slot.path;
      if (weight.is_coded()) {
        frozen[codes_name(path, weight.codes.format)] = weight.codes.codes.cpu();
        frozen[path + kScales] = weight.codes.scales.cpu();
      } else {
        frozen[path] = arena.export_parameter(path, optim::Role::compute()).cpu().contiguous();
      }
    }
  }
  return frozen;
}

LateTensors frozen_weights(const Arrays& frozen, const std::filesystem::path& checkpoint,
                           nn::Module& model) {
  std::unordered_map<std::string, const nn::Parameter*> parameters;
  for (const auto& [path, parameter] : model.named_parameters()) {
    parameters.emplace(path, parameter);
  }
  LateTensors weights;
  for (const auto& [name, values] : frozen) {
    const auto owner = owner_of_codes(name);
    if (!owner) {
      if (!name.ends_with(kScales)) {
        weights[name] = late_tensor(values);
      }
      continue;
    }
    const auto& [path, format] = *owner;
    const auto found = parameters.find(path);
    KINORA_CHECK(found != parameters.end(), kIo, "[checkpoint] ", checkpoint, " has the frozen ",
                 path, ", which the model does not have");
    const nn::Parameter& parameter = *found->second;
    const int64_t rows = parameter.shape.front();
    ops::QuantisedWeight weight =
        ops::zero_weight(format, rows, parameter.numel() / rows, at::kMeta);
    std::tie(weight.codes, weight.scales) = codes_in(frozen, path, weight, checkpoint);
    const optim::Slot slot{.path = path,
                           .shape = parameter.shape,
                           .numel = weight.count,
                           .channels_last = parameter.channels_last};
    weights[path] = {.type = at::kFloat,
                     .shape = parameter.shape,
                     .read =
                         [weight = weight, slot](int64_t begin, int64_t end) {
                           const at::Tensor wide = at::empty({weight.count}, at::kFloat);
                           ops::dequantise(weight, wide);
                           return rows_of(optim::in_shape(wide, slot).contiguous(), begin, end);
                         },
                     .reads_rows = false};
  }
  return weights;
}

void restore_frozen(const Arrays& frozen, const std::filesystem::path& checkpoint,
                    optim::Arena& arena) {
  size_t count = arena.frozen_paths().size();  // other stages' too
  for (const optim::FrozenBucket& bucket : arena.frozen()) {
    for (const optim::Slot& slot : bucket.slots) {
      (void)found_in(frozen, slot.path, slot.whole_shape(), checkpoint);
    }
  }
  const optim::HeldWeights* held = arena.held();
  if (held != nullptr) {
    for (const optim::HeldWeights::Weight& weight : held->weights()) {
      if (weight.is_coded()) {
        (void)codes_in(frozen, weight.slot.path, weight.codes, checkpoint);
        count += 2;
      } else {
        (void)found_in(frozen, weight.slot.path, weight.slot.shape, checkpoint);
        ++count;
      }
    }
  }
  KINORA_CHECK(count == frozen.size(), kIo, "[checkpoint] ", checkpoint,
               " is of another run: it has ", frozen.size(), " frozen arrays, this run ", count,
               ". Hint: finetune.* must be as when it was saved");
  for (const optim::FrozenBucket& bucket : arena.frozen()) {
    for (const optim::Slot& slot : bucket.slots) {
      arena.load_parameter(slot.path, frozen.at(slot.path));
    }
  }
  if (held != nullptr) {
    for (const auto& [slot, codes, plain] : held->weights()) {
      if (plain.defined()) {
        arena.load_parameter(slot.path, frozen.at(slot.path));
        continue;
      }
      const auto [saved_codes, saved_scales] = codes_in(frozen, slot.path, codes, checkpoint);
      codes.codes.copy_(saved_codes);
      codes.scales.copy_(saved_scales);
    }
  }
}

}  // namespace kinora::checkpoint
