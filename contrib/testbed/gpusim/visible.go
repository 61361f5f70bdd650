package gpusim

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Visible returns which of the given GPUs (by UUID, in order) a CUDA program
// sees, as indexes, for a CUDA_VISIBLE_DEVICES of value v; set distinguishes an
// empty value, which hides all, from a missing one, which hides none. named are
// the UUIDs of MIG instances, which no number means; their indexes follow the GPUs'.
//
// As CUDA does it reads the list up to the first entry that names no GPU, takes
// abbreviated UUIDs when they are unique, and sees nothing when a GPU is named
// twice. It sees one instance at most (MIG User Guide, "CUDA Device Enumeration").
func Visible(v string, set bool, uuids []string, named ...string) []int {
	var out []int
	all := slices.Concat(uuids, named)
	if !set {
		for i := range uuids {
			out = append(out, i)
		}
		return out
	}
	for e := range strings.SplitSeq(v, ",") {
		i := find(strings.TrimSpace(e), uuids, all)
		switch {
		case i < 0 || len(out) > 0 && strings.HasPrefix(all[i], migPrefix):
			return out
		case slices.Contains(out, i):
			return nil
		case strings.HasPrefix(all[i], migPrefix):
			return []int{i}
		}
		out = append(out, i)
	}
	return out
}

// find returns the GPU or instance that an entry names, −1 for none; a number means one of the first, counted, ones.
func find(entry string, counted, all []string) int {
	if strings.HasPrefix(entry, "GPU-") || strings.HasPrefix(entry, migPrefix) {
		abbreviated := func(uuid string) bool { return strings.HasPrefix(uuid, entry) }
		i := slices.IndexFunc(all, abbreviated)
		if i >= 0 && slices.ContainsFunc(all[i+1:], abbreviated) {
			return -1
		}
		return i
	}
	if n, err := strconv.Atoi(entry); err == nil && n >= 0 && n < len(counted) {
		return n
	}
	return -1
}

// Part is what a CUDA program computes on: a GPU, or one of its MIG instances.
type Part struct {
	*Device
	Instance string // UUID; "" = the whole GPU
}

// Name is the part's UUID.
func (p Part) Name() string { return cmp.Or(p.Instance, p.UUID()) }

// Parts returns the GPUs in NVML's order, and their instances.
func (s *State) Parts() (gpus, instances []Part) {
	for _, d := range s.devs {
		gpus = append(gpus, Part{Device: d})
		for _, in := range d.Instances() {
			instances = append(instances, Part{d, in.UUID})
		}
	}
	return gpus, instances
}

// Visible returns the parts that a CUDA program sees, in its order: of the machine's, or, if served has any, of those
// with these UUIDs, which an MPS server has.
func (s *State) Visible(v string, set bool, served []string) (out []Part) {
	gpus, instances := s.Parts()
	all := slices.Concat(gpus, instances)
	names := make([]string, len(all))
	for i, p := range all {
		names[i] = p.Name()
	}
	counted, named := names[:len(gpus)], names[len(gpus):]
	if len(served) > 0 {
		counted, named = served, nil
	}
	for _, i := range Visible(v, set, counted, named...) {
		name := slices.Concat(counted, named)[i]
		if at := slices.Index(names, name); at >= 0 {
			out = append(out, all[at])
		}
	}
	return out
}

// UUIDs returns the UUIDs of all GPUs in NVML's order.
func (s *State) UUIDs() []string {
	out := make([]string, len(s.devs))
	for i, d := range s.devs {
		out[i] = d.UUID()
	}
	return out
}
