// The operations of a pickle that plain values need, by their byte, and how their operands are read over.
#pragma once

#include <cstdint>

namespace stepscope::op {

constexpr uint8_t mark = '(', stop = '.', pop = '0', pop_mark = '1', dup = '2';
constexpr uint8_t none = 'N', new_true = 0x88, new_false = 0x89;
constexpr uint8_t int4 = 'J', int1 = 'K', int2 = 'M', long1 = 0x8a, long4 = 0x8b, real = 'G';
constexpr uint8_t string4 = 'T', string1 = 'U', text4 = 'X', text1 = 0x8c, text8 = 0x8d;
constexpr uint8_t bytes4 = 'B', bytes1 = 'C', bytes8 = 0x8e, byte_array8 = 0x96;
constexpr uint8_t empty_list = ']', append = 'a', appends = 'e', list = 'l';
constexpr uint8_t empty_tuple = ')', tuple = 't', tuple1 = 0x85, tuple2 = 0x86, tuple3 = 0x87;
constexpr uint8_t empty_dict = '}', dict = 'd', set_item = 's', set_items = 'u';
constexpr uint8_t empty_set = 0x8f, add_items = 0x90, frozen_set = 0x91;
constexpr uint8_t get1 = 'h', get4 = 'j', put1 = 'q', put4 = 'r', memoize = 0x94;
constexpr uint8_t protocol = 0x80, frame = 0x95;
// What loads or calls something; never done.
constexpr uint8_t global = 'c', stack_global = 0x93, instance = 'i', object = 'o', reduce = 'R', build = 'b';
constexpr uint8_t new_object = 0x81, new_object_ex = 0x92, persistent = 'P', persistent_binary = 'Q';
constexpr uint8_t extension1 = 0x82, extension2 = 0x83, extension4 = 0x84, next_buffer = 0x97, read_only = 0x98;

}  // namespace stepscope::op
