#include "kinora/checkpoint/weights_file.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "kinora/checkpoint/head_order.h"
#include "kinora/checkpoint/weights_paths.h"
#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/file.h"
#include "kinora/io/gguf.h"
#include "kinora/io/safetensors.h"
#include "kinora/io/torch_file.h"

namespace kinora::checkpoint {
namespace {

constexpr const char* kPrefixOfCompvis = "model.diffusion_model.";
constexpr const char* kFirstOfCompvis = "input_blocks.0.0.weight";

/// Where in a file of torch.save the weights lie.
std::string weights_within(const io::TorchFile& file, bool averaged) {
  const auto* root = std::get_if<io::PickleDict>(&file.root().value);
  if (root != nullptr) {
    for (const std::string_view candidate : {"ema", "model", "state_dict", "module"}) {
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

/// A tensor of a mapped file.
struct Stored {
  DType dtype = DType::kF32;  // 8-bit floats are read as fp32, times `scale`
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes = {};   // where it lies in C order
  const io::TorchTensor* view = nullptr;   // else, or null
  const io::GgufTensor* blocks = nullptr;  // else, or null
  int64_t split_head = 0;                  // rows of a head that lie half-split; 0: in our order
  int64_t packed_head = 0;                 // of queries, keys and values, head by head; 0: likewise
  float scale = 1.0F;

  [[nodiscard]] bool is_fp8() const { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }
  [[nodiscard]] DType type() const { return is_fp8() ? DType::kF32 : dtype; }
  [[nodiscard]] bool is_in_order() const { return split_head == 0 && packed_head == 0; }
};

Stored stored(const io::SafetensorsTensor& tensor) {
  return {tensor.dtype, tensor.shape, tensor.data};
}

Stored stored(const io::TorchTensor& tensor) {
  int64_t stride = 1;
  bool packed = true;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    packed = packed && (tensor.shape[i] == 1 || tensor.strides[i] == stride);
    stride *= tensor.shape[i];
  }
  if (!packed) {
    return {.dtype = tensor.dtype, .shape = tensor.shape, .view = &tensor};
  }
  const size_t begin = static_cast<size_t>(tensor.offset) * size_of(tensor.dtype);
  const auto size = static_cast<size_t>(io::num_bytes(tensor));
  return {tensor.dtype, tensor.shape, tensor.storage.subspan(size == 0 ? 0 : begin, size)};
}

Stored stored(const io::GgufTensor& tensor) {
  switch (tensor.type) {
    case io::GgufType::kF32:
      return {DType::kF32, tensor.shape, tensor.data};
    case io::GgufType::kF16:
      return {DType::kF16, tensor.shape, tensor.data};
    case io::GgufType::kBF16:
      return {DType::kBF16, tensor.shape, tensor.data};
    default:
      return {.shape = tensor.shape, .blocks = &tensor};
  }
}

/// What blocks of few bits stand for.
at::Tensor widened(const io::GgufTensor& tensor) {
  constexpr int64_t kPart = 1 << 16;  // a multiple of any block
  at::Tensor values = at::empty(tensor.shape, at::kFloat);
  auto* const out = values.mutable_data_ptr<float>();
  const int64_t count = values.numel();
  at::parallel_for(0, ceil_div(count, kPart), 1, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kPart;
    const int64_t end = std::min(last * kPart, count);
    io::read_floats(tensor, begin, end, std::span(out + begin, static_cast<size_t>(end - begin)));
  });
  return values;
}

/// Over the mapped file where it lies there in C order and aligned, as it is read, else a copy.
at::Tensor borrowed(const Stored& tensor) {
  const at::ScalarType type = device::scalar_type(tensor.dtype);
  if (tensor.view != nullptr) {
    at::Tensor copy = at::empty(tensor.shape, type);
    io::copy_contiguous(*tensor.view,
                        {static_cast<std::byte*>(copy.mutable_data_ptr()), copy.nbytes()});
    return copy;
  }
  if (tensor.blocks != nullptr) {
    return widened(*tensor.blocks);
  }
  if (tensor.is_fp8()) {
    return device::tensor_from_bytes(tensor.dtype, tensor.shape, tensor.bytes)
        .to(at::kFloat)
        .mul_(tensor.scale);
  }
  const auto address = reinterpret_cast<uintptr_t>(tensor.bytes.data());
  if (tensor.bytes.empty() || address % size_of(tensor.dtype) != 0) {
    return device::tensor_from_bytes(tensor.dtype, tensor.shape, tensor.bytes);
  }
  return at::from_blob(const_cast<std::byte*>(tensor.bytes.data()), tensor.shape, type);
}

/// In our order.
at::Tensor ordered(const Stored& part) {
  const at::Tensor values = borrowed(part);
  if (part.packed_head > 0) {
    return packed_by_kind(values, part.packed_head);
  }
  return part.split_head == 0 ? values : interleaved(values, part.split_head);
}

/// The parts one after the other along dim 0.
at::Tensor joined(const std::vector<Stored>& parts) {
  if (parts.size() == 1) {
    return ordered(parts.front());
  }
  std::vector<at::Tensor> tensors;
  tensors.reserve(parts.size());
  for (const Stored& part : parts) {
    tensors.push_back(ordered(part));
  }
  return at::cat(tensors, 0);
}

/// The second half of its rows, then the first.
std::vector<Stored> halves_swapped(const Stored& whole, const std::filesystem::path& file,
                                   const std::string& key) {
  KINORA_CHECK(!whole.shape.empty() && whole.shape.front() % 2 == 0 && whole.view == nullptr &&
                   whole.blocks == nullptr,
               kIo, "[weights] ", file, ": the rows of ", key,
               " must be an even number, one after the other and in whole numbers, got shape ",
               at::IntArrayRef(whole.shape));
  Stored half = whole;
  half.shape.front() /= 2;
  const size_t bytes = whole.bytes.size() / 2;
  std::vector<Stored> halves(2, half);
  halves[0].bytes = whole.bytes.subspan(bytes);
  halves[1].bytes = whole.bytes.first(bytes);
  return halves;
}

std::vector<int64_t> joined_shape(const std::vector<Stored>& parts) {
  std::vector<int64_t> shape = parts.front().shape;
  for (size_t i = 1; i < parts.size(); ++i) {
    shape.front() += parts[i].shape.front();
  }
  return shape;
}

/// Whether they can be joined.
bool are_alike(const Stored& a, const Stored& b) {
  return a.dtype == b.dtype && !a.shape.empty() && a.shape.size() == b.shape.size() &&
         std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1);
}

bool are_equal(const Stored& a, const Stored& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) {
    return false;
  }
  const at::Tensor left = borrowed(a);
  const at::Tensor right = borrowed(b);
  return left.nbytes() == 0 ||
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

constexpr const char* kScales[] = {"scale_weight", "weight_scale"};
constexpr const char* kBesideScales[] = {"scale_input", "input_scale", "comfy_quant"};
constexpr const char* kMarker = "scaled_fp8";  // a tensor without meaning

float scale_of(const Stored& tensor, const std::filesystem::path& file, const std::string& key) {
  const at::Tensor values = borrowed(tensor).to(at::kFloat);
  KINORA_CHECK(values.numel() == 1, kIo, "[weights] ", file, ": ", key,
               " must be one number, the scale of a whole weight in 8-bit floats, got shape ",
               values.sizes(), ". Hint: convert the file to BF16");
  const auto scale = values.item<float>();
  KINORA_CHECK(std::isfinite(scale) && scale > 0.0F, kIo, "[weights] ", file, ": ", key,
               " must be a number above 0, got ", scale);
  return scale;
}

}  // namespace

struct WeightsFile::Content {
  // deques, so that what points into a file stays valid
  std::deque<io::SafetensorsFile> safetensors;
  std::deque<io::TorchFile> torch;
  std::deque<io::GgufFile> gguf;
  std::map<std::string, std::vector<Stored>> tensors;  // in parts

