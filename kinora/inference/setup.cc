#include "kinora/inference/setup.h"

#include <ATen/DeviceAccelerator.h>

#include <algorithm>

#include "kinora/comm/link_speed.h"
#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/device/device.h"
#include "kinora/device/dry_run.h"
#include "kinora/models/families.h"
#include "kinora/parallel/tensor.h"

namespace kinora::inference {

at::Device choose_device(DeviceChoice choice) {
  if (device::in_dry_run()) {
    return at::kMeta;
  }
  if (choice == DeviceChoice::kCuda) {
    device::require_cuda();
  }
  if (choice == DeviceChoice::kCpu || device::best_device().is_cpu()) {
    return at::kCPU;
  }
  return {at::kCUDA, at::accelerator::getDeviceIndex()};
}

at::ScalarType compute_type(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return at::kFloat;
    case Precision::kBf16:
      return at::kBFloat16;
    case Precision::kFp16:
      return at::kHalf;
  }
  KINORA_UNREACHABLE("[train] unknown precision");
}

std::shared_ptr<ops::BlockKernels> fast_path(const ModelRecipe& recipe, const models::Model& model,
                                             at::Device device) {
  const at::ScalarType type = compute_type(recipe.precision);
  if (device.is_cuda() && type == at::kBFloat16 &&
      cuda_device(std::max<int>(device.index(), 0)).major < 8) {
    log_warn(
        "[device] this GPU has no arithmetic in bf16 (Ampere and newer have), so all is "
        "computed by libtorch's slow stand-ins. Hint: train.precision=fp16, or --precision fp16");
  }
  const bool takes_it =
      recipe.path == Path::kFast || (recipe.path == Path::kAuto && model.has_fast_path() &&
                                     ops::BlockKernels::worthwhile(device, type));
  return takes_it ? std::make_shared<ops::BlockKernels>(recipe.kernels, device, type,
                                                        recipe.deterministic)
                  : nullptr;
}

void divide_weights(models::Model& model, const comm::Group& group) {
  const models::ModelShape shape = models::shape_of(model.config());
  const bool is_compressed =
      shape.is_undivided && !shape.takes_first_frame && parallel::divisible(model).units > 0;
  KINORA_CHECK(group.size() == 1 || !is_compressed, kConfig,
               "[tensor] ranks cannot divide the heads of an image whose keys and values are "
               "compressed (model.kv_compress). Hint: parallel.tensor=1");
  parallel::divide(model, group);
}

std::unique_ptr<parallel::PipelineLinks> divide_blocks(models::Model& model,
                                                       const comm::Group& group, int64_t chunks) {
  if (group.size() == 1) {
    return nullptr;
  }
  const parallel::StagePlan plan = parallel::plan_stages(model.block_costs(), group.size(), chunks);
  parallel::divide_blocks(model, model.buckets(), plan, group.rank());
  return std::make_unique<parallel::PipelineLinks>(group, plan);
}

parallel::SequencePlan sequence_plan(const models::ModelConfig& model, Precision precision,
                                     parallel::SequenceFacts facts, const comm::Group& group,
                                     at::Device device, bool deterministic) {
  const models::ModelShape shape = models::shape_of(model);
  facts.ranks = group.size();
  facts.ranks_inside = group.size();
  facts.heads = shape.heads;
  facts.hidden = shape.width;
  facts.num_frames = shape.frames;
  facts.tokens_a_frame = shape.tokens_a_frame();
  const models::Family& family = models::family_of(model);
  facts.spans = family.spans;
  facts.frames_are_streams = family.attends_as_stream;
  facts.has_block_mask = shape.has_sliding_window;
  if (family.has_text_stream) {
    facts.text_tokens = model.text_tokens;
    facts.reads_padding = models::pads_captions(model);
    facts.has_pictures = models::shows_tokens(shape.input);
  }
  KINORA_CHECK(!facts.spans.empty(), kConfig, "[sequence] ", models::name_of(model),
               " cannot divide the tokens of a sample among ranks. Hint: parallel.sequence=1");
  KINORA_CHECK(!shape.is_undivided, kConfig,
               "[sequence] ranks cannot divide the tokens of an image whose keys and values are "
               "compressed (model.kv_compress), nor of a clip whose first frame is modulated by "
               "itself (model.clean_first_frame). Hint: parallel.sequence=1");
  if (shape.has_windows) {
    facts.spans.pop_back();
    facts.windows = 1;
  }
  facts.element_bytes = static_cast<int64_t>(c10::elementSize(compute_type(precision)));
  const int64_t local = std::max<int64_t>(group.world().local_size / facts.tensor, 1);
  if (local < group.size() && group.size() % local == 0) {
    facts.ranks_inside = local;
  }
  if (device::in_dry_run() || deterministic) {
    return parallel::plan_sequence(facts);  // by what is sent, as if links were alike
  }
  for (const comm::OperationSpeed& speed : comm::measure(group, device)) {
    if (speed.operation == comm::Operation::kAllGather) {
      facts.inside = speed.link;
      facts.across = speed.link;
    }
  }
  return parallel::plan_sequence(facts);
}

}  // namespace kinora::inference
