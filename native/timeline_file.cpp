#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "timeline.hpp"

namespace stepscope {

namespace {

// How the boxes of a chunk are written, column after column: names, starts, durations, events, then counts and busy times.
enum Form : uint32_t {
  kSingle,  // differences of four bytes, all of one event
  kMerged,  // the same, with counts and busy times
  kWide,    // whole numbers
  kForms,
};
constexpr size_t kBytes[kForms] = {16, 24, 41};  // of a box
constexpr uint32_t kNameBits = 28, kNarrowName = (1u << kNameBits) - 1;
constexpr size_t kMostAppended = 128;  // chunks that wait while as many are written: 6 MB together
constexpr uint64_t kNarrow = std::numeric_limits<uint32_t>::max();

uint64_t sum_of(const char* bytes, size_t size) {
  uint64_t sum = size * 0x9e3779b97f4a7c15u;
  for (size_t at = 0; at < size; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, std::min<size_t>(8, size - at));
    sum = (sum ^ word) * 0xbf58476d1ce4e5b9u;
    sum ^= sum >> 31;
  }
  return sum;
}

bool is_narrow(uint64_t value) { return value < kNarrow; }

Form form_of(const std::vector<Box>& boxes, int64_t event_from) {
  Form form = kSingle;
  for (const Box& box : boxes) {
    const uint64_t after = static_cast<uint64_t>(box.start) - static_cast<uint64_t>(boxes[0].start);
    const uint64_t number = static_cast<uint64_t>(box.event) - static_cast<uint64_t>(event_from);
    if (!is_narrow(after) || !is_narrow(number) || !is_narrow(static_cast<uint64_t>(box.dur)) || !is_narrow(static_cast<uint64_t>(box.busy)) ||
        (box.name >= kNarrowName && box.name != kNoName))
      return kWide;
    if (box.count != 1) form = kMerged;
  }
  return form;
}

template <class T, class Of>
void put_column(std::string& out, const std::vector<Box>& boxes, Of of) {
  const size_t at = out.size();
  out.resize(at + boxes.size() * sizeof(T));
  char* to = out.data() + at;
  for (const Box& box : boxes) {
    const T value = static_cast<T>(of(box));
    std::memcpy(to, &value, sizeof(T));
    to += sizeof(T);
  }
}

void encode(std::string& out, const std::vector<Box>& boxes, Form form, int64_t event_from) {
  if (form == kWide) {
    put_column<uint32_t>(out, boxes, [](const Box& box) { return box.name; });
    put_column<int64_t>(out, boxes, [](const Box& box) { return box.start; });
    put_column<int64_t>(out, boxes, [](const Box& box) { return box.dur; });
    put_column<int64_t>(out, boxes, [](const Box& box) { return box.event; });
    put_column<uint32_t>(out, boxes, [](const Box& box) { return box.count; });
    put_column<int64_t>(out, boxes, [](const Box& box) { return box.busy; });
    put_column<uint8_t>(out, boxes, [](const Box& box) { return box.kind; });
    return;
  }
  const int64_t from = boxes[0].start;
  put_column<uint32_t>(out, boxes, [](const Box& box) { return (box.name == kNoName ? kNarrowName : box.name) | uint32_t{box.kind} << kNameBits; });
  put_column<uint32_t>(out, boxes, [from](const Box& box) { return box.start - from; });
  put_column<uint32_t>(out, boxes, [](const Box& box) { return box.dur; });
  put_column<uint32_t>(out, boxes, [event_from](const Box& box) { return box.event - event_from; });
  if (form == kSingle) return;
  put_column<uint32_t>(out, boxes, [](const Box& box) { return box.count; });
  put_column<uint32_t>(out, boxes, [](const Box& box) { return box.busy; });
}

template <class T, class To>
const char* take_column(const char* from, std::vector<Box>& boxes, To to) {
  for (Box& box : boxes) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    to(box, value);
    from += sizeof(T);
  }
  return from;
}

// Numbers wrap around where a file was written to deceive: what comes out is wrong, not undefined.
int64_t plus(int64_t a, uint32_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) + b); }

