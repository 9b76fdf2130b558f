#pragma once

#include <string>
#include <string_view>

namespace kinora::prompts {

/// Python's html.unescape: references such as &amp; &#228; &#xe4; &nbsp become what they stand for,
/// also without a semicolon where HTML 4 had the name.
[[nodiscard]] std::string unescape_html(std::string_view text);

/// The text of a page or of a piece of it, as BeautifulSoup(text, "html.parser").text has it:
/// without tags, comments, declarations, scripts and styles, and references as what they stand for.
/// A "<" that begins none of these is text. Not as there: what ends within a tag or reference.
[[nodiscard]] std::string text_of_html(std::string_view html);

}  // namespace kinora::prompts
