#include "kinora/parallel/sequence.h"

#include "kinora/core/error.h"
#include "kinora/parallel/mesh.h"
#include "kinora/parallel/sequence_dsp.h"
#include "kinora/parallel/sequence_fastseq.h"
#include "kinora/parallel/sequence_usp.h"

namespace kinora::parallel {
namespace {

std::shared_ptr<const nn::Sequence> make_usp(const SequencePlan& plan, const comm::Group& group) {
  const SequenceGroups groups = sequence_groups(plan);
  // A split that is the whole group needs no connections of its own.
  const auto of = [&](const std::vector<std::vector<int64_t>>& lists) {
    return lists.size() == 1 ? group : group.split(lists);
  };
  comm::Group neighbours = of(groups.all_to_all);
  comm::Group inside = of(groups.ring_inside);
  comm::Group across = of(groups.ring_across);
  return std::make_shared<UspSequence>(group, std::move(neighbours),
                                       Rings{std::move(inside), std::move(across)});
}

}  // namespace

SequenceGroups sequence_groups(const SequencePlan& plan) {
  return {lines(1, plan.all_to_all, plan.ranks()),
          lines(plan.all_to_all, plan.ring_inside, plan.ranks()),
          lines(plan.all_to_all * plan.ring_inside, plan.ring_across, plan.ranks())};
}

std::shared_ptr<const nn::Sequence> make_sequence(const SequencePlan& plan,
                                                  const comm::Group& group) {
  KINORA_CHECK(plan.ranks() == group.size(), kConfig, "[sequence] a plan for ", plan.ranks(),
               " ranks does not suit a group of ", group.size(), '.');
  if (group.size() == 1) {
    return std::make_shared<nn::Sequence>();
  }
  switch (plan.scheme) {
    case SequenceScheme::kUlysses:
    case SequenceScheme::kUsp:
    case SequenceScheme::kNdRing:
    case SequenceScheme::kRing:
      return make_usp(plan, group);
    case SequenceScheme::kDsp:
      return std::make_shared<DspSequence>(group);
    case SequenceScheme::kFastSeq:
      return std::make_shared<FastSeqSequence>(group);
    case SequenceScheme::kAuto:
      break;
  }
  KINORA_UNREACHABLE("[sequence] plan_sequence() resolves auto");
}

}  // namespace kinora::parallel
