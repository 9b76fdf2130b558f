// TIFF through the module of tiff_table.h.
#include <array>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/module_file.h"
#include "kinora/io/image_codecs.h"
#include "kinora/io/tiff_table.h"

namespace kinora::io {
namespace {

const KinoraTiffTable& module() {
  static const KinoraTiffTable* const table = &load_module<KinoraTiffTable>(
      {.name = "tiff",
       .version = 1,
       .what = "TIFF",
       .needed_for = "reads .tif files with libtiff",
       .how_to_have = "scripts/setup.sh, then build again; or turn the files into PNG"});
  return *table;
}

struct Picture : KinoraTiffPicture {
  Picture() : KinoraTiffPicture{}, table(module()) {}
  Picture(const Picture&) = delete;
  Picture& operator=(const Picture&) = delete;
  ~Picture() { table.release(this); }

  const KinoraTiffTable& table;
};

using Read = decltype(KinoraTiffTable::read);

void read_with(Read read, std::span<const std::byte> bytes, const std::string& name,
               Picture& picture) {
  std::array<char, 256> error{};
  KINORA_CHECK(read(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), &picture,
                    error.data(), error.size()),
               kIo, "[image] ", name, " must be a whole, valid TIFF of 1 to 16 bits a channel",
               error.front() != '\0' ? "; libtiff says: " : "", error.data());
}

ImageSize stored_size(std::span<const std::byte> bytes, const std::string& name, Picture& picture) {
  read_with(picture.table.read_header, bytes, name, picture);
  check_image_size("TIFF", name, {picture.height, picture.width});
  return {picture.height, picture.width};
}

}  // namespace

ImageSize tiff_size(std::span<const std::byte> bytes, const std::string& name) {
  Picture picture;
  const ImageSize size = stored_size(bytes, name, picture);
  return upright_size(size, picture.orientation);
}

void decode_tiff_into(std::span<const std::byte> bytes, const std::string& name, Image& image) {
  Picture picture;
  const ImageSize size = stored_size(bytes, name, picture);
  read_with(picture.table.read, bytes, name, picture);
  std::vector<uint8_t> stored(static_cast<size_t>(size.height * size.width * 3));
  for (size_t i = 0; i < stored.size() / 3; ++i) {
    for (size_t channel = 0; channel < 3; ++channel) {
      stored[i * 3 + channel] = static_cast<uint8_t>(picture.pixels[i] >> (8 * channel));
    }
  }
  const ImageSize upright = upright_size(size, picture.orientation);
  set_size(image, upright.height, upright.width);
  orient(stored, size.width, picture.orientation, image);
}

}  // namespace kinora::io
