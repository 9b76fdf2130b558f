#include "kinora/io/ffmpeg_handles.h"

extern "C" {
#include <libavutil/error.h>
#include <libavutil/log.h>
}

#include <array>
#include <cstdarg>
#include <cstdio>
#include <string_view>

namespace kinora::io::ffmpeg {
namespace {

std::array<char, 256>& last_error() {
  thread_local std::array<char, 256> text{};
  return text;
}

void take_line(void* /*context*/, int level, const char* format, va_list arguments) {
  if (level <= AV_LOG_ERROR) {
    (void)std::vsnprintf(last_error().data(), last_error().size(), format, arguments);
  }
}

}  // namespace

void keep_log() {
  av_log_set_callback(take_line);
}

void clear_log() {
  last_error().front() = '\0';
}

std::string reason_of(int result) {
  std::string text = last_error().data();
  text.resize(text.find_last_not_of(" \n.") + 1);
  if (text.empty()) {
    std::array<char, AV_ERROR_MAX_STRING_SIZE> meaning{};
    (void)av_strerror(result, meaning.data(), meaning.size());
    text = meaning.data();
  }
  for (char& c : text) {
    c = c >= ' ' && c <= '~' ? c : '?';  // names inside files are anything
  }
  return text;
}

int check(int result, const char* what) {
  if (result < 0) {
    fail(what, ": ", reason_of(result));
  }
  return result;
}

}  // namespace kinora::io::ffmpeg
