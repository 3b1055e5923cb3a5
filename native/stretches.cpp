#include "stretches.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace stepscope {

namespace {

constexpr uint64_t kBase = 0x9E3779B97F4A7C15;  // odd, so that no token is lost modulo 2^64

uint64_t mixed(int64_t token) {
  auto x = static_cast<uint64_t>(token) + kBase;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

uint64_t hash_of(const int64_t* tokens, size_t length) {
  uint64_t hash = 0;
  for (size_t i = 0; i < length; ++i) hash = hash * kBase + mixed(tokens[i]);
  return hash;
}

}  // namespace

void StretchFinder::add_eager(const int64_t* stream, const int64_t* token, const int64_t* work, size_t rows) {
  for (size_t i = 0; i < rows; ++i) {
    if (stream[i] != last_stream_ && !tokens_.empty()) {
      tokens_.push_back(-++partings_);
      events_.push_back(-1);
    }
    last_stream_ = stream[i];
    tokens_.push_back(token[i]);
    events_.push_back(work[i]);
  }
}

void StretchFinder::add_replayed(const int64_t* of, const int64_t* token, const int64_t* work, size_t rows) {
  for (size_t i = 0; i < rows; ++i) {
    if (of[i] != last_launch_) end_replay();
    last_launch_ = of[i];
    launch.push_back(of[i]);
    replayed.push_back(work[i]);
    place_in.push_back(static_cast<int64_t>(current_.size()));
    current_.push_back(token[i]);
  }
}

void StretchFinder::end_replay() {
  if (current_.empty()) return;
  const uint64_t hash = hash_of(current_.data(), current_.size());
  size_t found = starts_.size() - 1;
  const auto [first, last] = known_.equal_range(hash);
  for (auto it = first; it != last; ++it)
    if (length_of(it->second) == current_.size() && std::equal(current_.begin(), current_.end(), tokens_of(it->second)))
      found = it->second;
  if (found == starts_.size() - 1) {
    sequences_.insert(sequences_.end(), current_.begin(), current_.end());
    starts_.push_back(sequences_.size());
    known_.emplace(hash, found);
  }
  sequence_of.resize(sequence_of.size() + current_.size(), static_cast<int64_t>(found));
  current_.clear();
}

void StretchFinder::find(size_t least, size_t most) {
  end_replay();
  std::map<size_t, std::vector<size_t>> by_length;
  for (size_t i = 0; i + 1 < starts_.size(); ++i)
    if (length_of(i) >= std::max<size_t>(least, 1)) by_length[length_of(i)].push_back(i);
  for (const auto& [length, wanted] : by_length) find_all_of(length, wanted, most);
}

// One hash rolls over all eager work and is looked up among those of the sequences of this length.
void StretchFinder::find_all_of(size_t length, const std::vector<size_t>& wanted, size_t most) {
  if (length > tokens_.size()) return;
  struct Wanted {
    size_t sequence, found = 0, free_from = 0;
  };
  std::unordered_multimap<uint64_t, Wanted> sought;
  for (const size_t i : wanted) sought.emplace(hash_of(tokens_of(i), length), Wanted{i});
  uint64_t first_weight = 1;
  for (size_t i = 1; i < length; ++i) first_weight *= kBase;
  uint64_t hash = hash_of(tokens_.data(), length);
  for (size_t at = 0;; ++at) {
    const auto [first, last] = sought.equal_range(hash);
    for (auto it = first; it != last; ++it) {
      Wanted& w = it->second;
      if (w.found >= most || at < w.free_from || !std::equal(tokens_of(w.sequence), tokens_of(w.sequence) + length, tokens_.data() + at))
        continue;
      keep(w.sequence, at, static_cast<int64_t>(w.found++));
      w.free_from = at + length;
    }
    if (at + length >= tokens_.size()) break;
    hash = (hash - mixed(tokens_[at]) * first_weight) * kBase + mixed(tokens_[at + length]);
  }
}

void StretchFinder::keep(size_t of, size_t at, int64_t number) {
  for (size_t i = 0; i < length_of(of); ++i) {
    sequence.push_back(static_cast<int64_t>(of));
    stretch.push_back(number);
    place.push_back(static_cast<int64_t>(i));
    event.push_back(events_[at + i]);
  }
}

}  // namespace stepscope
