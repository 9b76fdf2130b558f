#include "kinora/checkpoint/low_rank_file.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/core/error.h"
#include "kinora/core/glob.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"

namespace kinora::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPeftFile = "adapter_model.safetensors";
constexpr const char* kDiffusersFile = "pytorch_lora_weights.safetensors";
constexpr const char* kSettingsFile = "adapter_config.json";
constexpr const char* kSettingsMetadata = "lora_adapter_metadata";
constexpr const char* kPeftPrefix = "base_model.model.";
constexpr const char* kDiffusersPrefixes[] = {"transformer.", "unet."};
constexpr const char* kWeight = ".weight";
constexpr int64_t kMaxSettingsBytes = 1 << 20;
constexpr size_t kNamesInMessage = 4;

/// What a key of an adapter's file is of a linear.
enum class LowRankPart { kA, kB, kMagnitude, kAlpha };
struct PartName {
  const char* end;
  LowRankPart part;
};
constexpr PartName kParts[] = {{".lora_A.weight", LowRankPart::kA},
                               {".lora_B.weight", LowRankPart::kB},
                               {".lora_A.default.weight", LowRankPart::kA},
                               {".lora_B.default.weight", LowRankPart::kB},
                               {".lora_magnitude_vector", LowRankPart::kMagnitude},
                               {".lora_magnitude_vector.weight", LowRankPart::kMagnitude},
                               {".alpha", LowRankPart::kAlpha}};

/// The tensors of a linear's update, as they are found.
struct Found {
  at::Tensor a;
  at::Tensor b;
  at::Tensor magnitude;
  std::optional<double> alpha;
};

LowRankChange change_of(const std::string& name, const Found& found,
                        const AdapterSettings& settings, const std::string& origin) {
  KINORA_CHECK(found.a.defined() && found.b.defined(), kIo, "[lora] ", origin, ": ", name,
               " has no lora_", found.a.defined() ? "B" : "A");
  KINORA_CHECK(found.a.dim() == 2 && found.b.dim() == 2 && found.a.size(0) == found.b.size(1), kIo,
               "[lora] ", origin, ": lora_A and lora_B of ", name,
               " must be [rank, in] and [out, rank], got ", found.a.sizes(), " and ",
               found.b.sizes());
  KINORA_CHECK(!found.magnitude.defined() || found.magnitude.numel() == found.b.size(0), kIo,
               "[lora] ", origin, ": lora_magnitude_vector of ", name, " must have ",
               found.b.size(0), " elements, got ", found.magnitude.sizes());
  AdapterSettings own = settings;
  own.alpha = found.alpha.value_or(settings.alpha);
  return {.name = name,
          .first_row = 0,
          .a = found.a,
          .b = found.b,
          .magnitude = found.magnitude.defined() ? found.magnitude.flatten() : found.magnitude,
          .scale = own.scale(found.a.size(0))};
}

/// Keys that a settings object may not have with another value: what we do not compute.
void check_settings(const json& values, const std::string& prefix, const std::string& origin) {
  const auto get = [&](const char* key) { return values.value(prefix + key, json()); };
  for (const char* key : {"alpha_pattern", "rank_pattern"}) {
    KINORA_CHECK(get(key).empty(), kIo, "[lora] ", origin, ": ", key,
                 " is not supported, it must be empty, got ", get(key).dump());
  }
  KINORA_CHECK(get("fan_in_fan_out") != json(true), kIo, "[lora] ", origin,
               ": fan_in_fan_out must be false");
  const json bias = get("bias");
  KINORA_CHECK(bias.is_null() || bias == "none", kIo, "[lora] ", origin,
               ": bias must be none, got ", bias.dump());
}

