// What a browser makes of the page of kinora runs report.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "kinora/io/image.h"
#include "kinora/io/line_chart.h"
#include "tests/apps/clips.h"
#include "tests/apps/run_folder.h"

namespace kinora::apps {
namespace report_page_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Measures the page in a frame of each width. A chart is whole if it lies within the page, and its
// texts within it.
constexpr const char* kMeasure = R"(<script>
addEventListener("load", () => {
  const result = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, width = frame.contentWindow.innerWidth;
    const charts = [...page.querySelectorAll("svg")];
    const isWhole = chart => {
      const box = chart.getBoundingClientRect();
      return box.width > 300 && box.left >= 0 && box.right <= width &&
          [...chart.querySelectorAll("text")].every(text => {
            const inner = text.getBoundingClientRect();
            return inner.left >= box.left && inner.right <= box.right && inner.top >= box.top &&
                inner.bottom <= box.bottom;
          });
    };
    return {width, scroll: page.documentElement.scrollWidth, charts: charts.length,
            whole: charts.filter(isWhole).length,
            columns: new Set(charts.map(chart => chart.getBoundingClientRect().left)).size};
  });
  document.body.textContent = "RESULT" + JSON.stringify(result) + "END";
});
</script>)";

class ReportPageTest : public RunTest {
 protected:
  [[nodiscard]] static bool has_browser() {
    return std::system("chromium --version > /dev/null 2>&1") == 0;
  }

  /// The page of a run that has every kind of curve.
  [[nodiscard]] fs::path make_page() const {
    const fs::path run = run_dir("a-run-with-a-name-that-is-longer-than-a-phone-is-wide-by-far");
    train_well(run, {"sample.every=10", "validation.every=10", "data.validation=16",
                     "ema.decays=[0.9, 0.99, 0.999]"});
    EXPECT_EQ(run_kinora({"runs", "report", run.string()}, folder()).exit_code, 0);
    return run / "report.html";
  }

  [[nodiscard]] io::Image screenshot(const fs::path& page, int64_t width) const {
    const fs::path file = folder() / (std::to_string(width) + ".png");
    const std::string command =
        "timeout 120 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars"
        " --user-data-dir='" +
        (folder() / "chromium").string() + "' --screenshot='" + file.string() +
        "' --window-size=" + std::to_string(width) + ",1600 'file://" + page.string() +
        "' > /dev/null 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0);
    return read_image(file);
  }

  /// What the browser measures of the page in frames of 400 and 1,400 pixels.
  [[nodiscard]] nlohmann::json measure(const std::string& page) const {
    std::string outer = "<!doctype html><html><body>";
    for (const char* width : {"400", "1400"}) {
      outer += std::string("<iframe width='") + width + "' height='900' frameborder='0' srcdoc='" +
               io::escaped(page) + "'></iframe>";
    }
    const fs::path file = folder() / "frames.html";
    write_text(file, outer + kMeasure + "</body></html>");
    const fs::path dump = folder() / "dump.html";
    const std::string command =
        "timeout 120 chromium --headless --no-sandbox --disable-gpu --user-data-dir='" +
        (folder() / "chromium").string() + "' --dump-dom 'file://" + file.string() + "' > '" +
        dump.string() + "' 2> /dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0);
    const std::string text = read_text(dump);
    const size_t begin = text.find("RESULT[") + 6;
    return nlohmann::json::parse(text.substr(begin, text.find("END", begin) - begin));
  }
};

TEST_F(ReportPageTest, IsWholeOnPhonesAndOnWideScreens) {
  if (!has_browser()) {
    GTEST_SKIP() << "no chromium here, which scripts/setup.sh --dev installs on Debian";
  }
  const nlohmann::json result = measure(read_text(make_page()));
  ASSERT_EQ(result.size(), 2U);
  const int64_t widths[] = {400, 1400};
  for (size_t i = 0; i < 2; ++i) {
    const nlohmann::json& one = result[i];
    SCOPED_TRACE(one.dump());
    EXPECT_EQ(one.at("width"), widths[i]);
    EXPECT_LE(one.at("scroll").get<int64_t>(), widths[i]);
    EXPECT_GE(one.at("charts"), 5);
    EXPECT_EQ(one.at("whole"), one.at("charts"));
  }
  EXPECT_EQ(result[0].at("columns"), 1);
  EXPECT_GE(result[1].at("columns"), 2);
}

TEST_F(ReportPageTest, ScreenshotsShowCurvesAndNothingReachesTheEdge) {
  if (!has_browser()) {
    GTEST_SKIP() << "no chromium here, which scripts/setup.sh --dev installs on Debian";
  }
  const fs::path page = make_page();
  for (const int64_t width : {400, 1400}) {
    SCOPED_TRACE(width);
    const io::Image image = screenshot(page, width);
    ASSERT_EQ(image.width, width);
    int64_t curve = 0;  // pixels of its colour, #0072b2
    int64_t at_edge = 0;
    for (int64_t y = 0; y < image.height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        const uint8_t* pixel = image.pixels.data() + (y * width + x) * 3;
        curve += pixel[0] == 0x00 && pixel[1] == 0x72 && pixel[2] == 0xb2 ? 1 : 0;
        const bool is_white = pixel[0] == 255 && pixel[1] == 255 && pixel[2] == 255;
        at_edge += x == width - 1 && !is_white ? 1 : 0;
      }
    }
    EXPECT_GT(curve, 200);
    EXPECT_EQ(at_edge, 0);
  }
}

}  // namespace report_page_test
}  // namespace kinora::apps
