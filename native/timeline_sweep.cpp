#include <algorithm>
#include <utility>

#include "timeline.hpp"

namespace stepscope {

namespace {

constexpr size_t kSome = 512;         // rows that are looked at ahead: they stay in the cache
constexpr size_t kHandedOver = 2048;  // events
constexpr int kWork = 0;

uint8_t kind_of(const TimelineKinds& kinds, const TimelineSweep::Rows& rows, size_t at, uint32_t name) {
  int kind = rows.kind;
  if (rows.skeleton) {
    const auto skeleton = static_cast<uint64_t>(rows.skeleton[at]);
    kind = skeleton < kinds.of_skeleton.size() ? kinds.of_skeleton[skeleton] : kNoBox;
  }
  if (kind == kKernel && name < kinds.communication.size() && kinds.communication[name]) return kCommunication;
  return static_cast<uint8_t>(kind);
}

}  // namespace

// ---- the merge of runs

TimelineSweep::TimelineSweep(LaneMergers& mergers, const TimelineKinds& kinds, int32_t track) : mergers_(mergers), kinds_(kinds) {
  const size_t place = mergers.file().begin_track(track);
  for (size_t i = 0; i < mergers.size(); ++i) {
    shares_.push_back({std::make_shared<TrackLanes>(), {}});
    shares_.back().lanes->track = place;
  }
}

size_t TimelineSweep::add_run() {
  runs_.emplace_back();
  hungry_.push_back(runs_.size() - 1);
  return runs_.size() - 1;
}

void TimelineSweep::give(size_t run, Rows rows) {
  Run& to = runs_.at(run);
  if (to.at < to.end || to.next < to.rows.size) throw std::invalid_argument("a run that has rows");
  to.rows = std::move(rows), to.next = 0;
}

void TimelineSweep::end_run(size_t run) { runs_.at(run).ended = true; }

// The next rows of a run as events, if it has any; what has no start or no duration is no box.
bool TimelineSweep::take_some(Run& run) {
  if (run.events.empty() && !spare_.empty()) run.events = std::move(spare_.back()), spare_.pop_back();
  run.at = run.end = 0;
  const Rows& rows = run.rows;
  while (run.end == 0 && run.next < rows.size) {
    const size_t end = std::min(rows.size, run.next + kSome);
    if (run.events.size() < end - run.next) run.events.resize(end - run.next);
    LaneEvent* to = run.events.data();
    for (size_t i = std::exchange(run.next, end); i < end; ++i) {
      if (rows.start[i] == kNull || rows.dur[i] == kNull) continue;
      const uint32_t name = rows.name[i] < 0 || rows.name[i] >= kNoName ? kNoName : static_cast<uint32_t>(rows.name[i]);
      const uint8_t kind = kind_of(kinds_, rows, i, name);
      if (kind == kNoBox || kind >> 4 >= kLaneGroups) continue;
      const int64_t start = std::clamp(rows.start[i], -kFarthest, kFarthest), dur = std::clamp(rows.dur[i], int64_t{0}, kFarthest);
      *to++ = {start, dur, rows.event[i], name, static_cast<uint8_t>(kind & 15), static_cast<uint8_t>(kind >> 4), 0};
    }
    run.end = static_cast<size_t>(to - run.events.data());
  }
  if (run.end) return true;
  if (run.rows.owner) used_.push_back(std::move(run.rows.owner));
  if (!run.events.empty()) spare_.push_back(std::exchange(run.events, {}));
  return false;
}

bool TimelineSweep::before(const LaneEvent& x, const LaneEvent& y) {
  if (x.start != y.start) return x.start < y.start;
  if (x.dur != y.dur) return x.dur > y.dur;
  return x.event < y.event;
}

void TimelineSweep::push_head(size_t run) {
  heads_.push_back(run);
  std::push_heap(heads_.begin(), heads_.end(), [this](size_t a, size_t b) { return before(head_of(b), head_of(a)); });
}

size_t TimelineSweep::pop_head() {
  std::pop_heap(heads_.begin(), heads_.end(), [this](size_t a, size_t b) { return before(head_of(b), head_of(a)); });
  const size_t run = heads_.back();
  heads_.pop_back();
  return run;
}

// Whether every run that has rows or may have more has one in the heap; if not, one that has to be given more.
bool TimelineSweep::find_heads(int64_t& hungry) {
  while (!hungry_.empty()) {
    const size_t run = hungry_.back();
    if (take_some(runs_[run])) {
      push_head(run);
    } else if (!runs_[run].ended) {
      hungry = static_cast<int64_t>(run);
      return false;
    }
    hungry_.pop_back();
  }
  return true;
}

int64_t TimelineSweep::advance(int64_t horizon) {
  int64_t hungry = -1;
  while (find_heads(hungry) && !heads_.empty()) {
    const size_t run = pop_head();
    Run& from = runs_[run];
    const LaneEvent* const other = heads_.empty() ? nullptr : &head_of(heads_.front());
    bool waits = false;
    do {
      for (; from.at < from.end; ++from.at) {
        const LaneEvent& event = from.events[from.at];
        if ((waits = event.start >= horizon) || (other && before(*other, event))) break;
        place(event);
      }
    } while (from.at == from.end && !other && take_some(from));
    if (from.at == from.end) {
      hungry_.push_back(run);
      continue;
    }
    push_head(run);
    if (waits) break;
  }
  for (size_t i = 0; i < shares_.size(); ++i)
    if (!shares_[i].gathered.empty()) hand_over(i, nullptr);
  return hungry;
}

// ---- lanes

// Below the innermost event that encloses it, on the first lane that is free. What merely overlaps needs no more lanes
// than there are events at a time.
inline size_t TimelineSweep::lane_of(Group& group, int64_t start, int64_t end, bool nests) {
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

inline void TimelineSweep::place(const LaneEvent& event) {
  const int64_t end = saturating_add(event.start, event.dur);
  const bool nests = event.group != kWork || event.kind < kKernel || event.kind > kCommunication;
  const size_t lane = lane_of(groups_[event.group], event.start, end, nests);
  const size_t merger = mergers_.of_lane(lane);
  auto& gathered = shares_[merger].gathered;
  gathered.push_back(event);
  gathered.back().lane = static_cast<uint16_t>(lane);
  if (gathered.size() == kHandedOver) hand_over(merger, nullptr);
  ++events_;
  first_ = std::min(first_, event.start), last_ = std::max(last_, end);
}

void TimelineSweep::hand_over(size_t merger, std::shared_ptr<TrackEnd> end) {
  Share& share = shares_[merger];
  mergers_[merger].hand_over({share.lanes, std::move(share.gathered), std::move(end)});
  share.gathered = mergers_[merger].spare();
}

// ---- the end

void TimelineSweep::finish() {
  const auto end = std::make_shared<TrackEnd>();
  end->mergers = shares_.size(), end->events = events_, end->first = first_, end->last = last_;
  for (size_t i = 0; i < shares_.size(); ++i) hand_over(i, end);
}

}  // namespace stepscope
