#include "kinora/data/subset.h"

#include <cstddef>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::data {

SubsetSource::SubsetSource(const Source& whole, std::vector<int64_t> indices)
    : whole_(whole), indices_(std::move(indices)) {
  for (const int64_t index : indices_) {
    KINORA_CHECK(index >= 0 && index < whole.size(), kInternal,
                 "[data] a subset's indices must be in [0, ", whole.size(), "), got ", index);
  }
}

std::string SubsetSource::sample_name(int64_t index) const {
  return whole_.sample_name(whole_index(index));
}

void SubsetSource::read(int64_t index, Sample& out) const {
  whole_.read(whole_index(index), out);
}

}  // namespace kinora::data
