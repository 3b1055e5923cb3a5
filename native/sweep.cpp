#include "sweep.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace stepscope {

namespace {

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();
constexpr size_t kNear = 128;

}  // namespace

// ---- nesting

ThreadSweep::ThreadSweep(std::vector<size_t> payload_columns_by_table, CallTree* tree)
    : payload_columns_(std::move(payload_columns_by_table)), tree_(tree), ended_(payload_columns_.size()) {}

size_t ThreadSweep::add_run(RunSpec spec) {
  runs_.push_back({spec});
  hungry_.push_back(runs_.size() - 1);
  return runs_.size() - 1;
}

void ThreadSweep::give(size_t run, std::vector<int64_t> event, std::vector<int64_t> start, std::vector<int64_t> dur,
                       std::vector<std::vector<int64_t>> payload) {
  if (event.empty()) return;
  Run& r = runs_[run];
  if (r.spec.table >= 0 && payload.size() < payload_columns_[static_cast<size_t>(r.spec.table)])
    throw std::invalid_argument("a run without some columns of its table");
  const size_t rows = event.size();
  if (r.spec.table >= 0) {  // all at once: rows that were added one by one would be copied several times over
    std::vector<Open>& ended = ended_[static_cast<size_t>(r.spec.table)];
    if (ended.size() + rows > ended.capacity()) ended.reserve(std::max(ended.size() + rows, 2 * ended.capacity()));
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

int64_t ThreadSweep::advance(int64_t horizon) {
  while (hungry_.empty() && !heads_.empty()) {
    const size_t run = pop_head();
    Run& r = runs_[run];
    const std::vector<int64_t>& start = r.piece->start;
    // The others' next row is a bound up to which this run can go on alone.
    for (;;) {
      if (start[r.at] >= horizon || (!heads_.empty() && before(heads_.front(), run))) {
        push_head(run);
        break;
      }
      visit(r);
      if (++r.at == start.size()) {
        if (!r.ended) hungry_.push_back(run);
        break;
      }
    }
    if (r.at < start.size() && start[r.at] >= horizon) break;
  }
  return hungry_.empty() ? -1 : static_cast<int64_t>(hungry_.front());
}

void ThreadSweep::visit(const Run& run) {
  const int64_t start = run.piece->start[run.at], dur = run.piece->dur[run.at];
  Open o{run.piece->event[run.at], start, start, dur, kNull, kNull, 0, 0, 0, 0, 0, 0};
  o.table = run.spec.table;
  o.piece = run.piece, o.row = run.at, o.number = visited_++;
  if (dur != kNull && start != kNull) o.end = saturating_add(start, dur);
  if (start != kNull) {
    settle(start);
    if (!stack_.empty()) o.inside = stack_.back().event;
    o.depth = static_cast<int32_t>(stack_.size() - ended_below_);
    while (!marked_.empty() && marked_.back().second <= start) marked_.pop_back();
    if (!marked_.empty()) o.marked = marked_.back().first;
    if (run.spec.marks) marked_.emplace_back(o.event, o.end);
    if (tree_) follow(run, o);
    else if (run.spec.weight >= 0) weigh(start, run.piece->payload[static_cast<size_t>(run.spec.weight)][run.at]);
    if (run.spec.covers) covered_until_ = std::max(covered_until_, o.end);
  }
  if (run.spec.group >= 0) {
    o.group = run.piece->payload[static_cast<size_t>(run.spec.group)][run.at];
    const auto [it, first] = fresh_from_.try_emplace(o.group, o.start);
    o.fresh = std::max<int64_t>(0, o.end - std::max(o.start, it->second));
    it->second = std::max(it->second, o.end);
  }
  if (run.spec.opens && start != kNull) open(o);
  else emit(o);
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
  stack_.resize(kept);
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
  o.node = path(o.start);
  if (run.spec.marks) o.marked = o.event;  // on a path, what marks is the innermost of its kind itself
  if (!run.spec.opens) return;
  o.label = run.piece->payload[static_cast<size_t>(run.spec.label)][run.at];
  o.node = tree_->child(o.node, o.label);
  tree_->enter(o.node, o.dur);
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
  if (o.table >= 0) ended_[static_cast<size_t>(o.table)].push_back(o);
  else --o.piece->left;
}

void ThreadSweep::finish_thread() {
  settle(kForever);
  stack_.clear(), marked_.clear(), runs_.clear(), heads_.clear(), hungry_.clear(), fresh_from_.clear();
  nesting_.clear(), crossing_.clear();
  ended_below_ = 0;
  cursor_ = covered_until_ = kNull;
}

// The places of rows in the order of their numbers. Most of a stretch of numbers is there, so each has a slot.
std::vector<uint32_t> ThreadSweep::order_of(const std::vector<Open>& rows) {
  std::vector<uint32_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto before = [&rows](uint32_t a, uint32_t b) { return rows[a].number < rows[b].number; };
  if (std::is_sorted(order.begin(), order.end(), before)) return order;  // what encloses nothing is given back as it came
  const auto [first, last] = std::minmax_element(order.begin(), order.end(), before);
  const size_t from = rows[*first].number, span = rows[*last].number - from + 1;
  if (span / 8 > rows.size()) {  // something that was open for long
    std::sort(order.begin(), order.end(), before);
    return order;
  }
  std::vector<uint32_t> slots(span);  // one more than the place; 0 is free
  for (size_t i = 0; i < rows.size(); ++i) slots[rows[i].number - from] = static_cast<uint32_t>(i + 1);
  size_t filled = 0;
  for (const uint32_t slot : slots)
    if (slot) order[filled++] = slot - 1;
  return order;
}

void ThreadSweep::fill(Nested& out, const std::vector<Open>& rows, const std::vector<uint32_t>& order, size_t from) const {
  const size_t to = std::min(from + kNear, rows.size());
  const auto put = [&](auto& column, auto value) {
    column.resize(rows.size());
    for (size_t at = from; at < to; ++at) column[at] = value(rows[order[at]]);
  };
  const std::pair<Column<int64_t>*, int64_t Open::*> columns[] = {
      {&out.event, &Open::event},         {&out.start, &Open::start},   {&out.dur, &Open::dur},
      {&out.inside, &Open::inside},       {&out.marked, &Open::marked}, {&out.self, &Open::self},
      {&out.uncovered, &Open::uncovered}, {&out.fresh, &Open::fresh},   {&out.weight_self, &Open::weight_self},
      {&out.weight_once, &Open::weight_once}};
  for (const auto& [column, member] : columns) put(*column, [member = member](const Open& o) { return o.*member; });
  put(out.depth, [](const Open& o) { return o.depth; });
  if (tree_) {
    put(out.node, [](const Open& o) { return o.node; });
    put(out.in_steps, [](const Open& o) { return o.charged.in_steps; });
    put(out.late, [](const Open& o) { return o.charged.late; });
  }
  const auto payload = [](size_t i) { return [i](const Open& o) { return o.piece->payload[i][o.row]; }; };
  for (size_t i = 0; i < out.narrow.size(); ++i)
    put(out.narrow[i], [value = payload(i)](const Open& o) {
      const int64_t v = value(o);
      return v == kNull ? kNarrowNull : static_cast<int32_t>(v);
    });
  for (size_t i = 0; i < out.payload.size(); ++i) put(out.payload[i], payload(out.narrow.size() + i));
}

Nested ThreadSweep::take(size_t table, size_t narrow) {
  std::vector<Open>& rows = ended_[table];
  const std::vector<uint32_t> order = order_of(rows);
  Nested out;
  out.narrow.resize(std::min(narrow, payload_columns_[table]));
  out.payload.resize(payload_columns_[table] - out.narrow.size());
  // A few rows at a time, which stay near while one column after the other is filled from them.
  for (size_t from = 0; from < rows.size(); from += kNear) fill(out, rows, order, from);
  for (const Open& row : rows) --row.piece->left;
  std::erase_if(pieces_, [](const auto& piece) { return piece->left == 0; });
  rows.clear();
  return out;
}

// ---- links

void Linker::add(const int64_t* correlation, const int64_t* start, const int64_t* event, size_t rows) {
  for (size_t i = 0; i < rows; ++i) keys_.push_back({correlation[i], start[i], static_cast<uint32_t>(keys_.size())});
  event_.insert(event_.end(), event, event + rows);
}

void Linker::build() {
  op_.assign(event_.size(), kNull);
  work_ns_.assign(event_.size(), 0);
  work_events_.assign(event_.size(), 0);
  const auto before = [this](const Key& a, const Key& b) {
    if (a.correlation != b.correlation) return a.correlation < b.correlation;
    return a.start != b.start ? a.start < b.start : event_[a.launch] < event_[b.launch];
  };
  if (!std::is_sorted(keys_.begin(), keys_.end(), before)) std::sort(keys_.begin(), keys_.end(), before);
}

int64_t Linker::find(int64_t correlation, int64_t start) const {
  if (correlation == kNull) return -1;
  const auto first = std::lower_bound(keys_.begin(), keys_.end(), correlation, [](const Key& key, int64_t c) { return key.correlation < c; });
  if (first == keys_.end() || first->correlation != correlation) return -1;
  const auto past = std::upper_bound(first, keys_.end(), std::pair(correlation, start), [](const auto& at, const Key& key) {
    return at.first != key.correlation ? at.first < key.correlation : at.second < key.start;
  });
  if (past != first) return past[-1].launch;
  const bool alone = first + 1 == keys_.end() || first[1].correlation != correlation;
  return alone ? int64_t{first->launch} : -1;  // clocks may be off by a little; of several, none came in time
}

void Linker::link(const int64_t* correlation, const int64_t* start, const int64_t* dur, size_t rows, int32_t* out) {
  for (size_t i = 0; i < rows; ++i) {
    const int64_t launch = find(correlation[i], start[i]);
    out[i] = static_cast<int32_t>(launch);
    if (launch < 0) continue;
    const auto at = static_cast<size_t>(launch);
    ++work_events_[at];
    if (dur[i] != kNull) work_ns_[at] = saturating_add(work_ns_[at], dur[i]);
  }
}

// ---- devices

DeviceSweep::DeviceSweep(std::vector<int64_t> window_starts, std::vector<int64_t> window_ends)
    : window_starts_(std::move(window_starts)), window_ends_(std::move(window_ends)) {
  for (size_t i = 0; i < window_starts_.size(); ++i) windows += window_ends_[i] - window_starts_[i];
}

void DeviceSweep::push(const int64_t* start, const int64_t* dur, const int64_t* kind, const int64_t* weight, size_t rows) {
  const auto later = [](const Running& a, const Running& b) { return a.end > b.end; };
  for (size_t i = 0; i < rows; ++i) {
    if (start[i] == kNull || dur[i] == kNull || dur[i] <= 0) continue;
    advance(start[i]);
    const Running work{saturating_add(start[i], dur[i]), kind[i], weight[i] == kNull ? 0 : weight[i]};
    ++active_[work.kind];
    weight_ = saturating_add(weight_, work.weight);
    running_.push_back(work);
    std::push_heap(running_.begin(), running_.end(), later);
  }
}

void DeviceSweep::advance(int64_t now) {
  const auto later = [](const Running& a, const Running& b) { return a.end > b.end; };
  while (!running_.empty() && running_.front().end <= now) {
    const Running ended = running_.front();
    account(cursor_, ended.end);
    cursor_ = ended.end;
    --active_[ended.kind];
    weight_ -= ended.weight;
    std::pop_heap(running_.begin(), running_.end(), later);
    running_.pop_back();
  }
  if (!running_.empty()) account(cursor_, now);
  cursor_ = now;
}

void DeviceSweep::account(int64_t from, int64_t to) {
  while (window_ < window_ends_.size() && window_ends_[window_] <= from) ++window_;
  for (size_t w = window_; w < window_starts_.size() && window_starts_[w] < to; ++w) {
    const int64_t time = std::min(to, window_ends_[w]) - std::max(from, window_starts_[w]);
    if (time <= 0) continue;
    busy += time;
    for (size_t k = 0; k < kKinds; ++k)
      if (active_[k]) by_kind[k] += time;
    if (active_[0] || active_[1]) kernel += time;
    if (active_[0] && active_[1]) overlap += time;
    filled += static_cast<double>(time) * static_cast<double>(std::min(weight_, kFull)) / static_cast<double>(kFull);
  }
}

void DeviceSweep::finish() { advance(kForever); }

}  // namespace stepscope
