#include "kinora/pipelines/text_encoder_file.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kinora/checkpoint/model_weights.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/file.h"
#include "kinora/models/text_encoders/open_clip_names.h"
#include "kinora/pipelines/diffusers_config.h"
#include "kinora/pipelines/shared_blocks.h"
#include "kinora/pipelines/staged_copies.h"
#include "kinora/pipelines/streamed_blocks.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;
using checkpoint::LateTensors;
using checkpoint::WeightsFile;

constexpr size_t kMaxNamesInMessage = 8;

/// A kind of text encoder in a file: what its keys are known by, whatever stands before them.
struct Kind {
  std::string_view anchor;  ///< a key of the first block, below what is `own`
  std::string_view own;     ///< what stands before it in our paths
  std::string_view other;   ///< towers of the same keys end so
  std::string_view beside;  ///< what lies beside `own`: the vocabulary, the projection
  TextEncoderConfig (*config_of)(const LateTensors&, const std::string&);
  LateTensors (*ours)(LateTensors) = nullptr;  ///< under our paths; null: they are already
};
TextEncoderConfig clip_config(const LateTensors& tensors, const std::string& where) {
  return clip_config_of(tensors, where);
}

constexpr Kind kT5 = {"block.0.layer.0.SelfAttention.q.weight", "encoder.", "decoder.",
                      "shared.weight", [](const LateTensors& tensors, const std::string& where) {
                        return TextEncoderConfig(t5_config_of(tensors, where));
                      }};
constexpr Kind kClip = {"encoder.layers.0.self_attn.q_proj.weight", "text_model.", "vision_model.",
                        "text_projection.weight", clip_config};

constexpr std::string_view kOpenClipImages = "visual.";

/// OpenCLIP's tower as Stable Diffusion 2 reads it: the states before the last block, normed by the
/// last norm. So that block and the projection are not taken.
LateTensors from_open_clip(LateTensors tensors) {
  const std::string block = "transformer.resblocks.";
  int64_t blocks = 0;
  while (tensors.contains(block + std::to_string(blocks) + ".attn.in_proj_weight")) {
    ++blocks;
  }
  LateTensors ours = checkpoint::take_renamed(tensors, models::from_open_clip(blocks - 1));
  const std::string last = block + std::to_string(blocks - 1) + ".";
  std::erase_if(tensors, [&last](const auto& named) {
    return named.first.starts_with(last) || named.first.starts_with(kOpenClipImages) ||
           named.first == "text_projection" || named.first == "logit_scale" ||
           named.first == "attn_mask";
  });
  ours.merge(tensors);  // what is not known is refused by its name
  return ours;
}
constexpr Kind kOpenClip = {"transformer.resblocks.0.attn.in_proj_weight",
                            "",
                            kOpenClipImages,
                            "",
                            clip_config,
                            from_open_clip};

/// A text encoder in a file: the kind, and what stands before its keys.
struct Place {
  const Kind* kind = nullptr;
  std::string prefix;
};

/// Those whose keys begin with `wanted`.
std::vector<Place> places_in(const std::vector<std::string>& names, const std::string& wanted) {
  std::vector<Place> places;
  for (const std::string& name : names) {
    for (const Kind* kind : {&kT5, &kClip, &kOpenClip}) {
      if (!name.starts_with(wanted) || !name.ends_with(kind->anchor)) {
        continue;
      }
      std::string prefix = name.substr(0, name.size() - kind->anchor.size());
      const bool is_whole_word = prefix.empty() || prefix.ends_with('.');
      if (is_whole_word && !prefix.ends_with(kind->other)) {
        places.push_back({kind, std::move(prefix)});
      }
    }
  }
  return places;
}

Place only_place(const WeightsFile& file, const std::string& wanted) {
  std::vector<Place> places = places_in(file.names(), wanted);
  KINORA_CHECK(!places.empty(), kIo, "[text encoder] ", file.path(),
               " has no text encoder: no key ", wanted.empty() ? "" : "after " + wanted + " ",
               "ends with ", kT5.anchor, " (T5), ", kClip.anchor, " (CLIP) or ", kOpenClip.anchor,
               " (OpenCLIP)");
  std::vector<std::string> prefixes;
  for (const Place& place : places) {
    prefixes.push_back(io::in_quotes(place.prefix));
  }
  KINORA_CHECK(places.size() == 1, kConfig, "[text encoder] ", file.path(), " has ", places.size(),
               " text encoders, before whose keys stand ", list_names(prefixes, kMaxNamesInMessage),
               ". Hint: choose one by its prefix");
  return places.front();
}

