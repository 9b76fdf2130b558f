#pragma once

#include <cstddef>
#include <cstdint>

/// What the module kinora_tiff.so offers (core/module_file.h): version 1.
extern "C" {

/// The first picture of a file.
struct KinoraTiffPicture {
  int64_t height;  ///< as stored
  int64_t width;
  int32_t orientation;  ///< 1, upright, to 8, as EXIF numbers them
  uint32_t* pixels;     ///< [height, width], red in the lowest byte, then green and blue
};

/// Functions that fail write why to `error`, `error_size` bytes with a zero at the end.
struct KinoraTiffTable {
  /// All but `pixels`, from the headers.
  bool (*read_header)(const uint8_t* bytes, size_t size, KinoraTiffPicture* picture, char* error,
                      size_t error_size);
  /// All of it; whoever called it releases it.
  bool (*read)(const uint8_t* bytes, size_t size, KinoraTiffPicture* picture, char* error,
               size_t error_size);
  void (*release)(KinoraTiffPicture* picture);
};
}
