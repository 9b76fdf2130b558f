#include "kinora/kernels/attention.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <vector>

#include "kinora/kernels/elements.h"

namespace kinora::kernels {
namespace {

/// One head's rows, [rows, columns].
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values;

  Matrix(int64_t num_rows, int64_t num_columns)
      : rows(num_rows),
        columns(num_columns),
        values(static_cast<size_t>(num_rows * num_columns), 0.0) {}
  [[nodiscard]] double* row(int64_t index) { return values.data() + index * columns; }
  [[nodiscard]] const double* row(int64_t index) const { return values.data() + index * columns; }
};

Matrix load(const HeadsView& view, DType type, int64_t b, int64_t first_row, int64_t rows,
            int64_t h, int64_t head_dim) {
  Matrix result(rows, head_dim);
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t start =
        b * view.batch_stride + (first_row + n) * view.row_stride + h * view.head_stride;
    for (int64_t d = 0; d < head_dim; ++d) {
      result.row(n)[d] = load_element(view.data, start + d, type);
    }
  }
  return result;
}

void store(const Matrix& matrix, const HeadsView& view, DType type, int64_t b, int64_t first_row,
           int64_t h) {
  for (int64_t n = 0; n < matrix.rows; ++n) {
    const int64_t start =
        b * view.batch_stride + (first_row + n) * view.row_stride + h * view.head_stride;
    for (int64_t d = 0; d < matrix.columns; ++d) {
      store_element(view.data, start + d, type, static_cast<float>(matrix.row(n)[d]));
    }
  }
}

Matrix transposed(const Matrix& matrix) {
  Matrix result(matrix.columns, matrix.rows);
  for (int64_t i = 0; i < matrix.rows; ++i) {
    for (int64_t j = 0; j < matrix.columns; ++j) {
      result.row(j)[i] = matrix.row(i)[j];
    }
  }
  return result;
}

/// y += factor x
void add_scaled(double factor, const double* x, int64_t count, double* y) {
  for (int64_t i = 0; i < count; ++i) {
    y[i] += factor * x[i];
  }
}

/// out [matrix.columns] = factor * row vector * matrix
void multiply(double factor, const double* row, const Matrix& matrix, std::vector<double>* out) {
  out->assign(static_cast<size_t>(matrix.columns), 0.0);
  for (int64_t i = 0; i < matrix.rows; ++i) {
    add_scaled(factor * row[i], matrix.row(i), matrix.columns, out->data());
  }
}

/// Where sample b's keys are.
struct Keys {
  int64_t b;
  int64_t begin;
  int64_t count;
};

Keys keys_of(const AttentionShape& shape, int64_t b) {
  if (shape.key_lengths != nullptr) {
    return {b, 0, shape.key_lengths[b]};
  }
  if (shape.key_offsets == nullptr) {
    return {b, 0, shape.key_length};
  }
  return {0, shape.key_offsets[b], shape.key_offsets[b + 1] - shape.key_offsets[b]};
}

/// Whether query i attends to key j.
bool attends(const AttentionShape& shape, int64_t i, int64_t j) {
  const BlockMask& mask = shape.mask;
  if (!mask.any()) {
    return true;
  }
  const int32_t* blocks = mask.key_blocks;
  const int64_t block = i / BlockMask::kRows;
  return std::binary_search(blocks + mask.key_offsets[block], blocks + mask.key_offsets[block + 1],
                            static_cast<int32_t>(j / BlockMask::kRows));
}

/// Scores of a query with all keys, -inf where it does not attend.
void score(const AttentionShape& shape, int64_t i, const double* query, const Matrix& k_columns,
           std::vector<double>* scores) {
  multiply(shape.scale, query, k_columns, scores);
  for (int64_t j = 0; j < k_columns.columns; ++j) {
    if (!attends(shape, i, j)) {
      (*scores)[static_cast<size_t>(j)] = -std::numeric_limits<double>::infinity();
    }
  }
}

}  // namespace