AdapterSettings parse_settings(const std::string& text, const std::string& origin) {
  const json values = json::parse(text, nullptr, /*allow_exceptions=*/false);
  KINORA_CHECK(values.is_object(), kIo, "[lora] ", origin, " must be a JSON object");
  std::string prefix;
  for (const std::string its : kDiffusersPrefixes) {
    if (values.contains(its + "r")) {
      prefix = its;
    }
  }
  check_settings(values, prefix, origin);
  const json alpha = values.value(prefix + "lora_alpha", json());
  const json rslora = values.value(prefix + "use_rslora", json());
  KINORA_CHECK((alpha.is_null() || alpha.is_number()) && (rslora.is_null() || rslora.is_boolean()),
               kIo, "[lora] ", origin,
               ": lora_alpha must be a number and use_rslora true or false, got ", alpha.dump(),
               " and ", rslora.dump());
  return {.alpha = alpha.is_null() ? 0.0 : alpha.get<double>(), .rslora = rslora == json(true)};
}

AdapterSettings settings_of(const fs::path& file, const WeightsFile& weights) {
  if (const fs::path beside = file.parent_path() / kSettingsFile; fs::exists(beside)) {
    return parse_settings(io::read_text(beside, kMaxSettingsBytes), beside.string());
  }
  const std::string text = weights.metadata(kSettingsMetadata);
  return text.empty() ? AdapterSettings() : parse_settings(text, file.string());
}

std::string without_prefix(const std::string& key) {
  if (key.starts_with(kPeftPrefix)) {
    return key.substr(std::string_view(kPeftPrefix).size());
  }
  for (const std::string prefix : kDiffusersPrefixes) {
    if (key.starts_with(prefix)) {
      return key.substr(prefix.size());
    }
  }
  return key;
}

/// Rows of one of our weights that have a name in another naming.
struct Rows {
  std::string path;
  int64_t part = 0;
  int64_t parts = 1;
};

/// By name of the tensor there, and by our own.
std::map<std::string, Rows> rows_by_name(const nn::Naming& other, const LateTensors& weights) {
  std::map<std::string, Rows> rows;
  for (const auto& [path, tensor] : weights) {
    rows[path] = {.path = path};
  }
  for (const nn::OtherName& name : other) {
    const auto parts = static_cast<int64_t>(name.keys.size());
    for (int64_t part = 0; part < parts; ++part) {
      rows[name.keys[static_cast<size_t>(part)]] = {name.path, part, parts};
    }
  }
  return rows;
}

/// Linears and whole tensors by their own names; kIo for those that the model lacks.
class Placer {
 public:
  Placer(const nn::Naming& other, const LateTensors& weights, std::string origin)
      : rows_(rows_by_name(other, weights)), weights_(weights), origin_(std::move(origin)) {}

  [[nodiscard]] Adapter place(Adapter&& read) {
    Adapter placed;
    placed.origin = origin_;
    for (auto& [path, changes] : read.changes) {
      if (const Rows* rows = find(path)) {
        for (LowRankChange& change : changes) {
          add(placed, *rows, std::move(change));
        }
      }
    }
    for (auto& [name, tensor] : read.whole) {
      if (const Rows* rows = find(name)) {
        KINORA_CHECK(rows->parts == 1, kIo, "[lora] ", origin_, ": ", name,
                     " is trained whole, but is only a part of ", rows->path);
        const std::vector<int64_t>& shape = weights_.at(rows->path).shape;
        KINORA_CHECK(tensor.shape == shape, kIo, "[lora] ", origin_, ": ", name,
                     " takes the place of a weight of shape ", at::IntArrayRef(shape), ", got ",
                     at::IntArrayRef(tensor.shape),
                     ". Hint: the base must be the one that was trained from, with as many "
                     "classes; or kinora convert the run that trained it");
        placed.whole.emplace(rows->path, std::move(tensor));
      }
    }
    KINORA_CHECK(
        unmatched_.empty(), kIo, "[lora] ", origin_, " has ", unmatched_.size(),
        " keys that the model lacks: ", list_names(unmatched_, kNamesInMessage),
        ". Hint: the most like the first are ",
        list_names(near_names(unmatched_.front(), known(), kNamesInMessage), kNamesInMessage));
    KINORA_CHECK(!placed.changes.empty(), kIo, "[lora] ", origin_,
                 " holds no low-rank update, keys that end in lora_A.weight and lora_B.weight");
    return placed;
  }

