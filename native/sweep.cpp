#include "sweep.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <type_traits>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace stepscope {

namespace {

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

// What is put down of every row, beside its depth.
enum Number { kInside, kMarked, kSelf, kUncovered, kFresh, kWeightSelf, kWeightOnce, kNode, kInSteps, kLate };
constexpr std::array<Column<int64_t> Nested::*, 10> kNumbers = {
    &Nested::inside,      &Nested::marked,      &Nested::self, &Nested::uncovered, &Nested::fresh,
    &Nested::weight_self, &Nested::weight_once, &Nested::node, &Nested::in_steps,  &Nested::late};

}  // namespace

// ---- nesting

ThreadSweep::ThreadSweep(std::vector<size_t> payload_columns_by_table, CallTree* tree, const std::vector<size_t>& only_inside)
    : payload_columns_(std::move(payload_columns_by_table)), tree_(tree), tables_(payload_columns_.size()) {
  for (Visited& table : tables_) table.kept = tree ? size_t{kLate} + 1 : size_t{kNode};  // those of a tree only where there is one
  for (const size_t table : only_inside) tables_.at(table).kept = size_t{kInside} + 1;
}

size_t ThreadSweep::add_run(RunSpec spec) {
  if (spec.table >= 0 && tables_.at(static_cast<size_t>(spec.table)).kept <= kMarked && !only_asks(spec))
    throw std::invalid_argument("a run that asks for more than what it is in");
  runs_.push_back({spec});
  hungry_.push_back(runs_.size() - 1);
  return runs_.size() - 1;
}

void ThreadSweep::give(size_t run, GivenColumn event, GivenColumn start, GivenColumn dur, std::vector<GivenColumn> payload) {
  if (event.empty()) return;
  Run& r = runs_[run];
  if (r.spec.table >= 0 && payload.size() < payload_columns_[static_cast<size_t>(r.spec.table)])
    throw std::invalid_argument("a run without some columns of its table");
  const size_t rows = event.size();
  for (const int used : {r.spec.weight, r.spec.group, r.spec.label})
    if (used >= 0 && payload.at(static_cast<size_t>(used)).size() != rows) throw std::invalid_argument("a run without a column that it needs");
  if (r.spec.table >= 0) {
    Visited& table = tables_[static_cast<size_t>(r.spec.table)];
    table.given += rows;
    for (size_t i = 0; i < table.kept; ++i) table.numbers[i].resize(std::max(table.numbers[i].size(), table.given));
    table.depth.resize(std::max(table.depth.size(), table.given));
  }
  pieces_.push_back(std::make_unique<Piece>(Piece{std::move(event), std::move(start), std::move(dur), std::move(payload), rows}));
  r.piece = pieces_.back().get();
  r.at = 0;
  std::erase(hungry_, run);
  push_head(run);
}

void ThreadSweep::end_run(size_t run) {
  runs_[run].ended = true;
  std::erase(hungry_, run);
}

bool ThreadSweep::before(size_t a, size_t b) const {
  const Run &x = runs_[a], &y = runs_[b];
  const int64_t start_x = x.piece->start[x.at], start_y = y.piece->start[y.at];
  if (start_x != start_y) return start_x < start_y;
  // What opens comes before what only asks: an event that begins at an instant is open at it.
  if (x.spec.opens != y.spec.opens) return x.spec.opens;
  const int64_t dur_x = x.piece->dur[x.at], dur_y = y.piece->dur[y.at];
  return dur_x != dur_y ? dur_x > dur_y : x.piece->event[x.at] < y.piece->event[y.at];
}

void ThreadSweep::push_head(size_t run) {
  heads_.push_back(run);
  std::push_heap(heads_.begin(), heads_.end(), [this](size_t a, size_t b) { return before(b, a); });
}

size_t ThreadSweep::pop_head() {
  std::pop_heap(heads_.begin(), heads_.end(), [this](size_t a, size_t b) { return before(b, a); });
  const size_t run = heads_.back();
  heads_.pop_back();
  return run;
}

// Whether rows of a run only ask what they are in, as most of those do that do not open.
bool ThreadSweep::only_asks(const RunSpec& spec) const { return !tree_ && !spec.opens && !spec.marks && spec.group < 0 && spec.table >= 0; }

int64_t ThreadSweep::advance(int64_t horizon) {
  while (hungry_.empty() && !heads_.empty()) {
    const size_t run = go_on(pop_head(), horizon);
    if (runs_[run].at < runs_[run].piece->start.size()) {
      push_head(run);
      break;
    }
    if (!runs_[run].ended) hungry_.push_back(run);
  }
  return hungry_.empty() ? -1 : static_cast<int64_t>(hungry_.front());
}