void attention_forward(const AttentionForward& call) {
  const AttentionShape& shape = call.shape;
  std::vector<double> p, row;
  for (int64_t b = 0; b < shape.batch; ++b) {
    const Keys keys = keys_of(shape, b);
    assert(keys.count >= 0 && keys.count <= shape.key_length);
    for (int64_t h = 0; h < shape.heads; ++h) {
      const Matrix q = load(call.q, shape.type, b, 0, shape.query_length, h, shape.head_dim);
      const Matrix k_columns =
          transposed(load(call.k, shape.type, keys.b, keys.begin, keys.count, h, shape.head_dim));
      const Matrix v = load(call.v, shape.type, keys.b, keys.begin, keys.count, h, shape.head_dim);
      Matrix out(shape.query_length, shape.head_dim);
      for (int64_t i = 0; i < shape.query_length; ++i) {
        score(shape, i, q.row(i), k_columns, &p);
        double max = -std::numeric_limits<double>::infinity();
        for (const double score : p) {
          max = score > max ? score : max;
        }
        double sum = 0.0;
        for (double& value : p) {
          value = std::exp(value - max);
          sum += value;
        }
        if (keys.count > 0) {
          multiply(1.0 / sum, p.data(), v, &row);
          std::copy(row.begin(), row.end(), out.row(i));
        }
        if (call.lse != nullptr) {
          call.lse[(b * shape.heads + h) * shape.query_length + i] =
              static_cast<float>(max + std::log(sum));
        }
      }
      store(out, call.out, shape.type, b, 0, h);
    }
  }
}

void attention_backward(const AttentionBackward& call) {
  const AttentionShape& shape = call.shape;
  std::vector<double> p, dp, row;
  for (int64_t b = 0; b < shape.batch; ++b) {
    const Keys keys = keys_of(shape, b);
    assert(keys.count >= 0 && keys.count <= shape.key_length);
    for (int64_t h = 0; h < shape.heads; ++h) {
      const Matrix q = load(call.q, shape.type, b, 0, shape.query_length, h, shape.head_dim);
      const Matrix out = load(call.out, shape.type, b, 0, shape.query_length, h, shape.head_dim);
      const Matrix dout = load(call.dout, shape.type, b, 0, shape.query_length, h, shape.head_dim);
      const Matrix k = load(call.k, shape.type, keys.b, keys.begin, keys.count, h, shape.head_dim);
      const Matrix k_columns = transposed(k);
      const Matrix v_columns =
          transposed(load(call.v, shape.type, keys.b, keys.begin, keys.count, h, shape.head_dim));
      Matrix dq(shape.query_length, shape.head_dim);
      Matrix dk(keys.count, shape.head_dim);
      Matrix dv(keys.count, shape.head_dim);
      for (int64_t i = 0; i < shape.query_length; ++i) {
        const double lse = call.lse[(b * shape.heads + h) * shape.query_length + i];
        double delta = 0.0;
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          delta += dout.row(i)[d] * out.row(i)[d];
        }
        score(shape, i, q.row(i), k_columns, &p);
        multiply(1.0, dout.row(i), v_columns, &dp);
        for (int64_t j = 0; j < keys.count; ++j) {
          const auto key = static_cast<size_t>(j);
          p[key] = std::exp(p[key] - lse);
          dp[key] = shape.scale * p[key] * (dp[key] - delta);
          add_scaled(p[key], dout.row(i), shape.head_dim, dv.row(j));
          add_scaled(dp[key], q.row(i), shape.head_dim, dk.row(j));
        }
        if (keys.count > 0) {
          multiply(1.0, dp.data(), k, &row);
          std::copy(row.begin(), row.end(), dq.row(i));
        }
      }
      store(dq, call.dq, shape.type, b, 0, h);
      store(dk, call.dk, shape.type, keys.b, keys.begin, h);
      store(dv, call.dv, shape.type, keys.b, keys.begin, h);
    }
  }
}

}  // namespace kinora::kernels
