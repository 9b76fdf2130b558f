#include "kinora/eval/statistics_file.h"

#include <ATen/ops/isfinite.h>

#include <array>
#include <cstring>
#include <span>

#include "kinora/core/error.h"
#include "kinora/device/host_bytes.h"

namespace kinora::eval {
namespace {

constexpr const char* kNumSamples = "num_samples";
constexpr const char* kNetwork = "network";

at::Tensor read_floats(const io::NpzFile& file, const std::string& name) {
  const io::NpyArray array = file.read(name);
  at::Tensor values =
      device::tensor_from_bytes(array.dtype(), array.shape(), array.data()).to(at::kDouble);
  KINORA_CHECK(at::isfinite(values).all().item<bool>(), kIo, "[statistics] ", file.path().string(),
               ": ", name, " must be finite");
  return values;
}

Gaussian read_gaussian(const io::NpzFile& file, const std::string& mean,
                       const std::string& covariance) {
  Gaussian gaussian{.mean = read_floats(file, mean), .covariance = read_floats(file, covariance)};
  const int64_t dim = gaussian.mean.numel();
  KINORA_CHECK(gaussian.mean.dim() == 1 && dim > 0 &&
                   gaussian.covariance.sizes() == at::IntArrayRef({dim, dim}),
               kIo, "[statistics] ", file.path().string(), ": ", mean, " and ", covariance,
               " must have shapes [D] and [D, D], got ", gaussian.mean.sizes(), " and ",
               gaussian.covariance.sizes());
  return gaussian;
}

}  // namespace

std::optional<StoredStatistics> read_statistics(const io::NpzFile& file) {
  if (!file.contains("mu") || !file.contains("sigma")) {
    return std::nullopt;
  }
  StoredStatistics result{
      .gaussian = read_gaussian(file, "mu", "sigma"), .spatial = {}, .network = {}};
  if (file.contains("mu_s") && file.contains("sigma_s")) {
    result.spatial = read_gaussian(file, "mu_s", "sigma_s");
  }
  if (file.contains(kNumSamples)) {
    const io::NpyArray count = file.read(kNumSamples);
    if (count.dtype() == DType::kI64 && count.data().size() == sizeof(int64_t)) {
      std::memcpy(&result.gaussian.count, count.data().data(), sizeof(int64_t));
    }
  }
  if (file.contains(kNetwork)) {
    const io::NpyArray name = file.read(kNetwork);
    if (name.dtype() == DType::kU8) {
      result.network.assign(reinterpret_cast<const char*>(name.data().data()), name.data().size());
    }
  }
  return result;
}

void write_statistics(const std::filesystem::path& path, const Gaussian& gaussian,
                      const std::string& network) {
  const at::Tensor mean = gaussian.mean.contiguous();
  const at::Tensor covariance = gaussian.covariance.contiguous();
  const std::array<int64_t, 1> count = {gaussian.count};
  const std::array<io::NpzMember, 4> members = {
      io::NpzMember{"mu", DType::kF64, mean.sizes().vec(), device::bytes_of(mean)},
      io::NpzMember{"sigma", DType::kF64, covariance.sizes().vec(), device::bytes_of(covariance)},
      io::NpzMember{kNumSamples, DType::kI64, {}, std::as_bytes(std::span(count))},
      io::NpzMember{kNetwork,
                    DType::kU8,
                    {static_cast<int64_t>(network.size())},
                    std::as_bytes(std::span(network))}};
  io::write_npz(path, members);
}

}  // namespace kinora::eval
