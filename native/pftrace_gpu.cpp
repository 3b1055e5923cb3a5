// What packets of a Perfetto trace say of GPUs: work that ran there, and readings of counters.
#include <algorithm>
#include <cmath>

#include "pftrace.hpp"

namespace stepscope {

namespace {

// Keys of collectives whose values are texts, also those that look like numbers.
constexpr std::array<std::string_view, 6> kTexts = {"Process Group Name", "Process Group Description", "Process Group Ranks",
                                                    "Collective name", "dtype", "Comms Id"};

// A text that is a plain whole number, as such; others quoted.
void append_scalar(std::string& out, std::string_view key, std::string_view text) {
  const char* p = text.data();
  int64_t number;
  if (!among(kTexts, key) && read_int(p, text.data() + text.size(), number) && p == text.data() + text.size()) out += text;
  else append_quoted(out, text);
}

// A key and a text, once each and in this order, both short.
bool read_extra(std::string_view message, std::string_view& key, std::string_view& value) {
  const auto take = [&](char tag, std::string_view& out) {
    if (message.size() < 2 || message[0] != tag || static_cast<unsigned char>(message[1]) > message.size() - 2) return false;
    const auto size = static_cast<unsigned char>(message[1]);
    out = message.substr(2, size);
    message.remove_prefix(2u + size);
    return size < 0x80;
  };
  return take('\x0a', key) && take('\x12', value) && message.empty();
}

constexpr size_t kMostWorkText = 4096, kMostWorkBytes = 8 << 20;

int64_t number_in(std::string_view text) {
  const char* p = text.data();
  int64_t number;
  return read_int(p, text.data() + text.size(), number) && p == text.data() + text.size() ? number : kNull;
}

}  // namespace

bool PftraceReader::append_launch_argument(std::string& out, std::string_view message, const Sequence& sequence) {
  Wire wire(message);
  std::string key, value;
  while (wire.next()) {
    if (wire.field >= 3 && wire.field <= 7) value.clear();  // of several the last one counts
    switch (wire.field) {
      case 1:
        if (const Text* name = sequence.arguments.find(wire.number)) key = name->json;
        else work_known_ = false;
        break;
      case 2:
        if (wire.has_bytes()) key.clear(), append_quoted(key, wire.bytes);
        break;
      case 3: append_number(value, wire.whole()); break;
      case 4: append_unsigned(value, wire.number); break;
      case 5: append_real(value, wire.real()); break;
      case 6:
        if (wire.has_bytes()) append_quoted(value, wire.bytes);
        break;
      case 7:
        if (const Text* text = sequence.strings.find(wire.number)) value = text->json;
        else work_known_ = false;
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
      for (size_t i = 0; i < 3; ++i) out += i ? ", " : "[", append_unsigned(out, size[i]);
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

// All but the event, the duration and the correlation of some work, into work_text_, and where they stand in it; false if it
// has not each of them once, or if what it says depends on more than the texts of its sequence.
bool PftraceReader::spell_work(std::string_view message, const Sequence& sequence, int64_t& dur, int64_t& correlation) {
  std::array<uint32_t, 4> head = {sequence.epoch, 0, 0, 0};
  work_text_.assign(reinterpret_cast<const char*>(head.data()), sizeof head);
  const char* kept = message.data();
  Wire wire(message);
  const auto leave_out = [&](uint32_t& place, const char* at) {
    work_text_.append(kept, at);
    kept = wire.p;
    return std::exchange(place, static_cast<uint32_t>(work_text_.size())) == 0;
  };
  for (const char* at = wire.p; wire.next(); at = wire.p) {
    if (wire.field == 3 || wire.field == 4 || wire.field == 7) return false;
    if (wire.field <= 2) {
      if (!wire.is(WireType::varint) || !leave_out(head[wire.field], at)) return false;
      if (wire.field == 2) dur = static_cast<int64_t>(std::min<uint64_t>(wire.number, kFarthest));
    } else if (wire.field == 6) {
      std::string_view key, value;
      if (!wire.has_bytes() || !read_extra(wire.bytes, key, value)) return false;
      if (key != "correlation") continue;
      if (!leave_out(head[3], at)) return false;
      correlation = number_in(value);
    }
  }
  work_text_.append(kept, message.data() + message.size());
  std::memcpy(work_text_.data(), head.data(), sizeof head);
  const bool far = correlation >= kPlainNumber || correlation <= -kPlainNumber || dur >= kFarthest / 4;
  return !wire.bad && head[1] && head[2] && head[3] && !far && work_text_.size() <= kMostWorkText;
}

// Work that says what some before it said, but for its event, duration and correlation.
bool PftraceReader::read_known_work(std::string_view message, const Sequence& sequence, int64_t time) {
  int64_t dur = 0, correlation = kNull;
  const int64_t start = time == kNull ? kNull : time - origin_;
  const bool near = start < kFarthest / 4 && start > -kFarthest / 4;
  if (!near || made_up_ || !spell_work(message, sequence, dur, correlation)) {
    work_text_.clear();
    return false;
  }
  if (works_numbering_ != events_.numberings()) works_by_text_.drain(), works_.clear();
  works_numbering_ = events_.numberings();
  const int32_t found = works_by_text_.find(work_text_, hash_bytes(work_text_));
  if (found < 0) return false;
  Work& work = works_[static_cast<size_t>(found - works_by_text_.first())];
  work.numbers[work.correlation] = correlation;
  ++stages;
  latest_ = std::max(latest_, saturating_add(time, dur));
  events_.add(work.is, start, dur, work.places, reinterpret_cast<const char*>(work.numbers.data()));
  return true;
}

// Keeps what some work is that was just read. What it tells is its correlation, device, stream and context.
void PftraceReader::learn_work(const Identity& is, std::string_view args, const std::array<int64_t, 4>& told) {
  constexpr std::array<std::string_view, 4> kTold = {"correlation", "device", "stream", "context"};
  constexpr size_t kNone = kTold.size();
  if (work_text_.empty() || !work_known_ || works_numbering_ != events_.numberings()) return;
  Work work{is, {}, {}, kNone};
  std::vector<uint8_t> filled;
  const auto& columns = events_.table(is.table).columns;
  for (size_t column = 0; column < columns.size(); ++column) {
    const ColumnSpec& spec = columns[column];
    if (!spec.in_args) continue;
    if (args.find('"' + spec.key + '"') != std::string_view::npos) return;  // another number
    const auto key = static_cast<size_t>(std::find(kTold.begin(), kTold.end(), spec.key) - kTold.begin());
    if (key == kTold.size()) continue;
    if (spec.is_float || told[key] >= kPlainNumber || told[key] <= -kPlainNumber || filled.size() >= work.numbers.size()) return;
    if (key == 0) work.correlation = filled.size();
    work.numbers[filled.size()] = told[key];
    filled.push_back(static_cast<uint8_t>(column));
  }
  if (work.correlation == kNone) return;
  work.places = events_.places_of(is.table, filled);
  if (works_by_text_.bytes() > kMostWorkBytes) works_by_text_.drain(), works_.clear();
  works_by_text_.add(work_text_, hash_bytes(work_text_));
  works_.push_back(std::move(work));
}

bool PftraceReader::read_stage_event(std::string_view message, Sequence& sequence, int64_t time) {
  if (read_known_work(message, sequence, time)) return true;
  work_known_ = true;
  uint64_t event = 0;
  int64_t dur = 0, device = kNull, stream = kNull, context = kNull, correlation = kNull;
  const StageSpec *stage = nullptr, *queue = nullptr;
  const Text *name = nullptr, *kernel = nullptr;
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
      case 13:
        queue = find(wire.number), stream = stream == kNull ? wire.whole() : stream;
        work_known_ &= queue != nullptr;
        break;
      case 14: stage = find(wire.number), work_known_ &= stage != nullptr; break;
      case 17:
        if (wire.has_bytes()) inline_name.clear(), append_quoted(inline_name, wire.bytes);
        break;
      case 18:
        if (!each_number(wire, [&](uint64_t id) { waits += waits.empty() ? "[" : ", ", append_unsigned(waits, id); })) return false;
        break;
      case 19: kernel = sequence.kernels.find(wire.number), work_known_ &= kernel != nullptr; break;
      case 20: name = sequence.names.find(wire.number), work_known_ &= name != nullptr; break;
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
  else if (name) title = name->json;
  else if (kernel) title = kernel->json;
  else append_quoted(title, stage ? stage->name : "GPU work");
  if (device == kNull) device = 0;
  if (stream == kNull) stream = 0;
  std::string head = "{\"ph\": \"X\", \"cat\": \"";
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
    const std::optional<Identity> is = events_.read_one(head);
    if (is) learn_work(*is, args, {correlation, device, stream, context == kNull ? 0 : context});
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
