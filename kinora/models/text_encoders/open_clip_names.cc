#include "kinora/models/text_encoders/open_clip_names.h"

#include <string>
#include <utility>

namespace kinora::models {

nn::Naming from_open_clip(int64_t blocks) {
  const std::string text = "text_model.";
  nn::Naming naming = {
      {.path = "token_embedding.weight", .keys = {text + "embeddings.token_embedding.weight"}},
      {.path = "positional_embedding", .keys = {text + "embeddings.position_embedding.weight"}}};
  const auto add_layer = [&naming](const std::string& theirs, const std::string& ours) {
    for (const char* end : {".weight", ".bias"}) {
      naming.push_back({.path = theirs + end, .keys = {ours + end}});
    }
  };
  add_layer("ln_final", text + "final_layer_norm");
  for (int64_t block = 0; block < blocks; ++block) {
    const std::string theirs = "transformer.resblocks." + std::to_string(block) + ".";
    const std::string ours = text + "encoder.layers." + std::to_string(block) + ".";
    for (const auto& [name, own] : {std::pair{"ln_1", "layer_norm1"},
                                    {"attn.out_proj", "self_attn.out_proj"},
                                    {"ln_2", "layer_norm2"},
                                    {"mlp.c_fc", "mlp.fc1"},
                                    {"mlp.c_proj", "mlp.fc2"}}) {
      add_layer(theirs + name, ours + own);
    }
    for (const char* kind : {"weight", "bias"}) {
      nn::OtherName packed{.path = theirs + "attn.in_proj_" + kind, .keys = {}};
      for (const char* part : {"q", "k", "v"}) {
        packed.keys.push_back(ours + "self_attn." + part + "_proj." + kind);
      }
      naming.push_back(std::move(packed));
    }
  }
  return naming;
}

}  // namespace kinora::models
