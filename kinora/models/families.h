#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/diffusion/denoiser.h"
#include "kinora/models/model_config.h"
#include "kinora/nn/naming.h"
#include "kinora/nn/sequence.h"

/// The families of models. What the rest of the house has to know of one stands in its row here, so
/// that nobody else asks which family a model is of.
namespace kinora::ops {
class BlockKernels;
}  // namespace kinora::ops

namespace kinora::models {

class Model;

/// Which of diffusion::Conditions a family reads. Without a condition it draws from the null class
/// where it reads labels, else from the null embedding of captions.
struct FamilyConditions {
  bool labels = false;
  bool text = false;    ///< embedded tokens of captions
  bool tokens = false;  ///< where the model has a text encoder (model.text_encoder), their ids
  bool pooled = false;  ///< a vector a caption, unless the model has a text encoder
  bool fps = false;
  bool size = false;  ///< height and width
  bool num_frames = false;
  bool pooled_beside = false;  ///< a vector a caption beside its tokens, where the model has
                               ///< pooled_channels
  /// SDXL's, with that vector: how large pictures were and where they were cut
  /// (micro-conditioning).
  bool micro = false;
  bool frame_mask = false;    ///< frames can be given: they have a time of their own; of
                              ///< HunyuanVideo the first, with model.clean_first_frame
  bool given_beside = false;  ///< with frame_mask: they have none, and can be given where the model
                              ///< embeds them beside x_t (Open-Sora 2)
  /// With frame_mask: where the model embeds them beside x_t it is shown them in a clip that is
  /// grey elsewhere (ShownInput::kFrames), and they have no time of their own (Wan).
  bool given_as_clip = false;
  /// Where the model embeds them beside x_t it is shown the latents of the first frame, and zeros
  /// behind it (ShownInput::kFirstFrame) (CogVideoX).
  bool given_as_latents = false;
  /// With given_as_latents: and which of them that is (ShownInput::kMarkedFirstFrame)
  /// (HunyuanVideo).
  bool given_is_marked = false;
};

/// A size that was published.
struct PublishedSize {
  std::string name;    ///< "XL"
  ModelConfig values;  ///< what it gives where a recipe has 0 or auto
};

/// A patch that was published, as each size of the family.
struct PublishedPatch {
  std::string name;  ///< "2"
  int64_t frames = 1;
  int64_t side = 1;
};

/// What diffusers calls a family; pipelines/diffusers_model.cc knows its config.json.
struct DiffusersFamily {
  std::string class_name;  ///< "DiTTransformer2DModel"
  std::string pipeline;    ///< that needs no text encoder: "DiTPipeline"; "" = none
  bool is_flow = false;    ///< its times are 0 to 1, times 1000; else those of a chain
  nn::Naming (*naming)(const ModelConfig& config) = nullptr;
  /// Of a file with these names; nothing if they are not of this class.
  std::optional<nn::Naming> (*find_naming)(const std::vector<std::string>& names) = nullptr;
};

/// What those outside of models/ ask of a model's size; the keys that give it are the family's own.
/// 0 where it has no such thing.
struct ModelShape {
  int64_t blocks = 0;  ///< that train.recompute counts
  int64_t width = 0;   ///< of a token
  int64_t heads = 0;
  int64_t frames = 0;  ///< of tokens; a picture that is changed is one, too
  int64_t rows = 0;    ///< of tokens in a frame
  int64_t columns = 0;
  int64_t patch_frames = 1;   ///< the input's frames must be a multiple of it
  int64_t patch = 1;          ///< its height and width likewise
  bool is_undivided = false;  ///< ranks cannot divide its tokens, whatever Family::spans
  diffusion::GivenWay given_way = diffusion::GivenWay::kNone;  ///< how it is shown given frames
  bool has_windows = false;         ///< local attention in the place of the last of Family::spans
  bool has_sliding_window = false;  ///< model.sliding_window: tokens attend to those around them
  bool places_frames = false;  ///< it is shown frames from any frame on (Conditions::shown_places)
  bool is_distilled =
      false;  ///< it is told the guidance scale (model.guidance), and needs no other
  ShownInput input = ShownInput::kPlain;  ///< what it is shown beside x_t
  int64_t references = 0;                 ///< pictures of subjects, at most, where these are it
  int64_t channels_beside = 0;      ///< of that, in channels behind x_t's or tokens behind them
  int64_t controls = 0;             ///< pictures that ControlNets are shown
  bool reads_image_prompt = false;  ///< Conditions::image_prompt
  int64_t image_states = 0;         ///< of Wan: states that it usually has, of given frames
  int64_t image_channels = 0;       ///< of these
  bool reads_both_ends = false;     ///< they are those of a first and of a last frame
  /// Frames of the input that are drawn before the first and then left out, so that frames are
  /// whole patches (Family::fills_patches).
  int64_t frames_before = 0;
  bool takes_first_frame = false;  ///< frames that are given can be the first alone
  /// Its captions are read by a language model that sees the first frame, too.
  bool reads_frame_in_text = false;
  /// Of the first frame's latents, in the place of noise, in all frames that clips are drawn from.
  double first_frame_share = 0.0;
  int64_t decoded_before = 0;  ///< decoded frames, the first ones, that are left out

