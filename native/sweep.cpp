#include "sweep.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

namespace stepscope {

namespace {

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

}  // namespace

// ---- nesting

// Columns that grew row by row would be copied, and their pages be cleared, several times over.
void Nested::make_room(size_t rows, bool paths) {
  if (event.size() + rows <= event.capacity()) return;
  const size_t wanted = std::max(event.size() + rows, 2 * event.capacity());
  for (auto* column : {&event, &start, &dur, &inside, &marked, &self, &uncovered, &fresh, &weight_self, &weight_once})
    column->reserve(wanted);
  depth.reserve(wanted);
  for (auto& column : payload) column.reserve(wanted);
  if (paths) node.reserve(wanted), in_steps.reserve(wanted), late.reserve(wanted);
}

void Nested::sort() {
  struct Key {
    int64_t start, dur, event;
    size_t row;
    bool operator<(const Key& other) const {
      if (start != other.start) return start < other.start;
      return dur != other.dur ? dur > other.dur : event < other.event;
    }
  };
  Column<Key> order(event.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = {start[i], dur[i], event[i], i};
  bool sorted = true;
  size_t first = 0;
  threads.push_back(order.size());
  for (const size_t last : threads) {
    const auto from = order.begin() + static_cast<long>(first), to = order.begin() + static_cast<long>(last);
    first = last;
    if (std::is_sorted(from, to)) continue;  // what encloses nothing is given back as it came
    std::sort(from, to);
    sorted = false;
  }
  if (sorted) return;
  const auto reorder = [&order](auto& column) {
    std::remove_reference_t<decltype(column)> moved(column.size());
    for (size_t i = 0; i < order.size(); ++i) moved[i] = column[order[i].row];
    column.swap(moved);
  };
  reorder(inside), reorder(marked), reorder(self), reorder(uncovered), reorder(fresh);
  reorder(weight_self), reorder(weight_once), reorder(depth);
  for (auto& column : payload) reorder(column);
  if (!node.empty()) reorder(node), reorder(in_steps), reorder(late);
  reorder(event), reorder(start), reorder(dur);
}

ThreadSweep::ThreadSweep(std::vector<size_t> payload_columns_by_table, CallTree* tree)
    : payload_columns_(std::move(payload_columns_by_table)), tree_(tree), out_(payload_columns_.size()) {
  for (size_t i = 0; i < out_.size(); ++i) out_[i].payload.resize(payload_columns_[i]);
}

size_t ThreadSweep::add_run(RunSpec spec) {
  runs_.push_back({spec, {}, {}, {}, {}, 0, false});
  hungry_.push_back(runs_.size() - 1);
  return runs_.size() - 1;
}

void ThreadSweep::give(size_t run, std::vector<int64_t> event, std::vector<int64_t> start, std::vector<int64_t> dur,
                       std::vector<std::vector<int64_t>> payload) {
  Run& r = runs_[run];
  r.event = std::move(event), r.start = std::move(start), r.dur = std::move(dur), r.payload = std::move(payload);
  r.at = 0;
  if (r.event.empty()) return;
  if (r.spec.table >= 0) out_[static_cast<size_t>(r.spec.table)].make_room(r.event.size(), tree_ != nullptr);
  std::erase(hungry_, run);
  push_head(run);
}

void ThreadSweep::end_run(size_t run) {
  runs_[run].ended = true;
  std::erase(hungry_, run);
}

bool ThreadSweep::before(size_t a, size_t b) const {
  const Run &x = runs_[a], &y = runs_[b];
  if (x.start[x.at] != y.start[y.at]) return x.start[x.at] < y.start[y.at];
  // What opens comes before what only asks: an event that begins at an instant is open at it.
  if (x.spec.opens != y.spec.opens) return x.spec.opens;
  if (x.dur[x.at] != y.dur[y.at]) return x.dur[x.at] > y.dur[y.at];
  return x.event[x.at] < y.event[y.at];
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
    // The others' next row is a bound up to which this run can go on alone.
    for (;;) {
      if (r.start[r.at] >= horizon || (!heads_.empty() && before(heads_.front(), run))) {
        push_head(run);
        break;
      }
      visit(r);
      if (++r.at == r.event.size()) {
        if (!r.ended) hungry_.push_back(run);
        break;
      }
    }
    if (r.at < r.event.size() && r.start[r.at] >= horizon) break;
  }
  return hungry_.empty() ? -1 : static_cast<int64_t>(hungry_.front());
}

void ThreadSweep::visit(const Run& run) {
  const int64_t start = run.start[run.at], dur = run.dur[run.at];
  Open o{run.event[run.at], start, start, dur, kNull, kNull, 0, 0, 0, 0, 0, 0};
  o.table = run.spec.table;
  if (dur != kNull && start != kNull) o.end = saturating_add(start, dur);
  if (start != kNull) {
    settle(start);
    if (!stack_.empty()) o.inside = stack_.back().event;
    o.depth = static_cast<int32_t>(stack_.size() - ended_below_);
    while (!marked_.empty() && marked_.back().second <= start) marked_.pop_back();
    if (!marked_.empty()) o.marked = marked_.back().first;
    if (run.spec.marks) marked_.emplace_back(o.event, o.end);
    if (tree_) follow(run, o);
    else if (run.spec.weight >= 0) weigh(start, run.payload[static_cast<size_t>(run.spec.weight)][run.at]);
    if (run.spec.covers) covered_until_ = std::max(covered_until_, o.end);
  }
  if (run.spec.group >= 0) {
    o.group = run.payload[static_cast<size_t>(run.spec.group)][run.at];
    const auto [it, first] = fresh_from_.try_emplace(o.group, o.start);
    o.fresh = std::max<int64_t>(0, o.end - std::max(o.start, it->second));
    it->second = std::max(it->second, o.end);
  }
  o.payload_at = kept_.size();  // only now: settling has let go of what ended
  for (const auto& column : run.payload) kept_.push_back(column[run.at]);
  if (run.spec.opens && start != kNull) {
    open(o);
  } else {
    emit(o, kept_.data() + o.payload_at);
    kept_.resize(o.payload_at);
  }
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
  emit(o, kept_.data() + o.payload_at);
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
    kept_.resize(stack_.back().payload_at);
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
      emit(o, kept_.data() + o.payload_at);
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
  o.label = run.payload[static_cast<size_t>(run.spec.label)][run.at];
  o.node = tree_->child(o.node, o.label);
  tree_->enter(o.node, o.dur);
  if (run.spec.weight < 0) return;
  const int64_t weight = run.payload[static_cast<size_t>(run.spec.weight)][run.at];
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

void ThreadSweep::emit(const Open& o, const int64_t* payload) {
  if (o.table < 0) return;
  Nested& out = out_[static_cast<size_t>(o.table)];
  out.event.push_back(o.event), out.start.push_back(o.start), out.dur.push_back(o.dur);
  out.inside.push_back(o.inside), out.marked.push_back(o.marked), out.depth.push_back(o.depth);
  out.self.push_back(o.self), out.uncovered.push_back(o.uncovered), out.fresh.push_back(o.fresh);
  out.weight_self.push_back(o.weight_self), out.weight_once.push_back(o.weight_once);
  if (tree_) out.node.push_back(o.node), out.in_steps.push_back(o.charged.in_steps), out.late.push_back(o.charged.late);
  for (auto& column : out.payload) column.push_back(*payload++);
}

void ThreadSweep::finish_thread() {
  settle(kForever);
  for (Nested& out : out_) out.threads.push_back(out.event.size());
  stack_.clear(), marked_.clear(), kept_.clear(), runs_.clear(), heads_.clear(), hungry_.clear(), fresh_from_.clear();
  nesting_.clear(), crossing_.clear();
  ended_below_ = 0;
  cursor_ = covered_until_ = kNull;
}

Nested ThreadSweep::take(size_t table) {
  Nested taken = std::exchange(out_[table], {});
  out_[table].payload.resize(payload_columns_[table]);
  return taken;
}

// ---- links

void Linker::add(const int64_t* correlation, const int64_t* start, const int64_t* event, size_t rows) {
  correlation_.insert(correlation_.end(), correlation, correlation + rows);
  start_.insert(start_.end(), start, start + rows);
  event_.insert(event_.end(), event, event + rows);
}

void Linker::build() {
  op_.assign(event_.size(), kNull);
  work_ns_.assign(event_.size(), 0);
  work_events_.assign(event_.size(), 0);
  order_.resize(correlation_.size());
  std::iota(order_.begin(), order_.end(), 0u);
  std::sort(order_.begin(), order_.end(), [this](uint32_t a, uint32_t b) {
    if (correlation_[a] != correlation_[b]) return correlation_[a] < correlation_[b];
    return start_[a] != start_[b] ? start_[a] < start_[b] : event_[a] < event_[b];
  });
}

int64_t Linker::find(int64_t correlation, int64_t start) const {
  if (correlation == kNull) return -1;
  const auto first = std::lower_bound(order_.begin(), order_.end(), correlation,
                                      [this](uint32_t a, int64_t c) { return correlation_[a] < c; });
  if (first == order_.end() || correlation_[*first] != correlation) return -1;
  const auto past = std::upper_bound(first, order_.end(), std::pair(correlation, start),
                                     [this](const std::pair<int64_t, int64_t>& at, uint32_t a) {
                                       return at.first != correlation_[a] ? at.first < correlation_[a] : at.second < start_[a];
                                     });
  if (past != first) return past[-1];
  const bool alone = first + 1 == order_.end() || correlation_[first[1]] != correlation;
  return alone ? int64_t{*first} : -1;  // clocks may be off by a little; of several, none came in time
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
