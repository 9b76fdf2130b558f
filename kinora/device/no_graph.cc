// A CPU-only build: there is nothing to record.
#include "kinora/core/error.h"
#include "kinora/device/graph.h"

namespace kinora::device {

int64_t reserved_by(const std::function<void()>& /*work*/) {
  KINORA_UNREACHABLE("[graph] this build has no GPU support");
}

int64_t free_bytes() {
  KINORA_UNREACHABLE("[graph] this build has no GPU support");
}

struct GraphPool::Impl {};

GraphPool::GraphPool() = default;
GraphPool::~GraphPool() = default;

int64_t GraphPool::num_bytes() const {
  return 0;
}

struct Graph::Impl {};

Graph::Graph() = default;
Graph::~Graph() = default;

void Graph::record(const std::function<void()>& /*work*/, GraphPool* /*pool*/) {
  KINORA_UNREACHABLE("[graph] this build has no GPU support");
}

bool Graph::is_recording() {
  return false;
}

bool Graph::is_recorded() const {
  return false;
}

void Graph::replay() {
  KINORA_UNREACHABLE("[graph] this build has no GPU support");
}

}  // namespace kinora::device