  void add(const std::filesystem::path& file, const std::string& name, Stored tensor) {
    KINORA_CHECK(tensors.emplace(name, std::vector{std::move(tensor)}).second, kIo, "[weights] ",
                 file, " has ", io::in_quotes(name), ", which a file before it has, too");
  }

  void open(const std::filesystem::path& file, bool averaged) {
    if (file.extension() == ".safetensors") {
      safetensors.push_back(io::SafetensorsFile::open(file));
      for (const io::SafetensorsTensor& tensor : safetensors.back().tensors()) {
        add(file, tensor.name, stored(tensor));
      }
      return;
    }
    if (file.extension() == ".gguf") {
      gguf.push_back(io::GgufFile::open(file));
      // ComfyUI's leave out what stands before the names of CompVis' U-Nets.
      const char* const prefix =
          gguf.back().find(kFirstOfCompvis) == nullptr ? "" : kPrefixOfCompvis;
      for (const io::GgufTensor& tensor : gguf.back().tensors()) {
        add(file, prefix + tensor.name, stored(tensor));
      }
      return;
    }
    torch.push_back(io::TorchFile::open(file));
    for (const io::NamedTorchTensor& named :
         torch.back().tensors(weights_within(torch.back(), averaged))) {
      add(file, named.name, stored(*named.tensor));
    }
  }

