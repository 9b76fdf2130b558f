#include "kinora/kernels/matmul_cache.h"

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <system_error>

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::kernels {
namespace {

constexpr uintmax_t kMaxFileBytes = 16 << 20;
constexpr size_t kMaxLineBytes = 1024;

std::string_view name_of(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return "none";
    case Epilogue::kBias:
      return "bias";
    case Epilogue::kBiasGelu:
      return "bias_gelu";
    case Epilogue::kBiasGeluAux:
      return "bias_gelu_aux";
    case Epilogue::kGeluGrad:
      return "gelu_grad";
    case Epilogue::kGeluGradBias:
      return "gelu_grad_bias";
    case Epilogue::kBiasGrad:
      return "bias_grad";
  }
  KINORA_UNREACHABLE("[matmul] epilogue ", static_cast<int>(epilogue));
}

std::string_view name_of(Scaling scaling) {
  switch (scaling) {
    case Scaling::kTensor:
      return "tensor";
    case Scaling::kRow128:
      return "row128";
    case Scaling::kBlock128:
      return "block128";
  }
  KINORA_UNREACHABLE("[matmul] scaling ", static_cast<int>(scaling));
}

bool has_block_scaling(const MatmulProblem& problem) {
  return problem.a_scaling != Scaling::kTensor || problem.b_scaling != Scaling::kTensor;
}

/// Reads "NAME=NUMBER" fields one after the other.
class FieldReader {
 public:
  explicit FieldReader(std::string_view text) : rest_(text) {}

  /// The number after `name` and '=', which must lie in T's range and not be negative. After a
  /// failure every further call fails.
  template <typename T>
  [[nodiscard]] bool read(std::string_view name, T* value) {
    if (!rest_.starts_with(name) || !rest_.substr(name.size()).starts_with('=')) {
      return fail();
    }
    rest_.remove_prefix(name.size() + 1);
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), *value);
    if (error != std::errc() || *value < T(0)) {
      return fail();
    }
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    if (rest_.starts_with(' ')) {
      rest_.remove_prefix(1);
    }
    return true;
  }
  [[nodiscard]] bool at_end() const { return rest_.empty(); }

 private:
  [[nodiscard]] bool fail() {
    rest_ = "?";
    return false;
  }

  std::string_view rest_;
};

/// A name without what would break a line apart.
std::string plain(std::string_view name) {
  std::string result(name);
  for (char& letter : result) {
    if (letter == '|' || static_cast<unsigned char>(letter) < ' ') {
      letter = '_';
    }
  }
  return result;
}

}  // namespace

bool same_algorithm(const MatmulChoice& x, const MatmulChoice& y) {
  return x.id == y.id && x.tile == y.tile && x.split_k == y.split_k && x.reduction == y.reduction &&
         x.swizzle == y.swizzle && x.custom == y.custom && x.stages == y.stages &&
         x.inner_shape == y.inner_shape && x.cluster_shape == y.cluster_shape;
}

MatmulProblem normalised(MatmulProblem problem) {
  const auto row_stride = [](int64_t stride, int64_t rows, int64_t columns) {
    return stride == 0 || rows == 1 ? columns : stride;
  };
  const bool ta = problem.transpose_a;
  const bool tb = problem.transpose_b;
  problem.lda = row_stride(problem.lda, ta ? problem.k : problem.m, ta ? problem.m : problem.k);
  problem.ldb = row_stride(problem.ldb, tb ? problem.n : problem.k, tb ? problem.k : problem.n);
  problem.ldd = row_stride(problem.ldd, problem.m, problem.n);
  if (problem.batch == 1) {
    problem.a_stride = 0;
    problem.b_stride = 0;
    problem.d_stride = 0;
  }
  if (!has_aux(problem.epilogue)) {
    problem.aux_type = problem.d_type;
  }
  if (!has_bias_grad(problem.epilogue)) {
    problem.bias_grad_type = DType::kF32;
  }
  if (!is_fp8(problem.a_type)) {
    problem.a_scaling = Scaling::kTensor;
    problem.b_scaling = Scaling::kTensor;
  }
  problem.fast_accumulation =
      problem.fast_accumulation && is_fp8(problem.a_type) && !has_block_scaling(problem);
  return problem;
}

std::string describe(const MatmulProblem& problem, const MatmulAlignment& alignment) {
  std::ostringstream out;
  out << "m=" << problem.m << " n=" << problem.n << " k=" << problem.k  //
      << " a=" << to_string(problem.a_type) << (problem.transpose_a ? "^T" : "")
      << " b=" << to_string(problem.b_type) << (problem.transpose_b ? "^T" : "")
      << " d=" << to_string(problem.d_type) << (problem.accumulate ? "+" : "");
  if (problem.epilogue != Epilogue::kNone) {
    out << " epilogue=" << name_of(problem.epilogue);
  }
  if (has_aux(problem.epilogue)) {
    out << " aux=" << to_string(problem.aux_type);
  }
  if (has_bias_grad(problem.epilogue)) {
    out << " bias_grad=" << to_string(problem.bias_grad_type);
  }
  if (problem.fast_accumulation) {
    out << " fast_accumulation";
  }
  if (has_block_scaling(problem)) {
    out << " scaling=" << name_of(problem.a_scaling) << ',' << name_of(problem.b_scaling);
  }
  if (problem.batch != 1) {
    out << " batch=" << problem.batch << " strides=" << problem.a_stride << ',' << problem.b_stride
        << ',' << problem.d_stride;
  }
  out << " ld=" << problem.lda << ',' << problem.ldb << ',' << problem.ldd;
  if (!(alignment == MatmulAlignment{})) {
    out << " alignment=" << int{alignment.a} << ',' << int{alignment.b} << ',' << int{alignment.d}
        << ',' << int{alignment.vectors};
  }
  return out.str();
}

