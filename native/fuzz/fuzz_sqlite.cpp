// Mutated SQLite files against the reader of their pages: nothing may crash, and the size of a batch may not change what is read.
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "../sqlite_pages.hpp"
#include "tries.hpp"

namespace stepscope {

namespace {

// A file in memory, which a reader gets as a descriptor.
class Given {
 public:
  explicit Given(const std::string& bytes) : descriptor(memfd_create("given", 0)) {
    check(descriptor >= 0 && write(descriptor, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "no file in memory");
  }
  ~Given() { close(descriptor); }
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;
  const int descriptor;
};

using Wanted = std::vector<std::pair<size_t, SqliteKind>>;

std::string value_of(const SqliteColumn& column, size_t row) {
  if (!(column.valid[row / 8] >> (row % 8) & 1)) return "-";
  if (column.kind == SqliteKind::kInt) return std::to_string(column.ints[row]);
  if (column.kind == SqliteKind::kDouble) {
    const double value = column.doubles[row];
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  }
  const auto from = static_cast<size_t>(column.offsets[row]), to = static_cast<size_t>(column.offsets[row + 1]);
  check(from <= to && to <= column.text.size(), "a text lies outside of the texts");
  return std::string(column.text.data() + from, to - from);
}

// All values of all rows, and what was lost.
std::vector<std::string> read_rows(int descriptor, uint32_t root, const Wanted& wanted, size_t most) {
  std::vector<SqliteColumn> columns(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    columns[i].place = wanted[i].first;
    columns[i].kind = wanted[i].second;
    columns[i].is_rowid = i == 0 && wanted[i].second == SqliteKind::kInt;
  }
  SqliteScan scan(descriptor, root, std::move(columns));
  std::vector<std::string> said;
  while (const size_t rows = scan.next(most))
    for (size_t row = 0; row < rows; ++row)
      for (const SqliteColumn& column : scan.columns) said.push_back(value_of(column, row));
  for (const uint64_t lost : {scan.bad_pages, scan.bad_rows, scan.odd_values, scan.cut_texts}) said.push_back(std::to_string(lost));
  return said;
}

void mutate(std::string& bytes, Dice& dice) {
  if (bytes.empty()) return;
  // Mostly where pages and rows say what they hold.
  const size_t page = draw(dice, bytes.size() / 512 + 1) * 512, at = std::min(bytes.size() - 1, page + draw(dice, draw(dice, 2) ? 16 : 512));
  switch (draw(dice, 6)) {
    case 0: bytes[at] = static_cast<char>(dice()); break;
    case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << draw(dice, 8))); break;
    case 2: bytes[at] = static_cast<char>(0xff); break;
    case 3: bytes.resize(draw(dice, 4) ? bytes.size() - draw(dice, 600) % bytes.size() : at); break;
    case 4: bytes.replace(at, std::min<size_t>(8, bytes.size() - at), 8, static_cast<char>(dice())); break;
    default: {
      const size_t from = draw(dice, bytes.size()), length = std::min({draw(dice, 600), bytes.size() - from, bytes.size() - at});
      bytes.replace(at, length, bytes.substr(from, length));
    }
  }
}

void fuzz(Dice& dice, const std::vector<std::string>& samples) {
  std::string bytes = samples[draw(dice, samples.size())];
  for (size_t n = draw(dice, 6); n > 0; --n) mutate(bytes, dice);
  failed_input = bytes;
  const Given file(bytes);
  Wanted wanted;
  for (size_t place = draw(dice, 3), n = 1 + draw(dice, 5); n > 0; --n, place += 1 + draw(dice, 2))
    wanted.emplace_back(place, static_cast<SqliteKind>(draw(dice, 3)));
  for (const uint32_t root : {uint32_t{1}, uint32_t{2}, static_cast<uint32_t>(draw(dice, bytes.size() / 512 + 3))})
    check(read_rows(file.descriptor, root, wanted, 1 + draw(dice, 40)) == read_rows(file.descriptor, root, wanted, 4096), "the size of a batch changed what was read");
}

}  // namespace

}  // namespace stepscope

// fuzz_sqlite SEED SECONDS ITERATIONS FILE ...: whichever of the two limits comes first; 0 is none.
int main(int argc, char** argv) { return stepscope::fuzz_files(argc, argv, stepscope::fuzz); }
