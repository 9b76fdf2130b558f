#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace kinora::diffusion {

class StepCache;

/// What a prediction is conditioned on. Every tensor is optional (undefined = not given); the first
/// dim of each is B. Shapes: L text tokens, D their width, T frames of x_t.
struct Conditions {
  at::Tensor labels{};        ///< int64 [B]; the null class is the denoiser's num_classes
  at::Tensor text{};          ///< embedded captions: fp32 or bf16 [B, L, D]
  at::Tensor tokens{};        ///< instead of `text`, for models with a text encoder: int64 [B, L]
  at::Tensor text_lengths{};  ///< int64 [B]: tokens of the caption; what follows is padding
  at::Tensor pooled{};        ///< one vector a caption: fp32 [B, D]
  /// bool [B]: the model's null embedding stands for this caption (classifier-free guidance). Its
  /// length stays that of the caption.
  at::Tensor null_text{};
  /// bool [B]: the same of the vector of models that read it beside the text; undefined: null_text
  /// says it.
  at::Tensor null_pooled{};
  at::Tensor fps{};         ///< frames a second of the clip: fp32 [B]
  at::Tensor height{};      ///< of the clip in pixels: fp32 [B]
  at::Tensor width{};       ///< likewise
  at::Tensor num_frames{};  ///< of the clip before it was encoded: fp32 [B]
  /// Height and width of the picture before it was made smaller and cut: fp32 [B, 2].
  at::Tensor original_size{};
  at::Tensor crop{};   ///< rows and columns that were cut off above and at the left: fp32 [B, 2]
  at::Tensor score{};  ///< how well the picture pleases: fp32 [B]
  /// bool [B, T]: whether a frame of x_t is noised. The others are given: clean, at t = 0.
  at::Tensor frame_mask{};
  at::Tensor given{};  ///< fp32, as x_t: the given frames; the others are zeros
  /// fp32 [B, T], of flows: the noise level at which a given frame stands still until t is below
  /// it, and it is drawn as the others; undefined: all are clean, and stay.
  at::Tensor given_levels{};
  /// fp32 [B, M]: the first M frames of x_t are no part of the clip, but are shown as what begins
  /// at these frames of it, counted in pixels. Of models with single_first_frame; undefined: M is
  /// 0.
  at::Tensor shown_places{};
  /// Of models that are shown more than x_t: fp32 [B, C, (T,) H, W] of x_t's size, behind its
  /// channels; of those that are shown it as tokens behind x_t's, of any size, and of N pictures
  /// of subjects [B, C, N, h, w].
  at::Tensor beside{};
  /// Of U-Nets with ControlNets, what each of K is shown: fp32 [B, 3 K, h, w] pixels of [0, 1], or
  /// uint8.
  at::Tensor control{};
  /// What an image encoder makes of pictures that prompt beside the text: fp32 [B, P], or [B, N, P]
  /// of N places. Of U-Nets with an IP-Adapter, and of Wan, whose pictures are the given frames.
  at::Tensor image_prompt{};
};

/// How a model is shown frames that are given (Conditions::frame_mask and given).
enum class GivenWay : uint8_t {
  kNone,    ///< it takes none
  kClean,   ///< in x_t as they are, at t = 0
  kNoised,  ///< beside x_t, in which they are noised to the step's time, anew in each step
            ///< (Open-Sora 1.3)
  kBeside,  ///< beside x_t alone, in which they are drawn as the others; they take their places
            ///< when all is drawn (Open-Sora 2)
};

/// The tensors of Conditions by name.
struct NamedCondition {
  const char* name;
  at::Tensor Conditions::*tensor;
};
inline constexpr std::array<NamedCondition, 21> kConditions = {{
    {"labels", &Conditions::labels},
    {"text", &Conditions::text},
    {"tokens", &Conditions::tokens},
    {"text_lengths", &Conditions::text_lengths},
    {"pooled", &Conditions::pooled},
    {"null_text", &Conditions::null_text},
    {"null_pooled", &Conditions::null_pooled},
    {"fps", &Conditions::fps},
    {"height", &Conditions::height},
    {"width", &Conditions::width},
    {"num_frames", &Conditions::num_frames},
    {"original_size", &Conditions::original_size},
    {"crop", &Conditions::crop},
    {"score", &Conditions::score},
    {"frame_mask", &Conditions::frame_mask},
    {"given", &Conditions::given},
    {"given_levels", &Conditions::given_levels},
    {"shown_places", &Conditions::shown_places},
    {"beside", &Conditions::beside},
    {"control", &Conditions::control},
    {"image_prompt", &Conditions::image_prompt},
}};

