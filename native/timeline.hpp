// The timeline of a trace at every width of a pixel: events on lanes, merged where they are narrower than a pixel.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "numbers.hpp"

namespace stepscope {

constexpr int kTopLevel = 20;            // its pixel is 275,000 seconds wide: every trace is narrower than a tile
constexpr int kBoxLists = 2 * kTopLevel + 1;
constexpr int kFineLevels = 3;           // at levels 1 to this boxes are merged when a tile is read: it has few events there
constexpr int kLaneGroups = 3;           // work or host calls, ranges of a device, what else is told of a device
constexpr size_t kMostLanes = 4096;      // of a group; what lies deeper overlaps on the last one
constexpr size_t kChunkBoxes = 512;
constexpr uint32_t kNoName = std::numeric_limits<uint32_t>::max();

// An event, or several that are merged.
struct Box {
  int64_t start, dur, busy, event;
  uint32_t name, count;
  uint8_t kind;
};

// An event on its lane.
struct LaneEvent {
  int64_t start, dur, event;
  uint32_t name;
  uint8_t kind, group;
  uint16_t lane;
};
static_assert(sizeof(LaneEvent) == 32);  // threads hand over millions of them

// Where boxes of a list lie in the file, sorted by start.
struct BoxChunk {
  int64_t first;      // the first start
  int64_t last_end;   // the last end in the list so far
  int64_t offset;
  int64_t event_from;
  uint64_t sum;
  uint32_t boxes;
  uint32_t form;
};

// An event is kept once: list c has those that are boxes of their own at the levels 0 to c, because they are as wide as a
// pixel or alone in it, and no higher. List kTopLevel + k has the boxes of several events at level k. List kFineLevels also
// has what is no box of its own at fine levels, of which no boxes are kept; but on the last lane, where events may overlap,
// all levels are.
struct BoxLane {
  std::array<std::vector<BoxChunk>, kBoxLists> lists;
};

struct BoxTrack {
  int32_t id = 0;
  bool done = false;
  int64_t events = 0, first = std::numeric_limits<int64_t>::max(), last = std::numeric_limits<int64_t>::min();
  std::array<std::vector<BoxLane>, kLaneGroups> groups;
};

// The file is not as it was written.
struct DamagedTimeline : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Boxes as bytes, of which there are kMostChunkBytes at most; where the chunk lies is not known yet.
BoxChunk encode(char* to, const std::vector<Box>& boxes);
BoxChunk encode(char* to, const std::vector<LaneEvent>& events);
// Throws if they are not as they were written.
void decode(const char* bytes, const BoxChunk& chunk, std::vector<Box>& boxes);
bool is_possible(const BoxChunk& chunk);
size_t bytes_of(const BoxChunk& chunk);
constexpr size_t kMostChunkBytes = kChunkBoxes * 41;

// The boxes of all tracks, in a file that grows while it is made and is read by place. Several threads may read and write.
class TimelineFile {
 public:
  TimelineFile(int file, int64_t pixel_ns, int64_t tile_pixels);
  ~TimelineFile();
  TimelineFile(const TimelineFile&) = delete;
  TimelineFile& operator=(const TimelineFile&) = delete;

  struct About {
    int32_t id;
    bool done;
    size_t lanes;
    int64_t events, first, last;
  };
  struct Found {
    int32_t track;
    size_t lane;
    Box box;
  };

  struct Written {  // a chunk and the list that it belongs to
    size_t track;
    int group;
    size_t lane;
    int list;
    BoxChunk chunk;
  };

  // The place of a track among all.
  size_t begin_track(int32_t id);
  // Chunks, whose bytes lie one after the other; each comes after those that its list has.
  void append(const char* bytes, size_t size, const std::vector<Written>& chunks);
  void finish_track(size_t track, int64_t events, int64_t first, int64_t last);