 private:
  const Rows* find(const std::string& name) {
    const auto found = rows_.find(name);
    if (found == rows_.end() || !weights_.contains(found->second.path)) {
      unmatched_.push_back(name);
      return nullptr;
    }
    return &found->second;
  }

  void add(Adapter& placed, const Rows& rows, LowRankChange change) {
    const std::vector<int64_t>& shape = weights_.at(rows.path).shape;
    const bool fits = shape.size() == 2 && shape[0] % rows.parts == 0 &&
                      change.b.size(0) == shape[0] / rows.parts && change.a.size(1) == shape[1];
    KINORA_CHECK(fits, kIo, "[lora] ", origin_, ": ", change.name, " changes [", change.b.size(0),
                 ", ", change.a.size(1), "] weights, but ", rows.path, " is ",
                 at::IntArrayRef(shape),
                 rows.parts > 1 ? " for " + std::to_string(rows.parts) + " of these" : "");
    change.first_row = rows.part * (shape[0] / rows.parts);
    placed.changes[rows.path].push_back(std::move(change));
  }

  [[nodiscard]] std::vector<std::string> known() const {
    std::vector<std::string> names;
    for (const auto& [name, rows] : rows_) {
      names.push_back(name);
    }
    return names;
  }

  std::map<std::string, Rows> rows_;
  const LateTensors& weights_;
  std::string origin_;
  std::vector<std::string> unmatched_;
};

/// A change with its adapter's weight in the scale.
using Changes = std::vector<LowRankChange>;

/// sums [in] += the change of row `row`.
void add_row(const LowRankChange& change, int64_t row, std::vector<double>& sums) {
  const auto* a = change.a.const_data_ptr<float>();
  const auto* b = change.b.const_data_ptr<float>();
  const int64_t rank = change.a.size(0);
  const auto in = static_cast<int64_t>(sums.size());
  for (int64_t k = 0; k < rank; ++k) {
    const double factor = change.scale * static_cast<double>(b[row * rank + k]);
    const float* direction = a + k * in;
    for (int64_t j = 0; j < in; ++j) {
      sums[static_cast<size_t>(j)] += factor * static_cast<double>(direction[j]);
    }
  }
}

/// Rows `first`, ... of a weight, changed.
at::Tensor changed_rows(const at::Tensor& rows, int64_t first, const Changes& changes) {
  const at::Tensor base = rows.to(at::kFloat).contiguous();
  at::Tensor result = at::empty(base.sizes(), at::kFloat);
  const int64_t in = base.size(1);
  const auto* from = base.const_data_ptr<float>();
  auto* to = result.mutable_data_ptr<float>();
  at::parallel_for(0, base.size(0), 1, [&](int64_t begin, int64_t end) {
    std::vector<double> sums(static_cast<size_t>(in));
    for (int64_t i = begin; i < end; ++i) {
      std::copy(from + i * in, from + (i + 1) * in, sums.begin());
      double factor = 1.0;
      for (const LowRankChange& change : changes) {
        const int64_t row = first + i - change.first_row;
        if (row < 0 || row >= change.b.size(0)) {
          continue;
        }
        add_row(change, row, sums);
        if (change.magnitude.defined()) {
          double squares = 0.0;
          for (const double value : sums) {
            squares += value * value;
          }
          factor = static_cast<double>(change.magnitude.const_data_ptr<float>()[row]) /
                   std::sqrt(squares);
        }
      }
      for (int64_t j = 0; j < in; ++j) {
        to[i * in + j] = static_cast<float>(sums[static_cast<size_t>(j)] * factor);
      }
    }
  });
  return result;
}

bool overlap(const LowRankChange& a, const LowRankChange& b) {
  return a.first_row < b.first_row + b.b.size(0) && b.first_row < a.first_row + a.b.size(0);
}

