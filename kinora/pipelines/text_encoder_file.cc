#include "kinora/pipelines/text_encoder_file.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kinora/checkpoint/low_rank_file.h"
#include "kinora/checkpoint/model_weights.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/device/host_bytes.h"
#include "kinora/io/file.h"
#include "kinora/models/families.h"
#include "kinora/models/text_encoders/encoder_with_clips.h"
#include "kinora/models/text_encoders/joint_text_encoder.h"
#include "kinora/models/text_encoders/open_clip_names.h"
#include "kinora/pipelines/diffusers_config.h"
#include "kinora/pipelines/shared_blocks.h"
#include "kinora/pipelines/staged_copies.h"
#include "kinora/pipelines/streamed_blocks.h"
#include "kinora/pipelines/tokenizer_folder.h"
#include "kinora/tokenizers/tokenizer.h"

namespace kinora::pipelines {
namespace {

namespace fs = std::filesystem;
using checkpoint::LateTensor;
using checkpoint::LateTensors;
using checkpoint::WeightsFile;

constexpr size_t kMaxKeysInMessage = 8;

/// A kind of text encoder in a file: what its keys are known by, whatever stands before them.
struct Kind {
  std::string_view anchor;  ///< a key of the first block, below what is `own`
  std::string_view own;     ///< what stands before it in our paths
  std::string_view other;   ///< towers of the same keys end so
  std::string_view beside;  ///< what lies beside `own`: the vocabulary, the projection
  TextEncoderConfig (*config_of)(const LateTensors&, const std::string&);
  /// Under our paths; null: they are already. of_sdxl: what that reads.
  LateTensors (*ours)(LateTensors, bool of_sdxl) = nullptr;
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

constexpr Kind kLlama = {"layers.0.mlp.gate_proj.weight", "", "vision_tower.", "",
                         [](const LateTensors& tensors, const std::string& where) {
                           return TextEncoderConfig(llama_config_of(tensors, where));
                         }};

TextEncoderConfig bert_config(const LateTensors& tensors, const std::string& where) {
  return bert_config_of(tensors, where);
}

constexpr Kind kBert = {"layers.0.self_attn_layer_norm.weight", "model.", "decoder.", "",
                        bert_config};

/// CompVis' encoder, without what predicts tokens.
LateTensors from_compvis_bert(LateTensors tensors, bool /*of_sdxl*/) {
  int64_t blocks = 0;
  while (tensors.contains("attn_layers.layers." + std::to_string(2 * blocks) + ".1.to_q.weight")) {
    ++blocks;
  }
  LateTensors ours = checkpoint::take_renamed(tensors, models::from_x_transformer(blocks));
  std::erase_if(tensors, [](const auto& named) { return named.first.starts_with("to_logits."); });
  ours.merge(tensors);  // what is not known is refused by its name
  return ours;
}
constexpr Kind kCompvisBert = {
    "attn_layers.layers.0.1.to_q.weight", "", "", "", bert_config, from_compvis_bert};

constexpr std::string_view kOpenClipImages = "visual.";
/// What stands before the keys of SDXL's encoders in one file, with their numbers.
constexpr std::string_view kSdxlEncoders = "conditioner.embedders.";

/// The same tensor with its two dims exchanged.
LateTensor transposed(const LateTensor& tensor) {
  LateTensor result = tensor;
  std::ranges::reverse(result.shape);
  result.reads_rows = false;
  result.read = [tensor](int64_t begin, int64_t end) {
    return tensor.read_all().narrow(1, begin, end - begin).t().contiguous();
  };
  return result;
}

/// OpenCLIP's tower as SDXL reads it, or as Stable Diffusion 2 does: the states before the last
/// block, normed by the last norm. So that block and the projection are not taken there.
LateTensors from_open_clip(LateTensors tensors, bool of_sdxl) {
  const std::string block = "transformer.resblocks.";
  int64_t blocks = 0;
  while (tensors.contains(block + std::to_string(blocks) + ".attn.in_proj_weight")) {
    ++blocks;
  }
  LateTensors ours =
      checkpoint::take_renamed(tensors, models::from_open_clip(of_sdxl ? blocks : blocks - 1));
  if (const auto found = tensors.find("text_projection");
      of_sdxl && found != tensors.end() && found->second.shape.size() == 2) {
    ours.emplace("text_projection.weight", transposed(found->second));
  }
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
    for (const Kind* kind : {&kT5, &kClip, &kOpenClip, &kLlama, &kBert, &kCompvisBert}) {
      if (!name.starts_with(wanted) || !name.ends_with(kind->anchor)) {
        continue;
      }
      std::string prefix = name.substr(0, name.size() - kind->anchor.size());
      const bool is_whole_word = prefix.empty() || prefix.ends_with('.');
      if (is_whole_word && (kind->other.empty() || !prefix.ends_with(kind->other))) {
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
               "ends with ", kT5.anchor, " (T5), ", kLlama.anchor, " (Llama), ", kClip.anchor,
               " (CLIP), ", kOpenClip.anchor, " (OpenCLIP), ", kBert.anchor, " or ",
               kCompvisBert.anchor, " (latent diffusion's BERT)");
  std::vector<std::string> prefixes;
  for (const Place& place : places) {
    prefixes.push_back(io::in_quotes(place.prefix));
  }
  KINORA_CHECK(places.size() == 1, kConfig, "[text encoder] ", file.path(), " has ", places.size(),
               " text encoders, before whose keys stand ", list_names(prefixes, kMaxKeysInMessage),
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
      if (place.kind == &kT5 && key == "embed_tokens.weight") {
        tensors.emplace("shared.weight", tensor);          // the same, which is taken if there
      } else if (key != "embeddings.position_ids" &&       // old CLIPs: 0, 1, 2, ...
                 !key.ends_with("rotary_emb.inv_freq")) {  // old Llamas: as rope_theta says
        tensors.emplace(own + key, tensor);
      }
    }
  }
  return place.kind->ours == nullptr
             ? tensors
             : place.kind->ours(std::move(tensors), place.prefix.starts_with(kSdxlEncoders));
}

/// The folder of config.json and weights that `path` means; empty if it is a file.
fs::path folder_of(const fs::path& path) {
  KINORA_CHECK(fs::exists(path), kIo, "[text encoder] ", path, " does not exist");
  if (!fs::is_directory(path)) {
    return {};
  }
  for (const fs::path& folder : {path, path / "text_encoder", path / "bert"}) {
    if (fs::is_regular_file(folder / "config.json")) {
      return folder;
    }
  }
  throw_error(ErrorKind::kIo, "[text encoder] there is neither ", path / "config.json", " nor ",
              path / "text_encoder/config.json");
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
  std::vector<WeightsFile> files;
  LateTensors tensors;
  std::unique_ptr<models::TextEncoder> encoder;
};

/// The weights of one text encoder, and how it is built.
struct Part {
  WeightsFile file;
  LateTensors tensors;
  TextEncoderConfig config;
};

TextEncoderConfig config_in(const fs::path& folder) {
  const fs::path config = folder / "config.json";
  return parse_text_encoder_config(io::read_text(config, kMaxConfigBytes), config.string());
}

/// Whether config.json there is of a Llama that reads a picture with its texts.
bool has_llava(const fs::path& folder) {
  const fs::path config = folder / "config.json";
  if (folder.empty() || !fs::is_regular_file(config)) {
    return false;
  }
  const auto values =
      DiffusersConfig::find(io::read_text(config, kMaxConfigBytes), "text", config.string());
  return values && values->is("model_type", "llava");
}

/// Its tensors under our paths, without what predicts tokens. transformers 5 writes CLIP's tower
/// without its own name.
LateTensors llava_tensors(const WeightsFile& file) {
  const std::string tower = "vision_tower.";
  const std::string inner = "language_model.model.";
  LateTensors tensors;
  for (auto& [own, tensor] : file.tensors()) {
    std::string name =
        own.starts_with("model.") ? own.substr(std::string_view("model.").size()) : own;
    if (name.starts_with(inner)) {
      name = "language_model." + name.substr(inner.size());
    } else if (name.starts_with(tower) && !name.starts_with(tower + "vision_model.")) {
      name.insert(tower.size(), "vision_model.");
    }
    if (!name.ends_with("lm_head.weight") && !name.ends_with("embeddings.position_ids") &&
        !name.ends_with("rotary_emb.inv_freq")) {
      tensors.emplace(std::move(name), tensor);
    }
  }
  return tensors;
}

Part part_at(const fs::path& path, const std::string& prefix) {
  const fs::path folder = folder_of(path);
  if (prefix.empty() && has_llava(folder)) {
    WeightsFile file = WeightsFile::open(folder, /*averaged=*/false);
    LateTensors tensors = llava_tensors(file);
    return {std::move(file), std::move(tensors), config_in(folder)};
  }
  WeightsFile file = WeightsFile::open(folder.empty() ? path : folder, /*averaged=*/false);
  const Place place = only_place(file, prefix);
  LateTensors tensors = tensors_at(file, place);
  TextEncoderConfig config = config_for(path, folder, place, tensors);
  return {std::move(file), std::move(tensors), std::move(config)};
}

/// What SDXL reads of its encoders.
constexpr models::TextLayer kLayerOfSdxl = {.before_last = 1, .normed = false};
/// Of Stable Diffusion 3, that are read as one.
constexpr size_t kMostParts = 3;
/// What the second one reads behind a text's end, as published: "!".
constexpr int64_t kSdxlPadding = 0;

/// What HunyuanVideo reads of its language model.
constexpr models::TextLayer kLayerOfHunyuan = {.before_last = 2, .normed = false};
/// And what captions stand in there. The first 95 of the tokens are those of what stands before.
const models::CaptionFrame& frame_of_hunyuan() {
  static const models::CaptionFrame frame = {
      .before =
          "<|start_header_id|>system<|end_header_id|>\n\nDescribe the video by detailing the "
          "following aspects: 1. The main content and theme of the video.2. The color, shape, "
          "size, "
          "texture, quantity, text, and spatial relationships of the objects.3. Actions, events, "
          "behaviors temporal relationships, physical movement changes of the objects.4. "
          "background "
          "environment, light, style and atmosphere.5. camera angles, movements, and transitions "
          "used in the video:<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n",
      .behind = "<|eot_id|>",
      .tokens = 95};
  return frame;
}

/// The same of those that go on from a picture, whose states stand before the caption's: which ones
/// are left out is the encoder's business.
const models::CaptionFrame& frame_with_picture() {
  static const models::CaptionFrame frame = {
      .before =
          "<|start_header_id|>system<|end_header_id|>\n\n<image>\nDescribe the video by detailing "
          "the following aspects according to the reference image: 1. The main content and theme "
          "of the video.2. The color, shape, size, texture, quantity, text, and spatial "
          "relationships of the objects.3. Actions, events, behaviors temporal relationships, "
          "physical movement changes of the objects.4. background environment, light, style and "
          "atmosphere.5. camera angles, movements, and transitions used in the "
          "video:<|eot_id|>\n\n<|start_header_id|>user<|end_header_id|>\n\n",
      .behind = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"};
  return frame;
}
/// Tokens of what stands before a caption there, the picture's one among them, and of what stands
/// behind it but for the last.
constexpr int64_t kTokensBefore = 103;
constexpr int64_t kTokensBehind = 4;

/// The language model of HunyuanVideo in `pipeline`, whose transformer says how much of a picture
/// it reads.
TextEncoderConfig language_model(TextEncoderConfig config, const fs::path& pipeline) {
  if (auto* const llava = std::get_if<models::LlavaConfig>(&config)) {
    const fs::path path = pipeline / "transformer/config.json";
    const DiffusersConfig transformer(io::read_text(path, kMaxConfigBytes), "text", path.string());
    llava->stride = models::picture_stride(transformer.is("image_condition_type", kTokenReplace));
    llava->tokens_before = kTokensBefore;
    llava->tokens_behind = kTokensBehind;
  }
  return config;
}

/// One of several encoders that are read as one: a folder of its own, or in a file the keys that
/// begin so.
struct JointPart {
  fs::path path;
  std::string prefix = {};
  fs::path tokenizer = {};        ///< of a folder
  bool drops_projection = false;  ///< its pooled vector is read before it
};

/// The encoders of SDXL, of Flux, Stable Diffusion 3, HunyuanVideo and Open-Sora 2 or, one alone,
/// of SDXL's refiner, in a folder or a file; else none.
std::vector<JointPart> joint_parts(const fs::path& path) {
  std::vector<JointPart> parts;
  if (fs::is_regular_file(path)) {
    const WeightsFile file = WeightsFile::open(path, /*averaged=*/false);
    for (const Place& place : places_in(file.names(), std::string(kSdxlEncoders))) {
      parts.push_back({.path = path, .prefix = place.prefix});
    }
  } else if (fs::is_regular_file(path / "text_encoder_2/config.json") &&
             !fs::is_regular_file(path / "config.json")) {
    for (size_t i = 0; i < kMostParts; ++i) {
      const std::string name = models::EncoderWithClips::child_name(i);
      if (fs::is_regular_file(path / name / "config.json")) {
        const std::string number = i == 0 ? "" : "_" + std::to_string(i + 1);
        parts.push_back({.path = path / name, .tokenizer = path / ("tokenizer" + number)});
      }
    }
  } else if (std::ranges::all_of(kOpenSora2Encoders, [&path](const char* name) {
               return fs::is_regular_file(path / name / "config.json");
             })) {
    for (const char* name : kOpenSora2Encoders) {
      parts.push_back({.path = path / name, .tokenizer = path / name, .drops_projection = true});
    }
  }
  KINORA_CHECK(parts.size() <= kMostParts, kConfig, "[text encoder] ", path, " must have up to ",
               kMostParts, " text encoders, got ", parts.size());
  return parts;
}

TextEncoderConfig config_of(const JointPart& part) {
  TextEncoderConfig config =
      part.prefix.empty() ? config_in(part.path) : part_at(part.path, part.prefix).config;
  if (auto* const clip = std::get_if<models::ClipTextConfig>(&config);
      clip != nullptr && part.drops_projection) {
    clip->projection_dim = 0;
  }
  return config;
}

/// Which one has CLIPs beside it: a T5 behind them, or a Llama or Llava before one. Nothing: none.
std::optional<size_t> main_part(const std::vector<JointPart>& parts) {
  if (parts.size() < 2) {
    return std::nullopt;
  }
  if (std::holds_alternative<models::T5Config>(config_of(parts.back()))) {
    return parts.size() - 1;
  }
  const TextEncoderConfig first = config_of(parts.front());
  const bool is_language_model = std::holds_alternative<models::LlamaConfig>(first) ||
                                 std::holds_alternative<models::LlavaConfig>(first);
  return is_language_model ? std::optional<size_t>(0) : std::nullopt;
}

models::ClipTextConfig clip_of(const JointPart& part) {
  const TextEncoderConfig config = config_of(part);
  const auto* const clip = std::get_if<models::ClipTextConfig>(&config);
  KINORA_CHECK(
      clip != nullptr, kConfig, "[text encoder] ", part.path,
      " must be a CLIP, as SDXL's and those beside the T5 of Flux and Stable Diffusion 3 or the "
      "Llama of HunyuanVideo, got ",
      make_text_encoder(config)->kind(), ". Hint: name the folder of one of them");
  return *clip;
}

/// What the second encoder reads behind a text's end. kConfig where both tokenizers differ in more.
int64_t second_padding(const fs::path& path) {
  const auto second = tokenizers::Tokenizer::load(path / "tokenizer_2");
  const auto first = tokenizers::Tokenizer::load(path / "tokenizer");
  int64_t same = 0;
  const int64_t most = std::max(first.vocab_size(), second.vocab_size());
  while (same < most && first.token_of(same) == second.token_of(same)) {
    ++same;
  }
  KINORA_CHECK(same == most, kConfig, "[text encoder] the tokenizers of ", path,
               " must number tokens alike, got ", first.token_of(same).value_or("none"), " and ",
               second.token_of(same).value_or("none"), " for ", same);
  KINORA_CHECK(second.pad_id().has_value(), kConfig, "[text encoder] ", path / "tokenizer_2",
               " must have a padding token");
  return *second.pad_id();
}

/// The encoders as one, without weights.
std::unique_ptr<models::TextEncoder> encoder_of(const fs::path& path,
                                                const std::vector<JointPart>& parts) {
  if (const std::optional<size_t> main = main_part(parts)) {
    std::vector<models::ClipTextConfig> clips;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i != *main) {
        clips.push_back(clip_of(parts[i]));
      }
    }
    const bool is_language_model = *main == 0;
    std::optional<models::CaptionFrame> frame;
    auto encoder = make_text_encoder(language_model(config_of(parts[*main]), path));
    if (is_language_model) {
      frame = encoder->picture_side() > 0 ? frame_with_picture() : frame_of_hunyuan();
    }
    auto joint = std::make_unique<models::EncoderWithClips>(clips, std::move(encoder), *main,
                                                            std::move(frame));
    if (is_language_model) {
      joint->set_default_layer(kLayerOfHunyuan);
    }
    return joint;
  }
  KINORA_CHECK(parts.size() <= 2, kConfig, "[text encoder] ", parts.back().path,
               " must be a T5 behind two CLIPs, as Stable Diffusion 3's, got a CLIP");
  const models::ClipTextConfig last = clip_of(parts.back());
  KINORA_CHECK(last.projection_dim > 0, kConfig, "[text encoder] ", parts.back().path,
               " must be a CLIPTextModelWithProjection, as SDXL's, got one without");
  std::unique_ptr<models::TextEncoder> encoder;
  if (parts.size() == 1) {
    encoder = std::make_unique<models::ClipTextEncoder>(last);
  } else {
    encoder = std::make_unique<models::JointTextEncoder>(
        clip_of(parts.front()), last,
        fs::is_regular_file(path) ? kSdxlPadding : second_padding(path));
  }
  encoder->set_default_layer(kLayerOfSdxl);
  return encoder;
}

Outline outline_of_parts(const fs::path& path, const std::vector<JointPart>& parts) {
  Outline result;
  result.encoder = encoder_of(path, parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string below = parts.size() == 1 ? "" : models::EncoderWithClips::child_name(i);
    Part part = part_at(parts[i].path, parts[i].prefix);
    if (parts[i].drops_projection) {
      part.tensors.erase(std::string(kClip.beside));
    }
    for (auto& [key, tensor] : part.tensors) {
      result.tensors.emplace(below.empty() ? key : below + "." + key, tensor);
    }
    result.files.push_back(std::move(part.file));
  }
  return result;
}

Outline outline(const fs::path& path, const std::string& prefix) {
  Outline result;
  if (const auto parts = joint_parts(path); !parts.empty() && prefix.empty()) {
    result = outline_of_parts(path, parts);
  } else {
    Part part = part_at(path, prefix);
    result.encoder = make_text_encoder(part.config);
    result.tensors = std::move(part.tensors);
    result.files.push_back(std::move(part.file));
  }
  check_fit(result.files.front(), result.tensors, *result.encoder);
  for (const auto& [name, parameter] : result.encoder->named_parameters()) {
    parameter->frozen = true;
  }
  return result;
}

/// text_encoder_fingerprint() of one encoder.
std::string fingerprint_of(const fs::path& path, const std::string& prefix) {
  constexpr size_t kFirstBytes = 4096;
  const fs::path folder = folder_of(path);
  const WeightsFile file = WeightsFile::open(folder.empty() ? path : folder, /*averaged=*/false);
  const bool is_llava = prefix.empty() && has_llava(folder);
  io::Checksum checksum;
  const fs::path config = (folder.empty() ? path.parent_path() : folder) / "config.json";
  if (fs::is_regular_file(config)) {
    checksum.update(io::read_file(config, kMaxConfigBytes));
  }
  for (const auto& [name, tensor] :
       is_llava ? llava_tensors(file) : tensors_at(file, only_place(file, prefix))) {
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

}  // namespace

std::unique_ptr<models::TextEncoder> described_text_encoder(const fs::path& path) {
  if (const auto parts = joint_parts(path); !parts.empty()) {
    return encoder_of(path, parts);
  }
  const fs::path folder = folder_of(path);
  return make_text_encoder(folder.empty() ? part_at(path, "").config : config_in(folder));
}

int64_t weight_bytes(models::TextEncoder& encoder, at::ScalarType type,
                     std::optional<models::EightBit> eight_bits) {
  const auto element = static_cast<int64_t>(c10::elementSize(type));
  int64_t bytes = 0;
  for (const auto& [name, parameter] : encoder.named_parameters()) {
    bytes += parameter->numel() * element;
  }
  if (eight_bits) {
    for (const models::TextLinear* linear : encoder.linears()) {
      const auto scale_bytes = static_cast<int64_t>(sizeof(float));
      bytes -= linear->weight.numel() * (element - 1) - linear->weight.shape.front() * scale_bytes;
    }
  }
  return bytes;
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
  auto [files, tensors, encoder] = outline(path, options.prefix);
  checkpoint::merge(tensors, options.adapters);
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
  const std::vector<nn::NamedParameter> vocabularies = encoder->vocabularies();
  load(*encoder, tensors, options, [&vocabularies, &its = *encoder](const std::string& name) {
    return !std::ranges::count(vocabularies, name, &nn::NamedParameter::path) &&
           !is_of_a_block(its, name);
  });
  for (const nn::NamedParameter& vocabulary : vocabularies) {
    vocabulary.parameter->value = tensors.at(vocabulary.path).read_all();  // in the mapped file
  }
  const auto blocks = std::make_shared<StreamedBlocks>(
      *encoder, std::move(files), std::move(tensors), options.device, options.type);
  encoder->set_block_hook([blocks](int64_t block, bool begins) { blocks->use(block, begins); });
  return std::move(encoder);
}

std::vector<checkpoint::WeightedAdapter> read_text_adapters(const std::vector<std::string>& choices,
                                                            const fs::path& path) {
  std::vector<checkpoint::WeightedAdapter> adapters;
  if (choices.empty()) {
    return adapters;
  }
  // Of one encoder alone the paths lack its name, which adapters have.
  const Outline whole = outline(path, "");
  const std::string name = std::string(models::JointTextEncoder::kChildren[0]) + ".";
  const bool is_joint =
      dynamic_cast<const models::JointTextEncoder*>(whole.encoder.get()) != nullptr ||
      whole.encoder->beside().tokens > 0;
  const std::string before = is_joint ? "" : name;
  LateTensors tensors;
  for (const auto& [key, tensor] : whole.tensors) {
    tensors.emplace(before + key, tensor);
  }
  const auto own = [&before](auto& by_path) {
    auto named = std::exchange(by_path, {});
    for (auto& [key, value] : named) {
      by_path.emplace(key.substr(before.size()), std::move(value));
    }
  };
  for (const std::string& text : choices) {
    const checkpoint::AdapterChoice choice = checkpoint::parse_adapter_choice(text);
    checkpoint::Adapter adapter = checkpoint::read_adapter(choice.path, {}, tensors);
    own(adapter.changes);
    own(adapter.whole);
    if (!adapter.changes.empty() || !adapter.whole.empty()) {
      adapters.push_back({std::move(adapter), choice.weight});
    }
  }
  return adapters;
}

std::vector<data::TokenizerBeside> tokenizers_beside(const fs::path& path) {
  const std::vector<JointPart> parts = joint_parts(path);
  std::vector<data::TokenizerBeside> beside;
  const std::optional<size_t> main = main_part(parts);
  for (size_t i = 0; main && i < parts.size(); ++i) {
    if (i == *main) {
      continue;
    }
    const models::ClipTextConfig clip = clip_of(parts[i]);
    auto tokenizer = std::make_shared<const tokenizers::Tokenizer>(
        tokenizers::Tokenizer::load(parts[i].tokenizer));
    check_vocabulary(*tokenizer, "the text encoder of " + parts[i].path.string(), clip.vocab_size);
    beside.push_back({.tokenizer = std::move(tokenizer), .length = clip.max_position_embeddings});
  }
  return beside;
}

std::string text_encoder_fingerprint(const fs::path& path, const std::string& prefix) {
  std::string all;
  for (const JointPart& part : prefix.empty() ? joint_parts(path) : std::vector<JointPart>()) {
    all += (all.empty() ? "" : "+") + fingerprint_of(part.path, part.prefix);
  }
  return all.empty() ? fingerprint_of(path, prefix) : all;
}

}  // namespace kinora::pipelines
