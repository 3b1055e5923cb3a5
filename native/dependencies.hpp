// What waited for what: device work for its launch, for its stream and for other streams; runtime calls for the device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "numbers.hpp"

namespace stepscope {

// What a runtime call may wait for. The last one does not wait itself: it makes a stream wait for another.
enum class Waits : int8_t { nothing, device, stream, event, own_work, stream_waits };
constexpr int kWaits = 6;

constexpr size_t kWorkKinds = 4;  // compute, communication, memcpy, memset
constexpr int8_t kFirstCopyKind = 2;

// Lengths of time and numbers that are policy.
struct DependencyRules {
  int64_t near = 20'000;          // how soon after the device a call returns that waited for it
  int64_t queue_depth = 900;      // launches ahead with which a launching call waits for room
  int64_t least_samples = 8;      // fewer do not tell how long a launch takes
  int64_t blocking_percent = 90;  // of launching calls that return after their work: launching waits for the device here
};

// Rows are added in any order. `build` puts work in order of (start, event), calls in order of (start, event), and finds
// what each waited for; from then on both are known by their place in that order.
class Dependencies {
 public:
  struct Work {
    int64_t event, start, end, label;
    int64_t launch_event;  // of the call that launched it, or kNull
    int32_t stream;
    int8_t kind;
    bool blocks;  // the call that launches it waits for it to end
    int32_t launch = -1, previous = -1, waited = -1;  // call; work before it on its stream; work on another stream
  };
  struct Call {
    int64_t event, start, end, label;
    int32_t thread;
    int32_t stream;  // that it waits for, or -1 if that is not known
    Waits waits;
    int32_t first_work = -1, last_work = -1;  // of what it launched: the first to begin, the last to end
    int32_t launched = 0;                     // how many
  };
  // A call that returned because work was done, or because there was room for its launch again.
  struct Join {
    int64_t released;
    int32_t call, work;
    bool for_room;
  };
  struct Span {
    int64_t start, end;
  };
  enum class By : int8_t { nothing, previous, waited, launch };
  struct Cause {
    By by = By::nothing;
    int64_t time = 0;  // when the cause came about, no later than the work began
  };

  explicit Dependencies(DependencyRules rules = {}) : rules_(rules) {}

  void add_work(const Work& work) { works_.push_back(work); }
  void add_call(const Call& call) { calls_.push_back(call); }
  // Time in which a thread was in an operator, a call or a collective: between those it may wait for another thread.
  void add_busy(int32_t thread, Span span) { busy_[thread].push_back(span); }
  // What was launched on `stream` after `waited_at` waits for what was launched on `other` before `recorded_at`.
  void add_stream_wait(int32_t stream, int32_t other, int64_t waited_at, int64_t recorded_at) {
    stream_waits_.push_back({stream, other, waited_at, recorded_at});
  }
  void build();

  // What let a piece of work begin: of its dependencies, each with the time that it takes here to follow such a one, the
  // latest.
  Cause cause(size_t work) const;
  // Median time from a launching call to its work on an empty stream, by kind, and between two pieces of work of a full
  // one; 0 where the trace has too few of them.
  int64_t latency(int8_t kind) const { return latency_[static_cast<size_t>(kind)]; }
  int64_t gap() const { return gap_; }
  const DependencyRules& rules() const { return rules_; }

  const std::vector<Work>& works() const { return works_; }
  const std::vector<Call>& calls() const { return calls_; }
  // By thread: in order of release, and disjoint in order of time.
  const std::unordered_map<int32_t, std::vector<Join>>& joins() const { return joins_; }
  const std::unordered_map<int32_t, std::vector<Span>>& busy() const { return busy_; }
  // Calls that would have waited, but found the work done: what they would have waited for.
  const std::vector<Join>& passed() const { return passed_; }
  // The work that ended last, no later than `time`, among the first `below` in order; or -1.
  int32_t ended_last(int64_t time, size_t below) const;

 private:
  struct Stream {
    std::vector<int32_t> works;     // in order
    std::vector<int64_t> launched;  // when the last of the first so many was launched
    std::vector<int32_t> launches;  // from how many launches the first so many came
  };
  struct StreamWait {
    int32_t stream, other;
    int64_t waited_at, recorded_at;
  };

  void order();
  void link();
  void find_blocking_launches();
  void lay_streams();
  void tell_latencies();
  void find_graph_waits();
  void find_stream_waits();
  void guess_stream_waits();
  void explain_late_work();
  void find_joins();
  void merge_busy();

  int64_t launched_at(const Work& w) const { return w.launch < 0 ? w.start : calls_[static_cast<size_t>(w.launch)].start; }
  const Work& work(int32_t at) const { return works_[static_cast<size_t>(at)]; }
  int32_t last_launched(const Stream& stream, int64_t before) const;
  int32_t source(const Stream& other, int64_t before, size_t of) const;
  void let_wait(int32_t at, int32_t other);
  int32_t awaited(const Call& call, int32_t own_stream) const;
  int32_t found_done(const Call& call, int32_t own_stream) const;
  bool copied_inside(const Call& call) const;
  int32_t done_inside(const Call& call) const;
  int32_t made_room(const Call& call) const;

  DependencyRules rules_;
  std::vector<Work> works_;
  std::vector<Call> calls_;
  std::vector<StreamWait> stream_waits_;
  std::unordered_map<int32_t, Stream> streams_;
  std::unordered_map<int32_t, std::vector<int32_t>> thread_calls_;
  std::unordered_map<int32_t, std::vector<Join>> joins_;
  std::unordered_map<int32_t, std::vector<Span>> busy_;
  std::vector<Join> passed_;
  std::vector<int32_t> by_end_;  // work in order of its end
  std::vector<int32_t> place_;   // of work in its stream
  std::array<int64_t, kWorkKinds> latency_{};
  int64_t gap_ = 0;
};

}  // namespace stepscope
