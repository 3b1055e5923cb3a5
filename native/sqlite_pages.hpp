// Reads the rows of a table out of a SQLite file, page by page, without SQLite: for files of gigabytes, and for files
// that nobody should hand to an SQL engine. Every offset comes from the file and is checked; a page is entered once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "batch.hpp"

namespace stepscope {

// The file, as pages. It is read through a descriptor that the owner keeps open.
class SqlitePages {
 public:
  explicit SqlitePages(int descriptor);

  // A page, or nullptr if the file does not have it whole. It holds until kKept others have been asked for, and kBehind
  // bytes behind it may be looked at.
  const unsigned char* page(uint32_t number);

  // Why it cannot be read here; empty if it can.
  std::string refusal;
  uint32_t page_size = 0, usable = 0, pages = 0;
  static constexpr size_t kBehind = 8;
  int encoding = 0;  // 1 UTF-8, 2 and 3 UTF-16
  uint64_t bytes = 0;

 private:
  static constexpr size_t kChunk = 1 << 16;  // the largest page; what was copied is still near when it is read
  static constexpr size_t kKept = 8;
  struct Chunk {
    uint64_t number = ~uint64_t{0}, used = 0;
    size_t size = 0;
    std::vector<unsigned char> bytes;
  };
  std::string open();
  size_t read(uint64_t offset, unsigned char* to, size_t size) const;

  int descriptor_;
  uint64_t clock_ = 0;
  Chunk chunks_[kKept];
  Chunk* last_ = nullptr;
};

enum class SqliteKind : uint8_t { kInt, kDouble, kText };

// One column of a batch: values and which of them are there. Texts lie one after the other.
struct SqliteColumn {
  SqliteKind kind;
  size_t place;    // in the record
  bool is_rowid;   // NULL in the record means the row's number
  Column<int64_t> ints;
  Column<double> doubles;
  Column<int32_t> offsets;
  Column<char> text;  // with room behind `text_size`
  size_t text_size = 0;
  std::vector<uint8_t> valid;  // a bitmap
  size_t nulls = 0;
};

// Goes through the rows of one table in the order of their numbers.
class SqliteScan {
 public:
  SqliteScan(int descriptor, uint32_t root, std::vector<SqliteColumn> columns);

  // Reads up to `most` rows into the columns and returns how many; 0 at the end.
  size_t next(size_t most);

  std::vector<SqliteColumn> columns;
  SqlitePages file;
  uint64_t rows = 0;
  // What could not be read: pages, rows, values of another type than asked for, texts that were cut.
  uint64_t bad_pages = 0, bad_rows = 0, odd_values = 0, cut_texts = 0;

 private:
  // Where values of rows that begin alike lie, by what they are: a loop for each kind has no branches to guess.
  struct Number {
    size_t column, at;
    int unused;  // bits of the eight bytes that are not its own
  };
  struct Fixed {
    size_t column;
    int64_t value;  // which the type itself tells
  };
  struct Other {
    size_t column;
    uint64_t type;
    size_t at, size;
  };
  // How a row began, and what followed from it.
  struct Alike {
    std::vector<uint64_t> head;  // by eight bytes
    uint64_t last_bits = 0;      // those of the last eight that belong to it
    size_t head_size = 0;
    std::vector<Number> numbers;
    std::vector<Fixed> fixed;
    std::vector<size_t> nothing;
    std::vector<Other> others;
    uint64_t end = 0;  // of its last value
  };
  struct Level {
    std::vector<uint32_t> children;
    size_t at = 0;
  };
  void enter(uint32_t number);
  void open_leaf(const unsigned char* page, uint32_t number);
  bool open_next_leaf();
  bool read_row(size_t cell);
  bool gather(const unsigned char* at, size_t local, size_t most);
  bool take(const unsigned char* record, size_t size, uint64_t whole, int64_t rowid);
  bool take_alike(const unsigned char* record, size_t size, int64_t rowid);
  static bool begins_as(const unsigned char* record, const Alike& alike);
  void learn(const unsigned char* record, size_t head, uint64_t end);
  void put(SqliteColumn& column, uint64_t type, const unsigned char* value, size_t size, bool whole, int64_t rowid);
  void put_text(SqliteColumn& column, const unsigned char* value, size_t size);
  static size_t append_text(SqliteColumn& column, const unsigned char* value, const unsigned char* end);
  void put_null(SqliteColumn& column);

  std::vector<uint8_t> seen_;  // pages that were entered
  std::vector<Level> above_;
  const unsigned char* leaf_ = nullptr;
  std::vector<unsigned char> own_leaf_, record_;
  uint32_t leaf_number_ = 0;
  size_t cells_ = 0, cell_ = 0, header_ = 0, batch_ = 0, text_bytes_ = 0;
  size_t last_place_ = 0;
  bool has_rowid_ = false;  // whether a column is the row's number
  // Types of rows are mostly those of a row shortly before: numbers have as many bytes as they need, so there are a few.
  static constexpr size_t kAlike = 1024;
  std::array<Alike, kAlike> alike_;
  std::vector<int64_t*> ints_;  // of each column, where the batch's numbers go
  size_t alike_at_ = 0;  // where that of the present row belongs
  std::vector<int> wanted_;  // by place in the record: the first column, or -1
};

}  // namespace stepscope
