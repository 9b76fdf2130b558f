#include "kinora/pipelines/diffusers_plain_unet.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/pipelines/diffusers_unet.h"

namespace kinora::pipelines {
namespace {

using nlohmann::json;

constexpr const char* kPlainDown = "DownBlock2D";
constexpr const char* kPlainUp = "UpBlock2D";
/// Of those that change sizes in residual blocks.
constexpr const char* kBlocksDown = "ResnetDownsampleBlock2D";
constexpr const char* kBlocksUp = "ResnetUpsampleBlock2D";
constexpr const char* kPlaceDown = "AttnDownBlock2D";
constexpr const char* kPlaceUp = "AttnUpBlock2D";
constexpr const char* kPlainMiddle = "UNetMidBlock2D";
constexpr const char* kHeadWidth = "attention_head_dim";
constexpr const char* kPlainClasses = "num_class_embeds";
/// How residual blocks read the time, and what changes sizes: ours, and where not.
constexpr const char* kTimeKey = "resnet_time_scale_shift";
constexpr const char* kScales = "scale_shift";
constexpr const char* kAdds = "default";
constexpr const char* kResizeKeys[] = {"downsample_type", "upsample_type"};
constexpr const char* kMiddleGroups = "attn_norm_num_groups";
constexpr const char* kInBlocks = "resnet";
constexpr const char* kByConvolutions = "conv";

/// Whether a key has the first of two values, else the second.
bool is_first_of(const DiffusersConfig& config, const char* key, const char* first,
                 const char* second) {
  const auto value = config.get<std::string>(key, second);
  KINORA_CHECK(value == first || value == second, kConfig, config.message(), key, " must be ",
               first, " or ", second, ", got ", config.written(key));
  return value == first;
}

/// Keys that change what is computed, and their one value here.
void check_plain_rest(const DiffusersConfig& config, int64_t first_channels) {
  KINORA_CHECK(!config.has("class_embed_type"), kConfig, config.message(),
               "class_embed_type must be null, got ", config.written("class_embed_type"));
  KINORA_CHECK(!config.is_null("mid_block_type"), kConfig, config.message(),
               "mid_block_type must be ", kPlainMiddle, ", got null");
  config.require<bool>("center_input_sample", false, false);
  config.require<double>("mid_block_scale_factor", 1.0, 1.0);
  config.require<double>("dropout", 0.0, 0.0);
  config.require<std::string>("act_fn", "silu", "silu");
  config.require<std::string>("time_embedding_type", "positional", "positional");
  config.require<std::string>("mid_block_type", kPlainMiddle, kPlainMiddle);
  config.require<int64_t>("time_embedding_dim", 4 * first_channels, 4 * first_channels);
  const auto groups = config.get<int64_t>("norm_num_groups", 32);
  config.require<int64_t>(kMiddleGroups, groups, groups);
  const bool may_lack_norm =
      is_first_of(config, kTimeKey, kScales, kAdds) && config.get<bool>("add_attention", true);
  KINORA_CHECK(!may_lack_norm || config.has(kMiddleGroups), kConfig, config.message(),
               kMiddleGroups, " must be ", groups, " with ", kTimeKey, " ", kScales,
               ", without which the middle attends without a norm, got null");
}

/// Heads of each level, of which those that do not attend have one.
std::vector<int64_t> heads_of(const DiffusersConfig& config, const std::vector<int64_t>& channels,
                              const std::vector<int64_t>& depths) {
  std::vector<int64_t> heads(channels.size(), 1);
  if (!config.is_null(kHeadWidth)) {
    const auto width = config.get<int64_t>(kHeadWidth, 8);
    for (size_t level = 0; level < channels.size(); ++level) {
      const bool attends = depths[level] > 0 || level + 1 == channels.size();
      KINORA_CHECK(width > 0 && (!attends || channels[level] % width == 0), kConfig,
                   config.message(), kHeadWidth, " must divide the channels of a level, ",
                   channels[level], ", got ", width);
      heads[level] = attends ? channels[level] / width : 1;
    }
  }
  return heads;
}

/// The channels of every head; null where each level has one head.
json head_width(const models::UnetConfig& own) {
  if (std::ranges::all_of(own.heads, [](int64_t heads) { return heads == 1; })) {
    return nullptr;
  }
  const int64_t width = own.channels.back() / own.heads.back();
  for (size_t level = 0; level < own.heads.size(); ++level) {
    const int64_t its = own.channels[level] / own.heads[level];
    KINORA_CHECK(own.depths[level] == 0 || its == width, kConfig,
                 "[diffusers] heads of all levels (model.unet.heads) must have as many channels, ",
                 width, ", for diffusers, got ", its,
                 ". Hint: write a .safetensors file, which has our names");
  }
  return width;
}

}  // namespace

bool is_plain_unet(const models::ModelConfig& model) {
  return model.unet.attends == models::UnetAttends::kPlaces;
}

std::string plain_unet_keys(const DiffusersConfig& config) {
  const auto channels =
      config.get<std::vector<int64_t>>("block_out_channels", {224, 448, 672, 896});
  const size_t levels = channels.size();
  KINORA_CHECK(levels > 0, kConfig, config.message(), "block_out_channels must not be empty");
  check_plain_rest(config, channels.front());
  const bool resizes = is_first_of(config, kResizeKeys[0], kInBlocks, kByConvolutions);
  KINORA_CHECK(is_first_of(config, kResizeKeys[1], kInBlocks, kByConvolutions) == resizes, kConfig,
               config.message(), kResizeKeys[0], " and ", kResizeKeys[1], " must be the same, got ",
               config.written(kResizeKeys[0]), " and ", config.written(kResizeKeys[1]));
  const char* const plain_down = resizes ? kBlocksDown : kPlainDown;
  const char* const plain_up = resizes ? kBlocksUp : kPlainUp;
  const auto down = attending_levels(config, "down_block_types", kPlaceDown, plain_down,
                                     {kPlainDown, kPlaceDown, kPlaceDown, kPlaceDown}, levels);
  auto up = attending_levels(config, "up_block_types", kPlaceUp, plain_up,
                             {kPlaceUp, kPlaceUp, kPlaceUp, kPlainUp}, levels);
  std::reverse(up.begin(), up.end());
  KINORA_CHECK(down == up, kConfig, config.message(),
               "up_block_types must attend where down_block_types do, got ",
               config.written("up_block_types"), " and ", config.written("down_block_types"));
  const std::vector<int64_t> depths(down.begin(), down.end());
  const auto in = config.get<int64_t>("in_channels", 3);
  const auto out = config.get<int64_t>("out_channels", 3);
  KINORA_CHECK(in > 0 && (out == in || out == 2 * in), kConfig, config.message(),
               "out_channels must be in_channels or twice as many, got ", out, " and ", in);
  const auto size = config.is_list("sample_size")
                        ? config.get<std::vector<int64_t>>("sample_size", {})
                        : std::vector(2, config.get<int64_t>("sample_size", 0));
  KINORA_CHECK(size.size() == 2, kConfig, config.message(),
               "sample_size must be one number or two, got ", config.written("sample_size"));
  const auto padding = config.get<int64_t>("downsample_padding", 1);
  KINORA_CHECK(padding == 0 || padding == 1, kConfig, config.message(),
               "downsample_padding must be 0 or 1, got ", padding);
  const auto classes = config.has(kPlainClasses) ? config.get<int64_t>(kPlainClasses, 0) : 2;
  KINORA_CHECK(classes > 1, kConfig, config.message(), kPlainClasses,
               " must count a class and the null class, 2 or more, got ", classes);
  const auto told =
      config.has(kPlainClasses) ? models::UnetClasses::kTime : models::UnetClasses::kNone;
  return json({{"architecture", "class_unet"},
               {"num_classes", classes - 1},
               {"in_channels", in},
               {"learn_sigma", out > in},
               {"height", size[0]},
               {"width", size[1]},
               {"unet",
                {{"input", to_string(models::ShownInput::kPlain)},
                 {"attends", to_string(models::UnetAttends::kPlaces)},
                 {"classes", to_string(told)},
                 {"channels", channels},
                 {"resnets", config.get<int64_t>("layers_per_block", 2)},
                 {"depths", depths},
                 {"middle_depth", config.get<bool>("add_attention", true) ? 1 : 0},
                 {"heads", heads_of(config, channels, depths)},
                 {"norm_groups", config.get<int64_t>("norm_num_groups", 32)},
                 {"norm_epsilon", config.get<double>("norm_eps", 1e-5)},
                 {"sines_first", !config.get<bool>("flip_sin_to_cos", true)},
                 {"time_shift", config.get<int64_t>("freq_shift", 0)},
                 {"pads_behind", padding == 0},
                 {"scales_by_time", is_first_of(config, kTimeKey, kScales, kAdds)},
                 {"resizes_in_blocks", resizes}}}})
      .dump();
}

std::string describe_plain_unet(const models::ModelConfig& model) {
  const models::UnetConfig& own = model.unet;
  std::vector<std::string> down;
  std::vector<std::string> up;
  for (const int64_t depth : own.depths) {
    down.emplace_back(depth > 0 ? kPlaceDown : own.resizes_in_blocks ? kBlocksDown : kPlainDown);
    up.emplace_back(depth > 0 ? kPlaceUp : own.resizes_in_blocks ? kBlocksUp : kPlainUp);
  }
  std::ranges::reverse(up);
  json config = {{"act_fn", "silu"},
                 {"add_attention", own.middle_depth > 0},
                 {kHeadWidth, head_width(own)},
                 {"block_out_channels", own.channels},
                 {"center_input_sample", false},
                 {"down_block_types", down},
                 {"downsample_padding", own.pads_behind ? 0 : 1},
                 {"flip_sin_to_cos", !own.sines_first},
                 {"freq_shift", own.time_shift},
                 {"in_channels", model.in_channels},
                 {"layers_per_block", own.resnets},
                 {"mid_block_scale_factor", 1},
                 {"norm_eps", own.norm_epsilon},
                 {"norm_num_groups", own.norm_groups},
                 {"out_channels", model.out_channels()},
                 {kTimeKey, own.scales_by_time ? kScales : kAdds},
                 {kResizeKeys[0], own.resizes_in_blocks ? kInBlocks : kByConvolutions},
                 {kResizeKeys[1], own.resizes_in_blocks ? kInBlocks : kByConvolutions},
                 {"sample_size", model.height},
                 {"time_embedding_type", "positional"},
                 {"up_block_types", up}};
  if (own.scales_by_time) {
    config[kMiddleGroups] = own.norm_groups;
  }
  if (model.height != model.width) {
    config["sample_size"] = {model.height, model.width};
  }
  if (own.classes == models::UnetClasses::kTime) {
    config[kPlainClasses] = model.num_classes + 1;
  }
  return config.dump();
}

}  // namespace kinora::pipelines