/// The tensors at `place`, under our paths.
LateTensors tensors_at(const WeightsFile& file, const Place& place) {
  const std::string own(place.kind->own);
  std::string outer = place.prefix;
  if (outer == own || outer.ends_with("." + own)) {
    outer.resize(outer.size() - own.size());
  }
  LateTensors tensors;
  for (auto& [name, tensor] : file.tensors()) {
    if (name == outer + std::string(place.kind->beside)) {
      tensors.insert_or_assign(std::string(place.kind->beside), tensor);
    } else if (name.starts_with(place.prefix)) {
      const std::string key = name.substr(place.prefix.size());
      if (key == "embed_tokens.weight") {  // the same as shared.weight, which is taken if there
        tensors.emplace("shared.weight", tensor);
      } else if (key != "embeddings.position_ids") {  // old CLIPs: 0, 1, 2, ...
        tensors.emplace(own + key, tensor);
      }
    }
  }
  return place.kind->ours == nullptr ? tensors : place.kind->ours(std::move(tensors));
}

/// The folder of config.json and weights that `path` means; empty if it is a file.
fs::path folder_of(const fs::path& path) {
  KINORA_CHECK(fs::exists(path), kIo, "[text encoder] ", path, " does not exist");
  if (!fs::is_directory(path)) {
    return {};
  }
  for (const fs::path& folder : {path, path / "text_encoder"}) {
    if (fs::is_regular_file(folder / "config.json")) {
      return folder;
    }
  }
  throw_error(ErrorKind::kIo, "[text encoder] ", path,
              " has neither config.json nor text_encoder/config.json");
}

/// How the encoder is built: by config.json where there is one, else by the shapes.
TextEncoderConfig config_for(const fs::path& path, const fs::path& folder, const Place& place,
                             const LateTensors& tensors) {
  const fs::path config = (folder.empty() ? path.parent_path() : folder) / "config.json";
  if (!folder.empty() || fs::is_regular_file(config)) {
    const std::string text = io::read_text(config, kMaxConfigBytes);
    if (!folder.empty() || is_text_encoder_config(text)) {
      return parse_text_encoder_config(text, config.string());
    }
  }
  return place.kind->config_of(tensors, path.string());
}

void check_fit(const WeightsFile& file, const LateTensors& tensors, nn::Module& encoder) {
  const checkpoint::WeightsFit fit = checkpoint::compare(tensors, encoder);
  KINORA_CHECK(fit.is_whole(), kIo, "[text encoder] ", file.path(),
               " does not fit its config: ", checkpoint::describe(fit));
  for (const auto& [path, tensor] : tensors) {
    KINORA_CHECK(at::isFloatingType(tensor.type), kIo, "[text encoder] ", file.path(), ": ", path,
                 " must be of floating type, got ", tensor.type);
  }
}

bool is_of_a_block(const models::TextEncoder& encoder, const std::string& path) {
  for (int64_t i = 0; i < encoder.num_blocks(); ++i) {
    if (path.starts_with(encoder.block_path(i))) {
      return true;
    }
  }
  return false;
}

/// Gives every parameter for which `is_wanted` its weight. On a GPU all but those in 8 bits are
/// read by several threads.
template <typename IsWanted>
void load(models::TextEncoder& encoder, const LateTensors& tensors,
          const TextEncoderOptions& options, const IsWanted& is_wanted) {
  std::unordered_map<const nn::Parameter*, models::TextLinear*> linears;
  if (options.eight_bits) {
    for (models::TextLinear* linear : encoder.linears()) {
      linears.emplace(&linear->weight, linear);
    }
  }
  std::vector<StagedCopies::Copy> staged;
  for (const auto& [path, parameter] : encoder.named_parameters()) {
    if (!is_wanted(path)) {
      continue;
    }
    const at::Tensor value = tensors.at(path).read_all();
    if (const auto found = linears.find(parameter); found != linears.end()) {
      const models::EightBitWeight bits = models::to_eight_bits(value, *options.eight_bits);
      found->second->set_eight_bits({bits.values.to(options.device), bits.scale.to(options.device)},
                                    options.type);
    } else if (options.device.is_cuda()) {
      parameter->value =
          at::empty(value.sizes(), at::TensorOptions(options.device).dtype(options.type));
      staged.push_back({value, parameter->value});
    } else {
      parameter->value = value.to(options.device, options.type, /*non_blocking=*/false,
                                  /*copy=*/true);
    }
  }
  if (!staged.empty()) {
    StagedCopies copies(options.device);
    copies.wait_for_current_stream();  // which may still use the memory
    copies.run(staged);
    copies.let_current_stream_wait();
  }
}

