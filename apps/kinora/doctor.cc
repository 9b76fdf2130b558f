// kinora doctor: what this machine offers, how fast it is, and what may cause trouble.

#include <iomanip>
#include <iostream>
#include <string>

#include "apps/kinora/commands.h"
#include "apps/kinora/ranks.h"
#include "kinora/io/jsonl.h"
#include "kinora/train/bench/diagnosis.h"

namespace kinora::apps {
namespace {

constexpr int kNameColumns = 44;

void print_json(const train::Finding& finding) {
  io::JsonObject line;
  line.add("section", finding.section).add("name", finding.name).add("value", finding.value);
  if (finding.number) {
    line.add("number", *finding.number);
  }
  line.add("advice", finding.advice);
  std::cout << line.text() << '\n';
}

class Printer {
 public:
  explicit Printer(bool json) : json_(json) {}

  void print(const train::Findings& findings) {
    for (const train::Finding& finding : findings) {
      num_advices_ += finding.advice.empty() ? 0 : 1;
      if (json_) {
        print_json(finding);
        continue;
      }
      if (finding.section != section_) {
        section_ = finding.section;
        std::cout << section_ << '\n';
      }
      std::cout << "  " << std::left << std::setw(kNameColumns) << finding.name << finding.value
                << '\n';
      if (!finding.advice.empty()) {
        std::cout << "    ! " << finding.advice << '\n';
      }
    }
    std::cout.flush();
  }

  void finish() const {
    if (!json_) {
      std::cout << (num_advices_ == 0 ? "nothing to mend"
                                      : std::to_string(num_advices_) + " to look at, marked !")
                << '\n';
    }
  }

 private:
  bool json_;
  std::string section_;
  int num_advices_ = 0;
};

}  // namespace

int run(const DoctorArguments& arguments) {
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  if (!world) {
    return launch(arguments.ranks, DeviceChoice::kAuto);
  }
  on_rank(*world, DeviceChoice::kAuto, [&](const comm::Group& group, at::Device device) {
    const bool speaks = group.rank() == 0;
    Printer printer(arguments.json);
    if (speaks) {
      printer.print(train::find_program());
      printer.print(train::find_host());
      printer.print(train::find_disk(arguments.folder));
      printer.print(train::find_gpus());
      printer.print(train::find_compute(device));
    }
    group.barrier();
    const train::Findings collectives = train::find_collectives(group, device);
    if (speaks) {
      printer.print(collectives);
      printer.finish();
    }
  });
  return 0;
}

}  // namespace kinora::apps
