#include "xplane.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace stepscope {

namespace {

constexpr size_t kPiece = 1 << 20, kTaken = 16 << 20;
constexpr size_t kMostEvent = 1 << 20, kMostText = 1 << 16, kMostTexts = 256 << 20, kMostPlanes = 4096;
constexpr int64_t kSinceEpoch = 100'000'000'000'000'000;  // a time beyond this counts from 1970
constexpr const char* kDamaged = "a part that is damaged, skipped";

enum What { work, ranges, marks, apart, derived_line, host_line };

template <class T>
void append_number(std::string& out, T number) {
  char text[32];
  out.append(text, std::to_chars(text, text + sizeof text, number).ptr);
}

void append_key(std::string& args, std::string_view key) {
  if (!args.empty()) args += ", ";
  append_quoted(args, key);
  args += ": ";
}

int64_t digits_after(std::string_view text, std::string_view word) {
  const size_t at = text.find(word);
  if (at == std::string_view::npos) return kNull;
  const char* p = text.data() + at + word.size();
  int64_t number;
  return read_int(p, text.data() + text.size(), number) ? number : kNull;
}

bool has(std::string_view text, std::string_view word) { return text.find(word) != std::string_view::npos; }

// "MemcpyH2D" as the name that other profilers give it.
std::string copy_name(std::string_view name, const std::string& kinds) {
  const size_t two = name.find('2');
  if (two == std::string_view::npos || two == 0 || two + 1 >= name.size()) return std::string(name);
  return "Memcpy " + std::string(1, name[two - 1]) + "to" + std::string(1, name[two + 1]) + (kinds.empty() ? "" : " (" + kinds + ")");
}

}  // namespace

// ---- the file

FileBytes::FileBytes(const std::string& path) : file_(std::fopen(path.c_str(), "rb")) {
  if (!file_ || fseeko(file_.get(), 0, SEEK_END) != 0) throw std::runtime_error("the file cannot be read");
  size_ = ftello(file_.get());
}

std::string_view FileBytes::at(int64_t place, size_t bytes) {
  const int64_t left = std::max<int64_t>(size_ - place, 0);
  bytes = static_cast<size_t>(std::min<int64_t>(left, static_cast<int64_t>(bytes)));
  const int64_t held = from_ + static_cast<int64_t>(buffer_.size());
  if (place < from_ || place + static_cast<int64_t>(bytes) > held) {
    buffer_.resize(std::max(kPiece, bytes));
    from_ = place;
    const size_t got = fseeko(file_.get(), place, SEEK_SET) == 0 ? std::fread(buffer_.data(), 1, buffer_.size(), file_.get()) : 0;
    buffer_.resize(got);
    bytes = std::min(bytes, got);
  }
  return std::string_view(buffer_).substr(static_cast<size_t>(place - from_), bytes);
}

bool FileWire::next() {
  if (place >= end) return false;
  const std::string_view head = file.at(place, 24);
  const char* p = head.data();
  const char* last = p + head.size();
  uint64_t key, size;
  bad = true;
  if (!read_varint(p, last, key) || key < 8 || key >> 32) return false;
  field = static_cast<uint32_t>(key >> 3);
  has_bytes = (key & 7) == 2;
  if ((key & 7) == 0) {
    if (!read_varint(p, last, number)) return false;
  } else if (has_bytes) {
    if (!read_varint(p, last, size)) return false;
    from = place + (p - head.data());
    if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) || static_cast<int64_t>(size) > end - from) return false;
    until = from + static_cast<int64_t>(size);
    place = until;
    bad = false;
    return true;
  } else if ((key & 7) == 1 || (key & 7) == 5) {
    p += (key & 7) == 1 ? 8 : 4;
  } else {
    return false;
  }
  place += p - head.data();
  bad = place > end;
  return !bad;
}

void XplaneReader::note(const char* reason, int64_t lost, int64_t offset) {
  auto it = std::find_if(damage.begin(), damage.end(), [&](const Damage& d) { return d.reason == reason; });
  if (it == damage.end()) it = damage.insert(damage.end(), Damage{reason, 0, 0, {}});
  ++it->count;
  it->bytes += lost;
  if (offset >= 0 && it->offsets.size() < 5) it->offsets.push_back(offset);
}

