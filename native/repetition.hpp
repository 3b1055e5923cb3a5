// What repeats: the shortest stretch of a sequence that, said again and again, is most of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace stepscope {

struct Repetition {
  size_t first = 0;    // where the repeating begins
  size_t period = 0;   // length of what is repeated
  size_t rows = 0;     // how long the repeating goes on, a broken last one included
  bool foreign_before = false, foreign_after = false;  // whether symbols stand there that the period has not
};

// The shortest period, of at least `least_period` symbols, that repeats exactly and without a break at least three times
// over at least `least_share` of the sequence.
std::optional<Repetition> find_repetition(const int64_t* symbols, size_t rows, size_t least_period, double least_share);

// Stretches in which a period of at most `most_period` symbols repeats exactly and without a break at least
// `least_times`; none lies in another, the longest come first, no more than `most` of them. Each has its shortest period.
std::vector<Repetition> find_loops(const int64_t* symbols, size_t rows, size_t most_period, size_t least_times, size_t most);

}  // namespace stepscope
