// Texts to dense numbers, each distinct text once. Memory is bounded by draining: the owner takes the texts out and the
// numbering goes on, so a text may then get a second number, but a number always means one text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text.hpp"

namespace stepscope {

class Interner {
 public:
  Interner() { slots_.resize(1024); }

  // The number of `text`, or -1 if it is not here.
  int32_t find(std::string_view text, uint64_t hash) const {
    for (size_t i = hash & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      const Slot& s = slots_[i];
      if (s.index == 0) return -1;
      if (s.hash == hash && same_text(texts_[s.index - 1], text)) return first_ + static_cast<int32_t>(s.index - 1);
    }
  }

  // Adds a text that is not here.
  int32_t add(std::string_view text, uint64_t hash) {
    if ((texts_.size() + 1) * 2 > slots_.size()) grow();
    texts_.push_back(keep(text));
    place({hash, static_cast<uint32_t>(texts_.size())});
    return first_ + static_cast<int32_t>(texts_.size() - 1);
  }

  int32_t intern(std::string_view text) {
    const uint64_t hash = hash_bytes(text);
    const int32_t known = find(text, hash);
    return known >= 0 ? known : add(text, hash);
  }

  const std::vector<std::string_view>& texts() const { return texts_; }
  int32_t first() const { return first_; }
  size_t bytes() const { return bytes_; }

  void drain() {
    first_ += static_cast<int32_t>(texts_.size());
    texts_.clear();
    blocks_.clear();
    slots_.assign(1024, Slot{});
    bytes_ = left_ = 0;
  }

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t index = 0;  // one more than the text's place; 0 is free
  };

  void place(Slot s) {
    size_t i = s.hash & (slots_.size() - 1);
    while (slots_[i].index) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = s;
  }

  void grow() {
    std::vector<Slot> old = std::move(slots_);
    slots_ = std::vector<Slot>(old.size() * 2);
    for (const Slot& s : old)
      if (s.index) place(s);
  }

  std::string_view keep(std::string_view text) {
    if (text.size() > left_) {
      const size_t size = text.size() > kBlock ? text.size() : kBlock;
      blocks_.push_back(std::make_unique<char[]>(size));
      next_ = blocks_.back().get();
      left_ = size;
    }
    if (!text.empty()) std::memcpy(next_, text.data(), text.size());
    const std::string_view kept{next_, text.size()};
    next_ += text.size();
    left_ -= text.size();
    bytes_ += text.size() + sizeof(std::string_view) + 2 * sizeof(Slot);
    return kept;
  }

  static constexpr size_t kBlock = 1 << 16;
  std::vector<Slot> slots_;
  std::vector<std::string_view> texts_;
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  size_t left_ = 0, bytes_ = 0;
  int32_t first_ = 0;
};

}  // namespace stepscope
