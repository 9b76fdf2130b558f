// A CPU-only build: there is nothing to record.
#include "kinora/core/error.h"
#include "kinora/device/graph.h"

namespace kinora::device {

struct Graph::Impl {};

Graph::Graph() = default;
Graph::~Graph() = default;

void Graph::record(const std::function<void()>& /*work*/) {
  KINORA_UNREACHABLE("[graph] this build has no GPU support");
}

bool Graph::is_recorded() const {
  return false;
}

void Graph::replay() {
  KINORA_UNREACHABLE("[graph] this build has no GPU support");
}

}  // namespace kinora::device