  /// Gives weights in 8-bit floats the scale that stands beside them, and forgets it and what else
  /// is of such products: ComfyUI's names and ModelOpt's.
  void take_scales(const std::filesystem::path& path) {
    constexpr std::string_view kWeight = "weight";
    std::vector<std::string> taken;
    for (auto& [name, parts] : tensors) {
      if (name.ends_with(kMarker)) {
        taken.push_back(name);
      }
      if (!parts.front().is_fp8() || !name.ends_with(kWeight)) {
        continue;
      }
      const std::string layer = name.substr(0, name.size() - kWeight.size());
      for (const char* scale : kScales) {
        if (const auto found = tensors.find(layer + scale); found != tensors.end()) {
          parts.front().scale = scale_of(found->second.front(), path, found->first);
          taken.push_back(found->first);
        }
      }
      for (const char* beside : kBesideScales) {
        taken.push_back(layer + beside);
      }
    }
    for (const std::string& name : taken) {
      tensors.erase(name);
    }
  }

  [[nodiscard]] const std::vector<Stored>& parts_of(const std::filesystem::path& path,
                                                    const std::string& name) const {
    const auto found = tensors.find(name);
    KINORA_CHECK(found != tensors.end(), kIo, "[weights] ", path, " has no tensor ", name);
    return found->second;
  }
};

WeightsFile::WeightsFile(std::filesystem::path path, std::unique_ptr<Content> content)
    : path_(std::move(path)), content_(std::move(content)) {}
WeightsFile::WeightsFile(WeightsFile&&) noexcept = default;
WeightsFile& WeightsFile::operator=(WeightsFile&&) noexcept = default;
WeightsFile::~WeightsFile() = default;

WeightsFile WeightsFile::open(const std::filesystem::path& path, bool averaged) {
  auto content = std::make_unique<Content>();
  const WeightsPaths paths = find_weights(path);
  std::map<std::string, size_t> file_of;
  for (size_t i = 0; i < paths.files.size(); ++i) {
    content->open(paths.files[i], averaged);
    for (const auto& [name, tensor] : content->tensors) {
      file_of.emplace(name, i);
    }
  }
  for (const auto& [name, number] : paths.shard_of) {
    const auto found = file_of.find(name);
    KINORA_CHECK(found != file_of.end() && found->second == number, kIo, "[weights] ",
                 paths.files[number], " must have ", io::in_quotes(name),
                 ", as the index beside it says, and has not");
  }
  content->take_scales(path);
  return {path, std::move(content)};
}

std::vector<std::string> WeightsFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, parts] : content_->tensors) {
    names.push_back(name);
  }
  return names;
}

bool WeightsFile::contains(const std::string& name) const {
  return content_->tensors.contains(name);
}

std::vector<int64_t> WeightsFile::shape(const std::string& name) const {
  return joined_shape(content_->parts_of(path_, name));
}

