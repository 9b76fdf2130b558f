#include "kinora/checkpoint/adapter.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::checkpoint {
namespace {

using nn::UpdateKind;

/// A matrix in double.
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values;

  [[nodiscard]] const double* row(int64_t i) const { return values.data() + i * columns; }
};

/// The first dim against all others.
Matrix matrix_of(const at::Tensor& tensor) {
  const at::Tensor own = tensor.flatten(1).to(at::kDouble).contiguous();
  const auto* begin = own.const_data_ptr<double>();
  return {own.size(0), own.size(1), {begin, begin + own.numel()}};
}

/// sums += factor * row i of a b.
void add_product_row(const Matrix& a, const Matrix& b, int64_t i, double factor, double* sums) {
  for (int64_t k = 0; k < b.rows; ++k) {
    const double by = factor * a.row(i)[k];
    const double* row = b.row(k);
    for (int64_t j = 0; j < b.columns; ++j) {
      sums[j] += by * row[j];
    }
  }
}

Matrix product_of(const Matrix& a, const Matrix& b) {
  Matrix product{a.rows, b.columns, std::vector<double>(static_cast<size_t>(a.rows * b.columns))};
  for (int64_t i = 0; i < a.rows; ++i) {
    add_product_row(a, b, i, 1.0, product.values.data() + i * b.columns);
  }
  return product;
}

/// What is added to rows of a weight. Not copied: matrices may be large.
class RowChange {
 public:
  explicit RowChange(const LowRankChange& change)
      : kind_(change.kind),
        scale_(change.scale),
        first_row_(change.first_row),
        num_rows_(change.num_rows()) {
    const auto factor = [&change](const char* name) { return matrix_of(change.factors.at(name)); };
    const auto whole = [&](const std::string& name) {
      return change.factors.contains(name)
                 ? factor(name.c_str())
                 : product_of(factor((name + "_a").c_str()), factor((name + "_b").c_str()));
    };
    switch (kind_) {
      case UpdateKind::kLora:
        matrices_ = {factor("lora_B"), factor("lora_A")};
        break;
      case UpdateKind::kLoha:
        matrices_ = {factor("hada_w1_a"), factor("hada_w1_b"), factor("hada_w2_a"),
                     factor("hada_w2_b")};
        break;
      case UpdateKind::kLokr:
        matrices_ = {whole("lokr_w1"), whole("lokr_w2")};
        break;
    }
    if (change.magnitude.defined()) {
      magnitudes_ = matrix_of(change.magnitude.view({1, -1})).values;
    }
  }

  /// sums += the change of a row of the weight. Returns the row's magnitude where DoRA sets it.
  [[nodiscard]] std::optional<double> add(int64_t row_of_weight, std::vector<double>& sums) const {
    const int64_t row = row_of_weight - first_row_;
    if (row < 0 || row >= num_rows_) {
      return std::nullopt;
    }
    switch (kind_) {
      case UpdateKind::kLora:
        add_product_row(matrices_[0], matrices_[1], row, scale_, sums.data());
        break;
      case UpdateKind::kLoha:
        add_hadamard(row, sums);
        break;
      case UpdateKind::kLokr:
        add_kronecker(row, sums);
        break;
    }
    return magnitudes_.empty() ? std::nullopt
                               : std::optional(magnitudes_[static_cast<size_t>(row)]);
  }

 private:
  void add_hadamard(int64_t row, std::vector<double>& sums) const {
    std::vector<double> first(sums.size());
    std::vector<double> second(sums.size());
    add_product_row(matrices_[0], matrices_[1], row, 1.0, first.data());
    add_product_row(matrices_[2], matrices_[3], row, 1.0, second.data());
    for (size_t j = 0; j < sums.size(); ++j) {
      sums[j] += scale_ * first[j] * second[j];
    }
  }

  void add_kronecker(int64_t row, std::vector<double>& sums) const {
    const Matrix& outer = matrices_[0];
    const Matrix& inner = matrices_[1];
    const double* inner_row = inner.row(row % inner.rows);
    for (int64_t k = 0; k < outer.columns; ++k) {
      const double by = scale_ * outer.row(row / inner.rows)[k];
      for (int64_t j = 0; j < inner.columns; ++j) {
        sums[static_cast<size_t>(k * inner.columns + j)] += by * inner_row[j];
      }
    }
  }

  UpdateKind kind_;
  double scale_;
  int64_t first_row_;
  int64_t num_rows_;
  std::vector<Matrix> matrices_;
  std::vector<double> magnitudes_;
};
using RowChanges = std::vector<RowChange>;

