#include "kinora/comm/self_check.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "kinora/comm/board.h"
#include "kinora/core/build_info.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/io/crc32c.h"
#include "kinora/io/file.h"

namespace kinora::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr double kMaxClockOffset = 1.0;  // seconds
constexpr size_t kMostNames = 16;
constexpr const char* kHost = "host";
constexpr const char* kClock = "clock";
constexpr const char* kVerdict = "verdict";
constexpr const char* kAlike = "alike";

/// Seconds since 1970.
double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// The first line in which two texts differ, for people.
std::string first_difference(const std::string& its, const std::string& first) {
  const std::vector<std::string_view> its_lines = split(its, '\n');
  const std::vector<std::string_view> first_lines = split(first, '\n');
  size_t line = 0;
  while (line < its_lines.size() && line < first_lines.size() &&
         its_lines[line] == first_lines[line]) {
    ++line;
  }
  const auto shown = [line](const std::vector<std::string_view>& lines) {
    return line < lines.size() ? quote(trim(lines[line])) : std::string("nothing more");
  };
  const std::string where =
      its_lines.size() + first_lines.size() > 2 ? "in line " + std::to_string(line + 1) + ' ' : "";
  return where + "it has " + shown(its_lines) + ", rank 0 " + shown(first_lines);
}

/// One self-check. Rank 0 reads what all ranks put up, and puts up the verdict for the others:
/// `kAlike`, or the number of the rank to blame and, in a second line, why.
class Check {
 public:
  Check(const Group& world, const std::vector<Fact>& facts, milliseconds limit)
      : world_(world),
        facts_(facts),
        limit_(limit),
        deadline_(Clock::now() + limit),
        board_(world.world(), limit),
        folder_("check/" + std::to_string(next_number()) + "/") {}

  SelfCheck run() {
    put(kHost, host_name());
    for (const Fact& fact : facts_) {
      put(fact.name, fact.value);
    }
    SelfCheck result;
    if (world_.rank() == 0) {
      result = lead();
    } else {
      follow();
    }
    meet_in_group();
    return result;
  }

 private:
  /// Counts this rank's checks at the store, from 1. All ranks come to the same number, so nobody
  /// reads what was put up for an earlier check.
  int64_t next_number() {
    const std::string place = "checks/" + std::to_string(world_.rank());
    const std::optional<std::string> last = board_.read(place);
    const int64_t number = last ? std::stoll(*last) + 1 : 1;
    board_.put(place, std::to_string(number));
    return number;
  }

  [[nodiscard]] std::string key(const std::string& name, int64_t rank) const {
    return folder_ + name + "/" + std::to_string(rank);
  }

  void put(const std::string& name, const std::string& value) {
    board_.put(key(name, world_.rank()), value);
  }

