#include "kinora/inference/finetune_config.h"

#include "kinora/core/config.h"

namespace kinora::inference {

std::optional<kernels::WeightFormat> format_of(FrozenWeights weights) {
  switch (weights) {
    case FrozenWeights::kFull:
      return std::nullopt;
    case FrozenWeights::kInt8:
      return kernels::WeightFormat::kInt8;
    case FrozenWeights::kFp8:
      return kernels::WeightFormat::kFp8;
    case FrozenWeights::kNf4:
      return kernels::WeightFormat::kNf4;
  }
  return std::nullopt;
}

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
  fields
      .add("frozen_weights", config.frozen_weights,
           {{"full", FrozenWeights::kFull},
            {"int8", FrozenWeights::kInt8},
            {"fp8", FrozenWeights::kFp8},
            {"nf4", FrozenWeights::kNf4}},
           "What the frozen weights of blocks' linears and convolutions lie in: full = "
           "train.precision; int8, fp8 = 8 bits and a scale a row; nf4 = 4 bits and a scale for 64 "
           "of them (QLoRA). A block's are widened while it is computed.")
      .check("be full where nothing is frozen", [&config] {
        return config.frozen_weights == FrozenWeights::kFull || config.freezes();
      });
  fields
      .add("offload", config.offload,
           "Share of the same weights that lies in the host's memory, page-locked: every n-th "
           "block's comes over the link just before it is used. On a GPU alone.",
           between(0, 1))
      .check("be 0 where nothing is frozen",
             [&config] { return config.offload == 0.0 || config.freezes(); });
  const auto lora_scope = fields.scope("lora");
  LoraConfig& lora = config.lora;
  fields.add("targets", lora.targets,
             "Linears and convolutions that get a trained low-rank update while they are frozen, "
             "as patterns over their paths: [blocks.*.attn.*]. [] = none.");
  fields.add("kind", lora.kind,
             {{"lora", nn::UpdateKind::kLora},
              {"loha", nn::UpdateKind::kLoha},
              {"lokr", nn::UpdateKind::kLokr}},
             "What an update is: lora = B A; loha = (W1a W1b) * (W2a W2b), element by element; "
             "lokr = W1 kron W2, a Kronecker product.");
  fields.add("rank", lora.rank, "Rank r of the updates.", between(1, 65536));
  fields.add("alpha", lora.alpha, "Updates are multiplied by alpha / rank.", above(0, 1e6));
  fields.add("conv_rank", lora.conv_rank,
             "Rank of the updates of convolutions over more than one place, such as 3 x 3; 0 = "
             "rank.",
             between(0, 65536));
  fields.add("conv_alpha", lora.conv_alpha, "Alpha of the same; 0 = alpha.", between(0, 1e6));
  fields
      .add(
          "factor", lora.factor,
          "Of lokr: how sizes become products of two. A positive number that divides a size is one "
          "of them; else the smaller one is no larger. -1 = both near the size's root.",
          between(-1, 65536))
      .check("be -1 or positive, and -1 unless finetune.lora.kind is lokr", [&lora] {
        return lora.factor == -1 || (lora.factor > 0 && lora.kind == nn::UpdateKind::kLokr);
      });
  fields.add("rslora", lora.rslora, "By alpha / sqrt(rank) instead (rsLoRA).")
      .check("be false unless finetune.lora.kind is lora",
             [&lora] { return !lora.rslora || lora.kind == nn::UpdateKind::kLora; });
  fields.add("dora", lora.dora, "Train the norms of the weights' rows apart (DoRA).")
      .check("be false unless finetune.lora.kind is lora",
             [&lora] { return !lora.dora || lora.kind == nn::UpdateKind::kLora; });
}

}  // namespace kinora::inference