/// Rows `first`, ... of a weight, changed.
at::Tensor changed_rows(const at::Tensor& rows, int64_t first, const RowChanges& changes) {
  const at::Tensor base = rows.to(at::kFloat).contiguous();
  at::Tensor result = at::empty(base.sizes(), at::kFloat);
  const int64_t elements = base.numel() / std::max<int64_t>(base.size(0), 1);
  const auto* from = base.const_data_ptr<float>();
  auto* to = result.mutable_data_ptr<float>();
  at::parallel_for(0, base.size(0), 1, [&](int64_t begin, int64_t end) {
    std::vector<double> sums(static_cast<size_t>(elements));
    for (int64_t i = begin; i < end; ++i) {
      std::copy(from + i * elements, from + (i + 1) * elements, sums.begin());
      double factor = 1.0;
      for (const RowChange& change : changes) {
        if (const std::optional<double> magnitude = change.add(first + i, sums)) {
          double squares = 0.0;
          for (const double value : sums) {
            squares += value * value;
          }
          factor = *magnitude / std::sqrt(squares);
        }
      }
      for (int64_t j = 0; j < elements; ++j) {
        to[i * elements + j] = static_cast<float>(sums[static_cast<size_t>(j)] * factor);
      }
    }
  });
  return result;
}

/// A change with its adapter's weight in the scale.
using Changes = std::vector<LowRankChange>;

bool overlap(const LowRankChange& a, const LowRankChange& b) {
  return a.first_row < b.first_row + b.num_rows() && b.first_row < a.first_row + a.num_rows();
}

void check_magnitudes(const std::string& path, const Changes& changes) {
  for (size_t i = 0; i < changes.size(); ++i) {
    for (size_t k = 0; k < changes.size(); ++k) {
      KINORA_CHECK(
          i == k || !changes[i].magnitude.defined() || !overlap(changes[i], changes[k]), kConfig,
          "[lora] ", path,
          " has a DoRA, which sets its norms, and another adapter. Hint: DoRA works alone");
    }
  }
}

/// Whether these, and no others, are there.
bool are(const std::map<std::string, at::Tensor>& factors,
         std::initializer_list<const char*> names) {
  return factors.size() == names.size() &&
         std::all_of(names.begin(), names.end(),
                     [&](const char* name) { return factors.contains(name); });
}

std::optional<UpdateKind> kind_of(const std::map<std::string, at::Tensor>& factors) {
  if (are(factors, {"lora_A", "lora_B"})) {
    return UpdateKind::kLora;
  }
  if (are(factors, {"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"})) {
    return UpdateKind::kLoha;
  }
  if (are(factors, {"lokr_w1", "lokr_w2"}) || are(factors, {"lokr_w1", "lokr_w2_a", "lokr_w2_b"}) ||
      are(factors, {"lokr_w1_a", "lokr_w1_b", "lokr_w2"}) ||
      are(factors, {"lokr_w1_a", "lokr_w1_b", "lokr_w2_a", "lokr_w2_b"})) {
    return UpdateKind::kLokr;
  }
  return std::nullopt;
}

/// Names of factors of which the product is one: [.., rank] [rank, ..].
constexpr std::pair<const char*, const char*> kProducts[] = {{"lora_B", "lora_A"},
                                                             {"hada_w1_a", "hada_w1_b"},
                                                             {"hada_w2_a", "hada_w2_b"},
                                                             {"lokr_w1_a", "lokr_w1_b"},
                                                             {"lokr_w2_a", "lokr_w2_b"}};

}  // namespace

int64_t LowRankChange::num_rows() const {
  const auto rows = [this](const std::string& name) {
    const auto found = factors.find(name);
    return (found != factors.end() ? found->second : factors.at(name + "_a")).size(0);
  };
  switch (kind) {
    case UpdateKind::kLora:
      return rows("lora_B");
    case UpdateKind::kLoha:
      return rows("hada_w1");
    case UpdateKind::kLokr:
      return rows("lokr_w1") * rows("lokr_w2");
  }
  KINORA_UNREACHABLE("[lora] no such kind of update");
}

int64_t LowRankChange::row_elements() const {
  const auto elements = [this](const std::string& name) {
    const auto found = factors.find(name);
    const at::Tensor& of = found != factors.end() ? found->second : factors.at(name + "_b");
    return of.numel() / of.size(0);
  };
  switch (kind) {
    case UpdateKind::kLora:
      return elements("lora_A");
    case UpdateKind::kLoha:
      return elements("hada_w1");
    case UpdateKind::kLokr:
      return elements("lokr_w1") * elements("lokr_w2");
  }
  KINORA_UNREACHABLE("[lora] no such kind of update");
}

