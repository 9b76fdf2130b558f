#include "kinora/pipelines/diffusers_unet.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>

#include "kinora/checkpoint/weights_paths.h"
#include "kinora/core/error.h"
#include "kinora/io/safetensors.h"
#include "kinora/models/families.h"
#include "kinora/models/unets/unet_names.h"

namespace kinora::pipelines {
namespace {

using nlohmann::json;

constexpr int64_t kPixels = 8;  // along a side of one value of latents

/// What is read besides text, and its widths.
constexpr const char* kAddedType = "addition_embed_type";
constexpr const char* kTextAndSizes = "text_time";
constexpr const char* kSizeChannels = "addition_time_embed_dim";
constexpr const char* kAddedSum = "projection_class_embeddings_input_dim";
/// Vectors of classes that are added to the embedded time.
constexpr const char* kClassCount = "num_class_embeds";

/// A level: the names of its blocks on the way down and up, with and without attention.
constexpr const char* kDown = "DownBlock2D";
constexpr const char* kUp = "UpBlock2D";
constexpr const char* kMiddle = "UNetMidBlock2D";
constexpr const char* kAttendingDown = "CrossAttnDownBlock2D";
constexpr const char* kAttendingUp = "CrossAttnUpBlock2D";
constexpr const char* kAttendingMiddle = "UNetMidBlock2DCrossAttn";

/// One entry a level, where the file has a list or a value for all.
std::vector<int64_t> each(const DiffusersConfig& config, const char* key, size_t levels,
                          int64_t otherwise) {
  if (!config.is_list(key)) {
    return std::vector(levels, config.get<int64_t>(key, otherwise));
  }
  auto values = config.get<std::vector<int64_t>>(key, {});
  KINORA_CHECK(values.size() == levels, kConfig, config.message(), key, " must have ", levels,
               " entries, one for each of block_out_channels, got ", values.size());
  return values;
}

/// The one value of all entries.
int64_t same(const DiffusersConfig& config, const char* key, size_t levels, int64_t otherwise) {
  const std::vector<int64_t> values = each(config, key, levels, otherwise);
  KINORA_CHECK(std::ranges::count(values, values.front()) == std::ssize(values), kConfig,
               config.message(), key, " must be the same on all levels, got ", config.written(key));
  return values.front();
}

models::UnetChannels channels_of(const DiffusersConfig& config) {
  const auto in = config.get<int64_t>("in_channels", 4);
  const auto out = config.get<int64_t>("out_channels", 4);
  const auto channels = models::unet_channels(in, out);
  KINORA_CHECK(channels.has_value(), kConfig, config.message(),
               "in_channels must be out_channels, half as many, twice as many (instruct-pix2pix) "
               "or twice as many and one (inpainting), got ",
               in, " and ", out);
  return *channels;
}

/// Keys that change what is computed, and their one value here.
void check_rest(const DiffusersConfig& config, int64_t first_channels) {
  for (const char* key : {"class_embed_type", "cross_attention_norm", "encoder_hid_dim",
                          "encoder_hid_dim_type", "mid_block_only_cross_attention",
                          "num_attention_heads", "reverse_transformer_layers_per_block",
                          "time_cond_proj_dim", "time_embedding_act_fn", "timestep_post_act"}) {
    KINORA_CHECK(!config.has(key) || config.is(key, "null") || config.written(key) == "false",
                 kConfig, config.message(), key, " must be null, got ", config.written(key));
  }
  for (const char* key : {"center_input_sample", "class_embeddings_concat", "dual_cross_attention",
                          "resnet_skip_time_act"}) {
    config.require<bool>(key, false, false);
  }
  if (config.is_list("only_cross_attention")) {
    KINORA_CHECK(config.written("only_cross_attention").find("true") == std::string::npos, kConfig,
                 config.message(), "only_cross_attention must be false, got ",
                 config.written("only_cross_attention"));
  } else {
    config.require<bool>("only_cross_attention", false, false);
  }
  config.require<bool>("flip_sin_to_cos", true, true);
  config.require<int64_t>("freq_shift", 0, 0);
  config.require<int64_t>("downsample_padding", 1, 1);
  config.require<int64_t>("conv_in_kernel", 3, 3);
  config.require<int64_t>("conv_out_kernel", 3, 3);
  config.require<double>("mid_block_scale_factor", 1.0, 1.0);
  config.require<double>("resnet_out_scale_factor", 1.0, 1.0);
  config.require<double>("dropout", 0.0, 0.0);
  config.require<std::string>("act_fn", "silu", "silu");
  config.require<std::string>("resnet_time_scale_shift", "default", "default");
  config.require<std::string>("time_embedding_type", "positional", "positional");
  config.require<std::string>("attention_type", "default", "default");
  config.require<int64_t>("time_embedding_dim", 4 * first_channels, 4 * first_channels);
}

/// What the model reads besides text: pooled vectors and sizes (addition_embed_type).
struct Added {
  int64_t pooled_channels = 0;
  int64_t size_channels = 0;
  bool reads_score = false;
};

/// The file says just the sum of all widths, with six numbers or, of the refiner, five. Which of
/// them the pipeline around it says; without one it is the refiner where the vector is as wide as
/// the text, which one encoder makes.
Added added_by(const DiffusersConfig& config, int64_t text_channels) {
  if (!config.has(kAddedType) || config.is(kAddedType, "null")) {
    KINORA_CHECK(!config.has(kAddedSum) || config.is(kAddedSum, "null"), kConfig, config.message(),
                 kAddedSum, " must be null without ", kAddedType, ", got ",
                 config.written(kAddedSum));
    return {};
  }
  KINORA_CHECK(config.is(kAddedType, kTextAndSizes), kConfig, config.message(), kAddedType,
               " must be null or ", kTextAndSizes, ", got ", config.written(kAddedType));
  const auto sum = config.get<int64_t>(kAddedSum, 0);
  Added added{.size_channels = config.get<int64_t>(kSizeChannels, 0)};
  const auto pipeline =
      (config.path().parent_path() / ".." / "model_index.json").lexically_normal();
  added.reads_score = std::filesystem::is_regular_file(pipeline)
                          ? DiffusersConfig(pipeline).get<bool>("requires_aesthetics_score", false)
                          : sum - 5 * added.size_channels == text_channels;
  added.pooled_channels = sum - (added.reads_score ? 5 : 6) * added.size_channels;
  KINORA_CHECK(added.size_channels > 0 && added.pooled_channels > 0, kConfig, config.message(),
               kSizeChannels, " and ", kAddedSum, " must leave room for a vector behind ",
               added.reads_score ? 5 : 6, " numbers, got ", added.size_channels, " and ", sum);
  return added;
}

/// The same of a ControlNet, which must read what the U-Net reads.
void check_added(const DiffusersConfig& config, const models::ModelConfig& model) {
  const bool adds = model.pooled_channels > 0;
  KINORA_CHECK(adds ? config.is(kAddedType, kTextAndSizes)
                    : !config.has(kAddedType) || config.is(kAddedType, "null"),
               kConfig, config.message(), kAddedType, " must be that of the U-Net, ",
               adds ? kTextAndSizes : "null", ", got ", config.written(kAddedType));
  const int64_t sum = adds ? model.unet.added_channels(model.pooled_channels) : 0;
  for (const auto& [key, must] :
       {std::pair{kSizeChannels, model.unet.size_channels}, std::pair{kAddedSum, sum}}) {
    const int64_t got = config.has(key) ? config.get<int64_t>(key, 0) : 0;
    KINORA_CHECK(got == must, kConfig, config.message(), key, " must be that of the U-Net, ", must,
                 ", got ", got);
  }
}

/// Of a U-Net that is told classes: how, and how many beside the null class, the last one.
struct Classes {
  models::UnetClasses told = models::UnetClasses::kNone;
  int64_t count = 0;
};

/// config.json knows classes that are added to the time; the vectors of others lie beside the
/// U-Net's file.
Classes classes_of(const DiffusersConfig& config) {
  const auto beside = config.path().parent_path() / checkpoint::kBesideDiffusers;
  const auto token = !config.path().empty() && std::filesystem::is_regular_file(beside)
                         ? std::optional(io::SafetensorsFile::open(beside))
                         : std::nullopt;
  const io::SafetensorsTensor* const vectors = token ? token->find(models::kClassToken) : nullptr;
  if (vectors != nullptr) {
    KINORA_CHECK(vectors->shape.size() == 2 && vectors->shape[0] > 1 && !config.has(kClassCount),
                 kConfig, "[diffusers] ", beside, " has ", models::kClassToken,
                 ", which must have two dims and vectors for a class and the null class, without ",
                 kClassCount, " in config.json");
    return {.told = models::UnetClasses::kToken, .count = vectors->shape[0] - 1};
  }
  if (!config.has(kClassCount)) {
    return {};
  }
  KINORA_CHECK(!config.has(kAddedType), kConfig, config.message(), kClassCount,
               " must be null with ", kAddedType, ", got ", config.written(kClassCount));
  const auto count = config.get<int64_t>(kClassCount, 0);
  KINORA_CHECK(count > 1, kConfig, config.message(), kClassCount,
               " must count a class and the null class, 2 or more, got ", count);
  return {.told = models::UnetClasses::kTime, .count = count - 1};
}

std::vector<bool> attending_down(const DiffusersConfig& config, size_t levels) {
  return attending_levels(config, "down_block_types", kAttendingDown, kDown,
                          {kAttendingDown, kAttendingDown, kAttendingDown, kDown}, levels);
}

int64_t text_channels(const DiffusersConfig& config, size_t levels) {
  return same(config, "cross_attention_dim", levels, 1280);
}

/// The keys below model.unet of the way down and the middle.
json way_keys(const DiffusersConfig& config) {
  const auto channels =
      config.get<std::vector<int64_t>>("block_out_channels", {320, 640, 1280, 1280});
  const size_t levels = channels.size();
  KINORA_CHECK(levels > 0, kConfig, config.message(), "block_out_channels must not be empty");
  check_rest(config, channels.front());
  const auto down = attending_down(config, levels);
  const auto middle = config.get<std::string>("mid_block_type", kAttendingMiddle);
  KINORA_CHECK(middle == kAttendingMiddle || middle == kMiddle, kConfig, config.message(),
               "mid_block_type must be ", kAttendingMiddle, " or ", kMiddle, ", got ", middle);
  std::vector<int64_t> depths = each(config, "transformer_layers_per_block", levels, 1);
  const int64_t middle_depth = middle == kMiddle ? 0 : depths.back();
  for (size_t level = 0; level < levels; ++level) {
    depths[level] = down[level] ? depths[level] : 0;
  }
  return {{"channels", channels},
          {"resnets", same(config, "layers_per_block", levels, 2)},
          {"depths", depths},
          {"middle_depth", middle_depth},
          {"heads", each(config, "attention_head_dim", levels, 8)},
          {"norm_groups", config.get<int64_t>("norm_num_groups", 32)},
          {"norm_epsilon", config.get<double>("norm_eps", 1e-5)},
          {"linear_projection", config.get<bool>("use_linear_projection", false)}};
}

}  // namespace

std::vector<bool> attending_levels(const DiffusersConfig& config, const char* key, const char* with,
                                   const char* without, const std::vector<std::string>& otherwise,
                                   size_t levels) {
  const auto names = config.get<std::vector<std::string>>(key, otherwise);
  KINORA_CHECK(names.size() == levels, kConfig, config.message(), key, " must have ", levels,
               " entries, one for each of block_out_channels, got ", names.size());
  std::vector<bool> result;
  for (const std::string& name : names) {
    KINORA_CHECK(name == with || name == without, kConfig, config.message(), key, " must be ", with,
                 " or ", without, ", got ", name);
    result.push_back(name == with);
  }
  return result;
}

std::string unet_keys(const DiffusersConfig& config) {
  json unet = way_keys(config);
  const auto channels = unet["channels"].get<std::vector<int64_t>>();
  const size_t levels = channels.size();
  const auto down = attending_down(config, levels);
  auto up = attending_levels(config, "up_block_types", kAttendingUp, kUp,
                             {kUp, kAttendingUp, kAttendingUp, kAttendingUp}, levels);
  std::reverse(up.begin(), up.end());
  KINORA_CHECK(down == up, kConfig, config.message(),
               "up_block_types must attend where down_block_types do, got ",
               config.written("up_block_types"), " and ", config.written("down_block_types"));
  const models::UnetChannels of_input = channels_of(config);
  const auto size = config.is_list("sample_size")
                        ? config.get<std::vector<int64_t>>("sample_size", {})
                        : std::vector(2, config.get<int64_t>("sample_size", 64));
  KINORA_CHECK(size.size() == 2, kConfig, config.message(),
               "sample_size must be one number or two, got ", config.written("sample_size"));
  unet["input"] = to_string(of_input.input);
  const int64_t text_width = text_channels(config, levels);
  const Added added = added_by(config, text_width);
  unet["size_channels"] = added.size_channels;
  unet["reads_score"] = added.reads_score;
  const Classes classes = classes_of(config);
  unet["classes"] = to_string(classes.told);
  return json({{"architecture", classes.count > 0 ? "class_unet" : "unet"},
               {"num_classes", classes.count},
               {"in_channels", of_input.drawn},
               {"learn_sigma", of_input.learn_sigma},
               {"height", size[0]},
               {"width", size[1]},
               {"compression", kPixels},
               {"text_channels", text_width},
               {"text_tokens", 77},
               {"pooled_channels", added.pooled_channels},
               {"unet", unet}})
      .dump();
}

models::ModelConfig with_controls(models::ModelConfig model,
                                  const std::vector<std::filesystem::path>& folders,
                                  const std::vector<double>& scales) {
  models::UnetConfig& own = model.unet;
  KINORA_CHECK(!own.channels.empty(), kConfig,
               "[controlnet] ControlNets are for U-Nets of Stable Diffusion, and this model is "
               "none");
  KINORA_CHECK(own.classes == models::UnetClasses::kNone, kConfig,
               "[controlnet] ControlNets are for U-Nets that are told captions, and this model is "
               "told classes");
  KINORA_CHECK(own.controls == 0 || folders.empty(), kConfig, "[controlnet] this model has ",
               own.controls, " ControlNets of its own, so others cannot be given");
  // What must be as in the U-Net, by the names of diffusers.
  const std::vector<std::tuple<const char*, const char*, json>> shared = {
      {"block_out_channels", "channels", own.channels},
      {"layers_per_block", "resnets", own.resnets},
      {"down_block_types and transformer_layers_per_block", "depths", own.depths},
      {"mid_block_type", "middle_depth", own.middle_depth},
      {"attention_head_dim", "heads", own.heads},
      {"norm_num_groups", "norm_groups", own.norm_groups},
      {"norm_eps", "norm_epsilon", own.norm_epsilon}};
  for (const std::filesystem::path& folder : folders) {
    KINORA_CHECK(std::filesystem::is_regular_file(folder / "config.json"), kIo, "[controlnet] ",
                 folder, " has no config.json. Hint: a folder of a ControlNetModel of diffusers");
    const DiffusersConfig config(folder / "config.json");
    config.require<std::string>("_class_name", kControlClass, "");
    const json way = way_keys(config);
    for (const auto& [name, key, must] : shared) {
      KINORA_CHECK(way[key] == must, kConfig, config.message(), name,
                   " must be those of the U-Net, ", must.dump(), ", got ", way[key].dump());
    }
    const auto expect = [&](const char* key, int64_t got, int64_t must) {
      KINORA_CHECK(got == must, kConfig, config.message(), key, " must be that of the U-Net, ",
                   must, ", got ", got);
    };
    expect("cross_attention_dim", text_channels(config, own.channels.size()), model.text_channels);
    expect("in_channels", config.get<int64_t>("in_channels", 4), model.in_channels);
    config.require<int64_t>("conditioning_channels", 3, 3);
    config.require<std::string>("controlnet_conditioning_channel_order", "rgb", "rgb");
    config.require<bool>("global_pool_conditions", false, false);
    check_added(config, model);
    KINORA_CHECK(!config.has(kClassCount), kConfig, config.message(), kClassCount,
                 " must be that of the U-Net, null, got ", config.written(kClassCount));
    const auto widths = config.get<std::vector<int64_t>>("conditioning_embedding_out_channels",
                                                         own.control_channels);
    KINORA_CHECK(!widths.empty() && (own.controls == 0 || widths == own.control_channels), kConfig,
                 config.message(),
                 "conditioning_embedding_out_channels must not be empty, and be those of the "
                 "ControlNets beside it, got ",
                 config.written("conditioning_embedding_out_channels"));
    KINORA_CHECK(int64_t{1} << (widths.size() - 1) == model.compression, kConfig, config.message(),
                 "conditioning_embedding_out_channels must make a picture ", model.compression,
                 " times smaller, as the autoencoder does, got ", widths.size(), " widths");
    own.control_channels = widths;
    ++own.controls;
  }
  if (!scales.empty()) {
    own.control_scales = scales;
  }
  KINORA_CHECK(own.control_scales.empty() || std::ssize(own.control_scales) == own.controls,
               kConfig, "[controlnet] there must be a scale for each of ", own.controls,
               " ControlNets, got ", own.control_scales.size());
  return model;
}

namespace {

/// The keys that a U-Net and its ControlNets share.
json describe_way(const models::ModelConfig& model) {
  const models::UnetConfig& own = model.unet;
  std::vector<std::string> down;
  std::vector<int64_t> depths;
  for (const int64_t depth : own.depths) {
    down.emplace_back(depth > 0 ? kAttendingDown : kDown);
    depths.push_back(std::max<int64_t>(depth, 1));
  }
  // The middle's depth is that of the last level, which otherwise does not attend.
  KINORA_CHECK(
      own.middle_depth == 0 || own.depths.back() == 0 || own.depths.back() == own.middle_depth,
      kConfig, "[diffusers] model.unet.middle_depth must be that of the last level, ",
      own.depths.back(), ", for diffusers, got ", own.middle_depth,
      ". Hint: write a .safetensors file, which has our names");
  if (own.depths.back() == 0) {
    depths.back() = std::max<int64_t>(own.middle_depth, 1);
  }
  json config = {{"act_fn", "silu"},
                 {"attention_head_dim", own.heads},
                 {"block_out_channels", own.channels},
                 {"cross_attention_dim", model.text_channels},
                 {"down_block_types", down},
                 {"downsample_padding", 1},
                 {"flip_sin_to_cos", true},
                 {"freq_shift", 0},
                 {"in_channels", model.in_channels},
                 {"layers_per_block", own.resnets},
                 {"mid_block_scale_factor", 1},
                 {"mid_block_type", own.middle_depth > 0 ? kAttendingMiddle : kMiddle},
                 {"norm_eps", own.norm_epsilon},
                 {"norm_num_groups", own.norm_groups},
                 {"transformer_layers_per_block", depths},
                 {"use_linear_projection", own.linear_projection}};
  if (model.pooled_channels > 0) {
    config[kAddedType] = kTextAndSizes;
    config[kSizeChannels] = own.size_channels;
    config[kAddedSum] = own.added_channels(model.pooled_channels);
  }
  return config;
}

}  // namespace

std::string describe_unet(const models::ModelConfig& model) {
  const models::UnetConfig& own = model.unet;
  std::vector<std::string> up;
  for (const int64_t depth : own.depths) {
    up.emplace_back(depth > 0 ? kAttendingUp : kUp);
  }
  std::ranges::reverse(up);
  json config = describe_way(model);
  config["center_input_sample"] = false;
  config["in_channels"] = model.in_channels + own.channels_beside(model.in_channels);
  config["out_channels"] = model.out_channels();
  config["sample_size"] = model.height;
  config["up_block_types"] = up;
  if (own.classes == models::UnetClasses::kTime) {
    config[kClassCount] = model.num_classes + 1;
  }
  if (model.height != model.width) {
    config["sample_size"] = {model.height, model.width};
  }
  return config.dump();
}

void start_controls(const models::ModelConfig& model, checkpoint::LateTensors& tensors) {
  const checkpoint::LateTensors unet = tensors;
  for (int64_t i = 0; i < model.unet.controls; ++i) {
    for (const auto& [name, tensor] : unet) {
      for (const char* part :
           {"conv_in.", "time_embedding.", "add_embedding.", "down_blocks.", "mid_block."}) {
        if (name.starts_with(part)) {
          tensors.emplace(models::control_prefix(i) + name, tensor);
        }
      }
    }
  }
}

std::string describe_control(const models::ModelConfig& model) {
  json config = describe_way(model);
  config["conditioning_channels"] = 3;
  config["conditioning_embedding_out_channels"] = model.unet.control_channels;
  config["controlnet_conditioning_channel_order"] = "rgb";
  config["global_pool_conditions"] = false;
  return config.dump();
}

}  // namespace kinora::pipelines
