package gpusim

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// visible returns which of the GPUs and MIG instances of these names (UUIDs) a CUDA
// program sees, as indexes, for a CUDA_VISIBLE_DEVICES of value v; set distinguishes an
// empty value, which hides all, from a missing one, which hides none of the first so many, which numbers mean, too.
//
// As CUDA does it reads the list up to the first entry that names nothing, takes
// abbreviated UUIDs when they are unique, and sees nothing when a GPU is named
// twice. It sees one instance at most (MIG User Guide, "CUDA Device Enumeration").
func visible(v string, set bool, names []string, numbered int) (out []int) {
	if !set {
		for i := range numbered {
			out = append(out, i)
		}
		return out
	}
	for e := range strings.SplitSeq(v, ",") {
		i := find(strings.TrimSpace(e), names, numbered)
		switch instance := i >= 0 && strings.HasPrefix(names[i], migPrefix); {
		case i < 0 || len(out) > 0 && instance:
			return out
		case slices.Contains(out, i):
			return nil
		case instance:
			return []int{i}
		}
		out = append(out, i)
	}
	return out
}

// find returns the GPU or instance that an entry names, −1 for none.
func find(entry string, names []string, numbered int) int {
	if strings.HasPrefix(entry, "GPU-") || strings.HasPrefix(entry, migPrefix) {
		abbreviated := func(uuid string) bool { return strings.HasPrefix(uuid, entry) }
		i := slices.IndexFunc(names, abbreviated)
		if i >= 0 && slices.ContainsFunc(names[i+1:], abbreviated) {
			return -1
		}
		return i
	}
	if n, err := strconv.Atoi(entry); err == nil && n >= 0 && n < numbered {
		return n
	}
	return -1
}

// Part is what a CUDA program computes on: a GPU, or one of its MIG instances, counted from 1.
type Part struct {
	*Device
	Instance int // 0 = the whole GPU
}

// of returns the MIG instance, nil = the whole GPU.
func (p Part) of() *instance {
	if p.Instance == 0 {
		return nil
	}
	return &p.rec.Instance[p.Instance-1]
}

// Name is the part's UUID.
func (p Part) Name() string {
	if in := p.of(); in != nil {
		return cString(in.UUID[:])
	}
	return p.UUID()
}

// slicesOfGPU is into how many slices a GPU is cut at most.
const slicesOfGPU = 7

// MaxClients returns how many MPS clients the part serves at a time: an instance fewer than the card, in proportion to
// its slices (MIG User Guide, "Deployment Considerations").
func (p Part) MaxClients() int {
	if in := p.of(); in != nil {
		return max(1, p.rec.MaxClients*in.Slices/slicesOfGPU)
	}
	return p.rec.MaxClients
}

// MemMiB returns the part's memory, MiB.
func (p Part) MemMiB() float64 {
	if in := p.of(); in != nil {
		return in.MemTotal
	}
	return p.Device.MemMiB()
}

// Parts returns the GPUs in NVML's order, and their instances.
func (s *State) Parts() (gpus, instances []Part) {
	for _, d := range s.devs {
		gpus = append(gpus, Part{Device: d})
		for k := range d.rec.Instances {
			instances = append(instances, Part{d, k + 1})
		}
	}
	return gpus, instances
}

// Visible returns the parts that a CUDA program with this process's environment sees, in its order: of the machine's,
// or, if served has any, of those with these UUIDs, which an MPS server has.
func (s *State) Visible(served []string) (out []Part) {
	gpus, instances := s.Parts()
	all, numbered := slices.Concat(gpus, instances), len(gpus)
	if len(served) > 0 {
		place := func(p Part) int { return slices.Index(served, p.Name()) }
		all = slices.DeleteFunc(all, func(p Part) bool { return place(p) < 0 })
		slices.SortFunc(all, func(p, q Part) int { return place(p) - place(q) })
		numbered = len(all)
	}
	var names []string
	for _, p := range all {
		names = append(names, p.Name())
	}
	v, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	for _, i := range visible(v, set, names, numbered) {
		out = append(out, all[i])
	}
	return out
}
