#include "kinora/inference/finetune_config.h"

#include "kinora/core/config.h"

namespace kinora::inference {

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
  fields.add("rank", lora.rank, "Rank r of the updates.", between(1, 65536));
  fields.add("alpha", lora.alpha, "Updates are multiplied by alpha / rank.", above(0, 1e6));
  fields.add("rslora", lora.rslora, "By alpha / sqrt(rank) instead (rsLoRA).");
  fields.add("dora", lora.dora, "Train the norms of the weights' rows apart (DoRA).");
}

}  // namespace kinora::inference
