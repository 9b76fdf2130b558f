#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/models/model.h"
#include "kinora/models/transformers/caption_encoder.h"
#include "kinora/models/unets/control_net.h"
#include "kinora/models/unets/ip_adapter.h"
#include "kinora/models/unets/own_clip.h"
#include "kinora/models/unets/unet_layers.h"

namespace kinora::models {

struct ModelShape;

/// What a block of a U-Net is made of.
struct UnetBlockLayers {
  int64_t bucket = 0;  ///< that its weights lie in
  std::vector<UnetResnet*> resnets = {};
  UnetTransformer* transformer = nullptr;  ///< null: none attends
  UnetLevel* doubles = nullptr;            ///< whose change of size is at its end; null: none
};

/// The U-Net of latent diffusion (Rombach et al. 2022), Stable Diffusion 1 and 2 and SDXL (Podell
/// et al. 2023), and ControlNets beside it (controlnets.I): images from captions. Keys are those of
/// diffusers' UNet2DConditionModel. Where a
/// caption is null (Conditions::null_text) the buffer null_text [text_tokens, D] stands for its
/// states, all of which are read; with a CLIP of its own the tokens null_tokens [text_tokens] for
/// its tokens.
///
/// With ModelConfig::pooled_channels, as SDXL, it also reads a vector of each caption, how large
/// pictures were and how they were cut, or their score (Podell et al. 2023, section 2.2). Null
/// captions have zeros for states and vector then, as SDXL was trained, and there is no buffer.
///
/// With UnetConfig::classes it reads labels in the place of captions, of which num_classes is the
/// null class. Then class_token.weight or, as diffusers has it, class_embedding.weight holds their
/// vectors. With UnetAttends::kPlaces it is diffusers' UNet2DModel, which may be told nothing.
///
/// A block, that is what recomputation and buckets count, is a residual block with what attends
/// behind it and, at the end of a level, the change of size; the middle is one.
class Unet : public Model {
 public:
  explicit Unet(const ModelConfig& config);
  /// Family::resolve.
  static void resolve(ModelConfig& config, const ModelConfig& published);
  /// Family::shape.
  [[nodiscard]] static ModelShape shape(const ModelConfig& config);
  /// Family::macs.
  [[nodiscard]] static double macs(const ModelConfig& config);
  /// Family::fp8_macs.
  [[nodiscard]] static double fp8_macs(const ModelConfig& config);

  [[nodiscard]] std::vector<nn::BucketSpec> buckets() const override { return buckets_; }
  void to_device(const at::Device& device) override;
  [[nodiscard]] at::Tensor null_caption() const override {
    return has_text_encoder() ? at::Tensor() : null_text;  // undefined with pooled vectors
  }
  [[nodiscard]] at::Tensor null_tokens() const override { return null_ids; }

  [[nodiscard]] bool has_fast_path() const override { return true; }
  /// Products of the transformers' blocks, of linears that are one all.
  [[nodiscard]] int64_t num_fast_linears() const override;
  [[nodiscard]] std::string what_stays_16_bit() override;
  void begin_step() override;
  /// Not with updates of layers, whose factors a pass may use more than once.
  [[nodiscard]] bool can_overwrite_gradients() const override { return !is_adapted_; }
  /// Norms, gates and sums by kernels of ours, the blocks of transformers as stacks
  /// (ops/block_stack.h), of which `level` says what they keep.
  void use_fast_path(std::shared_ptr<ops::BlockKernels> kernels,
                     ops::Recompute level = ops::Recompute::kNone) override;

  [[nodiscard]] diffusion::Prepared prepare(const at::Tensor& times,
                                            const diffusion::Conditions& conditions) override;

