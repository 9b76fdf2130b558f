#include "kinora/models/transformers/diffusers_names.h"

#include <set>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/models/families.h"

namespace kinora::models {
namespace {

/// A naming as it grows: most tensors come as weight and bias of a layer.
class Table {
 public:
  void add_layer(const std::string& path, const std::vector<std::string>& keys,
                 const std::vector<std::string>& copies = {}) {
    for (const char* kind : {".weight", ".bias"}) {
      naming.push_back({path + kind, with_end(keys, kind), with_end(copies, kind)});
    }
  }

  /// Attention on itself, and the MLP.
  void add_block_layers(const std::string& path, const std::string& key) {
    add_layer(path + "attn.qkv", {key + "attn1.to_q", key + "attn1.to_k", key + "attn1.to_v"});
    add_layer(path + "attn.proj", {key + "attn1.to_out.0"});
    add_layer(path + "mlp.fc1", {key + "ff.net.0.proj"});
    add_layer(path + "mlp.fc2", {key + "ff.net.2"});
  }

  /// An embedder of numbers; `more`: modules that repeat it.
  void add_embedder(const std::string& path, const std::string& key,
                    const std::vector<std::string>& more = {}) {
    add_layer(path + ".mlp.0", {key + ".linear_1"}, with_end(more, ".linear_1"));
    add_layer(path + ".mlp.2", {key + ".linear_2"}, with_end(more, ".linear_2"));
  }

  static std::vector<std::string> with_end(std::vector<std::string> names, const char* end) {
    for (std::string& name : names) {
      name += end;
    }
    return names;
  }