void XplaneReader::flush() {
  events_.feed(out_.data(), out_.size());
  fed_ += out_.size();
  out_.clear();
  if (fed_ < kTaken) return;
  fed_ = 0;
  taken_();
}

void XplaneReader::read(const std::string& path, std::function<void()> taken) {
  taken_ = std::move(taken);
  FileBytes file(path);
  bytes = file.size();
  out_ = "{\"traceEvents\": [";
  // The start of the recording is in the last plane.
  for (const bool first : {true, false}) {
    FileWire space{file, 0, file.size()};
    while (space.next()) {
      if (space.field == 4 && space.has_bytes && first) host = space.bytes(256);
      if (space.field != 1 || !space.has_bytes) continue;
      if (first && planes.size() < kMostPlanes) read_metadata({file, space.from, space.until});
      if (!first) read_plane({file, space.from, space.until});
    }
    if (!first && space.bad) {
      // The last plane of a file that is cut short is read as far as it goes.
      const std::string_view head = file.at(space.place, 24);
      const char* p = head.data();
      uint64_t key, size;
      const bool cut = read_varint(p, head.data() + head.size(), key) && key == 10 && read_varint(p, head.data() + head.size(), size);
      note("the file is cut short, or damaged from there on", file.size() - space.place, space.place);
      if (cut) read_plane({file, space.place + (p - head.data()), file.size()});
    }
  }
  out_ += "\n]}\n";
  flush();
  events_.finish(false);
}

// ---- planes

void XplaneReader::read_named(std::string_view entry, std::unordered_map<uint64_t, std::string>& to) {
  Wire map(entry);
  uint64_t key = 0;
  std::string_view name, shown;
  while (map.next()) {
    if (map.field == 1) key = map.number;
    if (map.field != 2 || !map.has_bytes()) continue;
    Wire value(map.bytes);
    while (value.next()) {
      if (value.field == 2 && value.has_bytes()) name = value.bytes;
      if (value.field == 4 && value.has_bytes() && &to == &names_) shown = value.bytes;
    }
  }
  // Operators of a TPU are named by their whole text; what is shown of it is its name.
  const std::string_view text = (!shown.empty() && name.substr(0, 1) == "%" ? shown : name).substr(0, kMostText);
  texts_ += text.size();
  if (texts_ > kMostTexts) return note("texts that are too many to be kept", static_cast<int64_t>(text.size()), -1);
  to[key] = text;
}

// What a plane says of itself and by number.
void XplaneReader::read_metadata(FileWire plane) {
  names_.clear(), stat_names_.clear(), stat_numbers_.clear();
  texts_ = 0;
  Plane found;
  std::vector<std::string> stats;
  while (plane.next()) {
    if (!plane.has_bytes) continue;
    if (plane.field == 2) found.name = plane.bytes(1024);
    // The texts of whole programs may stand there; the name comes before them.
    if (plane.field == 4) read_named(plane.bytes(kMostEvent), names_);
    if (plane.field == 5) read_named(plane.bytes(kMostEvent), stat_names_);
    if (plane.field == 6 && stats.size() < 256) stats.emplace_back(plane.bytes(kMostText));
  }
  for (const auto& [number, name] : stat_names_) stat_numbers_.emplace(name, number);
  for (const std::string& raw : stats) {
    XValue value;
    Wire wire(raw);
    while (wire.next()) {
      if (wire.field == 1) value.key = wire.number;
      else value.kind = wire.field == 2 ? XValue::real : wire.field == 3 ? XValue::natural : wire.field == 4 ? XValue::whole : wire.field == 7 ? XValue::reference : XValue::text,
           value.number = wire.number, value.bytes = wire.has_bytes() ? wire.bytes : std::string_view();
    }
    const auto it = stat_names_.find(value.key);
    if (wire.bad || it == stat_names_.end()) continue;
    std::string json;
    append_value(json, value);
    if (it->second == "profile_start_time" && value.number < static_cast<uint64_t>(kFarthest)) base_ns = static_cast<int64_t>(value.number);
    found.stats.emplace_back(it->second, std::move(json));
  }
  plane_ = found.name;
  if (std::none_of(planes.begin(), planes.end(), [&](const Plane& one) { return one.name == found.name; })) planes.push_back(std::move(found));
}

