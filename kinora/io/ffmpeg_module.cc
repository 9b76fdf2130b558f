// The border of the module kinora_ffmpeg.so: nothing is thrown across it.

#include <cstring>
#include <exception>
#include <vector>

#include "kinora/core/module_file.h"
#include "kinora/io/ffmpeg_handles.h"
#include "kinora/io/ffmpeg_reader.h"
#include "kinora/io/ffmpeg_table.h"
#include "kinora/io/ffmpeg_writer.h"

namespace kinora::io::ffmpeg {
namespace {

/// What `work` returns, or `failed` and why.
template <typename Result, typename Work>
Result guarded(FfmpegError* error, Result failed, const Work& work) {
  *error = {};
  try {
    return work();
  } catch (const Failure& failure) {
    error->lacks_encoder = failure.lacks_encoder();
    std::strncpy(error->text, failure.what(), sizeof(error->text) - 1);
  } catch (const std::exception& exception) {
    std::strncpy(error->text, exception.what(), sizeof(error->text) - 1);
  }
  return failed;
}

Reader& reader_of(void* reader) {
  return *static_cast<Reader*>(reader);
}

void* new_reader() {
  try {
    return std::make_unique<Reader>().release();
  } catch (const std::exception&) {
    return nullptr;
  }
}

void delete_reader(void* reader) {
  const std::unique_ptr<Reader> owner(static_cast<Reader*>(reader));
}

bool open(void* reader, const FfmpegBytes* bytes, const FfmpegLimits* limits, FfmpegInfo* info,
          FfmpegError* error) {
  return guarded(error, false, [&] {
    *info = reader_of(reader).open(*bytes, *limits);
    return true;
  });
}

void close(void* reader) {
  reader_of(reader).close();
}

int64_t num_frames(void* reader, FfmpegError* error) {
  return guarded(error, int64_t{-1}, [&] { return reader_of(reader).num_frames(); });
}

bool read_frames(void* reader, int64_t first, int64_t count, int64_t stride, uint8_t* out,
                 int64_t row_bytes, FfmpegError* error) {
  return guarded(error, false, [&] {
    reader_of(reader).read_frames(first, count, stride, out, row_bytes);
    return true;
  });
}

int64_t check_frames(void* reader, FfmpegError* error) {
  return guarded(error, int64_t{-1}, [&] { return reader_of(reader).check_frames(); });
}

void read_tags(void* reader, void* self, void (*take)(void* self, const FfmpegTag* tag)) {
  reader_of(reader).read_tags(self, take);
}

bool write_mp4(const FfmpegClip* clip, void* self,
               void (*take)(void* self, const uint8_t* bytes, int64_t count), FfmpegError* error) {
  return guarded(error, false, [&] {
    const std::vector<uint8_t> bytes = write_clip(*clip);
    take(self, bytes.data(), static_cast<int64_t>(bytes.size()));
    return true;
  });
}

constexpr FfmpegTable kTable{.new_reader = new_reader,
                             .delete_reader = delete_reader,
                             .open = open,
                             .close = close,
                             .num_frames = num_frames,
                             .read_frames = read_frames,
                             .check_frames = check_frames,
                             .read_tags = read_tags,
                             .encode_mp4 = write_mp4};

}  // namespace
}  // namespace kinora::io::ffmpeg

extern "C" KINORA_MODULE_EXPORT const kinora::io::FfmpegTable* kinora_ffmpeg_2() {
  kinora::io::ffmpeg::keep_log();
  return &kinora::io::ffmpeg::kTable;
}