void decode(const char* at, const BoxChunk& chunk, std::vector<Box>& boxes) {
  boxes.resize(chunk.boxes);
  if (chunk.form == kWide) {
    at = take_column<uint32_t>(at, boxes, [](Box& box, uint32_t value) { box.name = value; });
    at = take_column<int64_t>(at, boxes, [](Box& box, int64_t value) { box.start = value; });
    at = take_column<int64_t>(at, boxes, [](Box& box, int64_t value) { box.dur = value; });
    at = take_column<int64_t>(at, boxes, [](Box& box, int64_t value) { box.event = value; });
    at = take_column<uint32_t>(at, boxes, [](Box& box, uint32_t value) { box.count = value; });
    at = take_column<int64_t>(at, boxes, [](Box& box, int64_t value) { box.busy = value; });
    take_column<uint8_t>(at, boxes, [](Box& box, uint8_t value) { box.kind = value; });
    return;
  }
  at = take_column<uint32_t>(at, boxes, [](Box& box, uint32_t value) {
    const uint32_t name = value & kNarrowName;
    box.name = name == kNarrowName ? kNoName : name, box.kind = static_cast<uint8_t>(value >> kNameBits), box.count = 1;
  });
  at = take_column<uint32_t>(at, boxes, [&chunk](Box& box, uint32_t value) { box.start = plus(chunk.first, value); });
  at = take_column<uint32_t>(at, boxes, [](Box& box, uint32_t value) { box.dur = box.busy = value; });
  at = take_column<uint32_t>(at, boxes, [&chunk](Box& box, uint32_t value) { box.event = plus(chunk.event_from, value); });
  if (chunk.form == kSingle) return;
  at = take_column<uint32_t>(at, boxes, [](Box& box, uint32_t value) { box.count = value; });
  take_column<uint32_t>(at, boxes, [](Box& box, uint32_t value) { box.busy = value; });
}

size_t bytes_of(const BoxChunk& chunk) { return kBytes[chunk.form] * chunk.boxes; }

struct OnLane {
  size_t lane;
  Box box;
};

// The bytes of a tile; its boxes are sorted.
std::string tile_bytes(const std::vector<OnLane>& boxes, size_t lanes, int level) {
  std::string out;
  out.reserve(16 + boxes.size() * 43);
  const uint32_t head[4] = {static_cast<uint32_t>(boxes.size()), static_cast<uint32_t>(lanes), static_cast<uint32_t>(level), 0};
  out.append(reinterpret_cast<const char*>(head), sizeof head);
  const auto column = [&out, &boxes](auto of) {
    using T = decltype(of(boxes[0]));
    const size_t at = out.size();
    out.resize(at + boxes.size() * sizeof(T));
    char* to = out.data() + at;
    for (const OnLane& one : boxes) {
      const T value = of(one);
      std::memcpy(to, &value, sizeof(T));
      to += sizeof(T);
    }
  };
  column([](const OnLane& one) { return static_cast<double>(one.box.start); });
  column([](const OnLane& one) { return static_cast<double>(one.box.dur); });
  column([](const OnLane& one) { return static_cast<double>(one.box.busy); });
  column([](const OnLane& one) { return static_cast<double>(one.box.event); });
  column([](const OnLane& one) { return one.box.name; });
  column([](const OnLane& one) { return one.box.count; });
  column([](const OnLane& one) { return static_cast<uint16_t>(one.lane); });
  column([](const OnLane& one) { return one.box.kind; });
  return out;
}

size_t lanes_of(const BoxTrack& track) {
  size_t lanes = 0;
  for (const auto& group : track.groups) lanes += group.size();
  return lanes;
}

}  // namespace

TimelineFile::TimelineFile(int file, int64_t pixel_ns, int64_t tile_pixels)
    : file_(dup(file)), pixel_ns_(pixel_ns), tile_pixels_(tile_pixels) {
  if (file_ < 0) throw std::system_error(errno, std::generic_category());
  if (pixel_ns < 1 || pixel_ns > 4096 || tile_pixels < 1 || tile_pixels > 4096) throw std::invalid_argument("no such pixels");
}

