#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "timeline.hpp"

namespace stepscope {

namespace {

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

TimelineFile::~TimelineFile() { close(file_); }

// ---- writing

size_t TimelineFile::begin_track(int32_t id) {
  const std::lock_guard<std::mutex> hold(lock_);
  tracks_.emplace_back();
  tracks_.back().id = id;
  return tracks_.size() - 1;
}

void TimelineFile::write(const char* bytes, size_t size, int64_t offset) {
  for (size_t at = 0; at < size;) {
    const ssize_t written = pwrite(file_, bytes + at, size - at, offset + static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw std::system_error(written < 0 ? errno : ENOSPC, std::generic_category());
    at += static_cast<size_t>(written);
  }
}

// Writes them, then tells where they lie: who reads meanwhile sees what is there.
void TimelineFile::append(const char* bytes, size_t size, const std::vector<Written>& chunks) {
  int64_t offset;
  {
    const std::lock_guard<std::mutex> hold(lock_);
    offset = end_;
    end_ += static_cast<int64_t>(size);
  }
  write(bytes, size, offset);
  const std::lock_guard<std::mutex> hold(lock_);
  for (const Written& one : chunks) {
    auto& lanes = tracks_.at(one.track).groups.at(static_cast<size_t>(one.group));
    if (lanes.size() <= one.lane) lanes.resize(one.lane + 1);
    auto& known = lanes[one.lane].lists.at(static_cast<size_t>(one.list));
    BoxChunk chunk = one.chunk;
    chunk.offset = offset;
    offset += static_cast<int64_t>(bytes_of(chunk));
    if (!known.empty()) chunk.last_end = std::max(chunk.last_end, known.back().last_end);
    known.push_back(chunk);
  }
}

void TimelineFile::finish_track(size_t track, int64_t events, int64_t first, int64_t last) {
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
  char room[kMostChunkBytes];
  const size_t size = bytes_of(chunk);
  for (size_t at = 0; at < size;) {
    const ssize_t got = pread(file_, room + at, size - at, chunk.offset + static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::system_error(errno, std::generic_category());
    if (got == 0) throw DamagedTimeline("it is cut short");
    at += static_cast<size_t>(got);
  }
  decode(room, chunk, boxes);
}

// By lane the chunks that may have boxes between two times.
std::vector<TimelineFile::LaneChunks> TimelineFile::chunks_of(const BoxTrack& track, int level, int64_t from, int64_t to) const {
  std::vector<LaneChunks> found;
  const auto take = [to](const std::vector<BoxChunk>& chunks, int64_t since, std::vector<BoxChunk>& taken) {
    auto at = std::partition_point(chunks.begin(), chunks.end(), [since](const BoxChunk& chunk) { return chunk.last_end < since; });
    for (; at != chunks.end() && at->first < to; ++at) taken.push_back(*at);
  };
  for (const auto& group : track.groups)
    for (size_t number = 0; number < group.size(); ++number) {
      const auto& lists = group[number].lists;
      LaneChunks& lane = found.emplace_back();
      int list = level;
      if (level > 0 && level <= kFineLevels && number < kMostLanes - 1) {
        // What begins in the pixel before reaches into the tile, if anything does.
        take(lists[kFineLevels], saturating_add(from, -(pixel_ns_ << (2 * (level - 1)))), lane.events);
        list = kFineLevels + 1;
      }
      for (; list <= kTopLevel; ++list) take(lists[static_cast<size_t>(list)], from, lane.boxes);
      if (level > 0) take(lists[static_cast<size_t>(kTopLevel + level)], from, lane.boxes);
    }
  return found;
}

std::string TimelineFile::tile(int32_t track, int level, int64_t index) const {
  if (level < 0 || level > kTopLevel) throw std::invalid_argument("no such level");
  const int64_t width = (pixel_ns_ * tile_pixels_) << (2 * (std::max(level, 1) - 1));
  int64_t from, to;
  std::vector<LaneChunks> lanes;
  if (!__builtin_mul_overflow(index, width, &from) && !__builtin_add_overflow(from, width, &to)) {
    const std::lock_guard<std::mutex> hold(lock_);
    const auto of = std::find_if(tracks_.begin(), tracks_.end(), [track](const BoxTrack& one) { return one.id == track; });
    if (of != tracks_.end()) lanes = chunks_of(*of, level, from, to);
  }
  std::vector<OnLane> boxes;
  std::vector<Box> some, merged;
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    const auto first = static_cast<ptrdiff_t>(boxes.size());
    const auto keep = [&](const std::vector<Box>& of) {
      for (const Box& box : of)
        if (box.start < to && (box.start >= from || saturating_add(box.start, box.dur) > from)) boxes.push_back({lane, box});
    };
    merged.clear();
    FineMerger merger(pixel_ns_, std::max(level, 1), merged);
    for (const BoxChunk& chunk : lanes[lane].events) {
      read(chunk, some);
      for (const Box& event : some) merger.add(event);
    }
    merger.close();
    keep(merged);
    for (const BoxChunk& chunk : lanes[lane].boxes) {
      read(chunk, some);
      keep(some);
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
    if (one.track >= count || one.group >= kLaneGroups || one.lane >= kMostLanes || one.list >= kBoxLists || !is_possible(chunk))
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
