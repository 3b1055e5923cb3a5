// Events that were seen before but for their numbers. Their text is compared as a whole and only the numbers are read:
// no name, thread or skeleton is looked up again. The numbers go straight into the columns of a batch.
//
// A trace has thousands of these and comes back to each in turn, so what is kept of one is small and lies together: its
// name, and by address what it shares with others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "batch.hpp"
#include "event.hpp"

namespace stepscope {

// What an event is, apart from its numbers.
struct Identity {
  int32_t table = 0, thread = 0, name = 0, skeleton = 0;
};

// How some events begin: all bytes up to the name, or up to the first number where the name comes later.
struct Head {
  std::string text;  // padded for same_padded, as all texts here
  size_t size = 0;
  bool named = false;
  uint64_t seed = 0;
};

// What some events have in common: all but the name, or all.
struct Rest {
  const Head* head = nullptr;
  std::string text;
  std::vector<Part> parts;  // the stretch of text before a number, and the number; Part::column counts in Batch::numbers
  std::vector<std::pair<uint8_t, int64_t>> fixed;  // columns that no number fills
};

struct Known {
  Identity is;
  const Rest* rest = nullptr;
  Known* chained = nullptr;  // another one, that may begin alike and have the same name
  uint32_t hash = 0;
  uint32_t size = 0;  // of the name, which lies behind; 0 if it is in the rest

  const char* text() const { return reinterpret_cast<const char*>(this + 1); }
};

// Reads the numbers of an event at p into row `row` of a batch; its end, or nullptr if it is not this one.
const char* read_known(const Known& known, const char* p, const char* end, int64_t* const* numbers, size_t row);

class KnownEvents {
 public:
  KnownEvents() : slots_(kSlots), followers_(size_t{1} << kFollowerBits), sightings_(kSlots) {}

  // The one that came the last time that the same three came before, or nullptr.
  Known* expected() const { return followers_[place()]; }
  // One that begins as the event at p, has its name, and fits.
  template <class Fits>
  Known* find(const char* p, const char* end, Fits&& fits);
  void found(Known* known, bool expected) {  // it was read
    if (!expected) followers_[place()] = known;
    past_ = past_ << 21 ^ (reinterpret_cast<uintptr_t>(known) >> 4 & 0x1fffff);
    // There are more of them than a near cache holds.
    if (const auto* next = reinterpret_cast<const char*>(followers_[place()]))
      for (size_t at = 0; at < 128; at += 64) __builtin_prefetch(next + at);
  }
  void found_another() { past_ <<= 21; }  // an event that is not known was read

  // Remembers an event that a layout has just read, from its second sighting on. From then on it is one that was found.
  void learn(const Template& t, const Progress& progress, const char* end, const Fields& fields, Identity is);
  void forget();  // when numbers of texts are given anew

 private:
  size_t place() const { return past_ * 0x9e3779b97f4a7c15ull >> (64 - kFollowerBits); }
  struct Sighting {
    uint64_t mark = 0;
    Known* known = nullptr;  // what was learned of it
  };
  Sighting& sighting_of(const Identity& is, bool& first);
  const Head* head_of(std::string_view text, bool named);
  const Rest* rest_of(Rest&& rest);
  Known* make(const Template& t, const Progress& progress, const char* end, const Fields& fields, Identity is);
  Known* keep(const Known& known, std::string_view text, uint64_t hash);

  static constexpr size_t kSlots = 1 << 14, kMostBytes = 12 << 20, kBlock = 1 << 16;
  static constexpr size_t kMostHeads = 32, kMostTried = 8, kFollowerBits = 15;
  std::vector<Known*> slots_;
  std::vector<Known*> followers_;  // by a hash of the three before
  uint64_t past_ = 0;              // these three
  std::vector<Sighting> sightings_;  // by a hash of the identity: what was seen there last
  std::vector<std::unique_ptr<Head>> heads_;  // the last one used comes first
  std::unordered_map<std::string, std::unique_ptr<Rest>> rests_;
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  size_t left_ = 0, bytes_ = 0;
};

template <class Fits>
Known* KnownEvents::find(const char* p, const char* end, Fits&& fits) {
  for (size_t i = 0; i < heads_.size(); ++i) {
    const Head& head = *heads_[i];
    if (static_cast<size_t>(end - p) < head.size + 16 || !same_padded(p, head.text.data(), head.size)) continue;
    uint64_t hash = head.seed;
    if (head.named) {
      const char* name = p + head.size;
      const char* quote = find_special(name, end);
      if (quote == end || *quote != '"') return nullptr;
      hash = hash_bytes(name, static_cast<size_t>(quote - name), head.seed);
    }
    if (i > 0) heads_[i].swap(heads_[i - 1]);
    Known*& first = slots_[hash & (kSlots - 1)];
    Known** from = &first;
    for (size_t tried = 0; *from && tried < kMostTried; ++tried, from = &(*from)->chained) {
      Known* known = *from;
      if (known->hash != static_cast<uint32_t>(hash >> 32) || !fits(*known)) continue;
      *from = known->chained;  // to the front of its chain
      known->chained = first;
      return first = known;
    }
    return nullptr;
  }
  return nullptr;
}

}  // namespace stepscope
