package plan

import (
	"fmt"
	"strconv"
	"strings"
)

// expandHosts takes a Slurm host list such as "n[1-3,07],login" apart. Names it
// can't make sense of stay as they are, and so do ranges of over 100,000 hosts:
// they then match no node.
func expandHosts(list string) map[string]bool {
	out := map[string]bool{}
	depth, start := 0, 0
	for i := 0; i <= len(list); i++ {
		if i < len(list) {
			switch list[i] {
			case '[':
				depth++
			case ']':
				depth--
			}
			if list[i] != ',' || depth > 0 {
				continue
			}
		}
		if name := list[start:i]; name != "" {
			expandOne(name, out)
		}
		start = i + 1
	}
	return out
}

func expandOne(name string, out map[string]bool) {
	open := strings.IndexByte(name, '[')
	end := strings.IndexByte(name, ']')
	if open < 0 || end < open {
		out[name] = true
		return
	}
	prefix, rest := name[:open], name[end+1:]
	for _, part := range strings.Split(name[open+1:end], ",") {
		lo, hi, ranged := strings.Cut(part, "-")
		if !ranged {
			hi = lo
		}
		a, errA := strconv.Atoi(lo)
		b, errB := strconv.Atoi(hi)
		if errA != nil || errB != nil || a < 0 || b < a || b-a > 100_000 || len(out) > 100_000 {
			out[name] = true
			return
		}
		for i := a; i <= b; i++ {
			expandOne(fmt.Sprintf("%s%0*d%s", prefix, len(lo), i, rest), out)
		}
	}
}
