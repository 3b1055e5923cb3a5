#include "simulation.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace stepscope {

namespace {

constexpr int64_t kLongAgo = -(int64_t{1} << 61);

// So many parts of a million of a length of time; a simulation is no place to overflow.
int64_t scaled(int64_t length, int64_t part) {
  if (part == kWhole) return length;
  int64_t whole;
  if (__builtin_mul_overflow(length / kWhole, part, &whole)) return length;
  return saturating_add(whole, length % kWhole * part / kWhole);
}

}  // namespace

// ---- time of a thread

void OwnTime::build(int64_t since, int64_t host) {
  std::stable_sort(scaled_.begin(), scaled_.end(), [](const Scaled& a, const Scaled& b) {
    return a.span.start != b.span.start ? a.span.start < b.span.start : a.span.end > b.span.end;
  });
  std::sort(waits_.begin(), waits_.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
  std::vector<int64_t> times{since};
  for (const Scaled& one : scaled_) times.insert(times.end(), {one.span.start, one.span.end});
  for (const Span& one : waits_) times.insert(times.end(), {one.start, one.end});
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  std::vector<Scaled> open;
  size_t next = 0, next_wait = 0;
  int64_t waiting_until = kNull;
  for (const int64_t now : times) {
    for (; next_wait < waits_.size() && waits_[next_wait].start <= now; ++next_wait) waiting_until = std::max(waiting_until, waits_[next_wait].end);
    for (; next < scaled_.size() && scaled_[next].span.start <= now; ++next) open.push_back(scaled_[next]);
    while (!open.empty() && open.back().span.end <= now) open.pop_back();
    const int64_t part = now < waiting_until ? 0 : open.empty() ? host : scaled(host, open.back().part);
    const int64_t sum = pieces_.empty() ? 0 : saturating_add(pieces_.back().sum, scaled(now - pieces_.back().start, pieces_.back().part));
    pieces_.push_back({now, sum, part});
  }
}

int64_t OwnTime::until(int64_t time) const {
  auto at = std::upper_bound(pieces_.begin(), pieces_.end(), time, [](int64_t t, const Piece& p) { return t < p.start; });
  if (at != pieces_.begin()) --at;
  return at == pieces_.end() ? 0 : saturating_add(at->sum, scaled(time - at->start, at->part));
}

// ---- what follows what

void Simulation::build() {
  if (!first_link_.empty()) throw std::logic_error("a simulation is built once");
  find_handovers();
  add_points();
  lay_threads();
  link_calls();
  lay_work();
}

void Simulation::find_handovers() {
  std::vector<int32_t> threads{lead_};
  for (const auto& [thread, role] : handovers_.roles())
    if (thread != lead_ && role != Role::other) threads.push_back(thread);
  std::sort(threads.begin(), threads.end());
  int64_t last = kLongAgo;
  for (const Step& step : steps_) {
    last = std::max({last, step.mark.end, step.window.end});
    bounds_[step.thread].insert(bounds_[step.thread].end(), {step.mark.start, step.mark.end});
  }
  for (auto& [thread, bounds] : bounds_) std::sort(bounds.begin(), bounds.end());
  for (const int32_t thread : threads) {
    const auto busy = graph_.busy().find(thread);
    if (thread < 0 || busy == graph_.busy().end()) continue;
    int64_t ended = kLongAgo;
    for (const Span& span : busy->second) pause(thread, {ended, span.start}), ended = span.end;
    if (thread == lead_) pause(thread, {ended, last});
  }
}

// A thread that goes on after another one waited until then: from the beginning of its pause, or since the other one
// began to work for it. It did not wait while it came to the end of a step.
void Simulation::pause(int32_t thread, Span gap) {
  if (gap.start >= gap.end) return;
  const Handover found = handovers_.in_pause(thread, lead_, gap.start, gap.end);
  if (found.thread < 0) return;
  handed_.emplace_back(found, thread);
  int64_t since = gap.start;
  if (!found.given) {
    const auto& spans = graph_.busy().at(found.thread);
    const auto first = std::partition_point(spans.begin(), spans.end(), [&](const Span& s) { return s.end <= gap.start; });
    if (first != spans.end()) since = std::max(since, first->start);
  }
  const auto& bounds = bounds_[thread];
  const auto bound = std::lower_bound(bounds.begin(), bounds.end(), found.time);
  if (bound != bounds.begin()) since = std::max(since, *(bound - 1));
  if (since < found.time) threads_[thread].own.wait({since, found.time});
}

void Simulation::add_points() {
  const auto add = [this](int32_t thread, int64_t time) { threads_[thread].times.push_back(time); };
  for (const auto& call : graph_.calls()) add(call.thread, call.start), add(call.thread, call.end);
  for (const auto& [found, thread] : handed_) add(thread, found.time), add(found.thread, found.time);
  for (const Step& step : steps_) {
    const int32_t thread = step.thread < 0 ? lead_ : step.thread;
    const Span& span = step.thread < 0 ? step.window : step.mark;
    if (thread >= 0) add(thread, span.start), add(thread, span.end);
  }
  for (const auto& [thread, joins] : graph_.joins())
    for (const auto& join : joins) {
      const auto& call = graph_.calls()[static_cast<size_t>(join.call)];
      if (call.start < join.released) threads_[thread].own.wait({call.start, join.released});
    }
}

void Simulation::lay_threads() {
  for (auto& [number, thread] : threads_) {
    auto& times = thread.times;
    std::sort(times.begin(), times.end());
    times.erase(std::unique(times.begin(), times.end()), times.end());
    thread.first = time_.size();
    thread.own.build(times.empty() ? 0 : times.front(), rules_.host);
    lay(number, thread);
  }
}

// The own time from point to point, less what is spared there: as far as there is that much of it.
void Simulation::lay(int32_t number, const Thread& thread) {
  const auto* costs = costs_ ? costs_->of(number) : nullptr;
  if (costs && costs->size() != thread.times.size()) throw std::logic_error("costs of other points");
  for (size_t i = 0; i < thread.times.size(); ++i) {
    const int64_t own = i == 0 ? kNull : thread.own.until(thread.times[i]) - thread.own.until(thread.times[i - 1]);
    own_.push_back(i == 0 ? own : std::max(own / rules_.least_left, own - (costs ? (*costs)[i] : 0)));
    time_.push_back(thread.times[i]);
  }
}

// ---- what recording cost

PointCosts::PointCosts(const Simulation& simulation) {
  if (simulation.first_link_.empty()) throw std::logic_error("a simulation is built before its points are known");
  for (const auto& [number, thread] : simulation.threads_)
    if (!thread.times.empty()) threads_[number] = {thread.times, std::vector<int64_t>(thread.times.size())};
}

void PointCosts::add(int32_t number, const int64_t* time, const int64_t* cost, size_t count) {
  const auto found = threads_.find(number);
  if (found == threads_.end()) return;
  auto& [times, costs] = found->second;
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    if (at > 0 && times[at - 1] > time[i]) at = static_cast<size_t>(std::upper_bound(times.begin(), times.end(), time[i]) - times.begin());
    while (at < times.size() && times[at] <= time[i]) ++at;
    if (at < times.size()) costs[at] = saturating_add(costs[at], cost[i]);
  }
}