// Visits the rows of a run, and of those that get in between, until one of them has no more, or a row starts too late; returns
// that run, which is not among the heads then.
size_t ThreadSweep::go_on(size_t run, int64_t horizon) {
  for (;;) {
    Run& r = runs_[run];
    const GivenColumn& start = r.piece->start;
    const bool inside = only_asks(r.spec);
    // The others' next row is a bound up to which this run can go on alone.
    for (;;) {
      if (start[r.at] >= horizon) return run;
      if (!heads_.empty() && before(heads_.front(), run)) break;
      if (inside) visit_inside(r);
      else visit(r);
      if (++r.at == start.size()) return run;
    }
    if (heads_.size() == 1) {  // two that take turns, as operators and their launches do, need no heap
      std::swap(run, heads_.front());
    } else {
      push_head(run);
      run = pop_head();
    }
  }
}

// Takes a row of the table for the next row of a run.
size_t ThreadSweep::place(const Run& run) {
  Visited& table = tables_[static_cast<size_t>(run.spec.table)];
  if (!table.stretches.empty() && table.stretches.back().piece == run.piece && table.stretches.back().row + table.stretches.back().count == run.at)
    ++table.stretches.back().count;
  else
    table.stretches.push_back({run.piece, run.at, 1});
  return table.visited++;
}

// Moves to an instant, and tells what is open there.
ThreadSweep::Around ThreadSweep::around_at(int64_t now) {
  if (now == kNull) return {};
  settle(now);
  while (!marked_.empty() && marked_.back().second <= now) marked_.pop_back();
  return {stack_.empty() ? kNull : stack_.back().event, marked_.empty() ? kNull : marked_.back().first,
          static_cast<int32_t>(stack_.size() - ended_below_)};
}

void ThreadSweep::visit(const Run& run) {
  const int64_t start = run.piece->start[run.at], dur = run.piece->dur[run.at];
  Open o{run.piece->event[run.at], start};
  int64_t fresh = 0;
  o.table = run.spec.table;
  if (dur != kNull && start != kNull) o.end = saturating_add(start, dur);
  Around around = around_at(start);
  if (start != kNull) {
    if (run.spec.marks) marked_.emplace_back(o.event, o.end);
    if (tree_) {
      follow(run, o);
      if (run.spec.marks) around.marked = o.event;  // on a path, what marks is the innermost of its kind itself
    } else if (run.spec.weight >= 0) {
      weigh(start, run.piece->payload[static_cast<size_t>(run.spec.weight)][run.at]);
    }
    if (run.spec.covers) covered_until_ = std::max(covered_until_, o.end);
  }
  if (run.spec.group >= 0) {
    o.group = run.piece->payload[static_cast<size_t>(run.spec.group)][run.at];
    int64_t& from = fresh_from(o.group);
    fresh = std::max<int64_t>(0, o.end - std::max(start, from));
    from = std::max(from, o.end);
  }
  if (o.table >= 0) {
    Visited& table = tables_[static_cast<size_t>(o.table)];
    o.slot = place(run);
    table.numbers[kInside][o.slot] = around.inside, table.numbers[kMarked][o.slot] = around.marked;
    table.numbers[kFresh][o.slot] = fresh, table.depth[o.slot] = around.depth;
    ++table.open;
  } else {
    --run.piece->left;
  }
  if (run.spec.opens && start != kNull) open(o);
  else emit(o);
}

// The same for an event that only asks what it is in.
void ThreadSweep::visit_inside(const Run& run) {
  const int64_t start = run.piece->start[run.at], dur = run.piece->dur[run.at];
  const Around around = around_at(start);
  if (start != kNull) {
    if (run.spec.weight >= 0) weigh(start, run.piece->payload[static_cast<size_t>(run.spec.weight)][run.at]);
    if (run.spec.covers) covered_until_ = std::max(covered_until_, dur == kNull ? start : saturating_add(start, dur));
  }
  Visited& table = tables_[static_cast<size_t>(run.spec.table)];
  const size_t slot = place(run);
  table.numbers[kInside][slot] = around.inside, table.depth[slot] = around.depth;
  if (table.kept <= kMarked) return;
  table.numbers[kMarked][slot] = around.marked;
  for (const Number nothing : {kSelf, kUncovered, kFresh, kWeightSelf, kWeightOnce}) table.numbers[nothing][slot] = 0;
}

