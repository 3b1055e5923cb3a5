#include "repetition.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace stepscope {

namespace {

constexpr size_t kLeastTimes = 3;
// A symbol that occurs m times in a period stands a period apart from its m-th next. Rare symbols have a small m, so a
// few of them tell the period; the bounds keep the search linear.
constexpr size_t kSymbols = 32, kMostInPeriod = 64, kMostPlaces = 1 << 16, kMostPeriods = 128;
constexpr size_t kMostCompared = size_t{1} << 27;

// The places of the rarest symbols that occur often enough.
std::vector<std::vector<size_t>> places_of_rare(const int64_t* symbols, size_t rows) {
  std::unordered_map<int64_t, size_t> count;
  for (size_t i = 0; i < rows; ++i) ++count[symbols[i]];
  std::vector<std::pair<size_t, int64_t>> rare;
  for (const auto& [symbol, times] : count)
    if (times >= kLeastTimes) rare.emplace_back(times, symbol);
  std::sort(rare.begin(), rare.end());
  if (rare.size() > kSymbols) rare.resize(kSymbols);
  std::unordered_map<int64_t, size_t> slot;
  for (const auto& entry : rare) slot.emplace(entry.second, slot.size());
  std::vector<std::vector<size_t>> places(slot.size());
  for (size_t i = 0; i < rows; ++i)
    if (const auto found = slot.find(symbols[i]); found != slot.end() && places[found->second].size() < kMostPlaces)
      places[found->second].push_back(i);
  return places;
}

// Distances at which symbols come again, those with the most votes first.
std::vector<size_t> likely_periods(const std::vector<std::vector<size_t>>& places) {
  std::map<size_t, size_t> votes;
  for (const auto& place : places) {
    for (size_t m = 1; m <= kMostInPeriod && m * kLeastTimes <= place.size(); ++m) {
      std::unordered_map<size_t, size_t> distances;
      for (size_t j = 0; j + m < place.size(); ++j) ++distances[place[j + m] - place[j]];
      for (const auto& [distance, times] : distances)
        if (2 * times >= place.size() - m) votes[distance] += times;
    }
  }
  std::vector<std::pair<size_t, size_t>> ranked;
  for (const auto& [distance, times] : votes) ranked.emplace_back(times, distance);
  std::sort(ranked.rbegin(), ranked.rend());
  if (ranked.size() > kMostPeriods) ranked.resize(kMostPeriods);
  std::vector<size_t> periods;
  for (const auto& entry : ranked) periods.push_back(entry.second);
  std::sort(periods.begin(), periods.end());
  return periods;
}

// The longest stretch in which every symbol is that of one period later.
Repetition longest_with(const int64_t* symbols, size_t rows, size_t period) {
  Repetition best;
  best.period = period;
  size_t begin = 0;
  for (size_t i = 0; i + period <= rows; ++i) {
    if (i + period < rows && symbols[i] == symbols[i + period]) continue;
    if (i - begin > best.rows) best.first = begin, best.rows = i - begin;
    begin = i + 1;
  }
  if (best.rows) best.rows += period;
  return best;
}

}  // namespace

std::optional<Repetition> find_repetition(const int64_t* symbols, size_t rows, size_t least_period, double least_share) {
  for (const size_t period : likely_periods(places_of_rare(symbols, rows))) {
    if (period < least_period || period > rows / kLeastTimes) continue;
    Repetition found = longest_with(symbols, rows, period);
    if (found.rows < kLeastTimes * period || static_cast<double>(found.rows) < least_share * static_cast<double>(rows)) continue;
    const std::unordered_set<int64_t> own(symbols + found.first, symbols + found.first + period);
    const auto foreign = [&](int64_t symbol) { return !own.contains(symbol); };
    found.foreign_before = std::any_of(symbols, symbols + found.first, foreign);
    found.foreign_after = std::any_of(symbols + found.first + found.rows, symbols + rows, foreign);
    return found;
  }
  return std::nullopt;
}

std::vector<Repetition> find_loops(const int64_t* symbols, size_t rows, size_t most_period, size_t least_times, size_t most) {
  least_times = std::max<size_t>(least_times, 2);
  // Every period is tried at every place: very long sequences get by with short periods.
  most_period = std::min({most_period, rows / least_times, rows ? kMostCompared / rows : 0});
  std::vector<Repetition> found;
  for (size_t period = 1; period <= most_period; ++period) {
    size_t begin = 0;
    for (size_t i = 0; i + period <= rows; ++i) {
      if (i + period < rows && symbols[i] == symbols[i + period]) continue;
      const size_t length = i - begin + period;
      if (i > begin && length >= least_times * period) found.push_back({begin, period, length});
      begin = i + 1;
    }
  }
  // The same stretch has multiples of its period as well: the shortest counts.
  std::stable_sort(found.begin(), found.end(), [](const Repetition& a, const Repetition& b) { return a.rows > b.rows; });
  std::vector<Repetition> kept;
  for (const Repetition& one : found) {
    if (kept.size() == most) break;
    const auto apart = [&](const Repetition& other) { return one.first + one.rows <= other.first || other.first + other.rows <= one.first; };
    if (std::all_of(kept.begin(), kept.end(), apart)) kept.push_back(one);
  }
  return kept;
}

}  // namespace stepscope
