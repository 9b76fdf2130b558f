#include "kinora/checkpoint/weights_file.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <functional>
#include <optional>
#include <sstream>
#include <variant>

#include "kinora/checkpoint/arrays_file.h"
#include "kinora/checkpoint/buffers.h"
#include "kinora/checkpoint/manifest.h"
#include "kinora/checkpoint/shards.h"
#include "kinora/checkpoint/staging.h"
#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/io/safetensors.h"
#include "kinora/io/torch_file.h"
#include "kinora/ops/host_bytes.h"

namespace kinora::checkpoint {
namespace {

constexpr size_t kMaxNamesInMessage = 8;

/// Where in a file of torch.save the weights lie.
std::string weights_within(const io::TorchFile& file, bool averaged) {
  const auto* root = std::get_if<io::PickleDict>(&file.root().value);
  if (root != nullptr) {
    for (const std::string_view candidate : {"ema", "model", "state_dict"}) {
      if (candidate == "ema" && !averaged) {
        continue;
      }
      for (const auto& [key, value] : root->items) {
        const auto* name = std::get_if<std::string_view>(&key->value);
        if (name != nullptr && *name == candidate &&
            std::holds_alternative<io::PickleDict>(value->value)) {
          return std::string(candidate);
        }
      }
    }
  }
  return "";
}

/// A tensor that is read when it is written.
struct LateTensor {
  std::vector<int64_t> shape;
  std::function<at::Tensor()> read;
};
using Tensors = std::map<std::string, LateTensor>;

/// The model's buffers; its parameters are to follow.
Tensors with_buffers(nn::Module& model) {
  Tensors tensors;
  for (const auto& [name, buffer] : model.named_buffers()) {
    tensors[name] = {buffer->sizes().vec(), [values = *buffer] { return values; }};
  }
  return tensors;
}

void write_weights(const std::filesystem::path& path, const Tensors& tensors, at::ScalarType type,
                   const std::string& config) {
  std::vector<io::SafetensorsSpec> specs;
  specs.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    specs.push_back({.name = name, .dtype = ops::dtype_of(type), .shape = tensor.shape});
  }
  io::SafetensorsWriter writer(path, std::move(specs),
                               {{"format", "pt"}, {kConfigMetadata, config}});
  for (const io::SafetensorsSpec& spec : writer.tensors()) {
    const at::Tensor host = tensors.at(spec.name).read().to(at::kCPU, type).contiguous();
    writer.write(spec.name, ops::bytes_of(host));
  }
  writer.finish();
}

/// Whether these are the shapes of an image model's patch projection [C, channels, P, P] and of the
/// same for clips, whose patches are one frame deep.
bool is_of_one_frame(const std::vector<int64_t>& image, const std::vector<int64_t>& clip) {
  return clip.size() == 5 && clip[2] == 1 &&
         image == std::vector<int64_t>{clip[0], clip[1], clip[3], clip[4]};
}

}  // namespace

struct WeightsFile::Content {
  std::optional<io::SafetensorsFile> safetensors;
  std::optional<io::TorchFile> torch;
  std::map<std::string, const io::TorchTensor*> torch_tensors;
};

WeightsFile::WeightsFile(std::filesystem::path path, std::unique_ptr<Content> content)
    : path_(std::move(path)), content_(std::move(content)) {}
WeightsFile::WeightsFile(WeightsFile&&) noexcept = default;
WeightsFile& WeightsFile::operator=(WeightsFile&&) noexcept = default;
WeightsFile::~WeightsFile() = default;

WeightsFile WeightsFile::open(const std::filesystem::path& path, bool averaged) {
  auto content = std::make_unique<Content>();
  if (path.extension() == ".safetensors") {
    content->safetensors = io::SafetensorsFile::open(path);
  } else {
    content->torch = io::TorchFile::open(path);
    for (const io::NamedTorchTensor& named :
         content->torch->tensors(weights_within(*content->torch, averaged))) {
      content->torch_tensors.emplace(named.name, named.tensor);
    }
  }
  return {path, std::move(content)};
}

std::vector<std::string> WeightsFile::names() const {
  std::vector<std::string> names;
  if (content_->safetensors) {
    for (const io::SafetensorsTensor& tensor : content_->safetensors->tensors()) {
      names.push_back(tensor.name);
    }
  } else {
    for (const auto& [name, tensor] : content_->torch_tensors) {
      names.push_back(name);
    }
  }
  return names;
}

bool WeightsFile::contains(const std::string& name) const {
  return content_->safetensors ? content_->safetensors->find(name) != nullptr
                               : content_->torch_tensors.contains(name);
}

std::vector<int64_t> WeightsFile::shape(const std::string& name) const {
  KINORA_CHECK(contains(name), kIo, "[weights] ", path_, " has no tensor ", name);
  return content_->safetensors ? content_->safetensors->find(name)->shape
                               : content_->torch_tensors.at(name)->shape;
}