  [[nodiscard]] int64_t tokens_a_frame() const { return rows * columns; }
};

/// Frames of a clip that make one of its latents, each with a channel of its own in what
/// ShownInput::kFrames says of which are given.
inline constexpr int64_t kFrameMaskChannels = 4;

/// Of the states that HunyuanVideo's language model makes of a picture every so manieth is read,
/// those of a first frame that is given clean (model.clean_first_frame) or beside the clip.
[[nodiscard]] constexpr int64_t picture_stride(bool is_clean) {
  return is_clean ? 4 : 2;
}
/// And so many states of picture and caption together, as published.
[[nodiscard]] constexpr int64_t text_tokens_with_picture(bool is_clean) {
  return 24 * 24 / picture_stride(is_clean) + 252;
}

/// How many channels transformers are shown behind those of x_t. The configuration may be
/// unresolved.
[[nodiscard]] int64_t channels_beside(const ModelConfig& config);

/// Family::shape of transformers.
[[nodiscard]] ModelShape transformer_shape(const ModelConfig& config);

struct Family {
  std::string key;                ///< model.architecture
  std::string name;               ///< for people, and before the sizes: "DiT" of "DiT-XL/2"
  const char* before_size = "-";  ///< between them
  bool is_video = false;          ///< it makes clips; else images
  FamilyConditions conditions;
  /// What its fast path runs beside blocks of transformers, in words.
  const char* beside_blocks = nullptr;
  bool takes_any_size = false;  ///< else one, of clips also single frames of it
  /// Captions for a frozen text encoder are taken as they are written and filled up with padding,
  /// which it and the model read as the rest (Stable Diffusion's 77 tokens).
  bool pads_captions = false;
  /// They are tidied (prompts::tidied_caption) where others are cleaned as PixArt's.
  bool tidies_captions = false;
  /// They are taken as they are written, without padding (HunyuanVideo's language model).
  bool keeps_captions = false;
  /// They are taken as they are written, and padding behind them is read by the frozen text encoder
  /// but not by the model (LTX-Video).
  bool fills_captions = false;
  /// Among which tokens its attentions go, when it has no windows. []: ranks cannot divide them.
  std::vector<nn::Span> spans = {};
  bool has_text_stream = false;  ///< captions are tokens of the blocks, as the image is
  /// Clips of any number of frames are taken, though patches have several: the model fills the
  /// first.
  bool fills_patches = false;
  /// Its attention is nn::Sequence::stream_attention, as that of blocks with a text stream, without
  /// one.
  bool attends_as_stream = false;
  /// Its blocks make their own vectors of the time (ops::VectorFunction), from weights that are
  /// where it computes: the host does not multiply with these.
  bool modulates_itself = false;
  bool qk_norm = false;  ///< as published
  /// The keys that it reads of those that not all transformers read: "window".
  std::vector<std::string> own_keys = {};
  std::vector<PublishedSize> sizes = {};
  std::vector<PublishedPatch> patches = {};
  /// Fills its part of the configuration from a published size and by default, and checks it;
  /// kConfig, too for a key that is set and that it has no use for.
  void (*resolve)(ModelConfig& config, const ModelConfig& published) = nullptr;
  ModelShape (*shape)(const ModelConfig& config) = transformer_shape;  ///< shape_of()
  /// forward_macs() without a text encoder of its own.
  double (*macs)(const ModelConfig& config) = nullptr;
  /// Of these, those of the blocks whose linears fp8 can compute; null: as good as all.
  double (*fp8_macs)(const ModelConfig& config) = nullptr;
  std::unique_ptr<Model> (*make)(const ModelConfig& config) = nullptr;
  std::optional<DiffusersFamily> diffusers = {};
  /// Its names in CompVis' files; null: those have no such models.
  nn::Naming (*compvis_naming)(const ModelConfig& config) = nullptr;
  /// Its names in the files of its authors, where these are neither ours nor CompVis'.
  nn::Naming (*original_naming)(const ModelConfig& config) = nullptr;

  /// "DiT-S/2", ...
  [[nodiscard]] std::vector<PublishedSize> published() const;
  /// The same in short: "DiT-{S,B,L,XL}/{2,4,8}".
  [[nodiscard]] std::string published_in_short() const;
};

/// Family::make.
template <typename T>
[[nodiscard]] std::unique_ptr<Model> make(const ModelConfig& config) {
  return std::make_unique<T>(config);
}

/// All of them; a custom model that names none is of the first. Rows stay where they are.
[[nodiscard]] const std::deque<Family>& families();

/// Makes a family of the program's own known from now on, as those of the house are. Without sizes
/// it has custom models alone. To be called while no other thread uses this room, such as first
/// thing in main. kConfig for a row that is not whole, whose key or name is taken, or that has a
/// class of diffusers (whose files are read for the house's own).
void add_family(Family family);

/// The family of a model, whether its configuration is resolved() or not. kConfig for a name or an
/// architecture that nobody knows.
[[nodiscard]] const Family& family_of(const ModelConfig& config);

/// For people: "DiT-XL/2", of a custom model "DiT".
[[nodiscard]] std::string name_of(const ModelConfig& config);

/// Whether padding counts in what the model reads of captions: Family::pads_captions, and the model
/// has no text encoder of its own. The configuration may be unresolved.
[[nodiscard]] bool pads_captions(const ModelConfig& config);

/// What its fast path runs, in words.
[[nodiscard]] std::string describe_fast_path(const ModelConfig& config,
                                             const ops::BlockKernels& kernels);

/// Of a configuration that is resolved().
[[nodiscard]] ModelShape shape_of(const ModelConfig& config);

/// What model.name gives; nothing for "custom". kConfig for a name that nobody knows, or that
/// contradicts model.architecture.
[[nodiscard]] ModelConfig published_values(const ModelConfig& config);

/// The names of those that are so: "STDiT2 and STDiT3".
[[nodiscard]] std::string families_that(const std::function<bool(const Family& family)>& are_so);

}  // namespace kinora::models