TimelineFile::~TimelineFile() {
  {
    const std::lock_guard<std::mutex> hold(queue_lock_);
    ending_ = true;
  }
  given_.notify_all();
  if (writer_.joinable()) writer_.join();
  close(file_);
}

// ---- writing

size_t TimelineFile::begin_track(int32_t id) {
  const std::lock_guard<std::mutex> hold(lock_);
  tracks_.emplace_back();
  tracks_.back().id = id;
  return tracks_.size() - 1;
}

void TimelineFile::write(const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t written = pwrite(file_, bytes.data() + at, bytes.size() - at, end_ + static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw std::system_error(written < 0 ? errno : ENOSPC, std::generic_category());
    at += static_cast<size_t>(written);
  }
}

void TimelineFile::append(size_t track, int group, size_t lane, int list, std::vector<Box> boxes) {
  std::unique_lock<std::mutex> hold(queue_lock_);
  if (!writer_.joinable()) writer_ = std::thread([this] { write_all(); });
  taken_.wait(hold, [this] { return queue_.size() < kMostAppended || failed_; });
  if (failed_) std::rethrow_exception(failed_);
  queue_.push_back({track, group, lane, list, std::move(boxes)});
  if (queue_.size() == 1) given_.notify_one();  // it sleeps only while there is nothing
}

void TimelineFile::write_all() {
  std::vector<Appended> some;
  std::unique_lock<std::mutex> hold(queue_lock_);
  while (true) {
    given_.wait(hold, [this] { return !queue_.empty() || ending_; });
    if (ending_) return;
    some.swap(queue_);
    writing_ = true;
    hold.unlock();
    taken_.notify_all();
    std::exception_ptr failed;
    try {
      write_chunks(some);
    } catch (...) {
      failed = std::current_exception();
    }
    some.clear();
    hold.lock();
    writing_ = false;
    if (failed) failed_ = failed, queue_.clear();
    taken_.notify_all();
    if (failed) return;
  }
}

// Waits until all is written.
void TimelineFile::drain() {
  std::unique_lock<std::mutex> hold(queue_lock_);
  taken_.wait(hold, [this] { return (queue_.empty() && !writing_) || failed_; });
  if (failed_) std::rethrow_exception(failed_);
}

// Writes chunks at once, then tells where they lie.
void TimelineFile::write_chunks(const std::vector<Appended>& some) {
  std::string bytes;
  std::vector<BoxChunk> chunks;
  for (const auto& [track, group, lane, list, boxes] : some) {
    const auto at = end_ + static_cast<int64_t>(bytes.size());
    BoxChunk chunk{boxes.front().start, kNull, at, boxes.front().event, 0, static_cast<uint32_t>(boxes.size()), 0};
    for (const Box& box : boxes) {
      chunk.event_from = std::min(chunk.event_from, box.event);
      chunk.last_end = std::max(chunk.last_end, saturating_add(box.start, box.dur));
    }
    const Form form = form_of(boxes, chunk.event_from);
    chunk.form = form;
    const size_t from = bytes.size();
    encode(bytes, boxes, form, chunk.event_from);
    chunk.sum = sum_of(bytes.data() + from, bytes.size() - from);
    chunks.push_back(chunk);
  }
  write(bytes);
  const std::lock_guard<std::mutex> hold(lock_);
  end_ += static_cast<int64_t>(bytes.size());
  for (size_t i = 0; i < some.size(); ++i) {
    auto& lanes = tracks_.at(some[i].track).groups.at(static_cast<size_t>(some[i].group));
    if (lanes.size() <= some[i].lane) lanes.resize(some[i].lane + 1);
    auto& known = lanes[some[i].lane].lists.at(static_cast<size_t>(some[i].list));
    if (!known.empty()) chunks[i].last_end = std::max(chunks[i].last_end, known.back().last_end);
    known.push_back(chunks[i]);
  }
}

void TimelineFile::finish_track(size_t track, int64_t events, int64_t first, int64_t last) {
  drain();
  const std::lock_guard<std::mutex> hold(lock_);
  BoxTrack& one = tracks_.at(track);
  one.done = true, one.events = events, one.first = first, one.last = last;
}