at::Tensor WeightsFile::read(const std::string& name) const {
  KINORA_CHECK(contains(name), kIo, "[weights] ", path_, " has no tensor ", name);
  if (content_->safetensors) {
    const io::SafetensorsTensor& tensor = *content_->safetensors->find(name);
    return ops::tensor_from_bytes(tensor.dtype, tensor.shape, tensor.data);
  }
  const io::TorchTensor& tensor = *content_->torch_tensors.at(name);
  at::Tensor copy = at::empty(tensor.shape, ops::scalar_type(tensor.dtype));
  io::copy_contiguous(tensor, {static_cast<std::byte*>(copy.mutable_data_ptr()), copy.nbytes()});
  return copy;
}

std::string WeightsFile::metadata(const std::string& key) const {
  if (!content_->safetensors) {
    return "";
  }
  const auto& metadata = content_->safetensors->metadata();
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : found->second;
}

void load_weights(const WeightsFile& file, nn::Module& model, optim::Arena& arena) {
  std::map<std::string, std::vector<int64_t>> expected;
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::vector<std::string> misshapen;
  for (const auto& [path, parameter] : model.named_parameters()) {
    expected.emplace(path, parameter->shape);
    if (!file.contains(path)) {
      missing.push_back(path);
    }
  }
  for (const auto& [path, buffer] : model.named_buffers()) {
    expected.emplace(path, buffer->sizes().vec());
  }
  for (const std::string& name : file.names()) {
    const auto found = expected.find(name);
    if (found == expected.end()) {
      unexpected.push_back(name);
      continue;
    }
    const std::vector<int64_t> shape = file.shape(name);
    if (shape != found->second && !is_of_one_frame(shape, found->second)) {
      std::ostringstream text;
      text << name << " (must be " << at::IntArrayRef(found->second) << ", is "
           << at::IntArrayRef(shape) << ")";
      misshapen.push_back(text.str());
    }
  }
  KINORA_CHECK(missing.empty() && unexpected.empty() && misshapen.empty(), kIo, "[weights] ",
               file.path(), " does not fit the model: ", missing.size(), " missing [",
               list_names(missing, kMaxNamesInMessage), "], ", unexpected.size(), " unexpected [",
               list_names(unexpected, kMaxNamesInMessage), "], ", misshapen.size(),
               " of another shape [", list_names(misshapen, kMaxNamesInMessage),
               "]. Hint: compare model.* with how the file was trained");
  for (const auto& [path, parameter] : model.named_parameters()) {
    arena.load_parameter(path, file.read(path).view(parameter->shape));
  }
  if (arena.options().train) {
    arena.reset_averages();
  }
  for (const auto& [path, buffer] : model.named_buffers()) {
    if (file.contains(path)) {
      *buffer = file.read(path).to(buffer->device(), buffer->scalar_type());
    }
  }
}

void save_weights(const std::filesystem::path& path, nn::Module& model, const optim::Arena& arena,
                  optim::Role role, at::ScalarType type, const std::string& config) {
  Tensors tensors = with_buffers(model);
  for (const auto& [name, parameter] : model.named_parameters()) {
    tensors[name] = {parameter->shape,
                     [&arena, role, path = name] { return arena.export_parameter(path, role); }};
  }
  if (arena.options().sharding.group.rank() == 0) {
    write_weights(path, tensors, type, config);
    return;
  }
  for (const auto& [name, tensor] : tensors) {
    (void)tensor.read();  // this rank's part of it, for who writes
  }
}

void convert_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& path,
                        nn::Module& model, optim::Role role, at::ScalarType type) {
  const Manifest manifest = read_manifest(checkpoint);
  std::vector<Shard> shards = shards_of(manifest, checkpoint, optim::to_string(role));
  const std::vector<Shard> buffers = arrays_shards(manifest, kBuffersRole);
  shards.insert(shards.end(), buffers.begin(), buffers.end());
  Staging staging(at::kCPU);
  check_sizes(checkpoint, shards);
  check_content(checkpoint, shards, {}, staging);
  restore_buffers(read_arrays(manifest, checkpoint, kBuffersRole), model);
  const RoleReader reader(checkpoint, manifest, optim::to_string(role));
  Tensors tensors = with_buffers(model);
  for (size_t b = 0; b < manifest.buckets.size(); ++b) {
    for (const optim::Slot& slot : manifest.buckets[b].slots) {
      const int64_t numel = c10::multiply_integers(slot.shape);
      KINORA_CHECK(
          slot.offset >= 0 && numel >= 0 && numel <= manifest.buckets[b].numel - slot.offset, kIo,
          "[weights] ", checkpoint, ": ", slot.path, " lies outside of its bucket");
      tensors[slot.path] = {slot.shape, [&reader, &slot, b] {
                              at::Tensor values = at::empty(slot.shape, at::kFloat);
                              reader.read(b, slot.offset, values);
                              return values;
                            }};
    }
  }
  write_weights(path, tensors, type, manifest.state.config);
}

}  // namespace kinora::checkpoint