int64_t& ThreadSweep::fresh_from(int64_t group) {
  constexpr auto kSmall = uint64_t{1} << 16;
  const auto number = static_cast<uint64_t>(group);
  if (number >= kSmall) return fresh_from_far_.try_emplace(group, kNull).first->second;
  if (number >= fresh_from_.size()) fresh_from_.resize(number + 1, kNull);
  return fresh_from_[number];
}

// Puts an event on the stack and notes those around it that it will outlive.
void ThreadSweep::open(const Open& o) {
  while (!nesting_.empty() && stack_[nesting_.back()].end < o.end) {
    Open& outlived = stack_[nesting_.back()];
    nesting_.pop_back();
    outlived.crosses = true;
    crossing_.push_back(outlived.end);
    std::push_heap(crossing_.begin(), crossing_.end(), std::greater<>());
  }
  nesting_.push_back(stack_.size());
  stack_.push_back(o);
}

void ThreadSweep::close(const Open& o) {
  emit(o);
  if (o.crosses) --ended_below_;
  else nesting_.pop_back();
}

// Moves to `now`: what ended until then closes, the rest of the time belongs to the innermost.
void ThreadSweep::settle(int64_t now) {
  while (!crossing_.empty() && crossing_.front() <= now) {
    std::pop_heap(crossing_.begin(), crossing_.end(), std::greater<>());
    crossing_.pop_back();
    ++ended_below_;
  }
  while (!stack_.empty() && stack_.back().end <= now) {
    charge(stack_.back().end);
    close(stack_.back());
    stack_.pop_back();
  }
  charge(now);
  if (cursor_ < now) cursor_ = now;
  // Long chains of crossing events would leave many that ended below one that did not.
  if (ended_below_ > 64 && ended_below_ * 2 > stack_.size()) drop_ended(now);
}

void ThreadSweep::drop_ended(int64_t now) {
  size_t kept = 0;
  nesting_.clear();
  for (const Open& o : stack_) {
    if (o.end <= now) {
      emit(o);
      continue;
    }
    if (!o.crosses) nesting_.push_back(kept);
    stack_[kept++] = o;
  }
  stack_.erase(stack_.begin() + static_cast<ptrdiff_t>(kept), stack_.end());
  ended_below_ = 0;
}

void ThreadSweep::charge(int64_t until) {
  if (until <= cursor_) return;
  if (tree_) {
    if (cursor_ == kNull) {
      // Nothing has been open yet.
    } else if (stack_.empty()) {
      tree_->charge(tree_->root(), cursor_, until);
    } else {
      const auto charged = tree_->charge(stack_.back().node, cursor_, until);
      stack_.back().charged.in_steps += charged.in_steps, stack_.back().charged.late += charged.late;
    }
  } else if (!stack_.empty()) {
    const int64_t covered = std::max<int64_t>(0, std::min(until, covered_until_) - std::min(cursor_, covered_until_));
    stack_.back().self += until - cursor_;
    stack_.back().uncovered += until - cursor_ - covered;
  }
  cursor_ = until;
}

// A launch of `weight`: its innermost event owns it, and so does the outermost open one of every group.
void ThreadSweep::weigh(int64_t now, int64_t weight) {
  if (weight == kNull || weight == 0 || stack_.empty()) return;
  stack_.back().weight_self = saturating_add(stack_.back().weight_self, weight);
  seen_groups_.clear();
  for (Open& o : stack_) {
    if (o.end <= now || std::find(seen_groups_.begin(), seen_groups_.end(), o.group) != seen_groups_.end()) continue;
    seen_groups_.push_back(o.group);
    o.weight_once = saturating_add(o.weight_once, weight);
  }
}

// Finds the path of a call: that of what is open around it, and its label.
void ThreadSweep::follow(const Run& run, Open& o) {
  o.node = path(run.piece->start[run.at]);
  if (!run.spec.opens) return;
  o.label = run.piece->payload[static_cast<size_t>(run.spec.label)][run.at];
  o.node = tree_->child(o.node, o.label);
  tree_->enter(o.node, run.piece->dur[run.at]);
  if (run.spec.weight < 0) return;
  const int64_t weight = run.piece->payload[static_cast<size_t>(run.spec.weight)][run.at];
  if (weight != kNull) tree_->launch(o.node, weight);
}

int64_t ThreadSweep::path(int64_t now) {
  if (stack_.empty()) return tree_->root();
  if (!ended_below_) return stack_.back().node;
  // What crosses others began inside a call that has ended since: only what is open now is on the path.
  int64_t node = tree_->root();
  for (const Open& o : stack_)
    if (o.end > now) node = tree_->child(node, o.label);
  return node;
}

