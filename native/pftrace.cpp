#include "pftrace.hpp"

#include <algorithm>
#include <cstring>

namespace stepscope {

namespace {

constexpr const char* kDamaged = "a damaged packet, skipped";
constexpr const char* kNoPacket = "bytes that are no packet, skipped";
constexpr uint32_t kBootTime = 6, kRealTime = 1, kFirstOwnClock = 64;
constexpr size_t kMostSequences = 1 << 16, kMostCounters = 1 << 14;
constexpr size_t kPlaces = 5;
constexpr size_t kMaxFound = 1 << 20;  // after damage no longer packet is believed

// Fields of a packet that are read: their place, from 1 on.
constexpr auto kPartOf = [] {
  std::array<uint8_t, 129> places{};
  uint8_t place = 0;
  for (const size_t field : {6, 12, 59, 60, 43, 44, 128, 11, 53, 52, 50}) places[field] = ++place;
  return places;
}();

// The category of a stage's work, by the words that writers use; nullptr if none of them is there.
const char* category_of(std::string_view name) {
  std::string low(name);
  std::transform(low.begin(), low.end(), low.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto has = [&](std::string_view word) { return low.find(word) != std::string::npos; };
  if (has("memcpy") || has("copy")) return "gpu_memcpy";
  if (has("memset") || has("fill")) return "gpu_memset";
  if (has("annotation") || has("marker")) return "gpu_user_annotation";
  if (has("eventrecord")) return "cuda_event";
  if (has("hostnode")) return "gpu_host_node";
  if (has("kernel") || has("compute") || has("dispatch")) return "kernel";
  return nullptr;
}

// The number after the word "stream" or "queue".
int64_t stream_of(std::string_view name) {
  for (const std::string_view word : {"stream ", "queue "}) {
    const size_t at = name.rfind(word);
    if (at == std::string_view::npos) continue;
    const char* p = name.data() + at + word.size();
    int64_t number;
    if (read_int(p, name.data() + name.size(), number)) return number;
  }
  return kNull;
}

// As texts, for counters; those that no GPU of a training run has are left out.
std::string unit_text(uint64_t unit) {
  constexpr std::array<const char*, 41> kUnits = {
      "",   "bit", "kbit", "Mbit", "Gbit", "Tbit", "Pbit", "B",  "KB", "MB", "GB", "TB", "PB", "Hz",
      "kHz", "MHz", "GHz", "THz", "PHz", "ns", "µs", "ms", "s", "min", "h", "vertices", "pixels", "triangles",
      "mW", "W", "kW", "J", "V", "A", "C", "F", "K", "%", "primitives", "fragments", "instructions"};
  return unit < kUnits.size() ? kUnits[unit] : "";
}

}  // namespace

PftraceReader::PftraceReader(Reader& events, PftraceSpec spec)
    : events_(events),
      spec_(std::move(spec)),
      begins_(spec_.folder, spec_.memory_bytes),
      ends_(spec_.folder, spec_.memory_bytes / 2),
      late_(spec_.folder, spec_.memory_bytes / 2),
      sorter_(spec_.folder, spec_.memory_bytes) {
  constexpr std::string_view kNothing = "{\"traceEvents\": []}";  // all events are given one by one
  events_.feed(kNothing.data(), kNothing.size());
}

void PftraceReader::note(const char* reason, int64_t lost, int64_t offset) {
  auto it = std::find_if(damage.begin(), damage.end(), [&](const Damage& d) { return d.reason == reason; });
  if (it == damage.end()) it = damage.insert(damage.end(), Damage{reason, 0, 0, {}});
  ++it->count;
  it->bytes += lost;
  if (offset >= 0 && it->offsets.size() < kPlaces) it->offsets.push_back(offset);
}

// ---- the stream

void PftraceReader::feed(const char* piece, size_t size) {
  constexpr size_t kBeginning = 1 << 12;
  leave_packed();
  if (!carry_.empty() && size > kBeginning) {
    // The beginning of the piece completes the packet that was carried, and the rest is read where it lies.
    read_piece(piece, kBeginning);
    const size_t left = carry_.size() - done_;
    size_t taken = kBeginning;
    if (packed_.empty() && left <= kBeginning) {
      carry_.clear();
      taken -= left;
      bytes -= static_cast<int64_t>(left);
    }
    piece += taken, size -= taken;
  }
  read_piece(piece, size);
}

void PftraceReader::read_piece(const char* piece, size_t size) {
  offset_ = bytes - static_cast<int64_t>(carry_.size() - done_);
  bytes += static_cast<int64_t>(size);
  if (carry_.empty()) {
    const char* rest = parse(piece, piece + size);
    carry_.assign(rest, piece + size);
  } else {
    carry_.append(piece, size);
    if (!packed_.empty() || carry_.size() - done_ < wanted_) return;
    done_ = static_cast<size_t>(parse(carry_.data() + done_, carry_.data() + carry_.size()) - carry_.data());
  }
  // Behind packets that are compressed, all that is left is read later: moving it for each of them would take too long.
  wanted_ = 0;
  if (!packed_.empty()) return;
  carry_.erase(0, std::exchange(done_, 0));
  // A packet that is still incomplete is tried again when there is twice as much, so that long ones take linear time.
  if (carry_.size() >= 1 << 16) wanted_ = 2 * carry_.size();
}

bool PftraceReader::finish_some(bool source_cut) {
  constexpr size_t kAtOnce = 1 << 17;  // events
  if (phase_ == 0) {
    leave_packed();
    final_ = true;
    offset_ = bytes - static_cast<int64_t>(carry_.size() - done_);
    const char* end = carry_.data() + carry_.size();
    const char* rest = parse(carry_.data() + done_, end);
    const int64_t at = bytes - (end - rest);
    done_ = static_cast<size_t>(rest - carry_.data());
    if (!packed_.empty()) return true;
    if (lost_from_ >= 0) note(kNoPacket, bytes - lost_from_, lost_from_);
    else if (rest < end || source_cut) note("the file is cut short", end - rest, at);
    end_group(true);
    sorter_.finish();
    phase_ = 1;
  }
  if (phase_ == 1 && write_sorted(kAtOnce)) return true;
  phase_ = 2;
  if (write_late(kAtOnce)) return true;
  events_.finish(false);
  return false;
}

// Whether a whole packet lies at p, which then is behind it; `more` if that cannot be said yet.
bool PftraceReader::is_packet(const char*& p, const char* end, bool& more) {
  const char* q = p + 1;
  uint64_t size;
  if (p == end || *p != '\n') return false;
  if (!read_varint(q, end, size)) {
    more = end - p < 12;
    return false;
  }
  if (size == 0 || size > kMaxFound) return false;
  if (size > static_cast<uint64_t>(end - q)) {
    more = true;
    return false;
  }
  const std::string_view body(q, static_cast<size_t>(size));
  Wire wire(body);
  bool known = false;
  searched_ += static_cast<int64_t>(size);
  while (wire.next()) {
    known |= wire.field == 8 || wire.field == 10 || wire.field == 50 || wire.field == 60;
    if ((wire.field == 11 || wire.field == 12 || wire.field == 53 || wire.field == 60) && (!wire.has_bytes() || !well_formed(wire.bytes))) return false;
  }
  if (wire.bad || !known) return false;
  p = q + size;
  return true;
}

// Looks for the next two packets in a row, or one at the end; false if more bytes are needed.
bool PftraceReader::resync(const char*& p, const char* end) {
  // A file that was made to look like packets everywhere is not worth the search.
  const bool worth = searched_ < (int64_t{256} << 20) + 8 * bytes;
  for (const char* q = p; worth && q < end; ++q) {
    q = static_cast<const char*>(std::memchr(q, '\n', static_cast<size_t>(end - q)));
    if (!q) break;
    const char* after = q;
    bool more = false;
    bool found = is_packet(after, end, more);
    // What follows the last packet of a file is nothing, or one that is cut short.
    if (found) found = (after == end ? final_ : is_packet(after, end, more)) || (more && final_);
    if (!found && (more || after == end) && !final_) {
      p = q;
      return false;
    }
    if (!found) continue;
    const int64_t at = offset_ + (q - (end - (bytes - offset_)));
    note(kNoPacket, at - lost_from_, lost_from_);
    lost_from_ = -1;
    p = q;
    return true;
  }
  p = end;
  return false;
}

const char* PftraceReader::parse(const char* p, const char* end) {
  constexpr size_t kFetchedAhead = 1024;  // bytes
  const char* first = p;
  const auto here = [&](const char* q) { return offset_ + (q - first); };
  while (p < end) {
    if (lost_from_ >= 0) {
      if (!resync(p, end)) return p;
      continue;
    }
    bool tried = false;
    const char* q = p = read_short_packets(p, end, tried);
    uint64_t key, size;
    if (!read_varint(q, end, key) || !read_varint(q, end, size)) {
      if (end - p < 20 && !final_) return p;
      if (final_ && end - p < 20) return p;
      lost_from_ = here(p++);
      continue;
    }
    // A trace has one field, the packet; another one with a length may come in a later version.
    const bool plausible = (key & 7) == 2 && key >= 8 && key < 8 * 64 && size <= kMaxPacket;
    if (plausible && size > static_cast<uint64_t>(end - q)) {
      if (!final_) return p;
      // It is the last one, cut short, or its length is wrong and others follow.
      const char* next = p + 1;
      lost_from_ = here(p);
      if (resync(next, end)) {
        p = next;
        continue;
      }
      lost_from_ = -1;
      return p;
    }
    __builtin_prefetch(q + kFetchedAhead), __builtin_prefetch(q + kFetchedAhead + 64);
    if (plausible && q + size == end && !final_) return p;  // what follows tells whether it is sound
    const bool follows = plausible && (q + size == end || q[size] == '\n');
    const std::string_view body(q, plausible ? static_cast<size_t>(size) : 0);
    if (!plausible || (!follows && !well_formed(body))) {
      lost_from_ = here(p++);
      continue;
    }
    if (key == 10 && (tried || !read_quickly(body, end)) && !read_packet(body)) note(kDamaged, static_cast<int64_t>(size), here(p));
    p = q + size;
    if (!packed_.empty()) return p;
  }
  return p;
}

// ---- packets

bool PftraceReader::read_packet(std::string_view packet) {
  Wire wire(packet);
  uint64_t stamp = 0, flags = 0;
  uint32_t number = 0, clock = 0;
  bool stamped = false, descriptor = false;
  std::array<std::string_view, 11> parts{};
  while (wire.next()) {
    if (wire.field == 8) stamp = wire.number, stamped = true;
    else if (wire.field == 10) number = static_cast<uint32_t>(wire.number);
    else if (wire.field == 13) flags = wire.number;
    else if (wire.field == 41 && wire.number) flags |= 1;
    else if (wire.field == 58) clock = static_cast<uint32_t>(wire.number);
    if (!wire.has_bytes()) continue;
    const size_t part = wire.field < kPartOf.size() ? kPartOf[wire.field] : 0;
    if (part) parts[part - 1] = wire.bytes;
    descriptor |= wire.field == 60;
  }
  if (wire.bad) return false;
  ++packets;
  if (!last_sequence_ || last_sequence_->first != number) {
    if (sequences_.size() >= kMostSequences && !sequences_.contains(number)) number = 0;
    last_sequence_ = &*sequences_.try_emplace(number).first;
  }
  Sequence& sequence = last_sequence_->second;
  if (!sequence.epoch || flags & 1) begin_epoch(sequence);
  if (flags & 1) interned_ -= sequence.interned_bytes, sequence.forget();
  const auto& [snapshot, interned, defaults, track, process, thread, info, event, stage, counter, packed] = parts;
  bool fine = true;
  if (snapshot.data()) fine &= read_clocks(snapshot, number);
  if (interned.data()) fine &= read_interned(interned, sequence);
  if (defaults.data()) fine &= read_defaults(defaults, sequence);
  if (descriptor) fine &= read_track(track);
  if (process.data()) fine &= read_process(process, tracks_[track_number((uint64_t{1} << 63) + number)]);
  if (thread.data()) {
    sequence.thread_track = (uint64_t{1} << 62) + number;
    fine &= read_thread(thread, tracks_[track_number(sequence.thread_track)], &sequence);
  }
  if (info.data()) fine &= read_gpus(info);
  if (unpacking_ && packed.data()) note("packets that are compressed twice, not read", static_cast<int64_t>(packed.size()), -1);
  else packed_ = packed;
  if (!event.data() && !stage.data() && !counter.data()) return fine;
  int64_t time = kNull;
  if (stamped && !time_of(stamp, clock ? clock : sequence.default_clock, number, time)) {
    note("a packet on a clock that nothing explains, or with an impossible time, set aside", 0, -1);
    return fine;
  }
  if (event.data()) fine &= read_track_event(event, sequence, time);
  if (stage.data()) fine &= read_stage_event(stage, sequence, time);
  if (counter.data()) fine &= read_counter_event(counter, sequence, time);
  return fine;
}

bool PftraceReader::time_of(uint64_t stamp, uint32_t clock, uint32_t sequence, int64_t& out) {
  if (stamp > static_cast<uint64_t>(kFarthest)) return false;
  out = static_cast<int64_t>(stamp);
  if (clock != 0 && clock != primary_clock_) {
    const auto it = clocks_.find({clock >= kFirstOwnClock && clock < 128 ? sequence : 0, clock});
    if (it == clocks_.end()) return false;
    Clock& c = it->second;
    if (__builtin_mul_overflow(out, c.unit, &out)) return false;
    if (c.incremental) out = c.last = saturating_add(c.last, out);
    out = saturating_add(out, c.offset);
    if (out > kFarthest || out < -kFarthest) return false;
  }
  if (origin_ == kNull) origin_ = out;
  latest_ = std::max(latest_, out);
  return true;
}

bool PftraceReader::read_clocks(std::string_view message, uint32_t sequence) {
  struct Reading {
    uint32_t id = 0;
    int64_t time = 0, unit = 1;
    bool incremental = false;
  };
  std::vector<Reading> readings;
  Wire wire(message);
  while (wire.next()) {
    if (wire.field == 2 && wire.has_number() && wire.number) primary_clock_ = static_cast<uint32_t>(wire.number);
    if (wire.field != 1 || !wire.has_bytes() || readings.size() > 256) continue;
    Reading one;
    Wire clock(wire.bytes);
    while (clock.next()) {
      if (clock.field == 1) one.id = static_cast<uint32_t>(clock.number);
      if (clock.field == 2) one.time = static_cast<int64_t>(std::min<uint64_t>(clock.number, static_cast<uint64_t>(kFarthest)));
      if (clock.field == 3) one.incremental = clock.number != 0;
      if (clock.field == 4) one.unit = static_cast<int64_t>(std::clamp<uint64_t>(clock.number, 1, 1'000'000'000));
    }
    if (clock.bad) return false;
    readings.push_back(one);
  }
  const auto with = [&](uint32_t id) { return std::find_if(readings.begin(), readings.end(), [&](const Reading& r) { return r.id == id; }); };
  auto main = with(primary_clock_);
  if (main == readings.end()) main = with(kBootTime);
  if (main == readings.end()) return !wire.bad;
  for (const Reading& one : readings) {
    int64_t absolute;
    if (__builtin_mul_overflow(one.time, one.unit, &absolute)) continue;
    clocks_[{one.id >= kFirstOwnClock && one.id < 128 ? sequence : 0, one.id}] = {main->time - absolute, one.unit, absolute, one.incremental};
    if (one.id == kRealTime && !epoch_known) epoch_offset_ = one.time - main->time, epoch_known = true;
  }
  if (origin_ == kNull) origin_ = main->time;
  return !wire.bad;
}

bool PftraceReader::read_defaults(std::string_view message, Sequence& sequence) {
  Wire wire(message);
  while (wire.next()) {
    if (wire.field == 58) sequence.default_clock = static_cast<uint32_t>(wire.number);
    if (wire.field != 11 || !wire.has_bytes()) continue;
    Wire inside(wire.bytes);
    while (inside.next())
      if (inside.field == 11) sequence.default_track = inside.number;
    if (inside.bad) return false;
  }
  return !wire.bad;
}

bool PftraceReader::read_gpus(std::string_view message) {
  Wire wire(message);
  while (wire.next()) {
    if (wire.field != 1 || !wire.has_bytes() || gpus.size() >= 1024) continue;
    Wire gpu(wire.bytes);
    std::string name;
    while (gpu.next())
      if (gpu.field == 1 && gpu.has_bytes()) name = gpu.bytes.substr(0, 256);
    if (gpu.bad) return false;
    gpus.push_back(std::move(name));
  }
  return !wire.bad;
}

// ---- what is referred to by number

bool PftraceReader::read_interned(std::string_view message, Sequence& sequence) {
  Wire wire(message);
  bool fine = true;
  while (wire.next()) {
    if (!wire.has_bytes()) continue;
    if (interned_ + wire.bytes.size() > spec_.most_interned) {
      note("texts that are too many to be kept", static_cast<int64_t>(wire.bytes.size()), -1);
      continue;
    }
    interned_ += wire.bytes.size();
    sequence.interned_bytes += wire.bytes.size();
    switch (wire.field) {
      case 1: fine &= read_named(wire.bytes, sequence, sequence.categories); break;
      case 2: fine &= read_named(wire.bytes, sequence, sequence.names); break;
      case 3: fine &= read_named(wire.bytes, sequence, sequence.keys); break;
      case 29: fine &= read_named(wire.bytes, sequence, sequence.strings); break;
      case 24: fine &= read_stage(wire.bytes, sequence); break;
      case 47: fine &= read_counters(wire.bytes, sequence); break;
      case 1000: fine &= read_named(wire.bytes, sequence, sequence.kernels, 3); break;
      case 1001: fine &= read_named(wire.bytes, sequence, sequence.arguments); break;
      default: break;
    }
  }
  return fine && !wire.bad;
}

// A number and a text; of a kernel the demangled name (3) rather than the other (2).
bool PftraceReader::read_named(std::string_view message, Sequence& sequence, Numbered& to, uint32_t field) {
  Wire wire(message);
  uint64_t iid = 0;
  std::string_view text, second;
  while (wire.next()) {
    if (wire.field == 1 && wire.has_number()) iid = wire.number;
    else if (wire.field == field && wire.has_bytes()) text = wire.bytes;
    else if (wire.field == 2 && wire.has_bytes()) second = wire.bytes;
  }
  if (wire.bad) return false;
  if (!text.data()) text = second;
  Text& kept = to.at(iid);
  std::string json;
  append_quoted(json, text);
  if (!kept.json.empty() && kept.json != json) begin_epoch(sequence);
  kept.json = std::move(json);
  if (&to == &sequence.names) kept.number = name_number(kept.json);
  else if (&to == &sequence.categories) kept.number = category_number(kept.json, text);
  else if (&to == &sequence.keys) kept.number = key_number(kept.json, text);
  return true;
}

bool PftraceReader::read_stage(std::string_view message, Sequence& sequence) {
  Wire wire(message);
  uint64_t iid = 0, kind = 0;
  StageSpec spec;
  while (wire.next()) {
    if (wire.field == 1) iid = wire.number;
    if (wire.field == 2 && wire.has_bytes()) spec.name = wire.bytes;
    if (wire.field == 4) kind = wire.number;
  }
  spec.category = category_of(spec.name);
  if (!spec.category && kind == 2) spec.category = "kernel";
  spec.stream = stream_of(spec.name);
  if (wire.bad) return false;
  const auto [it, fresh] = sequence.stages.try_emplace(iid);
  const bool same = it->second.name == spec.name && it->second.category == spec.category;
  it->second = std::move(spec);
  if (!fresh && !same) begin_epoch(sequence);
  return true;
}

bool PftraceReader::read_counters(std::string_view message, Sequence& sequence) {
  Wire wire(message);
  uint64_t iid = 0;
  int64_t device = 0;
  std::string_view specs;
  while (wire.next()) {
    if (wire.field == 1) iid = wire.number;
    if (wire.field == 2 && wire.has_bytes()) specs = wire.bytes;
    if (wire.field == 3) device = wire.whole();
  }
  auto& [of, numbers] = sequence.counters[iid];
  of = device;
  return !wire.bad && read_specs(specs, device, numbers);
}

bool PftraceReader::read_specs(std::string_view message, int64_t device, std::unordered_map<uint32_t, int32_t>& to) {
  Wire wire(message);
  while (wire.next()) {
    if (wire.field != 1 || !wire.has_bytes() || counters.size() >= kMostCounters) continue;
    Wire spec(wire.bytes);
    uint32_t id = 0;
    Counter counter{device, "", ""};
    std::string below;
    while (spec.next()) {
      if (spec.field == 1) id = static_cast<uint32_t>(spec.number);
      if (spec.field == 2 && spec.has_bytes()) counter.name = spec.bytes;
      if (spec.field == 7 && !each_number(spec, [&](uint64_t unit) { counter.unit += unit_text(unit); })) return false;
      if (spec.field == 8 && !each_number(spec, [&](uint64_t unit) { below += "/" + unit_text(unit); })) return false;
    }
    if (spec.bad) return false;
    if (!counter.unit.empty() && below != "/") counter.unit += below;
    to[id] = static_cast<int32_t>(counters.size());
    counters.push_back(std::move(counter));
  }
  return !wire.bad;
}

}  // namespace stepscope
