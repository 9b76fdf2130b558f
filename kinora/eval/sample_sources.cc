#include "kinora/eval/sample_sources.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/data/media_set.h"
#include "kinora/io/file.h"
#include "kinora/io/image.h"

namespace kinora::eval {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxImageBytes = int64_t{1} << 30;

bool is_frame(const fs::path& file) {
  return file.filename().string().starts_with("frame_") && file.extension() == ".png";
}

/// The frames of a clip by name: numbers are padded with zeros.
std::vector<fs::path> frames_of(const fs::path& folder) {
  std::vector<fs::path> frames;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (is_frame(entry.path())) {
      frames.push_back(entry.path());
    }
  }
  std::sort(frames.begin(), frames.end());
  return frames;
}

}  // namespace

NpzImages::NpzImages(const fs::path& path)
    : file_(io::NpzFile::open(path)), images_(file_.read("arr_0")) {
  const std::vector<int64_t>& shape = images_.shape();
  KINORA_CHECK(images_.dtype() == DType::kU8 && shape.size() == 4 && shape[3] == 3 &&
                   shape[1] >= 1 && shape[1] <= io::kMaxImageSide && shape[2] >= 1 &&
                   shape[2] <= io::kMaxImageSide,
               kIo, "[eval] ", path.string(), ": arr_0 must be images, uint8 [N, H, W, 3], got ",
               to_string(images_.dtype()), " of ", shape.size(), " dims");
}

std::string NpzImages::sample_name(int64_t index) const {
  return file_.path().string() + ": image " + std::to_string(index);
}

void NpzImages::read(int64_t index, data::Sample& out) const {
  const std::vector<int64_t>& shape = images_.shape();
  io::set_size(out.image, shape[1], shape[2]);
  const size_t size = out.image.pixels.size();
  std::memcpy(out.image.pixels.data(), images_.data().data() + static_cast<size_t>(index) * size,
              size);
  out.num_frames = 1;
}

std::vector<int64_t> NpzImages::labels() const {
  if (!file_.contains("arr_1")) {
    return {};
  }
  const io::NpyArray array = file_.read("arr_1");
  KINORA_CHECK(array.dtype() == DType::kI64 && array.shape() == std::vector<int64_t>{size()}, kIo,
               "[eval] ", file_.path().string(), ": arr_1 must be labels, int64 [", size(),
               "], got ", to_string(array.dtype()), " of ", array.shape().size(), " dims");
  std::vector<int64_t> labels(static_cast<size_t>(size()));
  std::memcpy(labels.data(), array.data().data(), array.data().size());
  return labels;
}

std::vector<fs::path> FrameFolders::find(const fs::path& folder) {
  std::set<fs::path> folders;
  for (const std::string& path : data::walk(folder).files) {
    if (is_frame(path) && fs::path(path).has_parent_path()) {
      folders.insert(folder / fs::path(path).parent_path());
    }
  }
  return {folders.begin(), folders.end()};
}

FrameFolders::FrameFolders(std::vector<fs::path> folders) : folders_(std::move(folders)) {
  data::check_size(size(), folders_.empty() ? "" : folders_.front().parent_path().string());
}

std::string FrameFolders::sample_name(int64_t index) const {
  return folders_[static_cast<size_t>(index)].string();
}

void FrameFolders::read(int64_t index, data::Sample& out) const {
  const std::vector<fs::path> frames = frames_of(folders_[static_cast<size_t>(index)]);
  out.num_frames = std::ssize(frames);
  io::Image frame;
  for (int64_t i = 0; i < out.num_frames; ++i) {
    const std::string name = frames[static_cast<size_t>(i)].string();
    io::decode_image_into(io::read_file(name, kMaxImageBytes), name, frame);
    if (i == 0) {
      KINORA_CHECK(frame.height * frame.width * out.num_frames <= io::kMaxImagePixels, kIo,
                   "[eval] ", sample_name(index), " must be of at most ", io::kMaxImagePixels,
                   " pixels, got more");
      io::set_size(out.image, frame.height, frame.width * out.num_frames);
    }
    KINORA_CHECK(
        frame.height == out.image.height && frame.width * out.num_frames == out.image.width, kIo,
        "[eval] frames of a clip must be of one size, got another in ", name);
    const auto row = static_cast<size_t>(frame.width * 3);
    for (int64_t y = 0; y < frame.height; ++y) {
      std::memcpy(out.image.pixels.data() + static_cast<size_t>(y * out.num_frames + i) * row,
                  frame.pixels.data() + static_cast<size_t>(y) * row, row);
    }
  }
}

}  // namespace kinora::eval
