// Stretches of work that look alike: where in the work of the streams the work of a replayed graph occurs as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace stepscope {

// Work is known by a token: the same token, the same kernel with the same launch shape. Tokens are not negative.
class StretchFinder {
 public:
  // Work as it was launched piece by piece, stream by stream, there in order of time.
  void add_eager(const int64_t* stream, const int64_t* token, const int64_t* event, size_t rows);
  // Work of replays, replay by replay, there in order of time. Replays of the same tokens are one sequence.
  void add_replayed(const int64_t* launch, const int64_t* token, const int64_t* event, size_t rows);
  // Looks for each sequence of `least` tokens or more; keeps the first `most` stretches that do not overlap.
  void find(size_t least, size_t most);

  // Each piece of replayed work: its launch, the sequence of its replay, and its place there.
  std::vector<int64_t> replayed, launch, sequence_of, place_in;
  // What was found: for each token of each stretch the eager work.
  std::vector<int64_t> sequence, stretch, place, event;

 private:
  void end_replay();
  const int64_t* tokens_of(size_t sequence) const { return sequences_.data() + starts_[sequence]; }
  size_t length_of(size_t sequence) const { return starts_[sequence + 1] - starts_[sequence]; }
  void find_all_of(size_t length, const std::vector<size_t>& wanted, size_t most);
  void keep(size_t sequence, size_t at, int64_t number);

  std::vector<int64_t> tokens_, events_;  // eager work; a negative token parts two streams
  std::vector<int64_t> sequences_;        // tokens of the sequences, one after another
  std::vector<size_t> starts_ = {0};
  std::unordered_multimap<uint64_t, size_t> known_;  // hash to sequence
  std::vector<int64_t> current_;
  int64_t last_stream_ = -1, last_launch_ = -1, partings_ = 0;
};

}  // namespace stepscope
