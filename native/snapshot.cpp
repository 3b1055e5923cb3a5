#include "snapshot.hpp"

#include <algorithm>
#include <array>

#include "numbers.hpp"

namespace stepscope {

namespace {

constexpr size_t kBatch = 1 << 16;
constexpr size_t kOperations = 1 << 16;

// What a list holds.
enum Role : int8_t { kUnseen, kOther, kSegments, kTrace, kBlocks, kAnnotations };

constexpr std::array<std::string_view, 25> kKeys = {
    "action", "addr", "size", "stream", "time_us", "frames", "compile_context", "user_metadata", "device_free",
    "address", "state", "requested_size", "history", "real_size", "device", "total_size", "allocated_size",
    "active_size", "segment_type", "is_expandable", "segment_pool_id", "blocks", "name", "stage", "time"};
enum Key : int64_t {
  kAction, kAddr, kSize, kStream, kTimeUs, kFrames, kCompileContext, kUserMetadata, kDeviceFree, kAddress, kState,
  kRequestedSize, kHistory, kRealSize, kDevice, kTotalSize, kAllocatedSize, kActiveSize, kSegmentType, kIsExpandable,
  kPoolId, kBlocksKey, kName, kStage, kTime, kUnknownKey
};

// The members of a dict that have a known key. A key is looked up once and then known by its object, which the memo shares.
struct Members {
  explicit Members(const PlainObject& dict) {
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      if (!dict.items[i].is(Plain::text)) continue;
      PlainObject* key = dict.items[i].object();
      if (key->number < 0) key->number = code(key->text);
      if (key->number < kUnknownKey) found[static_cast<size_t>(key->number)] = &dict.items[i + 1];
    }
  }

  static int64_t code(std::string_view text) {
    for (size_t i = 0; i < kKeys.size(); ++i)
      if (kKeys[i] == text) return static_cast<int64_t>(i);
    return kUnknownKey;
  }

  const PlainValue* of(Key key) const { return found[key]; }
  int64_t whole(Key key) const {
    const PlainValue* value = found[key];
    return value && value->is(Plain::integer) ? value->whole() : kNull;
  }

  std::array<const PlainValue*, kUnknownKey> found{};
};

// The numbers of a tuple, as a text.
std::string numbers_of(const PlainValue* value) {
  std::string found;
  if (!value || !(value->is(Plain::tuple) || value->is(Plain::list))) return found;
  for (const PlainValue& one : value->object()->items)
    if (one.is(Plain::integer) && found.size() < 100) found += (found.empty() ? "" : ", ") + std::to_string(one.whole());
  return found;
}

std::string_view text_at(const PickleMachine& machine, size_t at) { return machine.stack()[at].text(); }

}  // namespace

void TextColumn::add(const PlainValue* value) {
  if (value && value->is(Plain::text)) add_text(value->text());
  else numbers.push_back(-1);
}

void TextColumn::add_text(std::string_view text) {
  const int32_t number = known_.intern(text);
  if (static_cast<size_t>(number) == texts.size()) texts.emplace_back(text);
  numbers.push_back(number);
}

void TextColumn::clear() {
  numbers.clear();
  texts.clear();
  known_ = Interner();
}

int32_t Stacks::frame_number(const PlainValue& value) {
  if (!value.is(Plain::dict)) return -1;
  PlainObject* frame = value.object();
  if (frame->number >= 0) return static_cast<int32_t>(frame->number);
  std::string_view name, where;
  int64_t at = kNull;
  for (size_t i = 0; i + 1 < frame->items.size(); i += 2) {
    const std::string_view key = frame->items[i].text();
    const PlainValue& item = frame->items[i + 1];
    if (key == "name") name = item.text();
    else if (key == "filename") where = item.text();
    else if (key == "line" && item.is(Plain::integer)) at = item.whole();
  }
  key_.assign(where).append(1, '\0').append(name).append(1, '\0').append(std::to_string(at));
  const uint64_t hash = hash_bytes(key_);
  int32_t number = frames_.find(key_, hash);
  if (number < 0) {
    number = frames_.add(key_, hash);
    file.emplace_back(where);
    function.emplace_back(name);
    line.push_back(at);
  }
  frame->number = number;
  return number;
}

