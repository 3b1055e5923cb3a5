// Reads stacks of samplers from text: what `perf script` prints, and collapsed stacks, one on a line.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace stepscope {

// Texts, each kept once, by their numbers.
class NumberedTexts {
 public:
  int64_t number(std::string_view text);
  std::vector<int32_t> offsets{0};
  std::vector<char> text;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view one) const { return std::hash<std::string_view>{}(one); }
  };
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> known_;
};

class StackReader {
 public:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::min();

  explicit StackReader(bool collapsed) : collapsed_(collapsed) {}
  void feed(std::string_view piece);
  void finish();

  // One entry for each sample.
  std::vector<int64_t> process, thread, cpu, time_ns, weight, command, event, stack;
  // Frames of all stacks, the innermost first; where each stack begins.
  std::vector<int64_t> stack_frames;
  std::vector<int64_t> stack_offsets{0};
  // A frame is a function and the module it is in, with a 0x01 between.
  NumberedTexts frames, commands, events;
  int64_t samples = 0;
  int64_t odd_lines = 0;

 private:
  void line(std::string_view text);
  void perf_line(std::string_view text);
  void head(std::string_view text);
  void after_event(std::string_view rest);
  bool frame(std::string_view text);
  void collapsed_line(std::string_view text);
  void end_sample();
  int64_t stack_number();

  bool collapsed_;
  bool open_ = false;
  std::string rest_;
  bool too_long_ = false;
  std::vector<int64_t> current_;
  std::string key_;
  std::unordered_map<std::string, int64_t> stacks_;
};

}  // namespace stepscope
