// Merges what begins in one pixel of a lane, level by level.
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
constexpr size_t kMostQueued = 8;                   // lots of events that wait for the thread
constexpr uint64_t kExact = uint64_t{1} << 52;

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

void NameTimes::add_other(uint32_t name, uint8_t kind, int64_t time, size_t& held, size_t most) {
  if (slots_.empty()) {
    for (last_ = 0; last_ < entries_.size() && entries_[last_].name != name;) ++last_;
  } else {
    const uint32_t found = slots_[slot(name)];
    last_ = found ? found - 1 : entries_.size();
  }
  if (last_ < entries_.size()) {
    entries_[last_].time = saturating_add(entries_[last_].time, time);
    return;
  }
  if (held >= most) return;
  ++held;
  entries_.push_back({name, kind, time});
  if (slots_.empty() ? entries_.size() > kFewNames : entries_.size() * 2 > slots_.size())
    grow();
  else if (!slots_.empty())
    slots_[slot(name)] = static_cast<uint32_t>(entries_.size());
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

// ---- handing over

LaneMerger::LaneMerger(TimelineFile& file, size_t track, size_t mergers, size_t few)
    : file_(file),
      track_(track),
      pixel_ns_(file.pixel_ns()),
      pixel_inverse_(std::numeric_limits<uint64_t>::max() / static_cast<uint64_t>(file.pixel_ns()) + 1),
      most_boxes_(kMostHeldBoxes / mergers),
      most_names_(kMostHeldNames / mergers),
      few_(few) {}

LaneMerger::~LaneMerger() {
  {
    const std::lock_guard<std::mutex> hold(lock_);
    given_up_ = true;
  }
  changed_.notify_all();
  if (worker_.joinable()) worker_.join();
}

void LaneMerger::hand_over() {
  handed_over_ += gathered_.size();
  if (!worker_.joinable() && handed_over_ <= few_) {
    work(gathered_);
    gathered_.clear();
    return;
  }
  std::unique_lock<std::mutex> hold(lock_);
  if (!worker_.joinable()) worker_ = std::thread([this] { work_all(); });
  changed_.wait(hold, [this] { return queue_.size() < kMostQueued || failed_; });
  if (failed_) std::rethrow_exception(failed_);
  queue_.push_back(std::exchange(gathered_, {}));
  gathered_.reserve(kHandedOver);
  changed_.notify_all();
}

void LaneMerger::end() {
  hand_over();
  if (!worker_.joinable()) return close_all();
  {
    const std::lock_guard<std::mutex> hold(lock_);
    ended_ = true;
  }
  changed_.notify_all();
}

void LaneMerger::finish() {
  if (worker_.joinable()) worker_.join();
  if (failed_) std::rethrow_exception(failed_);
}

void LaneMerger::work_all() {
  std::unique_lock<std::mutex> hold(lock_);
  try {
    while (true) {
      changed_.wait(hold, [this] { return !queue_.empty() || ended_ || given_up_; });
      if (given_up_) return;
      if (queue_.empty()) break;
      const std::vector<Given> some = std::move(queue_.front());
      queue_.pop_front();
      hold.unlock();
      changed_.notify_all();
      work(some);
      hold.lock();
    }
    hold.unlock();
    close_all();
  } catch (...) {
    if (!hold.owns_lock()) hold.lock();
    failed_ = std::current_exception();
    changed_.notify_all();
  }
}

void LaneMerger::work(const std::vector<Given>& some) {
  for (const auto& [lane, event] : some) {
    if (!lane->begun) lane->begun = true, lanes_.push_back(lane);
    add_event(*lane, event);
  }
}

void LaneMerger::close_all() {
  for (MergedLane* lane : lanes_)
    while (lane->open) close(*lane, std::countr_zero(lane->open));
  flush_all();
}

// ---- levels

// The pixel of level 1 that a time is in. A product is enough where its error is below one part of a pixel, and that is
// so for widths up to 2^12 ns and times up to 2^52 ns; it takes a tenth of a division.
int64_t LaneMerger::pixel_of(int64_t time) const {
  if (static_cast<uint64_t>(time) < (pixel_inverse_ ? kExact : 0)) return static_cast<int64_t>(static_cast<unsigned __int128>(time) * pixel_inverse_ >> 64);
  return time / pixel_ns_ - (time % pixel_ns_ < 0);
}

void LaneMerger::add_event(MergedLane& lane, const Box& event) {
  int own = 0;  // the highest level at which it is as wide as a pixel
  for (int64_t width = pixel_ns_; own < kTopLevel && event.dur >= width; width <<= 2) ++own;
  // It ends after its pixel: nothing else will begin there.
  for (uint32_t of = (uint32_t{2} << own) - 2, open; (open = lane.open & of) != 0;) close(lane, std::countr_zero(open));
  const int64_t end = saturating_add(event.start, event.dur);
  const int64_t busy = std::max<int64_t>(0, end - std::max(event.start, lane.end));
  lane.end = std::max(lane.end, end);
  if (own == kTopLevel)
    put(lane, own, event);
  else
    merge(lane, own + 1, pixel_of(event.start) >> (2 * own), {event, busy, end, event.dur, nullptr, 0});
}

// Adds an event, or what was merged at the level below, to what begins in the same pixel.
void LaneMerger::merge(MergedLane& lane, int level, int64_t pixel, const Piece& piece) {
  MergedLane::Merging& all = lane.merging[static_cast<size_t>(level)];
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
    all.names.add(all.box.name, all.box.kind, all.box.dur, held_names_, most_names_);
  }
  if (piece.box.count == 1) {
    put(lane, level - 1, piece.box);
    all.names.add(piece.box.name, piece.box.kind, piece.box.dur, held_names_, most_names_);
  }
  add_names(all, piece);
  all.busy += piece.busy, all.box.count += piece.box.count;
  all.end = std::max(all.end, piece.end);
  if (piece.longest > all.longest) all.longest = piece.longest, all.box.event = piece.box.event;
}

void LaneMerger::add_names(MergedLane::Merging& all, const Piece& piece) {
  for (size_t i = 0; i < piece.count; ++i)
    all.names.add(piece.names[i].name, piece.names[i].kind, piece.names[i].time, held_names_, most_names_);
}

// What began in a pixel is complete. An event that is alone there is a box of its own at this level, too.
void LaneMerger::close(MergedLane& lane, int level) {
  MergedLane::Merging& all = lane.merging[static_cast<size_t>(level)];
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

void LaneMerger::put(MergedLane& lane, int list, const Box& box) {
  auto& waiting = lane.waiting[static_cast<size_t>(list)];
  const size_t room = waiting.capacity();
  waiting.push_back(box);
  held_boxes_ += waiting.capacity() - room;
  if (waiting.size() == kChunkBoxes) {
    flush(lane, list);
    waiting.reserve(kChunkBoxes);  // more will come
    held_boxes_ += waiting.capacity();
  } else if (held_boxes_ > most_boxes_) {
    flush_all();
  }
}

void LaneMerger::flush(MergedLane& lane, int list) {
  auto& waiting = lane.waiting[static_cast<size_t>(list)];
  held_boxes_ -= waiting.capacity();
  std::vector<Box> boxes = std::exchange(waiting, {});
  if (!boxes.empty()) file_.append(track_, lane.group, lane.number, list, std::move(boxes));
}

void LaneMerger::flush_all() {
  for (MergedLane* lane : lanes_)
    for (int list = 0; list < kBoxLists; ++list) flush(*lane, list);
}

}  // namespace stepscope
