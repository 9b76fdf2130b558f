#include "kinora/prompts/open_sora_scores.h"

#include <cmath>
#include <cstdio>
#include <initializer_list>

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::prompts {
namespace {

constexpr double kMostScore = 1e6;

/// With one digit behind the point.
std::string one_digit(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", number);
  return text;
}

struct Word {
  double below;
  const char* text;
};

std::string word_for(double number, std::initializer_list<Word> words, const char* most) {
  for (const Word& word : words) {
    if (number < word.below) {
      return word.text;
    }
  }
  return most;
}

std::string aesthetic_word(double score) {
  return word_for(score,
                  {{4.0, "terrible"},
                   {4.5, "very poor"},
                   {5.0, "poor"},
                   {5.5, "fair"},
                   {6.0, "good"},
                   {6.5, "very good"}},
                  "excellent");
}

std::string motion_word(double score) {
  return word_for(
      score, {{0.5, "very low"}, {2.0, "low"}, {5.0, "fair"}, {10.0, "high"}, {20.0, "very high"}},
      "extremely high");
}

void check(const OpenSoraScores& scores) {
  for (const std::optional<double>& score : {scores.aesthetic, scores.motion}) {
    KINORA_CHECK(!score || (std::isfinite(*score) && std::abs(*score) <= kMostScore), kConfig,
                 "[prompt] a score must be a number, got ", score.value_or(0.0));
  }
}

bool says(std::string_view prompt, std::string_view what) {
  return prompt.find(what) != std::string_view::npos;
}

/// 4, or 4.5.
std::string short_number(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", number);
  return text;
}

std::string with_camera(std::string text, std::string_view prompt, const OpenSoraScores& scores) {
  if (!scores.camera_motion.empty() && !says(prompt, "camera motion:")) {
    text += " camera motion: " + scores.camera_motion + ".";
  }
  return text;
}

std::string with_numbers(std::string_view prompt, const OpenSoraScores& scores) {
  std::string text(prompt);
  if (scores.aesthetic && !says(prompt, "aesthetic score:")) {
    text += " aesthetic score: " + one_digit(*scores.aesthetic) + ".";
  }
  if (scores.motion && !says(prompt, "motion score:")) {
    text += " motion score: " + one_digit(*scores.motion) + ".";
  }
  return with_camera(std::move(text), prompt, scores);
}

std::string with_words(std::string_view prompt, const OpenSoraScores& scores) {
  std::string text(prompt);
  if (scores.aesthetic && !says(prompt, "aesthetic score is")) {
    text += " The aesthetic score is " + aesthetic_word(*scores.aesthetic) + ".";
  }
  if (scores.motion && !says(prompt, "motion strength is")) {
    text += " The motion strength is " + motion_word(*scores.motion) + ".";
  }
  return with_camera(std::move(text), prompt, scores);
}

/// Whether a prompt ends with such a number of frames a second as "24 FPS.".
bool says_rate(std::string_view prompt) {
  constexpr std::string_view kEnd = " FPS.";
  const size_t digit = prompt.size() - kEnd.size() - 1;
  return prompt.size() > kEnd.size() && prompt.ends_with(kEnd) && prompt[digit] >= '0' &&
         prompt[digit] <= '9';
}

std::string with_frame_rate(std::string_view prompt, const OpenSoraScores& scores) {
  KINORA_CHECK(!scores.aesthetic && scores.camera_motion.empty(), kConfig,
               "[prompt] Open-Sora 2 was told frames a second and a score of motion alone, neither "
               "an aesthetic score nor how the camera moves. Hint: write it into the prompt");
  std::string text(trim(prompt));
  if (!text.ends_with('.')) {
    text += '.';
  }
  if (scores.fps > 0.0 && !says_rate(text)) {
    text += " " + std::to_string(std::llround(scores.fps)) + " FPS.";
  }
  if (scores.motion && !says(prompt, "motion score")) {
    text += " " + short_number(*scores.motion) + " motion score.";
  }
  return text;
}

}  // namespace

std::string with_scores(std::string_view prompt, const OpenSoraScores& scores,
                        OpenSoraWording wording) {
  check(scores);
  switch (wording) {
    case OpenSoraWording::kNumbers:
      return with_numbers(prompt, scores);
    case OpenSoraWording::kWords:
      return with_words(prompt, scores);
    case OpenSoraWording::kFrameRate:
      return with_frame_rate(prompt, scores);
  }
  throw_error(ErrorKind::kConfig, "[prompt] not a wording: ", static_cast<int>(wording));
}

}  // namespace kinora::prompts
