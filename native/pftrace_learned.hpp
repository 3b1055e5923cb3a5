// How packets of a Perfetto trace look that were read before, so that others like them are known by a few comparisons.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text.hpp"

namespace stepscope {

// What the annotations of a slice look like, but for their numbers: those that look the same have the same shape.
struct Pattern {
  struct Piece {
    uint32_t at, size;    // in the text
    uint8_t kind;         // of what follows: as in raw_shape_; before a number, the length of the two may be any
    uint64_t word, mask;  // the same of a text of up to eight bytes
  };
  int32_t shape = -1, name = -1;
  bool tied = false;  // an arrow says nothing more about it
  int8_t ties = -1;   // which of its numbers ties it to what it launched, if it is known to launch
  uint64_t name_iid = 0, category_iid = 0;  // as the sequence numbers them
  std::vector<Piece> pieces;
  std::string text;
  // The packet around it, as it was written the last time: between the time and the length of the event, from there to the
  // annotations, and behind the event. `track` is what the second one says; without a track nothing of it is known.
  struct Around {
    std::array<char, 16> before{}, behind{};
    std::array<char, 32> head{};
    uint8_t before_size = 0, behind_size = 0, head_size = 0;
    int64_t track = -1;
  } around;
  Pattern* chained = nullptr;   // another one of the same name
  Pattern* follower = nullptr;  // the one that came the last time after this one

  size_t bytes() const { return sizeof *this + sizeof this + pieces.size() * sizeof(Piece) + text.size(); }
};

// How begins of some kind are written on a track, whatever their name: between the time and the name, but for the length of
// the event; before each number, from the name on; and behind the event.
struct Layout {
  struct Step {
    uint64_t word, mask;
    uint8_t size, length_at;  // where the length of the annotation is
    bool real;
    bool operator==(const Step&) const = default;
  };
  std::array<char, 16> open{}, mask{};
  uint64_t behind = 0, behind_mask = 0;
  uint8_t open_size = 0, length_at = 0, behind_size = 0;
  uint32_t track = 0;
  int32_t shape = -1;
  std::vector<Step> steps;

  size_t bytes() const { return sizeof *this + steps.size() * sizeof(Step); }
  bool operator==(const Layout&) const = default;
  bool set_ends(const Pattern::Around& around, std::string_view before);
  bool set_steps(const Pattern& like, std::string_view after);

  // Whether sixteen bytes begin as they are to.
  bool opens(const char* at) const {
    return (((load64(at) ^ load64(open.data())) & load64(mask.data())) | ((load64(at + 8) ^ load64(open.data() + 8)) & load64(mask.data() + 8))) == 0;
  }
};

}  // namespace stepscope