const std::vector<int64_t>* PointCosts::of(int32_t number) const {
  const auto found = threads_.find(number);
  return found == threads_.end() ? nullptr : &found->second.costs;
}

int32_t Simulation::point(int32_t number, int64_t time) const {
  const Thread& thread = threads_.at(number);
  const auto at = std::lower_bound(thread.times.begin(), thread.times.end(), time);
  return static_cast<int32_t>(thread.first + static_cast<size_t>(at - thread.times.begin()));
}

void Simulation::link_calls() {
  for (const auto& [thread, joins] : graph_.joins())
    for (const auto& join : joins) link_join(join, true);
  for (const auto& join : graph_.passed()) link_join(join, false);
  for (const auto& [found, thread] : handed_) links_.push_back({point(thread, found.time), point(found.thread, found.time), false, 0});
  std::stable_sort(links_.begin(), links_.end(), [](const Link& a, const Link& b) { return a.to < b.to; });
  first_link_.assign(time_.size() + 1, 0);
  for (const Link& link : links_) ++first_link_[static_cast<size_t>(link.to) + 1];
  for (size_t i = 0; i < time_.size(); ++i) first_link_[i + 1] += first_link_[i];
}

// The end of a call that waits follows the end of the work by what the call took after that. One that found the work
// done would only not have returned before it.
void Simulation::link_join(const Dependencies::Join& join, bool waited) {
  const auto& call = graph_.calls()[static_cast<size_t>(join.call)];
  const auto& work = graph_.works()[static_cast<size_t>(join.work)];
  if (!join.for_room && (returning_.contains(call.event) || is_beside(join.work))) return;
  const OwnTime& own = threads_.at(call.thread).own;
  const int64_t tail = work.end > call.end ? call.end - work.end : own.until(call.end) - own.until(join.released);
  links_.push_back({point(call.thread, call.end), join.work, true, waited ? tail : 0});
}

