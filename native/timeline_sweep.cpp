#include <algorithm>
#include <bit>
#include <utility>

#include "timeline.hpp"

namespace stepscope {

namespace {

constexpr size_t kMostHeldBoxes = size_t{1} << 21;  // room for boxes that wait to be written: 100 MB
constexpr size_t kMostHeldNames = size_t{1} << 22;  // beyond these, names in one pixel are not told apart
constexpr size_t kFewNames = 8;                     // are looked through
constexpr size_t kManyNames = 256;                  // the room for more is not kept
constexpr int kWork = 0;

int64_t floor_divided(int64_t a, int64_t b) { return a / b - (a % b < 0); }

size_t hash_of(uint32_t name) { return static_cast<size_t>((name * 0x9e3779b97f4a7c15u) >> 32); }

}  // namespace

// ---- names

size_t NameTimes::slot(uint32_t name) const {
  size_t at = hash_of(name) & (slots_.size() - 1);
  while (slots_[at] && entries_[slots_[at] - 1].name != name) at = (at + 1) & (slots_.size() - 1);
  return at;
}

void NameTimes::grow() {
  slots_.assign(std::max<size_t>(32, slots_.size() * 2), 0);
  for (size_t i = 0; i < entries_.size(); ++i) slots_[slot(entries_[i].name)] = static_cast<uint32_t>(i + 1);
}

void NameTimes::add_other(const Entry& entry, size_t& held) {
  if (slots_.empty()) {
    for (last_ = 0; last_ < entries_.size() && entries_[last_].name != entry.name;) ++last_;
  } else {
    const uint32_t found = slots_[slot(entry.name)];
    last_ = found ? found - 1 : entries_.size();
  }
  if (last_ < entries_.size()) {
    entries_[last_].time = saturating_add(entries_[last_].time, entry.time);
    return;
  }
  if (held >= kMostHeldNames) return;
  ++held;
  entries_.push_back(entry);
  if (slots_.empty() ? entries_.size() > kFewNames : entries_.size() * 2 > slots_.size())
    grow();
  else if (!slots_.empty())
    slots_[slot(entry.name)] = static_cast<uint32_t>(entries_.size());
}

void NameTimes::clear_all(size_t& held) {
  held -= entries_.size();
  if (entries_.size() > kManyNames) {
    std::vector<Entry>().swap(entries_);
    std::vector<uint32_t>().swap(slots_);
  } else if (!slots_.empty()) {
    std::fill(slots_.begin(), slots_.end(), 0);
  }
  entries_.clear();
  last_ = 0;
}

// ---- the merge of runs

TimelineSweep::TimelineSweep(TimelineFile& file, int32_t track)
    : file_(file), track_(file.begin_track(track)), pixel_ns_(file.pixel_ns()) {}

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
    group.lanes.push_back(std::make_unique<Lane>());
    group.lanes.back()->group = row.group, group.lanes.back()->number = number;
  }
  add(*group.lanes[number], row, end);
  ++events_;
  first_ = std::min(first_, row.start), last_ = std::max(last_, end);
}

// ---- levels

void TimelineSweep::add(Lane& lane, const Row& row, int64_t end) {
  int own = 0;  // the highest level at which it is as wide as a pixel
  for (int64_t width = pixel_ns_; own < kTopLevel && row.dur >= width; width <<= 2) ++own;
  // It ends after its pixel: nothing else will begin there.
  for (uint32_t of = (uint32_t{2} << own) - 2, open; (open = lane.open & of) != 0;) close(lane, std::countr_zero(open));
  const int64_t busy = std::max<int64_t>(0, end - std::max(row.start, lane.end));
  lane.end = std::max(lane.end, end);
  const Box box{row.start, row.dur, row.dur, row.event, row.name, 1, row.kind};
  if (own == kTopLevel)
    put(lane, own, box);
  else
    merge(lane, own + 1, floor_divided(row.start, pixel_ns_) >> (2 * own), {box, busy, end, row.dur, nullptr, 0});
}