int64_t Stacks::number(const PlainValue* frames) {
  if (!frames || !(frames->is(Plain::list) || frames->is(Plain::tuple)) || frames->object()->items.empty()) return kNull;
  PlainObject* list = frames->object();
  if (list->number >= 0) return list->number;
  current_.clear();
  for (const PlainValue& frame : list->items) {
    const int32_t number = frame_number(frame);
    if (number >= 0) current_.push_back(number);
  }
  if (current_.empty()) return kNull;
  const std::string_view key(reinterpret_cast<const char*>(current_.data()), current_.size() * sizeof(int32_t));
  const uint64_t hash = hash_bytes(key);
  int32_t found = stacks_.find(key, hash);
  if (found < 0) {
    found = stacks_.add(key, hash);
    for (size_t i = 0; i < current_.size(); ++i) {
      stack.push_back(found);
      depth.push_back(static_cast<int64_t>(i));
      frame.push_back(current_[i]);
    }
  }
  list->number = found;
  return found;
}

void SnapshotReader::scan() {
  scan_ = scan_pickle(bytes_);
  machine_ = std::make_unique<PickleMachine>(bytes_, scan_, this);
}

bool SnapshotReader::read() {
  bool more = true;
  while (more && events.device.size() < kBatch && blocks.segment.size() < kBatch && annotations.device.size() < kBatch &&
         segments.segment.size() < kBatch && stacks.stack.size() < 4 * kBatch)
    more = machine_->run(kOperations);
  return more;
}

bool SnapshotReader::takes(const PickleMachine& machine, size_t at, const PlainValue& item) {
  PlainObject& list = *machine.stack()[at].object();
  if (list.role == kUnseen) look_at(machine, at, list);
  if (list.role == kOther) return false;
  if (!item.is(Plain::dict)) {
    ++odd;
    return true;
  }
  if (item.object()->partial && list.role != kSegments) return true;
  switch (list.role) {
    case kTrace: add_event(list, *item.object()); break;
    case kSegments: add_segment(*item.object()); break;
    case kBlocks: add_block(list, *item.object()); break;
    default: add_annotation(*item.object());
  }
  return true;
}

// Tells by the key that waits below a list what it holds; a list of traces lies in one under "device_traces".
void SnapshotReader::look_at(const PickleMachine& machine, size_t at, PlainObject& list) {
  const auto& stack = machine.stack();
  const size_t mark = machine.mark();
  const std::string_view key = at > 0 ? text_at(machine, at - 1) : std::string_view();
  list.role = kOther;
  if (key == "segments" || at == 0) {
    list.role = kSegments;
    if (at > 0) saw_segments = true;  // of a list alone, its items tell
  } else if (key == "blocks") {
    list.role = kBlocks;
    for (size_t i = std::min(mark, at); i + 1 < at; i += 2)  // the other members of the segment wait there
      if (text_at(machine, i) == "address" && stack[i + 1].is(Plain::integer)) list.offset = stack[i + 1].whole();
  } else if (key == "external_annotations") {
    list.role = kAnnotations;
  } else if (key == "device_traces") {
    saw_traces = true;
  } else {
    const bool alone = at >= 2 && stack[at - 1].is(Plain::list) && text_at(machine, at - 2) == "device_traces";
    const bool among = mark >= 2 && mark <= at && stack[mark - 1].is(Plain::list) && text_at(machine, mark - 2) == "device_traces";
    if (!alone && !among) return;
    const size_t before = stack[alone ? at - 1 : mark - 1].object()->items.size();
    list.role = kTrace;
    list.offset = static_cast<int64_t>(before + (alone ? 0 : at - mark));
  }
}

int64_t SnapshotReader::segment_of(PlainObject& list) {
  if (list.number < 0) list.number = next_segment_++;
  return list.number;
}