void ThreadSweep::emit(const Open& o) {
  if (o.table < 0) return;
  Visited& table = tables_[static_cast<size_t>(o.table)];
  --table.open;
  table.numbers[kSelf][o.slot] = o.self, table.numbers[kUncovered][o.slot] = o.uncovered;
  table.numbers[kWeightSelf][o.slot] = o.weight_self, table.numbers[kWeightOnce][o.slot] = o.weight_once;
  if (!tree_) return;
  table.numbers[kNode][o.slot] = o.node, table.numbers[kInSteps][o.slot] = o.charged.in_steps, table.numbers[kLate][o.slot] = o.charged.late;
}

void ThreadSweep::finish_thread() {
  settle(kForever);
  stack_.clear(), marked_.clear(), runs_.clear(), heads_.clear(), hungry_.clear(), fresh_from_.clear(), fresh_from_far_.clear();
  nesting_.clear(), crossing_.clear();
  ended_below_ = 0;
  cursor_ = covered_until_ = kNull;
}

std::vector<size_t> ThreadSweep::open_slots(size_t table) const {
  std::vector<size_t> slots;
  for (const Open& o : stack_)
    if (o.table == static_cast<int>(table)) slots.push_back(o.slot);
  return slots;  // in order, as the stack is
}

// Parts the stretches of a table: rows that have ended, and each that has not.
std::pair<std::vector<ThreadSweep::Stretch>, std::vector<ThreadSweep::Stretch>> ThreadSweep::parted(const std::vector<Stretch>& stretches,
                                                                                                      const std::vector<size_t>& open) {
  std::vector<Stretch> ended, kept;
  size_t first = 0, next = 0;  // row of the table where a stretch begins, and which of the open ones comes next
  for (Stretch stretch : stretches) {
    const size_t end = first + stretch.count;
    for (; next < open.size() && open[next] < end; ++next) {
      const size_t before = open[next] - first;
      if (before) ended.push_back({stretch.piece, stretch.row, before});
      kept.push_back({stretch.piece, stretch.row + before, 1});
      stretch.row += before + 1, stretch.count -= before + 1;
      first = open[next] + 1;
    }
    if (stretch.count) ended.push_back(stretch);
    first = end;
  }
  return {std::move(ended), std::move(kept)};
}

// The values of some rows, one after the other; none at all if nothing is in the column.
template <class To, class Of>
void ThreadSweep::gather(const std::vector<Stretch>& from, To& to, Of column) {
  using Value = typename To::value_type;
  if (std::all_of(from.begin(), from.end(), [&](const Stretch& one) { return column(*one.piece).empty(); })) return;
  size_t rows = 0;
  for (const Stretch& one : from) rows += one.count;
  to.resize(rows);
  auto at = to.begin();
  for (const Stretch& one : from) {
    const GivenColumn& values = column(*one.piece);
    const int64_t* first = values.values + (values.empty() ? 0 : one.row);
    if (values.empty()) at = std::fill_n(at, one.count, sizeof(Value) == 4 ? static_cast<Value>(kNarrowNull) : static_cast<Value>(kNull));
    else if constexpr (sizeof(Value) == 8) at = std::copy_n(first, one.count, at);
    else at = std::transform(first, first + static_cast<ptrdiff_t>(one.count), at, [](int64_t v) { return v == kNull ? kNarrowNull : static_cast<int32_t>(v); });
  }
}

Nested ThreadSweep::take(size_t number, size_t narrow) {
  Visited& table = tables_[number];
  const std::vector<size_t> open = open_slots(number);
  const size_t rows = table.visited - open.size();
  auto [ended, kept] = parted(table.stretches, open);
  Nested out;
  // Those that have ended go, without the few between them that have not; these come to the front of another column.
  const auto moved = [&](auto& from, auto& to) {
    std::remove_reference_t<decltype(from)> kept;
    kept.reserve(from.capacity()), kept.resize(table.given - rows);
    const auto row = [&](size_t at) { return from.begin() + static_cast<ptrdiff_t>(at); };
    for (size_t i = 0; i < open.size(); ++i) {
      kept[i] = from[open[i]];
      const size_t next = i + 1 < open.size() ? open[i + 1] : table.visited;
      std::copy(row(open[i] + 1), row(next), row(open[i] - i));
    }
    from.resize(rows);
    to.swap(from);
    from.swap(kept);
  };
  for (size_t i = 0; i < table.kept; ++i) moved(table.numbers[i], out.*kNumbers[i]);
  moved(table.depth, out.depth);
  gather(ended, out.event, [](const Piece& piece) -> auto& { return piece.event; });
  gather(ended, out.start, [](const Piece& piece) -> auto& { return piece.start; });
  gather(ended, out.dur, [](const Piece& piece) -> auto& { return piece.dur; });
  out.narrow.resize(std::min(narrow, payload_columns_[number]));
  out.payload.resize(payload_columns_[number] - out.narrow.size());
  for (size_t i = 0; i < payload_columns_[number]; ++i) {
    const auto column = [i](const Piece& piece) -> auto& { return piece.payload[i]; };
    if (i < out.narrow.size()) gather(ended, out.narrow[i], column);
    else gather(ended, out.payload[i - out.narrow.size()], column);
  }
  for (const Stretch& one : ended) one.piece->left -= one.count;
  std::erase_if(pieces_, [](const auto& piece) { return piece->left == 0; });
  size_t slot = 0;
  for (Open& o : stack_)
    if (o.table == static_cast<int>(number)) o.slot = slot++;
  table.stretches = std::move(kept);
  table.visited = open.size();
  table.given -= rows;
  return out;
}