void Simulation::lay_work() {
  const auto& works = graph_.works();
  pieces_.resize(works.size());
  std::unordered_map<int32_t, std::array<int32_t, 2>> last;  // on each stream: in its order, and beside it
  int64_t ran = kLongAgo;  // until when anything before ran
  for (size_t at = 0; at < works.size(); ++at) {
    const auto& w = works[at];
    const bool beside = is_beside(static_cast<int32_t>(at));
    int32_t& before = last.try_emplace(w.stream, std::array<int32_t, 2>{-1, -1}).first->second[beside];
    const auto part = part_of_.find(w.event);
    pieces_[at].length = part == part_of_.end() ? w.end - w.start : scaled(w.end - w.start, part->second);
    follow(at, before);
    if (is_held(w, ran)) held_.push_back(static_cast<int32_t>(at)), pieces_[at].after[2] = -1;
    ran = std::max(ran, w.end);
    before = static_cast<int32_t>(at);
    if (w.launch >= 0) by_launch_.push_back(static_cast<int32_t>(at));
  }
  const auto launched = [&](int32_t at) { return works[static_cast<size_t>(at)].launch; };
  std::stable_sort(by_launch_.begin(), by_launch_.end(), [&](int32_t a, int32_t b) { return launched(a) < launched(b); });
}

// Whether the first recorded work of a stream stood in its queue while nothing recorded ran: the device was busy with work
// from before the profile. It begins when it began, whatever the host does.
bool Simulation::is_held(const Dependencies::Work& w, int64_t ran) const {
  if (w.previous >= 0 || w.launch < 0) return false;
  const int64_t returned = graph_.calls()[static_cast<size_t>(w.launch)].end;
  return w.start - std::max(returned, ran) > rules_.stands_still;
}

// What let work begin, as for the path; but the first work of a call that takes longer than launching usually does follows
// the end of that call, where it began later.
Dependencies::By Simulation::cause_of(size_t at) const {
  const auto& works = graph_.works();
  const auto& w = works[at];
  const auto cause = graph_.cause(at);
  if (w.launch < 0 || cause.by == Dependencies::By::launch) return cause.by;
  const auto& call = graph_.calls()[static_cast<size_t>(w.launch)];
  const bool first = call.first_work == static_cast<int32_t>(at);
  return first && call.end <= w.start && call.end > saturating_add(cause.time, graph_.gap()) ? Dependencies::By::launch : cause.by;
}

// Of a delay that nothing explains some is kept. All of it, where the trace cannot have what explains it: without its
// launch, or before the first recorded work of its stream.
int64_t Simulation::kept_of(const Dependencies::Work& w, int64_t delay) const {
  return w.launch < 0 || w.previous < 0 ? delay : std::min(delay, rules_.unexplained);
}

