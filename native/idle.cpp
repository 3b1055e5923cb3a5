#include "idle.hpp"

#include <algorithm>

namespace stepscope {

// ---- gaps

void GapFinder::build() {
  const auto before = [](const Launch& a, const Launch& b) { return a.event < b.event; };
  if (!std::is_sorted(launches_.begin(), launches_.end(), before)) std::sort(launches_.begin(), launches_.end(), before);
}

const GapFinder::Launch* GapFinder::find(int64_t event) {
  if (event == kNull) return nullptr;
  // Mostly the launch after the last one.
  for (const size_t near : {at_ + 1, at_})
    if (near < launches_.size() && launches_[near].event == event) return &launches_[at_ = near];
  const auto found = std::lower_bound(launches_.begin(), launches_.end(), event,
                                      [](const Launch& a, int64_t wanted) { return a.event < wanted; });
  if (found == launches_.end() || found->event != event) return nullptr;
  at_ = static_cast<size_t>(found - launches_.begin());
  return &*found;
}

void GapFinder::push(const Work& work) {
  const int64_t end = work.dur == kNull ? work.start : saturating_add(work.start, std::max<int64_t>(work.dur, 0));
  const auto device = static_cast<size_t>(work.device);
  if (device >= last_.size()) last_.resize(device + 1);
  Last& last = last_[device];
  if (last.event != kNull && work.start > last.end) add(work, last);
  // Of those that end together the later in the file; work of one start comes in that order, other work need not.
  if (last.event == kNull || end > last.end || (end == last.end && work.event > last.event)) last = {end, work.event};
}

void GapFinder::add(const Work& work, const Last& last) {
  // Unsigned: times may lie on both sides of zero.
  const auto dur = static_cast<int64_t>(static_cast<uint64_t>(work.start) - static_cast<uint64_t>(last.end));
  found_.device.push_back(static_cast<int32_t>(work.device));
  found_.start.push_back(last.end), found_.dur.push_back(dur);
  found_.before.push_back(last.event), found_.after.push_back(work.event);
  const Launch* launch = find(work.launch);
  if (launch == nullptr) {
    found_.launch.push_back(kNull), found_.launch_start.push_back(kNull);
    found_.thread.push_back(-1), found_.late.push_back(0);
    return;
  }
  int64_t late = 0;
  if (launch->start != kNull && launch->start > last.end)
    late = launch->start >= work.start ? dur : launch->start - last.end;
  found_.launch.push_back(launch->event), found_.launch_start.push_back(launch->start);
  found_.thread.push_back(launch->thread), found_.late.push_back(late);
}

// ---- what the host did

HostTime::HostTime(std::vector<int64_t> window_starts, std::vector<int64_t> window_ends)
    : window_starts_(std::move(window_starts)), window_ends_(std::move(window_ends)) {}

void HostTime::Spans::add(Span span) {
  // Mostly an event inside the last one, or right behind it.
  if (!all.empty() && all.back().start <= span.start && span.start <= all.back().end) {
    all.back().end = std::max(all.back().end, span.end);
    return;
  }
  all.push_back(span);
  if (all.size() > 2 * merged + (1 << 16)) merge();
}

void HostTime::Spans::merge() {
  const auto before = [](const Span& a, const Span& b) { return a.start < b.start; };
  if (!std::is_sorted(all.begin(), all.end(), before)) std::sort(all.begin(), all.end(), before);
  size_t kept = 0;
  for (const Span& span : all) {
    if (kept > 0 && span.start <= all[kept - 1].end)
      all[kept - 1].end = std::max(all[kept - 1].end, span.end);
    else
      all[kept++] = span;
  }
  all.resize(kept);
  merged = kept;
}

void HostTime::add(int64_t thread, int64_t start, int64_t end, size_t kind) {
  if (end > start) threads_[thread].spans[kind].add({start, end});
}

void HostTime::add_of_thread(int64_t thread, size_t kind, const int64_t* start, const int64_t* dur, size_t rows, int64_t base) {
  Spans& spans = threads_[thread].spans[kind];
  for (size_t i = 0; i < rows; ++i) {
    if (start[i] == kNull || dur[i] == kNull || dur[i] <= 0) continue;
    const int64_t from = saturating_add(start[i], base);
    spans.add({from, saturating_add(from, dur[i])});
  }
}

void HostTime::add_wait(int64_t thread, int64_t start, int64_t end, int64_t event) {
  threads_[thread].waits.push_back({start, end, event, end});
}

void HostTime::build() {
  for (auto& [number, thread] : threads_) thread.build();
}

void HostTime::Thread::build() {
  struct Edge {
    int64_t at;
    size_t kind;
    bool opens;
  };
  std::vector<Edge> edges;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    spans[kind].merge();
    for (const Span& span : spans[kind].all) edges.push_back({span.start, kind, true}), edges.push_back({span.end, kind, false});
    spans[kind] = {};
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
  std::array<bool, kKinds> open{};
  for (size_t i = 0; i < edges.size(); ++i) {
    // Spans of one kind neither overlap nor touch, so an instant has at most one edge of each.
    open[edges[i].kind] = edges[i].opens;
    if (i + 1 < edges.size() && edges[i + 1].at == edges[i].at) continue;
    const auto first = static_cast<size_t>(std::find(open.begin(), open.end(), true) - open.begin());
    if (pieces.empty() || pieces.back().kind != first) pieces.push_back({edges[i].at, first});
  }
  std::sort(waits.begin(), waits.end(), [](const Wait& a, const Wait& b) {
    return a.start != b.start ? a.start < b.start : a.end != b.end ? a.end > b.end : a.event < b.event;
  });
  for (size_t i = 1; i < waits.size(); ++i) waits[i].latest_end = std::max(waits[i].end, waits[i - 1].latest_end);
}

const HostTime::Thread* HostTime::find(int64_t thread) const {
  const auto found = threads_.find(thread);
  return found == threads_.end() ? nullptr : &found->second;
}

const HostTime::Thread* HostTime::giver(int64_t thread) const {
  const auto found = handed_by_.find(thread);
  return found == handed_by_.end() ? nullptr : find(found->second);
}

void HostTime::charge(int64_t thread, int64_t from, int64_t until, Times& times) const {
  static const Thread nobody{};
  const Thread *own = find(thread), *gave = giver(thread);
  auto w = static_cast<size_t>(std::upper_bound(window_ends_.begin(), window_ends_.end(), from) - window_ends_.begin());
  for (; w < window_starts_.size() && window_starts_[w] < until; ++w)
    charge(own ? *own : nobody, gave, std::max(from, window_starts_[w]), std::min(until, window_ends_[w]), times);
}

void HostTime::charge(const Thread& thread, const Thread* giver, int64_t from, int64_t until, Times& times) {
  if (from >= until) return;
  const std::vector<Piece>& pieces = thread.pieces;
  auto next = static_cast<size_t>(std::upper_bound(pieces.begin(), pieces.end(), from,
                                                   [](int64_t at, const Piece& p) { return at < p.start; }) - pieces.begin());
  for (size_t kind = next > 0 ? pieces[next - 1].kind : kKinds; from < until; ++next) {
    const int64_t end = next < pieces.size() ? std::min(pieces[next].start, until) : until;
    if (kind == kKinds && giver != nullptr) charge(*giver, nullptr, from, end, times);
    else times[kind] += end - from;
    from = end;
    if (next < pieces.size()) kind = pieces[next].kind;
  }
}

int64_t HostTime::waits_at(int64_t thread, int64_t at) const {
  for (const Thread* looked : {find(thread), giver(thread)}) {
    const int64_t found = looked ? waits_at(*looked, at) : kNull;
    if (found != kNull) return found;
  }
  return kNull;
}

int64_t HostTime::waits_at(const Thread& thread, int64_t at) {
  auto next = std::upper_bound(thread.waits.begin(), thread.waits.end(), at,
                               [](int64_t instant, const Wait& wait) { return instant < wait.start; });
  while (next != thread.waits.begin() && (--next)->latest_end > at)
    if (next->end > at) return next->event;
  return kNull;
}

int64_t HostTime::inside(int64_t from, int64_t until) const {
  int64_t sum = 0;
  auto w = static_cast<size_t>(std::upper_bound(window_ends_.begin(), window_ends_.end(), from) - window_ends_.begin());
  for (; w < window_starts_.size() && window_starts_[w] < until; ++w)
    sum += std::max<int64_t>(0, std::min(until, window_ends_[w]) - std::max(from, window_starts_[w]));
  return sum;
}

// ---- queues

void Queues::add(int64_t device, int64_t launched, int64_t begun) {
  Queue& queue = queues_[device];
  queue.launched.push_back(launched), queue.begun.push_back(begun);
}

void Queues::build() {
  for (auto& [device, queue] : queues_) {
    std::sort(queue.launched.begin(), queue.launched.end());
    std::sort(queue.begun.begin(), queue.begun.end());
  }
}

int64_t Queues::depth(int64_t device, int64_t at) const {
  const auto found = queues_.find(device);
  if (found == queues_.end()) return 0;
  const auto& [launched, begun] = found->second;
  const auto made = std::lower_bound(launched.begin(), launched.end(), at) - launched.begin();
  const auto gone = std::upper_bound(begun.begin(), begun.end(), at) - begun.begin();
  return std::max<int64_t>(0, made - gone);  // clocks may be off: work may seem to begin before its launch
}

}  // namespace stepscope
