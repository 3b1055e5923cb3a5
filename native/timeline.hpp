// The timeline of a trace at every width of a pixel: events on lanes, merged where they are narrower than a pixel.
#pragma once

#include <array>
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
#include <vector>

#include "numbers.hpp"

namespace stepscope {

constexpr int kTopLevel = 20;            // its pixel is 275,000 seconds wide: every trace is narrower than a tile
constexpr int kBoxLists = 2 * kTopLevel + 1;
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
// pixel or alone in it, and no higher. List kTopLevel + k has the boxes of several events at level k.
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

// The boxes of all tracks, in a file that grows while it is made and is read by place. Several threads may read, also
// while one writes.
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

  // The place of a track among all.
  size_t begin_track(int32_t id);
  // Boxes of a list, after those that it has; they are written by a thread of the file's own.
  void append(size_t track, int group, size_t lane, int list, std::vector<Box> boxes);
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
  struct Appended {
    size_t track;
    int group;
    size_t lane;
    int list;
    std::vector<Box> boxes;
  };
  void read(const BoxChunk& chunk, std::vector<Box>& boxes) const;
  void write(const std::string& bytes);
  void write_all();
  void write_chunks(const std::vector<Appended>& some);
  void drain();
  std::vector<std::vector<BoxChunk>> chunks_of(const BoxTrack& track, int level, int64_t from, int64_t to) const;
  std::vector<Place> places(int64_t start, bool back) const;

  int file_;
  int64_t pixel_ns_, tile_pixels_, end_ = 0;
  std::vector<BoxTrack> tracks_;
  mutable std::mutex lock_;

  std::mutex queue_lock_;
  std::condition_variable given_, taken_;  // to the writer, and by it
  std::vector<Appended> queue_;
  std::exception_ptr failed_;
  bool writing_ = false, ending_ = false;
  std::thread writer_;
};

// The time of each name in what is merged.
class NameTimes {
 public:
  struct Entry {
    uint32_t name;
    uint8_t kind;
    int64_t time;
  };
  // `held` counts the names of all; where that is `most`, further ones are not told apart.
  void add(uint32_t name, uint8_t kind, int64_t time, size_t& held, size_t most) {
    // Programs repeat themselves: the same name comes again, or the one that came after it before.
    if (last_ < entries_.size() && entries_[last_].name == name)
      entries_[last_].time = saturating_add(entries_[last_].time, time);
    else if (last_ + 1 < entries_.size() && entries_[last_ + 1].name == name)
      ++last_, entries_[last_].time = saturating_add(entries_[last_].time, time);
    else
      add_other(name, kind, time, held, most);
  }
  void clear(size_t& held) {
    if (!entries_.empty()) clear_all(held);
  }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  void add_other(uint32_t name, uint8_t kind, int64_t time, size_t& held, size_t most);
  void clear_all(size_t& held);
  size_t slot(uint32_t name) const;
  void grow();

  std::vector<Entry> entries_;     // in the order in which they came
  std::vector<uint32_t> slots_;    // place in entries_ + 1; none while they are few
  size_t last_ = 0;
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
  int group = 0;
  size_t number = 0;
  bool begun = false;
  uint32_t open = 0;  // a bit for each level at which something is being merged
  int64_t end = kNull;
  std::array<Merging, kTopLevel + 1> merging;
  std::array<std::vector<Box>, kBoxLists> waiting;
};

// Merges the events of some lanes for all levels: in a thread of its own, once there are many.
class LaneMerger {
 public:
  // One of `mergers` that share the room for boxes and names. The first `few` events are merged at once.
  LaneMerger(TimelineFile& file, size_t track, size_t mergers, size_t few);
  ~LaneMerger();
  LaneMerger(const LaneMerger&) = delete;
  LaneMerger& operator=(const LaneMerger&) = delete;

  void add(MergedLane& lane, const Box& event) {
    gathered_.push_back({&lane, event});
    if (gathered_.size() == kHandedOver) hand_over();
  }
  // Hands over what is left; `finish` waits until all of it is appended to the file.
  void end();
  void finish();

 private:
  struct Given {
    MergedLane* lane;
    Box event;
  };
  struct Piece {  // an event, or what is merged at the level below
    const Box& box;
    int64_t busy, end, longest;
    const NameTimes::Entry* names;
    size_t count;
  };
  static constexpr size_t kHandedOver = 2048;

  void hand_over();
  void work_all();
  void work(const std::vector<Given>& some);
  void close_all();
  int64_t pixel_of(int64_t time) const;
  void add_event(MergedLane& lane, const Box& event);
  void merge(MergedLane& lane, int level, int64_t pixel, const Piece& piece);
  void add_names(MergedLane::Merging& all, const Piece& piece);
  void close(MergedLane& lane, int level);
  void put(MergedLane& lane, int list, const Box& box);
  void flush(MergedLane& lane, int list);
  void flush_all();

  TimelineFile& file_;
  size_t track_;
  int64_t pixel_ns_;
  uint64_t pixel_inverse_;  // 2^64 divided by it, rounded up; 0 for a width of 1
  size_t most_boxes_, most_names_, few_;
  std::vector<MergedLane*> lanes_;
  size_t held_boxes_ = 0, held_names_ = 0;

  std::vector<Given> gathered_;
  size_t handed_over_ = 0;
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::vector<Given>> queue_;
  std::exception_ptr failed_;
  bool ended_ = false, given_up_ = false;
  std::thread worker_;
};

// Puts the events of one track on lanes, in order of start, and has them merged for all levels in the same pass.
class TimelineSweep {
 public:
  struct Row {
    int64_t start, dur, event;
    uint32_t name;
    uint8_t kind, group;
  };

  // Merges in so many threads from the first event on; or, with 0, in as many as pay for so many events and cores.
  TimelineSweep(TimelineFile& file, int32_t track, size_t threads);
  TimelineSweep(const TimelineSweep&) = delete;
  TimelineSweep& operator=(const TimelineSweep&) = delete;

  size_t add_run();
  // The next rows of a run that has none left, sorted by start, then longer first, then event.
  void give(size_t run, std::vector<Row> rows);
  void end_run(size_t run);
  // Goes on while rows start before `horizon`; the run that has no rows left and may have more, or -1.
  int64_t advance(int64_t horizon);
  void finish();

 private:
  struct Run {
    std::vector<Row> rows;
    size_t at = 0;
    bool ended = false;
  };
  struct Group {
    std::vector<std::unique_ptr<MergedLane>> lanes;
    std::vector<int64_t> ends;
    size_t top = 0;  // the lanes above it are free
  };

  bool before(size_t a, size_t b) const;
  void push_head(size_t run);
  size_t pop_head();
  void place(const Row& row);
  static size_t lane_of(Group& group, int64_t start, int64_t end, bool nests);

  TimelineFile& file_;
  size_t track_;
  std::vector<Run> runs_;
  std::vector<size_t> heads_, hungry_;  // a heap of runs by their next row; runs that wait for rows
  std::array<Group, kLaneGroups> groups_;
  std::vector<std::unique_ptr<LaneMerger>> mergers_;  // they end before the lanes do
  int64_t events_ = 0, first_ = std::numeric_limits<int64_t>::max(), last_ = std::numeric_limits<int64_t>::min();
};

}  // namespace stepscope
