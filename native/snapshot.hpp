// Rows out of the pickle of an allocator's state: segments, blocks, what happened, and the stacks behind them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "intern.hpp"
#include "pickle.hpp"

namespace stepscope {

// A column of texts: numbers of distinct ones, -1 for none; those of a batch only.
struct TextColumn {
  std::vector<int32_t> numbers;
  std::vector<std::string> texts;

  void add(const PlainValue* value);
  void add_text(std::string_view text);
  void clear();

 private:
  Interner known_;
};

using Longs = std::vector<int64_t>;

struct EventRows {
  Longs device, nth, address, bytes, stream, time_us, stack, free_bytes;
  TextColumn action, compile_context, user_metadata;
};
struct SegmentRows {
  Longs segment, device, address, bytes, allocated, active, requested, stream, stack, expandable;
  TextColumn kind, pool;
};
struct BlockRows {
  Longs segment, address, bytes, requested, stack;
  TextColumn state;
};
struct AnnotationRows {
  Longs device, time_us;
  TextColumn name, stage;
};

// Distinct frames and stacks; both are numbered from 0 as they come.
class Stacks {
 public:
  // The number of a list of frames, or kNull for an empty one.
  int64_t number(const PlainValue* frames);

  // Rows of new frames and stacks, since the last time.
  Longs line;
  std::vector<std::string> file, function;
  Longs stack, depth, frame;

 private:
  int32_t frame_number(const PlainValue& frame);

  Interner frames_, stacks_;
  std::vector<int32_t> current_;
  std::string key_;
};

class SnapshotReader : public PickleListener {
 public:
  explicit SnapshotReader(const std::filesystem::path& file) : bytes_(file) {}

  // The first pass. Throws PickleRefused.
  void scan();
  // Reads until a batch is full; false when there is no more.
  bool read();
  bool takes(const PickleMachine& machine, size_t at, const PlainValue& item) override;

  uint64_t at() const { return bytes_.at(); }
  uint64_t size() const { return bytes_.size(); }
  const PlainValue& rest() const { return machine_->result(); }
  const std::string& cut() const { return machine_->cut(); }

  EventRows events;
  SegmentRows segments;
  BlockRows blocks;
  AnnotationRows annotations;
  Stacks stacks;
  int64_t odd = 0;            // items that are none of what they should be
  bool saw_segments = false, saw_traces = false;

 private:
  void look_at(const PickleMachine& machine, size_t at, PlainObject& list);
  int64_t segment_of(PlainObject& list);
  void add_event(PlainObject& list, const PlainObject& entry);
  void add_segment(const PlainObject& entry);
  void add_block(PlainObject& list, const PlainObject& entry);
  void add_annotation(const PlainObject& entry);

  PickleBytes bytes_;
  PickleScan scan_;
  std::unique_ptr<PickleMachine> machine_;
  int64_t next_segment_ = 0;
  std::vector<int64_t> nth_;  // events of each device so far
};

}  // namespace stepscope
