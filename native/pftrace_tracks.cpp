// Tracks of a Perfetto trace: what their descriptors say, and where their slices are shown.
#include <array>

#include "pftrace.hpp"

namespace stepscope {

namespace {

constexpr size_t kMostTracks = 1 << 17;
constexpr int64_t kPlain = 1'000'000'000'000'000'000;  // a number that is shorter stands in no skeleton

// The number after "GPU " or "stream ", if that is the whole name.
int64_t numbered(std::string_view name, std::string_view word) {
  if (name.substr(0, word.size()) != word) return kNull;
  const char* p = name.data() + word.size();
  const char* end = name.data() + name.size();
  int64_t number;
  return read_int(p, end, number) && p == end ? number : kNull;
}

}  // namespace

uint32_t PftraceReader::track_number(uint64_t uuid) {
  if (any_track_ && uuid == last_uuid_) return last_track_;
  const auto it = track_numbers_.find(uuid);
  if (it != track_numbers_.end()) {
    any_track_ = true;
    last_uuid_ = uuid;
    return last_track_ = it->second;
  }
  if (tracks_.size() >= kMostTracks) {
    note("a track after the first 131,072, counted as the last one", 0, -1);
    return static_cast<uint32_t>(tracks_.size() - 1);
  }
  const auto number = static_cast<uint32_t>(tracks_.size());
  track_numbers_.emplace(uuid, number);
  tracks_.emplace_back();
  places_.emplace_back();
  lines_.emplace_back();
  return number;
}

bool PftraceReader::read_track(std::string_view message) {
  Wire wire(message);
  uint64_t uuid = 0;
  Track read;
  while (wire.next()) {
    if (wire.field == 1) uuid = wire.number;
    if (wire.field == 5) read.parent = wire.number;
    if ((wire.field == 2 || wire.field == 10 || wire.field == 13) && wire.has_bytes()) read.name = wire.bytes.substr(0, 256);
    if (wire.field == 3 && wire.has_bytes() && !read_process(wire.bytes, read)) return false;
    if (wire.field == 4 && wire.has_bytes() && !read_thread(wire.bytes, read, nullptr)) return false;
    if (wire.field == 8 && wire.has_bytes() && !read_counter_track(wire.bytes, read)) return false;
  }
  if (wire.bad) return false;
  read.described = true;
  tracks_[track_number(uuid)] = std::move(read);
  ++version_;  // children may be shown elsewhere now
  return true;
}

bool PftraceReader::read_process(std::string_view message, Track& track) {
  Wire wire(message);
  while (wire.next()) {
    if (wire.field == 1) track.pid = static_cast<int32_t>(wire.number);
    if (wire.field == 6 && wire.has_bytes()) track.process_name = wire.bytes.substr(0, 256);
  }
  track.described = true;
  ++version_;
  if (track.pid != kNull && !track.process_name.empty() && process_names_.size() < kMostTracks) process_names_[track.pid] = track.process_name;
  return !wire.bad;
}

bool PftraceReader::read_thread(std::string_view message, Track& track, Sequence* sequence) {
  Wire wire(message);
  while (wire.next()) {
    if (wire.field == 1) track.pid = static_cast<int32_t>(wire.number);
    if (wire.field == 2) track.tid = wire.whole();
    if (wire.field == 5 && wire.has_bytes()) track.thread_name = wire.bytes.substr(0, 256);
    if (wire.field == 6 && sequence) sequence->legacy_us = wire.whole();
  }
  track.described = true;
  ++version_;
  return !wire.bad;
}

bool PftraceReader::read_counter_track(std::string_view message, Track& track) {
  Wire wire(message);
  track.counts = true;
  constexpr std::array<const char*, 4> kUnits = {"", "ns", "", "B"};
  while (wire.next()) {
    if (wire.field == 3 && wire.number < kUnits.size()) track.unit = kUnits[wire.number];
    if (wire.field == 6 && wire.has_bytes()) track.unit = wire.bytes.substr(0, 64);
    if (wire.field == 4 && wire.has_number()) track.factor = wire.whole();
    if (wire.field == 5) track.adds_up = wire.number != 0;
  }
  return !wire.bad;
}

Place& PftraceReader::find_place(uint32_t number) {
  Place& place = places_[number];
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
  place.plain = track->tid == kNull || (track->tid < kPlain && track->tid > -kPlain);
  return place;
}

}  // namespace stepscope