/// What a denoiser makes of times and conditions before a run of sampling, so that the steps need
/// not. What the tensors hold is its own business; all are optional.
struct Prepared {
  /// Of times, and of texts, nothing larger is prepared.
  static constexpr int64_t kMaxBytes = int64_t{1} << 30;

  /// Of time and conditions: [S, ...] for S times, or the row of one.
  at::Tensor of_times{};
  /// Of the texts alone, the same at all times: one for each layer that reads them.
  std::vector<at::Tensor> of_texts{};
  std::vector<at::Tensor> of_image_prompts{};  ///< likewise

  [[nodiscard]] bool any() const { return of_times.defined() || !of_texts.empty(); }
  /// For time number s of S.
  [[nodiscard]] Prepared at_time(int64_t s) const;
};

/// Consecutive blocks of a model that a pass computes, where ranks divide them (pipeline
/// parallelism): the seam between models and parallel/pipeline.h.
class Stage {
 public:
  Stage(int64_t first, int64_t end) : first_(first), end_(end) {}
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  virtual ~Stage() = default;

  /// Blocks first(), ..., end() - 1, counted in order of use.
  [[nodiscard]] int64_t first() const { return first_; }
  [[nodiscard]] int64_t end() const { return end_; }

  /// What the block before the first has made: of the shapes and types of `like`. Not called where
  /// the first block is here.
  [[nodiscard]] virtual std::vector<at::Tensor> enter(const std::vector<at::Tensor>& like) = 0;
  /// Takes what the last block has made. Not called where the model's last block is here.
  virtual void leave(const std::vector<at::Tensor>& streams) = 0;

 private:
  int64_t first_;
  int64_t end_;
};

/// The stages of a model that ranks divide: how a pass without gradients goes through all of them.
class Pipeline {
 public:
  Pipeline() = default;
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;
  virtual ~Pipeline() = default;

  /// Those that are here, in order.
  [[nodiscard]] virtual const std::vector<std::unique_ptr<Stage>>& stages() const = 0;
  /// What the last stage returns, on all ranks: `own` there, nothing elsewhere. `like`: of its
  /// shape and type.
  [[nodiscard]] virtual at::Tensor share(const at::Tensor& own, const at::Tensor& like) const = 0;
};

/// What belongs to one pass, a forward and its backward. Several passes may be in flight: forward,
/// forward, backward, backward.
struct Pass {
  /// Training: the first pass of an optimizer step, whose gradients hold nothing yet.
  bool starts_step = false;
  /// The gradients of blocks hold nothing when this pass' backward comes to them, and may be
  /// overwritten instead of added to. It holds in every pass where ranks divide gradients.
  bool overwrite = false;
  /// Training: weights may have changed since the last pass over these blocks.
  bool new_weights = true;
  /// Sampling: what Denoiser::prepare made of t and these conditions; stands in for them.
  Prepared prepared{};
  /// Sampling: what the run keeps from evaluation to evaluation. Borrowed; null: nothing.
  StepCache* cache = nullptr;
  /// Sampling: what all of t is, so that nobody needs to wait for the device to read it.
  std::optional<double> time{};
  /// The blocks that this pass computes, of models that can. Borrowed; null: all.
  Stage* stage = nullptr;
};

/// The seam between models and everything that trains or samples them.
class Denoiser {
 public:
  Denoiser() = default;
  Denoiser(const Denoiser&) = delete;
  Denoiser& operator=(const Denoiser&) = delete;
  virtual ~Denoiser() = default;

  /// x_t: float32 [B, C, H, W] (images) or [B, C, T, H, W] (video). t: float32 [B] in the
  /// schedule's unit: 0..999 for discrete schedules, [0, 1] for flows. Returns float32 of x_t's
  /// shape, with twice the channels where the model learns the variance; nothing where pass.stage
  /// ends before the last block.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x_t, const at::Tensor& t,
                                   const Conditions& conditions, const Pass& pass = {}) {
    return predict(x_t, t, conditions, pass);
  }

  /// What depends on times and conditions alone, for all `times` at once: at_time(s) of the result,
  /// as Pass::prepared, lets forward skip that work at times[s]. times: float32 [S] on the
  /// conditions' device. Nothing where the denoiser has no use for it. Without gradients.
  [[nodiscard]] virtual Prepared prepare(const at::Tensor& times, const Conditions& conditions);

  /// An empty cache for a run of sampling, to be given to each of its passes; null: the denoiser
  /// keeps nothing.
  [[nodiscard]] virtual std::unique_ptr<StepCache> make_cache();

 private:
  /// forward(), as each denoiser computes it.
  [[nodiscard]] virtual at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t,
                                           const Conditions& conditions, const Pass& pass) = 0;
};

}  // namespace kinora::diffusion
