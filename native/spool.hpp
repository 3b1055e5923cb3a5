// Records on their way: kept in memory up to a limit and on disk beyond it, and given back in order of arrival or of time.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "batch.hpp"

namespace stepscope {

// Most records are short: no call for these.
inline void copy_record(char* to, const char* from, size_t size) {
  constexpr size_t kHalf = 32;
  if (size < kHalf || size > 2 * kHalf) {
    std::memcpy(to, from, size);
    return;
  }
  std::memcpy(to, from, kHalf);
  std::memcpy(to + size - kHalf, from + size - kHalf, kHalf);
}

// A file without a name in a folder; it goes with whoever holds it.
class Scratch {
 public:
  explicit Scratch(const std::string& folder);
  void write(const char* bytes, size_t size);
  size_t read(int64_t at, char* out, size_t size);  // how many bytes there were

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  int64_t end_ = 0;
};

// Records of any length, in the order of their arrival.
class Spool {
 public:
  Spool(std::string folder, size_t most_bytes) : folder_(std::move(folder)), most_(most_bytes) {}

  void add(std::string_view record) {
    const auto size = static_cast<uint32_t>(record.size());
    const size_t after = used_ + sizeof size + size;
    if (memory_.size() < after) memory_.resize(2 * after);
    std::memcpy(memory_.data() + used_, &size, sizeof size);
    copy_record(memory_.data() + used_ + sizeof size, record.data(), size);
    used_ = after;
    ++count_;
    if (used_ >= most_) move_to_disk();
  }
  void clear() {
    used_ = count_ = 0;
    on_disk_ = 0;
    if (file_) file_.reset();
  }
  size_t size() const { return count_; }

  // Goes through the records; a view holds until the next one.
  class Pass {
   public:
    explicit Pass(Spool& of) : of_(of) {}
    bool next(std::string_view& record);

   private:
    bool fill(size_t wanted);
    Spool& of_;
    int64_t at_ = 0;  // of the bytes that come after those in the buffer
    std::string buffer_;
    size_t used_ = 0;
    size_t in_memory_ = 0;
  };

  // The same with a function, which adds nothing to it.
  template <class Each>
  void each(Each&& each) {
    std::string_view record;
    if (on_disk_) {
      Pass pass(*this);
      while (pass.next(record)) each(record);
      return;
    }
    uint32_t size;
    for (size_t at = 0; at < used_; at += sizeof size + size) {
      std::memcpy(&size, memory_.data() + at, sizeof size);
      each(std::string_view(memory_.data() + at + sizeof size, size));
    }
  }

 private:
  friend class Pass;
  void move_to_disk();
  std::string folder_;
  Column<char> memory_;  // its first bytes, `used_` of them
  size_t most_, used_ = 0, count_ = 0;
  int64_t on_disk_ = 0;
  std::unique_ptr<Scratch> file_;
};

// What slices are ordered by: their track, their time, what else the owner likes, their place in the file.
struct SortKey {
  uint32_t track = 0;
  int64_t time = 0, second = 0;
  uint64_t order = 0;
  auto operator<=>(const SortKey&) const = default;
};

// Records in order of their keys, however many there are: runs of them are sorted, and merged at the end.
class Sorter {
 public:
  Sorter(std::string folder, size_t most_bytes) : folder_(std::move(folder)), most_(most_bytes) {}

  void add(const SortKey& key, std::string_view record);
  void finish();  // nothing can be added after this
  bool next(SortKey& key, std::string_view& record);
  size_t in_memory() const { return in_memory_; }  // bytes of records

 private:
  struct Head {
    SortKey key;
    size_t at, size;
  };
  struct Run {
    std::unique_ptr<Spool> records;
    std::unique_ptr<Spool::Pass> pass;
    SortKey key;
    std::string_view record;
  };
  void sort_heads();
  void end_run();
  bool advance(Run& run);

  std::string folder_, texts_;
  size_t most_, in_memory_ = 0;
  std::vector<Head> heads_;
  std::vector<Run> runs_;
  std::vector<size_t> heap_;
  size_t at_ = 0;
  bool moved_ = true;  // the run on top of the heap has been advanced
};

}  // namespace stepscope