// ---- reading

std::vector<TimelineFile::About> TimelineFile::tracks() const {
  const std::lock_guard<std::mutex> hold(lock_);
  std::vector<About> found;
  for (const BoxTrack& one : tracks_) found.push_back({one.id, one.done, lanes_of(one), one.events, one.first, one.last});
  return found;
}

void TimelineFile::read(const BoxChunk& chunk, std::vector<Box>& boxes) const {
  char room[kChunkBoxes * kBytes[kWide]];
  const size_t size = bytes_of(chunk);
  for (size_t at = 0; at < size;) {
    const ssize_t got = pread(file_, room + at, size - at, chunk.offset + static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::system_error(errno, std::generic_category());
    if (got == 0) throw DamagedTimeline("it is cut short");
    at += static_cast<size_t>(got);
  }
  if (sum_of(room, size) != chunk.sum) throw DamagedTimeline("it is not as it was written");
  decode(room, chunk, boxes);
}

// By lane the chunks that may have boxes between two times.
std::vector<std::vector<BoxChunk>> TimelineFile::chunks_of(const BoxTrack& track, int level, int64_t from, int64_t to) const {
  std::vector<std::vector<BoxChunk>> found;
  const auto take = [&](const std::vector<BoxChunk>& chunks) {
    auto at = std::partition_point(chunks.begin(), chunks.end(), [from](const BoxChunk& chunk) { return chunk.last_end < from; });
    for (; at != chunks.end() && at->first < to; ++at) found.back().push_back(*at);
  };
  for (const auto& group : track.groups)
    for (const BoxLane& lane : group) {
      found.emplace_back();
      for (int list = level; list <= kTopLevel; ++list) take(lane.lists[static_cast<size_t>(list)]);
      if (level > 0) take(lane.lists[static_cast<size_t>(kTopLevel + level)]);
    }
  return found;
}

std::string TimelineFile::tile(int32_t track, int level, int64_t index) const {
  if (level < 0 || level > kTopLevel) throw std::invalid_argument("no such level");
  const int64_t width = (pixel_ns_ * tile_pixels_) << (2 * (std::max(level, 1) - 1));
  int64_t from, to;
  std::vector<std::vector<BoxChunk>> lanes;
  if (!__builtin_mul_overflow(index, width, &from) && !__builtin_add_overflow(from, width, &to)) {
    const std::lock_guard<std::mutex> hold(lock_);
    const auto of = std::find_if(tracks_.begin(), tracks_.end(), [track](const BoxTrack& one) { return one.id == track; });
    if (of != tracks_.end()) lanes = chunks_of(*of, level, from, to);
  }
  std::vector<OnLane> boxes;
  std::vector<Box> some;
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    const auto first = static_cast<ptrdiff_t>(boxes.size());
    for (const BoxChunk& chunk : lanes[lane]) {
      read(chunk, some);
      for (const Box& box : some)
        if (box.start < to && (box.start >= from || saturating_add(box.start, box.dur) > from)) boxes.push_back({lane, box});
    }
    const auto by_start = [](const OnLane& a, const OnLane& b) { return a.box.start < b.box.start; };
    if (!std::is_sorted(boxes.begin() + first, boxes.end(), by_start)) std::stable_sort(boxes.begin() + first, boxes.end(), by_start);
  }
  return tile_bytes(boxes, lanes.size(), level);
}

// All chunks of events that may have one from a time on, or up to it, nearest first.
std::vector<TimelineFile::Place> TimelineFile::places(int64_t start, bool back) const {
  const std::lock_guard<std::mutex> hold(lock_);
  std::vector<Place> found;
  for (const BoxTrack& track : tracks_) {
    size_t number = 0;
    for (const auto& group : track.groups)
      for (const BoxLane& lane : group) {
        for (size_t list = 0; list <= kTopLevel; ++list)
          for (const BoxChunk& chunk : lane.lists[list])
            if (back ? chunk.first <= start : chunk.last_end >= start) found.push_back({chunk, track.id, number});
        ++number;
      }
  }
  std::sort(found.begin(), found.end(), [back](const Place& a, const Place& b) {
    return back ? a.chunk.last_end > b.chunk.last_end : a.chunk.first < b.chunk.first;
  });
  return found;
}