/// A text encoder without weights, frozen, and where these lie.
struct Outline {
  WeightsFile file;
  LateTensors tensors;
  std::unique_ptr<models::TextEncoder> encoder;
};

Outline outline(const fs::path& path, const std::string& prefix) {
  const fs::path folder = folder_of(path);
  WeightsFile file = WeightsFile::open(folder.empty() ? path : folder, /*averaged=*/false);
  const Place place = only_place(file, prefix);
  LateTensors tensors = tensors_at(file, place);
  std::unique_ptr<models::TextEncoder> encoder =
      make_text_encoder(config_for(path, folder, place, tensors));
  check_fit(file, tensors, *encoder);
  for (const auto& [name, parameter] : encoder->named_parameters()) {
    parameter->frozen = true;
  }
  return {std::move(file), std::move(tensors), std::move(encoder)};
}

}  // namespace

TextEncoderConfig text_encoder_config(const fs::path& path) {
  const WeightsFile file = WeightsFile::open(path, /*averaged=*/false);
  const Place place = only_place(file, "");
  return config_for(path, {}, place, tensors_at(file, place));
}

std::unique_ptr<models::TextEncoder> outlined_text_encoder(const fs::path& path,
                                                           const std::string& prefix) {
  return outline(path, prefix).encoder;
}

std::unique_ptr<models::TextEncoder> open_text_encoder(const fs::path& path,
                                                       const TextEncoderOptions& options) {
  KINORA_CHECK(!(options.streamed && options.eight_bits), kConfig,
               "[text encoder] a streamed encoder must not be kept in 8 bits, got both");
  const bool shared = options.ranks.size() > 1;
  KINORA_CHECK(
      !(shared && (options.streamed || options.eight_bits)), kConfig,
      "[text encoder] one that ranks share must neither be streamed nor kept in 8 bits, got ",
      options.streamed ? "streamed" : "8 bits");
  auto [file, tensors, encoder] = outline(path, options.prefix);
  if (shared) {
    load(*encoder, tensors, options,
         [&its = *encoder](const std::string& name) { return !is_of_a_block(its, name); });
    const auto blocks = std::make_shared<SharedBlocks>(*encoder, tensors, options.ranks,
                                                       options.device, options.type);
    encoder->set_block_hook([blocks](int64_t block, bool begins) { blocks->use(block, begins); });
    return std::move(encoder);
  }
  if (!options.streamed) {
    load(*encoder, tensors, options, [](const std::string&) { return true; });
    return std::move(encoder);
  }
  const nn::NamedParameter vocabulary = encoder->vocabulary();
  load(*encoder, tensors, options, [&vocabulary, &its = *encoder](const std::string& name) {
    return name != vocabulary.path && !is_of_a_block(its, name);
  });
  vocabulary.parameter->value = tensors.at(vocabulary.path).read_all();  // in the mapped file
  const auto blocks = std::make_shared<StreamedBlocks>(
      *encoder, std::move(file), std::move(tensors), options.device, options.type);
  encoder->set_block_hook([blocks](int64_t block, bool begins) { blocks->use(block, begins); });
  return std::move(encoder);
}

std::string text_encoder_fingerprint(const fs::path& path, const std::string& prefix) {
  constexpr size_t kFirstBytes = 4096;
  const fs::path folder = folder_of(path);
  const WeightsFile file = WeightsFile::open(folder.empty() ? path : folder, /*averaged=*/false);
  const Place place = only_place(file, prefix);
  io::Checksum checksum;
  const fs::path config = (folder.empty() ? path.parent_path() : folder) / "config.json";
  if (fs::is_regular_file(config)) {
    checksum.update(io::read_file(config, kMaxConfigBytes));
  }
  for (const auto& [name, tensor] : tensors_at(file, place)) {
    std::ostringstream line;
    line << name << ' ' << at::IntArrayRef(tensor.shape) << ' ' << tensor.type << '\n';
    const std::string text = line.str();
    checksum.update(std::as_bytes(std::span(text)));
    const at::Tensor first = tensor.read(0, std::min<int64_t>(tensor.rows(), 1));
    const std::span<const std::byte> bytes = device::bytes_of(first);
    checksum.update(bytes.first(std::min(bytes.size(), kFirstBytes)));
  }
  return checksum.hex();
}

}  // namespace kinora::pipelines