void XplaneReader::read_plane(FileWire plane) {
  read_metadata(plane);
  tpu_ = has(plane_, "/device:TPU:");
  on_device_ = plane_.substr(0, 8) == "/device:" && !has(plane_, "/device:CPU");
  const size_t colon = plane_.rfind(':');
  const int64_t number = colon == std::string::npos ? kNull : digits_after(plane_.substr(colon), ":");
  device_ = number == kNull ? 0 : number;
  while (plane.next())
    if (plane.field == 3 && plane.has_bytes) read_line({plane.file, plane.from, plane.until});
  // The line that the end of the file cut.
  if (plane.bad) {
    const std::string_view head = plane.file.at(plane.place, 24);
    const char* p = head.data();
    uint64_t key, size;
    if (read_varint(p, head.data() + head.size(), key) && key == 26 && read_varint(p, head.data() + head.size(), size))
      read_line({plane.file, plane.place + (p - head.data()), plane.end});
    else note(kDamaged, plane.end - plane.place, plane.place);
  }
}

// ---- lines

void XplaneReader::read_line(FileWire line) {
  Line found;
  std::string shown;
  FileWire events = line;
  while (line.next()) {
    if (line.field == 1) found.id = static_cast<int64_t>(line.number);
    if (line.field == 2 && line.has_bytes) found.name = line.bytes(1024);
    if (line.field == 3) found.time = static_cast<int64_t>(std::min<uint64_t>(line.number, static_cast<uint64_t>(kFarthest)));
    if (line.field == 11 && line.has_bytes) shown = line.bytes(1024);
    if (line.field == 4) break;  // what describes a line comes before its events
  }
  if (found.time > kSinceEpoch) {
    if (base_ns == 0) base_ns = found.time;
    found.time -= base_ns;
  }
  found.thread = shown.empty() ? found.name : shown;
  if (found.thread.empty()) found.thread = "line " + std::to_string(found.id);
  found.what = host_line;
  if (on_device_) {
    const std::string_view name = found.name;
    const bool stream = name.substr(0, 8) == "Stream #";
    found.what = stream || (tpu_ && name == "XLA Ops") ? work : name == "XLA Modules" ? ranges : name == "Steps" ? marks : tpu_ && has(name, "Async") ? apart : derived_line;
    if (stream && digits_after(name, "#") != kNull) found.id = digits_after(name, "#");
  }
  while (events.next()) {
    if (events.field != 4 || !events.has_bytes) continue;
    if (events.until - events.from > static_cast<int64_t>(kMostEvent)) note(kDamaged, events.until - events.from, events.from);
    else read_event(events.bytes(kMostEvent), found);
  }
  if (events.bad) note(kDamaged, events.end - events.place, events.place);
}

void XplaneReader::read_event(std::string_view event, const Line& line) {
  if (line.what == derived_line) {
    ++derived;
    return;
  }
  Wire wire(event);
  uint64_t name = 0;
  int64_t offset = 0, length = 0;
  values_.clear();
  while (wire.next()) {
    if (wire.field == 1) name = wire.number;
    if (wire.field == 2) offset = wire.whole();
    if (wire.field == 3) length = wire.whole();
    if (wire.field != 4 || !wire.has_bytes()) continue;
    Wire one(wire.bytes);
    XValue value;
    while (one.next()) {
      if (one.field == 1) value.key = one.number;
      else value.kind = one.field == 2 ? XValue::real : one.field == 3 ? XValue::natural : one.field == 4 ? XValue::whole : one.field == 7 ? XValue::reference : XValue::text,
           value.number = one.number, value.bytes = one.has_bytes() ? one.bytes : std::string_view();
    }
    if (!one.bad) values_.push_back(value);
  }
  if (wire.bad) return note(kDamaged, static_cast<int64_t>(event.size()), -1);
  int64_t until;
  if (length < 0 || offset < 0 || __builtin_add_overflow(offset, length, &until)) return note("an event with an impossible time, set aside", 0, -1);
  // Both ends are rounded, not the length: what followed one another in picoseconds still does.
  const int64_t start = line.time + offset / 1000, dur = until / 1000 - offset / 1000;
  const auto it = names_.find(name);
  const std::string_view text = it == names_.end() ? std::string_view("unnamed") : std::string_view(it->second);
  if (on_device_) write_device(line, text, start, dur);
  else write_host(line, text, start, dur);
}

