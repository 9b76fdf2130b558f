#include "kinora/models/families.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/models/model.h"
#include "kinora/models/transformers/cogvideox.h"
#include "kinora/models/transformers/diffusers_names.h"
#include "kinora/models/transformers/dit.h"
#include "kinora/models/transformers/latte.h"
#include "kinora/models/transformers/latte_t2v.h"
#include "kinora/models/transformers/ltx_video.h"
#include "kinora/models/transformers/mmdit.h"
#include "kinora/models/transformers/original_names.h"
#include "kinora/models/transformers/pixart.h"
#include "kinora/models/transformers/stdit.h"
#include "kinora/models/transformers/stdit2.h"
#include "kinora/models/transformers/stdit3.h"
#include "kinora/models/transformers/transformer_family.h"
#include "kinora/models/transformers/vdit.h"
#include "kinora/models/transformers/wan.h"
#include "kinora/models/unets/unet.h"
#include "kinora/models/unets/unet_names.h"
#include "kinora/ops/block_kernels.h"

namespace kinora::models {
namespace {

constexpr int64_t kT5Width = 4096;
constexpr int64_t kClipTokens = 77;
constexpr int64_t kClipWidth = 512;  // of the pooled vector of CLIP ViT-B/32

PublishedSize size(std::string name, int64_t depth, int64_t hidden, int64_t heads) {
  return {std::move(name), {.transformer = {.depth = depth, .hidden = hidden, .heads = heads}}};
}

PublishedSize text_size(std::string name, int64_t depth, int64_t hidden, int64_t heads,
                        int64_t text_channels, int64_t text_tokens, bool size_conditions = false) {
  PublishedSize made = size(std::move(name), depth, hidden, heads);
  made.values.text_channels = text_channels;
  made.values.text_tokens = text_tokens;
  made.values.transformer.size_conditions = size_conditions;
  return made;
}

constexpr int64_t kClipTowers = 2048;  // of CLIP ViT-L and bigG, one behind the other
constexpr int64_t kBigGWidth = 1280;   // of CLIP ViT-bigG and of its pooled vector
constexpr int64_t kSizeChannels = 256;

/// Of SDXL.
PublishedSize xl_size(std::string name, int64_t text_channels, UnetConfig unet) {
  unet.resnets = 2;
  unet.linear_projection = true;
  unet.size_channels = kSizeChannels;
  return {std::move(name),
          {.text_channels = text_channels,
           .text_tokens = kClipTokens,
           .pooled_channels = kBigGWidth,
           .unet = std::move(unet)}};
}

/// Of Stable Diffusion 1 and 2.
PublishedSize unet_size(std::string name, std::vector<int64_t> heads, int64_t text_channels,
                        bool linear_projection) {
  return {std::move(name),
          {.text_channels = text_channels,
           .text_tokens = kClipTokens,
           .unet = {.channels = {320, 640, 1280, 1280},
                    .resnets = 2,
                    .depths = {1, 1, 1, 0},
                    .middle_depth = 1,
                    .heads = std::move(heads),
                    .linear_projection = linear_projection}}};
}

/// One row each.
/// A row of U-Nets with what they share.
Family of_unets(Family row) {
  row.beside_blocks = "group norms and sums own, convolutions of libtorch";
  row.takes_any_size = true;
  row.resolve = Unet::resolve;
  row.shape = Unet::shape;
  row.macs = Unet::macs;
  row.fp8_macs = Unet::fp8_macs;
  row.make = make<Unet>;
  row.diffusers = DiffusersFamily{.class_name = "UNet2DConditionModel",
                                  .pipeline = "",
                                  .naming = unet_naming,
                                  .find_naming = find_unet_naming};
  row.compvis_naming = compvis_unet_naming;
  return row;
}

constexpr int64_t kClipL = 768;           // pooled vector of CLIP ViT-L
constexpr int64_t kSd3Tokens = 77 + 256;  // of CLIP and of T5, one behind the other

/// Of Stable Diffusion 3. grid: side of its table of positions; the table is that of 64 patches,
/// stretched.
PublishedSize sd3_size(std::string name, int64_t depth, int64_t grid, ops::Switch qk_norm,
                       int64_t second_attention) {
  std::vector<int64_t> second(static_cast<size_t>(second_attention));
  std::iota(second.begin(), second.end(), 0);
  return {std::move(name),
          {.text_channels = kT5Width,
           .text_tokens = kSd3Tokens,
           .pooled_channels = kClipTowers,  // of both CLIPs
           .transformer = {.depth = depth,
                           .hidden = 64 * depth,
                           .heads = depth,
                           .patch = 2,
                           .qk_norm = qk_norm,
                           .position_scale = static_cast<double>(grid) / 64.0,
                           .second_attention = std::move(second),
                           .position_grid = grid}}};
}

/// Of Flux' line.
PublishedSize flux_size(std::string name, int64_t text_tokens, double guidance, int64_t patch,
                        bool given) {
  return {std::move(name),
          {.text_channels = kT5Width,
           .text_tokens = text_tokens,
           .pooled_channels = kClipL,
           .transformer = {.depth = 19,
                           .hidden = 3072,
                           .heads = 24,
                           .patch = patch,
                           .qk_norm = ops::Switch::kOn,
                           .given_embedders = given,
                           .parallel_depth = 38,
                           .rotary_axes = {16, 56, 56},
                           .guidance = guidance}}};
}

PublishedSize shown_flux_size(std::string name, double guidance, ShownInput input) {
  PublishedSize made = flux_size(std::move(name), 512, guidance, 2, false);
  made.values.transformer.input = input;
  return made;
}

constexpr int64_t kClipHStates = 257;  // of CLIP ViT-H/14, of a picture
constexpr int64_t kClipHWidth = 1280;

/// Of Wan. mlp: hidden width of the MLP.
PublishedSize wan_size(std::string name, int64_t depth, int64_t hidden, int64_t mlp) {
  PublishedSize made = text_size(std::move(name), depth, hidden, hidden / 128, kT5Width, 512);
  made.values.transformer.patch = 2;
  made.values.transformer.mlp_ratio = static_cast<double>(mlp) / static_cast<double>(hidden);
  return made;
}

/// Of those of 14 B parameters that are shown frames. images: width of their states that it reads;
/// positions: of these.
PublishedSize wan_shown(std::string name, int64_t images, int64_t positions) {
  PublishedSize made = wan_size(std::move(name), 40, 5120, 13824);
  made.values.transformer.given_embedders = true;
  made.values.transformer.image_channels = images;
  made.values.transformer.image_positions = positions;
  return made;
}

/// Of LTX-Video.
PublishedSize ltx_size(std::string name, int64_t depth, int64_t hidden, int64_t heads) {
  PublishedSize made = text_size(std::move(name), depth, hidden, heads, kT5Width, 128);
  made.values.compression = 32;
  made.values.frame_compression = 8;
  made.values.transformer.patch = 1;
  return made;
}

constexpr int64_t kHunyuanTokens = 256;  // of the caption, behind the words that it stands in

/// Of HunyuanVideo.
PublishedSize hunyuan_size(std::string name) {
  PublishedSize made = flux_size(std::move(name), kHunyuanTokens, 6.0, 2, false);
  made.values.transformer.depth = 20;
  made.values.transformer.parallel_depth = 40;
  return made;
}

/// Of those that go on from a picture: shown clean in the clip, or beside it.
PublishedSize hunyuan_shown(std::string name, bool is_clean) {
  PublishedSize made = hunyuan_size(std::move(name));
  made.values.text_tokens = text_tokens_with_picture(is_clean);
  TransformerConfig& its = made.values.transformer;
  its.clean_first_frame = is_clean;
  its.given_embedders = !is_clean;
  its.guidance = is_clean ? its.guidance : 0.0;
  return made;
}

constexpr int64_t kCogTokens = 226;

/// Of CogVideoX.
PublishedSize cog_size(std::string name, int64_t depth, TransformerConfig its) {
  its.depth = depth;
  its.hidden = 64 * its.heads;
  its.patch = 2;
  its.position_scale = 1.875;  // of sinusoids
  return {std::move(name),
          {.text_channels = kT5Width, .text_tokens = kCogTokens, .transformer = std::move(its)}};
}

/// A row of multimodal transformers with what they share.
Family of_mmdits(Family row) {
  row.takes_any_size = true;
  row.pads_captions = !row.keeps_captions;
  row.spans = {nn::Span::kClip};
  row.has_text_stream = true;
  row.resolve = MMDiT::resolve;
  row.macs = MMDiT::macs;
  row.make = make<MMDiT>;
  return row;
}

std::deque<Family> make_families() {
  const std::vector<PublishedPatch> patch_of_two = {{"2", 1, 2}};
  const std::vector<PublishedPatch> clip_patches = {{"1x2x2", 1, 2}, {"2x2x2", 2, 2}};
  return {
      // Peebles and Xie 2023, "Scalable diffusion models with transformers", table 1.
      {.key = "dit",
       .name = "DiT",
       .conditions = {.labels = true},
       .spans = {nn::Span::kFrame},
       .sizes = {size("S", 12, 384, 6), size("B", 12, 768, 12), size("L", 24, 1024, 16),
                 size("XL", 28, 1152, 16)},
       .patches = {{"2", 1, 2}, {"4", 1, 4}, {"8", 1, 8}},
       .resolve = resolve_transformer,
       .macs = DiT::macs,
       .make = make<DiT>,
       .diffusers = DiffusersFamily{.class_name = "DiTTransformer2DModel",
                                    .pipeline = "DiTPipeline",
                                    .naming = dit_naming,
                                    .find_naming = find_dit_naming}},
      // OpenDiT 1.0: DiT with attention over a whole clip.
      {.key = "vdit",
       .name = "VDiT",
       .is_video = true,
       .conditions = {.tokens = true, .pooled = true},
       .spans = {nn::Span::kClip},
       .sizes = {text_size("XL", 28, 1152, 16, kClipWidth, 1)},
       .patches = clip_patches,
       .resolve = resolve_transformer,
       .macs = VDiT::macs,
       .make = make<VDiT>},
      // OpenDiT 1.0: blocks alternate between space and time.
      {.key = "latte",
       .name = "Latte",
       .is_video = true,
       .conditions = {.tokens = true, .pooled = true},
       .spans = {nn::Span::kFrame, nn::Span::kTime},
       .sizes = {text_size("XL", 28, 1152, 16, kClipWidth, 1)},
       .patches = clip_patches,
       .resolve = resolve_transformer,
       .macs = Latte::macs,
       .make = make<Latte>},
      // Open-Sora 1.0.
      {.key = "stdit",
       .name = "STDiT",
       .is_video = true,
       .conditions = {.text = true, .tokens = true, .frame_mask = true},
       .spans = {nn::Span::kFrame, nn::Span::kTime},
       .own_keys = {"qk_norm", "position_scale", "time_position_scale"},
       .sizes = {text_size("XL", 28, 1152, 16, kT5Width, 120)},
       .patches = patch_of_two,
       .resolve = resolve_transformer,
       .macs = STDiT::macs,
       .make = make<STDiT>},
      // Open-Sora 1.1.
      {.key = "stdit2",
       .name = "STDiT2",
       .is_video = true,
       .conditions = {.text = true,
                      .tokens = true,
                      .fps = true,
                      .size = true,
                      .num_frames = true,
                      .frame_mask = true},
       .takes_any_size = true,
       .spans = {nn::Span::kFrame, nn::Span::kTime},
       .qk_norm = true,
       .own_keys = {"qk_norm", "base_pixels"},
       .sizes = {text_size("XL", 28, 1152, 16, kT5Width, 120)},
       .patches = patch_of_two,
       .resolve = STDiT2::resolve,
       .macs = STDiT2::macs,
       .make = make<STDiT2>},
      // Open-Sora 1.2 and 1.3.
      {.key = "stdit3",
       .name = "STDiT3",
       .is_video = true,
       .conditions = {.text = true, .tokens = true, .fps = true, .size = true, .frame_mask = true},
       .takes_any_size = true,
       .spans = {nn::Span::kFrame, nn::Span::kTime},
       .qk_norm = true,
       .own_keys = {"qk_norm", "base_pixels", "given_embedders", "rotary_3d", "window"},
       .sizes = {text_size("XL", 28, 1152, 16, kT5Width, 300),
                 text_size("3B", 28, 1872, 26, kT5Width, 300)},
       .patches = patch_of_two,
       .resolve = STDiT3::resolve,
       .macs = STDiT3::macs,
       .make = make<STDiT3>},
      // Chen et al. 2023, "PixArt-alpha"; Chen et al. 2024, "PixArt-Sigma".
      {.key = "pixart",
       .name = "PixArt",
       .conditions = {.text = true, .tokens = true, .size = true},
       .spans = {nn::Span::kFrame},
       .own_keys = {"qk_norm", "size_conditions", "position_scale", "kv_compress",
                    "kv_compress_factor", "kv_compress_layers"},
       .sizes = {text_size("XL", 28, 1152, 16, kT5Width, 120),
                 text_size("1B", 28, 1872, 26, kT5Width, 120),
                 text_size("MS-XL", 28, 1152, 16, kT5Width, 120, true),
                 text_size("Sigma-XL", 28, 1152, 16, kT5Width, 300)},
       .patches = patch_of_two,
       .resolve = PixArt::resolve,
       .macs = PixArt::macs,
       .make = make<PixArt>,
       .diffusers = DiffusersFamily{.class_name = "PixArtTransformer2DModel",
                                    .pipeline = "",
                                    .naming = pixart_naming,
                                    .find_naming = find_pixart_naming}},
      // Ma et al. 2024, "Latte", as Latte-1 draws from text.
      {.key = "latte_t2v",
       .name = "LatteT2V",
       .is_video = true,
       .conditions = {.text = true, .tokens = true, .frame_mask = true},
       .spans = {nn::Span::kFrame, nn::Span::kTime},
       .own_keys = {"qk_norm", "position_scale"},
       .sizes = {text_size("XL", 28, 1152, 16, kT5Width, 120)},
       .patches = patch_of_two,
       .resolve = resolve_transformer,
       .macs = LatteT2V::macs,
       .make = make<LatteT2V>,
       .diffusers = DiffusersFamily{.class_name = "LatteTransformer3DModel",
                                    .pipeline = "",
                                    .naming = latte_t2v_naming,
                                    .find_naming = find_latte_t2v_naming}},
      // Esser et al. 2024, "Scaling rectified flow transformers for high-resolution image
      // synthesis".
      of_mmdits({.key = "sd3",
                 .name = "SD3",
                 .conditions = {.text = true, .tokens = true, .pooled_beside = true},
                 .own_keys = {"qk_norm", "position_scale", "second_attention", "position_grid",
                              "sliding_window"},
                 .sizes = {sd3_size("Medium", 24, 192, ops::Switch::kAuto, 0),
                           sd3_size("3.5-Medium", 24, 384, ops::Switch::kOn, 13),
                           sd3_size("3.5-Large", 38, 192, ops::Switch::kOn, 0)},
                 .diffusers = DiffusersFamily{.class_name = "SD3Transformer2DModel",
                                              .pipeline = "",
                                              .is_flow = true,
                                              .naming = mmdit_naming,
                                              .find_naming = find_sd3_naming},
                 .original_naming = original_sd3_naming}),
      // Black Forest Labs 2024.
      of_mmdits(
          {.key = "flux",
           .name = "Flux",
           .conditions = {.text = true, .tokens = true, .pooled_beside = true},
           .qk_norm = true,
           .own_keys = {"qk_norm", "input", "references", "parallel_depth", "rotary_axes",
                        "guidance", "sliding_window"},
           .sizes = {flux_size("Dev", 512, 3.5, 2, false), flux_size("Schnell", 256, 0.0, 2, false),
                     shown_flux_size("Fill-Dev", 30.0, ShownInput::kFill),
                     shown_flux_size("Kontext-Dev", 3.5, ShownInput::kReference)},
           .diffusers = DiffusersFamily{.class_name = "FluxTransformer2DModel",
                                        .pipeline = "",
                                        .is_flow = true,
                                        .naming = mmdit_naming,
                                        .find_naming = find_flux_naming},
           .original_naming = original_flux_naming}),
      // Peng et al. 2025, "Open-Sora 2.0".
      of_mmdits({.key = "open_sora2",
                 .name = "OpenSora2",
                 .is_video = true,
                 .conditions = {.text = true,
                                .tokens = true,
                                .pooled_beside = true,
                                .frame_mask = true,
                                .given_beside = true},
                 .qk_norm = true,
                 .own_keys = {"qk_norm", "given_embedders", "references", "parallel_depth",
                              "rotary_axes", "guidance", "sliding_window"},
                 .sizes = {flux_size("11B", 512, 0.0, 2, true)},
                 .original_naming = original_open_sora2_naming}),
      // Kong et al. 2024, "HunyuanVideo: a systematic framework for large video generative models".
      of_mmdits({.key = "hunyuan_video",
                 .name = "HunyuanVideo",
                 .is_video = true,
                 .conditions = {.text = true,
                                .tokens = true,
                                .pooled_beside = true,
                                .frame_mask = true,
                                .given_as_latents = true,
                                .given_is_marked = true},
                 .keeps_captions = true,
                 .qk_norm = true,
                 .own_keys = {"qk_norm", "given_embedders", "clean_first_frame", "references",
                              "parallel_depth", "rotary_axes", "rotary_base", "refiner_depth",
                              "guidance", "sliding_window"},
                 .sizes = {hunyuan_size("13B"), hunyuan_shown("I2V-13B", true),
                           hunyuan_shown("I2V-33ch-13B", false)},
                 .diffusers = DiffusersFamily{.class_name = "HunyuanVideoTransformer3DModel",
                                              .pipeline = "",
                                              .is_flow = true,
                                              .naming = mmdit_naming,
                                              .find_naming = find_hunyuan_video_naming},
                 .original_naming = original_hunyuan_video_naming}),
      // Yang et al. 2024, "CogVideoX: text-to-video diffusion models with an expert transformer".
      {.key = "cogvideox",
       .name = "CogVideoX",
       .is_video = true,
       .conditions = {.text = true, .tokens = true, .given_as_latents = true},
       .takes_any_size = true,
       .pads_captions = true,
       .spans = {nn::Span::kClip},
       .has_text_stream = true,
       .fills_patches = true,
       .modulates_itself = true,
       .own_keys = {"position_scale", "time_position_scale", "rotary_3d", "given_embedders",
                    "learned_positions", "base_grid", "time_channels", "ofs", "sliding_window"},
       .sizes = {cog_size("2B", 30, {.heads = 30}),
                 cog_size("5B", 42, {.heads = 48, .rotary_3d = true, .base_grid = {13, 30, 45}}),
                 cog_size("5B-I2V", 42,
                          {.heads = 48,
                           .given_embedders = true,
                           .rotary_3d = true,
                           .learned_positions = true,
                           .base_grid = {13, 30, 45}}),
                 cog_size("1.5-5B", 42, {.heads = 48, .patch_frames = 2, .rotary_3d = true}),
                 cog_size("1.5-5B-I2V", 42,
                          {.heads = 48,
                           .patch_frames = 2,
                           .given_embedders = true,
                           .rotary_3d = true,
                           .ofs = 2.0})},
       .resolve = CogVideoX::resolve,
       .macs = CogVideoX::macs,
       .make = make<CogVideoX>,
       .diffusers = DiffusersFamily{.class_name = "CogVideoXTransformer3DModel",
                                    .pipeline = "",
                                    .naming = cogvideox_naming,
                                    .find_naming = find_cogvideox_naming}},
      // Wan team 2025, "Wan: open and advanced large-scale video generative models".
      {.key = "wan",
       .name = "Wan",
       .before_size = "",
       .is_video = true,
       .conditions = {.text = true, .tokens = true, .frame_mask = true, .given_as_clip = true},
       .takes_any_size = true,
       .tidies_captions = true,
       .spans = {nn::Span::kClip},
       .attends_as_stream = true,
       .own_keys = {"given_embedders", "image_channels", "image_positions", "sliding_window"},
       .sizes = {wan_size("2.1-T2V-1.3B", 30, 1536, 8960), wan_size("2.1-T2V-14B", 40, 5120, 13824),
                 wan_shown("2.1-I2V-14B", kClipHWidth, 0),
                 wan_shown("2.1-FLF2V-14B", kClipHWidth, 2 * kClipHStates),
                 wan_size("2.2-T2V-A14B", 40, 5120, 13824), wan_shown("2.2-I2V-A14B", 0, 0),
                 wan_size("2.2-TI2V-5B", 30, 3072, 14336)},
       .resolve = Wan::resolve,
       .macs = Wan::macs,
       .make = make<Wan>,
       .diffusers = DiffusersFamily{.class_name = "WanTransformer3DModel",
                                    .pipeline = "",
                                    .is_flow = true,
                                    .naming = wan_naming,
                                    .find_naming = find_wan_naming},
       .original_naming = original_wan_naming},
      // HaCohen et al. 2024, "LTX-Video: realtime video latent diffusion".
      {.key = "ltx_video",
       .name = "LTXVideo",
       .is_video = true,
       .conditions = {.text = true, .tokens = true, .fps = true, .frame_mask = true},
       .takes_any_size = true,
       .fills_captions = true,
       .spans = {nn::Span::kClip},
       .attends_as_stream = true,
       .own_keys = {"single_first_frame", "sliding_window"},
       .sizes = {ltx_size("2B", 28, 2048, 32), ltx_size("13B", 48, 4096, 32)},
       .resolve = LtxVideo::resolve,
       .macs = LtxVideo::macs,
       .make = make<LtxVideo>,
       .diffusers = DiffusersFamily{.class_name = "LTXVideoTransformer3DModel",
                                    .pipeline = "",
                                    .is_flow = true,
                                    .naming = ltx_video_naming,
                                    .find_naming = find_ltx_video_naming}},
      // Rombach et al. 2022, "High-resolution image synthesis with latent diffusion models";
      // Podell et al. 2023, "SDXL: improving latent diffusion models".
      of_unets({.key = "unet",
                .name = "UNet",
                .conditions = {.text = true, .tokens = true, .pooled_beside = true, .micro = true},
                .pads_captions = true,
                .sizes = {unet_size("SD1", {8, 8, 8, 8}, 768, false),
                          unet_size("SD2", {5, 10, 20, 20}, 1024, true),
                          xl_size("SDXL", kClipTowers,
                                  {.channels = {320, 640, 1280},
                                   .depths = {0, 2, 10},
                                   .middle_depth = 10,
                                   .heads = {5, 10, 20}}),
                          xl_size("SDXL-Refiner", kBigGWidth,
                                  {.channels = {384, 768, 1536, 1536},
                                   .depths = {0, 4, 4, 0},
                                   .middle_depth = 4,
                                   .heads = {6, 12, 24, 24},
                                   .reads_score = true})}}),
      // The same of classes: Rombach et al. 2022, table 13, "LDM-4" of ImageNet.
      of_unets({.key = "class_unet",
                .name = "ClassUNet",
                .conditions = {.labels = true},
                .sizes = {{"ImageNet",
                           {.text_channels = 512,
                            .unet = {.classes = UnetClasses::kToken,
                                     .channels = {192, 384, 576, 960},
                                     .resnets = 2,
                                     .depths = {0, 1, 1, 1},
                                     .middle_depth = 1,
                                     .heads = {1, 1, 1, 1}}}},
                          // Table 12 there, of CelebA-HQ, FFHQ and LSUN's bedrooms: told nothing.
                          {"CelebAHQ",
                           {.unet = {.attends = UnetAttends::kPlaces,
                                     .channels = {224, 448, 672, 896},
                                     .resnets = 2,
                                     .depths = {0, 1, 1, 1},
                                     .middle_depth = 1,
                                     .heads = {7, 14, 21, 28}}}}}}),
  };
}

std::deque<Family>& table() {
  static std::deque<Family> all = make_families();
  return all;
}

/// "a" of one, "{a,b}" of several.
template <typename Named>
std::string braced(const std::vector<Named>& all) {
  std::string text;
  for (const Named& one : all) {
    text += (text.empty() ? "" : ",") + one.name;
  }
  return all.size() == 1 ? text : "{" + text + "}";
}

struct NamedFamily {
  const Family* family;
  PublishedSize size;
};

NamedFamily find_published(const std::string& name) {
  std::string known;
  for (const Family& family : families()) {
    for (PublishedSize& size : family.published()) {
      if (size.name == name) {
        return {&family, std::move(size)};
      }
      known += ", " + size.name;
    }
  }
  throw_error(ErrorKind::kConfig, "[model] model.name must be custom", known, "; got ", name);
}

}  // namespace

std::vector<PublishedSize> Family::published() const {
  std::vector<PublishedSize> all;
  for (const PublishedSize& size : sizes) {
    if (patches.empty()) {
      all.push_back({name + before_size + size.name, size.values});
    }
    for (const PublishedPatch& patch : patches) {
      PublishedSize made = {name + before_size + size.name + "/" + patch.name, size.values};
      made.values.transformer.patch = patch.side;
      made.values.transformer.patch_frames = patch.frames;
      all.push_back(std::move(made));
    }
  }
  return all;
}

std::string Family::published_in_short() const {
  const std::string named = name + before_size + braced(sizes);
  return patches.empty() ? named : named + "/" + braced(patches);
}

const std::deque<Family>& families() {
  return table();
}

void add_family(Family family) {
  KINORA_CHECK(!family.key.empty() && family.key != kAutoArchitecture && !family.name.empty(),
               kConfig, "[families] a family must have a key other than auto and a name, got \"",
               family.key, "\" and \"", family.name, "\"");
  const FamilyConditions& given = family.conditions;
  KINORA_CHECK(given.labels + given.text + given.pooled == 1, kConfig, "[families] ", family.key,
               " must be conditioned on one of labels, text and pooled, got ",
               given.labels + given.text + given.pooled, " of them");
  KINORA_CHECK(family.resolve != nullptr && family.shape != nullptr && family.macs != nullptr &&
                   family.make != nullptr,
               kConfig, "[families] ", family.key, " must have resolve, shape, macs and make");
  KINORA_CHECK(!family.sizes.empty() || family.patches.empty(), kConfig, "[families] ", family.key,
               " must have published sizes where it has patches, got ", family.patches.size(),
               " patches");
  KINORA_CHECK(!family.diffusers, kConfig, "[families] ", family.key,
               " must leave diffusers out, which has just the house's own families");
  for (const Family& other : families()) {
    KINORA_CHECK(family.key != other.key && family.name != other.name, kConfig,
                 "[families] there is a family ", other.key, " already, named ", other.name,
                 "; got ", family.key, ", named ", family.name);
  }
  table().push_back(std::move(family));
}

const Family& family_of(const ModelConfig& config) {
  if (config.architecture == kAutoArchitecture) {
    return config.name == kCustomName ? families().front() : *find_published(config.name).family;
  }
  const auto found = std::ranges::find(families(), config.architecture, &Family::key);
  KINORA_CHECK(found != families().end(), kConfig, "[model] there is no model.architecture \"",
               config.architecture, "\"");
  return *found;
}

std::string name_of(const ModelConfig& config) {
  return config.name == kCustomName ? family_of(config).name : config.name;
}

bool pads_captions(const ModelConfig& config) {
  const TextEncoderSize& own = config.text_encoder;
  return (!own.any() || own.kind == TextEncoderSize::Kind::kClip) &&
         family_of(config).pads_captions;
}

ModelShape shape_of(const ModelConfig& config) {
  return family_of(config).shape(config);
}

std::string describe_fast_path(const ModelConfig& config, const ops::BlockKernels& kernels) {
  const char* const beside = family_of(config).beside_blocks;
  return "fast path: " + (beside == nullptr ? "" : std::string(beside) + ", of blocks: ") +
         kernels.describe();
}

ModelConfig published_values(const ModelConfig& config) {
  if (config.name == kCustomName) {
    return {};
  }
  const NamedFamily named = find_published(config.name);
  KINORA_CHECK(&family_of(config) == named.family, kConfig,
               "[model] model.architecture contradicts model.name ", config.name);
  return named.size.values;
}

std::string families_that(const std::function<bool(const Family& family)>& are_so) {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    if (are_so(family)) {
      names.push_back(family.name);
    }
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : (i + 1 == names.size() ? " and " : ", ")) + names[i];
  }
  return text;
}

std::unique_ptr<Model> make_model(const ModelConfig& config) {
  return family_of(config).make(config);
}

}  // namespace kinora::models
