#include "kinora/eval/script_network.h"

#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <exception>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kinora/core/error.h"

namespace kinora::eval {
namespace {

/// The first line of what went wrong: libtorch adds stacks of its own calls.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

/// [B, D] of [B, D, 1, ...].
at::Tensor checked(const at::Tensor& output, int64_t batch, const char* what) {
  const bool fits = output.dim() >= 2 && output.size(0) == batch &&
                    output.numel() == batch * output.size(1) && output.is_floating_point();
  KINORA_CHECK(fits, kShape, "[torchscript] ", what, " must have shape [", batch,
               ", D] and be floats, got ", output.sizes(), " ", output.scalar_type());
  return output.reshape({batch, output.size(1)}).to(at::kFloat);
}

torch::jit::Module load(const std::filesystem::path& path, at::Device device) {
  try {
    torch::jit::Module module = torch::jit::load(path.string(), device);
    module.eval();
    (void)module.get_method("forward");
    return module;
  } catch (const std::exception& error) {
    throw_error(ErrorKind::kIo, "[torchscript] ", path.string(),
                " must be a TorchScript module with a method forward, got: ", first_line(error));
  }
}

}  // namespace

struct ScriptNetwork::Script {
  torch::jit::Module module;
  std::unordered_map<std::string, c10::IValue> flags;
};

ScriptNetwork::ScriptNetwork(const NetworkChoice& choice, std::string name, at::Device device)
    : name_(std::move(name)),
      size_(choice.script_size),
      range_(choice.script_range),
      script_(std::make_unique<Script>()) {
  script_->module = load(choice.script, device);
  for (const c10::Argument& argument :
       script_->module.get_method("forward").function().getSchema().arguments()) {
    const std::string& flag = argument.name();
    if (argument.type()->kind() == c10::TypeKind::BoolType &&
        (flag == "return_features" || flag == "rescale" || flag == "resize")) {
      script_->flags.emplace(flag, true);
    }
  }
}

ScriptNetwork::~ScriptNetwork() = default;

at::Tensor ScriptNetwork::prepare(const at::Tensor& sample) const {
  if (size_ == 0) {
    return in_range(sample.to(at::kFloat), range_);
  }
  // Frames are resized one by one.
  const bool is_clip = sample.dim() == 4;
  const at::Tensor frames = is_clip ? sample.transpose(0, 1) : sample;
  const at::Tensor pixels = in_range(resized(frames, size_, InputResize::kClean), range_);
  return is_clip ? pixels.transpose(0, 1).contiguous() : pixels;
}

NetworkOutput ScriptNetwork::forward(const at::Tensor& inputs) const {
  c10::IValue output;
  try {
    output = script_->module.get_method("forward")({inputs}, script_->flags);
  } catch (const std::exception& error) {
    throw_error(ErrorKind::kConfig, "[torchscript] ", name_, " must take ", inputs.sizes(),
                " float32, got: ", first_line(error));
  }
  const int64_t batch = inputs.size(0);
  if (output.isTensor()) {
    return {.features = checked(output.toTensor(), batch, "features"), .logits = {}};
  }
  const bool is_pair = output.isTuple() && output.toTupleRef().elements().size() == 2 &&
                       output.toTupleRef().elements()[0].isTensor() &&
                       output.toTupleRef().elements()[1].isTensor();
  KINORA_CHECK(is_pair, kShape,
               "[torchscript] a network must return features or a tuple of features and logits, "
               "got ",
               output.tagKind());
  const auto& parts = output.toTupleRef().elements();
  return {.features = checked(parts[0].toTensor(), batch, "features"),
          .logits = checked(parts[1].toTensor(), batch, "logits")};
}

struct PairScript::Script {
  torch::jit::Module module;
};

PairScript::PairScript(const std::filesystem::path& path, at::Device device)
    : name_(named_by_content("torchscript", path)),
      script_(std::make_unique<Script>(Script{load(path, device)})) {}

PairScript::~PairScript() = default;

at::Tensor PairScript::forward(const at::Tensor& first, const at::Tensor& second) const {
  c10::IValue output;
  try {
    output = script_->module.get_method("forward")({first, second});
  } catch (const std::exception& error) {
    throw_error(ErrorKind::kConfig, "[torchscript] ", name_, " must take two frames of ",
                first.sizes(), " float32, got: ", first_line(error));
  }
  KINORA_CHECK(output.isTensor() && output.toTensor().is_floating_point(), kShape,
               "[torchscript] a network of two frames must return a tensor of floats, got ",
               output.tagKind());
  return output.toTensor().to(at::kFloat);
}

}  // namespace kinora::eval
