#include "path.hpp"

#include <algorithm>
#include <limits>

namespace stepscope {

namespace {

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();
constexpr size_t kPatience = 1 << 20;  // events at one instant; more, and the trace is no order of events

PathKind kind_of(const Dependencies::Work& w) { return static_cast<PathKind>(w.kind); }

PathKind kind_of(PathCharge::Open open) {
  using Open = PathCharge::Open;
  switch (open) {
    case Open::dataloader: return PathKind::dataloader;
    case Open::communication: return PathKind::communication;
    case Open::op: return PathKind::op;
    case Open::sync: return PathKind::sync;
    case Open::allocation: return PathKind::allocation;
    case Open::call: return PathKind::call;
    default: return PathKind::python;
  }
}

}  // namespace

// ---- walking

void PathWalk::walk(int32_t window, int64_t start, int64_t end, int32_t lead) {
  window_ = window, begin_ = start, now_ = end, lead_ = lead;
  thread_ = lead, work_ = -1;
  const auto all = graph_.works().size();
  lowest_ = static_cast<int32_t>(all);
  const int32_t last = graph_.ended_last(end, all);
  if (last >= 0 && work(last).end == end) work_ = last;
  int64_t before = now_;
  for (size_t idle = 0; now_ > begin_; idle = now_ < before ? 0 : idle + 1, before = now_) {
    if (idle > kPatience) emit(PathKind::unknown, begin_, -1);
    else if (work_ >= 0) on_device();
    else if (thread_ >= 0) on_host();
    else lost();
  }
}

// The path goes back from now until then through one thing.
void PathWalk::emit(PathKind kind, int64_t from, int32_t place, int64_t event, int64_t label) {
  from = std::max(from, begin_);
  if (from >= now_) return;
  const bool goes_on = kind == PathKind::host && !pieces.empty() && pieces.back().kind == kind &&
                       pieces.back().window == window_ && pieces.back().place == place;
  if (goes_on) pieces.back().start = from;
  else pieces.push_back({from, now_, event, label, window_, place, kind});
  now_ = from;
  lowest_ = static_cast<int32_t>(graph_.works().size());
}

void PathWalk::move_to_work(int32_t to, int64_t time) {
  now_ = std::min(now_, time);
  work_ = to, thread_ = -1;
}

// Through work to its start, and on to what let it begin.
void PathWalk::on_device() {
  const auto at = work_;
  const Dependencies::Work& w = work(at);
  lowest_ = std::min(lowest_, at);
  if (w.start < now_) {
    emit(kind_of(w), w.start, w.stream, w.event, w.label);
    lowest_ = at;
  }
  const Dependencies::Cause cause = graph_.cause(static_cast<size_t>(at));
  if (cause.by == Dependencies::By::nothing) {
    work_ = -1, thread_ = -1;
    return;
  }
  if (cause.by == Dependencies::By::launch) {
    const Dependencies::Call& call = graph_.calls()[static_cast<size_t>(w.launch)];
    // No launch takes that long: something held the work that is not in the trace.
    if (w.start - call.end > graph_.rules().near) emit(PathKind::device_wait, call.end, w.stream, w.event, w.label);
    emit(PathKind::launch, cause.time, call.thread, call.event, call.label);
    work_ = -1, thread_ = call.thread;
    return;
  }
  const int32_t before = cause.by == Dependencies::By::previous ? w.previous : w.waited;
  const bool together = w.launch >= 0 && work(before).launch == w.launch;
  const PathKind gap = together ? PathKind::graph
                       : w.start - cause.time <= rules_.scheduling ? PathKind::scheduling
                       : w.launch < 0 ? PathKind::unknown : PathKind::device_wait;
  emit(gap, cause.time, w.stream, w.event, w.label);
  move_to_work(before, cause.time);
}

// Back on a thread to where it waited last: for the device, or for another thread.
void PathWalk::on_host() {
  const int32_t thread = thread_;
  const Dependencies::Join* join = find_join();
  const Handover hop = find_hop();
  if (join && (hop.thread < 0 || join->released >= hop.time)) {
    const Dependencies::Call& call = graph_.calls()[static_cast<size_t>(join->call)];
    emit(PathKind::host, std::min(call.end, now_), thread);
    emit(join->for_room ? PathKind::call : PathKind::sync, join->released, thread, call.event, call.label);
    move_to_work(join->work, join->released);
    return;
  }
  if (hop.thread < 0) {
    emit(PathKind::host, begin_, thread);
    return;
  }
  emit(PathKind::host, hop.until, thread);
  emit(PathKind::thread_wait, hop.time, thread);
  thread_ = hop.thread;
}

// Nothing says what came before: on from whatever ended last.
void PathWalk::lost() {
  const auto all = static_cast<size_t>(lowest_);
  const int32_t last = graph_.ended_last(now_, all);
  int64_t latest = last >= 0 ? work(last).end : kNull;
  int32_t found = -1;
  for (const auto& [thread, spans] : graph_.busy()) {
    const int64_t sign = handovers_.last_sign(thread, now_, false);
    if (sign != kNull && (sign > latest || (sign == latest && found >= 0 && thread < found))) latest = sign, found = thread;
  }
  if (latest == kNull || latest <= begin_) {
    emit(PathKind::unknown, begin_, -1);
    return;
  }
  emit(PathKind::unknown, latest, -1);
  if (found >= 0) thread_ = found;
  else move_to_work(last, latest);
}

const Dependencies::Join* PathWalk::find_join() const {
  const auto of_thread = graph_.joins().find(thread_);
  if (of_thread == graph_.joins().end()) return nullptr;
  const auto& joins = of_thread->second;
  auto at = std::upper_bound(joins.begin(), joins.end(), now_, [](int64_t t, const Dependencies::Join& j) { return t < j.released; });
  while (at != joins.begin()) {
    --at;
    if (at->released <= begin_) return nullptr;
    const bool again = at->released == now_ && at->work >= lowest_;
    if (!again) return &*at;
  }
  return nullptr;
}

// The last pause of this thread in which another one worked for it, or gave it the work that it did next.
Handover PathWalk::find_hop() const {
  if (handovers_.role(thread_, lead_) == Role::other) return {};
  static const std::vector<Dependencies::Span> none;
  const auto of_thread = graph_.busy().find(thread_);
  const auto& own = of_thread == graph_.busy().end() ? none : of_thread->second;
  int64_t until = now_;
  while (until > begin_) {
    // The nearest sign of another thread tells which pause to look at.
    int64_t sign = thread_ == lead_ || lead_ < 0 ? kNull : handovers_.last_sign(lead_, until, true);
    for (const auto& [other, other_role] : handovers_.roles())
      if (other != thread_ && other != lead_ && other_role != Role::other) sign = std::max(sign, handovers_.last_sign(other, until, true));
    if (sign == kNull || sign <= begin_) return {};
    const auto next = std::lower_bound(own.begin(), own.end(), sign, [](const Dependencies::Span& s, int64_t t) { return s.start < t; });
    const int64_t gap_end = next == own.end() ? until : std::min(until, next->start);
    const int64_t gap_start = next == own.begin() ? begin_ : (next - 1)->end;
    if (gap_start >= sign) {
      until = (next - 1)->start;  // it worked itself then
      continue;
    }
    const Handover hop = handovers_.in_pause(thread_, lead_, gap_start, gap_end);
    if (hop.thread >= 0) return hop;
    until = gap_start;
  }
  return {};
}

// ---- what was open on the host

PathCharge::PathCharge(std::vector<PathPiece> pieces, bool keep) : keep_(keep) {
  std::sort(pieces.begin(), pieces.end(), [](const PathPiece& a, const PathPiece& b) { return a.start < b.start; });
  for (const PathPiece& piece : pieces) {
    if (piece.kind == PathKind::host) threads_[piece.place].pieces.push_back(piece);
    else book(piece);
  }
}

std::vector<int32_t> PathCharge::threads() const {
  std::vector<int32_t> found;
  for (const auto& [thread, state] : threads_) found.push_back(thread);
  std::sort(found.begin(), found.end());
  return found;
}

void PathCharge::add(int32_t number, const Row& row) {
  const auto found = threads_.find(number);
  if (found == threads_.end()) return;
  Thread& thread = found->second;
  if (row.start < thread.pieces.back().end && row.end > thread.pieces.front().start) thread.waiting.push_back(row);
}

void PathCharge::advance() {
  for (auto& [number, thread] : threads_) visit_waiting(thread);
}

// Merges the stretches of rows that are in order already; there are few of them.
void PathCharge::visit_waiting(Thread& thread) {
  struct Run {
    size_t at, end;
  };
  const std::vector<Row>& rows = thread.waiting;
  const auto before = [&rows](size_t x, size_t y) {
    const Row &a = rows[x], &b = rows[y];
    if (a.start != b.start) return a.start < b.start;
    return a.end != b.end ? a.end > b.end : a.event < b.event;
  };
  std::vector<Run> runs;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || before(i, i - 1)) runs.push_back({i, i});
    runs.back().end = i + 1;
  }
  const auto later = [&before](const Run& a, const Run& b) { return before(b.at, a.at); };
  std::make_heap(runs.begin(), runs.end(), later);
  while (!runs.empty()) {
    std::pop_heap(runs.begin(), runs.end(), later);
    Run run = runs.back();
    runs.pop_back();
    // This one goes on alone until the next of the others.
    do visit(thread, rows[run.at++]);
    while (run.at < run.end && (runs.empty() || before(run.at, runs.front().at)));
    if (run.at == run.end) continue;
    runs.push_back(run);
    std::push_heap(runs.begin(), runs.end(), later);
  }
  thread.waiting.clear();
}

