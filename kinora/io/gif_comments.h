#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Comment extensions of GIF files (GIF 89a, section 24). Frames are not decoded.
namespace kinora::io {

/// Whether these are the first bytes of a GIF.
[[nodiscard]] bool is_gif(std::string_view bytes);

/// The GIF file with `comments` before its first frame. kIo where its blocks do not lie within it.
[[nodiscard]] std::string with_gif_comments(std::string_view gif,
                                            std::span<const std::string> comments);

/// All comments, in order. The same errors, which name the file.
[[nodiscard]] std::vector<std::string> gif_comments(std::string_view gif, const std::string& name);

}  // namespace kinora::io
