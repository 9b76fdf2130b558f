#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kinora/comm/group.h"
#include "kinora/data/bucket.h"
#include "kinora/data/loader.h"
#include "kinora/parallel/sequence_schedule.h"
#include "kinora/train/run_config.h"
#include "kinora/train/training_step.h"

/// parallel.dynamic_sequence: each size of data.buckets has its own number of sequence ranks.
namespace kinora::train {

/// kConfig, naming the key, where a recipe asks for dynamic sequences and for what does not go with
/// them.
void check_dynamic_sequence(const RunConfig& config);

/// Of each row of data.buckets (data::Bucket::row) the bucket with the most pixels.
[[nodiscard]] std::vector<data::Bucket> largest_of_rows(const RunConfig& config);

/// Of a batch of each of these.
using SecondsOfRows = std::vector<parallel::SecondsByDegree>;

/// By counted arithmetic, forward's multiply-accumulates of a rank in 1e12; each doubling of ranks
/// is taken to cost a tenth. `config.model` is resolved.
[[nodiscard]] SecondsOfRows counted_seconds(const RunConfig& config);

/// As measured by passes on random samples, from parallel.sequence ranks downwards; on a GPU not
/// where by what more ranks took the memory would not suffice. Of a deterministic run as counted.
/// All ranks of `world` call it and get the same: the slowest's.
[[nodiscard]] SecondsOfRows seconds_by_degree(const RunConfig& config, TrainingStep& step,
                                              at::Device device, const comm::Group& world);

/// The batches of each step that this rank of `world` computes, by parallel::schedule_sequences().
[[nodiscard]] data::ShareOut share_out(SecondsOfRows seconds, const comm::Group& world);

/// A table of a step of one batch of each row on `ranks` ranks: seconds by number of ranks, in
/// units of `unit`, and which of these are chosen, and how much of the ranks' time they compute.
[[nodiscard]] std::string describe(const SecondsOfRows& seconds, const RunConfig& config,
                                   int64_t ranks, const std::string& unit);

}  // namespace kinora::train
