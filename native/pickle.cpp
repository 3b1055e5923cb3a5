// The second pass over a pickle: values, the objects among them, and the machine that builds them.
#include "pickle.hpp"

#include <bit>
#include <utility>

#include "pickle_ops.hpp"

namespace stepscope {

namespace {

constexpr int64_t kMostHeld = 64 << 20;        // values at once
constexpr int64_t kMostTextHeld = 1ll << 30;   // bytes of texts at once
constexpr size_t kMostSpare = 4096;
constexpr size_t kSpareItems = 64, kSpareText = 256;

}  // namespace

PlainValue PlainValue::real(double d) { return PlainValue(Plain::real, std::bit_cast<int64_t>(d)); }

double PlainValue::number() const { return std::bit_cast<double>(word_); }

PlainValue::PlainValue(PlainObject* object) : kind_(object->kind), word_(reinterpret_cast<int64_t>(object)) { ++object->refs; }

PlainValue::PlainValue(const PlainValue& other) : kind_(other.kind_), word_(other.word_) {
  if (kind_ >= Plain::big) ++object()->refs;
}

void PlainValue::release() {
  PlainObject* held = object();
  if (--held->refs == 0) held->heap->destroy(held);
}

std::string_view PlainValue::text() const { return kind_ == Plain::text ? std::string_view(object()->text) : std::string_view(); }

PlainHeap::~PlainHeap() {
  // What is left is in circles, or held by them: all links are cut first, so that nothing is freed twice.
  for (PlainObject* one = first_; one; one = one->after)
    for (PlainValue& item : one->items)
      if (item.kind() >= Plain::big) item.give_up();
  while (first_) {
    PlainObject* gone = first_;
    first_ = gone->after;
    delete gone;
  }
  for (PlainObject* one : spare_) delete one;
}

PlainObject* PlainHeap::make(Plain kind) {
  PlainObject* made;
  if (spare_.empty()) {
    made = new PlainObject;
    made->heap = this;
  } else {
    made = spare_.back();
    spare_.pop_back();
  }
  made->kind = kind;
  made->before = nullptr;
  made->after = first_;
  if (first_) first_->before = made;
  first_ = made;
  ++held_;
  return made;
}

void PlainHeap::unlink(PlainObject* object) {
  (object->before ? object->before->after : first_) = object->after;
  if (object->after) object->after->before = object->before;
  held_ -= 1 + static_cast<int64_t>(object->items.size());
  text_bytes_ -= static_cast<int64_t>(object->text.size());
}

void PlainHeap::recycle(PlainObject* object) {
  if (spare_.size() >= kMostSpare || object->items.capacity() > kSpareItems || object->text.capacity() > kSpareText) {
    delete object;
    return;
  }
  object->items.clear();
  object->text.clear();
  object->role = 0;
  object->partial = false;
  object->number = -1;
  object->offset = 0;
  spare_.push_back(object);
}

// Not by recursion: lists may be nested a million times.
void PlainHeap::destroy(PlainObject* object) {
  const size_t bottom = dying_.size();
  dying_.push_back(object);
  while (dying_.size() > bottom) {
    PlainObject* gone = dying_.back();
    dying_.pop_back();
    unlink(gone);
    for (PlainValue& item : gone->items) {
      if (item.kind() < Plain::big) continue;
      PlainObject* held = item.give_up();
      if (--held->refs == 0) dying_.push_back(held);
    }
    recycle(gone);
  }
}

PickleMachine::PickleMachine(PickleBytes& bytes, const PickleScan& scan, PickleListener* listener)
    : bytes_(bytes), scan_(scan), listener_(listener) {
  bytes_.rewind();
  memo_.resize(scan.fetched.places());
  filled_.resize(scan.fetched.places());
}

bool PickleMachine::run(size_t operations) {
  try {
    for (size_t i = 0; i < operations && !finished_; ++i) {
      if (!scan_.cut.empty() && bytes_.at() >= scan_.end) throw PickleCut(scan_.cut);
      finished_ = !step();
    }
  } catch (const PickleCut& cut) {
    cut_ = cut.what();
    finished_ = true;
    close_all();
  }
  return !finished_;
}

void PickleMachine::close_all() {
  while (!marks_.empty()) {
    const size_t from = pop_mark();
    if (from == 0 || from > stack_.size()) continue;
    if (stack_[from - 1].is(Plain::list)) {
      add_items(from - 1, from);
    } else if (stack_[from - 1].is(Plain::dict)) {
      if ((stack_.size() - from) % 2) stack_.pop_back();
      stack_[from - 1].object()->partial = true;
      set_items(from - 1, from);
    }
    stack_.resize(from);
    // An item alone is added without a mark; what was just closed may be one.
    while (stack_.size() >= 2 && stack_.size() - 1 > mark() && stack_[stack_.size() - 2].is(Plain::list)) {
      add_items(stack_.size() - 2, stack_.size() - 1);
      stack_.pop_back();
    }
  }
  if (!stack_.empty()) result_ = stack_.front();
}

bool PickleMachine::step() {
  const uint8_t code = bytes_.byte();
  switch (code) {
    case op::stop: result_ = pop(); return false;
    case op::protocol: bytes_.skip(1); return true;
    case op::frame: bytes_.skip(8); return true;
    case op::get1: fetch(bytes_.byte()); return true;
    case op::get4: fetch(bytes_.little<uint32_t>()); return true;
    case op::put1: put(bytes_.byte()); return true;
    case op::put4: put(bytes_.little<uint32_t>()); return true;
    case op::memoize: put(memoized_); return true;
    case op::mark: marks_.push_back(stack_.size()); check_held(); return true;
    default: break;
  }
  if (step_plain(code) || step_container(code)) return true;
  throw PickleCut("it has the unknown operation " + std::to_string(code));
}

bool PickleMachine::step_plain(uint8_t code) {
  switch (code) {
    case op::none: push(PlainValue()); return true;
    case op::new_true: push(PlainValue::boolean(true)); return true;
    case op::new_false: push(PlainValue::boolean(false)); return true;
    case op::int1: push(PlainValue::integer(bytes_.byte())); return true;
    case op::int2: push(PlainValue::integer(bytes_.little<uint16_t>())); return true;
    case op::int4: push(PlainValue::integer(static_cast<int32_t>(bytes_.little<uint32_t>()))); return true;
    case op::long1: push_big(bytes_.byte()); return true;
    case op::long4: push_big(bytes_.little<uint32_t>()); return true;
    case op::real: {
      uint64_t word = 0;
      const auto* from = reinterpret_cast<const unsigned char*>(bytes_.next(8));
      for (int i = 0; i < 8; ++i) word = word << 8 | from[i];
      push(PlainValue::real(std::bit_cast<double>(word)));
      return true;
    }
    case op::text1: push_text(Plain::text, bytes_.byte()); return true;
    case op::text4: push_text(Plain::text, bytes_.little<uint32_t>()); return true;
    case op::text8: push_text(Plain::text, bytes_.little<uint64_t>()); return true;
    case op::string1: push_text(Plain::text, bytes_.byte()); return true;
    case op::string4: push_text(Plain::text, bytes_.little<uint32_t>()); return true;
    case op::bytes1: push_text(Plain::bytes, bytes_.byte()); return true;
    case op::bytes4: push_text(Plain::bytes, bytes_.little<uint32_t>()); return true;
    case op::bytes8: case op::byte_array8: push_text(Plain::bytes, bytes_.little<uint64_t>()); return true;
    case op::pop:
      if (!marks_.empty() && marks_.back() == stack_.size()) marks_.pop_back();
      else pop();
      return true;
    case op::pop_mark: stack_.resize(pop_mark()); return true;
    case op::dup: push(PlainValue(top())); return true;
    default: return false;
  }
}

bool PickleMachine::step_container(uint8_t code) {
  const size_t size = stack_.size();
  switch (code) {
    case op::empty_list: push_container(Plain::list, size); return true;
    case op::empty_dict: push_container(Plain::dict, size); return true;
    case op::empty_tuple: push_container(Plain::tuple, size); return true;
    case op::empty_set: push_container(Plain::set, size); return true;
    case op::list: push_container(Plain::list, pop_mark()); return true;
    case op::tuple: push_container(Plain::tuple, pop_mark()); return true;
    case op::frozen_set: push_container(Plain::set, pop_mark()); return true;
    case op::dict: push_container(Plain::dict, pop_mark()); return true;
    case op::tuple1: case op::tuple2: case op::tuple3: {
      const size_t count = code - op::tuple1 + 1u;
      if (size < mark() + count) throw PickleCut("it takes what is not there");
      push_container(Plain::tuple, size - count);
      return true;
    }
    case op::append: case op::appends: {
      const size_t from = code == op::append ? size - 1 : pop_mark();
      if (size == 0 || from == 0 || from < mark() + 1) throw PickleCut("it adds to what is not there");
      add_items(from - 1, from);
      stack_.resize(from);
      return true;
    }
    case op::add_items: {
      const size_t from = pop_mark();
      if (from < mark() + 1) throw PickleCut("it adds to what is not there");
      PlainObject* set = checked(from - 1, Plain::set);
      for (size_t i = from; i < stack_.size(); ++i) set->items.push_back(std::move(stack_[i]));
      heap_.hold(static_cast<int64_t>(stack_.size() - from));
      stack_.resize(from);
      return true;
    }
    case op::set_item: case op::set_items: {
      const size_t from = code == op::set_item ? size - 2 : pop_mark();
      if (size < 2 || from == 0 || from < mark() + 1) throw PickleCut("it adds to what is not there");
      set_items(from - 1, from);
      stack_.resize(from);
      return true;
    }
    default: return false;
  }
}

void PickleMachine::push(PlainValue value) {
  stack_.push_back(std::move(value));
  if ((stack_.size() & 0xfff) == 0) check_held();
}

PlainValue PickleMachine::pop() {
  PlainValue value = std::move(top());
  stack_.pop_back();
  return value;
}

PlainValue& PickleMachine::top() {
  if (stack_.size() <= mark()) throw PickleCut("it takes what is not there");
  return stack_.back();
}

size_t PickleMachine::pop_mark() {
  if (marks_.empty()) throw PickleCut("it takes what is not there");
  const size_t from = marks_.back();
  marks_.pop_back();
  return from;
}

void PickleMachine::push_text(Plain kind, uint64_t length) {
  const char* from = bytes_.next(length);
  PlainValue made(heap_.make(kind));
  made.object()->text.assign(from, length);
  heap_.hold_text(length);
  if (length > 4096) check_held();
  push(std::move(made));
}

void PickleMachine::push_big(uint64_t length) {
  const char* from = bytes_.next(length);
  if (length > 8) {
    PlainValue made(heap_.make(Plain::big));
    made.object()->text.assign(from, length);
    heap_.hold_text(length);
    push(std::move(made));
    return;
  }
  uint64_t word = length && (from[length - 1] & 0x80) ? ~uint64_t{0} : 0;
  for (uint64_t i = length; i-- > 0;) word = word << 8 | static_cast<unsigned char>(from[i]);
  push(PlainValue::integer(static_cast<int64_t>(word)));
}

void PickleMachine::push_container(Plain kind, size_t from) {
  if (from > stack_.size()) throw PickleCut("it takes what is not there");
  const size_t count = stack_.size() - from;
  if (kind == Plain::dict && count % 2) throw PickleCut("it has a key without a value");
  PlainValue made(heap_.make(kind));
  for (size_t i = from; i < stack_.size(); ++i) made.object()->items.push_back(std::move(stack_[i]));
  heap_.hold(static_cast<int64_t>(count));
  stack_.resize(from);
  push(std::move(made));
}

PlainObject* PickleMachine::checked(size_t at, Plain kind) {
  if (!stack_[at].is(kind)) throw PickleCut("it adds to what is no such container");
  return stack_[at].object();
}

void PickleMachine::add_items(size_t at, size_t from) {
  PlainObject* list = checked(at, Plain::list);
  for (size_t i = from; i < stack_.size(); ++i) {
    if (listener_ && listener_->takes(*this, at, stack_[i])) continue;
    list->items.push_back(std::move(stack_[i]));
    heap_.hold(1);
    if ((list->items.size() & 0xfff) == 0) check_held();
  }
}

void PickleMachine::set_items(size_t at, size_t from) {
  PlainObject* dict = checked(at, Plain::dict);
  if ((stack_.size() - from) % 2) throw PickleCut("it has a key without a value");
  for (size_t i = from; i < stack_.size(); ++i) dict->items.push_back(std::move(stack_[i]));
  heap_.hold(static_cast<int64_t>(stack_.size() - from));
  if (dict->items.size() > 0xfff) check_held();
}

void PickleMachine::put(uint64_t slot) {
  const PlainValue& value = top();
  ++memoized_;
  const int64_t place = scan_.fetched.place(slot);
  if (place < 0) return;
  memo_[static_cast<size_t>(place)] = value;
  filled_[static_cast<size_t>(place)] = true;
}

void PickleMachine::fetch(uint64_t slot) {
  const int64_t place = scan_.fetched.place(slot);
  if (place < 0 || !filled_[static_cast<size_t>(place)]) throw PickleCut("it fetches what was never kept");
  push(PlainValue(memo_[static_cast<size_t>(place)]));
}

void PickleMachine::check_held() {
  const auto waiting = static_cast<int64_t>(stack_.size() + marks_.size());
  if (waiting + heap_.held() > kMostHeld || heap_.text_bytes() > kMostTextHeld)
    throw PickleCut("it holds more at once than a snapshot does");
}

}  // namespace stepscope