  std::vector<About> tracks() const;
  std::string tile(int32_t track, int level, int64_t index) const;
  // The first event with one of the names that comes after a time and, of those that begin then, after an event; or
  // the last one before.
  std::optional<Found> find(const std::vector<bool>& names, int64_t start, int64_t event, bool back) const;

  int64_t size() const {
    const std::lock_guard<std::mutex> hold(lock_);
    return end_;
  }
  int64_t pixel_ns() const { return pixel_ns_; }
  std::string index() const;
  // Takes what `index` gave; refuses one that does not fit the file.
  void load(const char* bytes, size_t size);

 private:
  struct Place {  // a chunk and whose it is
    BoxChunk chunk;
    int32_t track;
    size_t lane;
  };
  void read(const BoxChunk& chunk, std::vector<Box>& boxes) const;
  void write(const char* bytes, size_t size, int64_t offset);
  struct LaneChunks {
    std::vector<BoxChunk> boxes;   // as they are drawn
    std::vector<BoxChunk> events;  // to be merged
  };
  std::vector<LaneChunks> chunks_of(const BoxTrack& track, int level, int64_t from, int64_t to) const;
  std::vector<Place> places(int64_t start, bool back) const;

  int file_;
  int64_t pixel_ns_, tile_pixels_, end_ = 0;
  std::vector<BoxTrack> tracks_;
  mutable std::mutex lock_;
};

// Where names are in a list, for one list at a time.
class NameSlots {
 public:
  void begin(size_t names);
  // The place of a name; from now on `place` if it had none.
  uint32_t place_of(uint32_t name, uint32_t place);

 private:
  struct Slot {
    uint32_t list, name, place;
  };
  std::vector<Slot> slots_;
  size_t last_ = 0;  // of those that the list uses
  uint32_t list_ = 0;
};

// The time of each name in what is merged. A name may be there several times until `settle`: to look for it at once would
// take longer.
class NameTimes {
 public:
  struct Entry {
    uint32_t name;
    uint8_t kind;
    int64_t time;
  };
  // `held` counts the entries of all; where that is `most`, further ones do not count.
  void add(uint32_t name, uint8_t kind, int64_t time, NameSlots& slots, size_t& held, size_t most) {
    if (!entries_.empty() && entries_.back().name == name) {
      entries_.back().time = saturating_add(entries_.back().time, time);
      return;
    }
    if (entries_.size() >= room_) settle(slots, held);
    if (held >= most) return;
    ++held;
    entries_.push_back({name, kind, time});
  }
  // All of another that is settled.
  void add_all(const NameTimes& other, NameSlots& slots, size_t& held, size_t most);
  void settle(NameSlots& slots, size_t& held);
  void clear(size_t& held) {
    if (!entries_.empty()) clear_all(held);
  }
  const std::vector<Entry>& entries() const { return entries_; }
  // A box is called by the name that takes most of its time.
  void tell_most(Box& box) const;
  void swap(NameTimes& other) { entries_.swap(other.entries_), std::swap(room_, other.room_); }

 private:
  static constexpr size_t kRoom = 64;
  void clear_all(size_t& held);

  std::vector<Entry> entries_;  // in the order in which they came
  size_t room_ = kRoom;         // it is settled when it has so many
};

// Events of a lane that do not overlap, in order of start, merged for one level.
class FineMerger {
 public:
  // Boxes are added to `boxes`.
  FineMerger(int64_t pixel_ns, int level, std::vector<Box>& boxes) : width_(pixel_ns << (2 * (level - 1))), boxes_(boxes) {}
  void add(const Box& event);
  // What began in the last pixel is complete.
  void close();