void check_magnitudes(const std::string& path, const Changes& changes) {
  for (size_t i = 0; i < changes.size(); ++i) {
    for (size_t k = 0; k < changes.size(); ++k) {
      KINORA_CHECK(
          i == k || !changes[i].magnitude.defined() || !overlap(changes[i], changes[k]), kConfig,
          "[lora] ", path,
          " has a DoRA, which sets its norms, and another adapter. Hint: DoRA works alone");
    }
  }
}

}  // namespace

double AdapterSettings::scale(int64_t rank) const {
  const auto r = static_cast<double>(rank);
  if (alpha == 0.0) {
    return 1.0;
  }
  return alpha / (rslora ? std::sqrt(r) : r);
}

Adapter take_adapter(LateTensors& tensors, const AdapterSettings& settings,
                     const std::string& origin) {
  std::map<std::string, Found> by_linear;
  for (auto next = tensors.begin(); next != tensors.end();) {
    const auto current = next++;
    const std::string& name = current->first;
    const auto* found = std::find_if(std::begin(kParts), std::end(kParts),
                                     [&](const PartName& p) { return name.ends_with(p.end); });
    if (found == std::end(kParts)) {
      continue;
    }
    Found& linear = by_linear[name.substr(0, name.size() - std::string_view(found->end).size())];
    const at::Tensor values = current->second.read_all().to(at::kFloat).contiguous();
    switch (found->part) {
      case LowRankPart::kA:
        linear.a = values;
        break;
      case LowRankPart::kB:
        linear.b = values;
        break;
      case LowRankPart::kMagnitude:
        linear.magnitude = values;
        break;
      case LowRankPart::kAlpha:
        KINORA_CHECK(values.numel() == 1, kIo, "[lora] ", origin, ": ", name,
                     " must be one number, got shape ", values.sizes());
        linear.alpha = values.item<double>();
        break;
    }
    tensors.erase(current);
  }
  Adapter adapter;
  adapter.origin = origin;
  for (const auto& [name, found] : by_linear) {
    adapter.changes[name + kWeight].push_back(change_of(name, found, settings, origin));
  }
  return adapter;
}

Adapter read_adapter(const fs::path& path, const nn::Naming& other, const LateTensors& weights) {
  fs::path file = path;
  if (fs::is_directory(path)) {
    file = path / (fs::exists(path / kPeftFile) ? kPeftFile : kDiffusersFile);
  }
  KINORA_CHECK(fs::exists(file), kIo, "[lora] ", file, " does not exist");
  const auto opened = std::make_shared<WeightsFile>(WeightsFile::open(file));
  LateTensors tensors;
  for (const std::string& name : opened->names()) {
    KINORA_CHECK(tensors.emplace(without_prefix(name), late_tensor(opened->read(name))).second, kIo,
                 "[lora] ", file, " has ", name, " twice, with and without its prefix");
  }
  Adapter adapter = take_adapter(tensors, settings_of(file, *opened), path.string());
  adapter.whole = std::move(tensors);
  return Placer(other, weights, path.string()).place(std::move(adapter));
}

void merge(LateTensors& weights, const std::vector<WeightedAdapter>& adapters) {
  std::map<std::string, Changes> changes;
  std::set<std::string> replaced;
  for (const WeightedAdapter& weighted : adapters) {
    for (const auto& [path, tensor] : weighted.adapter.whole) {
      KINORA_CHECK(weighted.weight == 1.0, kConfig, "[lora] ", weighted.adapter.origin,
                   " has weights that were trained whole, such as ", path,
                   ", and those have no other weight than 1, got ", weighted.weight);
      KINORA_CHECK(replaced.insert(path).second, kConfig, "[lora] two adapters set ", path);
      weights.at(path) = tensor;
    }
    for (const auto& [path, own] : weighted.adapter.changes) {
      for (LowRankChange change : own) {
        change.scale *= weighted.weight;
        changes[path].push_back(std::move(change));
      }
    }
  }
  for (auto& [path, own] : changes) {
    check_magnitudes(path, own);
    LateTensor& weight = weights.at(path);
    weight.type = at::kFloat;
    weight.read = [read = std::move(weight.read), own = std::move(own)](int64_t begin,
                                                                        int64_t end) {
      return changed_rows(read(begin, end), begin, own);
    };
  }
}

