#include "kinora/pipelines/diffusers_unet.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "kinora/core/error.h"

namespace kinora::pipelines {
namespace {

using nlohmann::json;

constexpr int64_t kPixels = 8;  // along a side of one value of latents

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

/// Whether each level attends.
std::vector<bool> attends(const DiffusersConfig& config, const char* key, const char* with,
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

/// Keys that change what is computed, and their one value here.
void check_rest(const DiffusersConfig& config, int64_t first_channels) {
  for (const char* key :
       {"class_embed_type", "cross_attention_norm", "encoder_hid_dim", "encoder_hid_dim_type",
        "mid_block_only_cross_attention", "num_attention_heads", "num_class_embeds",
        "reverse_transformer_layers_per_block", "time_cond_proj_dim", "time_embedding_act_fn",
        "timestep_post_act"}) {
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
  constexpr const char* kType = "addition_embed_type";
  constexpr const char* kSum = "projection_class_embeddings_input_dim";
  if (!config.has(kType) || config.is(kType, "null")) {
    KINORA_CHECK(!config.has(kSum) || config.is(kSum, "null"), kConfig, config.message(), kSum,
                 " must be null without ", kType, ", got ", config.written(kSum));
    return {};
  }
  KINORA_CHECK(config.is(kType, "text_time"), kConfig, config.message(), kType,
               " must be null or text_time, got ", config.written(kType));
  const auto sum = config.get<int64_t>(kSum, 0);
  Added added{.size_channels = config.get<int64_t>("addition_time_embed_dim", 0)};
  const auto pipeline =
      (config.path().parent_path() / ".." / "model_index.json").lexically_normal();
  added.reads_score = std::filesystem::is_regular_file(pipeline)
                          ? DiffusersConfig(pipeline).get<bool>("requires_aesthetics_score", false)
                          : sum - 5 * added.size_channels == text_channels;
  added.pooled_channels = sum - (added.reads_score ? 5 : 6) * added.size_channels;
  KINORA_CHECK(added.size_channels > 0 && added.pooled_channels > 0, kConfig, config.message(),
               "addition_time_embed_dim and ", kSum, " must leave room for a vector behind ",
               added.reads_score ? 5 : 6, " numbers, got ", added.size_channels, " and ", sum);
  return added;
}

}  // namespace

std::string unet_keys(const DiffusersConfig& config) {
  const auto channels =
      config.get<std::vector<int64_t>>("block_out_channels", {320, 640, 1280, 1280});
  const size_t levels = channels.size();
  KINORA_CHECK(levels > 0, kConfig, config.message(), "block_out_channels must not be empty");
  check_rest(config, channels.front());
  const auto down = attends(config, "down_block_types", kAttendingDown, kDown,
                            {kAttendingDown, kAttendingDown, kAttendingDown, kDown}, levels);
  auto up = attends(config, "up_block_types", kAttendingUp, kUp,
                    {kUp, kAttendingUp, kAttendingUp, kAttendingUp}, levels);
  std::reverse(up.begin(), up.end());
  KINORA_CHECK(down == up, kConfig, config.message(),
               "up_block_types must attend where down_block_types do, got ",
               config.written("up_block_types"), " and ", config.written("down_block_types"));
  const auto middle = config.get<std::string>("mid_block_type", kAttendingMiddle);
  KINORA_CHECK(middle == kAttendingMiddle || middle == kMiddle, kConfig, config.message(),
               "mid_block_type must be ", kAttendingMiddle, " or ", kMiddle, ", got ", middle);
  std::vector<int64_t> depths = each(config, "transformer_layers_per_block", levels, 1);
  const int64_t middle_depth = middle == kMiddle ? 0 : depths.back();
  for (size_t level = 0; level < levels; ++level) {
    depths[level] = down[level] ? depths[level] : 0;
  }
  const auto in_channels = config.get<int64_t>("in_channels", 4);
  const auto out_channels = config.get<int64_t>("out_channels", 4);
  KINORA_CHECK(out_channels == in_channels || out_channels == 2 * in_channels, kConfig,
               config.message(), "out_channels must be in_channels or twice as many, got ",
               out_channels, " and ", in_channels);
  const auto size = config.is_list("sample_size")
                        ? config.get<std::vector<int64_t>>("sample_size", {})
                        : std::vector(2, config.get<int64_t>("sample_size", 64));
  KINORA_CHECK(size.size() == 2, kConfig, config.message(),
               "sample_size must be one number or two, got ", config.written("sample_size"));
  const int64_t text_channels = same(config, "cross_attention_dim", levels, 1280);
  const Added added = added_by(config, text_channels);
  return json({{"architecture", "unet"},
               {"in_channels", in_channels},
               {"learn_sigma", out_channels != in_channels},
               {"height", size[0]},
               {"width", size[1]},
               {"compression", kPixels},
               {"text_channels", text_channels},
               {"text_tokens", 77},
               {"pooled_channels", added.pooled_channels},
               {"unet",
                {{"channels", channels},
                 {"resnets", same(config, "layers_per_block", levels, 2)},
                 {"depths", depths},
                 {"middle_depth", middle_depth},
                 {"heads", each(config, "attention_head_dim", levels, 8)},
                 {"norm_groups", config.get<int64_t>("norm_num_groups", 32)},
                 {"norm_epsilon", config.get<double>("norm_eps", 1e-5)},
                 {"linear_projection", config.get<bool>("use_linear_projection", false)},
                 {"size_channels", added.size_channels},
                 {"reads_score", added.reads_score}}}})
      .dump();
}

std::string describe_unet(const models::ModelConfig& model) {
  const models::UnetConfig& own = model.unet;
  std::vector<std::string> down;
  std::vector<std::string> up;
  std::vector<int64_t> depths;
  for (const int64_t depth : own.depths) {
    down.emplace_back(depth > 0 ? kAttendingDown : kDown);
    up.emplace_back(depth > 0 ? kAttendingUp : kUp);
    depths.push_back(std::max<int64_t>(depth, 1));
  }
  std::ranges::reverse(up);
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
                 {"center_input_sample", false},
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
                 {"out_channels", model.out_channels()},
                 {"sample_size", model.height},
                 {"transformer_layers_per_block", depths},
                 {"up_block_types", up},
                 {"use_linear_projection", own.linear_projection}};
  if (model.pooled_channels > 0) {
    config["addition_embed_type"] = "text_time";
    config["addition_time_embed_dim"] = own.size_channels;
    config["projection_class_embeddings_input_dim"] =
        model.pooled_channels + own.size_numbers() * own.size_channels;
  }
  if (model.height != model.width) {
    config["sample_size"] = {model.height, model.width};
  }
  return config.dump();
}

}  // namespace kinora::pipelines