 private:
  int64_t width_, pixel_ = 0, end_ = 0, longest_ = 0;
  std::vector<Box>& boxes_;
  Box box_{};  // what begins in the pixel; nothing while its count is 0
  NameTimes names_;
  NameSlots slots_;
  size_t held_ = 0;
};

// What the events of a trace are: kind + 16 * group of lanes by skeleton, 255 for no box, and which names of kernels mean
// communication.
struct TimelineKinds {
  std::vector<uint8_t> of_skeleton;
  std::vector<bool> communication;
};
constexpr uint8_t kNoBox = 255, kKernel = 4, kCommunication = 7;

// What is being merged on a lane of a track.
struct MergedLane {
  struct Merging {  // what begins in one pixel
    int64_t pixel = 0, busy = 0, end = 0, longest = 0;
    Box box{};
    NameTimes names;  // none while there is one event
  };
  uint8_t group = 0;
  uint16_t number = 0;
  uint32_t open = 0;  // a bit for each level at which something is being merged
  int64_t end = kNull;
  std::array<Merging, kTopLevel + 1> merging;
  std::array<std::vector<LaneEvent>, kTopLevel + 1> events;  // that wait to be written, and boxes of several by level
  std::array<std::vector<Box>, kTopLevel + 1> boxes;
};

// What one merger has of a track. Only that merger looks into it.
struct TrackLanes {
  size_t track = 0;
  bool begun = false;
  std::array<std::vector<std::unique_ptr<MergedLane>>, kLaneGroups> groups;
};

// What is told of a track once all mergers have all of it.
struct TrackEnd {
  std::atomic<size_t> mergers;
  int64_t events, first, last;
};

// Merges the events of some lanes for all levels.
class LaneMerger {
 public:
  struct Lot {
    std::shared_ptr<TrackLanes> of;
    std::vector<LaneEvent> events;
    std::shared_ptr<TrackEnd> end;  // these are the last of the track
  };

  // One of `mergers` that share the room for boxes and names; in a thread of its own, or where it is handed something.
  LaneMerger(TimelineFile& file, size_t mergers, bool threaded);
  ~LaneMerger();
  LaneMerger(const LaneMerger&) = delete;
  LaneMerger& operator=(const LaneMerger&) = delete;

  // Waits while much is waiting.
  void hand_over(Lot lot);
  // Room for events that was used before, if there is any.
  std::vector<LaneEvent> spare();
  // What is handed over afterwards is not merged; `finish` waits until all else is in the file.
  void end();
  void finish();

 private:
  struct Piece {  // an event, or what is merged at the level below
    const Box& box;
    int64_t busy, end, longest;
    NameTimes* names;  // null of an event
  };

  void work_all();
  void work(const Lot& lot);
  MergedLane& begin_lane(TrackLanes& of, const LaneEvent& event);
  void end_track(const Lot& lot);
  int64_t pixel_of(int64_t time) const;
  bool add_narrow(TrackLanes& of, MergedLane& lane, const LaneEvent& event);
  void add_event(TrackLanes& of, MergedLane& lane, const LaneEvent& event);
  void merge(TrackLanes& of, MergedLane& lane, int level, int64_t pixel, const Piece& piece);
  void close(TrackLanes& of, MergedLane& lane, int level);
  template <class T>
  void put(TrackLanes& of, MergedLane& lane, int list, std::vector<T>& waiting, const T& box);
  template <class T>
  void put_in_more_room(std::vector<T>& waiting, const T& box);
  template <class T>
  void flush(TrackLanes& of, MergedLane& lane, int list, std::vector<T>& waiting);
  void flush_lane(TrackLanes& of, MergedLane& lane);
  void flush_all();
  void write();

  TimelineFile& file_;
  int64_t pixel_ns_;
  int64_t narrow_;          // the width of a pixel at the first level that is no fine one
  uint64_t pixel_inverse_;  // 2^64 divided by it, rounded up; 0 for a width of 1
  size_t most_bytes_, most_names_;
  std::vector<std::shared_ptr<TrackLanes>> tracks_;
  size_t held_bytes_ = 0, held_names_ = 0;
  NameSlots slots_;
  std::unique_ptr<char[]> bytes_;  // that are not written yet, and their chunks
  size_t size_ = 0;
  std::vector<TimelineFile::Written> written_;

