// Merges what begins in one pixel of a lane, level by level.
#include <algorithm>
#include <bit>
#include <utility>

#include "timeline.hpp"

namespace stepscope {

namespace {

constexpr size_t kMostHeldBytes = 100'000'000;      // room for boxes that wait to be written
constexpr size_t kMostHeldNames = size_t{1} << 22;  // beyond these, names in one pixel do not count
constexpr size_t kManyNames = 256;                  // the room for more is not kept
constexpr size_t kMostQueued = 1 << 14;             // events that wait for the thread
constexpr size_t kMostSpare = 16;                   // lots of events whose room is kept
constexpr size_t kWritten = 1 << 18;                // bytes that are written at once
constexpr size_t kMostMergers = 5;                  // with more, the reading sets the pace
constexpr size_t kFewestMergers = 2;                // they do half of the work: one alone would keep two cores waiting
constexpr size_t kFewEvents = 1 << 16;              // for fewer a thread would not pay
constexpr uint64_t kExact = uint64_t{1} << 52;

size_t hash_of(uint32_t name) { return static_cast<size_t>((name * 0x9e3779b97f4a7c15u) >> 32); }

}  // namespace

// ---- names

// Short lists use the first slots alone, which stay in the cache.
void NameSlots::begin(size_t names) {
  const size_t used = std::bit_ceil(2 * names);
  if (slots_.size() < used) slots_.assign(used, Slot{});
  if (++list_ == 0) slots_.assign(slots_.size(), Slot{}), list_ = 1;
  last_ = used - 1;
}

uint32_t NameSlots::place_of(uint32_t name, uint32_t place) {
  size_t at = hash_of(name) & last_;
  for (; slots_[at].list == list_; at = (at + 1) & last_)
    if (slots_[at].name == name) return slots_[at].place;
  slots_[at] = {list_, name, place};
  return place;
}

void NameTimes::settle(NameSlots& slots, size_t& held) {
  if (entries_.size() <= 2) return;  // one name does not follow itself
  slots.begin(entries_.size());
  size_t settled = 0;
  for (const Entry entry : entries_) {
    const uint32_t place = slots.place_of(entry.name, static_cast<uint32_t>(settled));
    if (place == settled)
      entries_[settled++] = entry;
    else
      entries_[place].time = saturating_add(entries_[place].time, entry.time);
  }
  held -= entries_.size() - settled;
  entries_.resize(settled);
  room_ = std::max(kRoom, 2 * settled);
}

void NameTimes::add_all(const NameTimes& other, NameSlots& slots, size_t& held, size_t most) {
  if (other.entries_.empty()) return;
  auto next = other.entries_.begin();
  add(next->name, next->kind, next->time, slots, held, most), ++next;
  const auto more = static_cast<size_t>(other.entries_.end() - next);
  if (entries_.size() + more <= room_ && held + more <= most) {
    entries_.insert(entries_.end(), next, other.entries_.end());
    held += more;
    return;
  }
  for (; next != other.entries_.end(); ++next) add(next->name, next->kind, next->time, slots, held, most);
}

void NameTimes::clear_all(size_t& held) {
  held -= entries_.size();
  if (entries_.size() > kManyNames)
    std::vector<Entry>().swap(entries_);
  else
    entries_.clear();
  room_ = kRoom;
}

void NameTimes::tell_most(Box& box) const {
  const Entry* most = nullptr;
  for (const Entry& entry : entries_)
    if (!most || entry.time > most->time) most = &entry;
  if (most) box.name = most->name, box.kind = most->kind;
}

// ---- one level

void FineMerger::add(const Box& event) {
  if (event.dur >= width_) {
    close();
    boxes_.push_back(event);
    return;
  }
  const int64_t pixel = event.start / width_ - (event.start % width_ < 0);
  if (box_.count && pixel != pixel_) close();
  const int64_t end = saturating_add(event.start, event.dur);
  if (!box_.count) {
    box_ = event, pixel_ = pixel, end_ = end, longest_ = event.dur;
    return;
  }
  if (box_.count == 1) names_.add(box_.name, box_.kind, box_.dur, slots_, held_, kMostHeldNames);
  names_.add(event.name, event.kind, event.dur, slots_, held_, kMostHeldNames);
  box_.busy = saturating_add(box_.busy, event.busy), ++box_.count;
  end_ = std::max(end_, end);
  if (event.dur > longest_) longest_ = event.dur, box_.event = event.event;
}

void FineMerger::close() {
  if (!box_.count) return;
  if (box_.count > 1) {
    // It wraps around where a file was written to deceive.
    box_.dur = static_cast<int64_t>(static_cast<uint64_t>(end_) - static_cast<uint64_t>(box_.start));
    names_.settle(slots_, held_);
    names_.tell_most(box_);
    names_.clear(held_);
  }
  boxes_.push_back(box_);
  box_.count = 0;
}

// ---- handing over

LaneMergers::LaneMergers(TimelineFile& file, size_t events, size_t threads) : file_(file) {
  if (!threads && events > kFewEvents) threads = std::clamp<size_t>(std::thread::hardware_concurrency() / 3, kFewestMergers, kMostMergers);
  const size_t mergers = std::max<size_t>(threads, 1);
  for (size_t lane = 0; lane < kMostLanes; ++lane) of_lane_[lane] = static_cast<uint8_t>(lane % mergers);
  while (mergers_.size() < mergers) mergers_.push_back(std::make_unique<LaneMerger>(file, mergers, threads > 0));
}

void LaneMergers::finish() {
  for (auto& merger : mergers_) merger->end();
  for (auto& merger : mergers_) merger->finish();
}

LaneMerger::LaneMerger(TimelineFile& file, size_t mergers, bool threaded)
    : file_(file),
      pixel_ns_(file.pixel_ns()),
      narrow_(file.pixel_ns() << (2 * kFineLevels)),
      pixel_inverse_(std::numeric_limits<uint64_t>::max() / static_cast<uint64_t>(file.pixel_ns()) + 1),
      most_bytes_(kMostHeldBytes / mergers),
      most_names_(kMostHeldNames / mergers),
      bytes_(std::make_unique_for_overwrite<char[]>(kWritten + kMostChunkBytes)) {
  if (threaded) worker_ = std::thread([this] { work_all(); });
}

LaneMerger::~LaneMerger() {
  {
    const std::lock_guard<std::mutex> hold(lock_);
    given_up_ = true;
  }
  given_.notify_one();
  if (worker_.joinable()) worker_.join();
}

std::vector<LaneEvent> LaneMerger::spare() {
  const std::lock_guard<std::mutex> hold(lock_);
  if (spare_.empty()) return {};
  std::vector<LaneEvent> room = std::move(spare_.back());
  spare_.pop_back();
  return room;
}

void LaneMerger::hand_over(Lot lot) {
  if (!worker_.joinable()) return work(lot);
  std::unique_lock<std::mutex> hold(lock_);
  taken_.wait(hold, [this] { return queued_ < kMostQueued || failed_; });
  if (failed_) std::rethrow_exception(failed_);
  queued_ += lot.events.size();
  queue_.push_back(std::move(lot));
  given_.notify_one();
}

void LaneMerger::end() {
  {
    const std::lock_guard<std::mutex> hold(lock_);
    ended_ = true;
  }
  given_.notify_one();
}

void LaneMerger::finish() {
  if (worker_.joinable()) worker_.join();
  if (failed_) std::rethrow_exception(failed_);
}

void LaneMerger::work_all() {
  std::unique_lock<std::mutex> hold(lock_);
  try {
    while (true) {
      given_.wait(hold, [this] { return !queue_.empty() || ended_ || given_up_; });
      if (given_up_ || queue_.empty()) return;
      Lot lot = std::move(queue_.front());
      queue_.pop_front();
      hold.unlock();
      work(lot);
      hold.lock();
      queued_ -= lot.events.size();
      lot.events.clear();
      if (spare_.size() < kMostSpare) spare_.push_back(std::move(lot.events));
      taken_.notify_one();
    }
  } catch (...) {
    if (!hold.owns_lock()) hold.lock();
    failed_ = std::current_exception();
    taken_.notify_all();
  }
}

MergedLane& LaneMerger::begin_lane(TrackLanes& of, const LaneEvent& event) {
  auto& lanes = of.groups[event.group];
  if (lanes.size() <= event.lane) lanes.resize(event.lane + size_t{1});
  lanes[event.lane] = std::make_unique<MergedLane>();
  lanes[event.lane]->group = event.group, lanes[event.lane]->number = event.lane;
  return *lanes[event.lane];
}

void LaneMerger::work(const Lot& lot) {
  TrackLanes& of = *lot.of;
  if (!std::exchange(of.begun, true)) tracks_.push_back(lot.of);
  for (const LaneEvent& event : lot.events) {
    const auto& lanes = of.groups[event.group];  // those of other mergers are null
    MergedLane& lane = event.lane < lanes.size() && lanes[event.lane] ? *lanes[event.lane] : begin_lane(of, event);
    if (!add_narrow(of, lane, event)) add_event(of, lane, event);
  }
  if (lot.end) end_track(lot);
}

void LaneMerger::end_track(const Lot& lot) {
  TrackLanes& of = *lot.of;
  for (auto& group : of.groups) {
    for (auto& lane : group) {
      if (!lane) continue;
      while (lane->open) close(of, *lane, std::countr_zero(lane->open));
      flush_lane(of, *lane);
    }
    group.clear();
  }
  write();
  tracks_.erase(std::find(tracks_.begin(), tracks_.end(), lot.of));
  if (--lot.end->mergers == 0) file_.finish_track(of.track, lot.end->events, lot.end->first, lot.end->last);
}

// ---- levels

// The pixel of level 1 that a time is in. A product is enough where its error is below one part of a pixel, and that is
// so for widths up to 2^12 ns and times up to 2^52 ns; it takes a tenth of a division.
int64_t LaneMerger::pixel_of(int64_t time) const {
  if (static_cast<uint64_t>(time) < (pixel_inverse_ ? kExact : 0)) return static_cast<int64_t>(static_cast<unsigned __int128>(time) * pixel_inverse_ >> 64);
  return time / pixel_ns_ - (time % pixel_ns_ < 0);
}

namespace {

LaneEvent single(const MergedLane& lane, const Box& box) { return {box.start, box.dur, box.event, box.name, box.kind, lane.group, lane.number}; }

}  // namespace

// What most events are: narrower than any pixel that boxes are kept for, and one more of several.
inline bool LaneMerger::add_narrow(TrackLanes& of, MergedLane& lane, const LaneEvent& event) {
  constexpr size_t kLevel = kFineLevels + 1;
  MergedLane::Merging& all = lane.merging[kLevel];
  if (event.dur >= narrow_ || all.box.count < 2 || !(lane.open >> kLevel & 1) || lane.number == kMostLanes - 1) return false;
  if (all.pixel != pixel_of(event.start) >> (2 * kFineLevels)) return false;
  const int64_t end = saturating_add(event.start, event.dur);
  all.busy += std::max<int64_t>(0, end - std::max(event.start, lane.end)), ++all.box.count;
  lane.end = std::max(lane.end, end), all.end = std::max(all.end, end);
  if (event.dur > all.longest) all.longest = event.dur, all.box.event = event.event;
  all.names.add(event.name, event.kind, event.dur, slots_, held_names_, most_names_);
  put(of, lane, kFineLevels, lane.events[kFineLevels], event);
  return true;
}

void LaneMerger::add_event(TrackLanes& of, MergedLane& lane, const LaneEvent& event) {
  int own = lane.number < kMostLanes - 1 ? kFineLevels : 0;  // the highest level at which it is as wide as a pixel, or a fine one
  for (int64_t width = pixel_ns_ << (2 * own); own < kTopLevel && event.dur >= width; width <<= 2) ++own;
  // It ends after its pixel: nothing else will begin there.
  for (uint32_t below = (uint32_t{2} << own) - 2, open; (open = lane.open & below) != 0;) close(of, lane, std::countr_zero(open));
  const int64_t end = saturating_add(event.start, event.dur);
  const int64_t busy = std::max<int64_t>(0, end - std::max(event.start, lane.end));
  lane.end = std::max(lane.end, end);
  if (own == kTopLevel) return put(of, lane, own, lane.events[kTopLevel], event);
  const Box box{event.start, event.dur, event.dur, event.event, event.name, 1, event.kind};
  merge(of, lane, own + 1, pixel_of(event.start) >> (2 * own), {box, busy, end, event.dur, nullptr});
}

// Adds an event, or what was merged at the level below, to what begins in the same pixel.
void LaneMerger::merge(TrackLanes& of, MergedLane& lane, int level, int64_t pixel, const Piece& piece) {
  const auto at = static_cast<size_t>(level);
  MergedLane::Merging& all = lane.merging[at];
  const uint32_t bit = uint32_t{1} << level;
  if ((lane.open & bit) && all.pixel != pixel) close(of, lane, level);
  if (!(lane.open & bit)) {
    lane.open |= bit;
    all.pixel = pixel, all.box = piece.box, all.busy = piece.busy, all.end = piece.end, all.longest = piece.longest;
    if (piece.names) all.names.swap(*piece.names);  // none are here yet
    return;
  }
  // Events that were alone up to the level below are not from here on.
  if (all.box.count == 1) {
    put(of, lane, level - 1, lane.events[at - 1], single(lane, all.box));
    all.names.add(all.box.name, all.box.kind, all.box.dur, slots_, held_names_, most_names_);
  }
  if (piece.box.count == 1) {
    put(of, lane, level - 1, lane.events[at - 1], single(lane, piece.box));
    all.names.add(piece.box.name, piece.box.kind, piece.box.dur, slots_, held_names_, most_names_);
  }
  if (piece.names) all.names.add_all(*piece.names, slots_, held_names_, most_names_);
  all.busy += piece.busy, all.box.count += piece.box.count;
  all.end = std::max(all.end, piece.end);
  if (piece.longest > all.longest) all.longest = piece.longest, all.box.event = piece.box.event;
}

// What began in a pixel is complete. An event that is alone there is a box of its own at this level, too.
void LaneMerger::close(TrackLanes& of, MergedLane& lane, int level) {
  const auto at = static_cast<size_t>(level);
  MergedLane::Merging& all = lane.merging[at];
  lane.open &= ~(uint32_t{1} << level);
  if (all.box.count > 1) {
    all.box.dur = all.end - all.box.start, all.box.busy = all.busy;
    all.names.settle(slots_, held_names_);
    all.names.tell_most(all.box);
    put(of, lane, kTopLevel + level, lane.boxes[at], all.box);
  } else if (level == kTopLevel) {
    put(of, lane, level, lane.events[at], single(lane, all.box));
  }
  if (level < kTopLevel) merge(of, lane, level + 1, all.pixel >> 2, {all.box, all.busy, all.end, all.longest, &all.names});
  all.names.clear(held_names_);
}

// ---- writing

template <class T>
void LaneMerger::put(TrackLanes& of, MergedLane& lane, int list, std::vector<T>& waiting, const T& box) {
  if (waiting.size() == waiting.capacity()) return put_in_more_room(waiting, box);
  waiting.push_back(box);
  if (waiting.size() == kChunkBoxes) flush(of, lane, list, waiting);
}

template <class T>
void LaneMerger::put_in_more_room(std::vector<T>& waiting, const T& box) {
  const size_t room = waiting.capacity();
  waiting.reserve(std::min(kChunkBoxes, std::max<size_t>(4, room * 2)));
  held_bytes_ += (waiting.capacity() - room) * sizeof(T);
  waiting.push_back(box);
  if (held_bytes_ > most_bytes_) flush_all();
}

// Its room is kept: more will come.
template <class T>
void LaneMerger::flush(TrackLanes& of, MergedLane& lane, int list, std::vector<T>& waiting) {
  if (waiting.empty()) return;
  written_.push_back({of.track, lane.group, lane.number, list, encode(bytes_.get() + size_, waiting)});
  size_ += bytes_of(written_.back().chunk);
  waiting.clear();
  if (size_ >= kWritten) write();
}

void LaneMerger::flush_lane(TrackLanes& of, MergedLane& lane) {
  const auto all = [&](auto& lists, int from) {
    for (size_t at = 0; at < lists.size(); ++at) {
      auto& waiting = lists[at];
      flush(of, lane, from + static_cast<int>(at), waiting);
      held_bytes_ -= waiting.capacity() * sizeof(waiting[0]);
      std::decay_t<decltype(waiting)>().swap(waiting);
    }
  };
  all(lane.events, 0);
  all(lane.boxes, kTopLevel);
}

void LaneMerger::flush_all() {
  for (const auto& track : tracks_)
    for (auto& group : track->groups)
      for (auto& lane : group)
        if (lane) flush_lane(*track, *lane);
}

void LaneMerger::write() {
  if (written_.empty()) return;
  file_.append(bytes_.get(), size_, written_);
  size_ = 0, written_.clear();
}

}  // namespace stepscope
