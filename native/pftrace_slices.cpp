// Slices of a Perfetto trace: the begin and the end of each are brought together, and written as one event.
#include <algorithm>
#include <cstring>

#include "pftrace.hpp"

namespace stepscope {

namespace {

constexpr std::string_view kRange = "\"user_annotation\"";
constexpr size_t kDeepest = 4096;      // slices of one track inside one another

using Packed = PackedSlice;

Packed head_of(std::string_view record) {
  Packed head;
  std::memcpy(&head, record.data(), sizeof head);
  return head;
}

constexpr uint32_t kSpooled = ~uint32_t{0};  // in place of a track
constexpr size_t kMostBegun = 4096;          // slices of a group that are opened before it is known how they end

// Something of each track. The same one is asked for many times in a row.
template <class T>
struct LastFound {
  std::unordered_map<uint32_t, T> all;
  uint32_t track = 0;
  T* found = nullptr;

  T& at(uint32_t wanted, T unless_known) {
    if (!found || wanted != track) found = &all.try_emplace(wanted, unless_known).first->second;
    track = wanted;
    return *found;
  }
};

int64_t start_of(std::string_view record) {
  int64_t time;
  std::memcpy(&time, record.data() + offsetof(Packed, time), sizeof time);
  return time;
}

void set_dur(std::string& record, int64_t dur) { std::memcpy(record.data() + offsetof(Packed, dur), &dur, sizeof dur); }

bool has_key(std::string_view args, std::string_view quoted) { return args.find(quoted) != std::string_view::npos; }

bool begins(std::string_view quoted, std::string_view with) { return quoted.size() > with.size() && quoted.substr(1, with.size()) == with; }

// What a slice without a category is, of a writer that has none: by the arguments that only one kind has.
std::string_view category_by_arguments(std::string_view name, std::string_view args) {
  if (has_key(args, "\"Python id\"")) return "\"python_function\"";
  if (has_key(args, "\"cbid\"") || (has_key(args, "\"correlation\"") && !has_key(args, "\"Ev Idx\"")))
    return begins(name, "cu") && name.size() > 3 && std::isupper(static_cast<unsigned char>(name[3])) ? "\"cuda_driver\"" : "\"cuda_runtime\"";
  const bool operator_like = has_key(args, "\"Ev Idx\"") || has_key(args, "\"External id\"") || has_key(args, "\"Input Dims\"");
  return operator_like && !begins(name, "ProfilerStep#") && !begins(name, "Optimizer.") && !begins(name, "enumerate(Data") ? "\"cpu_op\"" : kRange;
}

}  // namespace

PackedSlice pack(std::string& to, const Slice& slice) {
  const bool shaped = slice.shape >= 0;
  const Packed head{slice.time, slice.dur, slice.track, slice.shape, shaped ? slice.name : static_cast<int32_t>(slice.title.size()),
                    static_cast<uint32_t>(slice.category.size())};
  to.assign(reinterpret_cast<const char*>(&head), sizeof head);
  if (shaped) {
    to.append(reinterpret_cast<const char*>(slice.numbers.data()), slice.count * sizeof(int64_t));
    return head;
  }
  to += slice.title;
  to += slice.category;
  to += slice.args;
  return head;
}

Slice unpack(std::string_view record) {
  const Packed head = head_of(record);
  record.remove_prefix(sizeof head);
  Slice slice;
  slice.time = head.time, slice.dur = head.dur, slice.track = head.track, slice.shape = head.shape;
  if (head.shape >= 0) {
    slice.name = head.name;
    slice.count = static_cast<uint32_t>(record.size() / sizeof(int64_t));
    std::memcpy(slice.numbers.data(), record.data(), record.size());
    return slice;
  }
  const auto name = static_cast<size_t>(head.name);
  slice.title = record.substr(0, name);
  slice.category = record.substr(name, head.category);
  slice.args = record.substr(name + head.category);
  return slice;
}

// ---- groups: a stretch of begins and the stretch of ends that follows it

void PftraceReader::begin(const PackedSlice& head, std::string_view record) {
  if (ended_) end_group(false);
  Line& line = lines_[head.track];
  line.in_order &= head.time >= line.latest;
  line.latest = std::max(line.latest, head.time);
  line.reached = line.group == group_ ? std::max(line.reached, head.time) : head.time;
  line.group = group_;
  if (begun_.size() >= kMostBegun || (line.streams && (!line.in_order || line.open.depth() >= kDeepest))) take_back();
  const bool opens = line.streams && !group_waits_;
  if (opens) line.open.push(record);
  else begins_.add(record);
  if (!group_waits_) begun_.push_back(opens ? head.track : kSpooled);
}

void PftraceReader::end(const PackedSlice& head, std::string_view record) {
  Line& line = lines_[head.track];
  line.in_order &= head.time >= line.latest;
  line.latest = std::max(line.latest, head.time);
  if (line.group != group_) line.reached = 0, line.group = group_;
  group_in_order_ &= head.time >= line.reached;
  line.reached = std::max(line.reached, head.time);
  if (line.streams && !line.in_order && !group_sorted_) take_back();
  ++ended_;
  // What cannot be paired by position any more waits for nothing.
  if (!group_sorted_ && (begun() < 2 || ended_ > begun())) sort_group();
  if (group_sorted_) return sort(head, record);
  spool_ends();
  ends_.add(record);
}

// The same of an end that says nothing but its time. Where slices are written as they come, no record is made of it.
void PftraceReader::end_plainly(int64_t time, uint32_t track) {
  Line& line = lines_[track];
  if (!line.streams || !line.in_order || time < line.latest || group_waits_ || ends_.size()) {
    const PackedSlice head{time, kIsEnd, track, -1, 0, 0};
    return end(head, {reinterpret_cast<const char*>(&head), sizeof head});
  }
  line.latest = time;
  if (line.group != group_) line.reached = 0, line.group = group_;
  group_in_order_ &= time >= line.reached;
  line.reached = std::max(line.reached, time);
  ++ended_;
  if (!group_sorted_ && (begun_.size() < 2 || ended_ > begun_.size())) sort_group();
  if (group_sorted_) step_out(line, time, {});
  else plain_ends_.push_back({time, track});
}

// Ends that were kept without a record get one, to be read as all others.
void PftraceReader::spool_ends() {
  for (const PlainEnd& one : plain_ends_) {
    const PackedSlice head{one.time, kIsEnd, one.track, -1, 0, 0};
    ends_.add({reinterpret_cast<const char*>(&head), sizeof head});
  }
  plain_ends_.clear();
}

// The begins of the group, as they came: those that were opened are open no more.
void PftraceReader::take_back() {
  if (std::exchange(group_waits_, true)) return;
  spool_ends();
  LastFound<size_t> opened;
  for (const uint32_t track : begun_)
    if (track != kSpooled) ++opened.at(track, 0);
  for (auto& [track, count] : opened.all) count = lines_[track].open.depth() - count;
  Spool all(spec_.folder, spec_.memory_bytes);
  Spool::Pass spooled(begins_);
  LastFound<size_t> next{opened.all};
  for (const uint32_t track : begun_) {
    std::string_view record;
    if (track == kSpooled) spooled.next(record);
    else record = lines_[track].open.at(next.at(track, 0)++);
    all.add(record);
  }
  for (const auto& [track, depth] : opened.all)
    while (lines_[track].open.depth() > depth) lines_[track].open.pop();
  begins_ = std::move(all);
  begun_.clear();
}

// What is complete waits if it is not known yet where it is shown, or what it is.
void PftraceReader::complete(const Slice& slice) {
  const Place& place = place_of(slice.track);
  if (place.known && (slice.dur == kNull || place.device == kNull)) return write(slice);
  pack(record_, slice);
  if (slice.dur == kNull) set_dur(record_, kIsInstant);
  sorter_.add({slice.track, slice.time, 0, order_++}, record_);
}

void PftraceReader::end_group(bool last) {
  if (by_position(last)) write_paired(last);
  else sort_group();
  begins_.clear();
  ends_.clear();
  begun_.clear();
  ended_ = 0;
  group_waits_ = group_sorted_ = false;
  ++group_;
  group_in_order_ = true;
}

// Some writers write the begins of many slices, and then their ends in the same order. They can be told from those that
// write everything as it happens: on some track time goes back where the ends begin, or among them.
bool PftraceReader::by_position(bool last) {
  if (group_sorted_ || group_in_order_ || begun() < 2 || (ended_ < begun() && !last) || !ended_) return false;
  take_back();
  LastFound<int64_t> reached;  // the latest time of each track
  Spool::Pass all(begins_), begun(begins_), ended(ends_);
  std::string_view record;
  Packed head, end;
  while (all.next(record)) {
    std::memcpy(&head, record.data(), sizeof head);
    int64_t& latest = reached.at(head.track, head.time);
    latest = std::max(latest, head.time);
  }
  bool in_order = true;
  while (ended.next(record)) {
    std::memcpy(&end, record.data(), sizeof end);
    if (!begun.next(record)) return false;
    std::memcpy(&head, record.data(), sizeof head);
    if (end.track != head.track || end.time < head.time) return false;
    int64_t& before = reached.at(end.track, 0);
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
    Packed head = head_of(a);
    const Place& place = place_of(head.track);
    if (head.shape >= 0 && b.size() == sizeof(Packed) && place.known && place.device == kNull) {
      head.dur = head_of(b).time - head.time;
      write_record(head, a);
      continue;
    }
    Slice slice = unpack(a);
    slice.dur = head_of(b).time - slice.time;
    if (b.size() > sizeof(Packed)) {
      spell(slice);
      if (!slice.args.empty()) slice.args += ", ";
      slice.args += b.substr(sizeof(Packed));
    }
    complete(slice);
  }
}

void PftraceReader::sort_group() {
  for (Spool* spool : {&begins_, &ends_}) {
    if (!spool->size()) continue;
    spool->each([this](std::string_view record) { sort(head_of(record), record); });
    spool->clear();
  }
  for (const PlainEnd& one : plain_ends_) step_out(lines_[one.track], one.time, {});
  plain_ends_.clear();
  group_sorted_ = true;
  if (!streaming_ && sorter_.in_memory() >= spec_.streams_after) stream_tracks();
}

void PftraceReader::sort(const PackedSlice& head, std::string_view record) {
  if (streaming_ && streams(head.track)) step(lines_[head.track], head, record);
  else sorter_.add({head.track, head.time, 0, order_++}, record);
}

// ---- tracks that are in order are written as they come, once there are many slices

// What lies on a device waits for the end: whether GPU work has packets of its own tells what its slices are.
bool PftraceReader::may_stream(uint32_t track) {
  const Place& place = place_of(track);
  return lines_[track].in_order && place.known && place.device == kNull;
}

void PftraceReader::stream_tracks() {
  streaming_ = true;
  for (uint32_t track = 0; track < lines_.size(); ++track) lines_[track].streams = lines_[track].latest != kNull && may_stream(track);
  Sorter all = std::exchange(sorter_, Sorter(spec_.folder, spec_.memory_bytes));
  all.finish();
  SortKey key;
  std::string_view record;
  while (all.next(key, record)) {
    Line& line = lines_[key.track];
    line.waits |= !line.streams;
    if (line.streams) step(line, head_of(record), record);
    else sorter_.add(key, record);
  }
}

bool PftraceReader::streams(uint32_t track) {
  Line& line = lines_[track];
  if (!line.streams && !line.waits) {  // its first slice
    line.streams = may_stream(track);
    line.waits = !line.streams;
  } else if (line.streams && !line.in_order) {
    note("a track that went back in time after many slices: those before stand as they were paired", 0, -1);
    line.streams = false, line.waits = true;
  }
  return line.streams;
}

// ---- by a stack for each track

// What is as long as what is in it comes first, or it would be taken to be inside.
void PftraceReader::release(Line& line) {
  for (; !line.held.empty(); line.held.pop_back()) write_record(head_of(line.held.back().first), line.held.back().first);
}

void PftraceReader::close(Line& line, int64_t time, std::string_view more) {
  const size_t depth = line.open.depth();
  std::string_view record = line.open.pop();
  Packed head = head_of(record);
  head.dur = time - head.time;
  if (!more.empty()) {
    Slice slice = unpack(record);
    spell(slice);
    if (!slice.args.empty()) slice.args += ", ";
    slice.args += more;
    head = pack(record_, slice);
    head.dur = time - head.time;
    record = record_;
  }
  if (!line.held.empty()) {
    const Packed before = head_of(line.held.back().first);
    if (before.time != head.time || before.dur != head.dur || depth >= line.held.back().second) release(line);
  }
  if (depth > 1 && start_of(line.open.at(depth - 2)) == head.time) {  // it may be as long
    set_dur(line.held.emplace_back(record, depth).first, head.dur);
    return;
  }
  write_record(head, record);
  release(line);
}

// A range that is open at the end may be a step, and would be a short one: without a duration it is none.
bool PftraceReader::write_open(const Slice& slice) {
  const Place& place = place_of(slice.track);
  Slice spelled = slice;
  spell(spelled);
  const bool plain = spelled.category.empty() && !place.overhead;
  if (place.device != kNull || (plain ? category_by_arguments(spelled.title, spelled.args) : spelled.category) != kRange) return false;
  note("a range that has no end, kept without a duration: it is no whole step", 0, -1);
  spelled.dur = kIsOpen;
  put(spelled, place, kRange);
  return true;
}

void PftraceReader::end_track(Line& line) {
  const bool few = line.open.depth() <= spec_.most_open;
  while (const size_t depth = line.open.depth()) {
    const std::string_view record = line.open.at(depth - 1);
    if (few && write_open(unpack(record))) {
      line.open.pop();
      continue;
    }
    note(few ? "a slice that has no end, taken to last until the end of the trace" : "a slice whose end is missing, left out", 0, -1);
    if (few) close(line, std::max(latest_, start_of(record)), {});
    else line.open.pop();
  }
  release(line);
  line.open = {}, line.held = {};
  line.too_deep = 0;
}

void PftraceReader::step_out(Line& line, int64_t time, std::string_view more) {
  if (line.too_deep) --line.too_deep;
  else if (line.open.depth()) close(line, time, more);
  else note("the end of a slice that did not begin, left out", 0, -1);
}

void PftraceReader::step(Line& line, const PackedSlice& head, std::string_view record) {
  if (head.dur == kIsEnd) {
    step_out(line, head.time, record.substr(sizeof head));
  } else if (head.dur == kIsInstant) {
    Slice instant = unpack(record);
    instant.dur = kNull;
    write(instant);
  } else if (head.dur != kNull) {
    write_record(head, record);
  } else if (line.open.depth() >= kDeepest) {
    note("slices that are nested over 4,096 deep, left out", 0, -1);
    ++line.too_deep;
  } else {
    line.open.push(record);
  }
}

// Some of what waits, track by track; false when there is no more.
bool PftraceReader::write_sorted(size_t most) {
  SortKey key;
  std::string_view record;
  while (most-- > 0) {
    if (!sorter_.next(key, record)) {
      for (Line& line : lines_) end_track(line);
      return false;
    }
    if (key.track != sorted_track_ && sorted_track_ < lines_.size()) end_track(lines_[sorted_track_]);
    sorted_track_ = key.track;
    step(lines_[key.track], head_of(record), record);
  }
  return true;
}

// GPU work that names no launch: the launches may name it.
bool PftraceReader::write_late(size_t most) {
  if (!late_pass_) {
    std::sort(launched_.begin(), launched_.end());
    late_pass_ = std::make_unique<Spool::Pass>(late_);
  }
  std::string_view record;
  for (; most > 0 && late_pass_->next(record); --most) {
    uint64_t event;
    int64_t correlation;
    std::memcpy(&event, record.data(), sizeof event);
    std::memcpy(&correlation, record.data() + sizeof event, sizeof correlation);
    record.remove_prefix(sizeof event + sizeof correlation);
    const auto it = std::lower_bound(launched_.begin(), launched_.end(), std::pair{event, std::numeric_limits<int64_t>::min()});
    if (it != launched_.end() && it->first == event) correlation = it->second;
    out_ = record;
    if (correlation != kNull) out_ += ", \"correlation\": ", append_number(out_, correlation);
    out_ += "}}";
    events_.read_one(out_);
  }
  return most == 0;
}

// ---- as events

void PftraceReader::write(const Slice& slice) {
  const bool shaped = slice.shape >= 0;
  if (shaped ? categories_[static_cast<size_t>(shapes_[static_cast<size_t>(slice.shape)].category)].left_out
             : !spec_.left_out.empty() && slice.category == spec_.left_out) return;
  Place& place = place_of(slice.track);
  latest_ = std::max(latest_, slice.dur == kNull ? slice.time : saturating_add(slice.time, slice.dur));
  const PackedSlice head{slice.time, slice.dur, slice.track, slice.shape, slice.name, 0};
  const bool quick = shaped && is_quick(head, place);
  if (quick && write_quickly(head, reinterpret_cast<const char*>(slice.numbers.data()), place)) return;
  std::optional<Identity> is;
  Slice spelled = slice;
  spell(spelled);
  if (place.device != kNull && slice.dur != kNull) {
    is = write_on_device(spelled, place);
  } else {
    std::string_view category = spelled.category;
    if (category.empty()) category = place.overhead ? "\"overhead\"" : slice.dur == kNull ? "" : category_by_arguments(spelled.title, spelled.args);
    is = put(spelled, place, category);
  }
  if (quick && is) learn(slice, place, *is);
}

// Slices of a device: synchronisation, where GPU work has packets of its own; else the work itself.
std::optional<Identity> PftraceReader::write_on_device(const Slice& slice, const Place& place) {
  const bool waits = slice.title.find(" Sync\"") != std::string_view::npos || begins(slice.title, "Stream Wait Event");
  std::string_view category = slice.category;
  if (category.empty() && (stages || waits)) category = "\"cuda_sync\"";
  if (category.empty() && begins(slice.title, "Memcpy")) category = "\"gpu_memcpy\"";
  if (category.empty() && begins(slice.title, "Memset")) category = "\"gpu_memset\"";
  if (category.empty()) category = "\"kernel\"";
  Slice placed = slice;
  const auto add = [&](std::string_view quoted, int64_t value) {
    if (value == kNull || has_key(placed.args, quoted)) return;
    append_key(placed.args, quoted);
    append_number(placed.args, value);
  };
  add("\"device\"", place.device);
  add("\"stream\"", place.stream);
  Place shown;
  append_number(shown.pid, place.device);
  if (place.stream != kNull) append_number(shown.tid, place.stream);
  else shown.tid = place.tid;
  return put(placed, shown, category);
}

std::optional<Identity> PftraceReader::put(const Slice& slice, const Place& place, std::string_view category) {
  const auto append_time = [this](int64_t ns) {
    char text[32];
    out_.append(text, write_time(ns, text));
  };
  out_ = slice.dur == kNull ? "{\"ph\": \"i\"" : slice.dur == kIsOpen ? "{\"ph\": \"B\"" : "{\"ph\": \"X\"";
  if (!category.empty()) out_ += ", \"cat\": ", out_ += category;
  if (!slice.title.empty()) out_ += ", \"name\": ", out_ += slice.title;
  out_ += ", \"pid\": ", out_ += place.pid, out_ += ", \"tid\": ", out_ += place.tid;
  out_ += ", \"ts\": ", append_time(slice.time - origin_);
  if (slice.dur == kNull) out_ += ", \"s\": \"t\"";
  else if (slice.dur != kIsOpen) out_ += ", \"dur\": ", append_time(slice.dur);
  if (!slice.args.empty()) out_ += ", \"args\": {", out_ += slice.args, out_ += "}";
  out_ += "}";
  return events_.read_one(out_);
}

}  // namespace stepscope
