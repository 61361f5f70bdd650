package gpusim

import (
	"slices"
	"strconv"
	"strings"
)

// Visible returns which of the given GPUs (by UUID, in order) a CUDA program
// sees, as indexes, for a CUDA_VISIBLE_DEVICES of value v; set distinguishes an
// empty value, which hides all, from a missing one, which hides none.
//
// As CUDA does it reads the list up to the first entry that names no GPU, takes
// abbreviated UUIDs when they are unique, and sees nothing when a GPU is named
// twice.
func Visible(v string, set bool, uuids []string) []int {
	var out []int
	if !set {
		for i := range uuids {
			out = append(out, i)
		}
		return out
	}
	for e := range strings.SplitSeq(v, ",") {
		i := find(strings.TrimSpace(e), uuids)
		switch {
		case i < 0:
			return out
		case slices.Contains(out, i):
			return nil
		}
		out = append(out, i)
	}
	return out
}

// find returns the GPU that an entry names, −1 for none.
func find(entry string, uuids []string) int {
	if strings.HasPrefix(entry, "GPU-") {
		abbreviated := func(uuid string) bool { return strings.HasPrefix(uuid, entry) }
		i := slices.IndexFunc(uuids, abbreviated)
		if i >= 0 && slices.ContainsFunc(uuids[i+1:], abbreviated) {
			return -1
		}
		return i
	}
	if n, err := strconv.Atoi(entry); err == nil && n >= 0 && n < len(uuids) {
		return n
	}
	return -1
}

// UUIDs returns the UUIDs of all GPUs in NVML's order.
func (s *State) UUIDs() []string {
	out := make([]string, len(s.devs))
	for i, d := range s.devs {
		out[i] = d.UUID()
	}
	return out
}
