#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "kinora/comm/group.h"

namespace kinora::comm {

/// Something that should be alike on all ranks.
struct Fact {
  std::string name;      ///< "configuration"
  std::string value;     ///< may span lines; not empty
  bool required = true;  ///< a difference is an error, else a warning
};

/// What this process runs: "program" (version, commit, CRC-32C of the file), "libtorch" (the one it
/// was built for) and, where there is one, the "GPU driver", which may differ.
[[nodiscard]] std::vector<Fact> program_facts();

/// What the self-check found out.
struct SelfCheck {
  int64_t num_hosts = 1;
  double clock_offset = 0.0;  ///< seconds: the largest, against rank 0's clock; on rank 0 only
};

/// Before the work: every rank of the world is there and answers, through the store and through the
/// group, and all have the same facts. Every rank calls it, with facts of the same names. At most
/// about `limit` passes at the store, and as much in the group. Clocks that differ by more than a
/// second are a warning: they only make logs hard to compare. A group of one has nothing to check.
/// A world may check itself again, as two trainers of different recipes do, one after the other.
///
/// Errors: kConfig on the first rank whose facts are not those of rank 0, with the first line that
/// differs and both its forms; kComm, with the same words, on the others, and kComm that names the
/// ranks that were not reached in time.
SelfCheck self_check(const Group& world, const std::vector<Fact>& facts,
                     std::chrono::milliseconds limit = std::chrono::seconds(10));

}  // namespace kinora::comm
