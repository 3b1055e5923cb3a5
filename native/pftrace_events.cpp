// What packets of a Perfetto trace say of the host: slices of tracks and their arguments.
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

bool is_runtime(std::string_view category) {
  return category.find("runtime") != std::string_view::npos || category.find("driver") != std::string_view::npos;
}

}  // namespace

void append_number(std::string& out, int64_t number) {
  char text[24];
  out.append(text, std::to_chars(text, text + sizeof text, number).ptr);
}

void append_unsigned(std::string& out, uint64_t number) {
  char text[24];
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

// ---- arguments

bool PftraceReader::append_value(std::string& out, const Wire& wire, const Sequence& sequence, int depth) {
  switch (wire.field) {
    case 2: out += wire.number ? "true" : "false"; return true;
    case 3: append_unsigned(out, wire.number); return true;
    case 4: append_number(out, wire.whole()); return true;
    case 5: append_real(out, wire.real()); return true;
    case 6:
      if (depth == 0 && wire.bytes == "null") out += "null";  // what a null is written as
      else append_quoted(out, wire.bytes);
      return true;
    case 7: append_unsigned(out, wire.number); return true;
    case 9: append_quoted(out, wire.bytes); return true;
    case 17: {
      const Text* text = sequence.strings.find(wire.number);
      out += text ? text->json : std::string("null");
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
          if (const Text* text = sequence.keys.find(key.number)) name = text->json;
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

bool PftraceReader::append_annotation_key(std::string& out, std::string_view annotation, const Sequence& sequence) {
  std::string_view plain;
  const Text* known = nullptr;
  Wire wire(annotation);
  while (wire.next()) {
    if (wire.field == 10 && wire.has_bytes()) plain = wire.bytes;
    if (wire.field == 1 && wire.has_number()) known = sequence.keys.find(wire.number);
  }
  if (known) out += known->json;
  else append_quoted(out, plain);
  out += ": ";
  return !wire.bad;
}

// All arguments as text, and the correlation among them.
bool PftraceReader::append_arguments(std::string& out, TrackEvent& event, const Sequence& sequence) {
  for (const std::string_view annotation : annotations_) {
    if (!out.empty()) out += ", ";
    const size_t key = out.size();
    if (!append_annotation_key(out, annotation, sequence)) return false;
    if (std::string_view(out).substr(key) == "\"correlation\": ") {
      event.correlation = kNull;
      Wire wire(annotation);
      while (wire.next())
        if ((wire.field == 3 || wire.field == 4) && wire.has_number()) event.correlation = wire.whole();
    }
    if (!append_annotation(out, annotation, sequence, 0)) return false;
  }
  return true;
}

// ---- slices

bool PftraceReader::read_legacy(std::string_view message, Sequence& sequence, TrackEvent& event) {
  Wire wire(message);
  while (wire.next()) {
    if (wire.field == 1)
      if (const Text* name = sequence.names.find(wire.number)) event.name = name->number, event.title = name->json, event.name_iid = 0;
    if (wire.field == 2) {
      const auto phase = static_cast<char>(wire.number);
      int& type = event.type;
      type = phase == 'B' ? kBegin : phase == 'E' ? kEnd : phase == 'X' ? kComplete : phase == 'I' || phase == 'i' ? kInstant : type;
    }
    if (wire.field == 3) event.dur = static_cast<int64_t>(std::min<uint64_t>(wire.number, kFarthest / 1000)) * 1000;
  }
  return !wire.bad;
}

// Times of old traces, in µs: those since the last one, or since the beginning.
bool PftraceReader::read_old_time(const Wire& wire, Sequence& sequence, TrackEvent& event) {
  const bool since_last = wire.field == 1;
  if (since_last && sequence.legacy_us == kNull) return false;
  const int64_t us = since_last ? saturating_add(sequence.legacy_us, wire.whole()) : wire.whole();
  if (since_last) sequence.legacy_us = us;
  return us >= 0 && us <= kFarthest / 1000 && time_of(static_cast<uint64_t>(us) * 1000, 0, 0, event.time);
}

bool PftraceReader::read_fields(std::string_view message, Sequence& sequence, TrackEvent& event) {
  annotations_.clear(), flows_.clear(), ids_.clear(), group_text_.clear();
  Wire wire(message);
  while (wire.next()) {
    switch (wire.field) {
      case 1:
      case 16:
        if (!read_old_time(wire, sequence, event)) return false;
        break;
      case 3:
        if (!each_number(wire, [&](uint64_t iid) {
              if (const Text* text = sequence.categories.find(iid); text && !event.group.data())
                event.category = text->number, event.group = text->json, event.category_iid = iid;
            })) return false;
        break;
      case 22:
        if (!group_text_.empty() || !wire.has_bytes()) break;
        append_quoted(group_text_, wire.bytes);
        event.group = group_text_;
        event.category = category_number(group_text_, wire.bytes);
        event.category_iid = 0;
        break;
      case 10:
        if (const Text* text = sequence.names.find(wire.number)) event.name = text->number, event.title = text->json, event.name_iid = wire.number;
        else note("a name that is given by a number without a text", 0, -1);
        break;
      case 23:
        if (!wire.has_bytes()) break;
        title_.clear(), append_quoted(title_, wire.bytes);
        event.title = title_;
        event.name = name_number(title_);
        event.name_iid = 0;
        break;
      case 4:
        if (!wire.has_bytes()) return false;
        annotations_.push_back(wire.bytes);
        break;
      case 6:
        if (!wire.has_bytes() || !read_legacy(wire.bytes, sequence, event)) return false;
        break;
      case 9: event.type = static_cast<int>(std::min<uint64_t>(wire.number, 99)); break;
      case 11: event.track = wire.number, event.has_track = true; break;
      case 30: event.value = static_cast<double>(wire.whole()), event.counted = true; break;
      case 44: event.value = wire.real(), event.counted = true; break;
      case 36:
      case 47:
      case 42:
      case 48:
        if (wire.has_number() && flows_.size() < 16) flows_.push_back(wire.number);
        break;
      case 3000:
        if (!wire.has_bytes() || !read_launched(wire.bytes)) return false;
        break;
      case 3001: event.api = true; break;
      default: break;
    }
  }
  return !wire.bad;
}

bool PftraceReader::read_launched(std::string_view message) {
  Wire wire(message);
  while (wire.next())
    if (wire.field == 1 && !each_number(wire, [&](uint64_t id) { ids_.push_back(id); })) return false;
  return !wire.bad;
}

void PftraceReader::read_counter_value(const TrackEvent& event, uint32_t number) {
  Track& track = tracks_[number];
  if (!event.counted) return;
  if (track.counter < 0 && counters.size() < 1 << 14) {
    track.counter = static_cast<int32_t>(counters.size());
    counters.push_back({place_of(number).device, track.name, track.unit});
  }
  double value = event.value * static_cast<double>(track.factor);
  if (track.adds_up) value = static_cast<double>(track.sum = saturating_add(track.sum, static_cast<int64_t>(value)));
  add_reading(track.counter, event.time, value);
}

bool PftraceReader::read_track_event(std::string_view message, Sequence& sequence, int64_t time) {
  TrackEvent event;
  event.time = time;
  if (!read_fields(message, sequence, event)) return false;
  if (event.time == kNull) {
    note("an event without a time, set aside", 0, -1);
    return true;
  }
  if (!event.has_track) event.track = sequence.default_track ? sequence.default_track : sequence.thread_track;
  const uint32_t track = track_number(event.track);
  if (event.type == kCounter || (event.counted && event.type == 0)) {
    read_counter_value(event, track);
    return true;
  }
  if ((event.api || !ids_.empty()) && !is_runtime(event.group)) {  // a call into a device's runtime, whatever its writer calls it
    const std::string_view title = event.title;
    const bool driver = title.size() > 3 && title.substr(0, 3) == "\"cu" && std::isupper(static_cast<unsigned char>(title[3]));
    event.group = driver ? "\"cuda_driver\"" : "\"cuda_runtime\"";
    event.category = category_number(event.group, event.group.substr(1, event.group.size() - 2));
    event.category_iid = 0;
  }
  Slice slice;
  slice.time = event.time, slice.dur = event.dur, slice.track = track;
  const bool shaped = event.category >= 0 && (event.name >= 0 || !event.title.data()) && event.type != kEnd;
  if (shaped && !read_shape(event, sequence, slice)) return false;
  if (slice.shape < 0 || makes_up(event)) {
    slice.shape = slice.name = -1;
    slice.title = event.title, slice.category = event.group;
    if (!append_arguments(slice.args, event, sequence)) return false;
  }
  uncategorised &= event.group.empty();
  note_launch(event, slice);
  ++slices;
  if (event.type == kBegin) {
    slice.dur = kNull;
    const PackedSlice head = pack(event_record_, slice);
    begin(head, event_record_);
  } else if (event.type == kEnd) {
    --slices;
    Slice ending;
    ending.time = slice.time, ending.dur = kIsEnd, ending.track = slice.track;
    ending.args = std::move(slice.args);
    const PackedSlice head = pack(event_record_, ending);
    end(head, event_record_);
  } else if (event.type == kComplete && slice.dur != kNull) {
    complete(slice);
  } else if (event.type == kInstant) {
    slice.dur = kNull;
    complete(slice);
  }
  return true;
}

// Whether a launch has nothing to be told by but an arrow, or the first event of what it launched.
bool PftraceReader::makes_up(const TrackEvent& event) const {
  return event.correlation == kNull && (!flows_.empty() || !ids_.empty()) && (event.group.empty() || is_runtime(event.group));
}

// Ties a launch to what it launched: by its own number, that of an arrow, or one that is made up from the first event.
void PftraceReader::note_launch(TrackEvent& event, Slice& slice) {
  if (makes_up(event)) {
    const bool by_flow = ids_.empty();
    event.correlation = static_cast<int64_t>(by_flow ? flows_[0] & kLow : (ids_[0] & (kLow >> 1)) | (kLow ^ (kLow >> 1)));
    made_up_ |= !by_flow;
    append_key(slice.args, "\"correlation\"");
    append_number(slice.args, event.correlation);
  }
  if (event.correlation != kNull) tie(event.correlation);
}

// What a launch started on a GPU, by its event.
void PftraceReader::tie(int64_t correlation) {
  for (const uint64_t id : ids_) {
    if (launched_.size() >= kMostLaunched) {
      note("GPU work that is tied to a launch by its event alone, after the first 16,777,216", 0, -1);
      break;
    }
    launched_.emplace_back(id, correlation);
  }
}

}  // namespace stepscope
