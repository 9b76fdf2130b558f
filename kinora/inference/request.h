#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/data/data_config.h"
#include "kinora/pipelines/sampling_ranks.h"

namespace kinora::models {
class Autoencoder;
}

namespace kinora::inference {

struct Prompts;

/// In whose way weights of a prompt are written and what they do (weighted_texts.h).
enum class PromptWeights : uint8_t {
  kOff,     ///< brackets and signs are text
  kA1111,   ///< prompts::WeightSyntax::kBrackets; states are scaled
  kCompel,  ///< prompts::WeightSyntax::kSigns; states go away from those of the empty text
};

/// Of what is drawn; 0: as the model has it, and of a request as DrawOptions have it. Other sizes
/// are for models that take any (models::Family::takes_any_size).
struct SampleSize {
  int64_t frames = 0;
  int64_t height = 0;  ///< in pixels, as width
  int64_t width = 0;

  bool operator==(const SampleSize&) const = default;
};

/// Samples that somebody asks for. Sample i of a request has the noise of (seed, i), and so looks
/// the same in any batch or count.
struct Request {
  /// Classes in turn, each in [0, model.num_classes); empty: all. Of models of classes.
  std::vector<int64_t> classes = {};
  /// Captions in turn, of models with a text encoder (model.text_encoder, text.encoder).
  std::vector<std::string> captions = {};
  /// A folder of lists that wildcards in captions choose from, each sample for itself by (seed, i)
  /// (prompts/wildcards.h); empty: captions are as they are.
  std::string wildcards = {};
  /// A file of embedded texts (data.text_embeddings), in turn, of models of texts. Without these
  /// and captions: the texts of the model's data.
  std::string text_embeddings = {};
  /// Or texts that are embedded already, in turn: what a pipeline's text encoder makes of captions
  /// (pipeline_prompts.h).
  std::shared_ptr<const Prompts> encoded = {};
  int64_t count = 0;  ///< samples; 0: one of each class, caption or text
  uint64_t seed = 0;
  std::optional<double> guidance = {};  ///< scale; nothing: the recipe's
  SampleSize size = {};
};

/// A picture or a clip that samples show from one of their frames on.
struct PlacedFrames {
  int64_t frame = 0;      ///< counted in pixels
  std::string path = {};  ///< as DrawOptions::given
  /// How much of it is kept: below the noise level 1 - strength it is drawn as the others.
  double strength = 1.0;
};

/// How samples are drawn; 0: as the recipe says.
struct DrawOptions {
  int64_t batch = 64;    ///< computed at once
  int64_t steps = 0;     ///< of the sampler
  SampleSize size = {};  ///< of requests that say none
  double fps = 0.0;      ///< of models of clips, as what follows
  /// Some frames of clips, which take these files in turn (given_frames.h); empty: none. Which
  /// frames these are, see pipelines::frame_places, and what an image holds.
  std::vector<std::string> given = {};
  std::string given_frames = "head";
  /// Beside them, or without them: a picture, or a video whose last video_frames end every clip;
  /// and a video whose first ones begin it. Of models of latents each is encoded by itself.
  std::string last = {};
  std::string video = {};
  int64_t video_frames = 33;
  /// Beside them, or without them, of all clips: from other frames on than the first as tokens of
  /// their own, of models with model.single_first_frame.
  std::vector<PlacedFrames> at = {};
  /// Of models of latents: what encodes such frames, borrowed; null: they are given as latents.
  models::Autoencoder* encoder = nullptr;
  data::FrameLayout frame_layout = data::FrameLayout::kImage;
  double given_edit = 0.0;  ///< see pipelines::ClipOptions, as these
  int64_t pieces = 1;
  int64_t overlap = 0;
  pipelines::SamplingRanks ranks = {};  ///< how they share the work
};

/// What a sample was asked to show.
struct Asked {
  std::string caption = {};           ///< empty: not known
  std::optional<int64_t> label = {};  ///< its class, where known
};

}  // namespace kinora::inference