  [[nodiscard]] milliseconds left() const {
    const auto duration = std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now());
    return std::max(duration, milliseconds(1));
  }

  [[nodiscard]] std::string time_limit() const {
    return human_duration(std::chrono::duration<double>(limit_).count());
  }

  /// Every rank's text.
  std::vector<std::string> read_all(const std::string& name) {
    std::vector<std::string> keys;
    for (int64_t rank = 0; rank < world_.size(); ++rank) {
      keys.push_back(key(name, rank));
    }
    const auto texts = board_.read_all(keys, left());
    std::vector<std::string> all;
    std::vector<std::string> missing;
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      if (texts[rank]) {
        all.push_back(*texts[rank]);
      } else {
        missing.push_back(std::to_string(rank));
      }
    }
    KINORA_CHECK(missing.empty(), kComm, "[self-check] no word came within ", time_limit(),
                 " from ranks ", list_names(missing, kMostNames),
                 ". Hint: look for their own errors");
    return all;
  }

  SelfCheck lead() {
    try {
      hosts_ = read_all(kHost);
      for (const Fact& fact : facts_) {
        compare(fact);
      }
    } catch (const Error& error) {
      board_.put(folder_ + kVerdict, std::to_string(blamed_) + '\n' + error.what());
      throw;
    }
    const double before = wall_clock();
    board_.put(folder_ + kVerdict, kAlike);
    put(kClock, clock_text());
    const std::vector<std::string> clocks = read_all(kClock);
    return {.num_hosts = static_cast<int64_t>(std::set(hosts_.begin(), hosts_.end()).size()),
            .clock_offset = largest_offset(clocks, before, wall_clock())};
  }

  void compare(const Fact& fact) {
    const std::vector<std::string> values = read_all(fact.name);
    for (size_t rank = 1; rank < values.size(); ++rank) {
      if (values[rank] == values[0]) {
        continue;
      }
      std::ostringstream message;
      message << "[self-check] rank " << rank << " on " << hosts_[rank] << " has another "
              << fact.name << " than rank 0 on " << hosts_[0] << ": "
              << first_difference(values[rank], values[0]);
      if (fact.required) {
        blamed_ = static_cast<int64_t>(rank);
        throw_error(ErrorKind::kComm, message.str(),
                    ". Hint: start all ranks from the same files, with the same arguments");
      }
      log_warn(message.str());
      return;
    }
  }

  void follow() {
    // Longer than rank 0, which may have begun later, so that it can say who is missing.
    const auto verdict = board_.read(folder_ + kVerdict, left() + limit_);
    KINORA_CHECK(verdict.has_value(), kComm, "[self-check] no word came from rank 0 within ",
                 human_duration(std::chrono::duration<double>(2 * limit_).count()),
                 ". Hint: look for its own error");
    put(kClock, clock_text());
    if (*verdict == kAlike) {
      return;
    }
    const size_t end = verdict->find('\n');
    const bool mine = verdict->substr(0, end) == std::to_string(world_.rank());
    throw Error(mine ? ErrorKind::kConfig : ErrorKind::kComm, verdict->substr(end + 1));
  }

  static std::string clock_text() {
    std::ostringstream text;
    text << std::setprecision(17) << wall_clock();
    return text.str();
  }

  /// Each clock was read between `before` and `after` of rank 0's; what lies between says nothing.
  double largest_offset(const std::vector<std::string>& clocks, double before, double after) {
    double largest = 0.0;
    for (size_t rank = 1; rank < clocks.size(); ++rank) {
      const double clock = std::stod(clocks[rank]);
      const double offset = clock < before ? clock - before : std::max(clock - after, 0.0);
      if (std::abs(offset) > kMaxClockOffset) {
        log_warn("[self-check] the clock of rank ", rank, " on ", hosts_[rank], " is ",
                 human_duration(std::abs(offset)), offset < 0.0 ? " behind" : " ahead of",
                 " rank 0's on ", hosts_[0], ": times in logs will not fit together");
      }
      largest = std::max(largest, std::abs(offset));
    }
    return largest;
  }

  /// All ranks are known to be here, so who does not answer cannot be reached.
  void meet_in_group() const {
    const auto deadline = Clock::now() + limit_;
    const Work barrier = world_.barrier_async();
    while (!barrier.is_done() && Clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    KINORA_CHECK(barrier.is_done(), kComm, "[self-check] rank ", world_.rank(),
                 " could not meet the others through Gloo within ", time_limit(),
                 ", though all of them reach the store. Hint: GLOO_SOCKET_IFNAME names the network "
                 "to use");
    barrier.wait();
  }

  const Group& world_;
  const std::vector<Fact>& facts_;
  const milliseconds limit_;
  const Clock::time_point deadline_;
  Board board_;
  const std::string folder_;  // of this check's keys
  std::vector<std::string> hosts_;
  int64_t blamed_ = -1;  // nobody in particular
};

}  // namespace

std::vector<Fact> program_facts() {
  const BuildInfo& info = build_info();
  const io::MappedFile file("/proc/self/exe");
  std::ostringstream program;
  program << info.version << ", commit " << info.commit << ", CRC-32C " << std::hex << std::setw(8)
          << std::setfill('0')
          << io::crc32c({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
  std::vector<Fact> facts = {{"program", program.str(), true},
                             {"libtorch", std::string(info.libtorch), true}};
  std::ifstream driver("/proc/driver/nvidia/version");
  if (std::string line; std::getline(driver, line)) {
    facts.push_back({"GPU driver", line, false});
  }
  return facts;
}

SelfCheck self_check(const Group& world, const std::vector<Fact>& facts, milliseconds limit) {
  return world.size() == 1 ? SelfCheck{} : Check(world, facts, limit).run();
}

}  // namespace kinora::comm
