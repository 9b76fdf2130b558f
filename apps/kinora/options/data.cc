// kinora data: what is done with sets of samples outside of training, one file a subcommand.

#include <CLI/CLI.hpp>

#include "apps/kinora/options/command.h"

namespace kinora::apps {

void add_data(CLI::App& app, Chosen& chosen) {
  CLI::App* data = app.add_subcommand(
      "data", "Look at sets of images and clips, encode them, and find batch sizes.");
  data->require_subcommand(1);
  add_data_check(*data, chosen);
  add_data_encode(*data, chosen);
  add_data_encode_texts(*data, chosen);
  add_data_search_batch(*data, chosen);
}

}  // namespace kinora::apps
