// Order and nesting: who encloses whom on a thread, whose time it is at each instant, what ran on a device.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "batch.hpp"
#include "call_tree.hpp"
#include "numbers.hpp"

namespace stepscope {

constexpr int32_t kNarrowNull = std::numeric_limits<int32_t>::min();

// Rows of one table as the sweep gives them back: thread by thread, by start, the longer first, then the earlier in the
// file.
struct Nested {
  Column<int64_t> event, start, dur, inside, marked, self, uncovered, fresh, weight_self, weight_once;
  Column<int64_t> node, in_steps, late;  // only where paths are followed
  Column<int32_t> depth;
  // The first columns of the payload, with kNarrowNull for what is absent, and the others; one is empty if nothing is in it.
  std::vector<Column<int32_t>> narrow;
  std::vector<Column<int64_t>> payload;
};

// A column of rows that are given to a sweep, which lies where its owner has it.
struct GivenColumn {
  const int64_t* values = nullptr;
  size_t rows = 0;
  std::shared_ptr<const void> owner;

  bool empty() const { return rows == 0; }
  size_t size() const { return rows; }
  int64_t operator[](size_t row) const { return values[row]; }
};

// What the events of a run do to the others on their thread.
struct RunSpec {
  int table = 0;        // where its rows go, or -1: nowhere
  bool opens = false;   // encloses others; the others only ask who encloses them
  bool marks = false;   // the innermost of these is also looked for apart from the others
  bool covers = false;  // its time is not counted as uncovered time of what encloses it
  int weight = -1;      // payload column whose value is charged to the open events, or none
  int group = -1;       // payload column by which open events are told apart for `fresh` and `weight_once`
  int label = -1;       // payload column that names a call in the tree of paths
};

// Merges sorted runs of one thread's events and nests them: the innermost event is the open one that started last.
class ThreadSweep {
 public:
  // With a tree, calls are followed along their paths there; it must outlive the sweep. Of tables that are only asked what
  // their rows are in, nothing else is put down.
  ThreadSweep(std::vector<size_t> payload_columns_by_table, CallTree* tree = nullptr, const std::vector<size_t>& only_inside = {});
  ThreadSweep(const ThreadSweep&) = delete;  // Python asks
  ThreadSweep& operator=(const ThreadSweep&) = delete;

  size_t add_run(RunSpec spec);
  // The next rows of a run, sorted by start, then longer first, then event. A column of the payload that is empty has nothing
  // in it.
  void give(size_t run, GivenColumn event, GivenColumn start, GivenColumn dur, std::vector<GivenColumn> payload);
  void end_run(size_t run);

  // Goes on while rows start before `horizon`; the run that has no rows left and may have more, or -1.
  int64_t advance(int64_t horizon);
  void finish_thread();  // closes what is open; the next thread may follow

  // The rows of a table whose events have ended, the first `narrow` columns of their payload as int32.
  Nested take(size_t table, size_t narrow = 0);
  size_t rows(size_t table) const { return tables_[table].visited - tables_[table].open; }

 private:
  struct Piece {  // some rows of a run
    GivenColumn event, start, dur;
    std::vector<GivenColumn> payload;
    size_t left = 0;  // rows that have not been taken yet
  };
  struct Run {
    RunSpec spec;
    Piece* piece = nullptr;
    size_t at = 0;
    bool ended = false;
  };
  struct Stretch {  // rows of a piece, one after the other
    Piece* piece;
    size_t row, count;
  };
  // Rows of a table that were visited and not taken, in that order, with room for those that were given. What an event is
  // in is known at once; what it is charged is put down when it ends.
  struct Visited {
    std::array<Column<int64_t>, 10> numbers;  // as in kNumbers
    Column<int32_t> depth;
    std::vector<Stretch> stretches;
    size_t visited = 0, open = 0, given = 0;
    size_t kept = 0;  // how many of the numbers are put down, the first of them
  };
  struct Open {
    Open(int64_t of, int64_t until) : event(of), end(until) {}  // an aggregate would be cleared by a slow loop first

    int64_t event, end, group = 0, label = kNull, node = kNull;
    int64_t self = 0, uncovered = 0, weight_self = 0, weight_once = 0;
    CallTree::Charged charged = {};
    size_t slot = 0;  // its row of the table
    int table = 0;
    bool crosses = false;  // its end is in crossing_
  };

  struct Around {  // what is open at an instant: the innermost, the innermost that marks, and how many there are
    int64_t inside = kNull, marked = kNull;
    int32_t depth = 0;
  };

