// Parsers of what people write into prompts.

#include <filesystem>
#include <fstream>

#include "kinora/core/text.h"
#include "kinora/prompts/caption_cleaning.h"
#include "kinora/prompts/prompt_weights.h"
#include "kinora/prompts/wildcards.h"
#include "tests/fuzz/targets.h"

namespace kinora::fuzz {
namespace {

/// Of lists that name each other.
const std::filesystem::path& lists() {
  static const std::filesystem::path kFolder = [] {
    const auto folder = std::filesystem::temp_directory_path() / "kinora-fuzz-wildcards";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "a.txt") << "one\n__b__ two\n";
    std::ofstream(folder / "b.txt") << "__a__\n__b__\nthree\n";
    std::ofstream(folder / "c.txt") << "four\n";
    return folder;
  }();
  return kFolder;
}

Target of_weights(const char* name, prompts::WeightSyntax syntax, const char* seed) {
  return {.name = name,
          .parse =
              [syntax](std::span<const std::byte> bytes) {
                (void)prompts::parse_weights(as_text(bytes), syntax);
              },
          .seeds = {bytes_of(seed)}};
}

}  // namespace

std::vector<Target> prompt_targets() {
  return {of_weights("prompt_brackets", prompts::WeightSyntax::kBrackets,
                     "a (((house:1.3)) [on] a (hill:0.5), \\(sun\\), (((sky)))."),
          of_weights("prompt_signs", prompts::WeightSyntax::kSigns,
                     "a (red (ball)- here)++ on \"the grass\"+ of \\(x\\) hot-dog-- (b)1.3"),
          {.name = "wildcards",
           .parse =
               [](std::span<const std::byte> bytes) {
                 (void)prompts::Wildcards(lists()).expanded(as_text(bytes), 1, 2);
               },
           .seeds = {bytes_of("a __a__ and __c__, __../a__ __c____b__")}},
          {.name = "caption_cleaning",
           .parse =
               [](std::span<const std::byte> bytes) {
                 (void)prompts::preprocess_caption(as_text(bytes));
               },
           .seeds = {bytes_of("<p class=\"a>b\">A &amp;cat; &#x41;</p> <!-- no --> https://a.com/b "
                              "this-is-my-cat_x 30x40 j2d1a2a \xE2\x80\x9Cq\xE2\x80\x9D 100%25"),
                     bytes_of("<script>x</script><style>y</style> #123 a.jpg ... \"\" 1.2.3.4")}}};
}

}  // namespace kinora::fuzz
