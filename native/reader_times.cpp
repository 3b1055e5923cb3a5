// Which times are believed. A clock that was read wrongly writes numbers that are years away, and one of them would make
// the trace years long: such events are set aside and counted, the others stand.
#include <algorithm>
#include <utility>

#include "reader.hpp"

namespace stepscope {

namespace {

constexpr int64_t kDay = int64_t{24} * 3600 * 1'000'000'000, kExact = int64_t{1} << 53;

template <class T>
void keep_rows(Column<T>& column, const std::vector<uint32_t>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) column[i] = column[rows[i]];
}

}  // namespace

bool Reader::is_metadata(int32_t skeleton) const {
  const int32_t phase = skeleton_infos_[static_cast<size_t>(skeleton - skeletons_.first())].phase;
  return phase >= 0 && small_.texts()[static_cast<size_t>(phase)] == "M";
}

// Looks again at an event whose times are unusual. One without a time may be a name of a thread, and the time of those
// means nothing.
bool Reader::admits(const Identity& is, int64_t start, int64_t dur) {
  not_admitted_ = kImpossible;
  if (dur > spec_.most_apart_ns) return false;
  if (start != kNull && static_cast<uint64_t>(start) - earliest_ > span_ && !is_metadata(is.skeleton)) return false;
  not_admitted_ = "an event after durations of over four years in total, set aside";
  return spec_.most_summed_ns - summed_ >= std::max<int64_t>(dur, 0);
}

// A batch is full: it goes to the writer, once it is known which of its times are believed.
void Reader::full(int table) {
  settle();
  auto& batch = open_[static_cast<size_t>(table)];
  if (batch->count >= spec_.batch_rows) ready_.push_back(std::move(batch));
}

// Most events decide where the trace is: from now on it goes from ten days before their median to ten days after it.
void Reader::settle() {
  if (settled_) return;
  std::vector<int64_t> starts;
  for (const auto& batch : open_)
    for (size_t i = 0; batch && i < batch->count; ++i)
      if (batch->start[i] != kNull && !is_metadata(batch->skeleton[i])) starts.push_back(batch->start[i]);
  if (starts.empty()) return;
  settled_ = true;
  const auto middle = starts.begin() + static_cast<long>(starts.size() / 2);
  std::nth_element(starts.begin(), middle, starts.end());
  earliest_ = static_cast<uint64_t>(*middle) - static_cast<uint64_t>(spec_.most_apart_ns);
  span_ = 2 * static_cast<uint64_t>(spec_.most_apart_ns);
  if (spec_.from_day_before && *middle > kExact && *middle < kFarthest) origin_ = *middle / kDay * kDay - kDay;
  std::vector<int64_t> dropped;
  for (auto& batch : open_)
    if (batch) drop_far(*batch, dropped);
  if (dropped.empty()) return;
  // Events are numbered without gaps.
  std::sort(dropped.begin(), dropped.end());
  events -= static_cast<int64_t>(dropped.size());
  for (auto& batch : open_)
    for (size_t i = 0; batch && i < batch->count; ++i)
      batch->event[i] -= std::lower_bound(dropped.begin(), dropped.end(), batch->event[i]) - dropped.begin();
}

// All times, also those of names of threads that mean nothing: added to the origin they are what was written.
std::vector<std::unique_ptr<Batch>> Reader::take_batches() {
  for (auto& batch : ready_)
    for (size_t i = 0; origin_ && i < batch->count; ++i)
      if (batch->start[i] != kNull) batch->start[i] -= origin_;
  return std::exchange(ready_, {});
}

void Reader::drop_far(Batch& batch, std::vector<int64_t>& dropped) {
  std::vector<uint32_t> kept;
  for (uint32_t i = 0; i < batch.count; ++i) {
    const int64_t start = batch.start[i], dur = std::max<int64_t>(batch.dur[i], 0);
    if (start == kNull || static_cast<uint64_t>(start) - earliest_ <= span_ || is_metadata(batch.skeleton[i])) {
      kept.push_back(i);
      continue;
    }
    dropped.push_back(batch.event[i]);
    SkeletonInfo& info = skeleton_infos_[static_cast<size_t>(batch.skeleton[i] - skeletons_.first())];
    --info.events;
    info.total -= dur;
    summed_ -= dur;
    note(kImpossible, 0, -1);
  }
  if (kept.size() == batch.count) return;
  keep_rows(batch.event, kept), keep_rows(batch.start, kept), keep_rows(batch.dur, kept);
  keep_rows(batch.thread, kept), keep_rows(batch.name, kept), keep_rows(batch.skeleton, kept);
  for (auto& values : batch.values) keep_rows(values, kept);
  batch.count = kept.size();
}

}  // namespace stepscope