  std::mutex lock_;
  std::condition_variable given_, taken_;
  std::deque<Lot> queue_;
  std::vector<std::vector<LaneEvent>> spare_;
  size_t queued_ = 0;  // events
  std::exception_ptr failed_;
  bool ended_ = false, given_up_ = false;
  std::thread worker_;
};

// All mergers of a timeline; the lanes of a track are shared out among them.
class LaneMergers {
 public:
  // So many threads; or, with 0, as many as pay for so many events and cores, which may be none.
  LaneMergers(TimelineFile& file, size_t events, size_t threads);
  LaneMergers(const LaneMergers&) = delete;
  LaneMergers& operator=(const LaneMergers&) = delete;
  TimelineFile& file() { return file_; }
  size_t size() const { return mergers_.size(); }
  // The number of the one that has a lane.
  size_t of_lane(size_t lane) const { return of_lane_[lane]; }
  LaneMerger& operator[](size_t number) { return *mergers_[number]; }
  // Waits until all that was handed over is in the file.
  void finish();

 private:
  TimelineFile& file_;
  std::array<uint8_t, kMostLanes> of_lane_{};  // a division for each event would take longer
  std::vector<std::unique_ptr<LaneMerger>> mergers_;
};

// Puts the events of one track on lanes, in order of start, and has them merged for all levels in the same pass.
class TimelineSweep {
 public:
  struct Rows {
    const int64_t *event, *start, *dur, *name, *skeleton;  // the last one is null where `kind` is that of all
    size_t size = 0;
    int kind = kNoBox;
    std::shared_ptr<void> owner;
  };

  TimelineSweep(LaneMergers& mergers, const TimelineKinds& kinds, int32_t track);
  TimelineSweep(const TimelineSweep&) = delete;
  TimelineSweep& operator=(const TimelineSweep&) = delete;

  size_t add_run();
  // The next rows of a run that has none left, sorted by start, then longer first, then event.
  void give(size_t run, Rows rows);
  void end_run(size_t run);
  // Goes on while rows start before `horizon`; the run that has no rows left and may have more, or -1.
  int64_t advance(int64_t horizon);
  // The owners of rows that are used up.
  std::vector<std::shared_ptr<void>> take_used() { return std::exchange(used_, {}); }
  // There are no more events; they need not be in the file yet.
  void finish();

 private:
  struct Run {
    Rows rows;
    size_t next = 0;                // the first row that is not in `events`
    std::vector<LaneEvent> events;  // room for a few, which lie from `at` to `end`
    size_t at = 0, end = 0;
    bool ended = false;
  };
  struct Group {
    std::vector<int64_t> ends;  // of lanes
    size_t top = 0;             // the lanes above it are free
  };
  struct Share {  // of a merger
    std::shared_ptr<TrackLanes> lanes;
    std::vector<LaneEvent> gathered;
  };

  bool take_some(Run& run);
  static bool before(const LaneEvent& x, const LaneEvent& y);
  const LaneEvent& head_of(size_t run) const { return runs_[run].events[runs_[run].at]; }
  void push_head(size_t run);
  size_t pop_head();
  bool find_heads(int64_t& hungry);
  void place(const LaneEvent& event);
  void hand_over(size_t merger, std::shared_ptr<TrackEnd> end);
  static size_t lane_of(Group& group, int64_t start, int64_t end, bool nests);

  LaneMergers& mergers_;
  const TimelineKinds& kinds_;
  std::vector<Run> runs_;
  std::vector<size_t> heads_, hungry_;  // a heap of runs by their next row; runs that wait for rows
  std::vector<std::shared_ptr<void>> used_;
  std::vector<std::vector<LaneEvent>> spare_;
  std::array<Group, kLaneGroups> groups_;
  std::vector<Share> shares_;
  int64_t events_ = 0, first_ = std::numeric_limits<int64_t>::max(), last_ = std::numeric_limits<int64_t>::min();
};

}  // namespace stepscope