std::string describe(const MatmulChoice& choice) {
  std::ostringstream out;
  out << "id=" << choice.id << " tile=" << choice.tile << " split_k=" << choice.split_k
      << " reduction=" << choice.reduction << " swizzle=" << choice.swizzle
      << " custom=" << choice.custom << " stages=" << choice.stages
      << " inner_shape=" << choice.inner_shape << " cluster_shape=" << choice.cluster_shape;
  return out.str();
}

std::string choice_key_prefix(std::string_view gpu, size_t library_version) {
  return plain(gpu) + '|' + std::to_string(library_version) + '.' + std::to_string(kSearch) + '|';
}

std::string choice_key(std::string_view gpu, size_t library_version, const MatmulProblem& problem,
                       const MatmulAlignment& alignment) {
  return choice_key_prefix(gpu, library_version) + describe(problem, alignment) + '|';
}

std::string format_choice(const std::string& key, const MatmulChoice& choice) {
  return key + describe(choice) + "|ns=" + std::to_string(choice.nanoseconds) + '|';
}

std::optional<std::pair<std::string, MatmulChoice>> parse_choice(std::string_view line) {
  if (line.size() > kMaxLineBytes) {
    return std::nullopt;
  }
  const std::vector<std::string_view> parts = split(line, '|');
  // GPU, version, problem, algorithm, time, and nothing behind the last bar: the line is whole.
  if (parts.size() != 6 || !parts[5].empty()) {
    return std::nullopt;
  }
  MatmulChoice choice;
  FieldReader algorithm(parts[3]);
  FieldReader time(parts[4]);
  const bool read = algorithm.read("id", &choice.id) && algorithm.read("tile", &choice.tile) &&
                    algorithm.read("split_k", &choice.split_k) &&
                    algorithm.read("reduction", &choice.reduction) &&
                    algorithm.read("swizzle", &choice.swizzle) &&
                    algorithm.read("custom", &choice.custom) &&
                    algorithm.read("stages", &choice.stages) &&
                    algorithm.read("inner_shape", &choice.inner_shape) &&
                    algorithm.read("cluster_shape", &choice.cluster_shape) &&
                    time.read("ns", &choice.nanoseconds);
  constexpr uint32_t kMax16 = std::numeric_limits<uint16_t>::max();
  if (!read || !algorithm.at_end() || !time.at_end() || choice.inner_shape > kMax16 ||
      choice.cluster_shape > kMax16) {
    return std::nullopt;
  }
  const size_t key_size = parts[0].size() + parts[1].size() + parts[2].size() + 3;
  return std::pair(std::string(line.substr(0, key_size)), choice);
}

MatmulChoices parse_choices(std::string_view text) {
  MatmulChoices choices;
  for (const std::string_view line : split(text, '\n')) {
    if (const auto choice = parse_choice(line)) {
      choices.insert_or_assign(choice->first, choice->second);
    }
  }
  return choices;
}

std::string format_choices(const MatmulChoices& choices) {
  std::string text;
  for (const auto& [key, choice] : choices) {
    text += format_choice(key, choice) + '\n';
  }
  return text;
}

MatmulChoices read_choices(const std::string& path) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error || bytes > kMaxFileBytes) {
    return {};
  }
  std::ifstream in(path, std::ios::binary);
  std::string text(static_cast<size_t>(bytes), '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return parse_choices(text);
}

void write_choices(const std::string& path, const MatmulChoices& choices) {
  namespace fs = std::filesystem;
  MatmulChoices all = choices;
  all.merge(read_choices(path));  // what other processes found meanwhile; ours counts

  // Two processes, maybe of two machines that share the folder, must not write the same file.
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const std::string temporary =
      path + ".tmp" + std::to_string(getpid()) + '-' + std::to_string(now);
  std::error_code error;
  if (const fs::path folder = fs::path(path).parent_path(); !folder.empty()) {
    fs::create_directories(folder, error);
  }
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out << format_choices(all);
  out.close();
  if (out) {
    fs::rename(temporary, path, error);
  }
  if (!out || error) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    KINORA_CHECK(false, kIo, "[matmul] the file of found algorithms must be writable, got ", path,
                 error ? ": " + error.message() : "");
  }
}

}  // namespace kinora::kernels