// Adds an event, or what was merged at the level below, to what begins in the same pixel.
void TimelineSweep::merge(Lane& lane, int level, int64_t pixel, const Piece& piece) {
  Merging& all = lane.merging[static_cast<size_t>(level)];
  const uint32_t bit = uint32_t{1} << level;
  if ((lane.open & bit) && all.pixel != pixel) close(lane, level);
  if (!(lane.open & bit)) {
    lane.open |= bit;
    all.pixel = pixel, all.box = piece.box, all.busy = piece.busy, all.end = piece.end, all.longest = piece.longest;
    add_names(all, piece);
    return;
  }
  // Events that were alone up to the level below are not from here on.
  if (all.box.count == 1) {
    put(lane, level - 1, all.box);
    all.names.add({all.box.name, all.box.kind, all.box.dur}, held_names_);
  }
  if (piece.box.count == 1) {
    put(lane, level - 1, piece.box);
    all.names.add({piece.box.name, piece.box.kind, piece.box.dur}, held_names_);
  }
  add_names(all, piece);
  all.busy += piece.busy, all.box.count += piece.box.count;
  all.end = std::max(all.end, piece.end);
  if (piece.longest > all.longest) all.longest = piece.longest, all.box.event = piece.box.event;
}

void TimelineSweep::add_names(Merging& all, const Piece& piece) {
  for (size_t i = 0; i < piece.count; ++i) all.names.add(piece.names[i], held_names_);
}

// What began in a pixel is complete. An event that is alone there is a box of its own at this level, too.
void TimelineSweep::close(Lane& lane, int level) {
  Merging& all = lane.merging[static_cast<size_t>(level)];
  lane.open &= ~(uint32_t{1} << level);
  const auto& names = all.names.entries();
  if (all.box.count > 1) {
    all.box.dur = all.end - all.box.start, all.box.busy = all.busy;
    const NameTimes::Entry* most = nullptr;
    for (const auto& entry : names)
      if (!most || entry.time > most->time) most = &entry;
    if (most) all.box.name = most->name, all.box.kind = most->kind;
    put(lane, kTopLevel + level, all.box);
  } else if (level == kTopLevel) {
    put(lane, level, all.box);
  }
  if (level < kTopLevel) merge(lane, level + 1, all.pixel >> 2, {all.box, all.busy, all.end, all.longest, names.data(), names.size()});
  all.names.clear(held_names_);
}

// ---- writing

void TimelineSweep::put(Lane& lane, int list, const Box& box) {
  auto& waiting = lane.waiting[static_cast<size_t>(list)];
  const size_t room = waiting.capacity();
  waiting.push_back(box);
  held_boxes_ += waiting.capacity() - room;
  if (waiting.size() == kChunkBoxes) {
    flush(lane, list);
    waiting.reserve(kChunkBoxes);  // more will come
    held_boxes_ += waiting.capacity();
  } else if (held_boxes_ > kMostHeldBoxes) {
    flush_all();
  }
}

void TimelineSweep::flush(Lane& lane, int list) {
  auto& waiting = lane.waiting[static_cast<size_t>(list)];
  held_boxes_ -= waiting.capacity();
  std::vector<Box> boxes = std::exchange(waiting, {});
  if (!boxes.empty()) file_.append(track_, lane.group, lane.number, list, std::move(boxes));
}

void TimelineSweep::flush_all() {
  for (auto& group : groups_)
    for (auto& lane : group.lanes)
      for (int list = 0; list < kBoxLists; ++list) flush(*lane, list);
}

void TimelineSweep::finish() {
  for (auto& group : groups_)
    for (auto& lane : group.lanes)
      while (lane->open) close(*lane, std::countr_zero(lane->open));
  flush_all();
  file_.finish_track(track_, events_, first_, last_);
}

}  // namespace stepscope
