#include "dependencies.hpp"

#include <algorithm>
#include <numeric>

namespace stepscope {

namespace {

constexpr size_t kPatience = 4096;  // how many pieces of work are passed over in search of one

template <class Rows>
void sort_by_start(Rows& rows) {
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.start != b.start ? a.start < b.start : a.event < b.event;
  });
}

// The middle one of enough values, else 0.
int64_t median(std::vector<int64_t>& values, int64_t least) {
  if (static_cast<int64_t>(values.size()) < least || values.empty()) return 0;
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void Dependencies::build() {
  order();
  link();
  find_blocking_launches();
  lay_streams();
  tell_latencies();
  find_graph_waits();
  find_stream_waits();
  guess_stream_waits();
  explain_late_work();
  find_joins();
  merge_busy();
}

void Dependencies::order() {
  sort_by_start(works_);
  sort_by_start(calls_);
  by_end_.resize(works_.size());
  std::iota(by_end_.begin(), by_end_.end(), 0);
  std::sort(by_end_.begin(), by_end_.end(), [this](int32_t a, int32_t b) {
    return work(a).end != work(b).end ? work(a).end < work(b).end : a < b;
  });
  for (size_t i = 0; i < calls_.size(); ++i) thread_calls_[calls_[i].thread].push_back(static_cast<int32_t>(i));
}

void Dependencies::link() {
  std::unordered_map<int64_t, int32_t> call_of;
  call_of.reserve(calls_.size());
  for (size_t i = 0; i < calls_.size(); ++i) call_of.emplace(calls_[i].event, static_cast<int32_t>(i));
  for (size_t i = 0; i < works_.size(); ++i) {
    Work& w = works_[i];
    const auto found = call_of.find(w.launch_event);
    if (w.launch_event == kNull || found == call_of.end()) continue;
    w.launch = found->second;
    Call& call = calls_[static_cast<size_t>(w.launch)];
    if (call.first_work < 0) call.first_work = static_cast<int32_t>(i);
    if (call.last_work < 0 || work(call.last_work).end <= w.end) call.last_work = static_cast<int32_t>(i);
    if (w.blocks && call.waits == Waits::nothing) call.waits = Waits::own_work;
    ++call.launched;
  }
}

// A program can be made to wait for each launch; then nearly all calls that launch kernels return after them, which no
// other program does. Clearing and copying memory does not wait even then.
void Dependencies::find_blocking_launches() {
  int64_t launching = 0, returned_later = 0;
  const auto launches_kernel = [this](const Call& call) { return call.last_work >= 0 && work(call.last_work).kind < kFirstCopyKind; };
  for (const Call& call : calls_) {
    if (!launches_kernel(call)) continue;
    ++launching;
    if (call.end >= work(call.last_work).end) ++returned_later;
  }
  if (launching < rules_.least_samples || returned_later * 100 < launching * rules_.blocking_percent) return;
  for (Call& call : calls_)
    if (launches_kernel(call) && call.waits == Waits::nothing) call.waits = Waits::own_work;
}

void Dependencies::lay_streams() {
  place_.resize(works_.size());
  for (size_t i = 0; i < works_.size(); ++i) {
    Work& w = works_[i];
    Stream& stream = streams_[w.stream];
    const bool first = stream.works.empty();
    if (!first) w.previous = stream.works.back();
    const bool same = !first && w.launch >= 0 && work(w.previous).launch == w.launch;
    place_[i] = static_cast<int32_t>(stream.works.size());
    stream.launched.push_back(first ? launched_at(w) : std::max(stream.launched.back(), launched_at(w)));
    stream.launches.push_back((first ? 0 : stream.launches.back()) + (same ? 0 : 1));
    stream.works.push_back(static_cast<int32_t>(i));
  }
}

// A launch on an empty stream shows how long launching takes, work that had been waiting how long the device takes.
void Dependencies::tell_latencies() {
  std::array<std::vector<int64_t>, kWorkKinds> latencies;
  std::vector<int64_t> gaps;
  for (const Work& w : works_) {
    if (w.launch < 0 || w.previous < 0) continue;
    const int64_t launched = launched_at(w), free = work(w.previous).end;
    if (work(w.previous).launch == w.launch) continue;
    if (free <= launched && launched <= w.start) latencies[static_cast<size_t>(w.kind)].push_back(w.start - launched);
    if (launched + rules_.near <= free) gaps.push_back(std::max<int64_t>(0, w.start - free));
  }
  for (size_t kind = 0; kind < kWorkKinds; ++kind) latency_[kind] = median(latencies[kind], rules_.least_samples);
  gap_ = median(gaps, rules_.least_samples);
}

// Of work that one call launched together, as in a graph, each waits for what ended last before it began.
void Dependencies::find_graph_waits() {
  std::vector<std::pair<int32_t, int32_t>> grouped;
  for (size_t i = 0; i < works_.size(); ++i) {
    const int32_t launch = works_[i].launch;
    if (launch >= 0 && calls_[static_cast<size_t>(launch)].launched > 1) grouped.emplace_back(launch, static_cast<int32_t>(i));
  }
  std::stable_sort(grouped.begin(), grouped.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<int32_t> ended;
  for (size_t first = 0, last; first < grouped.size(); first = last) {
    for (last = first; last < grouped.size() && grouped[last].first == grouped[first].first;) ++last;
    ended.clear();
    for (size_t i = first; i < last; ++i) ended.push_back(grouped[i].second);
    std::sort(ended.begin(), ended.end(), [this](int32_t a, int32_t b) { return work(a).end != work(b).end ? work(a).end < work(b).end : a < b; });
    size_t done = 0;
    for (size_t i = first; i < last; ++i) {
      const int32_t at = grouped[i].second;
      while (done < ended.size() && work(ended[done]).end <= work(at).start) ++done;
      if (done > 0) let_wait(at, ended[done - 1]);
    }
  }
}

// Notes that work waited for other work, if that came before it and ended later than what is noted already.
void Dependencies::let_wait(int32_t at, int32_t other) {
  Work& w = works_[static_cast<size_t>(at)];
  if (other < 0 || other >= at || work(other).stream == w.stream || work(other).end > w.start) return;
  const auto later = [this](int32_t a, int32_t b) { return work(a).end != work(b).end ? work(a).end > work(b).end : a > b; };
  if (w.waited < 0 || later(other, w.waited)) w.waited = other;
}

// The last of a stream's work, all of which until there was launched before an instant: its place in the stream, or -1.
int32_t Dependencies::last_launched(const Stream& stream, int64_t before) const {
  const auto after = std::lower_bound(stream.launched.begin(), stream.launched.end(), before);
  return static_cast<int32_t>(after - stream.launched.begin()) - 1;
}

// The work on another stream that work can have waited for: launched before an instant, and ended before it began.
int32_t Dependencies::source(const Stream& other, int64_t before, size_t of) const {
  int32_t place = last_launched(other, before);
  for (size_t tries = 0; place >= 0 && tries < kPatience; --place, ++tries) {
    const int32_t found = other.works[static_cast<size_t>(place)];
    if (static_cast<size_t>(found) < of && work(found).end <= works_[of].start) return found;
  }
  return -1;
}

void Dependencies::find_stream_waits() {
  for (const StreamWait& wait : stream_waits_) {
    const auto waiting = streams_.find(wait.stream), other = streams_.find(wait.other);
    if (waiting == streams_.end() || other == streams_.end()) continue;
    const auto next = static_cast<size_t>(last_launched(waiting->second, wait.waited_at) + 1);
    if (next >= waiting->second.works.size()) continue;
    const int32_t at = waiting->second.works[next];
    let_wait(at, source(other->second, wait.recorded_at, static_cast<size_t>(at)));
  }
}

// A call that makes a stream wait does not say which stream and for what. The stream is that of the next launch of its
// thread; of the other streams it is for the work that ended last before that began.
void Dependencies::guess_stream_waits() {
  for (const auto& [thread, numbers] : thread_calls_) {
    int32_t next = -1;
    for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
      const Call& call = calls_[static_cast<size_t>(*number)];
      if (call.first_work >= 0) next = call.first_work;
      if (call.waits != Waits::stream_waits || next < 0) continue;
      for (const auto& [name, stream] : streams_)
        if (name != work(next).stream) let_wait(next, source(stream, call.start, static_cast<size_t>(next)));
    }
  }
}

// Work that began long after it could have, just when work on another stream was done, waited for that: some waits leave
// no record at all.
void Dependencies::explain_late_work() {
  for (size_t at = 0; at < works_.size(); ++at) {
    const Work& w = works_[at];
    if (w.launch < 0) continue;
    const int64_t returned = calls_[static_cast<size_t>(w.launch)].end;
    int64_t ready = std::max(returned, w.previous < 0 ? kNull : work(w.previous).end);
    if (w.waited >= 0) ready = std::max(ready, work(w.waited).end);
    if (w.start - rules_.near <= ready) continue;
    const int32_t other = ended_last(w.start, at);
    if (other >= 0 && work(other).end >= w.start - rules_.near) let_wait(static_cast<int32_t>(at), other);
  }
}

// ---- the host waits for the device

void Dependencies::find_joins() {
  for (const auto& [thread, numbers] : thread_calls_) {
    int32_t own_stream = -1;
    auto& found = joins_[thread];
    for (const int32_t number : numbers) {
      const Call& call = calls_[static_cast<size_t>(number)];
      int32_t done = awaited(call, own_stream);
      const bool for_room = done < 0 && call.first_work >= 0;
      if (for_room) done = made_room(call);
      if (done >= 0) found.push_back({std::min(work(done).end, call.end), number, done, for_room});
      else if (const int32_t before = found_done(call, own_stream); before >= 0) passed_.push_back({call.start, number, before, false});
      if (call.first_work >= 0) own_stream = work(call.first_work).stream;
    }
    std::sort(found.begin(), found.end(), [](const Join& a, const Join& b) {
      return a.released != b.released ? a.released < b.released : a.call < b.call;
    });
  }
}

// The work whose end let a call return, or -1.
int32_t Dependencies::awaited(const Call& call, int32_t own_stream) const {
  const auto inside = [&](int32_t at) { return at >= 0 && work(at).end > call.start && work(at).end <= call.end; };
  if (call.waits == Waits::own_work) return copied_inside(call) ? call.last_work : -1;
  if (call.waits == Waits::stream) {
    const auto stream = streams_.find(call.stream >= 0 ? call.stream : own_stream);
    if (stream != streams_.end()) {
      const int32_t place = last_launched(stream->second, call.start);
      const int32_t last = place < 0 ? -1 : stream->second.works[static_cast<size_t>(place)];
      if (call.stream >= 0) return inside(last) ? last : -1;
      // Not said which stream: that of the thread's last launch, if it was done just before the call returned.
      if (inside(last) && call.end - work(last).end <= rules_.near) return last;
    }
  }
  const bool waits = call.waits == Waits::device || call.waits == Waits::stream || call.waits == Waits::event;
  return waits ? done_inside(call) : -1;
}

// The work that was done when a call came to wait for it, or -1: the last of its stream, or of all of them.
int32_t Dependencies::found_done(const Call& call, int32_t own_stream) const {
  if (call.waits != Waits::device && call.waits != Waits::stream) return -1;
  int32_t latest = -1;
  const auto consider = [&](const Stream& stream) {
    const int32_t place = last_launched(stream, call.start);
    const int32_t last = place < 0 ? -1 : stream.works[static_cast<size_t>(place)];
    if (last >= 0 && work(last).end <= call.start && (latest < 0 || work(last).end > work(latest).end)) latest = last;
  };
  if (call.waits == Waits::stream) {
    const auto stream = streams_.find(call.stream >= 0 ? call.stream : own_stream);
    if (stream != streams_.end()) consider(stream->second);
  } else {
    for (const auto& [name, stream] : streams_) consider(stream);
  }
  return latest;
}

// A copy that goes through a buffer may still be under way when its call returns.
bool Dependencies::copied_inside(const Call& call) const {
  if (call.last_work < 0) return false;
  const Work& w = work(call.last_work);
  return w.end > call.start && w.start + (w.end - w.start) / 2 <= call.end && w.start < call.end;
}

// Of the work launched before a call, the last that ended inside it.
int32_t Dependencies::done_inside(const Call& call) const {
  auto at = std::upper_bound(by_end_.begin(), by_end_.end(), call.end, [this](int64_t time, int32_t w) { return time < work(w).end; });
  for (size_t tries = 0; at != by_end_.begin() && tries < kPatience; ++tries) {
    const Work& w = work(*--at);
    if (w.end <= call.start) break;
    if (launched_at(w) < call.start) return *at;
  }
  return -1;
}

// A launching call that had to wait until the stream's queue, which was full, had room: the work that made it.
int32_t Dependencies::made_room(const Call& call) const {
  const Stream& stream = streams_.at(work(call.first_work).stream);
  const auto ends_by = [&](int64_t time) {  // how many of the stream's work were done, which is done in order
    return std::partition_point(stream.works.begin(), stream.works.end(), [&](int32_t w) { return work(w).end <= time; }) - stream.works.begin();
  };
  const auto done = ends_by(call.start);
  const auto own = static_cast<long>(place_[static_cast<size_t>(call.first_work)]);
  if (done >= own) return -1;
  const int64_t ahead = stream.launches[static_cast<size_t>(own)] - stream.launches[static_cast<size_t>(done)];
  if (ahead < rules_.queue_depth) return -1;
  const auto last = ends_by(call.end) - 1;
  return last >= done && last < own ? stream.works[static_cast<size_t>(last)] : -1;
}

// ---- answers

Dependencies::Cause Dependencies::cause(size_t at) const {
  const Work& w = works_[at];
  Cause best;
  int64_t latest = kNull;
  const auto consider = [&](By by, int64_t time, int64_t takes) {
    time = std::min(time, w.start);
    if (best.by != By::nothing && saturating_add(time, takes) <= latest) return;
    best = {by, time}, latest = saturating_add(time, takes);
  };
  if (w.previous >= 0) consider(By::previous, work(w.previous).end, gap_);
  if (w.waited >= 0) consider(By::waited, work(w.waited).end, gap_);
  if (w.launch >= 0) consider(By::launch, launched_at(w), latency(w.kind));
  return best;
}

int32_t Dependencies::ended_last(int64_t time, size_t below) const {
  auto at = std::upper_bound(by_end_.begin(), by_end_.end(), time, [this](int64_t t, int32_t w) { return t < work(w).end; });
  for (size_t tries = 0; at != by_end_.begin() && tries < kPatience; ++tries)
    if (static_cast<size_t>(*--at) < below) return *at;
  return -1;
}

void Dependencies::merge_busy() {
  for (auto& [thread, spans] : busy_) {
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start != b.start ? a.start < b.start : a.end > b.end; });
    size_t kept = 0;
    for (const Span& span : spans) {
      if (span.end <= span.start) continue;
      if (kept > 0 && span.start <= spans[kept - 1].end) spans[kept - 1].end = std::max(spans[kept - 1].end, span.end);
      else spans[kept++] = span;
    }
    spans.resize(kept);
  }
}

}  // namespace stepscope
