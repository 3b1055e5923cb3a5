// Pickles of plain values, read by a machine that can build nothing else: no class is looked up, nothing is called.
//
// A pickle is a program for a stack machine. Two passes keep memory small: the first marks which memo slots are ever
// fetched, the second builds values and lets a listener take the items of long lists away as they come.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace stepscope {

enum class Plain : uint8_t { none, boolean, integer, real, big, text, bytes, list, tuple, dict, set };

struct PlainObject;

// A plain value; what does not fit in eight bytes is an object that is counted.
class PlainValue {
 public:
  PlainValue() = default;
  static PlainValue boolean(bool b) { return PlainValue(Plain::boolean, b ? 1 : 0); }
  static PlainValue integer(int64_t i) { return PlainValue(Plain::integer, i); }
  static PlainValue real(double d);
  explicit PlainValue(PlainObject* object);
  PlainValue(const PlainValue& other);
  PlainValue(PlainValue&& other) noexcept : kind_(other.kind_), word_(other.word_) { other.kind_ = Plain::none; }
  PlainValue& operator=(PlainValue other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(word_, other.word_);
    return *this;
  }
  ~PlainValue() {
    if (kind_ >= Plain::big) release();
  }

  Plain kind() const { return kind_; }
  bool is(Plain kind) const { return kind_ == kind; }
  int64_t whole() const { return word_; }
  double number() const;
  PlainObject* object() const { return reinterpret_cast<PlainObject*>(word_); }
  // The text, or nothing if it is none.
  std::string_view text() const;
  // Gives up the object without counting down.
  PlainObject* give_up() {
    kind_ = Plain::none;
    return reinterpret_cast<PlainObject*>(word_);
  }

 private:
  PlainValue(Plain kind, int64_t word) : kind_(kind), word_(word) {}
  void release();

  Plain kind_ = Plain::none;
  int64_t word_ = 0;
};

class PlainHeap;

struct PlainObject {
  PlainHeap* heap = nullptr;
  PlainObject *before = nullptr, *after = nullptr;
  uint32_t refs = 0;
  Plain kind = Plain::none;
  bool partial = false;      // the pickle was cut before it was whole
  int8_t role = 0;           // for a listener: what kind of list this is; 0 until it was looked at
  int64_t number = -1;       // for a listener: what it numbered
  int64_t offset = 0;        // for a listener
  std::string text;          // of texts, bytes and big integers (little endian)
  std::vector<PlainValue> items;  // of lists, tuples and sets; of dicts keys and values by turns
};

// Owns all objects, so that those in a circle are freed at the end, too.
class PlainHeap {
 public:
  PlainHeap() = default;
  PlainHeap(const PlainHeap&) = delete;
  PlainHeap& operator=(const PlainHeap&) = delete;
  ~PlainHeap();

  PlainObject* make(Plain kind);
  void destroy(PlainObject* object);
  // How many objects and values of lists there are now.
  int64_t held() const { return held_; }
  void hold(int64_t values) { held_ += values; }
  int64_t text_bytes() const { return text_bytes_; }
  void hold_text(size_t bytes) { text_bytes_ += static_cast<int64_t>(bytes); }

 private:
  void unlink(PlainObject* object);
  void recycle(PlainObject* object);

  PlainObject* first_ = nullptr;
  std::vector<PlainObject*> spare_, dying_;
  int64_t held_ = 0, text_bytes_ = 0;
};

// Bytes of a file, or of a text in memory, in order and from the start again.
class PickleBytes {
 public:
  explicit PickleBytes(std::string content) : content_(std::move(content)), size_(content_.size()) {}
  explicit PickleBytes(const std::filesystem::path& file);

  void rewind() { at_ = held_from_ = held_ = 0; }
  uint64_t at() const { return at_; }
  uint64_t size() const { return size_; }
  // The next bytes; throws PickleCut if there are fewer.
  const char* next(uint64_t count);
  uint8_t byte() { return static_cast<uint8_t>(*next(1)); }
  void skip(uint64_t count);
  // A line without its end, of at most `most` bytes.
  std::string line(size_t most);
  template <class T>
  T little();

 private:
  void fill(uint64_t count);

  std::string content_;
  std::ifstream file_;
  bool in_memory_ = true;
  uint64_t size_ = 0, at_ = 0;
  uint64_t held_from_ = 0, held_ = 0;  // which bytes of the file the buffer holds
  std::vector<char> buffer_;
};

// The pickle ends before its end, or is none from here on.
struct PickleCut : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The pickle wants to load or call something.
struct PickleRefused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Which memo slots are fetched; a slot that is has a dense place.
class FetchedSlots {
 public:
  void mark(uint64_t slot);
  void finish();
  // The place of a slot, or -1 if nobody fetches it.
  int64_t place(uint64_t slot) const;
  size_t places() const { return places_; }

 private:
  std::vector<uint64_t> bits_;
  std::vector<uint32_t> before_;  // fetched slots before each word
  size_t places_ = 0;
};

// The first pass: marks fetched slots, and throws PickleRefused at anything but plain values. Says where the file is cut.
struct PickleScan {
  FetchedSlots fetched;
  uint64_t end = 0;      // the first byte that is not read
  std::string cut;       // why, if the pickle does not end there
};
PickleScan scan_pickle(PickleBytes& bytes);

class PickleMachine;

// Is asked for every item that is to be added to a list.
class PickleListener {
 public:
  virtual ~PickleListener() = default;
  // Whether it takes the item, which is then not kept in the list at `at` of the machine's stack.
  virtual bool takes(const PickleMachine& machine, size_t at, const PlainValue& item) = 0;
};

// The second pass.
class PickleMachine {
 public:
  PickleMachine(PickleBytes& bytes, const PickleScan& scan, PickleListener* listener = nullptr);

  // Runs some operations; false when the pickle has ended.
  bool run(size_t operations);
  // Whatever is on the stack goes where it would have gone: for a pickle that is cut.
  void close_all();

  const PlainValue& result() const { return result_; }
  bool finished() const { return finished_; }
  const std::string& cut() const { return cut_; }
  const std::vector<PlainValue>& stack() const { return stack_; }
  // Where the items begin that wait for their container, of the innermost one; 0 if none waits.
  size_t mark() const { return marks_.empty() ? 0 : marks_.back(); }

 private:
  bool step();
  bool step_plain(uint8_t op);
  bool step_container(uint8_t op);
  void step_memo(uint8_t op);
  void push(PlainValue value);
  PlainValue pop();
  PlainValue& top();
  size_t pop_mark();
  void push_text(Plain kind, uint64_t length);
  void push_big(uint64_t length);
  void push_container(Plain kind, size_t from);
  void add_items(size_t at, size_t from);
  void set_items(size_t at, size_t from);
  void put(uint64_t slot);
  void fetch(uint64_t slot);
  PlainObject* checked(size_t at, Plain kind);
  void check_held();

  PlainHeap heap_;
  PickleBytes& bytes_;
  const PickleScan& scan_;
  PickleListener* listener_;
  std::vector<PlainValue> stack_, memo_;
  std::vector<bool> filled_;
  std::vector<size_t> marks_;
  uint64_t memoized_ = 0;
  PlainValue result_;
  bool finished_ = false;
  std::string cut_;
};

}  // namespace stepscope
