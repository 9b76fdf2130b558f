#include "kinora/train/finetune_config.h"

#include <charconv>
#include <cmath>

#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::train {

void describe(Fields& fields, FinetuneConfig& config) {
  const auto scope = fields.scope("finetune");
  fields.add("train", config.train,
             "Parameters that are trained, as patterns over their paths: [y_embedder.*, "
             "blocks.*.attn.*]; * is any text. [] = all, and with finetune.lora.targets the "
             "updates alone.");
  fields.add("freeze", config.freeze,
             "Patterns of parameters that are not trained, also of those that finetune.train "
             "names. They take no gradient, moments, master weights or averages.");
  fields.add("fresh", config.fresh,
             "Patterns of parameters that start as in a new model, whatever checkpoint.init_from "
             "holds, in any shape: [y_embedder.*] for other classes.");
  fields.add("positions", config.positions,
             {{"same", PositionChoice::kSame},
              {"made", PositionChoice::kMade},
              {"interpolated", PositionChoice::kInterpolated}},
             "Position embeddings of checkpoint.init_from that are of another size than the "
             "model's: same = refused; made = made anew for the model's size, as model.* says; "
             "interpolated = those of the file, bicubic (in time linear).");
  const auto lora_scope = fields.scope("lora");
  LoraConfig& lora = config.lora;
  fields.add("targets", lora.targets,
             "Linears that get a trained low-rank update while they are frozen, as patterns over "
             "their paths: [blocks.*.attn.*]. [] = none.");
  fields.add("rank", lora.rank, "Rank r of the updates.", at_least(1));
  fields.add("alpha", lora.alpha, "Updates are multiplied by alpha / rank.", above(0));
  fields.add("rslora", lora.rslora, "By alpha / sqrt(rank) instead (rsLoRA).");
  fields.add("dora", lora.dora, "Train the norms of the weights' rows apart (DoRA).");
}

void describe(Fields& fields, LrFactors& factors) {
  const auto scope = fields.scope("lr");
  fields.add("layer_decay", factors.layer_decay,
             "Factor of the learning rate from block to block, from the last one down: d for the "
             "last block, d^2 for the one before, d^(depth + 1) for the embedders, 1 for the final "
             "layer.",
             {.min = 0, .max = 1, .min_open = true, .max_open = false});
  fields.add("factors", factors.patterns,
             "Factors of the learning rate by patterns over parameters' paths: "
             "[y_embedder.*=10, blocks.0.*=0.1]; the first that fits counts, times "
             "lr.layer_decay's.");
}

LrFactor parse_lr_factor(const std::string& text) {
  const size_t equals = text.rfind('=');
  LrFactor result;
  bool is_number = false;
  if (equals != std::string::npos) {
    const std::string_view number = trim(std::string_view(text).substr(equals + 1));
    const char* end = number.data() + number.size();
    const auto parsed = std::from_chars(number.data(), end, result.factor);
    is_number = parsed.ec == std::errc() && parsed.ptr == end;
    result.pattern = trim(std::string_view(text).substr(0, equals));
  }
  KINORA_CHECK(
      is_number && !result.pattern.empty() && std::isfinite(result.factor) && result.factor >= 0.0,
      kConfig, "[lr] lr.factors must be PATTERN=FACTOR with a factor of 0 or more, got ",
      quote(text), ". Hint: y_embedder.*=10");
  return result;
}

}  // namespace kinora::train