void PathCharge::visit(Thread& thread, const Row& row) {
  settle(thread, row.start);
  thread.stack.push_back(row);
  if (row.open == Open::dataloader && row.end > thread.loading_until) thread.loading_until = row.end, thread.loading = row;
}

void PathCharge::finish() {
  advance();
  for (auto& [number, thread] : threads_) {
    settle(thread, kForever);
    if (thread.last.end > thread.last.start) book(thread.last);
  }
  std::sort(kept.begin(), kept.end(), [](const PathPiece& a, const PathPiece& b) { return a.start < b.start; });
}

// Moves to `until`: what ends before then is closed, and the time of the path goes to the innermost.
void PathCharge::settle(Thread& thread, int64_t until) {
  while (!thread.stack.empty() && thread.stack.back().end <= until) {
    charge(thread, thread.stack.back().end);
    thread.stack.pop_back();
  }
  charge(thread, until);
}

void PathCharge::charge(Thread& thread, int64_t until) {
  if (until <= thread.cursor) return;
  int64_t from = thread.cursor;
  thread.cursor = until;
  while (thread.at < thread.pieces.size()) {
    const PathPiece& piece = thread.pieces[thread.at];
    from = std::max(from, piece.start);
    if (from >= until) return;
    PathPiece part = innermost(thread, from);
    const int64_t to = std::min({until, piece.end, part.end});
    part.start = from, part.end = to, part.window = piece.window, part.place = piece.place;
    join(thread, part);
    if (to == piece.end) ++thread.at;
    from = to;
  }
}

