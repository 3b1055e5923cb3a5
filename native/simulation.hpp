// The steps of a trace played again under a change: how long everything takes is given, when it starts is not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dependencies.hpp"
#include "handover.hpp"

namespace stepscope {

// Durations change by parts of a million.
constexpr int64_t kWhole = 1'000'000;

struct SimulationRules {
  int64_t unexplained = 20'000;  // of a delay that nothing explains no more than this is kept
  int64_t thread_wait = 50'000;  // as for the path
  int64_t host = kWhole;         // what host work takes
  int64_t stands_still = 1'000'000;  // queued work that waits for longer, while nothing recorded runs, waits for unrecorded work
  int64_t least_left = 8;        // of a piece of host work no less than one in so many is left when something is spared
};

// How much a thread does by itself up to an instant: waiting is left out, and spans may take more or less than they did.
class OwnTime {
 public:
  using Span = Dependencies::Span;
  // The innermost of the spans that hold an instant says what it takes.
  void scale(Span span, int64_t part) { scaled_.push_back({span, part}); }
  void wait(Span span) { waits_.push_back(span); }
  void build(int64_t since, int64_t host);
  int64_t until(int64_t time) const;

 private:
  struct Scaled {
    Span span;
    int64_t part;
  };
  struct Piece {
    int64_t start, sum, part;
  };
  std::vector<Scaled> scaled_;
  std::vector<Span> waits_;
  std::vector<Piece> pieces_;
};

// What is left out of a thread's own time from point to point. The points of a simulation are the same under every change,
// so the costs of a million events are summed once, and not for each question.
class PointCosts;

// Instants of threads and pieces of work, each after what it waits for. Changes first, then `build`, then `play`.
class Simulation {
 public:
  using Span = Dependencies::Span;
  struct Step {
    int32_t thread;      // of its mark, or -1 if its boundaries are those of a window
    Span mark, window;
  };

  Simulation(const Dependencies& graph, std::unordered_map<int32_t, Role> roles, int32_t lead, SimulationRules rules = {})
      : graph_(graph), handovers_(graph, std::move(roles), rules.thread_wait), lead_(lead), rules_(rules) {}

  void add_step(const Step& step) { steps_.push_back(step); }  // in their order
  void scale_host(int32_t thread, Span span, int64_t part) { threads_[thread].own.scale(span, part); }
  // What recording cost is left out; the costs live as long as this.
  void spare(const PointCosts& costs) { costs_ = &costs; }
  void scale_work(int64_t event, int64_t part) { part_of_[event] = part; }
  void run_beside(int64_t event) { beside_.insert(event); }      // work that is not in the order of its stream
  void let_return(int64_t event) { returning_.insert(event); }  // a call that does not wait
  void build();
  // The windows of the steps; `kept` says whether with the delays that nothing explains.
  std::vector<Span> run(bool kept) const;

 private:
  struct Thread {
    OwnTime own;
    std::vector<int64_t> times;  // of its points, in order
    size_t first = 0;            // of its points among all
  };
  struct Link {
    int32_t to, from;  // points; or from work
    bool from_work;
    int64_t delay;
  };
  struct Piece {
    std::array<int32_t, 3> after{-1, -1, -1};  // the work before it, the work it waits for, the point of its launch
    std::array<int64_t, 3> delay{};
    int64_t length = 0, unexplained = 0;
    int8_t cause = -1;  // which of the three let it begin
  };
  struct Clock;  // of one playing

  void add_points();
  void find_handovers();
  void pause(int32_t thread, Span gap);
  void lay_threads();
  void lay(int32_t number, const Thread& thread);
  void link_calls();
  void link_join(const Dependencies::Join& join, bool waited);
  void lay_work();
  void follow(size_t at, int32_t previous);
  bool is_held(const Dependencies::Work& w, int64_t ran) const;
  Dependencies::By cause_of(size_t at) const;
  int64_t kept_of(const Dependencies::Work& w, int64_t delay) const;
  void follow_launch(size_t at, bool is_cause);
  int32_t point(int32_t thread, int64_t time) const;
  Span window(const Clock& clock, const Step& step, int64_t before) const;
  Span marked(const Clock& clock, const Step& step, int64_t before) const;
  bool is_beside(int32_t work) const { return work >= 0 && beside_.contains(graph_.works()[static_cast<size_t>(work)].event); }

  const Dependencies& graph_;
  const Handovers handovers_;
  const int32_t lead_;
  const SimulationRules rules_;
  const PointCosts* costs_ = nullptr;
  std::vector<Step> steps_;
  std::unordered_map<int64_t, int64_t> part_of_;
  std::unordered_set<int64_t> beside_, returning_;
  std::unordered_map<int32_t, Thread> threads_;
  std::unordered_map<int32_t, std::vector<int64_t>> bounds_;  // of the marks on each thread, in order
  std::vector<std::pair<Handover, int32_t>> handed_;  // with the thread that went on
  std::vector<int64_t> own_;                          // of each point, since the one before it on its thread; kNull for the first
  std::vector<int64_t> time_;                         // of each point, as recorded
  std::vector<Link> links_;                           // in order of where they lead to
  std::vector<size_t> first_link_;                    // of each point
  std::vector<Piece> pieces_;                         // of work, in its order
  std::vector<int32_t> held_;                         // work that began when unrecorded work was done
  std::vector<int32_t> by_launch_;                    // work with a launch, in order of that

  friend class PointCosts;
};

class PointCosts {
 public:
  // Of a simulation that is built.
  explicit PointCosts(const Simulation& simulation);
  // Events of a thread, each with its cost; quickest in order of time.
  void add(int32_t thread, const int64_t* time, const int64_t* cost, size_t count);
  // Before each point of a thread and after the one before it; null for a thread without points.
  const std::vector<int64_t>* of(int32_t thread) const;

 private:
  struct Thread {
    std::vector<int64_t> times, costs;
  };
  std::unordered_map<int32_t, Thread> threads_;
};

}  // namespace stepscope
