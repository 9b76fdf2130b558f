#include "kinora/checkpoint/late_tensor.h"

#include <ATen/ops/roll.h>

#include <utility>

#include "kinora/checkpoint/head_order.h"
#include "kinora/core/error.h"

namespace kinora::checkpoint {
namespace {

LateTensor part_of(const LateTensor& whole, const nn::RowRange& rows) {
  if (rows.count == whole.rows()) {
    return whole;
  }
  LateTensor tensor = whole;
  tensor.shape.front() = rows.count;
  tensor.read = [read = whole.read, first = rows.begin](int64_t begin, int64_t end) {
    return read(first + begin, first + end);
  };
  return tensor;
}

/// The same with the second half of its rows first.
LateTensor with_halves_swapped(const LateTensor& whole) {
  LateTensor tensor = whole;
  tensor.reads_rows = false;
  tensor.read = [read = whole.read, rows = whole.rows()](int64_t begin, int64_t end) {
    return at::roll(read(0, rows), rows / 2, 0).narrow(0, begin, end - begin);
  };
  return tensor;
}

/// The same with the rows of heads of so many in the order that `ordered` gives them.
LateTensor with_heads(const LateTensor& whole, int64_t head,
                      at::Tensor (*ordered)(const at::Tensor& values, int64_t head)) {
  LateTensor tensor = whole;
  tensor.reads_rows = false;
  tensor.read = [read = whole.read, head, ordered, rows = whole.rows()](int64_t begin,
                                                                        int64_t end) {
    return ordered(read(0, rows), head).narrow(0, begin, end - begin);
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
  if (shape.empty() || shape.front() != tensor.rows()) {
    tensor.reads_rows = false;
    tensor.read = [read = std::move(tensor.read), rows = tensor.rows(), shape](int64_t begin,
                                                                               int64_t end) {
      return rows_of(read(0, rows).view(shape), begin, end);
    };
    tensor.shape = shape;
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
    KINORA_CHECK(parts == 1 || !name.rows.empty() ||
                     (!tensor.shape.empty() && tensor.shape.front() % parts == 0),
                 kShape, "[convert] the rows of ", name.path, " must divide by ", parts,
                 ", got shape ", at::IntArrayRef(tensor.shape));
    if (name.swaps_halves) {
      tensor = with_halves_swapped(tensor);
    }
    if (name.packed_head > 0) {
      tensor = with_heads(tensor, name.packed_head, packed_by_head);
    }
    if (!name.shape.empty()) {
      tensor = with_shape(std::move(tensor), name.shape);
    }
    for (size_t part = 0; part < name.keys.size(); ++part) {
      LateTensor own = part_of(tensor, nn::rows_of_key(name, part, tensor.rows()));
      if (name.split_head > 0 && part < name.num_split) {
        own = with_heads(own, name.split_head, half_split);
      }
      renamed.emplace(name.keys[part], std::move(own));
    }
    for (const std::string& copy : name.copies) {
      renamed.emplace(copy, tensor);
    }
  }
  return renamed;
}

}  // namespace kinora::checkpoint
