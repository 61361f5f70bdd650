// Package hostlist parses Slurm's lists of names and numbers, "n[1-3,07],login" and "0,2-3". Users may write them.
package hostlist

import (
	"fmt"
	"iter"
	"strconv"
	"strings"
)

// Bounds on lists; Slurm's own lists are far below them.
const (
	maxNames  = 100_000
	maxName   = 512 // bytes of a name with ranges in it
	maxGroups = 5   // of ranges in a name
	maxWidth  = 9   // digits of a range's bound
)

// Items yields the items of a list, cut at commas outside brackets.
func Items(list string) iter.Seq[string] {
	return func(yield func(string) bool) {
		depth, from := 0, 0
		for i := range len(list) {
			switch list[i] {
			case '(', '[':
				depth++
			case ')', ']':
				depth = max(0, depth-1)
			case ',':
				if depth == 0 {
					if !yield(list[from:i]) {
						return
					}
					from = i + 1
				}
			}
		}
		yield(list[from:])
	}
}

// Names returns the names in a list such as "n[1-3,07],login" or "/dev/nvidia[0-3]", in order. An unreadable item stays
// as it is, and so does an item that would make more than maxNames names in all.
func Names(list string) (names []string) {
	left := maxNames // duplicates count
	for item := range Items(list) {
		parts, count, ok := partsOf(item)
		switch {
		case item == "":
		case !ok || count > left:
			names = append(names, item)
		default:
			left -= count
			names = spread(names, "", parts)
		}
	}
	return names
}

// Numbers reads a list such as "0-1,3". It returns false for an invalid list, and for more than most numbers.
func Numbers(list string, most int) (numbers []int, ok bool) {
	for item := range strings.SplitSeq(list, ",") {
		s, ok := parseSpan(item)
		if !ok || s.hi-s.lo >= most-len(numbers) {
			return nil, false
		}
		for n := s.lo; n <= s.hi; n++ {
			numbers = append(numbers, n)
		}
	}
	return numbers, true
}

// part is a piece of a name, followed by spans of numbers.
type part struct {
	prefix string
	spans  []span
}

type span struct {
	lo, hi int
	width  int // digits, with leading zeros
}

// partsOf splits an item into parts and counts its names.
func partsOf(name string) (parts []part, count int, ok bool) {
	count = 1
	for {
		prefix, rest, more := strings.Cut(name, "[")
		if !more {
			return append(parts, part{prefix: prefix}), count, true
		}
		in, after, closed := strings.Cut(rest, "]")
		if !closed || len(name) > maxName || len(parts) == maxGroups {
			return nil, 0, false
		}
		p, n := part{prefix: prefix}, 0
		for item := range strings.SplitSeq(in, ",") {
			s, ok := parseSpan(item)
			if !ok {
				return nil, 0, false
			}
			p.spans = append(p.spans, s)
			n += min(s.hi-s.lo, maxNames) + 1
		}
		if count *= n; count > maxNames {
			return nil, 0, false
		}
		parts, name = append(parts, p), after
	}
}

// parseSpan reads "7" or "07-12".
func parseSpan(text string) (s span, ok bool) {
	lo, hi, isRange := strings.Cut(text, "-")
	if !isRange {
		hi = lo
	}
	a, errA := strconv.ParseUint(lo, 10, 31)
	b, errB := strconv.ParseUint(hi, 10, 31)
	return span{lo: int(a), hi: int(b), width: len(lo)},
		errA == nil && errB == nil && a <= b && max(len(lo), len(hi)) <= maxWidth
}

func spread(names []string, prefix string, parts []part) []string {
	prefix += parts[0].prefix
	if parts[0].spans == nil {
		return append(names, prefix)
	}
	for _, s := range parts[0].spans {
		for n := s.lo; n <= s.hi; n++ {
			names = spread(names, fmt.Sprintf("%s%0*d", prefix, s.width, n), parts[1:])
		}
	}
	return names
}
