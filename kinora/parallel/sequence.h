#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/nn/sequence.h"
#include "kinora/parallel/sequence_plan.h"

namespace kinora::parallel {

/// Lists of group ranks, as Group::split takes them. Of rank r = (a * I + i) * U + u, u counts the
/// U of all_to_all, i the I of ring_inside and a those of ring_across: neighbours are close.
struct SequenceGroups {
  std::vector<std::vector<int64_t>> all_to_all;
  std::vector<std::vector<int64_t>> ring_inside;
  std::vector<std::vector<int64_t>> ring_across;
};
[[nodiscard]] SequenceGroups sequence_groups(const SequencePlan& plan);

/// What a model's use_sequence() takes. All ranks of `group`, those of one sequence, call it with
/// the same plan. A group of one gives nn::Sequence. kConfig unless the plan is for so many ranks.
[[nodiscard]] std::shared_ptr<const nn::Sequence> make_sequence(const SequencePlan& plan,
                                                                const comm::Group& group);

}  // namespace kinora::parallel