// ---- values

const XValue* XplaneReader::stat(std::string_view name) const {
  const auto it = stat_numbers_.find(std::string(name));
  if (it == stat_numbers_.end()) return nullptr;
  for (const XValue& value : values_)
    if (value.key == it->second) return &value;
  return nullptr;
}

std::string_view XplaneReader::text_of(const XValue& value) const {
  if (value.kind == XValue::text) return value.bytes;
  if (value.kind != XValue::reference) return {};
  const auto it = stat_names_.find(value.number);
  return it == stat_names_.end() ? std::string_view() : std::string_view(it->second);
}

void XplaneReader::append_value(std::string& to, const XValue& value) const {
  switch (value.kind) {
    case XValue::whole: append_number(to, static_cast<int64_t>(value.number)); break;
    case XValue::natural: append_number(to, value.number); break;
    case XValue::real: {
      const double real = std::bit_cast<double>(value.number);
      char text[40];
      if (std::isfinite(real)) to += write_double(real, text);
      else to += "null";
      break;
    }
    default: append_quoted(to, text_of(value));
  }
}

// "regs:32 grid:8,1,1 block:256,1,1 occ_pct:50": what is known by another name gets it.
void XplaneReader::append_details(std::string& args, std::string_view details, int64_t& size, std::string& kinds) {
  int64_t shared = kNull;
  const auto add = [&](std::string_view key, std::string_view text) {
    append_key(args, key);
    args += text;
  };
  const auto is_number = [](std::string_view text) {
    double ignored;
    return !text.empty() && text.size() < 32 && read_double_text(text, ignored) && text.front() != '"';
  };
  const auto sizes = [&](std::string_view text) { return "[" + std::string(text) + "]"; };
  std::string from, to;
  for (size_t at = 0; at < details.size();) {
    const size_t end = std::min(details.find_first_of(" \n\t;", at), details.size());
    const std::string_view word = details.substr(at, end - at);
    at = end + 1;
    const size_t colon = word.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string_view key = word.substr(0, colon), value = word.substr(colon + 1);
    const bool three = std::count(value.begin(), value.end(), ',') == 2 && value.find_first_not_of("0123456789,") == std::string_view::npos && value.front() != ',' && value.back() != ',' && value.find(",,") == std::string_view::npos;
    int64_t number = kNull;
    const char* p = value.data();
    if (!read_int(p, value.data() + value.size(), number) || p != value.data() + value.size()) number = kNull;
    if ((key == "grid" || key == "block") && three) add(key, sizes(value));
    else if (key == "regs" && number != kNull) add("registers per thread", value);
    else if ((key == "static_shared" || key == "dynamic_shared" || key == "group_mem") && number != kNull) shared = (shared == kNull ? 0 : shared) + number;
    else if (key == "occ_pct" && is_number(value) && number != 0) add("est. achieved occupancy %", value);
    else if (key == "size" || key == "num_bytes") size = number;
    else if (key == "kind_src") from = value;
    else if (key == "kind_dst") to = value;
  }
  if (shared != kNull) append_key(args, "shared memory"), append_number(args, shared);
  for (std::string* kind : {&from, &to})
    if (!kind->empty()) (*kind)[0] = static_cast<char>(std::toupper(static_cast<unsigned char>((*kind)[0])));
  if (!from.empty() && !to.empty()) kinds = from + " -> " + to;
}

// ---- events

