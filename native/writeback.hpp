// Events back to JSON: the skeleton's text with the columns' values where it has null.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "event.hpp"

namespace stepscope {

// Numbered texts as they lie in Arrow files: pieces of a dictionary, numbered on from `first`.
class TextPieces {
 public:
  void add(int64_t first, const int32_t* offsets, size_t rows, const char* bytes, size_t size);
  std::string_view at(int64_t id) const;  // throws std::out_of_range for a number that has no text

 private:
  struct Piece {
    int64_t first;
    const int32_t* offsets;
    size_t rows;
    const char* bytes;
    size_t size;
  };
  std::vector<Piece> pieces_;
};

// One batch of events of one table, column by column; kNull (or a negative number of a name) is NULL.
struct EventColumns {
  int table = 0;
  size_t rows = 0;
  const int64_t *thread = nullptr, *name = nullptr, *start = nullptr, *dur = nullptr, *skeleton = nullptr;
  std::vector<const int64_t*> values;
};

// Texts one after the other, and where each begins and the last ends.
struct Written {
  std::string text;
  std::vector<int64_t> offsets;
};

class EventWriter {
 public:
  explicit EventWriter(std::vector<TableSpec> tables) : tables_(std::move(tables)) {}
  EventWriter(const EventWriter&) = delete;  // Python asks
  EventWriter& operator=(const EventWriter&) = delete;

  void add_skeletons(int64_t first, std::vector<int32_t> tables);  // which table each skeleton's events are in

  // The events as JSON, a comma and a line end before each.
  Written write(const EventColumns& columns);

  TextPieces names, skeletons;
  std::vector<std::pair<std::string, std::string>> threads;  // pid and tid as JSON

 private:
  // A null of the text that a column fills: where it stands, what it is, and which column.
  struct Gap {
    uint32_t at;
    Slot slot;
    uint8_t column;
  };
  struct Layout {
    int table;
    std::string text;
    std::vector<Gap> gaps;
  };

  const Layout& layout_of(int64_t skeleton);
  void append(std::string& out, const EventColumns& columns, size_t row, const Gap& gap) const;

  std::vector<TableSpec> tables_;
  std::unordered_map<int64_t, Layout> layouts_;  // of the skeletons met so far
  std::vector<int32_t> skeleton_tables_;
  size_t layout_bytes_ = 0;
  Members members_;
};

}  // namespace stepscope
