// What packets of a Perfetto trace say: slices of tracks, work of GPUs, readings of counters.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "pftrace.hpp"

namespace stepscope {

namespace {

constexpr int kDeepest = 24;  // values inside values
constexpr int kBegin = 1, kEnd = 2, kInstant = 3, kCounter = 4, kComplete = 5;
constexpr uint64_t kLow = (uint64_t{1} << 58) - 1;  // of a number that is made one of 18 digits
constexpr size_t kMostLaunched = 16 << 20;
constexpr size_t kMostReadings = 1 << 16;

// Keys of collectives whose values are texts, also those that look like numbers.
constexpr std::array<std::string_view, 6> kTexts = {"Process Group Name", "Process Group Description", "Process Group Ranks",
                                                    "Collective name", "dtype", "Comms Id"};

template <class T>
void append_number(std::string& out, T number) {
  char text[32];
  out.append(text, std::to_chars(text, text + sizeof text, number).ptr);
}

void append_real(std::string& out, double number) {
  if (!std::isfinite(number)) {
    out += std::isnan(number) ? "\"NaN\"" : number > 0 ? "\"inf\"" : "\"-inf\"";
    return;
  }
  char text[40];
  out += write_double(number, text);
}

void append_key(std::string& args, std::string_view quoted) {
  if (!args.empty()) args += ", ";
  args += quoted;
  args += ": ";
}

bool is_runtime(std::string_view category) {
  return category.find("runtime") != std::string_view::npos || category.find("driver") != std::string_view::npos;
}

// A text that is a plain whole number, as such; others quoted.
void append_scalar(std::string& out, std::string_view key, std::string_view text) {
  const char* p = text.data();
  int64_t number;
  if (!among(kTexts, key) && read_int(p, text.data() + text.size(), number) && p == text.data() + text.size()) out += text;
  else append_quoted(out, text);
}

int64_t number_in(std::string_view text) {
  const char* p = text.data();
  int64_t number;
  return read_int(p, text.data() + text.size(), number) && p == text.data() + text.size() ? number : kNull;
}

}  // namespace

// ---- arguments

bool PftraceReader::append_value(std::string& out, const Wire& wire, const Sequence& sequence, int depth) {
  switch (wire.field) {
    case 2: out += wire.number ? "true" : "false"; return true;
    case 3: append_number(out, wire.number); return true;
    case 4: append_number(out, wire.whole()); return true;
    case 5: append_real(out, wire.real()); return true;
    case 6:
      if (depth == 0 && wire.bytes == "null") out += "null";  // what a null is written as
      else append_quoted(out, wire.bytes);
      return true;
    case 7: append_number(out, wire.number); return true;
    case 9: append_quoted(out, wire.bytes); return true;
    case 17: {
      const std::string* text = sequence.strings.find(wire.number);
      out += text ? *text : std::string("null");
      return true;
    }
    default: return true;
  }
}

// The value of an annotation: one of its fields, or lists of others. One without any is a list or object without elements.
bool PftraceReader::append_annotation(std::string& out, std::string_view message, const Sequence& sequence, int depth) {
  if (depth > kDeepest) {
    out += "null";
    note("an argument that is nested too deep, not kept", 0, -1);
    return true;
  }
  Wire wire(message);
  size_t elements = 0;
  bool dict = false, scalar = false;
  while (wire.next()) {
    if (wire.field == 11 && wire.has_bytes() && !scalar && (dict || !elements)) {
      Wire key(wire.bytes);
      std::string name;
      while (key.next()) {
        if (key.field == 10 && key.has_bytes()) name.clear(), append_quoted(name, key.bytes);
        if (key.field == 1 && key.has_number())
          if (const std::string* text = sequence.keys.find(key.number)) name = *text;
      }
      if (key.bad) return false;
      out += elements++ ? ", " : "{";
      out += name.empty() ? std::string("\"\"") : name;
      out += ": ";
      dict = true;
      if (!append_annotation(out, wire.bytes, sequence, depth + 1)) return false;
    } else if (wire.field == 12 && wire.has_bytes() && !scalar && !dict) {
      out += elements++ ? ", " : "[";
      if (!append_annotation(out, wire.bytes, sequence, depth + 1)) return false;
    } else if (wire.field >= 2 && wire.field <= 17 && wire.field != 8 && wire.field != 10 && wire.field != 13 && wire.field != 14 &&
               wire.field != 16 && wire.field != 11 && wire.field != 12 && wire.field != 15 && !elements && !scalar) {
      scalar = true;
      const bool text = wire.field == 6 || wire.field == 9;
      if (text != wire.has_bytes()) return false;
      if (!append_value(out, wire, sequence, depth)) return false;
    }
  }
  if (elements) out += dict ? "}" : "]";
  else if (!scalar) out += "[]";
  return !wire.bad;
}

// ---- slices

bool PftraceReader::read_legacy(std::string_view message, Sequence& sequence, Slice& slice, int& type) {
  Wire wire(message);
  while (wire.next()) {
    if (wire.field == 1)
      if (const std::string* name = sequence.names.find(wire.number)) slice.name = *name;
    if (wire.field == 2) {
      const auto phase = static_cast<char>(wire.number);
      type = phase == 'B' ? kBegin : phase == 'E' ? kEnd : phase == 'X' ? kComplete : phase == 'I' || phase == 'i' ? kInstant : type;
    }
    if (wire.field == 3) slice.dur = static_cast<int64_t>(std::min<uint64_t>(wire.number, kFarthest / 1000)) * 1000;
  }
  return !wire.bad;
}

bool PftraceReader::read_track_event(std::string_view message, Sequence& sequence, int64_t time) {
  Slice slice;
  std::string name, category;
  std::vector<uint64_t> flows, ids;
  int type = 0;
  int64_t correlation = kNull;
  bool has_track = false, counted = false, api = false;
  double value = 0;
  Wire wire(message);
  while (wire.next()) {
    switch (wire.field) {
      case 1:
      case 16: {  // times of old traces, in µs
        const int64_t us = wire.field == 1 ? saturating_add(sequence.legacy_us, wire.whole()) : wire.whole();
        if (wire.field == 1 && sequence.legacy_us == kNull) return false;
        if (wire.field == 1) sequence.legacy_us = us;
        if (us < 0 || us > kFarthest / 1000 || !time_of(static_cast<uint64_t>(us) * 1000, 0, 0, time)) return false;
        break;
      }
      case 3:
        if (!each_number(wire, [&](uint64_t iid) {
              if (const std::string* text = sequence.categories.find(iid); text && slice.category.empty()) slice.category = *text;
            })) return false;
        break;
      case 22:
        if (category.empty() && wire.has_bytes()) append_quoted(category, wire.bytes), slice.category = category;
        break;
      case 10:
        if (const std::string* text = sequence.names.find(wire.number)) slice.name = *text;
        else note("a name that is given by a number without a text", 0, -1);
        break;
      case 23:
        if (wire.has_bytes()) name.clear(), append_quoted(name, wire.bytes), slice.name = name;
        break;
      case 4: {
        if (!wire.has_bytes()) return false;
        Wire key(wire.bytes);
        std::string_view plain;
        std::string quoted;
        const std::string* known = nullptr;
        int64_t number = kNull;
        while (key.next()) {
          if (key.field == 10 && key.has_bytes()) plain = key.bytes;
          if (key.field == 1 && key.has_number()) known = sequence.keys.find(key.number);
          if ((key.field == 3 || key.field == 4) && key.has_number()) number = key.whole();
        }
        if (key.bad) return false;
        if (!known) append_quoted(quoted, plain);
        append_key(slice.args, known ? *known : quoted);
        if ((known ? *known : quoted) == "\"correlation\"") correlation = number;
        if (!append_annotation(slice.args, wire.bytes, sequence, 0)) return false;
        break;
      }
      case 6:
        if (!wire.has_bytes() || !read_legacy(wire.bytes, sequence, slice, type)) return false;
        break;
      case 9: type = static_cast<int>(std::min<uint64_t>(wire.number, 99)); break;
      case 11: slice.track = wire.number, has_track = true; break;
      case 30: value = static_cast<double>(wire.whole()), counted = true; break;
      case 44: value = wire.real(), counted = true; break;
      case 36:
      case 47:
      case 42:
      case 48:
        if (wire.has_number() && flows.size() < 16) flows.push_back(wire.number);
        break;
      case 3000: {
        if (!wire.has_bytes()) return false;
        Wire inside(wire.bytes);
        while (inside.next())
          if (inside.field == 1 && !each_number(inside, [&](uint64_t id) { ids.push_back(id); })) return false;
        if (inside.bad) return false;
        break;
      }
      case 3001: api = true; break;
      default: break;
    }
  }
  if (wire.bad) return false;
  if (time == kNull) {
    note("an event without a time, set aside", 0, -1);
    return true;
  }
  if (!has_track) slice.track = sequence.default_track ? sequence.default_track : sequence.thread_track;
  slice.time = time;
  if (type == kCounter || (counted && type == 0)) {
    Track& track = tracks_[track_number(slice.track)];
    if (!counted) return true;
    if (track.counter < 0 && counters.size() < 1 << 14) {
      const Place& place = place_of(track_number(slice.track));
      track.counter = static_cast<int32_t>(counters.size());
      counters.push_back({place.device, track.name, track.unit});
    }
    value *= static_cast<double>(track.factor);
    if (track.adds_up) value = static_cast<double>(track.sum = saturating_add(track.sum, static_cast<int64_t>(value)));
    add_reading(track.counter, time, value);
    return true;
  }
  if (api || !ids.empty()) {  // a call into a device's runtime, whatever its writer calls it
    if (!is_runtime(slice.category)) slice.category = slice.name.size() > 3 && slice.name.substr(0, 3) == "\"cu" && std::isupper(static_cast<unsigned char>(slice.name[3])) ? "\"cuda_driver\"" : "\"cuda_runtime\"";
  }
  uncategorised &= slice.category.empty();
  note_launch(slice, ids, flows, correlation);
  ++slices;
  if (type == kBegin) begin(slice);
  else if (type == kEnd) --slices, end(slice);
  else if (type == kComplete && slice.dur != kNull) complete(slice);
  else if (type == kInstant) slice.dur = kNull, complete(slice);
  return true;
}

// Ties a launch to what it launched: by its own number, that of an arrow, or one that is made up from the first event.
void PftraceReader::note_launch(Slice& slice, const std::vector<uint64_t>& ids, const std::vector<uint64_t>& flows, int64_t correlation) {
  const bool may_launch = slice.category.empty() || is_runtime(slice.category);
  if (correlation == kNull && may_launch && (!flows.empty() || !ids.empty())) {
    const bool by_flow = ids.empty();
    correlation = static_cast<int64_t>(by_flow ? flows[0] & kLow : (ids[0] & (kLow >> 1)) | (kLow ^ (kLow >> 1)));
    made_up_ |= !by_flow;
    append_key(slice.args, "\"correlation\"");
    append_number(slice.args, correlation);
  }
  if (correlation == kNull) return;
  for (const uint64_t id : ids) {
    if (launched_.size() >= kMostLaunched) {
      note("GPU work that is tied to a launch by its event alone, after the first 16,777,216", 0, -1);
      break;
    }
    launched_.emplace_back(id, correlation);
  }
}

// ---- work of GPUs

bool PftraceReader::append_launch_argument(std::string& out, std::string_view message, const Sequence& sequence) {
  Wire wire(message);
  std::string key, value;
  while (wire.next()) {
    if (wire.field >= 3 && wire.field <= 7) value.clear();  // of several the last one counts
    switch (wire.field) {
      case 1:
        if (const std::string* name = sequence.arguments.find(wire.number)) key = *name;
        break;
      case 2:
        if (wire.has_bytes()) key.clear(), append_quoted(key, wire.bytes);
        break;
      case 3: append_number(value, wire.whole()); break;
      case 4: append_number(value, wire.number); break;
      case 5: append_real(value, wire.real()); break;
      case 6:
        if (wire.has_bytes()) append_quoted(value, wire.bytes);
        break;
      case 7:
        if (const std::string* text = sequence.strings.find(wire.number)) value = *text;
        break;
      default: break;
    }
  }
  if (wire.bad) return false;
  if (key == "\"registers_per_thread\"") key = "\"registers per thread\"";  // as Kineto calls it
  if (key.empty() || value.empty()) return true;
  append_key(out, key);
  out += value;
  return true;
}

bool PftraceReader::append_launch(std::string& out, std::string_view message, const Sequence& sequence) {
  Wire wire(message);
  while (wire.next()) {
    if (!wire.has_bytes()) continue;
    if (wire.field == 1 || wire.field == 2) {
      std::array<uint64_t, 3> size = {1, 1, 1};
      Wire inside(wire.bytes);
      while (inside.next())
        if (inside.field <= 3) size[inside.field - 1] = inside.number;
      if (inside.bad) return false;
      append_key(out, wire.field == 1 ? "\"grid\"" : "\"block\"");
      for (size_t i = 0; i < 3; ++i) out += i ? ", " : "[", append_number(out, size[i]);
      out += "]";
    } else if (wire.field == 3 && !append_launch_argument(out, wire.bytes, sequence)) {
      return false;
    }
  }
  return !wire.bad;
}

bool PftraceReader::read_old_specs(std::string_view message) {
  Wire wire(message);
  bool fresh_queues = true, fresh_stages = true;
  while (wire.next()) {
    if ((wire.field != 2 && wire.field != 3) || !wire.has_bytes()) continue;
    auto& to = wire.field == 2 ? old_queues_ : old_stages_;
    bool& fresh = wire.field == 2 ? fresh_queues : fresh_stages;
    if (std::exchange(fresh, false)) to.clear();
    Wire inside(wire.bytes);
    StageSpec spec;
    while (inside.next())
      if (inside.field == 1 && inside.has_bytes()) spec.name = inside.bytes.substr(0, 1024);
    if (inside.bad) return false;
    if (to.size() < 1024) to.push_back(std::move(spec));
  }
  return !wire.bad;
}

bool PftraceReader::read_stage_event(std::string_view message, Sequence& sequence, int64_t time) {
  uint64_t event = 0;
  int64_t dur = 0, device = kNull, stream = kNull, context = kNull, correlation = kNull;
  const StageSpec *stage = nullptr, *queue = nullptr;
  const std::string *name = nullptr, *kernel = nullptr;
  std::string inline_name, args, waits;
  bool launched = false, any = false;
  const auto find = [&](uint64_t iid) {
    const auto it = sequence.stages.find(iid);
    return it == sequence.stages.end() ? nullptr : &it->second;
  };
  const auto at = [](const std::vector<StageSpec>& specs, uint64_t i) { return i < specs.size() ? &specs[i] : nullptr; };
  Wire wire(message);
  while (wire.next()) {
    any |= wire.field != 7;
    switch (wire.field) {
      case 1: event = wire.number; break;
      case 2: dur = static_cast<int64_t>(std::min<uint64_t>(wire.number, kFarthest)); break;
      case 3: queue = at(old_queues_, wire.number), stream = stream == kNull ? wire.whole() : stream; break;
      case 4: stage = at(old_stages_, wire.number); break;
      case 5: context = context == kNull ? wire.whole() : context; break;
      case 7:
        if (wire.has_bytes() && !read_old_specs(wire.bytes)) return false;
        break;
      case 11: device = device == kNull ? static_cast<int32_t>(wire.number) : device; break;
      case 13: queue = find(wire.number), stream = stream == kNull ? wire.whole() : stream; break;
      case 14: stage = find(wire.number); break;
      case 17:
        if (wire.has_bytes()) inline_name.clear(), append_quoted(inline_name, wire.bytes);
        break;
      case 18:
        if (!each_number(wire, [&](uint64_t id) { waits += waits.empty() ? "[" : ", ", append_number(waits, id); })) return false;
        break;
      case 19: kernel = sequence.kernels.find(wire.number); break;
      case 20: name = sequence.names.find(wire.number); break;
      case 21:
        launched = true;
        if (!wire.has_bytes() || !append_launch(args, wire.bytes, sequence)) return false;
        break;
      default: break;
    }
  }
  if (wire.bad) return false;
  if (!any) return true;  // a description alone
  // Of a stage that names itself, what it says of itself comes before its queue.
  if (queue && queue->stream != kNull) stream = queue->stream;
  Wire extras(message);
  while (extras.next()) {
    if (extras.field != 6 || !extras.has_bytes()) continue;
    std::string_view key, value;
    Wire inside(extras.bytes);
    while (inside.next()) {
      if (inside.field == 1 && inside.has_bytes()) key = inside.bytes;
      if (inside.field == 2 && inside.has_bytes()) value = inside.bytes;
    }
    if (inside.bad) return false;
    const int64_t number = number_in(value);
    if (key == "device id" && number != kNull) device = number;
    else if (key == "context id" && number != kNull) context = number;
    else if (key == "stream id" && number != kNull) stream = number;
    else if (key == "correlation" && number != kNull) correlation = number;
    else {
      std::string quoted;
      append_quoted(quoted, key);
      append_key(args, quoted);
      append_scalar(args, key, value);
    }
  }
  if (time == kNull) {
    note("an event without a time, set aside", 0, -1);
    return true;
  }
  if (!waits.empty()) append_key(args, "\"waits for\""), args += waits, args += "]";
  ++stages;
  latest_ = std::max(latest_, saturating_add(time, dur));
  const char* category = stage && stage->category ? stage->category : nullptr;
  if (!category || launched || kernel) category = category && !launched && !kernel ? category : "kernel";
  std::string title;
  if (!inline_name.empty()) title = inline_name;
  else if (name) title = *name;
  else if (kernel) title = *kernel;
  else append_quoted(title, stage ? stage->name : "GPU work");
  if (device == kNull) device = 0;
  if (stream == kNull) stream = 0;
  std::string head = ",\n{\"ph\": \"X\", \"cat\": \"";
  head.reserve(title.size() + args.size() + 256);
  head += category, head += "\", \"name\": ", head += title, head += ", \"pid\": ", append_number(head, device);
  head += ", \"tid\": ", append_number(head, stream), head += ", \"ts\": ";
  char text[32];
  head.append(text, write_time(time - origin_, text)), head += ", \"dur\": ", head.append(text, write_time(dur, text));
  head += ", \"args\": {\"device\": ", append_number(head, device), head += ", \"context\": ", append_number(head, context == kNull ? 0 : context);
  head += ", \"stream\": ", append_number(head, stream);
  if (!args.empty()) head += ", ", head += args;
  if (correlation != kNull && !made_up_) {
    head += ", \"correlation\": ", append_number(head, correlation), head += "}}";
    out_ += std::string_view(head).substr(events_written_++ ? 0 : 1);
    return true;
  }
  record_.assign(reinterpret_cast<const char*>(&event), sizeof event);
  record_.append(reinterpret_cast<const char*>(&correlation), sizeof correlation);
  record_ += head;
  late_.add(record_);
  return true;
}

// ---- counters

void PftraceReader::add_reading(int32_t counter, int64_t time, double value) {
  if (counter < 0 || !std::isfinite(value)) return;
  readings_.counter.push_back(counter);
  readings_.time.push_back(time - origin_);
  readings_.value.push_back(std::bit_cast<int64_t>(value));
}

bool PftraceReader::read_counter_event(std::string_view message, Sequence& sequence, int64_t time) {
  Wire wire(message);
  int64_t device = 0;
  const std::unordered_map<uint32_t, int32_t>* known = nullptr;
  std::string_view described;
  std::vector<std::pair<uint32_t, double>> read;
  while (wire.next()) {
    if (wire.field == 1 && wire.has_bytes()) described = wire.bytes;
    if (wire.field == 3) device = static_cast<int32_t>(wire.number);
    if (wire.field == 4)
      if (const auto it = sequence.counters.find(wire.number); it != sequence.counters.end()) known = &it->second.second;
    if (wire.field != 2 || !wire.has_bytes()) continue;
    Wire one(wire.bytes);
    std::pair<uint32_t, double> reading{0, NAN};
    while (one.next()) {
      if (one.field == 1) reading.first = static_cast<uint32_t>(one.number);
      if (one.field == 2) reading.second = static_cast<double>(one.whole());
      if (one.field == 3) reading.second = one.real();
    }
    if (one.bad) return false;
    read.push_back(reading);
  }
  if (wire.bad) return false;
  if (described.data()) {
    std::unordered_map<uint32_t, int32_t> specs;
    if (!read_specs(described, device, specs)) return false;
    for (const auto& [id, counter] : specs) inline_counters_[{device, id}] = counter;
  }
  for (const auto& [id, value] : read) {
    int32_t counter = -1;
    if (known) {
      const auto it = known->find(id);
      counter = it == known->end() ? -1 : it->second;
    } else if (const auto it = inline_counters_.find({device, id}); it != inline_counters_.end()) {
      counter = it->second;
    }
    if (counter < 0 || time == kNull) note("a reading of a counter that nothing describes, not kept", 0, -1);
    else add_reading(counter, time, value);
  }
  return true;
}

}  // namespace stepscope
