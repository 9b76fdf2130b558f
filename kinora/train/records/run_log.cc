#include "kinora/train/records/run_log.h"

#include "kinora/core/counted.h"
#include "kinora/core/log.h"

namespace kinora::train {
namespace {

/// Drops what lies after the resumed step before the writer opens the file.
std::filesystem::path truncated(const RunDirectory& directory, int64_t first_step) {
  const std::filesystem::path path = directory.log_file();
  const io::Truncated done = io::truncate_jsonl(path, first_step);
  if (done.num_damaged > 0) {
    log_warn("[train] ", path, " has ", counted(done.num_damaged, "damaged line"),
             ", the first is line ", done.first_damaged,
             ". The run goes on with the others; the file as it was is now ", done.set_aside);
  }
  return path;
}

void add_times(const StepRecord& record, io::JsonObject& line) {
  const StepTimes& times = record.times;
  const auto share = [&times](double part) { return times.step > 0.0 ? part / times.step : 0.0; };
  line.add("step_s", times.step)
      .add("compute_s", times.compute())
      .add("communication_s", times.communication)
      .add("communication_share", share(times.communication))
      .add("data_wait_s", times.data)
      .add("data_wait_share", share(times.data));
  if (!record.slowest.name.empty()) {
    line.add("slowest_sample", record.slowest.name).add("slowest_sample_s", record.slowest.seconds);
  }
}

/// Name and value of each of the times over all ranks: "compute_s_min", ...
std::vector<std::pair<std::string, double>> spread_times(const RankTimes& ranks) {
  std::vector<std::pair<std::string, double>> all;
  for (const auto& [name, spread] :
       {std::pair("compute_s", ranks.compute), std::pair("communication_s", ranks.communication),
        std::pair("data_wait_s", ranks.data)}) {
    for (const auto& [of, value] :
         {std::pair("min", spread.min), std::pair("median", spread.median),
          std::pair("max", spread.max)}) {
      all.emplace_back(std::string(name) + "_" + of, value);
    }
  }
  return all;
}

std::string band_name(size_t band) {
  return "t" + std::to_string(band);
}

io::JsonObject line_of(const StepRecord& record) {
  io::JsonObject line;
  line.add("step", record.step);
  if (record.has_kinds) {
    line.add("kind", to_string(record.kind));
  }
  if (record.size) {
    line.add("samples", record.size->samples);
    if (const auto& size = record.size->size) {
      line.add("frames", size->frames).add("height", size->height).add("width", size->width);
    } else {
      line.add("batches", record.size->batches);
    }
  }
  line.add("loss", record.loss)
      .add("lr", record.lr)
      .add("grad_norm", record.grad_norm)
      .add("samples_per_s", record.samples_per_s);
  if (record.peak_memory > 0) {
    line.add("peak_memory", record.peak_memory);
  }
  add_times(record, line);
  if (record.ranks) {
    line.add("ranks_step", record.ranks->step)
        .add("slow_rank", record.ranks->slow_rank)
        .add("slowness", record.ranks->slowness);
    for (const auto& [name, value] : spread_times(*record.ranks)) {
      line.add(name, value);
    }
  }
  if (record.loss_scale != 1.0) {
    line.add("loss_scale", record.loss_scale);
  }
  if (record.distance != 0.0) {
    line.add("distance", record.distance);
  }
  if (record.skipped) {
    line.add("skipped", true);
  }
  for (const auto& [weights, loss] : record.validation) {
    line.add("validation_" + weights, loss.mean);
    for (size_t band = 0; band < loss.bands.size(); ++band) {
      line.add("validation_" + weights + "_" + band_name(band), loss.bands[band]);
    }
  }
  return line;
}

}  // namespace

RunLog::RunLog(const RunDirectory& directory, int64_t first_step, int64_t tensorboard_every)
    : tensorboard_every_(tensorboard_every),
      jsonl_(truncated(directory, first_step)),
      events_(directory.path()) {
  events_.purge_from(first_step + 1);
}

void RunLog::add_step(const StepRecord& record) {
  write_log_([&] { jsonl_.write(line_of(record)); });
  write_events_([&] { add_events(record); });
}

void RunLog::add_events(const StepRecord& record) {
  if (record.ranks) {
    const RankTimes& ranks = *record.ranks;
    events_.add_scalar("ranks/slow_rank", ranks.step, static_cast<double>(ranks.slow_rank));
    events_.add_scalar("ranks/slowness", ranks.step, ranks.slowness);
    for (const auto& [name, value] : spread_times(ranks)) {
      events_.add_scalar("ranks/" + name, ranks.step, value);
    }
  }
  for (const auto& [weights, loss] : record.validation) {
    events_.add_scalar("validation/" + weights, record.step, loss.mean);
    for (size_t band = 0; band < loss.bands.size(); ++band) {
      events_.add_scalar("validation_" + weights + "/" + band_name(band), record.step,
                         loss.bands[band]);
    }
  }
  if (record.step % tensorboard_every_ != 0) {
    return;
  }
  const std::string suffix = record.kind == StepKind::kImageData ? "_image_data/" : "/";
  const std::string train = "train" + suffix;
  const std::string speed = "speed" + suffix;
  events_.add_scalar(train + "loss", record.step, record.loss);
  events_.add_scalar(train + "lr", record.step, record.lr);
  events_.add_scalar(train + "grad_norm", record.step, record.grad_norm);
  events_.add_scalar(speed + "samples_per_s", record.step, record.samples_per_s);
  events_.add_scalar(speed + "peak_memory", record.step, static_cast<double>(record.peak_memory));
  events_.add_scalar(speed + "data_wait_s", record.step, record.times.data);
  events_.add_scalar(speed + "compute_s", record.step, record.times.compute());
  events_.add_scalar(speed + "communication_s", record.step, record.times.communication);
}

void RunLog::add_samples(int64_t step, const io::Image& grid) {
  write_events_([&] {
    events_.add_image("samples", step, grid);
    events_.flush();
  });
}

void RunLog::flush() {
  write_events_([&] { events_.flush(); });
}

}  // namespace kinora::train