// Work follows what let it begin by what that took, but by no more than is explained and some; what did not let it begin
// it would follow by what is usual.
void Simulation::follow(size_t at, int32_t previous) {
  const auto& works = graph_.works();
  const auto& w = works[at];
  Piece& piece = pieces_[at];
  const auto by = cause_of(at);
  const auto after = [&](size_t which, int32_t other, bool is_cause) {
    if (other < 0) return;
    const int64_t slack = w.start - works[static_cast<size_t>(other)].end;
    piece.after[which] = other;
    piece.delay[which] = std::min(slack, graph_.gap());
    if (!is_cause || slack <= graph_.gap()) return;
    piece.cause = static_cast<int8_t>(which);
    piece.unexplained = kept_of(w, slack - graph_.gap());
  };
  const bool same = previous == w.previous;
  after(0, previous, same && by == Dependencies::By::previous);
  if (!same && previous >= 0) piece.delay[0] = graph_.gap();
  if (!is_beside(static_cast<int32_t>(at)) && !is_beside(w.waited)) after(1, w.waited, by == Dependencies::By::waited);
  if (w.launch >= 0) follow_launch(at, by == Dependencies::By::launch);
}

// Work that began inside its launching call follows the start of that, else its end.
void Simulation::follow_launch(size_t at, bool is_cause) {
  const auto& w = graph_.works()[at];
  const auto& call = graph_.calls()[static_cast<size_t>(w.launch)];
  Piece& piece = pieces_[at];
  const int64_t usual = graph_.latency(w.kind);
  if (!is_cause || w.start < call.end) {
    piece.after[2] = point(call.thread, call.start);
    piece.delay[2] = is_cause ? w.start - call.start : std::min(usual, w.start - call.start);
    return;
  }
  const int64_t slack = w.start - call.end, explained = std::max<int64_t>(0, usual - (call.end - call.start));
  piece.after[2] = point(call.thread, call.end);
  piece.delay[2] = std::min(slack, explained);
  piece.unexplained = kept_of(w, slack - piece.delay[2]);
  piece.cause = 2;
}

// ---- playing

// When each point comes and each piece of work begins. A circle, which a clock that runs backwards can draw, is cut.
struct Simulation::Clock {
  enum class State : int8_t { fresh, open, done };

  Clock(const Simulation& simulation, bool kept) : simulation_(simulation), kept_(kept), points_(simulation.time_.size()) {
    state_.resize(points_ + simulation.pieces_.size());
    times.resize(state_.size());
    for (size_t node = 0; node < state_.size(); ++node) settle(node);
    reach.push_back(kLongAgo);
    for (const int32_t work : simulation.by_launch_) reach.push_back(std::max(reach.back(), end(work)));
  }

  int64_t at_point(int32_t point) const { return times[static_cast<size_t>(point)]; }
  int64_t start(int32_t work) const { return times[points_ + static_cast<size_t>(work)]; }
  int64_t end(int32_t work) const { return saturating_add(start(work), simulation_.pieces_[static_cast<size_t>(work)].length); }

  std::vector<int64_t> times;
  std::vector<int64_t> reach;  // when the first so many of the work in order of launch are done

 private:
  // Calls `then(node, delay, whether from the end of work)` for all that a node follows.
  template <class Then>
  void each(size_t node, const Then& then) const {
    if (node < points_) {
      if (simulation_.own_[node] != kNull) then(node - 1, simulation_.own_[node], false);
      for (size_t i = simulation_.first_link_[node]; i < simulation_.first_link_[node + 1]; ++i) {
        const Link& link = simulation_.links_[i];
        then(static_cast<size_t>(link.from) + (link.from_work ? points_ : 0), link.delay, link.from_work);
      }
      return;
    }
    const Piece& piece = simulation_.pieces_[node - points_];
    for (size_t which = 0; which < piece.after.size(); ++which) {
      if (piece.after[which] < 0) continue;
      const int64_t more = kept_ && piece.cause == static_cast<int8_t>(which) ? piece.unexplained : 0;
      then(static_cast<size_t>(piece.after[which]) + (which < 2 ? points_ : 0), saturating_add(piece.delay[which], more), which < 2);
    }
  }

  // First all that a node follows, then the node.
  void settle(size_t node) {
    if (state_[node] == State::done) return;
    stack_.push_back(node);
    while (!stack_.empty()) {
      const size_t top = stack_.back();
      if (state_[top] == State::fresh) {
        state_[top] = State::open;
        each(top, [&](size_t other, int64_t, bool) { if (state_[other] == State::fresh) stack_.push_back(other); });
        continue;
      }
      stack_.pop_back();
      if (state_[top] == State::open) times[top] = time_of(top), state_[top] = State::done;
    }
  }

