#include "kinora/checkpoint/low_rank_file.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cctype>
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
/// Of diffusers' pipelines, by the part that is changed.
constexpr const char* kDiffusersPrefixes[] = {"transformer.", "unet."};
constexpr const char* kKohyaPrefix = "lora_unet_";
/// Of keys for text encoders, of diffusers and of kohya.
constexpr const char* kTextPrefixes[] = {"text_encoder.", "text_encoder_2.", "lora_te_",
                                         "lora_te1_", "lora_te2_"};
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
                               {".lora_down.weight", LowRankPart::kA},
                               {".lora_up.weight", LowRankPart::kB},
                               {".lora.down.weight", LowRankPart::kA},
                               {".lora.up.weight", LowRankPart::kB},
                               {".lora_linear_layer.down.weight", LowRankPart::kA},
                               {".lora_linear_layer.up.weight", LowRankPart::kB},
                               {".lora_magnitude_vector", LowRankPart::kMagnitude},
                               {".lora_magnitude_vector.weight", LowRankPart::kMagnitude},
                               {".alpha", LowRankPart::kAlpha}};

/// The tensors of a linear's update, as they are found.
struct Found {
  at::Tensor a;
  at::Tensor b;
  at::Tensor magnitude;
  std::optional<double> alpha;
  at::ScalarType stored = at::kFloat;
};

/// A factor as a matrix, whatever dims of a convolution it has.
at::Tensor matrix(const at::Tensor& factor) {
  return factor.dim() > 2 ? factor.flatten(1) : factor;
}

/// alpha of a linear.
double alpha_of(const AdapterSettings& settings, const std::string& linear) {
  for (const auto& [name, alpha] : settings.alphas) {
    if (linear == name || linear.ends_with("." + name)) {
      return alpha;
    }
  }
  return settings.alpha;
}

LowRankChange change_of(const std::string& name, const Found& found,
                        const AdapterSettings& settings, const std::string& origin) {
  KINORA_CHECK(found.a.defined() && found.b.defined(), kIo, "[lora] ", origin, ": ", name,
               " has no lora_", found.a.defined() ? "B" : "A");
  const at::Tensor a = matrix(found.a);
  const at::Tensor b = matrix(found.b);
  KINORA_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(0) == b.size(1) && a.size(0) > 0, kIo,
               "[lora] ", origin, ": lora_A and lora_B of ", name,
               " must be [rank, in] and [out, rank], got ", found.a.sizes(), " and ",
               found.b.sizes());
  KINORA_CHECK(!found.magnitude.defined() || found.magnitude.numel() == b.size(0), kIo, "[lora] ",
               origin, ": lora_magnitude_vector of ", name, " must have ", b.size(0),
               " elements, got ", found.magnitude.sizes());
  const int64_t rank = a.size(0);
  AdapterSettings own = settings;
  own.alpha = found.alpha.value_or(alpha_of(settings, name));
  const double scale = own.scale(rank);
  const bool is_said = own.alpha != 0.0 && !own.rslora;
  return {.name = name,
          .first_row = 0,
          .a = a,
          .b = b,
          .magnitude = found.magnitude.defined() ? found.magnitude.flatten() : found.magnitude,
          .scale = scale,
          .alpha = is_said ? own.alpha : scale * static_cast<double>(rank),
          .stored = found.stored};
}

/// Keys that a settings object may not have with another value: what we do not compute.
void check_settings(const json& values, const std::string& prefix, const std::string& origin) {
  const auto get = [&](const char* key) { return values.value(prefix + key, json()); };
  KINORA_CHECK(get("fan_in_fan_out") != json(true), kIo, "[lora] ", origin,
               ": fan_in_fan_out must be false");
  const json bias = get("bias");
  KINORA_CHECK(bias.is_null() || bias == "none", kIo, "[lora] ", origin,
               ": bias must be none, got ", bias.dump());
}

