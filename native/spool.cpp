#include "spool.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace stepscope {

namespace {

constexpr size_t kRead = 1 << 20;

}  // namespace

Scratch::Scratch(const std::string& folder) {
  std::string name = folder + "/records-XXXXXX";
  const int file = mkstemp(name.data());
  if (file < 0) throw std::runtime_error("no temporary file can be written to " + folder);
  unlink(name.c_str());
  file_.reset(fdopen(file, "w+b"));
  if (!file_) throw std::runtime_error("no temporary file can be written to " + folder);
}

void Scratch::write(const char* bytes, size_t size) {
  if (fseeko(file_.get(), end_, SEEK_SET) != 0 || std::fwrite(bytes, 1, size, file_.get()) != size || std::fflush(file_.get()) != 0)
    throw std::runtime_error("a temporary file could not be written: the disk may be full");
  end_ += static_cast<int64_t>(size);
}

size_t Scratch::read(int64_t at, char* out, size_t size) {
  if (fseeko(file_.get(), at, SEEK_SET) != 0) return 0;
  return std::fread(out, 1, size, file_.get());
}

// ---- in order of arrival

void Spool::move_to_disk() {
  if (!file_) file_ = std::make_unique<Scratch>(folder_);
  file_->write(memory_.data(), used_);
  on_disk_ += static_cast<int64_t>(used_);
  used_ = 0;
}

bool Spool::Pass::fill(size_t wanted) {
  buffer_.erase(0, used_);
  used_ = 0;
  const size_t had = buffer_.size();
  const auto left = static_cast<size_t>(of_.on_disk_ - at_);
  const size_t take = std::min(left, std::max(wanted - had, kRead));
  buffer_.resize(had + take);
  if (of_.file_->read(at_, buffer_.data() + had, take) != take) throw std::runtime_error("a temporary file cannot be read back");
  at_ += static_cast<int64_t>(take);
  return buffer_.size() >= wanted;
}

bool Spool::Pass::next(std::string_view& record) {
  uint32_t size;
  if (of_.on_disk_ > at_ || used_ < buffer_.size()) {  // records never lie half in memory
    if (buffer_.size() - used_ < sizeof size && !fill(sizeof size)) return false;
    std::memcpy(&size, buffer_.data() + used_, sizeof size);
    if (buffer_.size() - used_ < sizeof size + size && !fill(sizeof size + size)) return false;
    record = {buffer_.data() + used_ + sizeof size, size};
    used_ += sizeof size + size;
    return true;
  }
  if (in_memory_ == of_.used_) return false;
  std::memcpy(&size, of_.memory_.data() + in_memory_, sizeof size);
  record = {of_.memory_.data() + in_memory_ + sizeof size, size};
  in_memory_ += sizeof size + size;
  return true;
}

// ---- in order of time

void Sorter::add(const SortKey& key, std::string_view record) {
  heads_.push_back({key, texts_.size(), record.size()});
  texts_ += record;
  in_memory_ += sizeof(Head) + record.size();
  if (in_memory_ >= most_) end_run();
}

// Records of one track mostly come in order: it is enough to part them by track, and to look.
void Sorter::sort_heads() {
  const auto before = [](const Head& a, const Head& b) { return a.key < b.key; };
  if (std::is_sorted(heads_.begin(), heads_.end(), before)) return;
  uint32_t most = 0;
  for (const Head& head : heads_) most = std::max(most, head.key.track);
  if (most > heads_.size() + 1024) return std::sort(heads_.begin(), heads_.end(), before);
  std::vector<size_t> ends(size_t{most} + 2);
  for (const Head& head : heads_) ++ends[size_t{head.key.track} + 1];
  for (size_t i = 1; i < ends.size(); ++i) ends[i] += ends[i - 1];
  const std::vector<size_t> firsts = ends;
  std::vector<Head> parted(heads_.size());
  for (const Head& head : heads_) parted[ends[head.key.track]++] = head;
  for (size_t i = 0; i + 1 < firsts.size(); ++i) {
    const auto first = parted.begin() + static_cast<ptrdiff_t>(firsts[i]), last = parted.begin() + static_cast<ptrdiff_t>(firsts[i + 1]);
    if (!std::is_sorted(first, last, before)) std::sort(first, last, before);
  }
  heads_.swap(parted);
}

void Sorter::end_run() {
  sort_heads();
  Run run;
  run.records = std::make_unique<Spool>(folder_, size_t{4} << 20);
  std::string record;
  for (const Head& head : heads_) {
    record.assign(reinterpret_cast<const char*>(&head.key), sizeof head.key);
    record.append(texts_, head.at, head.size);
    run.records->add(record);
  }
  runs_.push_back(std::move(run));
  heads_.clear();
  texts_.clear();
  in_memory_ = 0;
}

bool Sorter::advance(Run& run) {
  std::string_view record;
  if (!run.pass->next(record)) return false;
  std::memcpy(&run.key, record.data(), sizeof run.key);
  run.record = record.substr(sizeof run.key);
  return true;
}

void Sorter::finish() {
  if (runs_.empty()) {
    sort_heads();
    return;
  }
  if (!heads_.empty()) end_run();
  for (Run& run : runs_) run.pass = std::make_unique<Spool::Pass>(*run.records);
  for (size_t i = 0; i < runs_.size(); ++i)
    if (advance(runs_[i])) heap_.push_back(i);
  const auto later = [this](size_t a, size_t b) { return runs_[b].key < runs_[a].key; };
  std::make_heap(heap_.begin(), heap_.end(), later);
}

bool Sorter::next(SortKey& key, std::string_view& record) {
  if (runs_.empty()) {
    if (at_ == heads_.size()) return false;
    const Head& head = heads_[at_++];
    key = head.key;
    record = std::string_view(texts_).substr(head.at, head.size);
    return true;
  }
  const auto later = [this](size_t a, size_t b) { return runs_[b].key < runs_[a].key; };
  if (heap_.empty()) return false;
  if (!moved_) {  // only now, for the record given out last lay in the run's buffer
    std::pop_heap(heap_.begin(), heap_.end(), later);
    if (advance(runs_[heap_.back()])) std::push_heap(heap_.begin(), heap_.end(), later);
    else heap_.pop_back();
  }
  moved_ = false;
  if (heap_.empty()) return false;
  key = runs_[heap_.front()].key;
  record = runs_[heap_.front()].record;
  return true;
}

}  // namespace stepscope