  // What follows nothing comes when it came.
  int64_t time_of(size_t node) const {
    int64_t latest = kNull;
    each(node, [&](size_t other, int64_t delay, bool from_end) {
      if (state_[other] != State::done) return;
      const int64_t length = from_end ? simulation_.pieces_[other - points_].length : 0;
      latest = std::max(latest, saturating_add(saturating_add(times[other], length), delay));
    });
    if (latest != kNull) return latest;
    return node < points_ ? simulation_.time_[node] : simulation_.graph_.works()[node - points_].start;
  }

  const Simulation& simulation_;
  const bool kept_;
  const size_t points_;
  std::vector<State> state_;
  std::vector<size_t> stack_;
};

std::vector<Simulation::Span> Simulation::run(bool kept) const {
  if (first_link_.empty()) throw std::logic_error("a simulation is built before it is run");
  const Clock clock(*this, kept);
  const auto& works = graph_.works();
  std::vector<Span> windows;
  // What runs before all that the trace has the launch of was launched before the first step.
  int64_t before = kLongAgo, first = std::numeric_limits<int64_t>::max();
  for (const auto& w : works)
    if (w.launch >= 0) first = std::min(first, w.start);
  for (size_t at = 0; at < works.size(); ++at)
    if (works[at].launch < 0 && works[at].start < first) before = std::max(before, clock.end(static_cast<int32_t>(at)));
  for (const int32_t work : held_) before = std::max(before, clock.start(work));
  for (const Step& step : steps_) {
    windows.push_back(step.thread < 0 ? window(clock, step, before) : marked(clock, step, before));
    if (step.thread >= 0) before = windows.back().end;
  }
  return windows;
}

// A step with a mark: as the table of steps defines it.
Simulation::Span Simulation::marked(const Clock& clock, const Step& step, int64_t before) const {
  const auto& works = graph_.works();
  const auto launched = [&](int32_t at) { return graph_.calls()[static_cast<size_t>(works[static_cast<size_t>(at)].launch)].start; };
  const auto since = [&](int64_t time) { return std::partition_point(by_launch_.begin(), by_launch_.end(), [&](int32_t at) { return launched(at) < time; }); };
  const auto first = since(step.mark.start), last = since(step.mark.end);
  const int64_t start = std::max({clock.at_point(point(step.thread, step.mark.start)), before, clock.reach[static_cast<size_t>(first - by_launch_.begin())]});
  int64_t end = std::max(start, clock.at_point(point(step.thread, step.mark.end)));
  for (auto at = first; at < last; ++at) end = std::max(end, clock.end(*at));
  return {start, end};
}

// A step that is a window: its ends are those of work, where there is such work, else those of the leading thread.
Simulation::Span Simulation::window(const Clock& clock, const Step& step, int64_t) const {
  const auto& works = graph_.works();
  const auto from = [&](int64_t time) { return std::partition_point(works.begin(), works.end(), [&](const auto& w) { return w.start < time; }) - works.begin(); };
  const auto first = from(step.window.start), last = from(step.window.end);
  const auto begins = [&](long at, int64_t time) { return at < static_cast<long>(works.size()) && works[static_cast<size_t>(at)].start == time; };
  Span found{step.window.start, kLongAgo};
  if (begins(first, step.window.start)) found.start = clock.start(static_cast<int32_t>(first));
  else if (lead_ >= 0) found.start = clock.at_point(point(lead_, step.window.start));
  if (begins(last, step.window.end)) return {found.start, clock.start(static_cast<int32_t>(last))};
  bool ended = false;
  for (auto at = first; at < last; ++at) {
    found.end = std::max(found.end, clock.end(static_cast<int32_t>(at)));
    ended |= works[static_cast<size_t>(at)].end == step.window.end;
  }
  if (!ended && lead_ >= 0) found.end = std::max(found.end, clock.at_point(point(lead_, step.window.end)));
  return {found.start, std::max(found.start, found.end)};
}

}  // namespace stepscope