/// alpha_pattern: a name of a linear, or how it ends after a dot, as a regular expression; in files
/// it is a name with ^ before it at most.
std::map<std::string, double> parse_alphas(const json& pattern, const std::string& origin) {
  std::map<std::string, double> alphas;
  KINORA_CHECK(pattern.is_null() || pattern.is_object(), kIo, "[lora] ", origin,
               ": alpha_pattern must be an object, got ", pattern.dump());
  for (const auto& [key, alpha] : pattern.items()) {
    const std::string name = key.starts_with('^') ? key.substr(1) : key;
    const bool is_name = std::ranges::all_of(name, [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
    });
    KINORA_CHECK(is_name && alpha.is_number(), kIo, "[lora] ", origin,
                 ": alpha_pattern must give numbers to names of linears, got ", io::in_quotes(key),
                 " ", alpha.dump());
    alphas[name] = alpha.get<double>();
  }
  return alphas;
}

AdapterSettings parse_settings(const std::string& text, const std::string& origin) {
  const json values = json::parse(text, nullptr, /*allow_exceptions=*/false);
  KINORA_CHECK(values.is_object(), kIo, "[lora] ", origin, " must be a JSON object");
  std::string prefix;
  for (const std::string part : kDiffusersPrefixes) {
    prefix = values.contains(part + "r") ? part : prefix;
  }
  check_settings(values, prefix, origin);
  const json alpha = values.value(prefix + "lora_alpha", json());
  const json rslora = values.value(prefix + "use_rslora", json());
  KINORA_CHECK((alpha.is_null() || alpha.is_number()) && (rslora.is_null() || rslora.is_boolean()),
               kIo, "[lora] ", origin,
               ": lora_alpha must be a number and use_rslora true or false, got ", alpha.dump(),
               " and ", rslora.dump());
  return {.alpha = alpha.is_null() ? 0.0 : alpha.get<double>(),
          .rslora = rslora == json(true),
          .alphas = parse_alphas(values.value(prefix + "alpha_pattern", json()), origin)};
}

AdapterSettings settings_of(const fs::path& file, const WeightsFile& weights) {
  if (const fs::path beside = file.parent_path() / kSettingsFile; fs::exists(beside)) {
    return parse_settings(io::read_text(beside, kMaxSettingsBytes), beside.string());
  }
  const std::string text = weights.metadata(kSettingsMetadata);
  return text.empty() ? AdapterSettings() : parse_settings(text, file.string());
}

/// A key as PEFT has it behind its prefix. Until 2023 diffusers had the factors of attention in a
/// processor: attn1.processor.to_out_lora.down.weight is attn1.to_out.0.lora.down.weight.
std::string plain_key(const std::string& key) {
  std::string plain = key;
  for (const std::string prefix : {kPeftPrefix, kDiffusersPrefixes[0], kDiffusersPrefixes[1]}) {
    if (key.starts_with(prefix)) {
      plain = key.substr(prefix.size());
      break;
    }
  }
  constexpr std::string_view kProcessor = ".processor.to_";
  constexpr std::string_view kFactor = "_lora.";
  const size_t processor = plain.find(kProcessor);
  const size_t factor = plain.find(kFactor, std::min(processor, plain.size()));
  if (processor == std::string::npos || factor == std::string::npos) {
    return plain;
  }
  const size_t begin = processor + std::string_view(".processor").size();
  const std::string linear = plain.substr(begin, factor - begin);
  return plain.substr(0, processor) + linear + (linear == ".to_out" ? ".0" : "") + ".lora." +
         plain.substr(factor + kFactor.size());
}

bool is_of_text_encoder(const std::string& key) {
  return std::ranges::any_of(kTextPrefixes,
                             [&key](const char* prefix) { return key.starts_with(prefix); });
}