void XplaneReader::write_device(const Line& line, std::string_view name, int64_t start, int64_t dur) {
  std::string args, kinds, title(name);
  const auto number = [&](const char* key, int64_t value) { append_key(args, key), append_number(args, value); };
  number("device", device_);
  number("stream", line.id);
  if (const XValue* value = stat("correlation_id"); value && value->number < uint64_t{1} << 58) number("correlation", static_cast<int64_t>(value->number));
  int64_t size = kNull;
  const XValue *copy = stat("memcpy_details"), *fill = stat("memset_details"), *kernel = stat("kernel_details");
  for (const XValue* details : {kernel, copy, fill})
    if (details) append_details(args, text_of(*details), size, kinds);
  for (const char* key : {"hlo_op", "hlo_module", "tf_op", "program_id"})
    if (const XValue* value = stat(key)) append_key(args, key), append_value(args, *value);
  if (size != kNull) number("bytes", size);
  const char* category = "kernel";
  if (!kernel && (copy || name.substr(0, 6) == "Memcpy")) category = "gpu_memcpy", title = copy_name(name, kinds);
  else if (!kernel && (fill || name.substr(0, 6) == "Memset")) category = "gpu_memset";
  if (line.what == ranges) category = "gpu_user_annotation";
  if (line.what == marks) category = "gpu_user_annotation", title = "ProfilerStep#" + title;
  if (line.what == apart) category = "async_xla_op", ++asynchronous;
  put(category, title, line, start, dur, args);
}

// Calls of a device's runtime have a correlation; frames of Python begin with a dollar; all else are ranges.
void XplaneReader::write_host(const Line& line, std::string_view name, int64_t start, int64_t dur) {
  std::string args, title(name);
  const char* category = "user_annotation";
  if (const XValue* value = stat("correlation_id")) {
    category = "cuda_runtime";
    if (value->number < uint64_t{1} << 58) append_key(args, "correlation"), append_number(args, value->number);
  } else if (const XValue* value = stat("step_num")) {
    ++steps;
    append_key(args, "name"), append_quoted(args, name);
    title = "ProfilerStep#" + std::to_string(value->number);
  } else if (name.substr(0, 1) == "$") {
    category = "python_function";
    // "$file.py:12 function" as "file.py(12): function"; "$$builtin" stays a name.
    const size_t colon = name.find(':'), blank = name.find(' ');
    title = name.substr(1);
    if (colon != std::string_view::npos && blank != std::string_view::npos && colon < blank)
      title = std::string(name.substr(1, colon - 1)) + "(" + std::string(name.substr(colon + 1, blank - colon - 1)) + "): " + std::string(name.substr(blank + 1));
  } else if (name == "MemoryAllocation" || name == "MemoryDeallocation") {
    category = "xla_memory";
  }
  // Numbers differ from event to event and are the profiler's own; texts say what it was.
  for (const XValue& value : values_) {
    if (value.kind != XValue::text && value.kind != XValue::reference) continue;
    const auto it = stat_names_.find(value.key);
    if (it != stat_names_.end() && it->second != "name") append_key(args, it->second), append_value(args, value);
  }
  put(category, title, line, start, dur, args);
}

void XplaneReader::put(std::string_view category, std::string_view name, const Line& line, int64_t start, int64_t dur, std::string_view args) {
  char text[32];
  out_ += written_++ ? ",\n{\"ph\": \"X\", \"cat\": \"" : "\n{\"ph\": \"X\", \"cat\": \"";
  out_ += category, out_ += "\", \"name\": ";
  append_quoted(out_, name);
  out_ += ", \"pid\": ";
  if (on_device_) append_number(out_, device_), out_ += ", \"tid\": ", append_number(out_, line.id);
  else append_quoted(out_, plane_), out_ += ", \"tid\": ", append_quoted(out_, line.thread);
  out_ += ", \"ts\": ", out_.append(text, write_time(start, text)), out_ += ", \"dur\": ", out_.append(text, write_time(dur, text));
  if (!args.empty()) out_ += ", \"args\": {", out_ += args, out_ += "}";
  out_ += "}";
  if (out_.size() > kPiece) flush();
}

}  // namespace stepscope