at::Tensor WeightsFile::read(const std::string& name) const {
  const std::vector<Stored>& parts = content_->parts_of(path_, name);
  const at::Tensor values = joined(parts);
  return parts.size() == 1 ? values.clone() : values;
}

LateTensors WeightsFile::tensors() const {
  LateTensors tensors;
  for (const auto& [name, parts] : content_->tensors) {
    const bool is_mapped = parts.size() == 1 && parts.front().view == nullptr &&
                           parts.front().blocks == nullptr && !parts.front().is_fp8() &&
                           parts.front().is_in_order();
    tensors[name] = {
        .type = device::scalar_type(parts.front().type()),
        .shape = joined_shape(parts),
        .read = [&parts = parts](int64_t begin,
                                 int64_t end) { return rows_of(joined(parts), begin, end); },
        .reads_rows = is_mapped};
  }
  return tensors;
}

std::string WeightsFile::metadata(const std::string& key) const {
  for (const io::SafetensorsFile& file : content_->safetensors) {
    if (const auto found = file.metadata().find(key); found != file.metadata().end()) {
      return found->second;
    }
  }
  return "";
}

void WeightsFile::rename(const nn::Naming& naming) {
  std::map<std::string, std::vector<Stored>>& tensors = content_->tensors;
  for (const nn::OtherName& name : naming) {
    if (!std::ranges::all_of(name.keys,
                             [&](const std::string& key) { return tensors.contains(key); })) {
      continue;
    }
    std::vector<Stored> parts;
    for (const std::string& key : name.keys) {
      const auto found = tensors.find(key);
      parts.push_back(found->second.front());
      KINORA_CHECK(parts.size() == 1 || are_alike(parts.front(), parts.back()), kIo, "[weights] ",
                   path_, ": ", key, " must be as ", name.keys.front(),
                   " but for its rows, got shape ", at::IntArrayRef(parts.back().shape), ", not ",
                   at::IntArrayRef(parts.front().shape));
    }
    for (const std::string& copy : name.copies) {
      const auto found = tensors.find(copy);
      KINORA_CHECK(found == tensors.end() || are_equal(parts.front(), found->second.front()), kIo,
                   "[weights] ", path_, ": ", copy, " must be the same as ", name.keys.front(),
                   ", and is not. Hint: our model has one of them for all blocks, which such files "
                   "cannot give");
      tensors.erase(copy);
    }
    for (const std::string& key : name.keys) {
      tensors.erase(key);
    }
    for (size_t part = 0; part < (name.split_head > 0 ? name.num_split : 0); ++part) {
      const int64_t rows = parts[part].shape.empty() ? 0 : parts[part].shape.front();
      KINORA_CHECK(name.split_head % 2 == 0 && rows > 0 && rows % name.split_head == 0, kIo,
                   "[weights] ", path_, ": the rows of ", name.keys[part],
                   " must be whole heads of ", name.split_head, ", an even number, got shape ",
                   at::IntArrayRef(parts[part].shape));
      parts[part].split_head = name.split_head;
    }
    if (name.packed_head > 0) {
      const int64_t rows = parts.front().shape.empty() ? 0 : parts.front().shape.front();
      KINORA_CHECK(parts.size() == 1 && rows > 0 && rows % (3 * name.packed_head) == 0, kIo,
                   "[weights] ", path_, ": the rows of ", name.keys.front(),
                   " must be queries, keys and values of whole heads of ", name.packed_head,
                   ", got shape ", at::IntArrayRef(parts.front().shape));
      parts.front().packed_head = name.packed_head;
    }
    if (name.swaps_halves) {
      parts = halves_swapped(parts.front(), path_, name.keys.front());
    }
    content_->add(path_, name.path, parts.front());
    tensors.at(name.path) = std::move(parts);
  }
}

void WeightsFile::drop(const std::function<bool(const std::string& name)>& is_dropped) {
  std::erase_if(content_->tensors,
                [&is_dropped](const auto& named) { return is_dropped(named.first); });
}

}  // namespace kinora::checkpoint
