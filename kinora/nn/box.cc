#include "kinora/nn/box.h"

#include <ATen/ops/cat.h>

namespace kinora::nn {

std::vector<int64_t> Box::shape() const {
  std::vector<int64_t> own = whole;
  own[static_cast<size_t>(dim)] /= count;
  return own;
}

at::Tensor Box::cut(const at::Tensor& whole_tensor) const {
  std::vector<at::Tensor> runs;
  int64_t begin = 0;
  for (const int64_t length : stretches) {
    const int64_t run = length / count;
    runs.push_back(whole_tensor.narrow(dim, begin + index * run, run));
    begin += length;
  }
  return runs.size() == 1 ? runs.front().contiguous() : at::cat(runs, dim);
}

at::Tensor Box::join(const std::vector<at::Tensor>& parts) const {
  std::vector<at::Tensor> runs;
  int64_t begin = 0;
  for (const int64_t length : stretches) {
    const int64_t run = length / count;
    for (const at::Tensor& part : parts) {
      runs.push_back(part.narrow(dim, begin, run));
    }
    begin += run;
  }
  return at::cat(runs, dim);
}

}  // namespace kinora::nn