AdapterChoice parse_adapter_choice(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) {
    return {.path = text};
  }
  double weight = 0.0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, weight);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return {.path = text};  // the colon is a part of the name
  }
  KINORA_CHECK(std::isfinite(weight), kConfig, "[lora] the weight of ", text.substr(0, colon),
               " must be finite, got ", text.substr(colon + 1));
  return {.path = text.substr(0, colon), .weight = weight};
}

namespace {

/// An adapter under the names of another naming: each part of a weight has a change of its own.
Adapter renamed(const Adapter& adapter, const nn::Naming& other) {
  if (other.empty()) {
    return adapter;
  }
  std::map<std::string, const nn::OtherName*> names;
  for (const nn::OtherName& name : other) {
    names[name.path] = &name;
  }
  const auto keys_of = [&](const std::string& path) -> const std::vector<std::string>& {
    const auto found = names.find(path);
    KINORA_CHECK(found != names.end(), kConfig, "[lora] ", path, " has no name there");
    return found->second->keys;
  };
  Adapter result;
  result.origin = adapter.origin;
  for (const auto& [path, changes] : adapter.changes) {
    const std::vector<std::string>& keys = keys_of(path);
    for (const LowRankChange& change : changes) {
      const int64_t rows = change.b.size(0) / static_cast<int64_t>(keys.size());
      for (size_t part = 0; part < keys.size(); ++part) {
        LowRankChange own = change;
        const int64_t first = static_cast<int64_t>(part) * rows;
        own.b = change.b.narrow(0, first, rows).contiguous();
        own.magnitude = change.magnitude.defined()
                            ? change.magnitude.narrow(0, first, rows).contiguous()
                            : change.magnitude;
        result.changes[keys[part]].push_back(std::move(own));
      }
    }
  }
  LateTensors whole = adapter.whole;
  for (const auto& [path, tensor] : adapter.whole) {
    (void)keys_of(path);
  }
  result.whole = take_renamed(whole, other);
  return result;
}

}  // namespace

void write_adapter(const fs::path& folder, const Adapter& adapter, const AdapterSettings& settings,
                   const nn::Naming& other) {
  const Adapter named = renamed(adapter, other);
  LateTensors tensors;
  std::vector<std::string> targets;
  std::set<std::string> whole;
  int64_t rank = 0;
  bool dora = false;
  for (const auto& [path, changes] : named.changes) {
    const std::string linear = path.substr(0, path.size() - std::string_view(kWeight).size());
    const LowRankChange& change = changes.front();
    tensors[kPeftPrefix + linear + ".lora_A.weight"] = late_tensor(change.a);
    tensors[kPeftPrefix + linear + ".lora_B.weight"] = late_tensor(change.b);
    if (change.magnitude.defined()) {
      tensors[kPeftPrefix + linear + ".lora_magnitude_vector"] = late_tensor(change.magnitude);
      dora = true;
    }
    targets.push_back(linear);
    rank = change.a.size(0);
  }
  for (const auto& [path, tensor] : named.whole) {
    tensors[kPeftPrefix + path] = tensor;
    whole.insert(path.substr(0, path.rfind('.')));  // the module
  }
  const json config = {{"peft_type", "LORA"},
                       {"task_type", nullptr},
                       {"base_model_name_or_path", nullptr},
                       {"inference_mode", true},
                       {"r", rank},
                       {"lora_alpha", settings.alpha},
                       {"lora_dropout", 0.0},
                       {"use_rslora", settings.rslora},
                       {"use_dora", dora},
                       {"bias", "none"},
                       {"fan_in_fan_out", false},
                       {"target_modules", targets},
                       {"modules_to_save", whole.empty() ? json() : json(whole)}};
  fs::create_directories(folder);
  write_weights(folder / kPeftFile, tensors, {.type = at::kFloat, .metadata = {{"format", "pt"}}});
  io::write_file_atomic(folder / kSettingsFile, config.dump(2) + "\n");
}

}  // namespace kinora::checkpoint
