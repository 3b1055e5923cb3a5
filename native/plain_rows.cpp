#include "plain_rows.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include "text.hpp"

namespace stepscope {

std::vector<int64_t> row_order(const int64_t* thread, const int64_t* start, const int64_t* length, size_t rows) {
  const auto before = [&](int64_t a, int64_t b) {
    if (thread[a] != thread[b]) return thread[a] < thread[b];
    if (start[a] != start[b]) return start[a] < start[b];
    return length[a] > length[b];
  };
  bool sorted = true;
  for (size_t i = 1; i < rows && sorted; ++i) sorted = !before(static_cast<int64_t>(i), static_cast<int64_t>(i - 1));
  if (sorted) return {};
  std::vector<int64_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), before);
  return order;
}

namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::min();

// A whole number at the beginning of a text; false if there is none that fits.
bool leading_number(std::string_view& text, int64_t& value) {
  const bool negative = !text.empty() && text[0] == '-';
  size_t at = negative ? 1 : 0;
  const size_t first = at;
  uint64_t found = 0;
  while (at < text.size() && is_digit(text[at]) && at - first < 18) found = found * 10 + static_cast<uint64_t>(text[at++] - '0');
  if (at == first || (at < text.size() && is_digit(text[at]))) return false;
  value = negative ? -static_cast<int64_t>(found) : static_cast<int64_t>(found);
  text.remove_prefix(at);
  return true;
}

// Brackets that belong together, at the beginning of a text; empty if there are none.
std::string_view leading_list(std::string_view text) {
  size_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') ++depth;
    if (text[i] == ']' && depth && --depth == 0) return text.substr(0, i + 1);
    if (!depth) return {};
  }
  return {};
}

struct Hashed {
  size_t operator()(std::string_view text) const { return static_cast<size_t>(hash_bytes(text)); }
};

using Places = std::unordered_map<std::string_view, int32_t, Hashed>;

int32_t place_of(std::string_view text, Places& places, std::vector<std::string_view>& texts) {
  const auto [found, added] = places.try_emplace(text, static_cast<int32_t>(texts.size()));
  if (added) texts.push_back(text);
  return found->second;
}

}  // namespace

void ToldTexts::add(const int32_t* offsets, const char* text, size_t rows, const std::vector<std::string>& number_keys,
                    const std::vector<std::string>& text_keys) {
  numbers.assign(number_keys.size(), std::vector<int64_t>(rows, kNone));
  told.assign(text_keys.size(), std::vector<int32_t>(rows, -1));
  name.resize(rows);
  Places known_names, known_texts;
  for (size_t row = 0; row < rows; ++row) {
    const std::string_view whole(text + offsets[row], static_cast<size_t>(offsets[row + 1] - offsets[row]));
    size_t cut = whole.size();
    for (size_t comma = whole.find(", "); comma != std::string_view::npos && cut == whole.size(); comma = whole.find(", ", comma + 2)) {
      for (const std::string& key : number_keys) {
        std::string_view rest = whole.substr(comma);
        int64_t value;
        if (!rest.starts_with(key)) continue;
        rest.remove_prefix(key.size());
        if (leading_number(rest, value)) cut = comma;
      }
    }
    name[row] = place_of(whole.substr(0, cut), known_names, names);
    std::string_view rest = whole.substr(cut);
    for (bool found = true; found && !rest.empty();) {
      found = false;
      for (size_t key = 0; key < number_keys.size() && !found; ++key) {
        std::string_view after = rest.substr(std::min(number_keys[key].size(), rest.size()));
        if (!rest.starts_with(number_keys[key]) || !leading_number(after, numbers[key][row])) continue;
        rest = after;
        found = true;
      }
      for (size_t key = 0; key < text_keys.size() && !found; ++key) {
        if (!rest.starts_with(text_keys[key])) continue;
        const std::string_view list = leading_list(rest.substr(text_keys[key].size()));
        if (list.empty()) continue;
        told[key][row] = place_of(list, known_texts, told_texts);
        rest.remove_prefix(text_keys[key].size() + list.size());
        found = true;
      }
    }
  }
}

}  // namespace stepscope