  bool only_asks(const RunSpec& spec) const;
  size_t go_on(size_t run, int64_t horizon);
  bool before(size_t a, size_t b) const;
  void push_head(size_t run);
  size_t pop_head();
  Around around_at(int64_t now);
  void visit(const Run& run);
  void visit_inside(const Run& run);
  size_t place(const Run& run);
  void settle(int64_t now);
  void open(const Open& o);
  void close(const Open& o);
  void drop_ended(int64_t now);
  void charge(int64_t until);
  void weigh(int64_t now, int64_t weight);
  void follow(const Run& run, Open& o);
  int64_t path(int64_t now);
  void emit(const Open& o);
  int64_t& fresh_from(int64_t group);
  std::vector<size_t> open_slots(size_t table) const;
  template <class To, class Of>
  static void gather(const std::vector<Stretch>& from, To& to, Of column);
  static std::pair<std::vector<Stretch>, std::vector<Stretch>> parted(const std::vector<Stretch>& stretches, const std::vector<size_t>& open);

  std::vector<Run> runs_;
  std::vector<size_t> heads_, hungry_;  // a heap of runs by their next row; runs that wait for rows
  std::vector<Open> stack_;
  std::vector<size_t> nesting_;    // places in the stack of events that nothing later outlives, ends falling
  std::vector<int64_t> crossing_;  // a heap: ends of the other events in the stack
  size_t ended_below_ = 0;         // events in the stack that ended, with something on top that did not
  std::vector<std::pair<int64_t, int64_t>> marked_;  // event and end of the open marking events
  std::vector<int64_t> seen_groups_;
  // Per group: until when its time is counted already, kNull if none of it is. Groups are mostly small numbers.
  std::vector<int64_t> fresh_from_;
  std::unordered_map<int64_t, int64_t> fresh_from_far_;
  int64_t cursor_ = kNull, covered_until_ = kNull;
  std::vector<size_t> payload_columns_;
  CallTree* tree_;
  std::vector<std::unique_ptr<Piece>> pieces_;
  std::vector<Visited> tables_;
};

// Device work to its launch by correlation; of several launches the latest that began no later. Launches are known by
// their number in the order of adding, 0, 1, 2, ...
class Linker {
 public:
  explicit Linker(size_t launches);

  void add(const int64_t* correlation, const int64_t* start, const int64_t* event, size_t rows);
  void build();
  // The launch of each piece of work, or -1; the work's time is added to its launch.
  void link(const int64_t* correlation, const int64_t* start, const int64_t* dur, size_t rows, int32_t* out);

  void end_links() { keys_ = {}; }  // there is no more work: with millions of launches the list takes room

  int64_t event(size_t launch) const { return event_.at(launch); }
  int64_t work_events(size_t launch) const { return work_events_.at(launch); }
  // Asked for once, before the launch is nested. Its operator is kept in the same place.
  int64_t take_work_ns(size_t launch) { return std::exchange(work_ns_or_op_.at(launch), kNull); }
  void note_op(size_t launch, int64_t op) { work_ns_or_op_.at(launch) = op; }
  int64_t op(size_t launch) const { return work_ns_or_op_.at(launch); }

 private:
  struct Key {
    int64_t correlation, start;
    uint32_t launch;
  };

  size_t first_of(int64_t correlation, size_t near) const;
  int64_t find(int64_t correlation, int64_t start, size_t& near) const;

  std::vector<Key> keys_;  // in order, once they are built
  std::vector<int64_t> event_, work_ns_or_op_;
  std::vector<uint32_t> work_events_;
};

// Time by kind of what runs on a device, inside a window; work comes in order of start.
class DeviceSweep {
 public:
  DeviceSweep(std::vector<int64_t> window_starts, std::vector<int64_t> window_ends);
  void push(const int64_t* start, const int64_t* dur, const int64_t* kind, const int64_t* weight, size_t rows);
  void finish();

  static constexpr size_t kKinds = 4;  // compute, communication, memcpy, memset
  static constexpr int64_t kFull = 1'000'000'000'000;  // the weight of a filled device
  int64_t busy = 0, kernel = 0, overlap = 0, windows = 0;
  int64_t by_kind[kKinds] = {};
  double filled = 0;  // time, each instant times its filled share

 private:
  struct Running {
    int64_t end, kind, weight;
  };
  void advance(int64_t now);
  void account(int64_t from, int64_t to);

  std::vector<int64_t> window_starts_, window_ends_;
  size_t window_ = 0;
  std::vector<Running> running_;  // a heap, the first to end on top
  int64_t active_[kKinds] = {};
  int64_t weight_ = 0, cursor_ = kNull;
};

}  // namespace stepscope
