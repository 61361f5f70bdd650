package text

import (
	"fmt"
	"strings"
)

// Bounds on what a host list may come to; Slurm's own are far below them.
const (
	maxHosts    = 100_000
	maxHostName = 512 // bytes of a name with ranges in it
	maxGroups   = 5   // of ranges in a name
	maxWidth    = 9   // digits of a range's bound
)

// ExpandHosts returns the names in a host list such as "n[1-3,07],login". A name that
// it can't read stays as it is, and so does one that makes it more than 100,000
// names, repeated ones included: such names match no node.
func ExpandHosts(list string) map[string]bool {
	names := map[string]bool{}
	left := maxHosts // a name written twice is made twice
	for item := range items(list) {
		if item == "" {
			continue
		}
		parts, count, ok := hostParts(item)
		if !ok || count > left {
			names[item] = true
			continue
		}
		left -= count
		addHosts(names, "", parts)
	}
	return names
}

// hostPart is a piece of a name, and the ranges that follow it.
type hostPart struct {
	prefix string
	ranges []hostRange
}

type hostRange struct {
	lo, hi int64
	width  int // digits, with leading zeros
}

// hostParts takes a name apart and counts the hosts that it stands for.
func hostParts(name string) (parts []hostPart, count int, ok bool) {
	count = 1
	for {
		prefix, rest, more := strings.Cut(name, "[")
		if !more {
			return append(parts, hostPart{prefix: prefix}), count, true
		}
		in, after, closed := strings.Cut(rest, "]")
		if !closed || len(name) > maxHostName || len(parts) == maxGroups {
			return nil, 0, false
		}
		part, n := hostPart{prefix: prefix}, 0
		for item := range strings.SplitSeq(in, ",") {
			r, ok := parseRange(item)
			if !ok {
				return nil, 0, false
			}
			part.ranges = append(part.ranges, r)
			n += int(min(r.hi-r.lo, maxHosts)) + 1
		}
		if count *= n; count > maxHosts {
			return nil, 0, false
		}
		parts, name = append(parts, part), after
	}
}

// parseRange reads "7" or "07-12".
func parseRange(s string) (r hostRange, ok bool) {
	lo, hi, isRange := strings.Cut(s, "-")
	if !isRange {
		hi = lo
	}
	a, okA := digits(lo)
	b, okB := digits(hi)
	return hostRange{lo: a, hi: b, width: len(lo)}, okA && okB && a <= b && max(len(lo), len(hi)) <= maxWidth
}

func addHosts(names map[string]bool, prefix string, parts []hostPart) {
	prefix += parts[0].prefix
	if parts[0].ranges == nil {
		names[prefix] = true
		return
	}
	for _, r := range parts[0].ranges {
		for i := r.lo; i <= r.hi; i++ {
			addHosts(names, fmt.Sprintf("%s%0*d", prefix, r.width, i), parts[1:])
		}
	}
}
