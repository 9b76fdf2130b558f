#include "kinora/io/line_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>

#include "kinora/core/error.h"

namespace kinora::io {
namespace line_chart_test {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct Pixel {
  double x;
  double y;
};

/// The points of the first polyline.
std::vector<Pixel> polyline(const std::string& svg) {
  const std::string prefix = "points='";
  const size_t begin = svg.find(prefix);
  EXPECT_NE(begin, std::string::npos);
  std::istringstream text(svg.substr(
      begin + prefix.size(), svg.find('\'', begin + prefix.size()) - begin - prefix.size()));
  std::vector<Pixel> points;
  Pixel point{};
  char comma = 0;
  while (text >> point.x >> comma >> point.y) {
    points.push_back(point);
  }
  return points;
}

TEST(LineChartTest, ALineIsStraightAndRisesOnThePage) {
  const std::string text =
      svg({.title = "t", .curves = {{.name = "a", .x = {0, 5, 10}, .y = {1, 2, 3}}}});
  const std::vector<Pixel> points = polyline(text);
  ASSERT_EQ(points.size(), 3U);
  EXPECT_NEAR(points[1].x, 0.5 * (points[0].x + points[2].x), 0.1);
  EXPECT_NEAR(points[1].y, 0.5 * (points[0].y + points[2].y), 0.1);
  EXPECT_GT(points[0].y, points[2].y);  // y runs downwards
}

TEST(LineChartTest, PowersAreEvenOnALogarithmicAxis) {
  LineChart chart{
      .title = "t", .curves = {{.name = "a", .x = {0, 1, 2}, .y = {0.01, 0.1, 1}}}, .log_y = true};
  std::vector<Pixel> points = polyline(svg(chart));
  EXPECT_NEAR(points[1].y, 0.5 * (points[0].y + points[2].y), 0.1);
  EXPECT_THAT(svg(chart), HasSubstr(">0.1<"));
  LineChart narrow = chart;
  narrow.curves[0].y = {0.9, 1.0, 1.2};
  for (const char* tick : {">0.9<", ">1<", ">1.1<", ">1.2<"}) {
    EXPECT_THAT(svg(narrow), HasSubstr(tick));
  }
  chart.curves[0].y[0] = 0.0;  // has no logarithm
  points = polyline(svg(chart));
  EXPECT_GT(points[1].y, 0.6 * points[0].y + 0.4 * points[2].y);
}

TEST(LineChartTest, LongCurvesAreThinnedToTheirMeans) {
  Curve curve{.name = "a", .x = std::vector<double>(100'000), .y = std::vector<double>(100'000)};
  std::iota(curve.x.begin(), curve.x.end(), 0.0);
  for (size_t i = 0; i < curve.y.size(); ++i) {
    curve.y[i] = i % 2 == 0 ? 1.0 : 3.0;  // means of 2
  }
  curve.y.front() = 0.0;
  const std::vector<Pixel> points = polyline(svg({.title = "t", .curves = {curve}}));
  EXPECT_LE(points.size(), 600U);
  EXPECT_GE(points.size(), 300U);
}

TEST(LineChartTest, WhatIsNotFiniteIsLeftOut) {
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  const std::string text =
      svg({.title = "t", .curves = {{.name = "a", .x = {0, 1, 2, 3}, .y = {1, nan, infinity, 2}}}});
  EXPECT_EQ(polyline(text).size(), 2U);
  EXPECT_THAT(text, Not(HasSubstr("nan")));
  EXPECT_THAT(text, Not(HasSubstr("inf")));
}

TEST(LineChartTest, DegenerateCurvesAreDrawn) {
  for (const Curve& curve :
       {Curve{.name = "flat", .x = {1, 2}, .y = {0, 0}}, Curve{.name = "point", .x = {7}, .y = {3}},
        Curve{.name = "none", .x = {}, .y = {}}}) {
    const std::string text = svg({.title = curve.name, .curves = {curve}});
    EXPECT_THAT(text, HasSubstr("</svg>"));
    EXPECT_THAT(text, Not(HasSubstr("nan")));
    EXPECT_THAT(text, Not(HasSubstr("inf")));
  }
  EXPECT_THROW((void)svg({.title = "", .curves = {{.name = "a", .x = {1}, .y = {}}}}), Error);
}

TEST(LineChartTest, BytesHaveTheUnitOfTheLargest) {
  const std::string text = svg({.title = "t",
                                .curves = {{.name = "", .x = {0, 1}, .y = {0, 3.0 * (1 << 30)}}},
                                .bytes = true});
  EXPECT_THAT(text, HasSubstr(">1 GiB<"));
  EXPECT_THAT(text, HasSubstr(">3 GiB<"));
}

TEST(LineChartTest, TextIsEscaped) {
  const std::string text =
      svg({.title = "<script>", .curves = {{.name = "a&'b\"", .x = {0, 1}, .y = {0, 1}}}});
  EXPECT_THAT(text, HasSubstr("&lt;script&gt;"));
  EXPECT_THAT(text, HasSubstr("a&amp;&#39;b&quot;"));
  EXPECT_THAT(text, Not(HasSubstr("<script>")));
}

TEST(LineChartTest, SmoothingKeepsStraightLines) {
  const Curve curve{.name = "", .x = {0, 1, 2, 3, 4}, .y = {0, 1, 2, 3, 4}};
  EXPECT_THAT(smoothed(curve, 2).y,
              ElementsAre(DoubleNear(0, 1e-12), DoubleNear(1, 1e-12), DoubleNear(2, 1e-12),
                          DoubleNear(3, 1e-12), DoubleNear(4, 1e-12)));
  EXPECT_THAT(smoothed({.name = "", .x = {0, 1, 2}, .y = {0, 3, 0}}, 1).y,
              ElementsAre(DoubleNear(0, 1e-12), DoubleNear(1, 1e-12), DoubleNear(0, 1e-12)));
}

}  // namespace line_chart_test
}  // namespace kinora::io
