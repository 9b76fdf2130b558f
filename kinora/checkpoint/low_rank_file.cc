#include "kinora/checkpoint/low_rank_file.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "kinora/checkpoint/head_order.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/checkpoint/weights_output.h"
#include "kinora/core/error.h"
#include "kinora/core/glob.h"
#include "kinora/core/regex.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"

namespace kinora::checkpoint {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;  // patterns count in their order

constexpr const char* kPeftFile = "adapter_model.safetensors";
constexpr const char* kDiffusersFile = "pytorch_lora_weights.safetensors";
constexpr const char* kSettingsFile = "adapter_config.json";
constexpr const char* kSettingsMetadata = "lora_adapter_metadata";
constexpr const char* kPeftPrefix = "base_model.model.";
/// Of diffusers' pipelines, by the part that is changed.
constexpr const char* kDiffusersPrefixes[] = {"transformer.", "unet."};
constexpr const char* kKohyaPrefix = "lora_unet_";

/// What an adapter changes: a model, or a text encoder of its pipeline. In front of names: our
/// paths, which are diffusers' keys; kohya's, the first where there is one encoder.
struct AdapterPart {
  std::string path;
  std::vector<std::string> kohya;
};
const AdapterPart kAdapterParts[] = {{"", {kKohyaPrefix}},
                                     {"text_encoder.", {"lora_te_", "lora_te1_"}},
                                     {"text_encoder_2.", {"lora_te2_"}},
                                     {"text_encoder_3.", {"lora_te3_"}}};
constexpr size_t kNumAdapterParts = std::size(kAdapterParts);
constexpr size_t kModel = 0;
/// Which transformers left out of names of CLIPs in 2025, and old files have.
constexpr const char* kTower = "text_model.";
constexpr const char* kWeight = ".weight";
constexpr int64_t kMaxSettingsBytes = 1 << 20;
constexpr size_t kNamesInMessage = 4;

/// What a key of an adapter's file is of a layer: a factor by PEFT's name, or another number.
constexpr const char* kMagnitude = "lora_magnitude_vector";
constexpr const char* kAlpha = "alpha";
struct PartName {
  const char* end;
  const char* part;
};
constexpr PartName kFactors[] = {{".lora_A.weight", "lora_A"},
                                 {".lora_B.weight", "lora_B"},
                                 {".lora_A.default.weight", "lora_A"},
                                 {".lora_B.default.weight", "lora_B"},
                                 {".lora_down.weight", "lora_A"},
                                 {".lora_up.weight", "lora_B"},
                                 {".lora.down.weight", "lora_A"},
                                 {".lora.up.weight", "lora_B"},
                                 {".lora_linear_layer.down.weight", "lora_A"},
                                 {".lora_linear_layer.up.weight", "lora_B"},
                                 {".lora_magnitude_vector", kMagnitude},
                                 {".lora_magnitude_vector.weight", kMagnitude},
                                 {".hada_w1_a", "hada_w1_a"},
                                 {".hada_w1_b", "hada_w1_b"},
                                 {".hada_w2_a", "hada_w2_a"},
                                 {".hada_w2_b", "hada_w2_b"},
                                 {".lokr_w1", "lokr_w1"},
                                 {".lokr_w1_a", "lokr_w1_a"},
                                 {".lokr_w1_b", "lokr_w1_b"},
                                 {".lokr_w2", "lokr_w2"},
                                 {".lokr_w2_a", "lokr_w2_a"},
                                 {".lokr_w2_b", "lokr_w2_b"},
                                 {".alpha", kAlpha}};
/// Of LoHa and LoKr of convolutions in Tucker's form, which is not computed.
constexpr const char* kTuckerParts[] = {".hada_t1", ".hada_t2", ".lokr_t2"};

/// The tensors of a layer's update by part, as they are found.
using Found = std::map<std::string, at::Tensor>;

/// Of a LoKr of two whole factors where nothing says a rank, as in LyCORIS' files: its scale is 1,
/// whatever alpha is. The rank is one by which PEFT has whole factors, alpha itself where it can.
void set_rank_of_whole(LowRankChange& change) {
  const at::Tensor& inner = change.factors.at("lokr_w2");
  const int64_t least = (std::max(inner.size(0), inner.size(1)) + 1) / 2;
  const auto alpha = static_cast<int64_t>(change.alpha);
  change.rank = static_cast<double>(alpha) == change.alpha && alpha >= least ? alpha : least;
  change.alpha = static_cast<double>(change.rank);
}

LowRankChange change_of(const std::string& name, Found found, const AdapterSettings& settings,
                        const std::string& origin) {
  const auto magnitude = found.extract(kMagnitude);
  const auto alpha = found.extract(kAlpha);
  LowRankChange change = make_change(name, std::move(found), origin);
  if (!magnitude.empty()) {
    KINORA_CHECK(change.kind == nn::UpdateKind::kLora, kIo, "[lora] ", origin, ": ", name,
                 " has a lora_magnitude_vector, which only LoRA has");
    KINORA_CHECK(magnitude.mapped().numel() == change.num_rows(), kIo, "[lora] ", origin,
                 ": lora_magnitude_vector of ", name, " must have ", change.num_rows(),
                 " elements, got ", magnitude.mapped().sizes());
    change.magnitude = magnitude.mapped().flatten();
  }
  KINORA_CHECK(alpha.empty() || alpha.mapped().numel() == 1, kIo, "[lora] ", origin, ": ", name,
               ".alpha must be one number, got shape ", alpha.mapped().sizes());
  change.alpha = alpha.empty() ? settings.alpha_of(name) : alpha.mapped().item<double>();
  change.rank = change.rank > 0 ? change.rank : settings.rank_of(name);
  if (change.rank == 0) {
    set_rank_of_whole(change);
  }
  change.scale = update_scale(change.alpha, change.rank, settings.rslora);
  return change;
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

/// alpha_pattern or rank_pattern, in its order.
template <typename T>
std::vector<std::pair<std::string, T>> pattern_of(const json& values, const std::string& key,
                                                  const std::string& origin) {
  const json pattern = values.value(key, json());
  std::vector<std::pair<std::string, T>> pairs;
  const auto check = [&](bool holds) {
    KINORA_CHECK(holds, kIo, "[lora] ", origin, ": ", key,
                 " must have numbers by names of layers, got ", pattern.dump());
  };
  check(pattern.is_null() || pattern.is_object());
  for (const auto& [name, value] : pattern.items()) {
    check(value.is_number());
    pairs.emplace_back(name, value.template get<T>());
  }
  return pairs;
}

/// prefixes: what stands before the keys of a part, if anything does.
AdapterSettings parse_settings(const std::string& text, const std::string& origin,
                               const std::vector<std::string>& prefixes) {
  const json values = json::parse(text, nullptr, /*allow_exceptions=*/false);
  KINORA_CHECK(values.is_object(), kIo, "[lora] ", origin, " must be a JSON object");
  std::string prefix;
  for (const std::string& its : prefixes) {
    if (values.contains(its + "r")) {
      prefix = its;
    }
  }
  check_settings(values, prefix, origin);
  const auto get = [&](const char* key) { return values.value(prefix + key, json()); };
  const json alpha = get("lora_alpha").is_null() ? get("alpha") : get("lora_alpha");
  const json rank = get("r");
  const json rslora = get("use_rslora");
  KINORA_CHECK((alpha.is_null() || alpha.is_number()) && (rank.is_null() || rank.is_number()) &&
                   (rslora.is_null() || rslora.is_boolean()),
               kIo, "[lora] ", origin,
               ": lora_alpha and r must be numbers and use_rslora true or false, got ",
               alpha.dump(), ", ", rank.dump(), " and ", rslora.dump());
  return {.alpha = alpha.is_null() ? 0.0 : alpha.get<double>(),
          .rank = rank.is_null() ? 0 : rank.get<int64_t>(),
          .rslora = rslora == json(true),
          .alphas = pattern_of<double>(values, prefix + "alpha_pattern", origin),
          .ranks = pattern_of<int64_t>(values, prefix + "rank_pattern", origin)};
}

AdapterSettings settings_of(const fs::path& file, const WeightsFile& weights, size_t part) {
  const std::vector<std::string> prefixes =
      part == kModel
          ? std::vector<std::string>(std::begin(kDiffusersPrefixes), std::end(kDiffusersPrefixes))
          : std::vector{kAdapterParts[part].path};
  if (const fs::path beside = file.parent_path() / kSettingsFile; fs::exists(beside)) {
    return parse_settings(io::read_text(beside, kMaxSettingsBytes), beside.string(), prefixes);
  }
  const std::string text = weights.metadata(kSettingsMetadata);
  return text.empty() ? AdapterSettings() : parse_settings(text, file.string(), prefixes);
}

/// A CLIP's key with what newer ones leave out; of PEFT's adapters of a CLIP alone also with the
/// encoder's name.
std::string text_key(const std::string& key) {
  constexpr std::string_view kBlocks = "encoder.layers.";
  if (key.starts_with(kTower) || key.starts_with(kBlocks)) {
    return kAdapterParts[1].path + (key.starts_with(kTower) ? "" : kTower) + key;
  }
  for (const AdapterPart& part : std::span(kAdapterParts).subspan(1)) {
    if (key.starts_with(part.path + std::string(kBlocks))) {
      return part.path + kTower + key.substr(part.path.size());
    }
  }
  return key;
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
    return text_key(plain);
  }
  const size_t begin = processor + std::string_view(".processor").size();
  const std::string linear = plain.substr(begin, factor - begin);
  return plain.substr(0, processor) + linear + (linear == ".to_out" ? ".0" : "") + ".lora." +
         plain.substr(factor + kFactor.size());
}

/// Of a plain key, or of a path.
size_t part_of(const std::string& key) {
  for (size_t part = kModel + 1; part < kNumAdapterParts; ++part) {
    if (key.starts_with(kAdapterParts[part].path) ||
        std::ranges::any_of(kAdapterParts[part].kohya, [&key](const std::string& prefix) {
          return key.starts_with(prefix);
        })) {
      return part;
    }
  }
  return kModel;
}

/// What kohya calls a linear, from its weight's name; the last of these where there are two text
/// encoders.
std::vector<std::string> kohya_names(const std::string& weight) {
  const AdapterPart& part = kAdapterParts[part_of(weight)];
  std::string name = weight.substr(
      part.path.size(), weight.size() - part.path.size() - std::string_view(kWeight).size());
  std::ranges::replace(name, '.', '_');
  std::vector<std::string> names;
  for (const std::string& prefix : part.kohya) {
    names.push_back(prefix + name);
  }
  return names;
}

/// Rows of one of our weights that have a name in another naming.
struct Rows {
  std::string path;
  nn::OtherName name{};  ///< there; without keys: its own
  size_t part = 0;       ///< of its keys

