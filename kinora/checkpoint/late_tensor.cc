#include "kinora/checkpoint/late_tensor.h"

#include <utility>

#include "kinora/core/error.h"

namespace kinora::checkpoint {
namespace {

/// Part number `part` of `parts` equal ones along dim 0.
LateTensor part_of(const LateTensor& whole, int64_t part, int64_t parts) {
  if (parts == 1) {
    return whole;
  }
  LateTensor tensor = whole;
  const int64_t rows = whole.rows() / parts;
  tensor.shape.front() = rows;
  tensor.read = [read = whole.read, first = part * rows](int64_t begin, int64_t end) {
    return read(first + begin, first + end);
  };
  return tensor;
}

}  // namespace

int64_t LateTensor::numel() const {
  return c10::multiply_integers(shape);
}

at::Tensor rows_of(const at::Tensor& values, int64_t begin, int64_t end) {
  return values.dim() == 0 ? values : values.narrow(0, begin, end - begin);
}

LateTensor late_tensor(const at::Tensor& values) {
  return {.type = values.scalar_type(),
          .shape = values.sizes().vec(),
          .read = [host = values.cpu().contiguous()](int64_t begin, int64_t end) {
            return rows_of(host, begin, end);
          }};
}

LateTensor with_shape(LateTensor tensor, const std::vector<int64_t>& shape) {
  if (tensor.shape == shape) {
    return tensor;
  }
  tensor.shape = shape;
  tensor.read = [read = std::move(tensor.read), shape](int64_t begin, int64_t end) {
    std::vector<int64_t> part = shape;
    part.front() = end - begin;
    return read(begin, end).view(part);
  };
  return tensor;
}

LateTensors take_renamed(LateTensors& tensors, const nn::Naming& naming) {
  LateTensors renamed;
  for (const nn::OtherName& name : naming) {
    const auto found = tensors.find(name.path);
    if (found == tensors.end()) {
      continue;
    }
    LateTensor tensor = std::move(found->second);
    tensors.erase(found);
    const auto parts = static_cast<int64_t>(name.keys.size());
    KINORA_CHECK(parts == 1 || (!tensor.shape.empty() && tensor.shape.front() % parts == 0), kShape,
                 "[convert] the rows of ", name.path, " must divide by ", parts, ", got shape ",
                 at::IntArrayRef(tensor.shape));
    if (!name.shape.empty()) {
      tensor = with_shape(std::move(tensor), name.shape);
    }
    for (int64_t part = 0; part < parts; ++part) {
      renamed.emplace(name.keys[static_cast<size_t>(part)], part_of(tensor, part, parts));
    }
    for (const std::string& copy : name.copies) {
      renamed.emplace(copy, tensor);
    }
  }
  return renamed;
}

}  // namespace kinora::checkpoint