// Loading comes first, for it is waiting whatever it does; else the innermost that is no range, and a range by itself is
// Python that someone gave a name.
PathPiece PathCharge::innermost(const Thread& thread, int64_t now) {
  if (now < thread.loading_until) {
    const Row& row = thread.loading;
    return {now, thread.loading_until, row.event, row.label, 0, 0, PathKind::dataloader};
  }
  const Row* range = nullptr;
  for (size_t i = thread.stack.size(); i-- > 0;) {
    const Row& row = thread.stack[i];
    if (row.end <= now) continue;
    if (row.open != Open::range) return {now, row.end, row.event, row.label, 0, 0, kind_of(row.open)};
    if (!range) range = &row;
  }
  if (range) return {now, range->end, range->event, range->label, 0, 0, PathKind::python};
  return {now, kForever, kNull, kNull, 0, 0, PathKind::nothing};
}

// Books a piece of host time; one that only goes on is one with the piece before it.
void PathCharge::join(Thread& thread, const PathPiece& piece) {
  PathPiece& last = thread.last;
  const bool goes_on = last.end == piece.start && last.event == piece.event && last.kind == piece.kind && last.window == piece.window;
  if (goes_on && last.end > last.start) {
    last.end = piece.end;
    return;
  }
  if (last.end > last.start) book(last);
  last = piece;
}

void PathCharge::book(const PathPiece& piece) {
  Sum& sum = sums[{piece.window, piece.kind, piece.label}];
  sum.time += piece.end - piece.start;
  ++sum.pieces;
  sum.event = std::max(sum.event, piece.event);  // any would do, the same each time is better
  if (keep_) kept.push_back(piece);
}

}  // namespace stepscope
