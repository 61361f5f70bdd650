package gpusim

import (
	"strconv"
	"strings"
)

// Visible returns which of the given GPUs (by UUID, in order) a CUDA program
// sees, as indexes, for a CUDA_VISIBLE_DEVICES of value v; set tells an empty
// value, which hides all, from a missing one, which hides none.
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
	for _, e := range strings.Split(v, ",") {
		i := find(strings.TrimSpace(e), uuids)
		if i < 0 {
			break
		}
		for _, j := range out {
			if i == j {
				return nil
			}
		}
		out = append(out, i)
	}
	return out
}

// find returns the GPU that an entry names, −1 for none.
func find(entry string, uuids []string) int {
	if strings.HasPrefix(entry, "GPU-") {
		found := -1
		for i, u := range uuids {
			if strings.HasPrefix(u, entry) {
				if found >= 0 {
					return -1
				}
				found = i
			}
		}
		return found
	}
	n, err := strconv.Atoi(entry)
	if err != nil || n < 0 || n >= len(uuids) {
		return -1
	}
	return n
}

// UUIDs returns the UUIDs of all GPUs in NVML's order.
func (s *State) UUIDs() []string {
	out := make([]string, len(s.devs))
	for i, d := range s.devs {
		out[i] = d.UUID()
	}
	return out
}
