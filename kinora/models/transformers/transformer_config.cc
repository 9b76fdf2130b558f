#include "kinora/models/transformers/transformer_config.h"

#include "kinora/core/config.h"

namespace kinora::models {

void describe(Fields& fields, TransformerConfig& config) {
  fields.add("depth", config.depth,
             "Number of transformer blocks (stdit3: of pairs of them); 0 = by name.",
             between(0, 4096));
  fields.add("hidden", config.hidden,
             "Width of a token, a multiple of 4 and of heads; 0 = by name.", between(0, 1048576));
  fields.add("heads", config.heads, "Attention heads; 0 = by name.", between(0, 65536));
  fields.add("patch", config.patch, "Side of a patch in pixels of the input; 0 = by name.",
             between(0, 1024));
  fields.add("patch_frames", config.patch_frames, "Frames of a patch; 0 = by name, of custom 1.",
             between(0, 1024));
  fields.add("mlp_ratio", config.mlp_ratio, "Hidden width of the MLP over hidden.", above(0, 1024));
  fields.add("qk_norm", config.qk_norm,
             {{"auto", ops::Switch::kAuto}, {"on", ops::Switch::kOn}, {"off", ops::Switch::kOff}},
             "stdit, stdit2, stdit3, pixart, latte_t2v, sd3, flux, open_sora2, hunyuan_video: "
             "RMSNorm of each head's "
             "queries and keys; auto = as published.");
  fields.add("size_conditions", config.size_conditions,
             "pixart: condition on height, width and aspect ratio.");
  fields.add("base_pixels", config.base_pixels,
             "stdit2, stdit3: side in pixels of the clip at which positions are unscaled.",
             between(1, 65536));
  fields.add("position_scale", config.position_scale,
             "stdit, pixart, latte_t2v, sd3, cogvideox: positions in space are divided by it.",
             above(0, 1e6));
  fields.add("time_position_scale", config.time_position_scale,
             "stdit, cogvideox: positions in time are divided by it.", above(0, 1e6));
  fields.add("kv_compress", config.kv_compress,
             {{"none", KvSampling::kNone},
              {"conv", KvSampling::kConv},
              {"ave", KvSampling::kAve},
              {"uniform", KvSampling::kUniform},
              {"uniform_every", KvSampling::kUniformEvery}},
             "pixart: how some blocks make fewer keys and values (Sigma, 2K).");
  fields.add("kv_compress_factor", config.kv_compress_factor,
             "pixart: side of the cells of tokens that become one; of uniform_every their number.",
             between(2, 64));
  fields.add("kv_compress_layers", config.kv_compress_layers,
             "pixart: the blocks that do so, from 0; [] = the second half.", between(0, 4095));
  fields.add(
      "given_embedders", config.given_embedders,
      "stdit3, open_sora2, hunyuan_video, cogvideox, wan: embed given frames, and which ones they "
      "are, beside the input (Open-Sora 1.3, 2; Wan's image to video, whose clips of 16 channels "
      "are 36; of the first frame alone CogVideoX', 32, and HunyuanVideo's, 33).");
  fields.add(
      "input", config.input,
      {{to_string(ShownInput::kPlain), ShownInput::kPlain},
       {to_string(ShownInput::kFill), ShownInput::kFill},
       {to_string(ShownInput::kReference), ShownInput::kReference}},
      "flux: what is shown beside the noised latents: fill = the picture without what a mask "
      "covers, and the mask's pixels (Fill, 96 channels of 16), reference = a picture to "
      "change, as further tokens (Kontext).");
  fields.add("references", config.references,
             "flux, open_sora2, hunyuan_video: how many pictures of what is to be seen, such as a "
             "character, are shown as further tokens, at most (data.references); 0 = none.",
             between(0, 16));
  fields.add(
      "image_channels", config.image_channels,
      "wan: width of an image encoder's states of the given frames, which blocks read beside "
      "the text (2.1's image to video: 1280); 0 = by name, of custom none.",
      between(0, 65536));
  fields.add("image_positions", config.image_positions,
             "wan: how many such states a learned table is added to (2.1's first and last frames: "
             "514 of both); 0 = by name, of custom none.",
             between(0, 65536));
  fields.add("rotary_3d", config.rotary_3d,
             "stdit3, cogvideox: rotary positions over time, rows and columns (Open-Sora 1.3, in "
             "both attentions; CogVideoX but 2B).");
  fields.add("parallel_depth", config.parallel_depth,
             "flux, open_sora2, hunyuan_video: blocks of one stream behind the depth blocks of "
             "two; 0 = by name.",
             between(0, 4096));
  fields.add("second_attention", config.second_attention,
             "sd3: the blocks, from 0, whose image also attends to itself alone (3.5 medium); [] = "
             "by name.",
             between(0, 4095));
  fields.add(
      "rotary_axes", config.rotary_axes,
      "flux, open_sora2, hunyuan_video: dims of a head that frame, row and column turn; [] = "
      "by name.",
      between(0, 65536));
  fields.add("rotary_base", config.rotary_base,
             "hunyuan_video: what the frequencies of these turns are powers of; 0 = 256.",
             between(0, 1e9));
  fields.add(
      "refiner_depth", config.refiner_depth,
      "hunyuan_video: blocks in which the caption's tokens see each other before the others; "
      "0 = 2.",
      between(0, 4096));
  fields.add("position_grid", config.position_grid,
             "sd3: side, in patches, of the table of positions, of which a picture takes the "
             "middle; 0 = by name, or twice the configured size.",
             between(0, 16384));
  fields.add(
      "guidance", config.guidance,
      "flux, open_sora2, hunyuan_video: the guidance scale that a distilled model is told (dev: "
      "3.5); 0 = "
      "it was not distilled.",
      between(0, 1000));
  fields.add(
      "learned_positions", config.learned_positions,
      "cogvideox: a table of positions beside rotary ones, which no training moves (5B-I2V).");
  fields.add("single_first_frame", config.single_first_frame,
             "ltx_video: positions count the first latent as one frame, and the others behind it "
             "(0.9.5 and later).");
  fields.add("clean_first_frame", config.clean_first_frame,
             "hunyuan_video: the first frame can be given (frame_masks.image_head). It stands in "
             "the clip without noise, and blocks modulate its tokens as at time 0 (I2V).");
  fields.add(
      "base_grid", config.base_grid,
      "cogvideox: frames, rows and columns of patches whose positions are whole numbers, into "
      "which other sizes are fitted, and which a table is of; [] = by name, or the configured "
      "size.",
      between(1, 65536));
  fields.add("time_channels", config.time_channels,
             "cogvideox: width of the time's embedding; 0 = 512.", between(0, 65536));
  fields.add(
      "ofs", config.ofs,
      "cogvideox: a number that the model is told, of 1.5's image to video 2; 0 = by name, of "
      "custom none.",
      between(0, 1000));
  fields.add("window", config.window,
             "stdit3: frames, rows and columns of windows of attention (1.3); [] = all.",
             between(1, 65536));
  fields.add("sliding_window", config.sliding_window,
             "sd3, flux, open_sora2, hunyuan_video, cogvideox, wan, ltx_video: frames, rows and "
             "columns of patches around each that it attends to, in whole blocks of 128 tokens; "
             "0 = all of them; [] = all.",
             between(0, 65536));
}

}  // namespace kinora::models
