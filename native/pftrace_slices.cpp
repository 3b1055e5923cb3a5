// Slices of a Perfetto trace: the begin and the end of each are brought together, and written as one event.
#include <algorithm>
#include <charconv>
#include <cstring>

#include "pftrace.hpp"

namespace stepscope {

namespace {

constexpr int64_t kIsEnd = kNull + 1, kIsInstant = kNull + 2;  // in place of a duration
constexpr size_t kDeepest = 4096;      // slices of one track inside one another

struct Packed {
  int64_t time, dur;
  uint64_t track;
  uint32_t name, category;
};

void append_number(std::string& out, int64_t number) {
  char text[24];
  out.append(text, std::to_chars(text, text + sizeof text, number).ptr);
}

void append_time(std::string& out, int64_t ns) {
  char text[32];
  out.append(text, write_time(ns, text));
}

// The number after "GPU " or "stream ", if that is the whole name.
int64_t numbered(std::string_view name, std::string_view word) {
  if (name.substr(0, word.size()) != word) return kNull;
  const char* p = name.data() + word.size();
  const char* end = name.data() + name.size();
  int64_t number;
  return read_int(p, end, number) && p == end ? number : kNull;
}

bool has_key(std::string_view args, std::string_view quoted) { return args.find(quoted) != std::string_view::npos; }

bool begins(std::string_view quoted, std::string_view with) { return quoted.size() > with.size() && quoted.substr(1, with.size()) == with; }

// What a slice without a category is, of a writer that has none: by the arguments that only one kind has.
std::string_view category_by_arguments(std::string_view name, std::string_view args) {
  if (has_key(args, "\"Python id\"")) return "\"python_function\"";
  if (has_key(args, "\"cbid\"") || (has_key(args, "\"correlation\"") && !has_key(args, "\"Ev Idx\"")))
    return begins(name, "cu") && name.size() > 3 && std::isupper(static_cast<unsigned char>(name[3])) ? "\"cuda_driver\"" : "\"cuda_runtime\"";
  const bool operator_like = has_key(args, "\"Ev Idx\"") || has_key(args, "\"External id\"") || has_key(args, "\"Input Dims\"");
  return operator_like && !begins(name, "ProfilerStep#") && !begins(name, "Optimizer.") && !begins(name, "enumerate(Data") ? "\"cpu_op\"" : "\"user_annotation\"";
}

}  // namespace

void pack(std::string& to, const Slice& slice) {
  const Packed head{slice.time, slice.dur, slice.track, static_cast<uint32_t>(slice.name.size()), static_cast<uint32_t>(slice.category.size())};
  to.assign(reinterpret_cast<const char*>(&head), sizeof head);
  to += slice.name;
  to += slice.category;
  to += slice.args;
}

Slice unpack(std::string_view record) {
  Packed head;
  std::memcpy(&head, record.data(), sizeof head);
  record.remove_prefix(sizeof head);
  Slice slice{head.time, head.dur, head.track, record.substr(0, head.name), record.substr(head.name, head.category), {}};
  slice.args = record.substr(head.name + head.category);
  return slice;
}

// ---- groups: a stretch of begins and the stretch of ends that follows it

void PftraceReader::begin(const Slice& slice) {
  if (ends_.size()) end_group(false);
  pack(record_, slice);
  begins_.add(record_);
}

void PftraceReader::end(const Slice& slice) {
  Slice ending{slice.time, kIsEnd, slice.track, {}, {}, slice.args};
  pack(record_, ending);
  ends_.add(record_);
}

// What is complete waits if it is not known yet where it is shown, or what it is.
void PftraceReader::complete(const Slice& slice) {
  const uint32_t track = track_number(slice.track);
  const Place& place = place_of(track);
  if (slice.dur == kNull && place.known) return write(slice, "i");
  if (slice.dur != kNull && place.known && place.device == kNull) return write(slice);
  Slice waiting = slice;
  if (waiting.dur == kNull) waiting.dur = kIsInstant;
  pack(record_, waiting);
  sorter_.add({track, slice.time, 0, order_++}, record_);
}

void PftraceReader::end_group(bool last) {
  if (by_position(last)) write_paired(last);
  else sort_group();
  begins_.clear();
  ends_.clear();
}

// Some writers write the begins of many slices, and then their ends in the same order. They can be told from those that
// write everything as it happens: on some track time goes back where the ends begin, or among them.
bool PftraceReader::by_position(bool last) {
  if (begins_.size() < 2 || ends_.size() > begins_.size() || (ends_.size() < begins_.size() && !last) || !ends_.size()) return false;
  std::unordered_map<uint64_t, int64_t> reached;  // the latest time of each track
  Spool::Pass all(begins_), begun(begins_), ended(ends_);
  std::string_view record;
  Packed head, end;
  while (all.next(record)) {
    std::memcpy(&head, record.data(), sizeof head);
    auto [it, fresh] = reached.emplace(head.track, head.time);
    it->second = std::max(it->second, head.time);
  }
  bool in_order = true;
  while (ended.next(record)) {
    std::memcpy(&end, record.data(), sizeof end);
    if (!begun.next(record)) return false;
    std::memcpy(&head, record.data(), sizeof head);
    if (end.track != head.track || end.time < head.time) return false;
    int64_t& before = reached[end.track];
    in_order &= end.time >= before;
    before = std::max(before, end.time);
  }
  return !in_order;
}

void PftraceReader::write_paired(bool last) {
  Spool::Pass begun(begins_), ended(ends_);
  std::string_view a, b;
  while (begun.next(a)) {
    if (!ended.next(b)) {
      if (last) note("a slice whose end is missing, left out", 0, -1);
      continue;
    }
    Slice slice = unpack(a), end = unpack(b);
    slice.dur = end.time - slice.time;
    if (!end.args.empty()) slice.args += (slice.args.empty() ? "" : ", ") + end.args;
    complete(slice);
  }
}

void PftraceReader::sort_group() {
  for (Spool* spool : {&begins_, &ends_}) {
    Spool::Pass pass(*spool);
    std::string_view record;
    while (pass.next(record)) {
      Packed head;
      std::memcpy(&head, record.data(), sizeof head);
      sorter_.add({track_number(head.track), head.time, 0, order_++}, record);
    }
  }
}

// ---- by a stack for each track

void PftraceReader::write_sorted() {
  std::vector<std::string> open, held;
  std::vector<std::pair<int64_t, size_t>> held_at;  // duration and depth of those held
  uint32_t track = 0;
  size_t too_deep = 0;
  // What is as long as what is in it comes first, or it would be taken to be inside.
  const auto release = [&] {
    for (size_t i = held.size(); i-- > 0;) write(unpack(held[i]));
    held.clear(), held_at.clear();
  };
  const auto close = [&](int64_t time, std::string_view more) {
    const std::string begun = std::move(open.back());
    Slice slice = unpack(begun);
    slice.dur = time - slice.time;
    if (!more.empty()) slice.args += (slice.args.empty() ? "" : ", ") + std::string(more);
    const size_t depth = open.size();
    open.pop_back();
    if (!held.empty() && !(unpack(held.back()).time == slice.time && held_at.back().first == slice.dur && depth < held_at.back().second)) release();
    pack(record_, slice);
    held.push_back(record_);
    held_at.emplace_back(slice.dur, depth);
  };
  const auto end_track = [&] {
    const bool few = open.size() <= spec_.most_open;
    while (!open.empty()) {
      note(few ? "a slice that has no end, taken to last until the end of the trace" : "a slice whose end is missing, left out", 0, -1);
      if (few) close(std::max(latest_, unpack(open.back()).time), {});
      else open.pop_back();
    }
    release();
    too_deep = 0;
  };
  sorter_.finish();
  SortKey key;
  std::string_view record;
  while (sorter_.next(key, record)) {
    if (key.track != track) end_track();
    track = key.track;
    Packed head;
    std::memcpy(&head, record.data(), sizeof head);
    if (head.dur == kIsEnd) {
      if (too_deep) --too_deep;
      else if (!open.empty()) close(head.time, record.substr(sizeof head));
      else note("the end of a slice that did not begin, left out", 0, -1);
    } else if (head.dur == kIsInstant) {
      Slice instant = unpack(record);
      instant.dur = kNull;
      write(instant, "i");
    } else if (head.dur != kNull) {
      write(unpack(record));
    } else if (open.size() >= kDeepest) {
      note("slices that are nested over 4,096 deep, left out", 0, -1);
      ++too_deep;
    } else {
      open.emplace_back(record);
    }
  }
  end_track();
}

// GPU work that names no launch: the launches may name it.
void PftraceReader::write_late() {
  std::sort(launched_.begin(), launched_.end());
  Spool::Pass pass(late_);
  std::string_view record;
  while (pass.next(record)) {
    uint64_t event;
    int64_t correlation;
    std::memcpy(&event, record.data(), sizeof event);
    std::memcpy(&correlation, record.data() + sizeof event, sizeof correlation);
    record.remove_prefix(sizeof event + sizeof correlation);
    const auto it = std::lower_bound(launched_.begin(), launched_.end(), std::pair{event, std::numeric_limits<int64_t>::min()});
    if (it != launched_.end() && it->first == event) correlation = it->second;
    out_ += record.substr(events_written_++ ? 0 : 1);
    if (correlation != kNull) out_ += ", \"correlation\": ", append_number(out_, correlation);
    out_ += "}}";
    if (out_.size() > 1 << 20) flush();
  }
}

// ---- as events

const Place& PftraceReader::place_of(uint32_t number) {
  Place& place = places_[number];
  if (place.version == version_) return place;
  place = {};
  place.version = version_;
  const Track* track = &tracks_[number];
  std::string own = track->name;
  for (int depth = 0; depth < 16 && track->described && track->pid == kNull; ++depth) {
    const auto it = track_numbers_.find(track->parent);
    if (it == track_numbers_.end() || track->parent == 0) break;
    track = &tracks_[it->second];
  }
  place.known = track->described;
  std::string process = track->process_name;
  if (process.empty())
    if (const auto it = process_names_.find(track->pid); it != process_names_.end()) process = it->second;
  if (const auto it = track_numbers_.find(track->parent); process.empty() && it != track_numbers_.end()) process = tracks_[it->second].process_name;
  place.device = numbered(process, "GPU ");
  place.stream = numbered(track->thread_name, "stream ");
  place.overhead = process.find("verhead") != std::string::npos;
  if (track->pid != kNull) append_number(place.pid, track->pid);
  else append_quoted(place.pid, process.empty() ? "trace" : process);
  if (track->tid != kNull && track == &tracks_[number]) append_number(place.tid, track->tid);
  else append_quoted(place.tid, own.empty() ? "track " + std::to_string(number) : own);
  return place;
}

void PftraceReader::write(const Slice& slice, const char* phase) {
  if (!spec_.left_out.empty() && slice.category == spec_.left_out) return;
  const Place& place = place_of(track_number(slice.track));
  latest_ = std::max(latest_, slice.dur == kNull ? slice.time : saturating_add(slice.time, slice.dur));
  if (place.device != kNull && slice.dur != kNull) return write_on_device(slice, place);
  std::string_view category = slice.category;
  if (category.empty()) category = place.overhead ? "\"overhead\"" : slice.dur == kNull ? "" : category_by_arguments(slice.name, slice.args);
  put(slice, place, category, phase);
}

// Slices of a device: synchronisation, where GPU work has packets of its own; else the work itself.
void PftraceReader::write_on_device(const Slice& slice, const Place& place) {
  const bool waits = slice.name.find(" Sync\"") != std::string_view::npos || begins(slice.name, "Stream Wait Event");
  std::string_view category = slice.category;
  if (category.empty() && (stages || waits)) category = "\"cuda_sync\"";
  if (category.empty() && begins(slice.name, "Memcpy")) category = "\"gpu_memcpy\"";
  if (category.empty() && begins(slice.name, "Memset")) category = "\"gpu_memset\"";
  if (category.empty()) category = "\"kernel\"";
  Slice placed{slice.time, slice.dur, slice.track, slice.name, category, slice.args};
  const auto add = [&](std::string_view quoted, int64_t value) {
    if (value == kNull || has_key(placed.args, quoted)) return;
    if (!placed.args.empty()) placed.args += ", ";
    placed.args += quoted, placed.args += ": ";
    append_number(placed.args, value);
  };
  add("\"device\"", place.device);
  add("\"stream\"", place.stream);
  Place shown;
  append_number(shown.pid, place.device);
  if (place.stream != kNull) append_number(shown.tid, place.stream);
  else shown.tid = place.tid;
  put(placed, shown, category, "X");
}

void PftraceReader::put(const Slice& slice, const Place& place, std::string_view category, const char* phase) {
  out_ += events_written_++ ? ",\n{\"ph\": \"" : "\n{\"ph\": \"";
  out_ += phase, out_ += "\"";
  if (!category.empty()) out_ += ", \"cat\": ", out_ += category;
  if (!slice.name.empty()) out_ += ", \"name\": ", out_ += slice.name;
  out_ += ", \"pid\": ", out_ += place.pid, out_ += ", \"tid\": ", out_ += place.tid;
  out_ += ", \"ts\": ", append_time(out_, slice.time - origin_);
  if (slice.dur != kNull) out_ += ", \"dur\": ", append_time(out_, slice.dur);
  else out_ += ", \"s\": \"t\"";
  if (!slice.args.empty()) out_ += ", \"args\": {", out_ += slice.args, out_ += "}";
  out_ += "}";
  if (out_.size() > 1 << 20) flush();
}

}  // namespace stepscope
