#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kinora/comm/group.h"

/// What all ranks do together or not at all.
namespace kinora::checkpoint {

/// Every rank's text, by group rank. All ranks call it. kComm.
[[nodiscard]] std::vector<std::string> gather_texts(const comm::Group& group,
                                                    const std::string& mine);

/// Runs `step` on every rank of the group; all ranks call it. Returns what it gave on each, by
/// group rank, or throws on all of them the same error: that of the first rank where it failed,
/// named in the message. kComm if a rank is gone.
std::vector<std::string> in_agreement(const comm::Group& group,
                                      const std::function<std::string()>& step);

}  // namespace kinora::checkpoint