/// What kohya calls a linear, from its weight's name.
std::string kohya_name(const std::string& weight) {
  std::string name = weight.substr(0, weight.size() - std::string_view(kWeight).size());
  std::ranges::replace(name, '.', '_');
  return kKohyaPrefix + name;
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
  std::map<std::string, Rows> kohya;
  for (const auto& [name, own] : rows) {
    if (name.ends_with(kWeight)) {
      kohya.emplace(kohya_name(name) + kWeight, own);
    }
  }
  rows.merge(kohya);
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
    const int64_t in =
        shape.size() < 2 ? 0 : weights_.at(rows.path).numel() / std::max<int64_t>(shape[0], 1);
    const bool fits = shape.size() >= 2 && shape[0] % rows.parts == 0 &&
                      change.b.size(0) == shape[0] / rows.parts && change.a.size(1) == in;
    KINORA_CHECK(fits, kIo, "[lora] ", origin_, ": ", change.name, " changes [", change.b.size(0),
                 ", ", change.a.size(1), "] weights, but ", rows.path, " is ",
                 at::IntArrayRef(shape),
                 rows.parts > 1 ? " for " + std::to_string(rows.parts) + " of these" : "");
    change.kernel.assign(shape.begin() + 2, shape.end());
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
  const at::Tensor base = matrix(rows.to(at::kFloat).contiguous());
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
  return result.view(rows.sizes());
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
        linear.stored = current->second.type;
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
  const bool has_text_encoder = std::ranges::any_of(
      weights, [](const auto& named) { return named.first.starts_with(kTextPrefixes[0]); });
  LateTensors tensors;
  std::vector<std::string> left_out;
  for (const std::string& name : opened->names()) {
    if (!has_text_encoder && is_of_text_encoder(name)) {
      left_out.push_back(name);
      continue;
    }
    KINORA_CHECK(tensors.emplace(plain_key(name), late_tensor(opened->read(name))).second, kIo,
                 "[lora] ", file, " has ", name, " twice, with and without its prefix");
  }
  Adapter adapter = take_adapter(tensors, settings_of(file, *opened), path.string());
  adapter.whole = std::move(tensors);
  Adapter placed = Placer(other, weights, path.string()).place(std::move(adapter));
  placed.left_out = std::move(left_out);
  return placed;
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
  const auto name_of = [&](const std::string& path) -> const nn::OtherName& {
    const auto found = names.find(path);
    KINORA_CHECK(found != names.end(), kConfig, "[lora] ", path, " has no name there");
    return *found->second;
  };
  Adapter result;
  result.origin = adapter.origin;
  for (const auto& [path, changes] : adapter.changes) {
    const nn::OtherName& name = name_of(path);
    const std::vector<std::string>& keys = name.keys;
    for (const LowRankChange& change : changes) {
      const int64_t rows = change.b.size(0) / static_cast<int64_t>(keys.size());
      for (size_t part = 0; part < keys.size(); ++part) {
        LowRankChange own = change;
        if (!name.shape.empty()) {
          own.kernel.assign(name.shape.begin() + 2, name.shape.end());
        }
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
    (void)name_of(path);
  }
  result.whole = take_renamed(whole, other);
  return result;
}

/// The factors of an update, with the dims that files have.
struct Factors {
  LateTensor a;
  LateTensor b;
};

Factors factors_of(const LowRankChange& change, std::optional<at::ScalarType> type) {
  std::vector<int64_t> a = change.a.sizes().vec();
  std::vector<int64_t> b = change.b.sizes().vec();
  int64_t places = 1;
  for (const int64_t size : change.kernel) {
    places *= size;
    b.push_back(1);
  }
  a[1] /= places;
  a.insert(a.end(), change.kernel.begin(), change.kernel.end());
  const at::ScalarType stored = type.value_or(change.stored);
  return {late_tensor(change.a.reshape(a).to(stored)), late_tensor(change.b.reshape(b).to(stored))};
}

std::string linear_of(const std::string& weight) {
  return weight.substr(0, weight.size() - std::string_view(kWeight).size());
}

/// The only change that the weight at a path has.
const LowRankChange& only_change(const std::string& path, const Changes& changes) {
  KINORA_CHECK(changes.size() == 1, kConfig, "[lora] ", path, " is changed in ", changes.size(),
               " parts, which have no names of their own there. Hint: --adapter diffusers");
  return changes.front();
}

}  // namespace

void write_adapter(const fs::path& folder, const Adapter& adapter, const AdapterSettings& settings,
                   const nn::Naming& other, std::optional<at::ScalarType> type) {
  const Adapter named = renamed(adapter, other);
  KINORA_CHECK(!named.changes.empty(), kConfig, "[lora] ", adapter.origin, " has no update");
  const LowRankChange& usual = named.changes.begin()->second.front();
  LateTensors tensors;
  std::vector<std::string> targets;
  std::set<std::string> whole;
  json ranks = json::object();
  json alphas = json::object();
  bool dora = false;
  for (const auto& [path, changes] : named.changes) {
    const std::string linear = linear_of(path);
    const LowRankChange& change = only_change(path, changes);
    const Factors factors = factors_of(change, type);
    tensors[kPeftPrefix + linear + ".lora_A.weight"] = factors.a;
    tensors[kPeftPrefix + linear + ".lora_B.weight"] = factors.b;
    if (change.magnitude.defined()) {
      tensors[kPeftPrefix + linear + ".lora_magnitude_vector"] = late_tensor(change.magnitude);
      dora = true;
    }
    if (change.a.size(0) != usual.a.size(0)) {
      ranks[linear] = change.a.size(0);
    }
    if (!settings.rslora && change.alpha != usual.alpha) {
      alphas[linear] = change.alpha;
    }
    targets.push_back(linear);
  }
  for (const auto& [path, tensor] : named.whole) {
    tensors[kPeftPrefix + path] = tensor;
    whole.insert(path.substr(0, path.rfind('.')));  // the module
  }
  const json config = {{"peft_type", "LORA"},
                       {"task_type", nullptr},
                       {"base_model_name_or_path", nullptr},
                       {"inference_mode", true},
                       {"r", usual.a.size(0)},
                       {"lora_alpha", settings.rslora ? settings.alpha : usual.alpha},
                       {"rank_pattern", ranks},
                       {"alpha_pattern", alphas},
                       {"lora_dropout", 0.0},
                       {"use_rslora", settings.rslora},
                       {"use_dora", dora},
                       {"bias", "none"},
                       {"fan_in_fan_out", false},
                       {"target_modules", targets},
                       {"modules_to_save", whole.empty() ? json() : json(whole)}};
  fs::create_directories(folder);
  write_weights(folder / kPeftFile, tensors, {.metadata = {{"format", "pt"}}});
  io::write_file_atomic(folder / kSettingsFile, config.dump(2) + "\n");
}

void write_kohya_adapter(const fs::path& file, const Adapter& adapter, const nn::Naming& other,
                         std::optional<at::ScalarType> type) {
  const Adapter named = renamed(adapter, other);
  KINORA_CHECK(named.whole.empty(), kConfig, "[lora] ", adapter.origin,
               " has weights that were trained whole, such as ", named.whole.begin()->first,
               ", which kohya's files have no place for. Hint: --adapter diffusers");
  LateTensors tensors;
  for (const auto& [path, changes] : named.changes) {
    const LowRankChange& change = only_change(path, changes);
    KINORA_CHECK(!change.magnitude.defined(), kConfig, "[lora] ", path,
                 " has a DoRA, which Kinora does not write for kohya. Hint: --adapter diffusers");
    const std::string name = kohya_name(path);
    const Factors factors = factors_of(change, type);
    tensors[name + ".lora_down.weight"] = factors.a;
    tensors[name + ".lora_up.weight"] = factors.b;
    tensors[name + ".alpha"] = late_tensor(at::scalar_tensor(change.alpha, factors.a.type));
  }
  write_weights(file, tensors, {.metadata = {{"format", "pt"}}});
}

}  // namespace kinora::checkpoint
