#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "kinora/data/source.h"
#include "kinora/inference/draw_start.h"
#include "kinora/inference/recipe.h"
#include "kinora/inference/request.h"
#include "kinora/inference/trained_model.h"
#include "kinora/parallel/mesh.h"
#include "kinora/pipelines/batch_cost.h"
#include "kinora/pipelines/clips.h"
#include "kinora/pipelines/draw.h"

namespace kinora::inference {

/// Lets the recipe be of samples of this size, in pixels and frames, and of clips of so many frames
/// a second; 0 as it has them. kConfig for a size that the model does not take.
void set_size(const SampleSize& size, double fps, ModelRecipe& recipe);

/// The samples of a drawing that are of one size, and so can share batches.
class DrawingGroup {
 public:
  /// The model is borrowed. size: 0 as the model has it. kConfig for what it does not take; kIo.
  DrawingGroup(TrainedModel& trained, const SampleSize& size, const DrawOptions& options);

  /// Samples number, number + 1, ... of the drawing: what each was asked to show. kConfig; kIo.
  std::vector<Asked> add(const Request& request, int64_t number);

  /// As Drawing::set_start.
  void set_start(const DrawStart& start);

  /// The model's, with the size of these samples.
  [[nodiscard]] const ModelRecipe& recipe() const { return recipe_; }
  [[nodiscard]] int64_t count() const { return std::ssize(samples_); }
  [[nodiscard]] bool is_guided() const;
  /// Whether samples go on from given frames, or from pieces of their own.
  [[nodiscard]] bool goes_on() const { return clips_.given.frames.defined() || clips_.pieces > 1; }

  /// Of its first samples, see Drawing::batch_cost.
  [[nodiscard]] pipelines::BatchCost batch_cost() const;

  /// The first samples, of which there is one batch, by this process alone, with that step cache:
  /// float32 [samples, ...] on the CPU.
  [[nodiscard]] at::Tensor draw_first_batch(const diffusion::StepCacheConfig& cache);

  /// As Drawing::draw_batches, on a mesh whose shard axis is that of the groups of ranks; of
  /// samples by their numbers, which in a batch need not follow each other: each run of them is an
  /// event by itself. The part of progress is that of these samples.
  bool draw_batches(const parallel::Mesh& mesh, const pipelines::DrawEvents& events,
                    const std::vector<bool>& there);

 private:
  /// The samples of one request, and their conditions by number.
  struct Part {
    int64_t first;  // among those of the group
    int64_t count;
    pipelines::ConditionsOf conditions_of;
  };

  [[nodiscard]] std::vector<Asked> ask_for_classes(const Request& request,
                                                   pipelines::ConditionsOf& conditions);
  [[nodiscard]] std::vector<Asked> ask_for_texts(const Request& request,
                                                 pipelines::ConditionsOf& conditions);
  /// That the model is shown, of what lies beside samples.
  [[nodiscard]] int64_t channels_beside() const;
  /// What samples begin with: that of set_start(), or where nobody says data, noise with
  /// ModelShape::first_frame_share.
  [[nodiscard]] diffusion::SampleStart with_first_frame() const;
  /// Of a sample as it is drawn, with frames_before().
  [[nodiscard]] std::vector<int64_t> drawn_shape() const;
  /// Frames of clips that are drawn, or given, before the first and then left out:
  /// ModelShape::frames_before and ClipOptions::shown_places.
  [[nodiscard]] int64_t frames_before() const;
  /// Rows for samples first, ..., on the device; undefined of none.
  [[nodiscard]] at::Tensor rows_of(const at::Tensor& all, int64_t first, int64_t size) const;
  [[nodiscard]] pipelines::DrawConditions conditions_of(int64_t first, int64_t size) const;

  TrainedModel& trained_;
  ModelRecipe recipe_;
  const DrawOptions& options_;
  std::vector<pipelines::SampleToDraw> samples_;
  std::vector<int64_t> numbers_;  // of the samples in the drawing
  std::vector<Part> parts_;
  std::optional<data::TextShape> text_shape_;     // of all requests
  bool has_negative_ = false;                     // likewise
  std::optional<diffusion::Sampler> last_steps_;  // of a start with data
  diffusion::SampleStart start_;
  at::Tensor beside_;   // DrawStart's
  at::Tensor control_;  // likewise
  pipelines::ImagePrompts image_prompts_;
  pipelines::ClipOptions clips_;
};

}  // namespace kinora::inference