  nn::Naming naming;
};

std::string block_path(int64_t block) {
  return "blocks." + std::to_string(block) + ".";
}
std::string block_key(int64_t block) {
  return "transformer_blocks." + std::to_string(block) + ".";
}
std::string temporal_key(int64_t block) {
  return "temporal_" + block_key(block);
}

nn::Naming naming_of_dit(int64_t depth) {
  Table table;
  std::vector<std::string> copies;  // of the embedders
  for (int64_t block = 1; block < depth; ++block) {
    copies.push_back(block_key(block) + "norm1.emb");
  }
  const std::string first = block_key(0) + "norm1.emb";
  table.add_layer("x_embedder.proj", {"pos_embed.proj"});
  table.add_embedder("t_embedder", first + ".timestep_embedder",
                     Table::with_end(copies, ".timestep_embedder"));
  const char* labels = ".class_embedder.embedding_table.weight";
  table.naming.push_back(
      {"y_embedder.embedding_table.weight", {first + labels}, Table::with_end(copies, labels)});
  for (int64_t block = 0; block < depth; ++block) {
    const std::string path = block_path(block);
    const std::string key = block_key(block);
    table.add_block_layers(path, key);
    table.add_layer(path + "adaLN_modulation.1", {key + "norm1.linear"});
  }
  table.add_layer("final_layer.adaLN_modulation.1", {"proj_out_1"});
  table.add_layer("final_layer.linear", {"proj_out_2"});
  return std::move(table.naming);
}

/// The captions' projection and the final layer of PixArt's line.
void add_caption_ends(Table& table) {
  table.add_layer("y_embedder.y_proj.fc1", {"caption_projection.linear_1"});
  table.add_layer("y_embedder.y_proj.fc2", {"caption_projection.linear_2"});
  table.naming.push_back({"final_layer.scale_shift_table", {"scale_shift_table"}});
  table.add_layer("final_layer.linear", {"proj_out"});
}

/// What PixArt's line has before its blocks and behind them.
Table caption_table() {
  Table table;
  table.add_layer("x_embedder.proj", {"pos_embed.proj"});
  table.add_embedder("t_embedder", "adaln_single.emb.timestep_embedder");
  table.add_layer("t_block.1", {"adaln_single.linear"});
  add_caption_ends(table);
  return table;
}

/// A block of that line that reads no caption.
void add_single_block(Table& table, const std::string& path, const std::string& key) {
  table.naming.push_back({path + "scale_shift_table", {key + "scale_shift_table"}});
  table.add_block_layers(path, key);
}

void add_caption_block(Table& table, const std::string& path, const std::string& key) {
  add_single_block(table, path, key);
  table.add_layer(path + "cross_attn.q_linear", {key + "attn2.to_q"});
  table.add_layer(path + "cross_attn.kv_linear", {key + "attn2.to_k", key + "attn2.to_v"});
  table.add_layer(path + "cross_attn.proj", {key + "attn2.to_out.0"});
}

nn::Naming naming_of_pixart(int64_t depth, bool size_conditions) {
  Table table = caption_table();
  if (size_conditions) {
    table.add_embedder("csize_embedder", "adaln_single.emb.resolution_embedder");
    table.add_embedder("ar_embedder", "adaln_single.emb.aspect_ratio_embedder");
  }
  for (int64_t block = 0; block < depth; ++block) {
    add_caption_block(table, block_path(block), block_key(block));
  }
  return std::move(table.naming);
}

nn::Naming naming_of_latte_t2v(int64_t depth) {
  Table table = caption_table();
  for (int64_t block = 0; block < depth; ++block) {
    const std::string number = std::to_string(block) + ".";
    add_caption_block(table, "spatial_blocks." + number, block_key(block));
    add_single_block(table, "temporal_blocks." + number, temporal_key(block));
  }
  return std::move(table.naming);
}

/// Ours is of clips, with one frame a patch; theirs of images.
nn::Naming with_flat_patches(nn::Naming naming, const ModelConfig& config) {
  naming.front().shape = {config.transformer.hidden, config.in_channels, config.transformer.patch,
                          config.transformer.patch};
  return naming;
}

/// How many blocks a file with these names has.
int64_t num_blocks(const std::set<std::string>& names) {
  int64_t depth = 0;
  while (names.contains(block_key(depth) + "attn1.to_q.weight")) {
    ++depth;
  }
  return depth;
}

/// What names of a multimodal transformer depend on.
struct MMDiTNames {
  int64_t depth = 0;
  int64_t parallel_depth = 0;
  std::set<int64_t> second_attention = {};
  bool is_rotary = false;
  int64_t refiner_depth = 0;               // of HunyuanVideo's
  std::vector<int64_t> linear1_rows = {};  // of queries, keys, values and the MLP; [] = unknown
};

void add_stream(Table& table, const std::string& path, const std::string& key, bool is_text,
                bool ends) {
  const std::string attn = path + "attn.";
  const std::string its = key + "attn.";
  table.add_layer(path + "adaLN_modulation.1",
                  {key + (is_text ? "norm1_context" : "norm1") + ".linear"});
  if (ends) {  // their norm gives its scale before its shift
    for (auto name = table.naming.end() - 2; name != table.naming.end(); ++name) {
      name->swaps_halves = true;
    }
  }
  if (is_text) {
    table.add_layer(attn + "qkv", {its + "add_q_proj", its + "add_k_proj", its + "add_v_proj"});
  } else {
    table.add_layer(attn + "qkv", {its + "to_q", its + "to_k", its + "to_v"});
  }
  const std::string norm = its + (is_text ? "norm_added_" : "norm_");
  table.naming.push_back({attn + "q_norm.weight", {norm + "q.weight"}});
  table.naming.push_back({attn + "k_norm.weight", {norm + "k.weight"}});
  if (ends) {
    return;
  }
  table.add_layer(attn + "proj", {its + (is_text ? "to_add_out" : "to_out.0")});
  const std::string mlp = key + (is_text ? "ff_context" : "ff");
  table.add_layer(path + "mlp.fc1", {mlp + ".net.0.proj"});
  table.add_layer(path + "mlp.fc2", {mlp + ".net.2"});
}

std::string refiner_key(int64_t block) {
  return "context_embedder.token_refiner.refiner_blocks." + std::to_string(block) + ".";
}

/// HunyuanVideo's of the text.
void add_refiner(Table& table, int64_t depth) {
  const std::string refiner = "context_embedder.";
  table.add_embedder(refiner + "t_embedder", refiner + "time_text_embed.timestep_embedder");
  table.add_embedder(refiner + "y_embedder", refiner + "time_text_embed.text_embedder");
  table.add_layer(refiner + "proj_in", {refiner + "proj_in"});
  for (int64_t block = 0; block < depth; ++block) {
    const std::string path = refiner + block_path(block);
    const std::string key = refiner_key(block);
    table.add_layer(path + "norm1", {key + "norm1"});
    table.add_layer(path + "attn.qkv", {key + "attn.to_q", key + "attn.to_k", key + "attn.to_v"});
    table.add_layer(path + "attn.proj", {key + "attn.to_out.0"});
    table.add_layer(path + "norm2", {key + "norm2"});
    table.add_layer(path + "mlp.fc1", {key + "ff.net.0.proj"});
    table.add_layer(path + "mlp.fc2", {key + "ff.net.2"});
    table.add_layer(path + "adaLN_modulation.1", {key + "norm_out.linear"});
  }
}

nn::Naming naming_of_mmdit(const MMDiTNames& its) {
  Table table;
  const bool is_clip = its.refiner_depth > 0;
  table.add_layer("x_embedder.proj", {is_clip         ? "x_embedder.proj"
                                      : its.is_rotary ? "x_embedder"
                                                      : "pos_embed.proj"});
  if (!its.is_rotary) {
    table.naming.push_back({"pos_embed", {"pos_embed.pos_embed"}});
  }
  table.add_embedder("t_embedder", "time_text_embed.timestep_embedder");
  table.add_embedder("guidance_embedder", "time_text_embed.guidance_embedder");
  table.add_embedder("y_embedder", "time_text_embed.text_embedder");
  if (is_clip) {
    add_refiner(table, its.refiner_depth);
  } else {
    table.add_layer("context_embedder", {"context_embedder"});
  }
  for (int64_t block = 0; block < its.depth; ++block) {
    const std::string path = "joint_" + block_path(block);
    const std::string key = block_key(block);
    add_stream(table, path + "x_block.", key, false, false);
    add_stream(table, path + "context_block.", key, true,
               block + 1 == its.depth && its.parallel_depth == 0);
    if (its.second_attention.contains(block)) {
      const std::string attn = path + "x_block.attn2.";
      const std::string theirs = key + "attn2.";
      table.add_layer(attn + "qkv", {theirs + "to_q", theirs + "to_k", theirs + "to_v"});
      table.add_layer(attn + "proj", {theirs + "to_out.0"});
      table.naming.push_back({attn + "q_norm.weight", {theirs + "norm_q.weight"}});
      table.naming.push_back({attn + "k_norm.weight", {theirs + "norm_k.weight"}});
    }
  }
  for (int64_t block = 0; block < its.parallel_depth; ++block) {
    const std::string path = "single_" + block_path(block);
    const std::string key = "single_" + block_key(block);
    const std::string attn = key + "attn.";
    table.add_layer(path + "modulation.1", {key + "norm.linear"});
    table.add_layer(path + "linear1",
                    {attn + "to_q", attn + "to_k", attn + "to_v", key + "proj_mlp"});
    for (auto name = table.naming.end() - 2; name != table.naming.end(); ++name) {
      name->rows = its.linear1_rows;
    }
    table.add_layer(path + "linear2", {key + "proj_out"});
    table.naming.push_back({path + "q_norm.weight", {attn + "norm_q.weight"}});
    table.naming.push_back({path + "k_norm.weight", {attn + "norm_k.weight"}});
  }
  table.add_layer("final_layer.adaLN_modulation.1", {"norm_out.linear"});
  for (auto name = table.naming.end() - 2; name != table.naming.end(); ++name) {
    name->swaps_halves = true;
  }
  table.add_layer("final_layer.linear", {"proj_out"});
  return std::move(table.naming);
}

/// What a file with these names has; nothing if it is of no such class.
std::optional<MMDiTNames> find_mmdit_names(const std::vector<std::string>& all) {
  const std::set<std::string> names(all.begin(), all.end());
  MMDiTNames its;
  while (names.contains(refiner_key(its.refiner_depth) + "norm1.weight")) {
    ++its.refiner_depth;
  }
  its.is_rotary = its.refiner_depth > 0 || names.contains("x_embedder.weight");
  while (names.contains(block_key(its.depth) + "attn.add_q_proj.weight")) {
    if (names.contains(block_key(its.depth) + "attn2.to_q.weight")) {
      its.second_attention.insert(its.depth);
    }
    ++its.depth;
  }
  while (names.contains("single_" + block_key(its.parallel_depth) + "proj_mlp.weight")) {
    ++its.parallel_depth;
  }
  const bool has_ends = names.contains("norm_out.linear.weight") &&
                        (its.is_rotary || names.contains("pos_embed.proj.weight"));
  return its.depth > 0 && has_ends ? std::optional(its) : std::nullopt;
}

/// A name that files of CogVideoX alone have.
constexpr const char* kCogText = "patch_embed.text_proj.weight";

/// has_ofs, has_table: what not all of CogVideoX have.
nn::Naming naming_of_cogvideox(int64_t depth, bool has_ofs, bool has_table) {
  Table table;
  table.add_layer("x_embedder.proj", {"patch_embed.proj"});
  table.add_layer("context_embedder", {"patch_embed.text_proj"});
  if (has_table) {
    table.naming.push_back({"pos_embed", {"patch_embed.pos_embedding"}});
  }
  table.add_embedder("t_embedder", "time_embedding");
  if (has_ofs) {
    table.add_embedder("ofs_embedder", "ofs_embedding");
  }
  for (int64_t block = 0; block < depth; ++block) {
    const std::string path = block_path(block);
    const std::string key = block_key(block);
    table.add_block_layers(path, key);
    for (const char* norm : {"norm1.", "norm2."}) {
      table.add_layer(path + norm + "norm", {key + norm + "norm"});
      table.add_layer(path + norm + "adaLN_modulation.1", {key + norm + "linear"});
    }
    table.add_layer(path + "attn.q_norm", {key + "attn1.norm_q"});
    table.add_layer(path + "attn.k_norm", {key + "attn1.norm_k"});
  }
  table.add_layer("final_layer.norm", {"norm_final"});
  table.add_layer("final_layer.norm_out", {"norm_out.norm"});
  table.add_layer("final_layer.adaLN_modulation.1", {"norm_out.linear"});
  table.add_layer("final_layer.linear", {"proj_out"});
  return std::move(table.naming);
}

/// What a file of Wan has beside the blocks of all.
struct WanNames {
  int64_t depth = 0;
  bool has_images = false;
  bool has_positions = false;
};

/// RMSNorm of queries and keys over all heads.
void add_joined_norms(Table& table, const std::string& path, const std::string& key) {
  table.naming.push_back({path + "q_norm.weight", {key + "norm_q.weight"}});
  table.naming.push_back({path + "k_norm.weight", {key + "norm_k.weight"}});
}

nn::Naming naming_of_wan(const WanNames& its) {
  Table table;
  table.add_layer("x_embedder.proj", {"patch_embedding"});
  table.add_embedder("t_embedder", "condition_embedder.time_embedder");
  table.add_layer("t_block.1", {"condition_embedder.time_proj"});
  table.add_layer("y_embedder.y_proj.fc1", {"condition_embedder.text_embedder.linear_1"});
  table.add_layer("y_embedder.y_proj.fc2", {"condition_embedder.text_embedder.linear_2"});
  table.naming.push_back({"final_layer.scale_shift_table", {"scale_shift_table"}});
  table.add_layer("final_layer.linear", {"proj_out"});
  if (its.has_images) {
    const std::string embedder = "condition_embedder.image_embedder.";
    for (const auto& [ours, theirs] : {std::pair("norm1", "norm1"),
                                       {"fc1", "ff.net.0.proj"},
                                       {"fc2", "ff.net.2"},
                                       {"norm2", "norm2"}}) {
      table.add_layer(std::string("image_embedder.") + ours, {embedder + theirs});
    }
    if (its.has_positions) {
      table.naming.push_back({"image_embedder.positions", {embedder + "pos_embed"}});
    }
  }
  for (int64_t block = 0; block < its.depth; ++block) {
    const std::string path = block_path(block);
    const std::string& key = path;
    if (its.has_images) {
      table.add_layer(path + "cross_attn.image_kv_linear",
                      {key + "attn2.add_k_proj", key + "attn2.add_v_proj"});
      table.naming.push_back(
          {path + "cross_attn.image_k_norm.weight", {key + "attn2.norm_added_k.weight"}});
    }
    table.naming.push_back({path + "scale_shift_table", {key + "scale_shift_table"}});
    table.add_layer(path + "attn.qkv",
                    {key + "attn1.to_q", key + "attn1.to_k", key + "attn1.to_v"});
    table.add_layer(path + "cross_attn.q_linear", {key + "attn2.to_q"});
    table.add_layer(path + "cross_attn.kv_linear", {key + "attn2.to_k", key + "attn2.to_v"});
    for (const auto& [ours, theirs] : {std::pair("attn.", "attn1."), {"cross_attn.", "attn2."}}) {
      table.add_layer(path + ours + "proj", {key + theirs + "to_out.0"});
      add_joined_norms(table, path + ours, key + theirs);
    }
    table.add_layer(path + "cross_norm", {key + "norm2"});
    table.add_layer(path + "mlp.fc1", {key + "ffn.net.0.proj"});
    table.add_layer(path + "mlp.fc2", {key + "ffn.net.2"});
  }
  return std::move(table.naming);
}

nn::Naming naming_of_ltx_video(int64_t depth) {
  Table table;
  table.add_layer("x_embedder.proj", {"proj_in"});
  table.add_embedder("t_embedder", "time_embed.emb.timestep_embedder");
  table.add_layer("t_block.1", {"time_embed.linear"});
  add_caption_ends(table);
  for (int64_t block = 0; block < depth; ++block) {
    const std::string path = block_path(block);
    const std::string key = block_key(block);
    add_caption_block(table, path, key);
    add_joined_norms(table, path + "attn.", key + "attn1.");
    add_joined_norms(table, path + "cross_attn.", key + "attn2.");
  }
  return std::move(table.naming);
}

bool has_temporal_blocks(const std::set<std::string>& names) {
  return names.contains(temporal_key(0) + "attn1.to_q.weight");
}

}  // namespace

nn::Naming dit_naming(const ModelConfig& config) {
  return naming_of_dit(config.transformer.depth);
}

std::optional<nn::Naming> find_dit_naming(const std::vector<std::string>& names) {
  const std::set<std::string> known(names.begin(), names.end());
  const int64_t depth = num_blocks(known);
  if (depth == 0 || !known.contains(block_key(0) + "norm1.linear.weight") ||
      known.contains(kCogText)) {
    return std::nullopt;
  }
  return naming_of_dit(depth);
}

nn::Naming pixart_naming(const ModelConfig& config) {
  return with_flat_patches(
      naming_of_pixart(config.transformer.depth, config.transformer.size_conditions), config);
}

std::optional<nn::Naming> find_pixart_naming(const std::vector<std::string>& names) {
  const std::set<std::string> known(names.begin(), names.end());
  const int64_t depth = num_blocks(known);
  if (depth == 0 || !known.contains("adaln_single.linear.weight") || has_temporal_blocks(known)) {
    return std::nullopt;
  }
  return naming_of_pixart(depth,
                          known.contains("adaln_single.emb.resolution_embedder.linear_1.weight"));
}

nn::Naming latte_t2v_naming(const ModelConfig& config) {
  return with_flat_patches(naming_of_latte_t2v(config.transformer.depth), config);
}

std::optional<nn::Naming> find_latte_t2v_naming(const std::vector<std::string>& names) {
  const std::set<std::string> known(names.begin(), names.end());
  const int64_t depth = num_blocks(known);
  if (depth == 0 || !has_temporal_blocks(known)) {
    return std::nullopt;
  }
  return naming_of_latte_t2v(depth);
}

nn::Naming mmdit_naming(const ModelConfig& config) {
  const TransformerConfig& own = config.transformer;
  const int64_t width = own.hidden;
  return naming_of_mmdit(
      {.depth = own.depth,
       .parallel_depth = own.parallel_depth,
       .second_attention = {own.second_attention.begin(), own.second_attention.end()},
       .is_rotary = !own.rotary_axes.empty(),
       .refiner_depth = own.refiner_depth,
       .linear1_rows = {width, width, width, own.mlp_hidden()}});
}

std::optional<nn::Naming> find_sd3_naming(const std::vector<std::string>& names) {
  const std::optional<MMDiTNames> its = find_mmdit_names(names);
  return its && !its->is_rotary ? std::optional(naming_of_mmdit(*its)) : std::nullopt;
}

std::optional<nn::Naming> find_flux_naming(const std::vector<std::string>& names) {
  const std::optional<MMDiTNames> its = find_mmdit_names(names);
  return its && its->is_rotary && its->refiner_depth == 0 ? std::optional(naming_of_mmdit(*its))
                                                          : std::nullopt;
}

std::optional<nn::Naming> find_hunyuan_video_naming(const std::vector<std::string>& names) {
  const std::optional<MMDiTNames> its = find_mmdit_names(names);
  return its && its->refiner_depth > 0 ? std::optional(naming_of_mmdit(*its)) : std::nullopt;
}

nn::Naming cogvideox_naming(const ModelConfig& config) {
  const TransformerConfig& own = config.transformer;
  return naming_of_cogvideox(own.depth, own.ofs > 0, own.learned_positions);
}

std::optional<nn::Naming> find_cogvideox_naming(const std::vector<std::string>& names) {
  const std::set<std::string> known(names.begin(), names.end());
  const int64_t depth = num_blocks(known);
  if (depth == 0 || !known.contains(kCogText)) {
    return std::nullopt;
  }
  return naming_of_cogvideox(depth, known.contains("ofs_embedding.linear_1.weight"),
                             known.contains("patch_embed.pos_embedding"));
}

nn::Naming with_batched_tables(nn::Naming naming, const ModelConfig& config) {
  for (nn::OtherName& name : naming) {
    if (name.path.ends_with("scale_shift_table")) {
      name.shape = {1, name.path.starts_with("final_layer.") ? 2 : 6, config.transformer.hidden};
    } else if (name.path == "image_embedder.positions") {
      name.shape = {1, config.transformer.image_positions, config.transformer.image_channels};
    }
  }
  return naming;
}

nn::Naming wan_naming(const ModelConfig& config) {
  const TransformerConfig& own = config.transformer;
  return with_batched_tables(naming_of_wan({.depth = own.depth,
                                            .has_images = own.image_channels > 0,
                                            .has_positions = own.image_positions > 0}),
                             config);
}

std::optional<nn::Naming> find_wan_naming(const std::vector<std::string>& names) {
  const std::set<std::string> known(names.begin(), names.end());
  int64_t depth = 0;
  while (known.contains(block_path(depth) + "attn1.to_q.weight")) {
    ++depth;
  }
  if (depth == 0 || !known.contains("condition_embedder.time_proj.weight")) {
    return std::nullopt;
  }
  const std::string embedder = "condition_embedder.image_embedder.";
  return naming_of_wan({.depth = depth,
                        .has_images = known.contains(embedder + "norm1.weight"),
                        .has_positions = known.contains(embedder + "pos_embed")});
}

nn::Naming ltx_video_naming(const ModelConfig& config) {
  nn::Naming naming = naming_of_ltx_video(config.transformer.depth);
  naming.front().shape = {config.transformer.hidden, config.in_channels};
  return naming;
}

std::optional<nn::Naming> find_ltx_video_naming(const std::vector<std::string>& names) {
  const std::set<std::string> known(names.begin(), names.end());
  const int64_t depth = num_blocks(known);
  if (depth == 0 || !known.contains("time_embed.linear.weight")) {
    return std::nullopt;
  }
  return naming_of_ltx_video(depth);
}

nn::Naming diffusers_naming(const ModelConfig& config) {
  const Family& family = family_of(config);
  KINORA_CHECK(family.diffusers.has_value(), kConfig, "[convert] diffusers has ",
               families_that([](const Family& other) { return other.diffusers.has_value(); }),
               ", but not ", name_of(config), ". Hint: write a .safetensors file");
  return family.diffusers->naming(config);
}

std::optional<nn::Naming> find_diffusers_naming(const std::vector<std::string>& names) {
  for (const Family& family : families()) {
    if (family.diffusers) {
      if (std::optional<nn::Naming> naming = family.diffusers->find_naming(names)) {
        return naming;
      }
    }
  }
  return std::nullopt;
}

}  // namespace kinora::models