// ---- links

namespace {

// Room for many values at once. Large pages, where the system has them, cost a tenth of as many small ones.
template <class T>
void make_room(std::vector<T>& values, size_t count) {
  values.reserve(count);
#if defined(MADV_HUGEPAGE)
  constexpr uintptr_t kLarge = 2 << 20;
  const auto first = (reinterpret_cast<uintptr_t>(values.data()) + kLarge - 1) / kLarge * kLarge;
  const auto end = (reinterpret_cast<uintptr_t>(values.data()) + count * sizeof(T)) / kLarge * kLarge;
  if (end > first) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);  // otherwise small ones
#endif
}

}  // namespace

Linker::Linker(size_t launches) {
  make_room(keys_, launches);
  make_room(event_, launches);
}

void Linker::add(const int64_t* correlation, const int64_t* start, const int64_t* event, size_t rows) {
  for (size_t i = 0; i < rows; ++i) keys_.push_back({correlation[i], start[i], static_cast<uint32_t>(keys_.size())});
  event_.insert(event_.end(), event, event + rows);
}

void Linker::build() {
  make_room(work_ns_or_op_, event_.size());
  make_room(work_events_, event_.size());
  work_ns_or_op_.assign(event_.size(), 0);
  work_events_.assign(event_.size(), 0);
  const auto before = [this](const Key& a, const Key& b) {
    if (a.correlation != b.correlation) return a.correlation < b.correlation;
    return a.start != b.start ? a.start < b.start : event_[a.launch] < event_[b.launch];
  };
  if (!std::is_sorted(keys_.begin(), keys_.end(), before)) std::sort(keys_.begin(), keys_.end(), before);
}

// The first launch of a correlation. Work mostly comes in the order of its launches: it is looked for near the last one.
size_t Linker::first_of(int64_t correlation, size_t near) const {
  constexpr size_t kNear = 8;
  const auto before = [](const Key& key, int64_t c) { return key.correlation < c; };
  if (near == 0 || (near < keys_.size() && before(keys_[near - 1], correlation)))
    for (size_t at = near; at < std::min(near + kNear, keys_.size()); ++at)
      if (!before(keys_[at], correlation)) return at;
  return static_cast<size_t>(std::lower_bound(keys_.begin(), keys_.end(), correlation, before) - keys_.begin());
}

// `near` is where the last one was found.
int64_t Linker::find(int64_t correlation, int64_t start, size_t& near) const {
  if (correlation == kNull) return -1;
  near = first_of(correlation, near);
  const auto first = keys_.begin() + static_cast<ptrdiff_t>(near);
  if (first == keys_.end() || first->correlation != correlation) return -1;
  const bool alone = first + 1 == keys_.end() || first[1].correlation != correlation;
  if (alone) return first->launch;  // clocks may be off by a little
  const auto past = std::upper_bound(first, keys_.end(), std::pair(correlation, start), [](const auto& at, const Key& key) {
    return at.first != key.correlation ? at.first < key.correlation : at.second < key.start;
  });
  return past != first ? int64_t{past[-1].launch} : -1;  // of several, none came in time
}

void Linker::link(const int64_t* correlation, const int64_t* start, const int64_t* dur, size_t rows, int32_t* out) {
  size_t near = 0;
  for (size_t i = 0; i < rows; ++i) {
    const int64_t launch = find(correlation[i], start[i], near);
    out[i] = static_cast<int32_t>(launch);
    if (launch < 0) continue;
    const auto at = static_cast<size_t>(launch);
    ++work_events_[at];
    if (dur[i] != kNull) work_ns_or_op_[at] = saturating_add(work_ns_or_op_[at], dur[i]);
  }
}

}  // namespace stepscope