LowRankChange make_change(const std::string& name, std::map<std::string, at::Tensor> factors,
                          const std::string& origin) {
  for (const auto& [part, tensor] : factors) {
    KINORA_CHECK(tensor.dim() >= 2 && tensor.numel() > 0, kIo, "[lora] ", origin, ": ", part,
                 " of ", name, " must be a matrix or a convolution, got ", tensor.sizes());
  }
  int64_t rank = 0;
  for (const auto& [left, right] : kProducts) {
    const auto a = factors.find(left);
    const auto b = factors.find(right);
    KINORA_CHECK((a == factors.end()) == (b == factors.end()), kIo, "[lora] ", origin, ": ", name,
                 " has no ", a == factors.end() ? left : right);
    if (a == factors.end()) {
      continue;
    }
    rank = b->second.size(0);
    const bool is_product =
        a->second.size(1) == rank && a->second.numel() == a->second.size(0) * a->second.size(1);
    KINORA_CHECK(is_product, kIo, "[lora] ", origin, ": ", right, " and ", left, " of ", name,
                 " must be [rank, in] and [out, rank], got ", b->second.sizes(), " and ",
                 a->second.sizes());
  }
  const std::optional<UpdateKind> kind = kind_of(factors);
  std::string parts;
  for (const auto& [part, tensor] : factors) {
    parts += (parts.empty() ? "" : ", ") + part;
  }
  KINORA_CHECK(kind.has_value(), kIo, "[lora] ", origin, ": ", name,
               " must have the factors of one LoRA, LoHa or LoKr, got ", parts);
  LowRankChange change{
      .name = name, .kind = *kind, .factors = std::move(factors), .magnitude = {}, .rank = rank};
  if (*kind == UpdateKind::kLoha) {
    const at::Tensor& first = change.factors.at("hada_w1_a");
    const at::Tensor& second = change.factors.at("hada_w2_a");
    KINORA_CHECK(first.size(0) == second.size(0) &&
                     change.factors.at("hada_w1_b").numel() / first.size(1) ==
                         change.factors.at("hada_w2_b").numel() / second.size(1),
                 kIo, "[lora] ", origin, ": the two products of ", name,
                 " must have one shape, got ", first.sizes(), " ",
                 change.factors.at("hada_w1_b").sizes(), " and ", second.sizes(), " ",
                 change.factors.at("hada_w2_b").sizes());
  }
  return change;
}

LowRankChange rows_of(const LowRankChange& change, int64_t first, int64_t rows) {
  if (first == 0 && rows == change.num_rows()) {
    return change;
  }
  return with_rows(change, [first, rows](const at::Tensor& all) {
    return all.narrow(0, first, rows).contiguous();
  });
}

LowRankChange with_rows(LowRankChange change,
                        const std::function<at::Tensor(const at::Tensor& rows)>& reordered) {
  KINORA_CHECK(
      change.kind != UpdateKind::kLokr, kConfig, "[lora] ", change.name,
      " is a LoKr, which has no rows of its own for each of several weights in one, or for "
      "rows in another order. Hint: --adapter own");
  for (const char* name : {"lora_B", "hada_w1_a", "hada_w2_a"}) {
    if (const auto found = change.factors.find(name); found != change.factors.end()) {
      found->second = reordered(found->second);
    }
  }
  if (change.magnitude.defined()) {
    change.magnitude = reordered(change.magnitude);
  }
  return change;
}

LowRankChange with_dims(LowRankChange change, size_t dims) {
  for (const char* name : {"lora_A", "lora_B", "lokr_w2"}) {
    const auto found = change.factors.find(name);
    if (found != change.factors.end() &&
        found->second.numel() == found->second.size(0) * found->second.size(1)) {
      std::vector<int64_t> shape = {found->second.size(0), found->second.size(1)};
      shape.resize(dims, 1);
      found->second = found->second.reshape(shape);
    }
  }
  return change;
}

void merge(LateTensors& weights, const std::vector<WeightedAdapter>& adapters) {
  std::map<std::string, Changes> changes;
  std::set<std::string> replaced;
  for (const WeightedAdapter& weighted : adapters) {
    for (const auto& [path, tensor] : weighted.adapter.whole) {
      KINORA_CHECK(weighted.weight == 1.0, kConfig, "[lora] ", weighted.adapter.origin,
                   " has weights that were trained whole, such as ", path,
                   ", and those have no other weight than 1, got ", weighted.weight);
      KINORA_CHECK(replaced.insert(path).second, kConfig, "[lora] two adapters set ", path);
      weights.at(path) = tensor;
    }
    for (const auto& [path, own] : weighted.adapter.changes) {
      for (LowRankChange change : own) {
        change.scale *= weighted.weight;
        changes[path].push_back(std::move(change));
      }
    }
  }
  for (auto& [path, own] : changes) {
    check_magnitudes(path, own);
    LateTensor& weight = weights.at(path);
    weight.type = at::kFloat;
    const auto of_rows = std::make_shared<RowChanges>(own.begin(), own.end());
    weight.read = [read = std::move(weight.read), of_rows](int64_t begin, int64_t end) {
      return changed_rows(read(begin, end), begin, *of_rows);
    };
  }
}

AdapterChoice parse_adapter_choice(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) {
    return {.path = text};
  }
  double weight = 0.0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, weight);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return {.path = text};  // the colon is a part of the name
  }
  KINORA_CHECK(std::isfinite(weight), kConfig, "[lora] the weight of ", text.substr(0, colon),
               " must be finite, got ", text.substr(colon + 1));
  return {.path = text.substr(0, colon), .weight = weight};
}

}  // namespace kinora::checkpoint