 private:
  /// Needs text, or tokens where it has a text encoder, or labels, unless it is unconditional, and
  /// what UnetConfig::input says.
  /// x_t: [B, C, H, W].
  [[nodiscard]] at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t,
                                   const diffusion::Conditions& conditions,
                                   const diffusion::Pass& pass) override;
  void check_inputs(const at::Tensor& x_t, const at::Tensor& t,
                    const diffusion::Conditions& conditions) const;
  /// The embedded times: fp32 [N, E] of t [N].
  [[nodiscard]] at::Tensor embed_time(const at::Tensor& t) const;
  void check_labels(const at::Tensor& labels, int64_t batch) const;
  void check_captions(const diffusion::Conditions& conditions, int64_t batch) const;
  /// Captions as they are given: tokens or states; or labels.
  [[nodiscard]] const at::Tensor& told(const diffusion::Conditions& conditions) const {
    return reads_labels()       ? conditions.labels
           : has_text_encoder() ? conditions.tokens
                                : conditions.text;
  }
  /// Tokens of what attention to captions reads.
  [[nodiscard]] int64_t tokens_told(const diffusion::Conditions& conditions) const {
    return reads_labels() ? 1 : told(conditions).size(1);
  }
  /// Captions, or labels, as attention reads them: UnetReads' text and lengths.
  [[nodiscard]] at::Tensor read_text(const diffusion::Conditions& conditions) const;
  [[nodiscard]] at::Tensor text_lengths(const diffusion::Conditions& conditions) const;
  /// What prepare() makes its parts of: silu of the embedded times [S, 1 or B, E] and the captions;
  /// undefined where a part would be larger than Prepared says.
  [[nodiscard]] UnetReads prepared_reads(const at::Tensor& times,
                                         const diffusion::Conditions& conditions) const;
  /// Before a step's first pass, what the blocks do not overwrite.
  void zero_text_gradients();
  /// What a pass reads.
  [[nodiscard]] UnetReads reads(const at::Tensor& t, const diffusion::Conditions& conditions,
                                const diffusion::Prepared& prepared) const;

  /// Pooled vectors and sizes, which the embedded time has added to it: fp32 [B, P].
  [[nodiscard]] at::Tensor read_sizes(const diffusion::Conditions& conditions) const;
  /// What the ControlNets add, of all of them; nothing without any. pictures: Conditions::control.
  [[nodiscard]] ControlResiduals control(const at::Tensor& x_t, const at::Tensor& t,
                                         const at::Tensor& pictures, const UnetReads& reads,
                                         UnetBlocks& blocks) const;

  /// The embedded times with what else is added to them: fp32 [..., E] and [B, E].
  [[nodiscard]] at::Tensor with_added(const at::Tensor& time,
                                      const diffusion::Conditions& conditions) const;

  [[nodiscard]] bool has_text_encoder() const { return text_encoder || clip; }
  /// Or nothing, as an unconditional one.
  [[nodiscard]] bool reads_labels() const {
    return config().unet.classes != UnetClasses::kNone ||
           config().unet.attends == UnetAttends::kPlaces;
  }
  void make_buckets();
  void place_layers();

  // NOLINTBEGIN(readability-identifier-naming): named as the published checkpoints' keys
  std::optional<CaptionEncoder> text_encoder;
  std::optional<OwnClip> clip;  // text_encoder, too
  at::Tensor null_text;
  at::Tensor null_ids;  // null_tokens of a clip; else undefined
  nn::Conv conv_in;
  UnetEmbedding time_embedding;
  std::optional<UnetEmbedding> add_embedding;  ///< of pooled vectors and sizes
  std::optional<UnetClassVectors> class_token;
  std::optional<UnetClassVectors> class_embedding;
  std::vector<std::unique_ptr<UnetLevel>> down_blocks;
  std::unique_ptr<UnetMiddle> mid_block;
  std::vector<std::unique_ptr<UnetLevel>> up_blocks;
  std::vector<std::unique_ptr<ControlNet>> controlnets;
  std::optional<IpAdapter> ip_adapter;
  nn::GroupNorm conv_norm_out;
  nn::Conv conv_out;
  // NOLINTEND(readability-identifier-naming)
  std::vector<nn::BucketSpec> buckets_;
  int64_t first_block_ = 0;                     // in buckets_
  std::vector<UnetResnet*> resnets_;            // in order of use
  std::vector<UnetBlockLayers> layers_;         // likewise, by block
  std::vector<UnetTransformer*> transformers_;  // likewise, without those of ControlNets
  std::vector<UnetTransformer*> of_blocks_;     // by block, of ControlNets too; null: none attends
  std::shared_ptr<ops::BlockKernels> kernels_;
  bool is_adapted_ = false;  // a layer has an update
};

}  // namespace kinora::models
