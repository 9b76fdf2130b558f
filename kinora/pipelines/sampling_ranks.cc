#include "kinora/pipelines/sampling_ranks.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "kinora/core/error.h"

namespace kinora::pipelines {
namespace {

std::string number_of(int64_t samples) {
  return std::to_string(samples) + (samples == 1 ? " sample" : " samples");
}

}  // namespace

parallel::MeshShape SamplingShares::mesh() const {
  return {.pipeline = pipeline,
          .shard = groups,
          .guidance = guidance,
          .sequence = sequence,
          .tensor = tensor};
}

SamplingShares share_ranks(const SamplingRanks& wanted, int64_t ranks, int64_t samples,
                           bool guided) {
  KINORA_CHECK(wanted.guidance <= 1 || guided, kConfig, "[sample] --guidance-ranks ",
               wanted.guidance,
               " needs guidance, and its scale is 1. Hint: --guidance S, or --guidance-ranks 1");
  KINORA_CHECK(wanted.guidance <= 1 || wanted.pipeline == 1, kConfig, "[sample] --pipeline ",
               wanted.pipeline,
               " takes the rows of guidance one behind the other, and --guidance-ranks ",
               wanted.guidance, " would part them. Hint: leave one of them out");
  SamplingShares shares{.pipeline = wanted.pipeline,
                        .guidance = std::max<int64_t>(wanted.guidance, 1),
                        .sequence = std::max<int64_t>(wanted.sequence, 1),
                        .tensor = wanted.tensor};
  const int64_t given = shares.pipeline * shares.guidance * shares.sequence * shares.tensor;
  KINORA_CHECK(ranks % given == 0, kConfig, "[sample] --guidance-ranks ", shares.guidance,
               " x --sequence ", shares.sequence,
               shares.tensor > 1 ? " x --tensor " + std::to_string(shares.tensor) : "",
               shares.pipeline > 1 ? " x --pipeline " + std::to_string(shares.pipeline) : "",
               " does not divide ", ranks, ranks == 1 ? " rank" : " ranks", ". Hint: --ranks ",
               given, " or a multiple");
  shares.groups = ranks / given;
  std::string why = wanted.guidance + wanted.sequence > 0 || wanted.tensor * wanted.pipeline > 1
                        ? "as asked"
                        : "each draws samples of its own, of " + std::to_string(samples);
  if (samples < shares.groups) {
    why = "for " + number_of(samples) + (guided ? "" : " without guidance");
    int64_t rest = shares.groups / std::gcd(shares.groups, samples);
    if (wanted.guidance == 0 && guided && wanted.pipeline == 1 && rest % 2 == 0) {
      shares.guidance = 2;
      rest /= 2;
    }
    if (wanted.sequence == 0) {
      shares.sequence = rest;
    }
    shares.groups = ranks / (shares.pipeline * shares.guidance * shares.sequence * shares.tensor);
  }
  KINORA_CHECK(shares.groups <= samples, kConfig, "[sample] ", ranks, " ranks with --sequence ",
               shares.sequence, " and --guidance-ranks ", shares.guidance, " are ", shares.groups,
               " groups for ", number_of(samples),
               ". Hint: leave out --sequence or --guidance-ranks, or take fewer ranks");
  std::ostringstream text;
  text << ranks << " ranks = " << shares.groups << (shares.groups == 1 ? " group" : " groups")
       << " x guidance " << shares.guidance << " x sequence " << shares.sequence;
  if (shares.tensor > 1) {
    text << " x tensor " << shares.tensor;
  }
  if (shares.pipeline > 1) {
    text << " x pipeline " << shares.pipeline;
  }
  text << ": " << why;
  shares.reason = text.str();
  return shares;
}

SampleRange own_samples(int64_t samples, const parallel::Mesh& mesh) {
  const int64_t first = samples * mesh.data_rank() / mesh.data_ranks();
  return {first, samples * (mesh.data_rank() + 1) / mesh.data_ranks() - first};
}

bool leads_group(const parallel::Mesh& mesh) {
  return mesh.sample_group().rank() == 0;
}

}  // namespace kinora::pipelines