std::optional<TimelineFile::Found> TimelineFile::find(const std::vector<bool>& names, int64_t start, int64_t event, bool back) const {
  using Key = std::pair<int64_t, int64_t>;
  const Key here{start, event};
  std::optional<Found> best;
  std::vector<Box> boxes;
  for (const Place& place : places(start, back)) {
    if (best && (back ? place.chunk.last_end < best->box.start : place.chunk.first > best->box.start)) break;
    read(place.chunk, boxes);
    for (const Box& box : boxes) {
      if (box.name >= names.size() || !names[box.name]) continue;
      const Key key{box.start, box.event};
      if (back ? key >= here : key <= here) continue;
      if (best) {
        const Key known{best->box.start, best->box.event};
        if (back ? key <= known : key >= known) continue;
      }
      best = Found{place.track, place.lane, box};
    }
  }
  return best;
}

// ---- the index

namespace {

struct TrackRecord {
  int64_t id, events, first, last;
};
struct ChunkRecord {
  uint32_t track;
  uint16_t lane;
  uint8_t group, list;
  BoxChunk chunk;
};

template <class T>
void append_record(std::string& out, const T& record) {
  out.append(reinterpret_cast<const char*>(&record), sizeof record);
}

}  // namespace

std::string TimelineFile::index() const {
  const std::lock_guard<std::mutex> hold(lock_);
  std::string out;
  append_record(out, static_cast<uint64_t>(tracks_.size()));
  append_record(out, static_cast<uint64_t>(end_));
  for (const BoxTrack& track : tracks_) append_record(out, TrackRecord{track.id, track.events, track.first, track.last});
  for (uint32_t number = 0; number < tracks_.size(); ++number)
    for (uint8_t group = 0; group < kLaneGroups; ++group) {
      const auto& lanes = tracks_[number].groups[group];
      for (uint16_t lane = 0; lane < lanes.size(); ++lane)
        for (uint8_t list = 0; list < kBoxLists; ++list)
          for (const BoxChunk& chunk : lanes[lane].lists[list]) append_record(out, ChunkRecord{number, lane, group, list, chunk});
    }
  return out;
}

void TimelineFile::load(const char* bytes, size_t size) {
  const std::lock_guard<std::mutex> hold(lock_);
  const char* const end = bytes + size;
  const auto next = [&bytes, end](auto& record) {
    if (static_cast<size_t>(end - bytes) < sizeof record) throw DamagedTimeline("its index is cut short");
    std::memcpy(&record, bytes, sizeof record);
    bytes += sizeof record;
  };
  uint64_t count, total;
  next(count);
  next(total);
  if (count > size / sizeof(TrackRecord) || total > static_cast<uint64_t>(kFarthest)) throw DamagedTimeline("its index is impossible");
  std::vector<BoxTrack> tracks(count);
  for (BoxTrack& track : tracks) {
    TrackRecord record;
    next(record);
    track.id = static_cast<int32_t>(record.id), track.done = true, track.events = record.events, track.first = record.first, track.last = record.last;
  }
  uint64_t used = 0;
  while (bytes != end) {
    ChunkRecord one;
    next(one);
    const BoxChunk& chunk = one.chunk;
    if (one.track >= count || one.group >= kLaneGroups || one.lane >= kMostLanes || one.list >= kBoxLists || chunk.form >= kForms ||
        chunk.boxes < 1 || chunk.boxes > kChunkBoxes || chunk.offset < 0)
      throw DamagedTimeline("its index is impossible");
    used += bytes_of(chunk);
    if (used > total || static_cast<uint64_t>(chunk.offset) + bytes_of(chunk) > total) throw DamagedTimeline("its index does not fit it");
    auto& lanes = tracks[one.track].groups[one.group];
    if (lanes.size() <= one.lane) lanes.resize(one.lane + size_t{1});
    lanes[one.lane].lists[one.list].push_back(chunk);
  }
  tracks_ = std::move(tracks);
  end_ = static_cast<int64_t>(total);
}

}  // namespace stepscope
