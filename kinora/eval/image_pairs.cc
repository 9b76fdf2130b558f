#include "kinora/eval/image_pairs.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/data/class_names.h"
#include "kinora/data/media_set.h"
#include "kinora/eval/pair_scores.h"
#include "kinora/eval/sample_set.h"
#include "kinora/io/file.h"

namespace kinora::eval {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxImageBytes = int64_t{1} << 30;

/// Paths of the images below `folder` by their names without extension.
std::map<std::string, fs::path> images_by_name(const fs::path& folder) {
  std::map<std::string, fs::path> images;
  for (const std::string& path : data::walk(folder).files) {
    const std::string file = fs::path(path).filename().string();
    if (data::is_image_name(file) && file != kContactSheet) {
      const std::string name = fs::path(path).replace_extension().string();
      KINORA_CHECK(images.emplace(name, folder / path).second, kConfig,
                   "[pairs] names must be unique without extensions, got ", name, " twice in ",
                   folder.string());
    }
  }
  return images;
}

io::Image read_image(const fs::path& path) {
  return io::decode_image(io::read_file(path, kMaxImageBytes), path.string());
}

void check_partners(const std::map<std::string, fs::path>& images,
                    const std::map<std::string, fs::path>& others, const fs::path& folder) {
  for (const auto& [name, path] : images) {
    KINORA_CHECK(others.contains(name), kConfig, "[pairs] ", path.string(),
                 " must have a partner of its name in ", folder.string(), ", got none");
  }
}

}  // namespace

PairScores score_pairs(const fs::path& images, const fs::path& references) {
  const std::map<std::string, fs::path> left = images_by_name(images);
  const std::map<std::string, fs::path> right = images_by_name(references);
  check_partners(left, right, references);
  check_partners(right, left, images);
  KINORA_CHECK(!left.empty(), kConfig, "[pairs] ", images.string(), " must hold images, got none");
  std::vector<std::string> names;
  names.reserve(left.size());
  for (const auto& [name, path] : left) {
    names.push_back(name);
  }
  std::vector<double> psnrs(names.size());
  std::vector<double> ssims(names.size());
  at::parallel_for(0, std::ssize(names), 1, [&](int64_t first, int64_t end) {
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(end); ++i) {
      const io::Image image = read_image(left.at(names[i]));
      const io::Image reference = read_image(right.at(names[i]));
      try {
        psnrs[i] = psnr(image, reference);
        ssims[i] = ssim(image, reference);
      } catch (const Error& error) {
        throw_error(error.kind(), error.what(), " (", left.at(names[i]).string(), ")");
      }
    }
  });
  PairScores scores{.num_pairs = std::ssize(names)};
  for (size_t i = 0; i < names.size(); ++i) {
    scores.num_equal += std::isinf(psnrs[i]) ? 1 : 0;
    scores.psnr += std::isinf(psnrs[i]) ? 0.0 : psnrs[i];
    scores.ssim += ssims[i] / static_cast<double>(names.size());
  }
  const int64_t num_different = scores.num_pairs - scores.num_equal;
  scores.psnr = num_different > 0 ? scores.psnr / static_cast<double>(num_different)
                                  : std::numeric_limits<double>::infinity();
  return scores;
}

}  // namespace kinora::eval
