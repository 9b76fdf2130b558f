#include "kinora/nn/box.h"

#include <ATen/ops/cat.h>
#include <c10/util/accumulate.h>

#include "kinora/core/error.h"

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

BoxRun Box::run_of_own(int64_t own) const {
  const int64_t size = whole[static_cast<size_t>(dim)];
  const int64_t inner = c10::multiply_integers(whole.begin() + dim + 1, whole.end());
  const int64_t outer = own / (size / count * inner);
  const int64_t row = own / inner % (size / count);
  const int64_t column = own % inner;
  int64_t begin = 0;      // of a stretch along dim
  int64_t own_begin = 0;  // of its run here
  for (const int64_t length : stretches) {
    const int64_t run = length / count;
    if (const int64_t at = row - own_begin; at < run) {
      return {.index = index,
              .whole = (outer * size + begin + index * run + at) * inner + column,
              .own = own,
              .size = (run - at) * inner - column};
    }
    begin += length;
    own_begin += run;
  }
  KINORA_UNREACHABLE("[box] element ", own, " of a box of ", shape());
}

BoxRun Box::run_of_whole(int64_t element) const {
  const int64_t size = whole[static_cast<size_t>(dim)];
  const int64_t inner = c10::multiply_integers(whole.begin() + dim + 1, whole.end());
  const int64_t outer = element / (size * inner);
  const int64_t row = element / inner % size;
  const int64_t column = element % inner;
  int64_t begin = 0;
  int64_t own_begin = 0;
  for (const int64_t length : stretches) {
    const int64_t run = length / count;
    if (const int64_t at = row - begin; at < length) {
      return {.index = at / run,
              .whole = element,
              .own = (outer * (size / count) + own_begin + at % run) * inner + column,
              .size = (run - at % run) * inner - column};
    }
    begin += length;
    own_begin += run;
  }
  KINORA_UNREACHABLE("[box] element ", element, " of ", whole);
}

}  // namespace kinora::nn