  [[nodiscard]] nn::RowRange of(int64_t rows) const {
    return name.keys.empty() ? nn::RowRange{0, rows} : nn::rows_of_key(name, part, rows);
  }
};

/// By name of the tensor there, and by our own.
std::map<std::string, Rows> rows_by_name(const nn::Naming& other, const LateTensors& weights) {
  std::map<std::string, Rows> rows;
  for (const auto& [path, tensor] : weights) {
    rows[path] = {.path = path};
  }
  for (const nn::OtherName& name : other) {
    for (size_t part = 0; part < name.keys.size(); ++part) {
      rows[name.keys[part]] = {.path = name.path, .name = name, .part = part};
    }
  }
  std::map<std::string, Rows> kohya;
  for (const auto& [name, own] : rows) {
    if (!name.ends_with(kWeight)) {
      continue;
    }
    for (const std::string& its : kohya_names(name)) {
      kohya.emplace(its + kWeight, own);
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
    Adapter placed{.origin = origin_, .rslora = read.rslora, .factor = read.factor};
    for (auto& [path, changes] : read.changes) {
      if (const Rows* rows = find(path)) {
        for (LowRankChange& change : changes) {
          add(placed, *rows, std::move(change));
        }
      }
    }
    for (auto& [name, tensor] : read.whole) {
      if (const Rows* rows = find(name)) {
        KINORA_CHECK(rows->name.keys.size() <= 1 && !rows->name.moves_rows(0), kIo, "[lora] ",
                     origin_, ": ", name, " is trained whole, but is only a part of ", rows->path,
                     ", or has its rows in another order");
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
    const int64_t elements =
        shape.size() < 2 ? 0 : c10::multiply_integers(shape.begin() + 1, shape.end());
    const nn::RowRange range = rows.of(shape[0]);
    const size_t parts = rows.name.keys.size();
    const bool fits =
        elements > 0 && change.num_rows() == range.count && change.row_elements() == elements;
    KINORA_CHECK(fits, kIo, "[lora] ", origin_, ": ", change.name, " changes [", change.num_rows(),
                 ", ", change.row_elements(), "] weights, but ", rows.path, " is ",
                 at::IntArrayRef(shape),
                 parts > 1 ? " for " + std::to_string(parts) + " of these" : "");
    KINORA_CHECK(!rows.name.swaps_halves && rows.name.packed_head == 0, kIo, "[lora] ", origin_,
                 ": ", change.name, " changes ", rows.path,
                 ", whose rows lie in another order there, which Kinora lacks");
    if (rows.name.moves_rows(rows.part)) {
      change = with_rows(std::move(change), [&rows](const at::Tensor& theirs) {
        return interleaved(theirs, rows.name.split_head);
      });
    }
    change.first_row = range.begin;
    change.places = elements / shape[1];
    // Factors of a convolution of one place are taken for a linear, and the other way round.
    placed.changes[rows.path].push_back(with_dims(std::move(change), shape.size()));
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

/// Whether a pattern, a regular expression, is all of `name` or its end behind a dot, as PEFT has
/// it. In files it mostly is a name, with ^ before it at most, of which a dot stands for any
/// character.
bool fits(const std::string& pattern, const std::string& name) {
  const std::string_view plain = std::string_view(pattern).substr(pattern.starts_with('^') ? 1 : 0);
  const bool is_name = std::ranges::all_of(plain, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
  });
  if (!is_name) {
    std::vector<TextRange> found;
    Regex("^(?:.*\\.)?(?:" + pattern + ")$", Regex::Dialect::kPython, "[lora]").find(name, found);
    return !found.empty();
  }
  if (plain.size() > name.size()) {
    return false;
  }
  const size_t before = name.size() - plain.size();
  return (before == 0 || name[before - 1] == '.') &&
         std::ranges::equal(plain, std::string_view(name).substr(before),
                            [](char wanted, char c) { return wanted == '.' || wanted == c; });
}

/// The value of the first pattern that fits.
template <typename T>
T value_of(const std::vector<std::pair<std::string, T>>& patterns, const std::string& name,
           T otherwise) {
  for (const auto& [pattern, value] : patterns) {
    if (fits(pattern, name)) {
      return value;
    }
  }
  return otherwise;
}

}  // namespace

double AdapterSettings::alpha_of(const std::string& name) const {
  return value_of(alphas, name, alpha);
}

int64_t AdapterSettings::rank_of(const std::string& name) const {
  return value_of(ranks, name, rank);
}

double update_scale(double alpha, int64_t rank, bool rslora) {
  if (alpha == 0.0 || rank == 0) {
    return 1.0;
  }
  const auto r = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(r) : r);
}

Adapter take_adapter(LateTensors& tensors, const AdapterSettings& settings,
                     const std::string& origin) {
  std::map<std::string, Found> by_layer;
  std::map<std::string, at::ScalarType> stored;
  for (auto next = tensors.begin(); next != tensors.end();) {
    const auto current = next++;
    const std::string& name = current->first;
    for (const char* part : kTuckerParts) {
      KINORA_CHECK(!name.ends_with(part), kIo, "[lora] ", origin, ": ", name,
                   " is of a Tucker decomposition (use_effective_conv2d, use_tucker), which is not "
                   "supported");
    }
    const auto* found = std::find_if(std::begin(kFactors), std::end(kFactors),
                                     [&](const PartName& p) { return name.ends_with(p.end); });
    if (found == std::end(kFactors)) {
      continue;
    }
    const std::string layer = name.substr(0, name.size() - std::string_view(found->end).size());
    by_layer[layer][found->part] = current->second.read_all().to(at::kFloat).contiguous();
    if (found->part != std::string_view(kAlpha)) {
      stored[layer] = current->second.type;
    }
    tensors.erase(current);
  }
  Adapter adapter{.origin = origin, .rslora = settings.rslora, .factor = settings.factor};
  for (auto& [name, found] : by_layer) {
    LowRankChange change = change_of(name, std::move(found), settings, origin);
    change.stored = stored[name];
    adapter.changes[name + kWeight].push_back(std::move(change));
  }
  return adapter;
}

namespace {

/// Adds what was placed of another part.
void add_part(Adapter& adapter, Adapter&& part) {
  KINORA_CHECK(adapter.changes.empty() || part.changes.empty() || adapter.rslora == part.rslora,
               kIo, "[lora] ", adapter.origin,
               ": use_rslora must be the same for the model and its text encoders");
  adapter.rslora = part.changes.empty() ? adapter.rslora : part.rslora;
  adapter.factor = part.changes.empty() ? adapter.factor : part.factor;
  adapter.changes.merge(part.changes);
  adapter.whole.merge(part.whole);
}

}  // namespace

Adapter read_adapter(const fs::path& path, const nn::Naming& other, const LateTensors& weights) {
  fs::path file = path;
  if (fs::is_directory(path)) {
    file = path / (fs::exists(path / kPeftFile) ? kPeftFile : kDiffusersFile);
  }
  KINORA_CHECK(fs::exists(file), kIo, "[lora] ", file, " does not exist");
  const auto opened = std::make_shared<WeightsFile>(WeightsFile::open(file));
  std::array<bool, kNumAdapterParts> wanted = {};
  for (const auto& [name, weight] : weights) {
    wanted[part_of(name)] = true;
  }
  Adapter adapter{.origin = path.string()};
  std::array<LateTensors, kNumAdapterParts> tensors;
  for (const std::string& name : opened->names()) {
    const std::string plain = plain_key(name);
    const size_t part = part_of(plain);
    if (!wanted[part]) {
      adapter.left_out.push_back(name);
      continue;
    }
    KINORA_CHECK(tensors[part].emplace(plain, late_tensor(opened->read(name))).second, kIo,
                 "[lora] ", file, " has ", name, " twice, with and without its prefix");
  }
  for (size_t part = 0; part < kNumAdapterParts; ++part) {
    if (tensors[part].empty()) {
      continue;
    }
    Adapter own = take_adapter(tensors[part], settings_of(file, *opened, part), adapter.origin);
    own.whole = std::move(tensors[part]);
    add_part(adapter, Placer(other, weights, adapter.origin).place(std::move(own)));
  }
  KINORA_CHECK(!adapter.changes.empty() || !adapter.left_out.empty(), kIo, "[lora] ",
               adapter.origin,
               " holds no low-rank update, keys that end in lora_A.weight and lora_B.weight");
  return adapter;
}

namespace {

/// An adapter under the names of another naming: each part of a weight has a change of its own.
/// Text encoders' names stay.
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
  Adapter result{.origin = adapter.origin, .rslora = adapter.rslora, .factor = adapter.factor};
  for (const auto& [path, changes] : adapter.changes) {
    if (part_of(path) != kModel) {
      result.changes.emplace(path, changes);
      continue;
    }
    const nn::OtherName& name = name_of(path);
    KINORA_CHECK(!name.swaps_halves && name.packed_head == 0, kConfig, "[lora] ", path,
                 " has its rows in another order there, which Kinora lacks for updates. Hint: "
                 "write the file with our names");
    // What was read under such names changes the rows of some keys only.
    int64_t all_rows = std::accumulate(name.rows.begin(), name.rows.end(), int64_t{0});
    for (const LowRankChange& change : changes) {
      all_rows = std::max(all_rows, change.first_row + change.num_rows());
    }
    for (const LowRankChange& change : changes) {
      for (size_t part = 0; part < name.keys.size(); ++part) {
        const nn::RowRange rows = nn::rows_of_key(name, part, all_rows);
        const int64_t begin = rows.begin - change.first_row;
        if (begin < 0 || begin + rows.count > change.num_rows()) {
          continue;
        }
        LowRankChange own = rows_of(change, begin, rows.count);
        own.first_row = 0;
        if (name.moves_rows(part)) {
          own = with_rows(std::move(own), [&name](const at::Tensor& ours) {
            return half_split(ours, name.split_head);
          });
        }
        if (!name.shape.empty()) {
          own = with_dims(std::move(own), name.shape.size());
        }
        result.changes[name.keys[part]].push_back(std::move(own));
      }
    }
  }
  LateTensors whole = adapter.whole;
  for (const auto& [path, tensor] : adapter.whole) {
    if (part_of(path) == kModel) {
      (void)name_of(path);
    }
  }
  result.whole = take_renamed(whole, other);
  result.whole.merge(whole);  // of text encoders
  return result;
}

/// "blocks.0.attn.qkv" of its weight.
std::string layer_of(const std::string& path) {
  return path.substr(0, path.size() - std::string_view(kWeight).size());
}

/// Whether a LoKr has W1 in two factors.
bool divides_both(const LowRankChange& change) {
  return change.factors.contains("lokr_w1_a");
}

/// The factor by which kronecker_factors() divides all layers as they are; kConfig where there is
/// none, which PEFT needs.
int64_t kronecker_factor_of(const Adapter& adapter) {
  std::vector<std::array<int64_t, 4>> sizes;  // a, b, c, d
  std::vector<int64_t> candidates = {adapter.factor, -1};
  for (const auto& [path, changes] : adapter.changes) {
    const auto& factors = changes.front().factors;
    const auto size = [&factors](const std::string& name, int64_t dim) {
      const auto found = factors.find(name);
      return found != factors.end() ? found->second.size(dim)
                                    : factors.at(name + (dim == 0 ? "_a" : "_b")).size(dim);
    };
    const int64_t a = size("lokr_w1", 0);
    const int64_t c = size("lokr_w1", 1);
    // Of a convolution in two factors the second has the kernel's places among its columns.
    const int64_t places = changes.front().places;
    const int64_t d =
        factors.contains("lokr_w2") ? size("lokr_w2", 1) : size("lokr_w2", 1) / places;
    sizes.push_back({a, size("lokr_w2", 0), c, d});
    candidates.insert(candidates.end(), {a, c});
  }
  for (const int64_t factor : candidates) {
    if (std::ranges::all_of(sizes, [factor](const auto& of) {
          return nn::kronecker_factors(of[0] * of[1], factor) == std::pair{of[0], of[1]} &&
                 nn::kronecker_factors(of[2] * of[3], factor) == std::pair{of[2], of[3]};
        })) {
      return factor;
    }
  }
  throw_error(ErrorKind::kConfig, "[lora] ", adapter.origin,
              ": the layers' sizes are no products by one factor (decompose_factor), which PEFT "
              "needs of a LoKr");
}

/// adapter_config.json: what the first layer has, and by name what others have instead.
json settings_for_peft(const Adapter& adapter) {
  KINORA_CHECK(!adapter.changes.empty(), kConfig, "[lora] ", adapter.origin, " has no updates");
  const LowRankChange& first = adapter.changes.begin()->second.front();
  json ranks = json::object();
  json alphas = json::object();
  json targets = json::array();
  bool dora = false;
  for (const auto& [path, changes] : adapter.changes) {
    const LowRankChange& change = changes.front();
    const std::string layer = layer_of(path);
    KINORA_CHECK(change.kind == first.kind && divides_both(change) == divides_both(first), kConfig,
                 "[lora] ", adapter.origin, ": ", first.name, " and ", change.name,
                 " have updates of two kinds, which are two adapters of PEFT");
    if (change.rank != first.rank) {
      ranks[layer] = change.rank;
    }
    if (change.alpha != first.alpha) {
      alphas[layer] = change.alpha;
    }
    targets.push_back(layer);
    dora = dora || change.magnitude.defined();
  }
  json config = {{"task_type", nullptr},     {"base_model_name_or_path", nullptr},
                 {"inference_mode", true},   {"r", first.rank},
                 {"rank_pattern", ranks},    {"alpha_pattern", alphas},
                 {"target_modules", targets}};
  // Without an alpha the scale is 1.
  const double alpha = first.alpha > 0.0 ? first.alpha : static_cast<double>(first.rank);
  switch (first.kind) {
    case nn::UpdateKind::kLora:
      config.update({{"peft_type", "LORA"},
                     {"lora_alpha", alpha},
                     {"lora_dropout", 0.0},
                     {"use_rslora", adapter.rslora},
                     {"use_dora", dora},
                     {"bias", "none"},
                     {"fan_in_fan_out", false}});
      break;
    case nn::UpdateKind::kLoha:
      config.update({{"peft_type", "LOHA"}, {"alpha", alpha}, {"use_effective_conv2d", false}});
      break;
    case nn::UpdateKind::kLokr:
      config.update({{"peft_type", "LOKR"},
                     {"alpha", alpha},
                     {"use_effective_conv2d", false},
                     {"decompose_both", divides_both(first)},
                     {"decompose_factor", kronecker_factor_of(adapter)}});
      break;
  }
  return config;
}

/// The only change that the weight at a path has.
const LowRankChange& only_change(const std::string& path,
                                 const std::vector<LowRankChange>& changes) {
  KINORA_CHECK(changes.size() == 1, kConfig, "[lora] ", path, " is changed in ", changes.size(),
               " parts, which have no names of their own there. Hint: --adapter diffusers");
  return changes.front();
}

/// alpha where updates are multiplied by alpha / rank.
double plain_alpha(const LowRankChange& change, bool rslora) {
  return change.alpha > 0.0 && !rslora ? change.alpha
                                       : change.scale * static_cast<double>(change.rank);
}

LateTensor stored_as(const at::Tensor& values, const LowRankChange& change,
                     std::optional<at::ScalarType> type) {
  return late_tensor(values.to(type.value_or(change.stored)));
}

}  // namespace

void write_adapter(const fs::path& folder, const Adapter& adapter, const nn::Naming& other,
                   std::optional<at::ScalarType> type) {
  const Adapter named = renamed(adapter, other);
  LateTensors tensors;
  std::set<std::string> whole;
  for (const auto& [path, changes] : named.changes) {
    const LowRankChange& change = only_change(path, changes);
    const std::string start = kPeftPrefix + layer_of(path) + ".";
    for (const auto& [part, values] : change.factors) {
      tensors[start + part + (change.kind == nn::UpdateKind::kLora ? kWeight : "")] =
          stored_as(values, change, type);
    }
    if (change.magnitude.defined()) {
      const bool of_convolution = change.factors.at("lora_A").dim() > 2;
      tensors[start + kMagnitude] =
          late_tensor(of_convolution ? change.magnitude.view({1, -1, 1, 1}) : change.magnitude);
    }
  }
  for (const auto& [path, tensor] : named.whole) {
    tensors[kPeftPrefix + path] = tensor;
    whole.insert(path.substr(0, path.rfind('.')));  // the module
  }
  json config = settings_for_peft(named);
  config["modules_to_save"] = whole.empty() ? json() : json(whole);
  fs::create_directories(folder);
  write_weights(folder / kPeftFile, tensors, {.metadata = {{"format", "pt"}}});
  io::write_file_atomic(folder / kSettingsFile, config.dump(2) + "\n");
}

bool has_text_parts(const Adapter& adapter) {
  return std::ranges::any_of(adapter.changes,
                             [](const auto& named) { return part_of(named.first) != kModel; });
}

void write_diffusers_adapter(const fs::path& folder, const Adapter& adapter,
                             const nn::Naming& other, std::optional<at::ScalarType> type) {
  const Adapter named = renamed(adapter, other);
  KINORA_CHECK(named.whole.empty(), kConfig, "[lora] ", adapter.origin,
               " has weights that were trained whole, such as ", named.whole.begin()->first,
               ", which diffusers' files of pipelines have no place for. Hint: --adapter own");
  LateTensors tensors;
  json settings = json::object();
  for (size_t part = 0; part < kNumAdapterParts; ++part) {
    const std::string prefix = part == kModel ? kDiffusersPrefixes[1] : kAdapterParts[part].path;
    Adapter own{.origin = adapter.origin, .rslora = named.rslora};
    for (const auto& [path, changes] : named.changes) {
      if (part_of(path) != part) {
        continue;
      }
      const LowRankChange& change = only_change(path, changes);
      KINORA_CHECK(change.kind == nn::UpdateKind::kLora, kConfig, "[lora] ", path,
                   " has a LoHa or LoKr, and diffusers' files of pipelines have LoRA alone. Hint: "
                   "--adapter own or kohya");
      const std::string layer = layer_of(path).substr(kAdapterParts[part].path.size());
      for (const auto& [name, values] : change.factors) {
        tensors[prefix + layer + "." + name + kWeight] = stored_as(values, change, type);
      }
      if (change.magnitude.defined()) {
        tensors[prefix + layer + "." + kMagnitude] = late_tensor(change.magnitude);
      }
      // As settings name it: where newer CLIPs have it, too.
      const bool has_tower = part != kModel && layer.starts_with(kTower);
      own.changes.emplace(layer.substr(has_tower ? std::string_view(kTower).size() : 0) + kWeight,
                          changes);
    }
    if (own.changes.empty()) {
      continue;
    }
    const json of_part = settings_for_peft(own);
    for (const auto& [key, value] : of_part.items()) {
      settings[prefix + key] = value;
    }
  }
  fs::create_directories(folder);
  write_weights(folder / kDiffusersFile, tensors,
                {.metadata = {{"format", "pt"}, {kSettingsMetadata, settings.dump()}}});
}

void write_kohya_adapter(const fs::path& file, const Adapter& adapter, const nn::Naming& other,
                         bool has_two_encoders, std::optional<at::ScalarType> type) {
  const Adapter named = renamed(adapter, other);
  KINORA_CHECK(named.whole.empty(), kConfig, "[lora] ", adapter.origin,
               " has weights that were trained whole, such as ", named.whole.begin()->first,
               ", which kohya's files have no place for. Hint: --adapter diffusers");
  LateTensors tensors;
  for (const auto& [path, changes] : named.changes) {
    const LowRankChange& change = only_change(path, changes);
    KINORA_CHECK(!change.magnitude.defined(), kConfig, "[lora] ", path,
                 " has a DoRA, which Kinora does not write for kohya. Hint: --adapter diffusers");
    const bool is_whole = change.factors.contains("lokr_w1") && change.factors.contains("lokr_w2");
    KINORA_CHECK(!is_whole || change.scale == 1.0, kConfig, "[lora] ", path,
                 " is a LoKr of two whole factors, which LyCORIS' files have no alpha for; its "
                 "scale must be 1, got ",
                 change.scale, ". Hint: finetune.lora.alpha equal to rank; --adapter diffusers");
    const std::vector<std::string> names = kohya_names(path);
    const std::string start = (has_two_encoders ? names.back() : names.front()) + ".";
    for (const auto& [part, values] : change.factors) {
      const std::string own = part == "lora_A"   ? "lora_down.weight"
                              : part == "lora_B" ? "lora_up.weight"
                                                 : part;
      tensors[start + own] = stored_as(values, change, type);
    }
    tensors[start + kAlpha] = late_tensor(
        at::scalar_tensor(plain_alpha(change, named.rslora), type.value_or(change.stored)));
  }
  write_weights(file, tensors, {.metadata = {{"format", "pt"}}});
}

}  // namespace kinora::checkpoint