void SnapshotReader::add_event(PlainObject& list, const PlainObject& entry) {
  const Members members(entry);
  const auto device = static_cast<size_t>(list.offset);
  if (device >= 4096 || !members.of(kAction) || !members.of(kAction)->is(Plain::text)) {
    ++odd;
    return;
  }
  if (device >= nth_.size()) nth_.resize(device + 1);
  events.device.push_back(list.offset);
  events.nth.push_back(nth_[device]++);
  const PlainValue* at = members.of(kAddr) ? members.of(kAddr) : members.of(kAddress);
  events.address.push_back(at && at->is(Plain::integer) ? at->whole() : kNull);
  events.bytes.push_back(members.whole(kSize));
  events.stream.push_back(members.whole(kStream));
  events.time_us.push_back(members.whole(kTimeUs));
  events.stack.push_back(stacks.number(members.of(kFrames)));
  events.free_bytes.push_back(members.whole(kDeviceFree));
  events.action.add(members.of(kAction));
  events.compile_context.add(members.of(kCompileContext));
  events.user_metadata.add(members.of(kUserMetadata));
}

void SnapshotReader::add_segment(const PlainObject& entry) {
  const Members members(entry);
  const PlainValue* inside = members.of(kBlocksKey);
  if (!inside || !inside->is(Plain::list)) {
    ++odd;
    return;
  }
  saw_segments = true;
  PlainObject& list = *inside->object();
  segments.segment.push_back(segment_of(list));
  for (const PlainValue& block : list.items)
    if (block.is(Plain::dict)) add_block(list, *block.object());
  segments.device.push_back(members.whole(kDevice));
  segments.address.push_back(members.whole(kAddress));
  segments.bytes.push_back(members.whole(kTotalSize));
  segments.allocated.push_back(members.whole(kAllocatedSize));
  segments.active.push_back(members.whole(kActiveSize));
  segments.requested.push_back(members.whole(kRequestedSize));
  segments.stream.push_back(members.whole(kStream));
  segments.stack.push_back(stacks.number(members.of(kFrames)));
  segments.kind.add(members.of(kSegmentType));
  const PlainValue* expandable = members.of(kIsExpandable);
  segments.expandable.push_back(expandable && expandable->is(Plain::boolean) ? expandable->whole() : kNull);
  segments.pool.add_text(numbers_of(members.of(kPoolId)));
}

// Blocks of old versions say their place and stack in a history, newest first, and no address.
void SnapshotReader::add_block(PlainObject& list, const PlainObject& entry) {
  const Members members(entry);
  const PlainValue* frames = members.of(kFrames);
  int64_t address = members.whole(kAddress), requested = members.whole(kRequestedSize);
  const PlainValue* history = members.of(kHistory);
  if (history && history->is(Plain::list) && !history->object()->items.empty() && history->object()->items[0].is(Plain::dict)) {
    const Members last(*history->object()->items[0].object());
    if (!frames) frames = last.of(kFrames);
    if (requested == kNull) requested = last.whole(kRealSize);
  }
  const int64_t bytes = members.whole(kSize);
  if (bytes == kNull) {
    ++odd;
    return;
  }
  if (address == kNull && list.offset) address = list.offset;
  list.offset = address == kNull || bytes < 0 || bytes > (int64_t{1} << 48) ? 0 : saturating_add(address, bytes);
  blocks.segment.push_back(segment_of(list));
  blocks.address.push_back(address);
  blocks.bytes.push_back(bytes);
  blocks.requested.push_back(requested);
  blocks.stack.push_back(stacks.number(frames));
  blocks.state.add(members.of(kState));
}

void SnapshotReader::add_annotation(const PlainObject& entry) {
  const Members members(entry);
  annotations.device.push_back(members.whole(kDevice));
  const int64_t time = members.whole(kTimeUs);
  annotations.time_us.push_back(time == kNull ? members.whole(kTime) : time);
  annotations.name.add(members.of(kName));
  annotations.stage.add(members.of(kStage));
}

}  // namespace stepscope
