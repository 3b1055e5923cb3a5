#include <algorithm>
#include <utility>

#include "timeline.hpp"

namespace stepscope {

namespace {

constexpr size_t kMostMergers = 5;      // with more, the reading sets the pace
constexpr size_t kFewEvents = 1 << 15;  // for fewer a thread would not pay
constexpr int kWork = 0;

}  // namespace

// ---- the merge of runs

TimelineSweep::TimelineSweep(TimelineFile& file, int32_t track, size_t threads) : file_(file), track_(file.begin_track(track)) {
  const size_t few = threads ? 0 : kFewEvents;
  if (!threads) threads = std::clamp<size_t>(std::thread::hardware_concurrency() / 3, 1, kMostMergers);
  while (mergers_.size() < threads) mergers_.push_back(std::make_unique<LaneMerger>(file, track_, threads, few));
}

size_t TimelineSweep::add_run() {
  runs_.emplace_back();
  hungry_.push_back(runs_.size() - 1);
  return runs_.size() - 1;
}

void TimelineSweep::give(size_t run, std::vector<Row> rows) {
  Run& to = runs_.at(run);
  if (to.at < to.rows.size()) throw std::invalid_argument("a run that has rows");
  to.rows = std::move(rows), to.at = 0;
}

void TimelineSweep::end_run(size_t run) { runs_.at(run).ended = true; }

bool TimelineSweep::before(size_t a, size_t b) const {
  const Row &x = runs_[a].rows[runs_[a].at], &y = runs_[b].rows[runs_[b].at];
  if (x.start != y.start) return x.start < y.start;
  if (x.dur != y.dur) return x.dur > y.dur;
  return x.event < y.event;
}

void TimelineSweep::push_head(size_t run) {
  heads_.push_back(run);
  std::push_heap(heads_.begin(), heads_.end(), [this](size_t a, size_t b) { return before(b, a); });
}

size_t TimelineSweep::pop_head() {
  std::pop_heap(heads_.begin(), heads_.end(), [this](size_t a, size_t b) { return before(b, a); });
  const size_t run = heads_.back();
  heads_.pop_back();
  return run;
}

int64_t TimelineSweep::advance(int64_t horizon) {
  while (true) {
    while (!hungry_.empty()) {
      const size_t run = hungry_.back();
      Run& waiting = runs_[run];
      if (waiting.at < waiting.rows.size())
        push_head(run);
      else if (!waiting.ended)
        return static_cast<int64_t>(run);
      else
        std::vector<Row>().swap(waiting.rows), waiting.at = 0;
      hungry_.pop_back();
    }
    if (heads_.empty()) return -1;
    const size_t run = pop_head();
    Run& from = runs_[run];
    while (from.at < from.rows.size() && from.rows[from.at].start < horizon && (heads_.empty() || !before(heads_.front(), run)))
      place(from.rows[from.at++]);
    if (from.at == from.rows.size()) {
      hungry_.push_back(run);
      continue;
    }
    const bool waits = from.rows[from.at].start >= horizon;
    push_head(run);
    if (waits) return -1;
  }
}

// ---- lanes

// Below the innermost event that encloses it, on the first lane that is free. What merely overlaps needs no more lanes
// than there are events at a time.
size_t TimelineSweep::lane_of(Group& group, int64_t start, int64_t end, bool nests) {
  auto& ends = group.ends;
  while (group.top > 0 && ends[group.top - 1] <= start) --group.top;
  size_t lane = nests ? group.top : 0;
  const int64_t enclosing = std::max(end, saturating_add(start, 1));
  while (lane > 0 && ends[lane - 1] < enclosing) --lane;
  while (lane < ends.size() && ends[lane] > start) ++lane;
  lane = std::min(lane, kMostLanes - 1);
  if (lane == ends.size()) ends.push_back(kNull);
  ends[lane] = std::max(ends[lane], end);
  group.top = std::max(group.top, lane + 1);
  return lane;
}

void TimelineSweep::place(const Row& row) {
  const int64_t end = saturating_add(row.start, row.dur);
  Group& group = groups_[row.group];
  const size_t number = lane_of(group, row.start, end, row.group != kWork || row.kind < kKernel || row.kind > kCommunication);
  if (number == group.lanes.size()) {
    group.lanes.push_back(std::make_unique<MergedLane>());
    group.lanes.back()->group = row.group, group.lanes.back()->number = number;
  }
  mergers_[number % mergers_.size()]->add(*group.lanes[number], {row.start, row.dur, row.dur, row.event, row.name, 1, row.kind});
  ++events_;
  first_ = std::min(first_, row.start), last_ = std::max(last_, end);
}

// ---- the end

void TimelineSweep::finish() {
  for (auto& merger : mergers_) merger->end();
  for (auto& merger : mergers_) merger->finish();
  file_.finish_track(track_, events_, first_, last_);
}

}  // namespace stepscope
