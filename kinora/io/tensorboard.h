#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kinora/io/image.h"

namespace kinora::io {

class AppendFile;

/// Writes one TensorBoard event file (TFRecords of tensorflow.Event messages, version
/// "brain.Event:2"). Not safe to use from two threads at once.
class EventWriter {
 public:
  /// Seconds since 1970.
  using Clock = std::function<double()>;

  /// Creates events.out.tfevents.SECONDS.HOST.PID in `folder`, which must exist. TensorBoard reads
  /// the files of a folder in order of their names, so SECONDS is the clock's time or, if a file
  /// there is not older, one more than its. Error (kIo): the file cannot be made.
  explicit EventWriter(const std::filesystem::path& folder, Clock clock = {});
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;
  /// Flushes; an error there is lost.
  ~EventWriter();

  /// TensorBoard keeps scalars as float32.
  void add_scalar(std::string_view tag, int64_t step, double value);
  /// The image is stored as PNG.
  void add_image(std::string_view tag, int64_t step, const Image& image);

  /// After a resume: makes TensorBoard forget what earlier files of the folder hold for `step` and
  /// later steps.
  void purge_from(int64_t step);

  /// Hands everything so far to the system. Events are kept back until then, or until 1 MiB waits.
  /// Error (kIo): it cannot be written; what waited is then lost.
  void flush();

  [[nodiscard]] const std::filesystem::path& path() const;

 private:
  void add_event(const std::string& event);

  Clock clock_;
  std::unique_ptr<AppendFile> file_;
  std::string waiting_;
};

}  // namespace kinora::io
