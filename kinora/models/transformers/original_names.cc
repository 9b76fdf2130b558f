#include "kinora/models/transformers/original_names.h"

#include <set>
#include <string_view>
#include <utility>

#include "kinora/models/transformers/diffusers_names.h"

namespace kinora::models {
namespace {

constexpr const char* kNormOfHeads = "double_blocks.0.img_attn.norm.query_norm.scale";

/// How many blocks, and what stands before their keys.
struct Blocks {
  int64_t depth = 0;
  int64_t parallel_depth = 0;
  int64_t refiner_depth = 0;  // of HunyuanVideo
  std::string prefix = {};
  // Where queries, keys and values lie apart; 0: in one linear.
  int64_t head = 0;
  int64_t hidden = 0;
  int64_t mlp_hidden = 0;
  // Of Wan.
  bool has_images = false;
  bool has_positions = false;

  [[nodiscard]] bool lie_apart() const { return head > 0; }
};

void add(nn::Naming& naming, const std::string& path, const std::string& key) {
  naming.push_back({path, {key}});
}
void add_layer(nn::Naming& naming, const std::string& path, const std::string& key) {
  add(naming, path + ".weight", key + ".weight");
  add(naming, path + ".bias", key + ".bias");
}
/// Queries, keys and what else our one linear has, each in a linear of its own.
void add_apart(nn::Naming& naming, const std::string& path, const std::string& key,
               const std::string& rest, const Blocks& its, int64_t mlp_hidden) {
  for (const char* part : {".weight", ".bias"}) {
    naming.push_back({.path = path + part,
                      .keys = {key + "q_proj" + part, key + "k_proj" + part, key + rest + part},
                      .rows = {its.hidden, its.hidden, its.hidden + mlp_hidden},
                      .split_head = its.head,
                      .num_split = 2});
  }
}
void add_norm(nn::Naming& naming, const std::string& path, const std::string& key,
              const Blocks& its) {
  naming.push_back(
      {.path = path + ".weight", .keys = {key + ".scale"}, .split_head = its.head, .num_split = 1});
}
void add_embedder(nn::Naming& naming, const std::string& path, const std::string& key) {
  add_layer(naming, path + ".mlp.0", key + ".in_layer");
  add_layer(naming, path + ".mlp.2", key + ".out_layer");
}

nn::Naming flux_naming(const Blocks& its) {
  nn::Naming naming;
  const std::string& prefix = its.prefix;
  add_layer(naming, "x_embedder.proj", prefix + "img_in");
  add_layer(naming, "cond_embedder.proj", prefix + "cond_in");
  add_embedder(naming, "t_embedder", prefix + "time_in");
  add_embedder(naming, "guidance_embedder", prefix + "guidance_in");
  add_embedder(naming, "y_embedder", prefix + "vector_in");
  add_layer(naming, "context_embedder", prefix + "txt_in");
  for (int64_t block = 0; block < its.depth; ++block) {
    const std::string number = std::to_string(block) + ".";
    for (const auto& [ours, theirs] :
         {std::pair("x_block.", "img_"), std::pair("context_block.", "txt_")}) {
      const std::string path = "joint_blocks." + number + ours;
      const std::string key = prefix + "double_blocks." + number + theirs;
      add_layer(naming, path + "adaLN_modulation.1", key + "mod.lin");
      if (its.lie_apart()) {
        add_apart(naming, path + "attn.qkv", key + "attn.", "v_proj", its, 0);
      } else {
        add_layer(naming, path + "attn.qkv", key + "attn.qkv");
      }
      add_layer(naming, path + "attn.proj", key + "attn.proj");
      add_norm(naming, path + "attn.q_norm", key + "attn.norm.query_norm", its);
      add_norm(naming, path + "attn.k_norm", key + "attn.norm.key_norm", its);
      add_layer(naming, path + "mlp.fc1", key + "mlp.0");
      add_layer(naming, path + "mlp.fc2", key + "mlp.2");
    }
  }
  for (int64_t block = 0; block < its.parallel_depth; ++block) {
    const std::string path = "single_blocks." + std::to_string(block) + ".";
    const std::string key = prefix + path;
    add_layer(naming, path + "modulation.1", key + "modulation.lin");
    if (its.lie_apart()) {
      add_apart(naming, path + "linear1", key, "v_mlp", its, its.mlp_hidden);
    } else {
      add_layer(naming, path + "linear1", key + "linear1");
    }
    add_layer(naming, path + "linear2", key + "linear2");
    add_norm(naming, path + "q_norm", key + "norm.query_norm", its);
    add_norm(naming, path + "k_norm", key + "norm.key_norm", its);
  }
  add_layer(naming, "final_layer.adaLN_modulation.1", prefix + "final_layer.adaLN_modulation.1");
  add_layer(naming, "final_layer.linear", prefix + "final_layer.linear");
  return naming;
}

/// An embedder whose two linears are those of a Sequential.
void add_sequential(nn::Naming& naming, const std::string& path, const std::string& key) {
  add_layer(naming, path + ".mlp.0", key + ".mlp.0");
  add_layer(naming, path + ".mlp.2", key + ".mlp.2");
}

void add_refiner(nn::Naming& naming, const Blocks& its) {
  const std::string path = "context_embedder.";
  const std::string key = its.prefix + "txt_in.";
  add_sequential(naming, path + "t_embedder", key + "t_embedder");
  add_layer(naming, path + "y_embedder.mlp.0", key + "c_embedder.linear_1");
  add_layer(naming, path + "y_embedder.mlp.2", key + "c_embedder.linear_2");
  add_layer(naming, path + "proj_in", key + "input_embedder");
  for (int64_t block = 0; block < its.refiner_depth; ++block) {
    const std::string number = "blocks." + std::to_string(block) + ".";
    for (const auto& [ours, theirs] : {std::pair("norm1", "norm1"),
                                       {"attn.qkv", "self_attn_qkv"},
                                       {"attn.proj", "self_attn_proj"},
                                       {"norm2", "norm2"},
                                       {"mlp.fc1", "mlp.fc1"},
                                       {"mlp.fc2", "mlp.fc2"},
                                       {"adaLN_modulation.1", "adaLN_modulation.1"}}) {
      add_layer(naming, path + number + ours, key + "individual_token_refiner." + number + theirs);
    }
  }
}

nn::Naming hunyuan_video_naming(const Blocks& its) {
  nn::Naming naming;
  const std::string& prefix = its.prefix;
  add_layer(naming, "x_embedder.proj", prefix + "img_in.proj");
  add_sequential(naming, "t_embedder", prefix + "time_in");
  add_sequential(naming, "guidance_embedder", prefix + "guidance_in");
  add_embedder(naming, "y_embedder", prefix + "vector_in");
  add_refiner(naming, its);
  for (int64_t block = 0; block < its.depth; ++block) {
    const std::string number = std::to_string(block) + ".";
    for (const auto& [ours, theirs] :
         {std::pair("x_block.", "img_"), std::pair("context_block.", "txt_")}) {
      const std::string path = "joint_blocks." + number + ours;
      const std::string key = prefix + "double_blocks." + number + theirs;
      add_layer(naming, path + "adaLN_modulation.1", key + "mod.linear");
      add_layer(naming, path + "attn.qkv", key + "attn_qkv");
      add_layer(naming, path + "attn.proj", key + "attn_proj");
      add(naming, path + "attn.q_norm.weight", key + "attn_q_norm.weight");
      add(naming, path + "attn.k_norm.weight", key + "attn_k_norm.weight");
      add_layer(naming, path + "mlp.fc1", key + "mlp.fc1");
      add_layer(naming, path + "mlp.fc2", key + "mlp.fc2");
    }
  }
  for (int64_t block = 0; block < its.parallel_depth; ++block) {
    const std::string path = "single_blocks." + std::to_string(block) + ".";
    const std::string key = prefix + path;
    add_layer(naming, path + "modulation.1", key + "modulation.linear");
    add_layer(naming, path + "linear1", key + "linear1");
    add_layer(naming, path + "linear2", key + "linear2");
    add(naming, path + "q_norm.weight", key + "q_norm.weight");
    add(naming, path + "k_norm.weight", key + "k_norm.weight");
  }
  add_layer(naming, "final_layer.adaLN_modulation.1", prefix + "final_layer.adaLN_modulation.1");
  add_layer(naming, "final_layer.linear", prefix + "final_layer.linear");
  return naming;
}

nn::Naming sd3_naming(const Blocks& its) {
  nn::Naming naming;
  const std::string& prefix = its.prefix;
  add(naming, "pos_embed", prefix + "pos_embed");
  for (const char* layer : {"x_embedder.proj", "t_embedder.mlp.0", "t_embedder.mlp.2",
                            "y_embedder.mlp.0", "y_embedder.mlp.2", "context_embedder",
                            "final_layer.adaLN_modulation.1", "final_layer.linear"}) {
    add_layer(naming, layer, prefix + layer);
  }
  for (int64_t block = 0; block < its.depth; ++block) {
    for (const char* stream : {"x_block.", "context_block."}) {
      const std::string path = "joint_blocks." + std::to_string(block) + "." + stream;
      for (const char* layer : {"adaLN_modulation.1", "attn.qkv", "attn.proj", "attn2.qkv",
                                "attn2.proj", "mlp.fc1", "mlp.fc2"}) {
        add_layer(naming, path + layer, prefix + path + layer);
      }
      for (const char* attention : {"attn.", "attn2."}) {
        const std::string own = path + attention;
        add(naming, own + "q_norm.weight", prefix + own + "ln_q.weight");
        add(naming, own + "k_norm.weight", prefix + own + "ln_k.weight");
      }
    }
  }
  return naming;
}

nn::Naming wan_naming_of(const Blocks& its) {
  nn::Naming naming;
  const std::string& prefix = its.prefix;
  add_layer(naming, "x_embedder.proj", prefix + "patch_embedding");
  add_layer(naming, "t_embedder.mlp.0", prefix + "time_embedding.0");
  add_layer(naming, "t_embedder.mlp.2", prefix + "time_embedding.2");
  add_layer(naming, "t_block.1", prefix + "time_projection.1");
  add_layer(naming, "y_embedder.y_proj.fc1", prefix + "text_embedding.0");
  add_layer(naming, "y_embedder.y_proj.fc2", prefix + "text_embedding.2");
  add(naming, "final_layer.scale_shift_table", prefix + "head.modulation");
  add_layer(naming, "final_layer.linear", prefix + "head.head");
  if (its.has_images) {
    for (const auto& [ours, theirs] :
         {std::pair("norm1", "0"), {"fc1", "1"}, {"fc2", "3"}, {"norm2", "4"}}) {
      add_layer(naming, std::string("image_embedder.") + ours, prefix + "img_emb.proj." + theirs);
    }
    if (its.has_positions) {
      add(naming, "image_embedder.positions", prefix + "img_emb.emb_pos");
    }
  }
  for (int64_t block = 0; block < its.depth; ++block) {
    const std::string path = "blocks." + std::to_string(block) + ".";
    const std::string key = prefix + path;
    add(naming, path + "scale_shift_table", key + "modulation");
    for (const char* kind : {".weight", ".bias"}) {
      naming.push_back(
          {path + "attn.qkv" + kind,
           {key + "self_attn.q" + kind, key + "self_attn.k" + kind, key + "self_attn.v" + kind}});
      naming.push_back({path + "cross_attn.kv_linear" + kind,
                        {key + "cross_attn.k" + kind, key + "cross_attn.v" + kind}});
    }
    add_layer(naming, path + "cross_attn.q_linear", key + "cross_attn.q");
    if (its.has_images) {
      for (const char* kind : {".weight", ".bias"}) {
        naming.push_back({path + "cross_attn.image_kv_linear" + kind,
                          {key + "cross_attn.k_img" + kind, key + "cross_attn.v_img" + kind}});
      }
      add(naming, path + "cross_attn.image_k_norm.weight", key + "cross_attn.norm_k_img.weight");
    }
    for (const auto& [ours, theirs] :
         {std::pair("attn.", "self_attn."), {"cross_attn.", "cross_attn."}}) {
      add_layer(naming, path + ours + "proj", key + theirs + "o");
      add(naming, path + ours + "q_norm.weight", key + theirs + "norm_q.weight");
      add(naming, path + ours + "k_norm.weight", key + theirs + "norm_k.weight");
    }
    add_layer(naming, path + "cross_norm", key + "norm3");
    add_layer(naming, path + "mlp.fc1", key + "ffn.0");
    add_layer(naming, path + "mlp.fc2", key + "ffn.2");
  }
  return naming;
}

/// How many numbers from 0 on have a name `before` + number + `behind`.
int64_t count(const std::set<std::string>& names, const std::string& before,
              std::string_view behind) {
  int64_t number = 0;
  while (names.contains(before + std::to_string(number) + std::string(behind))) {
    ++number;
  }
  return number;
}

}  // namespace

nn::Naming original_sd3_naming(const ModelConfig& config) {
  return sd3_naming({.depth = config.transformer.depth});
}

nn::Naming original_flux_naming(const ModelConfig& config) {
  const TransformerConfig& own = config.transformer;
  return flux_naming({.depth = own.depth, .parallel_depth = own.parallel_depth});
}

nn::Naming original_hunyuan_video_naming(const ModelConfig& config) {
  const TransformerConfig& own = config.transformer;
  return hunyuan_video_naming({.depth = own.depth,
                               .parallel_depth = own.parallel_depth,
                               .refiner_depth = own.refiner_depth});
}

nn::Naming original_wan_naming(const ModelConfig& config) {
  const TransformerConfig& own = config.transformer;
  return with_batched_tables(wan_naming_of({.depth = own.depth,
                                            .has_images = own.image_channels > 0,
                                            .has_positions = own.image_positions > 0}),
                             config);
}

nn::Naming original_open_sora2_naming(const ModelConfig& config) {
  const TransformerConfig& own = config.transformer;
  return flux_naming({.depth = own.depth,
                      .parallel_depth = own.parallel_depth,
                      .head = own.hidden / own.heads,
                      .hidden = own.hidden,
                      .mlp_hidden = own.mlp_hidden()});
}

std::optional<nn::Naming> find_original_naming(
    const std::vector<std::string>& all,
    const std::function<std::vector<int64_t>(const std::string& name)>& shape_of) {
  const std::set<std::string> names(all.begin(), all.end());
  for (const char* prefix : {"", kModelPrefix}) {
    Blocks its{.prefix = prefix};
    its.depth = count(names, its.prefix + "double_blocks.", ".img_attn.qkv.weight");
    if (its.depth > 0 && names.contains(its.prefix + "img_in.weight")) {
      its.parallel_depth = count(names, its.prefix + "single_blocks.", ".linear1.weight");
      return flux_naming(its);
    }
    its.depth = count(names, its.prefix + "double_blocks.", ".img_attn_qkv.weight");
    its.refiner_depth = count(names, its.prefix + "txt_in.individual_token_refiner.blocks.",
                              ".self_attn_qkv.weight");
    if (its.depth > 0 && its.refiner_depth > 0) {
      its.parallel_depth = count(names, its.prefix + "single_blocks.", ".linear1.weight");
      return hunyuan_video_naming(its);
    }
    its.depth = count(names, its.prefix + "blocks.", ".self_attn.q.weight");
    if (its.depth > 0 && names.contains(its.prefix + "time_projection.1.weight")) {
      its.has_images = names.contains(its.prefix + "img_emb.proj.0.weight");
      its.has_positions = names.contains(its.prefix + "img_emb.emb_pos");
      return wan_naming_of(its);
    }
    its.depth = count(names, its.prefix + "double_blocks.", ".img_attn.q_proj.weight");
    if (its.depth > 0 && names.contains(its.prefix + kNormOfHeads)) {
      its.parallel_depth = count(names, its.prefix + "single_blocks.", ".v_mlp.weight");
      its.head = shape_of(its.prefix + kNormOfHeads).front();
      its.hidden = shape_of(its.prefix + "double_blocks.0.img_attn.q_proj.weight").front();
      if (its.parallel_depth > 0) {
        its.mlp_hidden = shape_of(its.prefix + "single_blocks.0.v_mlp.weight").front() - its.hidden;
      }
      return flux_naming(its);
    }
    its.depth = count(names, its.prefix + "joint_blocks.", ".x_block.attn.qkv.weight");
    // Without a prefix and without norms of heads the names are ours.
    const bool has_other =
        !its.prefix.empty() || names.contains("joint_blocks.0.x_block.attn.ln_q.weight");
    if (its.depth > 0 && has_other) {
      return sd3_naming(its);
    }
  }
  return std::nullopt;
}

}  // namespace kinora::models
